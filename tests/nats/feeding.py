"""A reader of client bytes as a connection would be, fed in pieces: what it understood, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stantools.nats import frames
from stantools.nats.frames import ParseStop
from stantools.nats.operations import (
    CLOSED_LINE,
    IncompleteOperation,
    MalformedOperation,
    parse_operation,
    payload_too_large,
)


def columns(buffer: bytes, row: list[int]) -> tuple[Any, ...]:
    """What a row of a frame table points to: subject, reply, headers, payload, route."""
    start, size, reply, reply_size, header_size, body, total, route = row
    return (
        buffer[start : start + size],
        buffer[reply : reply + reply_size],
        buffer[body : body + header_size],
        buffer[body + header_size : body + total],
        route,
    )


@dataclass
class Feeder:
    """Understands what a client says."""

    kernels: Any
    limit: int = 64
    max_payload: int = 100
    rows: int = 4
    events: list[Any] = field(default_factory=list)
    closed: str = ""

    def __post_init__(self) -> None:
        self.table = frames.frame_table(self.rows)
        self.routes = self.kernels.Names()
        for route, subject in enumerate((b"foo", b"bar", b"foo.bar")):
            self.routes.add(subject, route)
        self.buffer = b""

    def feed(self, data: bytes) -> None:
        self.buffer += data
        at, end = 0, len(self.buffer)
        while not self.closed:
            rows, at, stop, spans, need = self.kernels.parse_publishes(
                self.buffer, at, end, self.table, self.routes, self.limit, self.max_payload
            )
            check_spans(self.buffer, self.table[:rows].tolist(), spans)
            self.events += [columns(self.buffer, row) for row in self.table[:rows].tolist()]
            if stop in (ParseStop.END, ParseStop.PARTIAL):
                assert at == end if stop is ParseStop.END else at < end
                assert need == 0 or need > end - at
                break
            if stop is ParseStop.FULL:
                assert rows == self.rows
            elif stop is ParseStop.PAYLOAD_TOO_LARGE:
                self.closed = payload_too_large(0, 0).closed
            else:
                event, behind = parse_operation(self.buffer, at, end, self.limit)
                if stop is not ParseStop.OTHER:
                    assert isinstance(event, MalformedOperation)
                    assert (event.closed == CLOSED_LINE) is (stop is ParseStop.LINE_TOO_LONG)
                if isinstance(event, IncompleteOperation):
                    assert behind == at
                    break
                if isinstance(event, MalformedOperation):
                    assert behind == at
                    self.events.append(event.answer)
                    self.closed = event.closed
                    break
                assert behind > at
                self.events.append(event)
                at = behind
        self.buffer = self.buffer[at:]


def check_spans(buffer: bytes, rows: list[list[int]], spans: list[tuple[int, int, int]]) -> None:
    """Runs cover the rows, have one route each, and of unknown subjects only one."""
    at, previous = 0, None
    for route, begin, end in spans:
        assert begin == at < end
        assert {row[frames.ROUTE] for row in rows[begin:end]} == {route}
        key = (route, b"" if route >= 0 else columns(buffer, rows[begin])[0])
        if route < 0:
            assert len({columns(buffer, row)[0] for row in rows[begin:end]}) == 1
        assert key != previous
        at, previous = end, key
    assert at == len(rows)
