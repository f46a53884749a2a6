"""The order in which input is applied, and which reads are applied together.

**A batch** is one read of a connection: whole operations, in order. Batches are applied one after the other in the
order of the reads, for all connections. A batch that takes longer than a turn is divided between two operations; the
rest is a batch of its own, applied at its next turn. So a request (a subscription, the end of a client, a question
to the server) takes effect after all earlier reads and before all later ones, and no other rule about the order of
requests exists.

**A gathered run.** For clients that publish one message at a time, the read costs more than the message. So their
input stays where it was read, and is applied at the end of the round of the event loop together with the following
reads, as if one client had sent it all. Only publishes are gathered, of connections whose last publishes went to
receivers that allow it. The run ends at the first batch with any other operation, and before every other step of the
loop: a batch of a connection that is not gathered, the rest of a batch, a timer, a commit. Each of these steps first
calls `run`. Within a run, messages with a lower rank come first, the only exception to the order of the reads:
acknowledgements free capacity for published messages.

**One table at a time.** While a batch is applied, it owns its buffer and its table of frames: there is no read, and
no other batch is parsed (`broker.rounds` has the steps, and assertions). Since each step first calls `run`, no input
waits here while another batch is applied, and no rule ever needs to look for waiting input.
"""

from __future__ import annotations

import time
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from broker.busy_poll import RequestPoll
from broker.rounds import APPLY, READ
from stantools.nats.frames import frame_table
from stantools.nats.kernels import parse_gathered

if TYPE_CHECKING:
    from broker.nats.client_session import ClientSession, SessionServer
    from broker.rounds import LoopRounds

#: Minimum bytes per read, and maximum bytes of waiting input.
_READ: Final = 128 * 1024
_WAITING: Final = 128 * 1024
#: Maximum number of publishes per run; the remaining ones belong to the next run.
_ROWS: Final = 4096
#: Maximum bytes of a read that may wait; a larger one is applied by itself.
SMALL: Final = 4096
#: Reads per run: initial and maximum number.
_FIRST_READS: Final = 64
_MAX_READS: Final = 1024
#: Seconds of a run above which fewer reads are gathered, and below which more are.
_LONG_RUN: Final = 0.004
_SHORT_RUN: Final = 0.001


class ReadCoalescer:
    """Input that was read and not applied yet.

    Attributes:
        room: The buffer for the next read.
    """

    rounds: LoopRounds  #: set before the first read

    def __init__(self, server: SessionServer[Any]) -> None:
        self._server = server
        self._view = self.room = memoryview(bytearray(_WAITING + _READ))
        self._frames = frame_table(_ROWS)
        self._origins: list[ClientSession] = []
        self._ends: list[int] = []
        self._filled = 0
        self._max_reads = _FIRST_READS
        self._last_origin: ClientSession | None = None
        self._request_poll = RequestPoll()

    def __bool__(self) -> bool:
        return bool(self._ends)

    def put(self, origin: ClientSession, count: int) -> None:
        ends = self._ends
        if not ends and not self.rounds.scheduled:
            self.rounds.soon()
        self._filled = filled = self._filled + count
        self._origins.append(origin)
        ends.append(filled)
        origin.waits = True
        if len(ends) >= self._max_reads or filled > _WAITING:
            self.run()
        else:
            self.room = self._view[filled:]

    def take(self, count: int) -> bytes:
        """Returns the bytes just read into `room`, which are not to wait."""
        return bytes(self._view[self._filled : self._filled + count])

    def run(self) -> None:
        origins, ends = self._origins, self._ends
        if not ends:
            return
        rounds = self.rounds
        assert rounds.step is READ, f"APPLY in the middle of {rounds.step.name}"
        self._origins, self._ends, self._filled, self.room = [], [], 0, self._view
        for origin in origins:
            origin.waits = False
        server = self._server
        options, subscriptions = server.options, server.subscriptions
        count, done = len(ends), 0
        # A single read cannot be divided, so its time matters only if runs are to become longer again.
        measured = count > 1 or self._max_reads <= 2
        start = perf_counter() if measured else 0.0
        while True:
            rounds.step = APPLY
            try:
                shares, taken = parse_gathered(
                    self._view,
                    ends,
                    done,
                    self._frames,
                    subscriptions.unrestricted.routes,
                    # Traced input is applied client by client.
                    b"" if server.tracing else subscriptions.ranks,
                    options.max_control_line,
                    options.max_payload,
                )
                if taken:
                    rounds.now = now = time.time_ns()
                    after = done + len(taken)
                    senders = origins if len(taken) == count else origins[done:after]
                    for origin, (messages, size) in zip(senders, taken, strict=True):
                        origin.active, origin.last_activity = True, now
                        counters = origin.counters
                        counters.in_msgs += messages
                        counters.in_bytes += size
                    server.client_router.publish_gathered(senders, self._view, self._frames, shares)
                    done = after
            finally:
                rounds.step = READ
            if done == count:
                break
            # This read has another operation, which follows the earlier reads.
            origins[done].hear(bytes(self._view[ends[done - 1] if done else 0 : ends[done]]))
            done += 1
            if done == count:
                break
        if server.mailbox.waiting:
            server.mailbox.drain()
        # Whether a single client sends one request after another.
        single = origins[0] if count == 1 else None
        self._request_poll.applied(single is not None and single is self._last_origin)
        self._last_origin = single
        if not measured:
            return
        took = perf_counter() - start
        if took > _LONG_RUN:
            self._max_reads = max(count // 2, 1)
        elif took < _SHORT_RUN and count >= self._max_reads // 2:
            self._max_reads = min(2 * self._max_reads, _MAX_READS)
