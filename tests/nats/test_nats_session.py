"""A NATS session with a transport of the test: however the bytes are cut, the messages are the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.nats import encoding
from stantools.nats.nats_session import NatsSession
from tests.broker.bus.test_bus import Heard
from tests.nats.sessions import Listener, Transport, put

INFO = encoding.info({"server_id": "X", "max_payload": 1048576})


async def feed(pieces: list[bytes]) -> tuple[Listener, Heard, Transport, NatsSession]:
    """A session after it has received these pieces."""

    listener, heard, transport = Listener(), Heard(), Transport()
    listener.handlers = {1: heard, 2: heard}
    session = NatsSession(listener)
    session.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        if not transport.closed:
            put(session, piece)
    await asyncio.sleep(0)
    return listener, heard, transport, session


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


subjects = st.sampled_from([b"a", b"a.b", b"_INBOX.x.y"])
frames = st.one_of(
    st.builds(
        encoding.message,
        subjects,
        st.sampled_from([b"1", b"2", b"3"]),
        st.one_of(st.binary(max_size=50), st.just(b"z" * 300_000)),
        st.sampled_from([b"", b"r.s"]),
        st.sampled_from([b"", encoding.NO_RESPONDERS]),
    ),
    st.sampled_from([encoding.PING, encoding.PONG, encoding.OK, encoding.error("Slow Consumer"), INFO]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 1000), max_size=20))
async def test_messages_do_not_depend_on_how_the_bytes_are_cut(parts: list[bytes], places: list[int]) -> None:
    data = INFO + b"".join(parts)
    told, heard, transport, session = await feed([data])
    assert session.greeting.result()["server_id"] == "X"
    told_too, heard_too, transport_too, _ = await feed(cut(data, places))
    assert heard_too.messages == heard.messages
    assert told_too.events == told.events
    assert transport_too.written == transport.written == b"PONG\r\n" * parts.count(encoding.PING)
    assert len(heard.messages) == sum(b"MSG" in part[:4] and b" 3 " not in part[:20] for part in parts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), frames.map(lambda f: f[:-1]), frames), max_size=6))
async def test_any_bytes_can_be_received(parts: list[bytes]) -> None:
    await feed([INFO, *parts])


async def test_single_bytes() -> None:
    data = INFO + encoding.message(b"a", b"1", b"x" * 100, b"r") + encoding.PING + encoding.message(b"a", b"2", b"")
    _, heard, transport, _ = await feed([data[i : i + 1] for i in range(len(data))])
    assert heard.messages == [(b"a", b"r", b"x" * 100), (b"a", b"", b"")]
    assert transport.written == b"PONG\r\n"


async def test_too_long_lines_and_messages_abort_the_connection() -> None:
    for data in (b"INFO " + b"x" * (3 << 20), b"MSG a 1 999999999\r\n", b"MSG " + b"a" * (3 << 20)):
        _, heard, transport, session = await feed([data])
        assert transport.closed == "aborted"
        assert not heard.messages
        assert len(session.get_buffer(0).obj) < 4 << 20


async def test_a_session_with_a_full_buffer_is_not_writable() -> None:
    listener, transport = Listener(), Transport()
    session = NatsSession(listener)
    session.connection_made(transport)  # type: ignore[arg-type]
    assert session.writable
    transport.waiting = 64 << 20
    assert not session.writable
    transport.waiting = 0
    assert session.writable
    session.connection_lost(None)
    assert not session.writable
    assert listener.events == [("lost", "EOF")]


async def test_a_failing_handler_does_not_stop_the_others() -> None:
    listener, heard, transport = Listener(), Heard(), Transport()

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("in a handler")

    listener.handlers = {1: broken, 2: heard}
    session = NatsSession(listener)
    session.connection_made(transport)  # type: ignore[arg-type]
    messages = [encoding.message(b"a", sid, b"x") for sid in (b"1", b"2", b"1", b"2")]
    put(session, INFO + b"".join(messages) + encoding.PING)
    await asyncio.sleep(0)
    assert [repr(problem) for problem in listener.problems] == ["ZeroDivisionError('in a handler')"] * 2
    assert len(heard.messages) == 2
    assert transport.written == encoding.PONG
    assert not transport.closed


async def test_drain_waits_for_room_in_the_buffer() -> None:
    session, transport = NatsSession(Listener()), Transport()
    session.connection_made(transport)  # type: ignore[arg-type]
    session.write(b"one")
    await session.drain()
    assert transport.written == b"one"
    session.pause_writing()
    session.write(b"two")
    first, second = asyncio.ensure_future(session.drain()), asyncio.ensure_future(session.drain())
    await asyncio.sleep(0)
    assert transport.written == b"onetwo"
    assert not first.done() and not second.done()
    first.cancel()
    session.resume_writing()
    await second
    session.pause_writing()
    third = asyncio.ensure_future(session.drain())
    await asyncio.sleep(0)
    session.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await third


async def test_a_handler_that_closes_while_tls_has_more_data() -> None:
    """TLS passes on decrypted data within `close`; it is dropped, and messages parsed before stay intact."""

    listener, heard, transport = Listener(), Heard(), Transport()
    session = NatsSession(listener)
    later = encoding.message(b"late", b"1", b"l" * 60) * 20

    def close() -> None:
        assert not transport.closed
        transport.closed = True
        view = session.get_buffer(-1)
        view[: len(later)] = later
        session.buffer_updated(len(later))

    def handle(buffer: Any, frames: Any, begin: int, end: int) -> None:
        if not transport.closed:
            session.close()
        heard(buffer, frames, begin, end)

    transport.close = close  # type: ignore[method-assign]
    listener.handlers = {1: handle, 2: handle}
    session.connection_made(transport)  # type: ignore[arg-type]
    put(session, INFO + b"".join(encoding.message(b"a", sid, sid * 9) for sid in (b"1", b"1", b"2", b"1")))
    assert heard.messages == [(b"a", b"", sid * 9) for sid in (b"1", b"1", b"2", b"1")]
    assert not listener.events
