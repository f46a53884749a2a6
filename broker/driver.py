"""The `Driver` and `Clock` of the rules on an asyncio loop: commits, timers, threads, and maintenance of stores."""

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

from broker.busy_poll import BusyPoll
from broker.log import STREAMING, out_of_files
from broker.ports import T
from broker.rounds import Committer, LoopRounds

_SECOND = 1e9
EXIT_ABORTED: Final = 2
#: Allocations and rounds between two garbage collections. Cycles are rare here, and each collection is a delay.
_GC_THRESHOLDS: Final = (4_000, 3, 1)
#: Seconds of a full collection after which all surviving objects are frozen.
_LONG_COLLECTION: Final = 0.01
#: mallopt(3) options and bytes: free memory above the first limit at the end of the heap is returned to the system, and
#: blocks above the second one are allocated outside of the heap.
_TRIM_THRESHOLD: Final = (-1, 16 << 20)
_MMAP_THRESHOLD: Final = (-3, 4 << 20)


class RuleSet(Committer, Protocol):
    """The rules of streaming or of streams."""

    def run_timers(self) -> None: ...


class SystemClock:
    """The machine's clocks in nanoseconds: monotonic for timers, and since the epoch."""

    # Read for every message, hence without a wrapper.
    monotonic = staticmethod(time.monotonic_ns)
    wall = staticmethod(time.time_ns)


class LoopDriver:
    """Calls the rules from an event loop.

    Args:
        on_fatal: Called when the rules cannot continue.
        rounds: The rounds at whose end the rules commit; shared with other rules that write to the same sockets.
    """

    server: RuleSet  #: the rules; set before the loop runs

    def __init__(self, loop: asyncio.AbstractEventLoop, on_fatal: Callable[[str], None], rounds: LoopRounds) -> None:
        self.rounds: Final = rounds
        self.write_now: Final = self.rounds.write_now
        self._loop = loop
        self.fatal: Final = on_fatal
        self._stopped = False
        self._busy_poll = BusyPoll(self._commit_if_scheduled)
        self._scheduled = False  # a commit after the end of polling
        self._timer: asyncio.TimerHandle | None = None

    _now = staticmethod(time.monotonic_ns)

    def commit_soon(self) -> None:
        """Commits after the loop has handed over all readable input."""
        if not self._stopped:
            self._scheduled = False
            rounds = self.rounds
            rounds.committers[self.server] = None
            if not rounds.scheduled:
                rounds.soon()

    def commit_by(self, time: int) -> None:
        """Commits at that time, or earlier with other input.

        The loop polls until then, because its timers are too coarse.
        """
        self._scheduled = True
        self._busy_poll.keep((time - self._now()) / _SECOND)

    def _commit_if_scheduled(self) -> None:
        if self._scheduled:
            self.commit_soon()

    def wake(self) -> None:
        """Calls `commit_soon`, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.commit_soon)

    def wake_at(self, time: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0, time - self._now()) / _SECOND, self._on_timer)

    def aside(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Runs a job in a thread of its own; the process does not wait for it at its end."""

        def finish(result: T) -> None:
            self.rounds.apply_input()
            done(result)

        def work() -> None:
            result = job()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(finish, result)

        try:
            threading.Thread(target=work, name="aside", daemon=True).start()
        except RuntimeError:  # no more threads are possible
            work()

    def abort(self, message: str) -> None:
        """Ends the process at once, as a panic ends the original."""
        STREAMING.critical("panic: %s", message)
        os._exit(EXIT_ABORTED)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stopped = True
        self.rounds.committers.pop(self.server, None)

    def _on_timer(self) -> None:
        self._timer = None
        self.rounds.apply_input()
        self.server.run_timers()


class StoreTimer:
    """Calls `maintain` of a store at the times that the store requests; a store without it is left alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: object) -> None:
        self._loop = loop
        self._maintain: Callable[[], int | None] | None = getattr(store, "maintain", None)
        self._postpone: Callable[[Callable[[int], None] | None], None] | None = getattr(store, "postpone", None)
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0  # time of the next call

    def start(self) -> None:
        if self._postpone is not None:
            self._postpone(self._schedule)
        self._call()

    def stop(self) -> None:
        if self._postpone is not None:
            self._postpone(None)
        self._cancel()

    def _call(self) -> None:
        self._timer = None
        if self._maintain is not None and (at := self._maintain()) is not None:
            self._schedule(at)

    def _schedule(self, at: int) -> None:
        """Schedules a call, unless an earlier one is scheduled."""
        if self._timer is None or at < self._at:
            self._cancel()
            self._at = at
            self._timer = self._loop.call_later(max(0, at - time.monotonic_ns()) / _SECOND, self._call)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@contextlib.contextmanager
def short_collector_pauses() -> Iterator[None]:
    """Keeps pauses of the garbage collector short, however many objects the clients create.

    Existing objects are frozen, so that the collector skips them.
    """
    start = 0.0

    def look(phase: str, info: dict[str, int]) -> None:
        nonlocal start
        if phase == "start":
            start = time.perf_counter()
        elif info["generation"] == 2 and time.perf_counter() - start > _LONG_COLLECTION:
            gc.freeze()

    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.callbacks.append(look)
    try:
        yield
    finally:
        gc.callbacks.remove(look)


def keep_freed_memory() -> None:
    """Tells the C library (glibc) to keep freed memory.

    Otherwise every block of half a megabyte read from a file would get fresh pages, and making these takes the
    system longer than reading the file.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(*option)


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Logs an error of a callback; the server keeps running."""
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
