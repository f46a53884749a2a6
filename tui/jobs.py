"""Background jobs: they report progress and stop at their next step when cancelled.

A job runs in a thread of its own. The user interface polls it about ten times a second, so that a job with thousands
of steps per second costs the interface nothing.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from stantools.errors import StantoolsError

_T = TypeVar("_T")


class Cancelled(BaseException):
    """Ends a cancelled job; raised by the progress methods of the job."""


class JobState(enum.StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Job(Generic[_T]):
    """A piece of work in a thread.

    Args:
        name: Name for people: "salvage", "search".
        work: Function that does the work; it gets the job, whose `advance` is a `stantools.progress.Progress`.
        total: Amount of work, in the unit of `advance`; 0 if unknown.
    """

    def __init__(self, name: str, work: Callable[[Job[_T]], _T], *, total: int = 0) -> None:
        self.name = name
        self.total = total
        self.done = 0  #: amount of work completed
        self.phase = ""  #: current phase for people; set by the work
        self.problem: StantoolsError | None = None  #: reason of a failure
        self.state = JobState.WAITING
        self.begun = self.ended = 0.0
        self._work = work
        self._result: _T | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"job {name}", daemon=True)

    def start(self) -> Job[_T]:
        self.state, self.begun = JobState.RUNNING, time.monotonic()
        self._thread.start()
        return self

    def cancel(self) -> None:
        """Asks the work to end; at its next step it undoes its partial changes and ends."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end; returns False after the timeout."""
        if self.state is JobState.WAITING:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def advance(self, count: int) -> None:
        """Adds to the work completed; thread-safe. Raises `Cancelled` after `cancel`."""
        with self._lock:
            self.done += count
        self.check()

    def check(self) -> None:
        if self._stop.is_set():
            raise Cancelled

    def begin_phase(self, phase: str, total: int = 0) -> None:
        """Starts a phase of the work with a count of its own."""
        with self._lock:
            self.phase, self.total, self.done = phase, total, 0
        self.check()

    @property
    def cancelling(self) -> bool:
        return self._stop.is_set()

    @property
    def running(self) -> bool:
        return self.state is JobState.RUNNING

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.begun if self.begun else 0.0

    @property
    def share(self) -> float | None:
        """Share completed, from 0 to 1; None if the total is unknown."""
        return min(self.done / self.total, 1.0) if self.total else None

    @property
    def result(self) -> _T:
        if self.state is not JobState.DONE:
            raise RuntimeError(f"the job {self.name} is {self.state.value}")
        return self._result  # type: ignore[return-value]

    def _run(self) -> None:
        state = JobState.DONE
        try:
            self._result = self._work(self)
        except Cancelled:
            state = JobState.CANCELLED
        except StantoolsError as problem:
            self.problem, state = problem, JobState.FAILED
        except MemoryError:
            self.problem, state = StantoolsError("out of memory"), JobState.FAILED
        except OSError as problem:
            place = f"{problem.filename}: " if problem.filename else ""
            self.problem = StantoolsError(f"{place}{problem.strerror or problem}")
            state = JobState.FAILED
        except Exception as problem:
            text = f"unexpected {type(problem).__name__}: {problem}"
            self.problem = StantoolsError(text, "this is a bug in stantools: please report it")
            self.problem.__cause__ = problem
            state = JobState.FAILED
        self.ended = time.monotonic()
        self.state = state
