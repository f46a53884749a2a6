"""One TCP connection to a NATS server: from its first byte to its loss.

Frames are parsed in the read buffer, many messages at a time, and passed on from there. Buffer and table belong to
the handlers until they return: nothing is read meanwhile. TLS would read in the call that closes the connection;
these bytes are dropped, as all bytes are after a connection was closed. All frames sent within one turn of the event
loop leave in one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from stantools.nats import encoding
from stantools.nats.frames import ParseStop, frame_table
from stantools.nats.kernels import parse_messages
from stantools.nats.operations import (
    MAX_LINE,
    Err,
    IncompleteOperation,
    InfoOperation,
    MalformedOperation,
    Ping,
    Pong,
    parse_answer,
)

if TYPE_CHECKING:
    import ssl

    from stantools.nats.frames import Handler

_READ_SIZE: Final = 1 << 18
_ROWS: Final = 1024
#: Maximum announced size of a real message: NATS servers allow 64 MiB.
_MAX_MESSAGE: Final = 64 << 20
#: maximum bytes waiting for a server that does not read
_MAX_PENDING: Final = 64 << 20
#: bytes of collected frames, beyond which callers that can wait do so
_MAX_COLLECTED: Final = 64 << 10


class Transport(Protocol):
    """What a session needs of its connection; asyncio's transports have it."""

    def write(self, data: bytes, /) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def get_extra_info(self, name: str, /) -> Any: ...

    def is_closing(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Listener(Protocol):
    #: by the number of the subscription
    handlers: dict[int, Handler]

    def informed(self, info: dict[str, Any]) -> None: ...

    def refused(self, text: str) -> None: ...

    def failed(self, problem: Exception) -> None: ...

    def lost(self, session: NatsSession, reason: str) -> None:
        """The connection has ended. Called once."""


class NatsSession(asyncio.BufferedProtocol):
    """A connection; its creator first waits for `greeting`, the server's first INFO."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.greeting: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.ended = asyncio.Event()  #: set at the end of the connection
        self._transport: Transport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._buffer = bytearray(_READ_SIZE)
        self._begin = self._end = 0
        self._frames = frame_table(_ROWS)
        self._parsing = False
        self._outgoing: list[bytes] = []
        self._outgoing_size = 0
        self._flushing: asyncio.Handle | None = None
        self._held_back = False
        self._pongs: deque[Callable[[bool], None]] = deque()
        self._reason = ""
        self._closed = False

    # Sending.

    @property
    def writable(self) -> bool:
        return not self._closed and self.pending < _MAX_PENDING

    @property
    def keeps_up(self) -> bool:
        """Whether the server reads fast enough; callers that can wait use `drain` otherwise."""
        return self._room.is_set() and self._outgoing_size < _MAX_COLLECTED

    @property
    def pending(self) -> int:
        if self._closed or self._transport is None:
            return 0
        return self._outgoing_size + self._transport.get_write_buffer_size()

    def write(self, frames: bytes) -> None:
        """Sends frames at the end of this turn of the loop."""
        if self._closed:
            return
        self._outgoing.append(frames)
        self._outgoing_size += len(frames)
        if self._flushing is None and not self._held_back:
            self._flushing = self._loop.call_soon(self.flush)

    def hold_back(self) -> None:
        """Collects frames until `flush` is called, which must happen in this or the next turn."""
        self._held_back = True
        self._cancel_flush()

    def _cancel_flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    def flush(self) -> None:
        self._held_back = False
        self._cancel_flush()
        if self._outgoing and self._transport is not None and not self._closed:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()
        self._outgoing_size = 0

    async def drain(self) -> None:
        """Sends collected frames, and waits until the server has read enough for more."""
        self.flush()
        await self._room.wait()
        if not self._closed and self._transport is not None and self._transport.is_closing():
            # The loop tells of the end in its next turn; a caller that only sends would keep it from doing so.
            await asyncio.sleep(0)
        if self._closed:
            raise ConnectionResetError(self._reason or "the connection was closed")

    def ping(self, done: Callable[[bool], None]) -> None:
        """Calls `done` with True when the server has answered, with False if the connection was lost before."""
        if self._closed:
            self._loop.call_soon(done, False)
            return
        self._pongs.append(done)
        self.write(encoding.PING)

    async def pong(self) -> bool:
        """Pings, and waits for the answer; False if the connection was lost before."""
        answered: asyncio.Future[bool] = self._loop.create_future()

        def done(good: bool) -> None:
            if not answered.done():
                answered.set_result(good)

        self.ping(done)
        return await answered

    @property
    def unanswered(self) -> int:
        return len(self._pongs)

    @property
    def encrypted(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    async def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Switches to TLS; OSError if the handshake fails."""
        plain = cast("asyncio.Transport", self._transport)
        self._transport = await self._loop.start_tls(plain, self, context, server_hostname=name)
        if self._transport is None:
            raise ConnectionResetError("the connection was closed")

    def close(self, reason: str = "") -> None:
        self._reason = self._reason or reason
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    # Receiving.

    def pause_reading(self) -> None:
        """Reads nothing more from the server until `resume_reading` is called."""
        if self._transport is not None and not self._closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._closed:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begin(cast("asyncio.Transport", transport))

    def begin(self, transport: Transport) -> None:
        self._transport = transport

    def pause_writing(self) -> None:
        """Called by the event loop: the server reads too slowly."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Called by the event loop: the server has read most of the buffered bytes."""
        self._room.set()

    def connection_lost(self, problem: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self.ended.set()
        self._room.set()
        reason = self._reason or (str(problem) if problem else "EOF")
        if not self.greeting.done():
            self.greeting.set_exception(ConnectionResetError(reason))
            self.greeting.exception()  # retrieved here, as it may have no other reader
        pongs, self._pongs = self._pongs, deque()
        self._listener.lost(self, reason)
        for done in pongs:
            done(False)

    def get_buffer(self, hint: int) -> bytearray | memoryview:
        """Returns where the event loop shall read to."""
        if self._parsing:
            return memoryview(bytearray(_READ_SIZE))
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, count: int) -> None:
        if self._parsing:
            return
        self._end += count
        self._parsing = True
        try:
            needed = self._parse()
        finally:
            self._parsing = False
        kept = self._end - self._begin
        # The rest of an incomplete frame moves to the start of the buffer; of a larger one if it will not fit.
        if kept and max(needed, kept + 1) > len(self._buffer):
            larger = bytearray(max(needed, 2 * kept))
            larger[:kept] = memoryview(self._buffer)[self._begin : self._end]
            self._buffer = larger
        elif kept and self._begin:
            self._buffer[:kept] = self._buffer[self._begin : self._end]
        elif not kept and len(self._buffer) > _READ_SIZE:
            self._buffer = bytearray(_READ_SIZE)
        self._begin, self._end = 0, kept

    def _parse(self) -> int:
        """Handles all complete frames. Returns the bytes of the next one, 0 if unknown."""
        while self._begin < self._end and not self._closed:
            rows, self._begin, stop, spans, needed = parse_messages(
                self._buffer, self._begin, self._end, self._frames, MAX_LINE, _MAX_MESSAGE
            )
            if rows:
                self._hand_over(spans)
            if stop is ParseStop.PARTIAL:
                return needed
            if stop is ParseStop.OTHER:
                event, self._begin = parse_answer(self._buffer, self._begin, self._end, MAX_LINE)
                if isinstance(event, IncompleteOperation):
                    return 0
                self._take(event)
            elif stop not in (ParseStop.END, ParseStop.FULL):
                self.abort("nats: Parse Error")
                self._begin = self._end
        return 0

    def _hand_over(self, spans: list[tuple[int, int, int]]) -> None:
        for sid, begin, end in spans:
            handler = self._listener.handlers.get(sid)
            if handler is None:
                continue  # was in transit when it was unsubscribed
            try:
                handler(self._buffer, self._frames, begin, end)
            except Exception as problem:
                self._listener.failed(problem)

    def _take(self, event: object) -> None:
        match event:
            case Ping():
                self.write(encoding.PONG)
            case Pong():
                if self._pongs:
                    self._pongs.popleft()(True)
            case InfoOperation(fields):
                if self.greeting.done():
                    self._listener.informed(fields)
                else:
                    self.greeting.set_result(fields)
            case Err(text):
                self._reason = text = f"nats: {text.strip().strip(chr(39))}"
                self._listener.refused(text)
            case MalformedOperation():
                self.abort("nats: Parse Error")
                self._begin = self._end
