"""Who calls the rules of streaming and of streams: an asyncio loop's idea of `Driver` and `Clock`, and its upkeep."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from broker.awake import Awake
from broker.log import STREAMING, out_of_files
from broker.ports import T

_SECOND = 1e9
EXIT_ABORTED: Final = 2
#: Objects (and rounds) until the collector looks again. Little here is in cycles, and each look is a delay.
_GARBAGE: Final = (4_000, 3, 1)
#: Seconds of a look at everything that are too long: what has survived it is not looked at again.
_LONG_LOOK: Final = 0.01
#: Numbers of options of mallopt(3), and bytes: more than that of free memory at the end of the heap goes back to the
#: system, and blocks of more than that are not in the heap.
_KEPT: Final = (-1, 16 << 20)
_IN_HEAP: Final = (-3, 4 << 20)


class Rules(Protocol):
    """What is called: the rules of streaming, or of streams."""

    @property
    def slow(self) -> bool:
        """Whether the next commit may take as long as a disk does."""

    def commit(self) -> None:
        """Makes what was done last, and says so."""

    def run_timers(self) -> None:
        """Does what is due."""


class SystemClock:
    """The machine's clocks, in nanoseconds: the time for timers, and since the epoch."""

    # Looked at with each message, so without a function in between.
    monotonic = staticmethod(time.monotonic_ns)
    wall = staticmethod(time.time_ns)


def _nothing() -> None:
    """There is nothing to take in or to hold back."""


class Rounds:
    """Rounds of an event loop: what all that was read in one leads to is done at its end, and leaves in one write.

    Where that may take as long as a disk does, what does not need it leaves before.

    Attributes:
        hold_back: Called when there is something to do at the end: nothing is to be written before it is done.
        let_go: Called when it is done: all of that is to be written now.
        take_in: Called before: what was read and left to wait is handled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wanted: dict[LoopDriver, None] = {}
        self._due = False
        self.hold_back: Callable[[], None] = _nothing
        self.let_go: Callable[[], None] = _nothing
        self.take_in: Callable[[], None] = _nothing

    def soon(self, driver: LoopDriver | None = None) -> None:
        """Ends the round once all was read that the loop found readable.

        Args:
            driver: Whose rules are to commit then; None: whose turns out to be when what waits is handled.
        """
        if driver is not None:
            self._wanted[driver] = None
        if not self._due:
            self._due = True
            self.hold_back()
            self._loop.call_soon(self._end)

    def forget(self, driver: LoopDriver) -> None:
        """Has rules commit no more."""
        self._wanted.pop(driver, None)

    def _end(self) -> None:
        self.take_in()
        self._due = False
        wanted, self._wanted = self._wanted, {}
        if any(driver.server.slow for driver in wanted):
            self.let_go()
            self.hold_back()
        try:
            for driver in wanted:
                driver.commit()
        finally:
            self.let_go()
            if self._due:  # again, in the next round
                self.hold_back()


class LoopDriver:
    """Calls the rules from an event loop.

    Args:
        on_fatal: Called when the rules cannot go on.
        rounds: At whose end the rules commit; those of other rules as well, if others write to the same sockets.
    """

    server: Rules  #: the rules; to be set before the loop runs

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_fatal: Callable[[str], None], rounds: Rounds | None = None
    ) -> None:
        self.rounds: Final = rounds or Rounds(loop)
        self._loop = loop
        self._on_fatal = on_fatal
        self._stopped = False
        self._awake = Awake(self._commit_due)
        self._due = False  # a commit, when the loop need not be awake any more
        self._timer: asyncio.TimerHandle | None = None

    def commit_soon(self) -> None:
        """Commits once everything that the loop found readable has been handed over."""
        if not self._stopped:
            self.rounds.soon(self)

    def commit_by(self, time: int) -> None:
        """Commits at that time, or before if more has come. The loop is awake: its timers are not so fine."""
        self._due = True
        self._awake.keep((time - self._now()) / _SECOND)

    def _commit_due(self) -> None:
        if self._due:
            self.commit_soon()

    def commit(self) -> None:
        """Commits; what is wrong with one server is not the others'."""
        self._due = False
        try:
            self.server.commit()
        except Exception as problem:
            report_loop_error(self._loop, {"message": "commit", "exception": problem})

    def wake(self) -> None:
        """As `commit_soon`, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.commit_soon)

    def wake_at(self, time: int) -> None:
        """Runs the timers at that time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0, time - self._now()) / _SECOND, self._wake)

    def aside(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Does something in a thread of its own, for which the end of the process does not wait."""

        def finish(result: T) -> None:
            self.rounds.take_in()
            done(result)

        def work() -> None:
            result = job()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(finish, result)

        try:
            threading.Thread(target=work, name="aside", daemon=True).start()
        except RuntimeError:  # there can be no more threads
            work()

    def fatal(self, message: str) -> None:
        """Ends the process with an error."""
        self._on_fatal(message)

    def abort(self, message: str) -> None:
        """Ends the process on the spot, as a panic ends the original."""
        STREAMING.critical("panic: %s", message)
        os._exit(EXIT_ABORTED)

    def stop(self) -> None:
        """Calls nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stopped = True
        self.rounds.forget(self)

    @staticmethod
    def _now() -> int:
        return time.monotonic_ns()

    def _wake(self) -> None:
        self._timer = None
        self.rounds.take_in()
        self.server.run_timers()


class Upkeep:
    """Calls a store that wants to be called from time to time.

    Args:
        store: The store; nothing happens if it does not want to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: object) -> None:
        self._loop = loop
        self._maintain: Callable[[], int | None] | None = getattr(store, "maintain", None)
        self._postpone: Callable[[Callable[[int], None] | None], None] | None = getattr(store, "postpone", None)
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0  # when that is due

    def start(self) -> None:
        """Calls it for the first time."""
        if self._postpone is not None:
            self._postpone(self._call_at)
        self._call()

    def stop(self) -> None:
        """Calls it no more."""
        if self._postpone is not None:
            self._postpone(None)
        self._cancel()

    def _call(self) -> None:
        self._timer = None
        if self._maintain is not None and (at := self._maintain()) is not None:
            self._call_at(at)

    def _call_at(self, at: int) -> None:
        """Calls it at a time, unless it is called before."""
        if self._timer is None or at < self._at:
            self._cancel()
            self._at = at
            self._timer = self._loop.call_later(max(0, at - time.monotonic_ns()) / _SECOND, self._call)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@contextlib.contextmanager
def few_looks_at_garbage() -> Iterator[None]:
    """Keeps the garbage collector from stopping everybody for long, however many objects clients bring about.

    What is there now stays: the collector need not look at it again and again.
    """
    start = 0.0

    def look(phase: str, info: dict[str, int]) -> None:
        nonlocal start
        if phase == "start":
            start = time.perf_counter()
        elif info["generation"] == 2 and time.perf_counter() - start > _LONG_LOOK:
            gc.freeze()

    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    gc.callbacks.append(look)
    try:
        yield
    finally:
        gc.callbacks.remove(look)


def keep_freed_memory() -> None:
    """Has the C library keep some of what is freed, where it can be asked to (glibc).

    What is read from a file in blocks of half a megabyte would else be in pages that are new each time, and the system
    takes longer to make these than to read the file.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option in (_KEPT, _IN_HEAP):
            mallopt(*option)


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Logs what went wrong in a callback; the server keeps running."""
    problem = context.get("exception")
    if isinstance(problem, OSError) and out_of_files(problem):
        return
    debug = STREAMING.isEnabledFor(logging.DEBUG)
    STREAMING.error(
        "Internal error: %s: %r",
        context.get("message"),
        problem,
        exc_info=problem if debug and isinstance(problem, BaseException) else None,
    )
