"""A client's socket: input, output, and back pressure against clients that are too slow.

All connections read into one buffer of the server. Input is handled at once, up to the time of a turn. The remaining
input, and a partial operation at its end, is kept by the connection, which does not read until its further turns are
over. Output is collected and written once per round of the event loop.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from broker.log import NATS
from broker.nats import tracing
from broker.nats.auth import ClientCredentials, Identity
from broker.nats.client import CLOSED, HEARS, OPEN, BrokerClient, ClientState, CloseReason, NatsSubscription
from broker.nats.client_session import ClientSession
from broker.nats.read_coalescer import SMALL, ReadCoalescer
from broker.rounds import APPLY, READ
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, ParseStop
from stantools.nats.kernels import encode_block, encode_message, encode_messages, parse_publishes
from stantools.nats.operations import IncompleteOperation, MalformedOperation, parse_operation, payload_too_large
from stantools.notation import format_go_duration

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Payloads

#: A larger frame gets a buffer of its own while it arrives.
LARGE: Final = 64 * 1024
#: Maximum number of publishes per parse, and the minimum for slow ones.
ROWS: Final = 4096
_MIN_ROWS: Final = 16
#: The parser has reached a boundary between operations.
_BOUNDARIES: Final = (ParseStop.END, ParseStop.FULL)
#: First bytes of PUB and HPUB.
_PUBLISHES: Final = b"PpHh"
#: Bytes of collected output that are written at once.
_FLUSH_SIZE: Final = 512 * 1024
#: Bytes in the transport above which publishers are slowed down, and below which they resume.
_HIGH_WATER: Final = 1024 * 1024
_LOW_WATER: Final = 256 * 1024
#: Bytes of output above which patient senders, such as stores, pause.
_PATIENT_LIMIT: Final = 8 * 1024 * 1024
#: Seconds that a publisher pauses for a congested receiver, and for one near its limit.
_STALL: Final = 0.005
_LONG_STALL: Final = 0.02
_NO_HEADERS: Final = MalformedOperation("", "message headers not supported")
#: The transport of a connection that was lost.
_ENDED: Final = asyncio.Transport()
#: Seconds for a closed connection to read its last output; its input is dropped meanwhile.
_LINGER: Final = 2.0


class InputState(enum.Enum):
    """What happens to the next input of a connection.

    The parser decides: after publishes that may be gathered the next input is, after the end of a turn it waits.
    """

    DIRECT = enum.auto()  #: it is parsed at once, after the partial operation that was kept
    GATHERED = enum.auto()  #: it waits in the shared buffer (`ReadCoalescer`)
    LARGE = enum.auto()  #: it continues a large frame, in a buffer of its own
    WAITING = enum.auto()  #: earlier input has its turns first; nothing is read meanwhile


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
DIRECT: Final = InputState.DIRECT
GATHERED: Final = InputState.GATHERED
LARGE_FRAME: Final = InputState.LARGE
WAITING: Final = InputState.WAITING
_NEXT: Final = {
    DIRECT: (GATHERED, LARGE_FRAME, WAITING),
    GATHERED: (DIRECT, LARGE_FRAME, WAITING),
    LARGE_FRAME: (DIRECT,),
    WAITING: (DIRECT,),
}


@dataclass(slots=True, eq=False)
class ClientConnection(ClientSession):
    read_coalescer: ReadCoalescer = field(kw_only=True)  #: shared buffer for input that may be gathered
    stop: int = 0  #: end time, ns since the epoch
    reason: CloseReason | None = None  #: reason of the end
    tls_version: str = ""  #: version of TLS, `1.3`; empty without TLS
    tls_cipher: str = ""  #: its cipher suite
    out: list[bytes] = field(default_factory=list)  #: collected output
    out_size: int = 0  #: bytes of that
    input_state: InputState = DIRECT
    _transport: asyncio.Transport = field(init=False)
    _rest: bytes | bytearray = b""
    _work: Iterator[None] | None = None
    _queued: bool = False
    _large_frame: bytearray | None = None
    _large_filled: int = 0
    _frame_size: int = 0
    _congested: bool = False
    _holds: int = 0
    _stall_timer: asyncio.TimerHandle | None = None
    _progress: tuple[int, int] = (0, 0)
    _rows: int = ROWS
    _written: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port} - cid:{self.cid}"

    # Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.state is not ClientState.NEW:
            return
        self._transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host, self.port = str(peer[0]), int(peer[1]) if len(peer) > 1 else 0
        self.ping_at = time.monotonic_ns() + int(self.server.options.ping_interval * 1e9)
        self.direct = self._may_be_direct()
        self.server.accept(self)

    def upgraded(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        self.tls = transport.get_extra_info("ssl_object")
        cipher = self.tls.cipher() if self.tls is not None else None
        if self.tls is not None and cipher is not None:
            self.tls_version = (self.tls.version() or "").removeprefix("TLSv")
            self.tls_cipher = cipher[0]

    @property
    def transport(self) -> asyncio.Transport:
        return self._transport

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, problem: Exception | None) -> None:
        self.read_coalescer.run()
        if problem is None:
            # The client sent all of this before it left.
            for _ in self._remaining_turns():
                pass
        self._end(CloseReason.CLIENT_CLOSED if problem is None else CloseReason.READ_ERROR)
        self.release_stalled()
        # Monitoring keeps closed connections for a while: without references they stay small and are freed at once.
        self.out, self._rest, self._large_frame, self.tls = [], b"", None, None
        self._replies.clear()
        self.identity, self.credentials = Identity(), ClientCredentials()
        self._transport = _ENDED

    def close(self, reason: CloseReason, error: str = "", *, abort: bool = False) -> None:
        """Closes the connection with a reason, and an `error` for the client.

        With `abort`, unsent output is dropped.
        """
        if self.server.rounds.step is READ:
            # Earlier input, also of other clients, has precedence.
            self.read_coalescer.run()
        if self.closed:
            return
        if error:
            self.send_error(error)
        self.flush()
        # The client may have been closed as too slow by that.
        if not self._end(reason):
            return
        transport = self._transport
        if abort:
            transport.abort()
            return
        if error and transport.can_write_eof():
            # Closing at once would reset the connection on further input, and the client might miss the error.
            transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()
            if not transport.get_write_buffer_size():
                return
        asyncio.get_running_loop().call_later(_LINGER, transport.abort)

    def _end(self, reason: CloseReason) -> bool:
        if self.closed:
            return False
        self.advance(ClientState.CLOSED)
        self.direct = False
        self._not_gathered()
        self.reason, self.stop = reason, time.time_ns()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self.stop_timer()
        self._queue()
        self.server.ended(self)
        NATS.debug("%s - Client connection closed: %s", self, reason)
        return True

    # Input

    def _receive(self, state: InputState) -> None:
        """Decides what happens to the next input."""
        if state is not self.input_state:
            assert state in _NEXT[self.input_state], f"{self.input_state} does not become {state}"
            self.input_state = state

    def _not_gathered(self) -> None:
        if self.input_state is GATHERED:
            self._receive(DIRECT)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.state is CLOSED:
            # TLS may read during its closure, at any moment.
            return memoryview(bytearray(LARGE))
        coalescer = self.read_coalescer
        assert coalescer.rounds.step is READ, f"READ in the middle of {coalescer.rounds.step.name}"
        if self.waits:
            coalescer.run()
        if self.input_state is GATHERED:
            return coalescer.room
        if self.input_state is LARGE_FRAME:
            assert self._large_frame is not None
            return memoryview(self._large_frame)[self._large_filled :]
        view = self.server.read_view
        if self._rest:
            view[: len(self._rest)] = self._rest
            return view[len(self._rest) :]
        return view

    def buffer_updated(self, count: int) -> None:
        if self.state is CLOSED:
            self._rest, self._large_frame = b"", None
            return
        if self.input_state is GATHERED:
            if count <= SMALL:
                self.read_coalescer.put(self, count)
            else:
                self.hear(self.read_coalescer.take(count))
            return
        self.active = True
        self.last_activity = self.server.rounds.now = time.time_ns()
        if self.input_state is LARGE_FRAME:
            assert self._large_frame is not None
            self._large_filled += count
            if self._large_filled < self._frame_size:
                if self._large_filled == len(self._large_frame):
                    size = min(2 * self._large_filled, self._frame_size)
                    self._large_frame = self._large_frame + bytes(size - self._large_filled)
                return
            data: Buffer = self._large_frame
            end = self._large_filled
            self._large_frame = None
            self._receive(DIRECT)
        else:
            data = self.server.read_buffer
            end = len(self._rest) + count
        if self.input_state is WAITING:
            # Earlier input gets its turns first.
            self._rest = bytes(memoryview(data)[:end])
            return
        self._rest = b""
        self._handle(data, end)
        self._end_turn()

    def hear(self, data: bytes) -> None:
        self.active = True
        self.last_activity = self.server.rounds.now = time.time_ns()
        self._handle(data, len(data))
        self._end_turn()

    def resume(self) -> None:
        self.release()
        self.resume_input()

    def resume_input(self) -> None:
        if self._rest and not self.closed and self.input_state is not WAITING:
            data, self._rest = self._rest, b""
            self._handle(data, len(data))
            self._end_turn()

    def _end_turn(self) -> None:
        if self.input_state is WAITING:
            self.hold()
            self._queue()
        self.server.mailbox.drain()

    def become(self, identity: Identity) -> None:
        ClientSession.become(self, identity)
        # Gathered input is published without permission checks and answers.
        self._not_gathered()

    @property
    def _has_more(self) -> bool:
        """Whether the connection waits for nothing but a turn to handle its input.

        The publishes of a closed client are still delivered.
        """
        if self.state is CLOSED:
            return self._work is not None
        return self.input_state is WAITING and self._stall_timer is None

    def _queue(self) -> None:
        """Requests a turn if there is input left."""
        if not self._queued and self._has_more:
            self._queued = True
            self.server.turns.add(self._remaining_turns())

    def _remaining_turns(self) -> Iterator[None]:
        """Handles the remaining input; ends early if the connection is closed or paused."""
        while self._has_more:
            if self._work is not None:
                try:
                    yield from self._work
                except Exception as problem:
                    self._report_bug(problem)
                self._work = None
                continue
            self._receive(DIRECT)
            data, self._rest = self._rest, b""
            self._handle(data, len(data))
            self.server.mailbox.drain()
            if self.input_state is not WAITING:
                self.release()
            yield
        self._queued = False

    def _report_bug(self, problem: Exception) -> None:
        # A bug in handling input costs this connection only.
        NATS.error("%s - Error while handling input: %r", self, problem)
        NATS.debug("Details", exc_info=True)
        self.close(CloseReason.PARSE_ERROR)

    def _handle(self, data: Buffer, end: int) -> None:
        # Apply the earlier input of other clients.
        self.read_coalescer.run()
        rounds = self.server.rounds
        rounds.enter(APPLY)
        try:
            at, need = self._parse(data, end)
        except Exception as problem:
            self._report_bug(problem)
            return
        finally:
            rounds.step = READ
        if at == end or self.state is CLOSED:
            return
        self._not_gathered()
        left = memoryview(data)[at:end]
        if max(need, len(left)) > LARGE and self.state is not ClientState.CHECKING and self.input_state is DIRECT:
            self._receive(LARGE_FRAME)
            self._frame_size = max(need, len(left) + 1)
            size = max(2 * len(left), 4 * LARGE)
            self._large_frame = bytearray(min(need, size) if need else size)
            self._large_frame[: len(left)] = left
            self._large_filled = len(left)
        else:
            self._rest = bytes(left)

    def _parse(self, data: Buffer, end: int) -> tuple[int, int]:
        """Returns the position after the last operation, and the size of the next frame (0: unknown)."""
        server, at = self.server, 0
        options, refused, deadline = server.options, False, server.turns.deadline()
        # Input after the end of a TLS handshake waits until its answers can be sent over TLS.
        while at < end and self.state in HEARS:
            # Every turn makes progress, however short it is.
            if at and perf_counter() > deadline:
                self._receive(WAITING)
                break
            rows, stop = 0, ParseStop.OTHER
            if data[at] in _PUBLISHES:
                # If each publish is answered or logged before its delivery, publishes are handled one by one.
                one_by_one = self.pedantic or self.verbose or server.tracing
                frames = server.frames[: 1 if one_by_one else self._rows]
                rows, at, stop, spans, need = parse_publishes(
                    data, at, end, frames, self.table.routes, options.max_control_line, options.max_payload
                )
            if rows:
                frames = server.frames
                if self.state is not OPEN:
                    self.unauthorized()
                    break
                if not self.headers and (frames[0, HEADER_SIZE] or (rows > 1 and frames[:rows, HEADER_SIZE].any())):
                    # The publishes before are valid.
                    rows = int(np.argmax(frames[:rows, HEADER_SIZE] > 0))
                    spans = [(route, first, min(last, rows)) for route, first, last in spans if first < rows]
                    refused = True
                if server.tracing:
                    tracing.publishes(self, data, frames, rows, options.max_traced_msg_len)
                if self.pedantic or self.verbose:
                    self.before_publishes(data, frames, rows)
                if spans:
                    # Judging by these publishes: may the next ones be gathered?
                    gathered = (
                        end <= SMALL
                        and not (one_by_one or frames[0, HEADER_SIZE])
                        and self.permit is None
                        and self.tls is None
                        and all(number > 0 and server.subscriptions.ranks[number] for number, _, _ in spans)
                    )
                    self._receive(GATHERED if gathered else DIRECT)
                    taken, self._work = server.client_router.publish(self, self.table, data, frames, spans, deadline)
                    if self._work is not None or taken < rows:
                        # Remaining rows are parsed again later, at most the rows of a turn.
                        self._rows = max(taken, _MIN_ROWS)
                        self._receive(WAITING)
                        # The end of the last handled row.
                        at = int(frames[taken - 1, PAYLOAD]) + int(frames[taken - 1, PAYLOAD_SIZE]) + 2
                        break
                    self._rows = min(2 * self._rows, ROWS)
                if refused:
                    self.malformed(_NO_HEADERS)
                    break
            if stop == ParseStop.PARTIAL:
                return at, need
            if stop in _BOUNDARIES:
                continue
            if stop == ParseStop.PAYLOAD_TOO_LARGE:
                self.malformed(payload_too_large(_declared_size(data, at, end), options.max_payload))
                break
            event, at = parse_operation(data, at, end, options.max_control_line)
            if isinstance(event, IncompleteOperation):
                break
            if isinstance(event, MalformedOperation):
                self.malformed(event)
                break
            self.handle(event)
        return at, 0

    def hold(self) -> None:
        """Stops reading until each `hold` has its `release`."""
        self._holds += 1
        if self._holds == 1 and not self.closed:
            self._transport.pause_reading()

    def release(self) -> None:
        self._holds -= 1
        if self._holds == 0 and not self.closed and not self._transport.is_closing():
            self._transport.resume_reading()

    # Output

    def send(self, data: bytes) -> None:
        if self.state is CLOSED:
            return
        if not self.out:
            self.server.dirty((self,))
        self.out.append(data)
        self.out_size += len(data)
        if self.out_size > _FLUSH_SIZE:
            self.flush()

    def flush(self) -> None:
        out = self.out
        if not out or self.state is CLOSED:
            return
        self.out, self._written = [], self._written + self.out_size
        self.out_size = 0
        transport = self._transport
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.write(b"".join(out))
        limit = self.server.options.max_pending
        if transport.get_write_buffer_size() > limit:
            self.server.slow_consumers += 1
            NATS.info("%s - Slow Consumer Detected: MaxPending of %d Exceeded", self, limit)
            self.close(CloseReason.SLOW_PENDING, abort=True)

    @property
    def pending(self) -> int:
        return self.out_size + (0 if self.closed else self._transport.get_write_buffer_size())

    @property
    def congested(self) -> bool:
        if self.state is CLOSED:
            return False
        pending = self.out_size + self._transport.get_write_buffer_size()
        return pending > _PATIENT_LIMIT or 4 * pending > self.server.options.max_pending

    def look_after(self, now: int) -> None:
        self.ping_if_due(now)
        if not self.closed:
            self._check_progress(now, int(self.server.options.write_deadline * 1e9))

    def _check_progress(self, now: int, deadline: int) -> None:
        """Closes the connection if the client takes no bytes for `deadline` ns while some wait."""
        waiting = self._transport.get_write_buffer_size()
        taken = self._written - waiting
        if not waiting or taken != self._progress[0]:
            self._progress = (taken, now)
        elif now - self._progress[1] > deadline:
            self.server.slow_consumers += 1
            NATS.info(
                "%s - Slow Consumer Detected: WriteDeadline of %s exceeded with %d chunks of %d total bytes.",
                self,
                format_go_duration(deadline),
                1,
                waiting,
            )
            self.close(CloseReason.SLOW_DEADLINE, abort=True)

    def _may_be_direct(self) -> bool:
        """Returns whether output can be appended directly, as long as the transport does not ask for a pause."""
        return not self.closed and self.server.options.max_pending >= 4 * _HIGH_WATER

    def pause_writing(self) -> None:
        self._congested, self.direct = True, False

    def resume_writing(self) -> None:
        self._congested, self.direct = False, self._may_be_direct()
        self.release_stalled()

    def stall(self, receiver: BrokerClient, seconds: float) -> None:
        if self._stall_timer is None and not self.closed:
            self.hold()
            receiver.stalled.add(self)
            self._stall_timer = asyncio.get_running_loop().call_later(seconds, self.unstall, receiver)

    def unstall(self, receiver: BrokerClient) -> None:
        receiver.stalled.discard(self)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
            self.release()
            self._queue()

    # Messages

    def take(
        self, subscription: NatsSubscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> float:
        """Sends messages of a table. The pause for a slow receiver is short, because the receiver may be stuck."""
        if self.permit is not None and self.permit.responses is not None:
            self.remember_replies(buffer, frames, begin, end)
        self.send(encode_messages(buffer, frames, begin, end, subscription.sid, self.headers))
        if self.server.tracing:
            tracing.deliveries(self, subscription, buffer, frames, begin, end)
        if not self._congested:
            return 0
        return _LONG_STALL if 4 * self.pending > 3 * self.server.options.max_pending else _STALL

    def take_block(self, subscription: NatsSubscription, subject: bytes, block: Payloads, begin: int, end: int) -> None:
        self.send(encode_block(block, begin, end, subject, subscription.sid))
        if self.server.tracing:
            tracing.block(self, subscription, subject, block, begin, end)

    def take_one(
        self, subscription: NatsSubscription, subject: bytes, reply: bytes, payload: bytes, header_size: int
    ) -> None:
        if reply and self.permit is not None and self.permit.responses is not None:
            self.remember_reply(reply)
        if header_size and not self.headers:
            payload, header_size = payload[header_size:], 0
        self.send(encode_message(subject, subscription.sid, payload, reply, header_size))
        if self.server.tracing:
            tracing.delivery(self, subscription, subject, reply, len(payload) - header_size, header_size)


def _declared_size(data: Buffer, begin: int, end: int) -> int:
    line = bytes(memoryview(data)[begin : min(end, begin + LARGE)]).partition(b"\n")[0].split()
    size: Any = line[-1] if line else b""
    return int(size) if size.isdigit() and len(size) < 12 else 0
