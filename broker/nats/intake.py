"""Publishes that came from many connections in one round of the event loop, handed over together.

Clients that publish one message at a time cost more by the read than by the message. So what they send is left where it
was read, until the loop has read from all who had something, and then it is parsed and handed over as if one of them
had sent it. That is done for receivers who want it so, and for connections whose last publishes were for such
receivers; whatever else they send is handled by their connection, in the order in which it came.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from broker.awake import Awake
from stantools.nats.kernels import parse_gathered

if TYPE_CHECKING:
    from broker.nats.session import Hub, Session

#: Bytes that are read at a time, at least, and bytes that may wait.
_READ: Final = 128 * 1024
_WAITING: Final = 128 * 1024
#: Bytes of a read that is left to wait: more is worth a turn of its own.
SMALL: Final = 4096
#: Reads that are handed over together: in the beginning, and at most.
_PACE: Final = 64
_MOST: Final = 1024
#: How long (seconds) they may take until fewer are gathered, or more.
_LONG: Final = 0.004
_SHORT: Final = 0.001
#: Seconds after an answer: who sends the next request by then is expected to do so again, and how long that is awaited
#: without going to sleep. To be woken takes longer than most answers.
_SOON: Final = 100e-6
_MOMENT: Final = 50e-6
#: How often in a row that may be in vain; then it is tried once in so many times.
_PATIENCE: Final = 8
_SELDOM: Final = 64


def _nothing() -> None:
    """Nobody wants to have anything gathered."""


class Intake:
    """What was read and is not handed over yet.

    Args:
        server: Whose connections.

    Attributes:
        room: Where the next bytes go.
        soon: Called when something begins to wait: `run` has to be called when the loop has read from all.
    """

    def __init__(self, server: Hub[Any]) -> None:
        self._server = server
        self._view = self.room = memoryview(bytearray(_WAITING + _READ))
        self._origins: list[Session] = []
        self._ends: list[int] = []
        self._filled = 0
        self._most = _PACE
        self._last: Session | None = None
        self._answered = 0.0
        self._vain = 0
        self._awake = Awake()
        self.soon: Callable[[], None] = _nothing

    def put(self, origin: Session, count: int) -> None:
        """Keeps the bytes that a connection has just read there."""
        ends = self._ends
        if not ends:
            self.soon()
        self._filled = filled = self._filled + count
        self._origins.append(origin)
        ends.append(filled)
        origin.waits = True
        if len(ends) >= self._most or filled > _WAITING:
            self.run()
        else:
            self.room = self._view[filled:]

    def take(self, count: int) -> bytes:
        """Returns the bytes that were just read there: they are not to wait."""
        return bytes(self._view[self._filled : self._filled + count])

    def run(self) -> None:
        """Hands over what waits."""
        origins, ends = self._origins, self._ends
        if not ends:
            return
        self._origins, self._ends, self._filled, self.room = [], [], 0, self._view
        server, start, now = self._server, perf_counter(), time.time_ns()
        options, subscriptions = server.options, server.subscriptions
        shares, taken = parse_gathered(
            self._view,
            ends,
            server.frames,
            subscriptions.table(None).routes,
            # What is traced is taken from one client at a time.
            b"" if server.tracing else subscriptions.ranks,
            options.max_control_line,
            options.max_payload,
        )
        begin, others = 0, []
        for origin, end, (count, size) in zip(origins, ends, taken, strict=True):
            origin.waits = False
            if count:
                origin.active, origin.last_activity = True, now
                counters = origin.counters
                counters.in_msgs += count
                counters.in_bytes += size
            else:
                others.append((origin, bytes(self._view[begin:end])))
            begin = end
        server.router.publish_gathered(origins, self._view, server.frames, shares)
        for origin, data in others:
            origin.hear(data)
        server.drain()
        if len(ends) == 1:
            self._expect(origins[0], start)
        else:
            self._last = None
        took = perf_counter() - start
        if took > _LONG:
            self._most = max(len(ends) // 2, 1)
        elif took < _SHORT and len(ends) >= self._most // 2:
            self._most = min(2 * self._most, _MOST)

    def _expect(self, origin: Session, came: float) -> None:
        """Keeps the loop awake for a moment if the only one who sends anything sends requests one right after another.

        Args:
            origin: Who has sent something.
            came: When (`perf_counter`).
        """
        pause, again = came - self._answered, origin is self._last
        self._last, self._answered = origin, perf_counter()
        if not again or pause > _SOON:
            return
        self._vain = self._vain + 1 if pause > _MOMENT else 0
        if self._vain <= _PATIENCE or self._vain % _SELDOM == 0:
            self._awake.keep(_MOMENT)
