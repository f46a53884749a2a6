"""Pieces of any size give the same messages."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from stantools.nats.errors import ConnectionLostError
from stantools.nats.inbox import Inbox, Received
from stantools.nats.nats_session import NatsSession
from tests.nats.sessions import Listener, Transport, put


def frame(number: int, sid: int = 7, size: int = 20) -> bytes:
    data = random.Random(number).randbytes(size)
    return b"MSG s.%d %d $JS.ACK.S.c.1.%d.%d.1000.0 %d\r\n%b\r\n" % (number, sid, number, number, size, data)


async def feed(pieces: list[bytes], sids: list[int], take_every: int = 1) -> dict[int, list[Received]]:
    """The batches of each subscription; the inboxes are read after every `take_every` pieces."""

    listener = Listener()
    inboxes = {sid: Inbox(b"s") for sid in sids}
    listener.handlers = {sid: inbox.take for sid, inbox in inboxes.items()}
    session = NatsSession(listener)
    session.connection_made(Transport())  # type: ignore[arg-type]
    batches: dict[int, list[Received]] = {sid: [] for sid in sids}
    for count, piece in enumerate(pieces):
        put(session, piece)
        for sid, inbox in inboxes.items():
            if count % take_every == 0:
                batches[sid] += await waiting(inbox)
    for sid, inbox in inboxes.items():
        batches[sid] += await waiting(inbox)
    assert not listener.problems
    return batches


async def waiting(inbox: Inbox) -> list[Received]:
    """The batches that an inbox holds."""
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            found.append(await inbox.receive(0))
    return found


def messages(batches: list[Received]) -> list[tuple[int, bytes, bytes]]:
    return [(int(b.columns.sequence[i]), b.subject(i), b.data(i)) for b in batches for i in range(len(b))]


@pytest.mark.parametrize("step", [1, 7, 100, 4096, 10**9])
async def test_messages_do_not_depend_on_how_the_bytes_are_cut(step: int) -> None:
    data = b"".join(frame(number) + (b"PING\r\n" if number % 5 == 0 else b"") for number in range(1, 200))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    batches = await feed(pieces, [7], take_every=3)
    assert messages(batches[7]) == [
        (number, b"s.%d" % number, random.Random(number).randbytes(20)) for number in range(1, 200)
    ]


async def test_batches_stay_valid_through_many_blocks() -> None:
    data = b"".join(frame(number, size=1000) for number in range(1, 3001))
    batches = await feed([data[at : at + 30000] for at in range(0, len(data), 30000)], [7], take_every=7)
    assert [m[2] for m in messages(batches[7])] == [random.Random(number).randbytes(1000) for number in range(1, 3001)]


async def test_more_rows_than_a_block_has() -> None:
    data = b"".join(b"MSG s 7 $JS.ACK.S.c.1.%d.1.1.1 0\r\n\r\n" % number for number in range(1, 20001))
    batches = await feed([data], [7])
    assert [m[0] for m in messages(batches[7])] == list(range(1, 20001))


async def test_a_message_larger_than_a_block() -> None:
    data = frame(1) + frame(2, size=5 << 20) + frame(3)
    batches = await feed([data[at : at + 65536] for at in range(0, len(data), 65536)], [7])
    assert [(m[0], len(m[2])) for m in messages(batches[7])] == [(1, 20), (2, 5 << 20), (3, 20)]


async def test_two_subscriptions() -> None:
    data = b"".join(frame(number, sid=random.Random(number).choice([3, 7, 9])) for number in range(1, 300))
    batches = await feed([data[at : at + 5000] for at in range(0, len(data), 5000)], [3, 7])
    ours = {sid: [m[0] for m in messages(batches[sid])] for sid in (3, 7)}
    for sid in (3, 7):
        assert ours[sid] == [n for n in range(1, 300) if random.Random(n).choice([3, 7, 9]) == sid]


async def test_replies_and_headers() -> None:
    block = b"NATS/1.0 408 Timeout\r\na: b\r\n\r\n"
    data = b"HMSG a 7 %d %d\r\n%bxy\r\n" % (len(block), len(block) + 2, block) + b"MSG b 7 r.s 0\r\n\r\n"
    [batch] = (await feed([frame(1) + data], [7]))[7]
    first, second = batch.select(slice(1, 2)), batch.select(slice(2, 3))
    assert (first.subject(0), first.reply(0), first.header(0), first.data(0)) == (b"a", b"", block, b"xy")
    assert (second.subject(0), second.reply(0), second.header(0), second.data(0)) == (b"b", b"r.s", b"", b"")
    assert batch.columns.status.tolist() == [0, 408, 0]
    assert first.columns.reply_start.tolist() == second.columns.header_start.tolist() == [0]


async def test_an_interruption_keeps_its_place_among_the_messages() -> None:
    inbox = Inbox(b"s")
    listener = Listener()
    listener.handlers = {7: inbox.take}
    session = NatsSession(listener)
    session.connection_made(Transport())  # type: ignore[arg-type]
    put(session, frame(1) + frame(2)[:-3])
    inbox.interrupt()
    inbox.interrupt()
    session = NatsSession(listener)
    session.connection_made(Transport())  # type: ignore[arg-type]
    put(session, frame(3))
    assert [m[0] for m in messages([await inbox.receive(0)])] == [1]
    with pytest.raises(ConnectionLostError):
        await inbox.receive(0)
    assert [m[0] for m in messages([await inbox.receive(0)])] == [3]
    with pytest.raises(TimeoutError):
        await inbox.receive(0)
    receiving = asyncio.ensure_future(inbox.receive(60))
    await asyncio.sleep(0)
    inbox.interrupt()
    with pytest.raises(ConnectionLostError):
        await receiving
