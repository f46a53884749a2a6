"""Running a replay: legs, pace, saving, stopping. See `publisher` for what a leg is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from stantools.errors import StantoolsError
from stantools.migration.replay.ledger import Ledger
from stantools.migration.replay.pacing import Pacer
from stantools.migration.replay.publisher import Publisher, piece_of
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import StateFile
from stantools.migration.replay.subjects import shown
from stantools.migration.target.errors import ApiError, ConnectionLostError, NoAnswerError, TargetError
from stantools.progress import Progress

#: Seconds between two saves of the state.
SAVE_EVERY = 1.0
#: Seconds that confirmations have to come in after the user has stopped the replay.
GRACE = 10.0
#: Legs in a row that achieve nothing.
ATTEMPTS = 6
#: Seconds for the connection to come back.
_RECONNECT = 90.0
_TICK = 0.1
#: The code of errors of a cluster that has no leader at the moment, and the like.
_UNAVAILABLE = 503
#: Messages, and bytes of payload, that are sent without looking at anything else.
_PIECE = 256
_PIECE_BYTES = 1 << 20
#: Shorter waits than this many seconds are not worth a system call.
_SHORTEST = 0.001
#: A rate is kept from falling this many nanoseconds behind: what was missed is not made up for by a burst.
_SLACK = 50_000_000


@dataclass
class Outcome:
    """What a replay has done.

    Attributes:
        messages: Messages that the target has, and had not confirmed before this run.
        finished: Everything is replayed; False if the user stopped it.
        seconds: How long it took.
        again: Messages that the target had already.
        repeated: Messages that were on their way when the connection broke: they were sent again, or found there.
    """

    messages: int = 0
    finished: bool = False
    seconds: float = 0.0
    again: int = 0
    repeated: int = 0


class Replay:
    """One run of a replay.

    Args:
        plan: All that is to be replayed, also what an earlier run has done.
        publisher: Where it goes.
        file: Where to remember how far it is.
        pacer: Makes the schedule of a leg.
        limited: There is a rate, which must hold after a delay, too.
        stop: Set when the user wants to stop.
        say: Tells the user something at once.
        progress: Told the bytes of payload that were sent.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        publisher: Publisher,
        file: StateFile,
        pacer: Callable[[], Pacer],
        *,
        limited: bool = False,
        stop: asyncio.Event | None = None,
        say: Callable[[str], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._plan = plan
        self._publisher = publisher
        self._ledger: Ledger = publisher.ledger
        self._file = file
        self._pacer = pacer
        self._limited = limited
        self._stop = stop or asyncio.Event()
        self._say = publisher.say = say or (lambda _: None)
        self._progress = progress or (lambda _: None)
        self._resumed = bool(file.state.channels or file.state.streams)
        self._begun = False
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """Replays until everything is done or the user stops it.

        Raises:
            StantoolsError: It cannot go on; the state is saved.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        connection = self._publisher.connection
        attempts = confirmed = 0
        before = self._left()
        try:
            while True:
                try:
                    with connection.watch(*map(shown, self._publisher.subjects)) as failed:
                        await self._leg(failed)
                    break
                except TargetError as problem:
                    if not _passes(problem):
                        raise
                    attempts = 1 if self._ledger.confirmed > confirmed else attempts + 1
                    confirmed = self._ledger.confirmed
                    if not self._begun or attempts >= ATTEMPTS:
                        raise
                    self._resumed = True
                    self.outcome.repeated += self._ledger.forget_outstanding()
                    if self._stop.is_set():
                        break
                    self._say(f"{problem.message}; trying to go on")
                    await self._back_again(0.25 * 2**attempts)
            await self._take_leave()
        except StantoolsError:
            if self._begun and connection.client.is_connected:
                await self._take_leave()
            raise
        finally:
            self._save()
            self.outcome.messages = before - self._left()
            self.outcome.again = self._publisher.again
            self.outcome.seconds = loop.time() - started
        return self.outcome

    def _left(self) -> int:
        return self._plan.after(self._ledger.positions()).messages

    async def _leg(self, failed: asyncio.Future[TargetError]) -> None:
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

    async def _send_all(self, failed: asyncio.Future[TargetError]) -> bool:
        """Sends what is left; False if the user stopped it before everything was sent."""
        try:
            finished = await self._send_batches(failed)
        except StantoolsError as problem:
            if _passes(problem):
                raise
            # The store, or a message, stops us; what is on its way need not be repeated.
            with suppress(TargetError, TimeoutError):
                await asyncio.wait_for(self._publisher.settle(), GRACE)
            raise
        if finished:
            await self._publisher.settle()
            return True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._publisher.settle(), GRACE)
        return False

    async def _send_batches(self, failed: asyncio.Future[TargetError]) -> bool:
        loop = asyncio.get_running_loop()
        pacer, start = self._pacer(), loop.time()
        for batch in self._plan.after(self._ledger.positions()).read():
            at, end = 0, len(batch)
            due = pacer.schedule(batch.columns.timestamp) if pacer.waits else None
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
                    if self._limited and late > _SLACK:
                        start += late / 1e9
                        now -= late
                    ready = int(np.searchsorted(due, now, "right"))
                piece = piece_of(batch, at, min(ready, at + _PIECE), _PIECE_BYTES)
                await self._publisher.send(piece)
                self._progress(piece.size)
                at += len(piece)
        return True

    async def _pause(self, seconds: float, failed: asyncio.Future[TargetError]) -> None:
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

    async def _back_again(self, pause: float) -> None:
        """Waits until the connection is back and a moment has passed, or the user stops it."""
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

    async def _take_leave(self) -> None:
        try:
            await self._publisher.end()
        except TargetError as problem:
            self._publisher.note(f"leaving went wrong: {problem.message}")

    def _save(self) -> None:
        state = self._file.state
        state.channels = self._ledger.positions()
        state.streams = self._publisher.confirmed_streams()
        self._file.save()


def _passes(problem: StantoolsError) -> bool:
    """Tells whether the next leg may do better."""
    return isinstance(problem, ConnectionLostError | NoAnswerError) or (
        isinstance(problem, ApiError) and problem.code == _UNAVAILABLE
    )
