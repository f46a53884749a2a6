"""A connection to a NATS server, fed by hand: in whatever pieces the bytes come, the messages are the same."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.nats import encoding
from stantools.nats.session import Session
from tests.broker.bus.test_bus import Heard

INFO = encoding.info({"server_id": "X", "max_payload": 1048576})


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = ""
        self.waiting = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def close(self) -> None:
        self.closed = "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class Owner:
    def __init__(self) -> None:
        self.heard = Heard()
        self.handlers: dict[int, Any] = {1: self.heard, 2: self.heard}
        self.events: list[object] = []

    def informed(self, info: dict[str, Any]) -> None:
        self.events.append(info)

    def refused(self, text: str) -> None:
        self.events.append(text)

    def failed(self, problem: Exception) -> None:
        self.events.append(problem)

    def lost(self, session: Session, reason: str) -> None:
        self.events.append(("lost", reason))


def feed(pieces: list[bytes]) -> tuple[Owner, Transport, Session]:
    """What comes of bytes that come in such pieces."""

    async def main() -> tuple[Owner, Transport, Session]:
        owner, transport = Owner(), Transport()
        session = Session(owner)
        session.connection_made(transport)  # type: ignore[arg-type]
        for piece in pieces:
            while piece and not transport.closed:
                room = memoryview(session.get_buffer(-1))
                count = min(len(room), len(piece))
                assert count
                room[:count] = piece[:count]
                session.buffer_updated(count)
                piece = piece[count:]
        await asyncio.sleep(0)
        return owner, transport, session

    return asyncio.run(main())


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
def test_in_whatever_pieces(parts: list[bytes], places: list[int]) -> None:
    data = INFO + b"".join(parts)
    whole, transport, session = feed([data])
    assert session.greeting.result()["server_id"] == "X"
    other, transport_of_other, _ = feed(cut(data, places))
    assert other.heard.messages == whole.heard.messages
    assert other.events == whole.events
    assert transport_of_other.written == transport.written == b"PONG\r\n" * parts.count(encoding.PING)
    assert len(whole.heard.messages) == sum(b"MSG" in part[:4] and b" 3 " not in part[:20] for part in parts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), frames.map(lambda f: f[:-1]), frames), max_size=6))
def test_whatever_comes(parts: list[bytes]) -> None:
    feed([INFO, *parts])


def test_byte_by_byte() -> None:
    data = INFO + encoding.message(b"a", b"1", b"x" * 100, b"r") + encoding.PING + encoding.message(b"a", b"2", b"")
    owner, transport, _ = feed([data[i : i + 1] for i in range(len(data))])
    assert owner.heard.messages == [(b"a", b"r", b"x" * 100), (b"a", b"", b"")]
    assert transport.written == b"PONG\r\n"


def test_lines_and_messages_without_end() -> None:
    for data in (b"INFO " + b"x" * (3 << 20), b"MSG a 1 999999999\r\n", b"MSG " + b"a" * (3 << 20)):
        owner, transport, session = feed([data])
        assert transport.closed == "aborted"
        assert not owner.heard.messages
        assert len(session._buffer) < 4 << 20


def test_a_server_that_does_not_read() -> None:
    async def main() -> None:
        owner, transport = Owner(), Transport()
        session = Session(owner)
        session.connection_made(transport)  # type: ignore[arg-type]
        assert session.writable
        transport.waiting = 64 << 20
        assert not session.writable
        transport.waiting = 0
        assert session.writable
        session.connection_lost(None)
        assert not session.writable
        assert owner.events == [("lost", "EOF")]

    asyncio.run(main())
