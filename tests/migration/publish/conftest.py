"""Batches and sources without a store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nats.aio.client import Client

from stantools.format.message_batch import MessageBatch
from stantools.nats.errors import NoAnswerError
from stantools.nats.jetstream import JetStream
from stantools.streamfiles import headers
from tests import natsclient
from tests.streamfiles.making import Item, batch


@dataclass
class FakeSource:
    """A source of listed messages, in batches of a few."""

    items: Sequence[Item]
    last: int = 0
    channel: bytes = b"orders"
    batch_rows: int = 1000
    reads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = max(self.last, self.items[-1].sequence if self.items else 0)

    @property
    def count(self) -> int:
        return len(self.items)

    @property
    def first(self) -> int:
        return self.items[0].sequence if self.items else 0

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        self.reads.append(after)
        until = self.last if until is None else until
        left = [item for item in self.items if after < item.sequence <= until]
        for at in range(0, len(left), self.batch_rows):
            yield batch(left[at : at + self.batch_rows], self.channel)


class Message(NamedTuple):
    """What a stream holds at a sequence."""

    sequence: int
    subject: bytes
    block: bytes
    data: bytes


async def read_back(js: JetStream, stream: str) -> list[Message]:
    """Reads a whole stream, without what publishing adds to header blocks."""
    info = await js.stream_info(stream)
    assert info
    inbox = js.connection.open_inbox(js.connection.new_inbox())
    await js.connection.flush()
    # With one replica it might be given to a server that is down.
    more = {"num_replicas": info["config"]["num_replicas"], "mem_storage": True, "inactive_threshold": 60 * 10**9}
    for left in reversed(range(5)):
        name = f"reader{inbox.subject[-8:].decode()}{left}"
        config = {"name": name, "ack_policy": "none", "deliver_policy": "all"}
        config["deliver_subject"] = inbox.subject.decode()
        try:
            await js.consumer_create(stream, config | more)
            break
        except NoAnswerError:
            # Old clusters that have lost a node do not always answer.
            if not left:
                raise
    found: list[Message] = []
    try:
        while len(found) < info["state"]["messages"]:
            received = await inbox.receive(5)
            for row in range(len(received)):
                block = headers.own_block(received.header(row))
                number = int(received.columns.sequence[row])
                found.append(Message(number, received.subject(row), block, received.data(row)))
    finally:
        js.connection.close_inbox(inbox)
        await js.consumer_delete(stream, name)
    return found


@contextlib.asynccontextmanager
async def peer(js: JetStream) -> AsyncIterator[Client]:
    """The common client library, connected to the same server."""
    async with natsclient.connected(js.connection.url) as client:
        yield client


def expected(source: FakeSource, *, origin: bool = True) -> list[Message]:
    """What a stream should hold."""
    return [
        Message(
            item.sequence,
            source.channel,
            headers.header_block(source.channel, item.sequence, item.timestamp, item.reply, origin=origin),
            item.data,
        )
        for item in source.items
    ]


def numbered(*sequences: int, size: int = 0) -> list[Item]:
    """Messages with these sequences, each with another payload."""
    padding = b"." * size
    return [Item(each, 10**18 + each, b"payload %d%b" % (each, padding)) for each in sequences]


CONFIG = {"subjects": ["orders"], "storage": "file", "retention": "limits", "num_replicas": 1}
