"""What a session needs around it to be fed by hand."""

from __future__ import annotations

from typing import Any

from stantools.nats.nats_session import NatsSession


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

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.events: list[object] = []
        self.problems: list[Exception] = []

    def informed(self, info: dict[str, Any]) -> None:
        self.events.append(info)

    def refused(self, text: str) -> None:
        self.events.append(text)

    def failed(self, problem: Exception) -> None:
        self.problems.append(problem)

    def lost(self, session: NatsSession, reason: str) -> None:
        self.events.append(("lost", reason))


def put(session: NatsSession, data: bytes) -> None:
    """Lets a session read bytes, in as many pieces as it has room for."""
    while data and not session.ended.is_set():
        room = memoryview(session.get_buffer(-1))
        count = min(len(room), len(data))
        assert count
        room[:count] = data[:count]
        session.buffer_updated(count)
        data = data[count:]
