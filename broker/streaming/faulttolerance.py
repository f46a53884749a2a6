"""Fault tolerance: several servers share a store; one is active, the others wait on standby for the store's lock.

Facts: high-availability.md section A, server-operations.md section 16. Groups may mix these servers with the
original.

The lock alone decides which server is active. Heartbeats of the active server keep the others from trying the lock:
that spares the file server, and protects against a lock that is lost without notice to its holder.
"""

from __future__ import annotations

import enum
import random
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming.names import fault_tolerance_subject, text
from broker.streaming.ports import Role
from broker.streaming.requests import StreamingRequest, decode, per_request
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.quoting import quote
from stantools.nats.subjects import valid_subject

if TYPE_CHECKING:
    from broker.stores.interface import Attempt, Lock
    from broker.streaming.context import Context, Timer

_SECOND: Final = 1_000_000_000
#: Time (ns) between heartbeats. The original's is a second; servers on standby adapt to the heartbeats they get.
BEAT: Final = _SECOND // 4
#: time (ns) without a heartbeat before the lock is tried, and between further attempts
MISSED: Final = 5 * _SECOND // 4
#: relative difference of both between servers
_SPREAD: Final = 0.1
#: With shorter heartbeat intervals the lock is tried once before that: after `_GAP_FACTOR` times the longest recent
#: interval, but at the earliest after `_MIN_PATIENCE` (ns). With this server's heartbeats a takeover takes less than a
#: second.
_GAP_FACTOR: Final = 2.5
_MIN_PATIENCE: Final = _SECOND // 2
#: intervals required for that, and intervals remembered
_MIN_GAPS: Final = 2
_MAX_GAPS: Final = 4
#: Consecutive attempts that found the lock held by another group; a single one may find the name of a dead server.
_MAX_FOREIGN_LOCKS: Final = 2
#: Activation times on the wire: version, seconds since the year 1, nanoseconds, minutes (and seconds) of the zone.
_VERSIONS: Final = {1: struct.Struct(">bQih"), 2: struct.Struct(">bQihb")}
_YEAR_1: Final = 62_135_596_800


def encode_time(moment: int) -> bytes:
    """Encodes a time (ns since 1970) as servers send it, in the local zone like the original."""
    seconds, nanoseconds = divmod(moment, _SECOND)
    return _VERSIONS[1].pack(1, seconds + _YEAR_1, nanoseconds, time.localtime(seconds).tm_gmtoff // 60)


def decode_time(data: bytes) -> int:
    """Decodes a time that a server sent to ns since 1970. The text of a ValueError is the original's."""
    if not data:
        raise ValueError("Time.UnmarshalBinary: no data")
    form = _VERSIONS.get(data[0])
    if form is None:
        raise ValueError("Time.UnmarshalBinary: unsupported version")
    if len(data) != form.size:
        raise ValueError("Time.UnmarshalBinary: invalid length")
    _, seconds, nanoseconds, *_ = form.unpack(data)
    return int((seconds - _YEAR_1) * _SECOND + nanoseconds)


class GroupState(enum.Enum):
    STANDBY = enum.auto()  #: another server is active, as far as known
    TRYING = enum.auto()  #: a thread tries to take the lock
    LOCKED = enum.auto()  #: this server holds the lock, and reads the heartbeats that arrived before
    ACTIVE = enum.auto()
    FAILED = enum.auto()  #: this server cannot be in the group
    STOPPED = enum.auto()


STANDBY, TRYING, LOCKED, ACTIVE, FAILED, STOPPED = GroupState
_NEXT: Final = {
    STANDBY: (TRYING, FAILED, STOPPED),
    TRYING: (STANDBY, LOCKED, FAILED, STOPPED),
    LOCKED: (ACTIVE, STOPPED),
    ACTIVE: (STOPPED,),
    FAILED: (STOPPED,),
    STOPPED: (),
}


class FaultTolerance:
    """Waits on standby, becomes active, and announces that to the group. `chance` spreads the servers' intervals."""

    def __init__(self, context: Context, server_id: bytes, lock: Lock, chance: random.Random | None = None) -> None:
        self._context = context
        self._timers = context.timers
        self._clock = context.clock
        self._server_id = server_id
        self._lock = lock
        self._group = context.options.ft_group
        self._subject = fault_tolerance_subject(context.options.cluster_id, self._group)
        spread = (chance or random.SystemRandom()).uniform(1 - _SPREAD, 1 + _SPREAD)
        self._beat, self._missed = round(BEAT * spread), round(MISSED * spread)
        self._gaps: deque[int] = deque(maxlen=_MAX_GAPS)
        self._last_heartbeat = 0
        self._timer: Timer | None = None
        self.state = STANDBY
        self._foreign_locks = 0
        self._wait_log, self._error_log = _BackoffLog(), _BackoffLog()
        self._activated: Callable[[], None]
        self._failed: Callable[[str], None]
        self._since = 0

    @property
    def active(self) -> bool:
        return self.state is ACTIVE

    def _advance(self, state: GroupState) -> None:
        assert state in _NEXT[self.state], f"{self.state} does not become {state}"
        self.state = state

    def _fail(self, reason: str) -> None:
        self._advance(FAILED)
        self._failed(reason)

    def start(self, activated: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Enters standby. Calls `activated` when this server becomes active, or `failed` with the reason why not."""
        self._activated, self._failed = activated, failed
        log.STREAMING.info("Starting in standby mode")
        if not valid_subject(self._subject):
            self._fail("nats: invalid subject")
            return
        try:
            self._context.bus.listen(Role.FAULT_TOLERANCE, self._subject, per_request(self._receive))
        except PermissionError as error:
            self._fail(str(error))
            return
        self._last_heartbeat = self._clock.monotonic()
        self._wait_until(self._last_heartbeat + self._missed)

    def stop(self) -> None:
        """Releases the lock. Must be called after the last write to the store."""
        self._advance(STOPPED)
        self._timers.cancel(self._timer)
        self._lock.release()

    # On standby

    def _receive(self, request: StreamingRequest) -> None:
        if self.active:
            self._compare(request.payload)
            return
        if self.state in (FAILED, STOPPED):
            return
        now = self._clock.monotonic()
        if now - self._last_heartbeat < self._missed:
            self._gaps.append(now - self._last_heartbeat)
        else:
            self._gaps.clear()
        self._last_heartbeat = now
        if self.state is STANDBY:
            self._wait_until(now + self._heartbeat_timeout())

    def _heartbeat_timeout(self) -> int:
        """Returns the time (ns) after a heartbeat when the lock is tried without another one."""
        if len(self._gaps) < _MIN_GAPS:
            return self._missed
        return min(max(round(max(self._gaps) * _GAP_FACTOR), _MIN_PATIENCE), self._missed)

    def _wait_until(self, moment: int) -> None:
        self._timers.cancel(self._timer)
        self._timer = self._timers.at(moment, self._try)

    def _try(self) -> None:
        self._advance(TRYING)
        self._context.driver.aside(self._lock.take, partial(self._attempt_done, self._clock.monotonic()))

    def _attempt_done(self, began: int, attempt: Attempt) -> None:
        if self.state is STOPPED:
            self._lock.release()
            return
        if attempt.taken:
            self._advance(LOCKED)
            # Heartbeats that arrived before the lock are still unread after a pause of this process, and come from no
            # rival.
            self._context.bus.barrier(self._become_active)
            return
        now = self._clock.monotonic()
        self._foreign_locks = self._foreign_locks + 1 if attempt.holder not in (b"", self._group) else 0
        if self._foreign_locks >= _MAX_FOREIGN_LOCKS:
            holder, own = quote(attempt.holder), quote(self._group)
            self._fail(
                f"ft: the store is in use by the group {holder}, this server belongs to the group {own}: "
                "servers of one directory need the same ft_group; another group needs its own directory"
            )
            return
        self._advance(STANDBY)
        if attempt.problem:
            log.STREAMING.error(
                "ft: error attempting to get the store lock: ft: fatal error getting the store lock: %s",
                attempt.problem,
            )
        elif now - self._last_heartbeat >= self._missed and self._wait_log.due(now):
            log.STREAMING.info("ft: unable to get store lock at this time, going back to standby")
        if self._last_heartbeat > began:
            self._wait_until(self._last_heartbeat + self._heartbeat_timeout())
        elif self._last_heartbeat + self._missed > now:
            # This was the early attempt; the one that the original makes follows.
            self._wait_until(self._last_heartbeat + self._missed)
        else:
            self._wait_until(now + self._missed)

    # Active

    def _become_active(self) -> None:
        if self.state is STOPPED:
            return
        self._advance(ACTIVE)
        self._since = self._clock.wall()
        log.STREAMING.info("Server is active")
        self._send()
        self._activated()

    def _send(self) -> None:
        beat = protocol.CtrlMsg(
            msg_type=protocol.CtrlMsg.FT_HEARTBEAT, server_id=self._server_id, data=encode_time(self._since)
        )
        sent = self._context.bus.publish(Role.FAULT_TOLERANCE, self._subject, beat.SerializeToString(), to_servers=True)
        now = self._clock.monotonic()
        if not sent and self._error_log.due(now):
            log.STREAMING.error("Unable to send FT heartbeat: nats: connection closed")
        self._timer = self._timers.at(now + self._beat, self._send)

    def _compare(self, payload: bytes) -> None:
        """Compares the activation times when another server claims to be active: the earlier one stays."""
        try:
            message = decode(protocol.CtrlMsg, payload)
        except gogo.DecodeError:
            return
        if message.msg_type != protocol.CtrlMsg.FT_HEARTBEAT or message.server_id == self._server_id:
            return
        claim = f'ft: serverID "{text(message.server_id)}" claims to be active'
        try:
            earlier = decode_time(message.data) < self._since
        except ValueError as error:
            log.STREAMING.error("Error decoding activation time: %s", error)
            return
        if earlier:
            self._context.driver.abort(f"{claim}, aborting")
        else:
            log.STREAMING.error("%s", claim)


class _BackoffLog:
    """Allows a log line once, and again after 1, 2, 4 … 60 seconds."""

    def __init__(self) -> None:
        self._next = self._pause = 0

    def due(self, now: int) -> bool:
        if now < self._next:
            return False
        self._pause = min(max(2 * self._pause, _SECOND), 60 * _SECOND)
        self._next = now + self._pause
        return True
