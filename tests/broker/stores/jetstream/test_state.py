"""Records of the state that others lose, refuse or write, in simulated time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from broker.stores.interface import Flush, FlushOutcome
from broker.stores.jetstream.lease import Lease
from broker.stores.jetstream.state import BrokerState
from stantools.nats.channel_streams import StreamNames
from tests.broker.stores.jetstream.loop import simulated
from tests.broker.stores.jetstream.model import JetStream, Link

NAMES = StreamNames("c")


@dataclass(eq=False)
class Progress:
    """A thing whose record is written periodically."""

    content: bytes
    subject: bytes = b"sub.foo.1"
    gone: bool = False

    def encode(self, largest: int) -> bytes:
        return self.content


class Written:
    """A state that is open."""

    def __init__(self) -> None:
        self.servers = JetStream(random.Random(1))
        self.completed: list[Flush] = []
        self.lost: list[str] = []
        self.state = BrokerState(Link(self.servers), NAMES, b"me", self.completed.append, self.lost.append, 2.0)

    async def open(self, lease: Lease | None = None) -> None:
        await self.state._streams.create_stream(NAMES.state_config())
        self.stream = self.servers.streams[NAMES.state]
        assert await self.state.open(0, {}, (), lease)

    @property
    def records(self) -> dict[bytes, bytes]:
        found = {each.subject.removeprefix(NAMES.records.encode()): each for each in self.stream.messages.values()}
        return {subject: each.data for subject, each in found.items() if subject.startswith((b"sub", b"client"))}


@simulated
async def test_refused_progress_is_written_again() -> None:
    written = Written()
    await written.open()
    thing = Progress(b"1")
    written.state.write(thing)
    await asyncio.sleep(1)
    assert written.records == {b"sub.foo.1": b"1"}
    written.stream.refuses = "no space"
    thing.content = b"2"
    written.state.note(thing)
    flush = written.state.put(b"client.me", b"here")
    await asyncio.sleep(2)
    assert flush in written.completed and flush.outcome is not FlushOutcome.STORED
    written.stream.refuses = ""
    await asyncio.sleep(2)
    assert written.records == {b"sub.foo.1": b"2"}
    written.state.close()


@pytest.mark.parametrize("count", [1, 2, 3])
@simulated
async def test_lost_records_are_written_again(count: int) -> None:
    written = Written()
    await written.open()
    written.state.put(b"client.me", b"here")
    written.state.write(Progress(b"1"))
    await asyncio.sleep(1)
    written.stream.lose(count)
    flush = written.state.put(b"client.you", b"there")
    await asyncio.sleep(5)
    assert flush in written.completed and flush.outcome is FlushOutcome.STORED
    assert written.records == {b"client.me": b"here", b"client.you": b"there", b"sub.foo.1": b"1"}
    assert not written.lost
    written.state.close()


@pytest.mark.parametrize(("epoch", "taken"), [(6, False), (7, True), (8, True)])
@simulated
async def test_a_lease_of_another_server_ends_ours_unless_it_is_older(epoch: int, taken: bool) -> None:
    """Streams that have lost a lease give its epoch a second time."""
    written = Written()
    await written.open(Lease("me", 7, ("a",)))
    other = Lease("you", epoch, ("b",))
    written.stream.store(NAMES.records.encode() + other.subject, b"", other.encode(), 0)
    await asyncio.sleep(3)
    assert written.lost[:1] == (['node "you" has taken the lease'] if taken else [])
    written.state.close()
