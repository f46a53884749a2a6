"""Partitioning: several servers share the channels among themselves (streaming-protocol.md section 25)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming.context import Timer
from broker.streaming.names import partition_subject, text, valid_channel
from broker.streaming.ports import Role
from broker.streaming.requests import StreamingRequest, decode, per_request
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.quoting import quote
from stantools.nats.subjects import matches

if TYPE_CHECKING:
    from broker.streaming.context import Context
    from broker.streaming.state import StreamingSession

#: silence (ns) that ends the check
_CHECK_TIMEOUT: Final = 1_000_000_000
#: delay (ns) before newly found servers are asked, and before a retry
_CHECK_DELAY: Final = 500_000_000
#: most bytes that a list adds to a message besides its entries
_OVERHEAD: Final = 9
#: most bytes of an entry: its length has two bytes
_MAX_ENTRY_SIZE: Final = 0xFFFF
#: Time (ns) that a request waits for its client, missing clients remembered, and limits of the waiting requests.
_WAIT: Final = 1_000_000_000
_REMEMBERED: Final = 256
_MAX_WAITING: Final = 65536
_MAX_WAITING_SIZE: Final = 64 << 20


def encode_list(entries: Iterable[bytes], max_size: int) -> list[bytes]:
    """Encodes channels as servers send them: length (two bytes, little-endian) and name, in pieces of limited size.

    Raises ValueError with the original's text for an entry larger than a piece.
    """
    pieces: list[bytes] = []
    piece = bytearray()
    for entry in entries:
        if 2 + len(entry) > max_size or len(entry) > _MAX_ENTRY_SIZE:
            raise ValueError("message payload too small to send channels list")
        if piece and len(piece) + 2 + len(entry) > max_size:
            pieces.append(bytes(piece))
            piece.clear()
        piece += len(entry).to_bytes(2, "little") + entry
    pieces.append(bytes(piece))
    return pieces


def decode_list(data: bytes) -> list[bytes]:
    """Decodes a list of channels. The text of a ValueError is the original's."""
    entries: list[bytes] = []
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise ValueError(f"unable to decode size, pos={position} len={len(data)}")
        size = int.from_bytes(data[position : position + 2], "little")
        position += 2
        if size > len(data) - position:
            rest = text(data[position:])
            raise ValueError(f"unable to decode channel, pos={position} len={size} max={len(data)} (string={rest})")
        entries.append(data[position : position + size])
        position += size
    return entries


class Partitions:
    """The channels of this server, and the check against those of other servers."""

    def __init__(self, context: Context, server_id: bytes) -> None:
        self._context = context
        self._bus = context.bus
        self._timers = context.timers
        self._server_id = server_id
        self._subject = partition_subject(context.options.cluster_id)
        self._inbox = b""
        self._timeout: Timer | None = None
        self._passed: Callable[[], None] | None = None
        self._failed: Callable[[str], None] | None = None
        self.entries = context.options.partitions  #: names and patterns of this server's channels
        self.waiting = PendingConnects(context)  #: requests that wait for their client
        self._literals = frozenset(entry for entry in self.entries if valid_channel(entry))
        self._patterns = tuple(entry for entry in self.entries if entry not in self._literals)

    def serves(self, channel: bytes) -> bool:
        return channel in self._literals or any(matches(pattern, channel) for pattern in self._patterns)

    def conflict(self, entries: Iterable[bytes]) -> bytes:
        """Returns the first entry of another server that overlaps with this server's; empty if none does."""
        for entry in entries:
            if self.serves(entry) or any(matches(entry, own) for own in self.entries):
                return entry
        return b""

    def check(self, passed: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Asks the other servers for their channels.

        Calls `passed` if no other server has any of this server's channels, else `failed` with the reason.
        """
        self._passed, self._failed = passed, failed
        if not self._inbox:
            self._inbox = self._context.nuids.inbox()
            self._bus.listen(Role.PARTITIONS, self._inbox, per_request(self._answered))
            self._bus.listen(Role.PARTITIONS, self._subject, per_request(self._take_query))
        self._bus.barrier(self._ask)

    def repeat_check(self) -> None:
        """Repeats the check after other servers were found; a conflict is fatal."""
        fatal = self._context.driver.fatal
        self._timers.after(
            _CHECK_DELAY,
            partial(self.check, lambda: None, lambda reason: fatal(f"Partitioning error: {reason}")),
        )

    def _ask(self) -> None:
        room = self._bus.max_payload - len(self._message(b"")) - _OVERHEAD
        try:
            pieces = encode_list(self.entries, room)
        except ValueError as problem:
            self._fail(f"unable to send channels list: {problem}")
            return
        sent = [
            self._bus.publish(Role.PARTITIONS, self._subject, self._message(piece), self._inbox, to_servers=True)
            for piece in pieces
        ]
        if all(sent):
            self._wait()
        else:
            # The connection is lost: silence would mean nothing.
            self._timers.cancel(self._timeout)
            self._timeout = self._timers.after(_CHECK_DELAY, self._ask)

    def _fail(self, reason: str) -> None:
        if self._failed is not None:
            failed, self._passed, self._failed = self._failed, None, None
            self._timers.cancel(self._timeout)
            failed(reason)

    def _wait(self) -> None:
        self._timers.cancel(self._timeout)
        self._timeout = self._timers.after(_CHECK_TIMEOUT, self._end_check)

    def _end_check(self) -> None:
        self._timeout = None
        if self._passed is not None:
            passed, self._passed, self._failed = self._passed, None, None
            passed()

    def _take_query(self, request: StreamingRequest) -> None:
        if not request.payload or not request.reply:
            return
        try:
            message = decode(protocol.CtrlMsg, request.payload)
            if message.msg_type != protocol.CtrlMsg.PARTITIONING or message.server_id == self._server_id:
                return
            conflict = self.conflict(decode_list(message.data))
        except (gogo.DecodeError, ValueError) as error:
            # No answer, like the original: an answer could only say that there is no conflict.
            log.STREAMING.error("Error processing partitioning request: %s", error)
            return
        self._bus.publish(Role.PARTITIONS, request.reply, self._message(conflict))

    def _answered(self, request: StreamingRequest) -> None:
        if self._failed is None:
            return
        try:
            message = decode(protocol.CtrlMsg, request.payload)
        except gogo.DecodeError as error:
            self._fail(f"unable to decode partitioning response: {error}")
            return
        if message.data:
            server = quote(message.server_id)
            self._fail(f"channel {quote(message.data)} causes conflict with channels on server {server}")
        else:
            self._wait()

    def _message(self, data: bytes) -> bytes:
        message = protocol.CtrlMsg(msg_type=protocol.CtrlMsg.PARTITIONING, server_id=self._server_id, data=data)
        return message.SerializeToString()


@dataclass(slots=True)
class _Queue:
    """Requests that wait for one client."""

    timer: Timer
    #: each with the calls that resume and refuse it
    requests: list[tuple[Callable[[], object], Callable[[], object]]] = field(default_factory=list)
    size: int = 0


class PendingConnects:
    """Requests that arrived before their client's connect request, which other servers may have answered already."""

    def __init__(self, context: Context) -> None:
        self._timers = context.timers
        self._queues: dict[tuple[bytes, bytes], _Queue] = {}
        self._missing: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self._count = 0
        self._size = 0

    def add(
        self,
        client_id: bytes,
        connection_id: bytes,
        size: int,
        resume: Callable[[], object],
        refuse: Callable[[], object],
    ) -> bool:
        """Queues a request of `size` bytes: it is resumed when its client is registered, or refused after some time.

        A connection id identifies the client alone; without one the client id does. Returns False, and calls nothing,
        if the request cannot wait: the client was missing before, or too many requests wait.
        """
        key = (b"" if connection_id else client_id, connection_id)
        if key in self._missing or self._count >= _MAX_WAITING or self._size + size > _MAX_WAITING_SIZE:
            return False
        queue = self._queues.get(key)
        if queue is None:
            timer = self._timers.after(_WAIT, partial(self._note_missing, key))
            queue = self._queues[key] = _Queue(timer)
        queue.requests.append((resume, refuse))
        queue.size += size
        self._count += 1
        self._size += size
        return True

    def registered(self, client: StreamingSession) -> None:
        """Resumes all requests that wait for a client."""
        for key in ((client.id, b""), (b"", client.info.conn_id)):
            self._missing.pop(key, None)
            self._end(key, came=True)

    def _note_missing(self, key: tuple[bytes, bytes]) -> None:
        self._missing[key] = None
        if len(self._missing) > _REMEMBERED:
            self._missing.popitem(last=False)
        self._end(key, came=False)

    def _end(self, key: tuple[bytes, bytes], *, came: bool) -> None:
        queue = self._queues.pop(key, None)
        if queue is None:
            return
        self._timers.cancel(queue.timer)
        self._count -= len(queue.requests)
        self._size -= queue.size
        for resume, refuse in queue.requests:
            (resume if came else refuse)()
