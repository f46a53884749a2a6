"""Work in the background: it reports its progress, is cancelled at its next step, never in the way of a key press.

A job runs in a thread of its own. The user interface looks at it ten times a second or so instead of being told, so
that work that makes thousands of steps a second costs the interface nothing.
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
    """Ends a job that was cancelled; raised by the job's own progress."""


class JobState(enum.StrEnum):
    """How far a job is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Job(Generic[_T]):
    """A piece of work in a thread.

    Args:
        name: What it does, for people: "salvage", "search".
        work: Does it; is given the job, whose `advance` is a `stantools.progress.Progress`.
        total: How much there is to do, in the unit that `advance` is told; 0 if nobody knows.
    """

    def __init__(self, name: str, work: Callable[[Job[_T]], _T], *, total: int = 0) -> None:
        self.name = name
        self.total = total
        self.done = 0  #: how much is done
        self.phase = ""  #: what is being done just now, for people; the work may set it
        self.problem: StantoolsError | None = None  #: why it failed, if it did
        self.state = JobState.WAITING
        self.begun = self.ended = 0.0
        self._work = work
        self._result: _T | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"job {name}", daemon=True)

    def start(self) -> Job[_T]:
        """Begins the work and returns the job itself."""
        self.state, self.begun = JobState.RUNNING, time.monotonic()
        self._thread.start()
        return self

    def cancel(self) -> None:
        """Asks the work to end; it does at its next step, having taken back what it had begun."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end and returns whether it has come."""
        if self.state is JobState.WAITING:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def advance(self, count: int) -> None:
        """Notes that so much more is done. May be called from several threads.

        Raises:
            Cancelled: The job was cancelled.
        """
        with self._lock:
            self.done += count
        self.check()

    def check(self) -> None:
        """Ends the work here if it was cancelled.

        Raises:
            Cancelled: It was.
        """
        if self._stop.is_set():
            raise Cancelled

    def begin_phase(self, phase: str, total: int = 0) -> None:
        """Notes that another part of the work begins, which is counted from 0."""
        with self._lock:
            self.phase, self.total, self.done = phase, total, 0
        self.check()

    @property
    def cancelling(self) -> bool:
        """It was asked to end."""
        return self._stop.is_set()

    @property
    def running(self) -> bool:
        """Resumes the work."""
        return self.state is JobState.RUNNING

    @property
    def seconds(self) -> float:
        """For how long it has been running, or ran."""
        return (self.ended or time.monotonic()) - self.begun if self.begun else 0.0

    @property
    def share(self) -> float | None:
        """How much of it is done, from 0 to 1; None if nobody knows."""
        return min(self.done / self.total, 1.0) if self.total else None

    @property
    def result(self) -> _T:
        """What the work returned, once the state is DONE."""
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
