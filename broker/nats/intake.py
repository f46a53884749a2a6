"""In which order what was read is applied, and which of it together.

**A batch** is what one connection has read at a time: whole operations, in order. Batches are applied in the order in
which they were read, whoever sent them, one after the other; a batch that takes longer than a turn is divided between
two operations, and its rest is a batch of its own, applied when its next turn comes. So whoever asks for something
(a subscription, the end of a client, an answer of the server) asks after all that was read before, and before all that
is read later; nothing else is to be known of the order in which requests reach the rules. Each step has its phase, and
none calls back into an earlier one:

    read → apply (parse, hand to receivers, rules) → what parts of this process have sent each other → commit → write

**A gathered run.** Clients that publish one message at a time cost more by the read than by the message. So what they
send is left where it was read, and applied with the reads that follow it as if one client had sent it all, at the end
of the round of the event loop. Only publishes are gathered, for receivers who want it so, of connections whose last
publishes were for such receivers. The run ends at the first batch that has anything else in it, and before any other
step that the loop calls: a batch of a connection that is not gathered, the rest of one, a timer, a commit. Each of
these begins with `run`. Within a run those with a lower rank come first, which is the only thing that is not in the
order of the reads: acknowledgements make room for what is published.

**One table at a time.** While a batch is applied, its buffer and its table of frames are its own: nothing is read, and
no other batch is parsed (`begin`, `end`: an assertion says so). As each step begins with `run`, nothing waits here
while another is applied, so no rule ever has a reason to look for what waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from broker.awake import Awake
from stantools.nats.frames import frame_table
from stantools.nats.kernels import parse_gathered

if TYPE_CHECKING:
    from broker.nats.session import Hub, Session

#: Bytes that are read at a time, at least, and bytes that may wait.
_READ: Final = 128 * 1024
_WAITING: Final = 128 * 1024
#: Most publishes of a run; those that are left are the next one's.
_ROWS: Final = 4096
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
    """What was read and is not applied yet.

    Args:
        server: Whose connections.

    Attributes:
        room: Where the next bytes go.
        soon: Called when something begins to wait: `run` has to be called when the loop has read from all.
    """

    def __init__(self, server: Hub[Any]) -> None:
        self._server = server
        self._view = self.room = memoryview(bytearray(_WAITING + _READ))
        self._frames = frame_table(_ROWS)
        self._origins: list[Session] = []
        self._ends: list[int] = []
        self._filled = 0
        self._applying = False
        self._most = _PACE
        self._last: Session | None = None
        self._answered = 0.0
        self._vain = 0
        self._awake = Awake()
        self.soon: Callable[[], None] = _nothing

    def __bool__(self) -> bool:
        return bool(self._ends)

    def begin(self) -> None:
        """A batch is applied from now on."""
        assert not self._applying, "a batch is applied while another one is"
        self._applying = True

    def end(self) -> None:
        """The batch has been applied."""
        self._applying = False

    def may_read(self) -> bool:
        """Whether buffers are free: no batch is being applied."""
        return not self._applying

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
        """Applies what waits."""
        origins, ends = self._origins, self._ends
        if not ends:
            return
        self._origins, self._ends, self._filled, self.room = [], [], 0, self._view
        for origin in origins:
            origin.waits = False
        server, start = self._server, perf_counter()
        count = len(ends)
        done = self._apply_gathered(origins, ends, 0)
        while done < count:
            # This one asks for something else, which follows what was read before.
            begin = ends[done - 1] if done else 0
            origins[done].hear(bytes(self._view[begin : ends[done]]))
            done += 1
            if done < count:
                done = self._apply_gathered(origins, ends, done)
        server.drain()
        if count == 1:
            self._expect(origins[0], start)
        else:
            self._last = None
        took = perf_counter() - start
        if took > _LONG:
            self._most = max(count // 2, 1)
        elif took < _SHORT and count >= self._most // 2:
            self._most = min(2 * self._most, _MOST)

    def _apply_gathered(self, origins: list[Session], ends: list[int], first: int) -> int:
        """Applies publishes from one read on, up to a read that has something else. Returns which one that is."""
        server = self._server
        options, subscriptions = server.options, server.subscriptions
        self.begin()
        try:
            shares, taken = parse_gathered(
                self._view,
                ends,
                first,
                self._frames,
                subscriptions.table(None).routes,
                # What is traced is taken from one client at a time.
                b"" if server.tracing else subscriptions.ranks,
                options.max_control_line,
                options.max_payload,
            )
            if taken:
                now, after = time.time_ns(), first + len(taken)
                if first or after < len(origins):
                    origins = origins[first:after]
                for origin, (count, size) in zip(origins, taken, strict=True):
                    origin.active, origin.last_activity = True, now
                    counters = origin.counters
                    counters.in_msgs += count
                    counters.in_bytes += size
                server.router.publish_gathered(origins, self._view, self._frames, shares)
        finally:
            self.end()
        return first + len(taken)

    def _expect(self, origin: Session, came: float) -> None:
        """Keeps the loop awake for a moment if the only one who sends anything sends requests one right after another."""
        pause, again = came - self._answered, origin is self._last
        self._last, self._answered = origin, perf_counter()
        if not again or pause > _SOON:
            return
        self._vain = self._vain + 1 if pause > _MOMENT else 0
        if self._vain <= _PATIENCE or self._vain % _SELDOM == 0:
            self._awake.keep(_MOMENT)
