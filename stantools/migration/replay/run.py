"""A replay: legs, pace, saving, stopping. See `publisher` for legs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.errors import StantoolsError
from stantools.migration.replay.jetstream_publisher import JetStreamPublisher
from stantools.migration.replay.publisher import CorePublisher, ReplayPublisher
from stantools.migration.replay.replay_options import PublishKind, ReplayOptions
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import ReplayStateFile
from stantools.migration.replay.streaming import StreamingPublisher
from stantools.migration.replay.subjects import shown
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import connect
from stantools.nats.errors import NatsError
from stantools.progress import Progress

_SECOND = 1_000_000_000
#: nanoseconds, about 290 years: never; sums with it cannot overflow
_NEVER = 2**62


@dataclass(frozen=True)
class ReplaySpeed:
    #: multiple of the original speed; None: original times are ignored
    speed: float | None = 1.0
    #: limit of messages per second, without bursts; None: unlimited
    rate: float | None = None
    #: longest pause between two messages, in nanoseconds of the replay; None: unlimited
    longest_pause: int | None = None

    def seconds(self, plan: ReplayPlan) -> float:
        """Estimates the duration: the shortest one, or the longest one with shortened pauses."""
        by_time = plan.span / _SECOND / self.speed if self.speed else 0.0
        return max(by_time, plan.messages / self.rate if self.rate else 0.0)


class Pacer:
    def __init__(self, pace: ReplaySpeed) -> None:
        self._speed = pace.speed
        self._step = 0 if pace.rate is None else _SECOND / pace.rate
        self._pause = pace.longest_pause
        self._last: int | None = None
        self._due_time = 0.0
        self._next = 0.0

    @property
    def waits(self) -> bool:
        """Messages may be due later than at once."""
        return self._speed is not None or bool(self._step)

    def schedule(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns when the next messages are due, in nanoseconds after the start of the replay."""
        if len(timestamps) <= 1:
            # the usual case with alternating channels
            return np.array([self._one(int(each)) for each in timestamps], np.int64)
        due = self._by_time(timestamps)
        if self._step:
            # each is at least one step after its predecessor: due[i] = max(due[i], due[i - 1] + step)
            steps = np.arange(len(due)) * self._step
            due = np.maximum.accumulate(np.maximum(due, self._next + steps) - steps) + steps
            self._next = float(due[-1]) + self._step
        return np.minimum(due, _NEVER).astype(np.int64)

    def _one(self, timestamp: int) -> int:
        """As `schedule`, for a single message."""
        due = 0.0
        if self._speed is not None:
            last = timestamp if self._last is None else self._last
            self._last = max(last, timestamp)
            pause = (self._last - last) / self._speed
            self._due_time += pause if self._pause is None else min(pause, self._pause)
            due = self._due_time
        if self._step:
            due = max(due, self._next)
            self._next = due + self._step
        return min(int(due), _NEVER)

    def _by_time(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        if self._speed is None:
            return np.zeros(len(timestamps))
        first = int(timestamps[0]) if self._last is None else self._last
        times = np.maximum.accumulate(np.concatenate(([first], timestamps)).astype(np.int64))
        self._last = int(times[-1])
        # The difference of two ordered times always fits into an unsigned number.
        numbers: npt.NDArray[np.uint64] = times.view(np.uint64)
        pauses: npt.NDArray[np.float64] = (numbers[1:] - numbers[:-1]) / self._speed
        if self._pause is not None:
            pauses = np.minimum(pauses, self._pause)
        due: npt.NDArray[np.float64] = np.cumsum(pauses) + self._due_time
        self._due_time = float(due[-1])
        return due


#: seconds between two saves of the state
SAVE_EVERY = 1.0
#: seconds for confirmations after the user has stopped the replay
GRACE = 10.0
#: limit of consecutive legs without progress
ATTEMPTS = 6
#: seconds for the connection to come back
_RECONNECT = 90.0
_TICK = 0.1
#: limits of messages, and of payload bytes, that are sent without other checks
_PART = 256
_PART_BYTES = 1 << 20
#: seconds; shorter waits are not worth a system call
_SHORTEST = 0.001
#: nanoseconds that a rate may lag; older delay is not made up for by a burst
_SLACK = 50_000_000


@dataclass
class ReplayOutcome:
    messages: int = 0  #: messages confirmed in this run
    finished: bool = False  #: everything is replayed; False if the user stopped it
    seconds: float = 0.0
    again: int = 0  #: messages that the target had before
    #: messages in flight when the connection broke: sent again, or found at the target
    repeated: int = 0


class Replay:
    """One run of a replay.

    `plan` includes messages that an earlier run has replayed; `stop` is set when the user wants to stop; `say` shows
    a message to the user; `progress` gets sent payload bytes.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        publisher: ReplayPublisher,
        file: ReplayStateFile,
        pace: ReplaySpeed,
        *,
        stop: asyncio.Event | None = None,
        say: Callable[[str], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._plan = plan
        self._publisher = publisher
        self._file = file
        self._pace = pace
        self._stop = stop or asyncio.Event()
        self._say = publisher.say = say or (lambda _: None)
        self._progress = progress or (lambda _: None)
        self._resumed = bool(file.state.channels or file.state.streams)
        self._begun = False
        self.outcome = ReplayOutcome()

    async def run(self) -> ReplayOutcome:
        """Replays until all is done or the user stops it. On errors the state is saved."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        connection = self._publisher.connection
        attempts = confirmed = 0
        before = self._left()
        try:
            while True:
                try:
                    with connection.watch(*map(shown, self._publisher.subjects)) as failed:
                        await self._run_connected(failed)
                    break
                except NatsError as problem:
                    if not problem.retriable:
                        raise
                    attempts = 1 if self._publisher.confirmed_count > confirmed else attempts + 1
                    confirmed = self._publisher.confirmed_count
                    if not self._begun or attempts >= ATTEMPTS:
                        raise
                    self._resumed = True
                    self.outcome.repeated += self._publisher.forget_outstanding()
                    if self._stop.is_set():
                        break
                    self._say(f"{problem.message}; trying to continue")
                    await self._wait_for_connection(0.25 * 2**attempts)
            await self._close_session()
        except StantoolsError:
            if self._begun and connection.connected:
                await self._close_session()
            raise
        finally:
            self._save()
            self.outcome.messages = before - self._left()
            self.outcome.again = self._publisher.again
            self.outcome.seconds = loop.time() - started
        return self.outcome

    def _left(self) -> int:
        return self._plan.after(self._publisher.positions()).messages

    async def _run_connected(self, failed: asyncio.Future[NatsError]) -> None:
        await self._publisher.begin(failed, resumed=self._resumed)
        self._begun = True
        self._save()
        sender = asyncio.ensure_future(self._send_all(failed))
        ticker = asyncio.ensure_future(self._keep_ticking())
        try:
            await asyncio.wait({sender, ticker}, return_when=asyncio.FIRST_COMPLETED)
            if ticker.done():
                ticker.result()
            self.outcome.finished = await sender
        finally:
            sender.cancel()
            ticker.cancel()
            await asyncio.gather(sender, ticker, return_exceptions=True)

    async def _send_all(self, failed: asyncio.Future[NatsError]) -> bool:
        """Sends the remaining messages; returns False if the user stopped before the end."""
        try:
            finished = await self._send_batches(failed)
        except StantoolsError as problem:
            if problem.retriable:
                raise
            # Reading or one message failed; messages in flight need not be repeated.
            with suppress(NatsError, TimeoutError):
                await asyncio.wait_for(self._publisher.settle(), GRACE)
            raise
        if finished:
            await self._publisher.settle()
            return True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._publisher.settle(), GRACE)
        return False

    async def _send_batches(self, failed: asyncio.Future[NatsError]) -> bool:
        loop = asyncio.get_running_loop()
        pacer, start = Pacer(self._pace), loop.time()
        for batch in self._plan.after(self._publisher.positions()).read():
            at, end = 0, len(batch)
            due = pacer.schedule(batch.timestamp) if pacer.waits else None
            while at < end:
                if self._stop.is_set():
                    return False
                ready = end
                if due is not None:
                    now = int((loop.time() - start) * 1e9)
                    late = now - int(due[at])
                    if late < 0:
                        await self._pause(-late / 1e9, failed)
                        continue
                    # A rate must hold after a delay as well.
                    if self._pace.rate and late > _SLACK:
                        start += late / 1e9
                        now -= late
                    ready = int(np.searchsorted(due, now, "right"))
                sizes = np.cumsum(batch.data_size[at : min(ready, at + _PART)], dtype=np.int64)
                rows = min(int(sizes.searchsorted(_PART_BYTES)) + 1, len(sizes))
                await self._publisher.send(batch.part(at, at + rows))
                self._progress(int(sizes[rows - 1]))
                at += rows
        return True

    async def _pause(self, seconds: float, failed: asyncio.Future[NatsError]) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        awaited: set[asyncio.Future[Any]] = {stopped, failed}
        try:
            await asyncio.wait(awaited, timeout=max(seconds, _SHORTEST), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        self._publisher.check()

    async def _keep_ticking(self) -> None:
        loop = asyncio.get_running_loop()
        saved = loop.time()
        while True:
            await asyncio.sleep(_TICK)
            await self._publisher.tick()
            if loop.time() - saved >= SAVE_EVERY:
                self._save()
                saved = loop.time()

    async def _wait_for_connection(self, pause: float) -> None:
        """Waits for the connection and a short pause, or until the user stops."""
        stopped = asyncio.ensure_future(self._stop.wait())
        waiting = asyncio.ensure_future(self._publisher.connection.wait_connected(_RECONNECT))
        try:
            await asyncio.wait({stopped}, timeout=pause)
            await asyncio.wait({stopped, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done() and not stopped.done():
                waiting.result()
        finally:
            for task in (stopped, waiting):
                task.cancel()
            await asyncio.gather(stopped, waiting, return_exceptions=True)

    async def _close_session(self) -> None:
        try:
            await self._publisher.end()
        except NatsError as problem:
            self._publisher.note(f"closing the session failed: {problem.message}")

    def _save(self) -> None:
        state = self._file.state
        state.channels = self._publisher.positions()
        state.streams = self._publisher.confirmed_streams()
        self._file.save()


PUBLISHERS: Mapping[PublishKind, type[ReplayPublisher]] = {
    PublishKind.CORE: CorePublisher,
    PublishKind.JETSTREAM: JetStreamPublisher,
    PublishKind.STREAMING: StreamingPublisher,
}


async def replay(
    plan: ReplayPlan,
    connect_options: ConnectOptions,
    options: ReplayOptions,
    file: ReplayStateFile,
    pace: ReplaySpeed,
    *,
    stop: asyncio.Event | None = None,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> ReplayOutcome:
    """Replays the remaining messages of a plan; confirmed ones are recorded in `file`, even after an error.

    `stop` is set when the user wants to stop; `say` shows a message to the user; `progress` gets sent payload bytes.
    """
    async with connect(connect_options, name="stantools replay") as connection:
        publisher = PUBLISHERS[options.kind](connection, plan, file.state, options)
        return await Replay(plan, publisher, file, pace, stop=stop, say=say, progress=progress).run()
