"""Publishes messages to one stream, each directly after the one before, and settles unknown outcomes.

Facts: high-availability.md section C.2.

Each message is published with the last sequence that the stream is expected to have, and each answer counts: a
message is stored when its own answer says so, and then all earlier ones are stored as well. If an answer is missing
or is an error, the outcome is *unknown*. The publisher settles it by reading the stream: the message at that sequence
is ours if it has the id that only this message was given. Messages that were not stored are sent again, after the
stored ones. Sending again is safe, since each message fits at one sequence only (`PublishRun`).

It reports a message as not stored only if the server has refused it, it was sent once, and the server has
refused all messages after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from broker.log import STREAMING
from stantools.nats.columns import FrameColumns
from stantools.nats.errors import WRONG_LAST, ApiError, NatsError
from stantools.nats.kernels import read_deliveries
from stantools.nats.publishing.publish_run import PublishRun, PublishWindow
from stantools.streamfiles import headers

if TYPE_CHECKING:
    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from stantools.format.envelope import Buffer
    from stantools.format.message_batch import MessageBatch
    from stantools.nats.frames import Frames

#: seconds without an answer until the outcome counts as unknown, and between two reads of the stream's state
PATIENCE: Final = 2.0
_PAUSES: Final = (0.05, 1.0)
_WINDOW: Final = PublishWindow(seconds=PATIENCE)
#: Messages or bytes to collect for a write while others are in flight, unless the servers answer first: a round trip
#: costs nearly the same for one message as for hundreds.
_GATHERED: Final = 512
_GATHERED_BYTES: Final = 256 << 10
#: rounds in which the stream must report fewer messages than it had until that counts as a loss
_ROUNDS: Final = 3


@dataclass(slots=True, eq=False)
class PublishRange:
    """Consecutive messages with one subject."""

    batch: MessageBatch
    first: int  #: sequence of the first message
    last: int  #: sequence of the last message
    stored: Callable[[], None]  #: called when all of these messages are stored, and all before them

    @property
    def size(self) -> int:
        """Bytes, approximately."""
        return len(self.batch.buffer)


class PublisherOwner(Protocol):
    """The owner of a publisher, which handles the outcomes."""

    def answered(self) -> None:
        """Some pieces are stored; called once for many of them."""

    def refused(self, error: str, *, certain: bool) -> None:
        """The server refuses messages, for the reason in `error`. The publisher has stopped, until `restart`.

        `certain` means that no message in flight can be stored later.
        """

    def diverged(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        """The stream holds unexpected messages, or too few. The publisher has stopped, until `restart`.

        `certain` means that no message in flight can be stored later, because others have its sequence; `lost` that
        the stream has fewer messages than were confirmed.
        """


class ExactPublisher:
    """Publishes pieces to one stream.

    It sends only after the first `restart`, and stops at `refused` or `diverged` until the next one.

    Args:
        writer: A name that is unique among all writers; message ids begin with it.
        origin: Messages carry channel, sequence and time as headers.
        leads: Whether messages may be sent, called before each write. Messages wait while it returns False.

    Attributes:
        sending: Whether it sends.
    """

    def __init__(
        self,
        streams: JetStreamPort,
        stream: str,
        writer: bytes,
        owner: PublisherOwner,
        *,
        origin: bool = True,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.stream = stream
        self.sending = False
        self._streams = streams
        self._writer = writer
        self._owner = owner
        self._origin = origin
        self._leads = leads
        self._prefix = streams.listen(self._take, self._connection_lost)
        self._queue: deque[PublishRange] = deque()
        self._run = PublishRun(stream, _WINDOW)
        self._generation = self._runs = 0
        self._highest = 0  # the last sequence sent in any run whose outcome may be unknown
        self._doubtful = 0  # the last sequence sent in an earlier run, which that run may still store
        self._end = 0  # the last sequence of the stream when it was last read
        self._mixed = False  # whether messages of ours came after those of another writer then
        self._unsent: deque[PublishRange] = deque()
        self._unsent_bytes = 0
        self._refusal: ApiError | None = None
        self._refusals = 0
        self._low_counts = self._fruitless_runs = 0
        self._last_answer_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._resolving: asyncio.Task[None] | None = None

    @property
    def confirmed(self) -> int:
        """The last sequence that is known to be stored."""
        return self._run.confirmed

    def restart(self, last: int) -> None:
        """Starts again after a sequence, with the pieces that were submitted and not forgotten."""
        self._stop()
        self._generation += 1
        self._run.confirmed = self._highest = last
        self._low_counts = self._fruitless_runs = 0
        self.sending = True
        self._begin_run()

    def forget(self) -> None:
        """Stops, and drops the submitted pieces, whose messages may be stored or not."""
        self._stop()
        self.sending = False
        self._queue.clear()

    def close(self) -> None:
        """Ends the publisher. Messages in flight may be stored or not."""
        self._stop()
        self.sending = False
        self._streams.unlisten(self._prefix)

    @property
    def _accepting(self) -> bool:
        """Whether answers count: it sends, and no outcome is being settled."""
        return self.sending and self._resolving is None

    @property
    def idle(self) -> bool:
        """Whether no piece is in progress."""
        return not self._queue

    def submit(self, piece: PublishRange) -> None:
        """Takes messages that directly follow those submitted before."""
        self._queue.append(piece)
        self._unsent.append(piece)
        self._unsent_bytes += piece.size
        if self.sending and self._resolving is None and self._refusal is None:
            self._send()

    # Sending

    def _begin_run(self) -> None:
        """Begins a run with a new reply subject: answers to earlier runs no longer count."""
        self._runs += 1
        self._run.begin(b"%b%d." % (self._prefix, self._runs), self.confirmed)
        self._identity = b"%b.%d:" % (self._writer, self._generation)
        self._doubtful = self._highest
        self._unsent = deque(self._queue)
        self._unsent_bytes = sum(piece.size for piece in self._unsent)
        self._refusal = None
        self._send()

    def _send(self) -> None:
        run, queue = self._run, self._unsent
        gathers = bool(queue) and run.sent > run.confirmed and self._unsent_bytes < _GATHERED_BYTES
        if gathers and min(self._queue[-1].last - run.sent, run.room) < _GATHERED:
            return  # The next write waits for more messages.
        while queue:
            piece = queue[0]
            rows = min(_WINDOW.chunk, piece.last - run.sent, run.room)
            if rows <= 0:
                return
            if not self._leads():
                self._break("the lease is not certain")
                return
            frames, rows = run.encode(
                piece.batch, run.sent + 1 - piece.first, rows, self._identity, origin=self._origin
            )
            if run.sent == run.confirmed:
                self._last_answer_at = self._now()
                self._start_timer()
            run.add(rows, len(frames))
            if run.sent == piece.last:
                queue.popleft()
                self._unsent_bytes -= piece.size
            self._highest = max(self._highest, run.sent)
            if not self._streams.send(frames):
                self._break("there is no connection")
                return

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._run.in_flight or self._resolving is not None:
            return
        if self._now() - self._last_answer_at >= _WINDOW.seconds:
            self._break("no answer in time")
        else:
            self._start_timer()

    # Answers

    def _take(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        if not self.sending or self._resolving is not None:
            return
        columns = FrameColumns(end - begin)
        read_deliveries(buffer, frames, begin, end, columns, 0, 0)
        run = self._run
        before = run.confirmed
        row = run.take(buffer, columns)
        if run.confirmed > before:
            self._note_confirmed()
        for answer in run.unexpected(buffer, columns, row):
            if isinstance(answer.problem, ApiError):
                self._take_refusal(answer.sequence, answer.problem)
            else:
                self._break(answer.problem.message)
            if not self._accepting:
                return
        if self._refusal is None:
            self._send()

    def _take_refusal(self, sequence: int, problem: ApiError) -> None:
        """Handles an error. If the server refuses all messages in flight, they are given up."""
        if self._refusal is None:
            if problem.err_code == WRONG_LAST:
                counted = problem.last_counted
                self._low_counts += counted is not None and counted < self.confirmed
            if problem.retriable or sequence != self.confirmed + 1:
                self._break(problem.description)
                return
            self._refusal, self._refusals = problem, 0
        self._refusals += 1
        self._last_answer_at = self._now()
        if self._refusals == self._run.in_flight:
            problem = self._refusal
            self._stop()
            self.sending = False
            self._owner.refused(problem.description, certain=self._doubtful <= self.confirmed)

    def _note_confirmed(self) -> None:
        """Reports the pieces that are stored by now."""
        self._low_counts = self._fruitless_runs = 0
        self._last_answer_at = self._now()
        done, last, queue = False, self._run.confirmed, self._queue
        while queue and queue[0].last <= last:
            queue.popleft().stored()
            done = True
        if done:
            self._owner.answered()

    # Unknown outcomes

    def _connection_lost(self) -> None:
        if self._accepting and self._run.in_flight:
            self._break("the connection was lost")

    def _break(self, reason: str) -> None:
        """Stops sending, and starts to settle the outcome of the messages in flight."""
        STREAMING.debug("Stream %s: sequence %d is unknown: %s", self.stream, self.confirmed + 1, reason)
        self._resolving = asyncio.get_running_loop().create_task(self._resolve())

    async def _resolve(self) -> None:
        least, most = _PAUSES
        pause, warned = least, False
        if self._fruitless_runs:
            await asyncio.sleep(min(least * 2**self._fruitless_runs, most))
        self._fruitless_runs += 1
        while True:
            try:
                if (wrong := await self._compare()) is None:
                    break
            except NatsError as problem:
                if not warned and pause >= most:
                    warned = True
                    STREAMING.warning("Stream %s: its state cannot be read yet: %s", self.stream, problem)
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
                continue
            self._stop()
            self.sending = False
            self._owner.diverged(
                wrong, certain=self._end >= self._highest and not self._mixed, lost=self._low_counts >= _ROUNDS
            )
            return
        # Answers from now on belong to the next run.
        self._resolving = None
        self._begin_run()

    async def _compare(self) -> str | None:
        """Compares the stream with the messages sent. Returns the difference, or None if there is none."""
        info = await self._streams.stream_info(self.stream)
        if info is None:
            return "the stream is gone"
        self._end = last = int(info["state"]["last_seq"])
        if last < self.confirmed and self._low_counts >= _ROUNDS:
            return f"it ends at sequence {last}, but had {self.confirmed}"
        if last < self.confirmed:
            # This server lags or will soon lead no more; a message of ours brings the true last sequence.
            await asyncio.sleep(_PAUSES[0])
        at, foreign = self.confirmed, 0
        self._mixed = False
        if last > at:
            async for received in self._streams.read(self.stream, info["state"], at):
                for row, sequence in enumerate(received.columns.sequence.tolist()):
                    ours = headers.message_id(received.header(row)) == b"%b%d" % (self._identity, sequence)
                    if foreign:
                        self._mixed |= ours
                    elif ours and sequence == at + 1 and sequence <= self._highest:
                        at = sequence
                    else:
                        foreign, self._mixed = sequence, ours
            if foreign:
                if at > self.confirmed:
                    self._run.confirm(at)
                    self._note_confirmed()
                return f"sequence {foreign} is from another writer"
            if at < last:
                state = (await self._streams.stream_info(self.stream) or info)["state"]
                if int(state["first_seq"]) > at + 1:
                    return f"sequences from {at + 1} on were removed before they could be compared"
                raise NatsError("it could not be read completely")
            self._run.confirm(at)
            self._note_confirmed()
        return None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resolving is not None:
            if self._resolving is not asyncio.current_task():
                self._resolving.cancel()
            self._resolving = None
        self._run.drop()
        self._refusal = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
