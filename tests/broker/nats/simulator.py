"""A NATS server without sockets, for simulations: an event loop whose rounds a seed makes, and clients read in pieces.

In each round some connections are readable, in any order, and each has any number of the bytes that its client has
sent: an operation may be cut anywhere. What the loop was asked to call comes before, after or between the reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, cast

from broker.nats.connection import ClientConnection
from broker.nats.nats_server import NatsServer

#: What a frame from the server may be: its words, and header and payload of a message.
Frame = tuple[Any, ...]


class Wire:
    """A transport that keeps what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.paused = self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """There are none."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default


class Loop:
    """An event loop that does a round when it is told to. Its time stands still."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._time = 1000.0
        self.failures: list[object] = []  #: what callbacks have raised

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Makes it the running loop."""
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", self))
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, cast("asyncio.AbstractEventLoop", self), context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when = self._time + delay
        handle = asyncio.TimerHandle(when, callback, args, cast("asyncio.AbstractEventLoop", self), context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A timer will do nothing when it is due."""

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return self._time

    def call_exception_handler(self, context: dict[str, object]) -> None:
        self.failures.append(context.get("exception"))

    def pass_time(self, seconds: float) -> None:
        """Has the timers of the next seconds called in the next round."""
        self._time += seconds
        while self._timers and self._timers[0][0] <= self._time:
            self._ready.append(heapq.heappop(self._timers)[2])

    def round(self, reads: list[Callable[[], None]]) -> None:
        """Does what was asked for before this round, and some reads, in an order that is drawn."""
        calls = [self._ready.popleft() for _ in range(len(self._ready))]
        order = [True] * len(calls) + [False] * len(reads)
        if self._random.random() < 0.5:
            self._random.shuffle(order)
        calls.reverse()
        reads.reverse()
        for is_call in order:
            if not is_call:
                reads.pop()()
            elif not (handle := calls.pop()).cancelled():
                handle._run()

    def settle(self) -> None:
        """Does rounds until there is nothing more to do."""
        while self._ready:
            self.round([])


class Peer:
    """A client, and its connection.

    Attributes:
        open: The server has not ended the connection, nor has the client.
        calm: The client does mostly the same for a while, a little at a time.
        frames: What the client has got so far.
    """

    def __init__(self, number: int, server: NatsServer) -> None:
        self.number = number
        self.connection: ClientConnection = server._connect().connection
        self.wire = Wire()
        self.connection.connection_made(cast("asyncio.Transport", self.wire))
        self.open = True
        self.calm = False
        self.frames: list[Frame] = []
        self._by_subject: dict[bytes, list[Frame]] = {}
        self._sent = bytearray()
        self._whole: tuple[int, int] = (0, 0)  # bytes that are read together
        self._read = 0
        self._seen = 0

    def send(self, data: bytes, *, whole: bool = False) -> None:
        """Sends something; the server reads it in pieces, unless it is to be whole."""
        if whole:
            self._whole = len(self._sent), len(self._sent) + len(data)
        self._sent += data

    @property
    def unread(self) -> int:
        """Bytes that the server may read now."""
        return 0 if self.wire.paused or self.wire.closing else len(self._sent) - self._read

    def read(self, count: int) -> bytes:
        """Has the server read so many bytes, or as many as it takes. Returns them."""
        begin, end = self._whole
        stop = self._read + count
        if begin < stop < end:
            stop = end
        view = self.connection.get_buffer(-1)
        data = bytes(self._sent[self._read : min(stop, self._read + len(view))])
        view[: len(data)] = data
        self._read += len(data)
        self.connection.buffer_updated(len(data))
        return data

    def end(self) -> None:
        """Ends the connection: the server has read all that it reads."""
        self.open = False
        self.connection.connection_lost(None)

    def look(self) -> None:
        """Takes apart what has come since the last look."""
        data, at = self.wire.written, self._seen
        while (line := data.find(b"\r\n", at)) >= 0:
            words = data[at:line].split(b" ")
            at = line + 2
            if words[0] in (b"MSG", b"HMSG"):
                size = int(words[-1])
                header = int(words[-2]) if words[0] == b"HMSG" else 0
                reply = words[3] if len(words) == (6 if header else 5) else b""
                body = data[at : at + size]
                assert data[at + size : at + size + 2] == b"\r\n"
                at += size + 2
                frame = (b"MSG", words[2], words[1], reply, body[:header], body[header:])
                self.frames.append(frame)
                self._by_subject.setdefault(words[1], []).append(frame)
            elif words[0] != b"INFO":
                self.frames.append((data[self._line(at) : at - 2],))
        assert at == len(data), data[at:]
        self._seen = at

    def messages(self, subject: bytes) -> list[Frame]:
        """Returns the messages with a subject that have come so far."""
        self.look()
        return self._by_subject.get(subject, [])

    def _line(self, end: int) -> int:
        return self.wire.written.rfind(b"\n", 0, end - 2) + 1


class Operations:
    """What a client has sent, as one who reads a stream of bytes without haste takes it apart."""

    def __init__(self) -> None:
        self._data = b""
        self.broken = False  #: something was no operation

    def read(self, data: bytes) -> list[tuple[bytes, ...]]:
        """Returns the operations that are complete: their words, and for publishes headers and payload."""
        self._data += data
        found: list[tuple[bytes, ...]] = []
        while not self.broken:
            line, end, rest = self._data.partition(b"\r\n")
            words = tuple(line.split(b" "))
            if words[0] not in (b"CONNECT", b"PING", b"SUB", b"UNSUB", b"PUB", b"HPUB"):
                # Nothing that is broken is cut.
                self.broken = bool(end)
                if end:
                    found.append((b"BROKEN",))
                break
            if not end:
                break
            if words[0] == b"CONNECT":
                words = (b"CONNECT", line[8:])
            elif words[0] in (b"PUB", b"HPUB"):
                size, header = int(words[-1]), int(words[-2]) if words[0] == b"HPUB" else 0
                if len(rest) < size + 2:
                    break
                numbers = 2 if header else 1
                reply = words[2] if len(words) == 3 + numbers else b""
                words = (b"PUB", words[1], reply, rest[:header], rest[header:size])
                assert rest[size : size + 2] == b"\r\n"
                rest = rest[size + 2 :]
            found.append(words)
            self._data = rest
        return found


class Network:
    """Clients whose bytes are read in rounds.

    Args:
        apply: Is told of each read, in order: the client, and the bytes.
    """

    def __init__(self, loop: Loop, random: Random, apply: Callable[[Peer, bytes], None]) -> None:
        self._loop = loop
        self._random = random
        self._apply = apply
        self.peers: list[Peer] = []

    def _reader(self, peer: Peer, most: int) -> Callable[[], None]:
        def read() -> None:
            if peer.open and peer.unread:
                self._apply(peer, peer.read(min(most, peer.unread)))

        return read

    def round(self) -> None:
        """Does a round in which some are readable, whose bytes are cut somewhere."""
        random = self._random
        readable = [peer for peer in self.peers if peer.open and peer.unread and random.random() < 0.8]
        random.shuffle(readable)
        # Mostly all that there is comes at once.
        reads = [
            self._reader(peer, random.randint(1, peer.unread) if random.random() < 0.15 else peer.unread)
            for peer in readable
        ]
        self._loop.round(reads)

    def settle(self) -> None:
        """Has everything read and done."""
        self._loop.settle()
        while any(peer.open and peer.unread for peer in self.peers):
            self.round()
            # Some go on reading then.
            if not any(peer.open and peer.unread for peer in self.peers):
                self._loop.settle()
        for peer in self.peers:
            peer.open = peer.open and not peer.wire.closing


class Errors(logging.Handler):
    """Keeps what the server logs as its own mistakes."""

    _OURS = (
        "nternal error",
        "Error while handling",
        "rror in the handler",
        "Error in a handler",
        "Unable to unmarshal",
    )

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if any(text in line for text in self._OURS):
            self.lines.append(line)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the loggers of the broker."""
        logger = logging.getLogger("broker")
        before = logger.propagate
        logger.addHandler(self)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = before
