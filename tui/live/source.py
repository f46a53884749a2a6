"""A watched server: polled at an adjustable interval, with rates of its counters."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stantools.errors import StantoolsError
from tui.jobs import Job

#: Number of rates kept.
LENGTH = 60


class RateMeter:
    """Rate of a counter. A counter that decreases has restarted: then there is no rate until the next value."""

    __slots__ = ("_at", "_rates", "_value", "rate")

    def __init__(self) -> None:
        self._value: int | None = None
        self._at = 0.0
        self._rates = array("f")
        #: Growth per second between the last two values; None if unknown.
        self.rate: float | None = None

    def see(self, value: int | None, at: float) -> bool:
        """Takes a value (None if unknown) at a monotonic time in seconds; returns False if the counter decreased."""
        before, passed = self._value, at - self._at
        if before is not None and value is not None and passed <= 0:
            return value >= before
        self._value, self._at = value, at
        if before is None or value is None:
            self.rate = None
            return True
        if value < before:
            self.rate = None
            return False
        self.rate = (value - before) / passed
        self._rates.append(self.rate)
        if len(self._rates) > LENGTH:
            del self._rates[0]
        return True

    def forget(self) -> None:
        self._value = self.rate = None

    @property
    def rates(self) -> list[float]:
        return self._rates.tolist()


#: Intervals to choose from, in seconds.
STEPS: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_LOOK = 0.1


class PollInterval:
    """The polling interval: set by the user interface, obeyed by the thread that polls."""

    def __init__(self) -> None:
        self._step = STEPS.index(1.0)
        self.paused = False  #: no polls

    @property
    def seconds(self) -> float:
        return STEPS[self._step]

    def faster(self) -> None:
        self._step = max(self._step - 1, 0)

    def slower(self) -> None:
        self._step = min(self._step + 1, len(STEPS) - 1)

    def toggle_pause(self) -> None:
        self.paused = not self.paused

    def wait(self, check: Callable[[], None], *, minimum: float = 0.0) -> None:
        """Waits for the next round, at least `at_least` seconds.

        `check` is called often; it may raise to end the wait.
        """
        begun = time.monotonic()
        while self.left(time.monotonic() - begun, minimum) > 0:
            time.sleep(_LOOK)
            check()

    def left(self, waited: float, minimum: float = 0.0) -> float:
        return float("inf") if self.paused else max(self.seconds, minimum) - waited


#: Number of events kept.
_EVENTS = 100


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An event of a server; `time` is in seconds since 1970."""

    time: float
    text: str
    bad: bool = False


class LiveSource:
    """A watched server. The user interface only reads it: each member is replaced as a whole.

    Args:
        name: Name for people.
        pace: The polling interval.
        clock: Monotonic time in seconds.
        wall: Seconds since 1970.
    """

    def __init__(self, name: str, pace: PollInterval, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.name = name
        self.pace = pace  #: polling interval
        self.events: deque[ServerEvent] = deque(maxlen=_EVENTS)  #: restarts, lost and regained connections
        #: Error of the last round; None if it succeeded. With an error the other members are outdated.
        self.problem: StantoolsError | None = None
        self.answered: float | None = None  #: time of the last answer, on the clock; None before the first one
        self.took = 0.0  #: duration of the last complete round in seconds
        self.revision = 0  #: incremented in every round
        self._clock, self._wall = clock, wall
        self._request_lock = threading.Lock()

    @property
    def age(self) -> float:
        """Seconds since the last answer while the server does not answer; 0 if it never answered."""
        return self._clock() - self.answered if self.answered is not None else 0.0

    def run(self, job: Job[None]) -> None:
        """Polls until the job is cancelled. Raises `StantoolsError` if the server can never be polled."""
        raise NotImplementedError

    def job(self) -> Job[None]:
        """Returns the job that polls. It starts when the job of an earlier view has ended."""
        return Job(self.name, self._run_exclusively)

    def ended(self, job: Job[None]) -> None:
        """Keeps the error of a polling job that ended by itself."""
        if job.problem is not None:
            self.problem = job.problem
            self.revision += 1

    def _run_exclusively(self, job: Job[None]) -> None:
        while not self._request_lock.acquire(timeout=0.1):
            job.check()
        try:
            self.run(job)
        finally:
            self._request_lock.release()

    def _fail(self, problem: StantoolsError) -> None:
        if self.problem is None and self.answered is not None:
            self._tell(f"the server does not answer: {problem.message}", bad=True)
        self.problem = problem

    def _tell(self, text: str, *, bad: bool = False) -> None:
        self.events.append(ServerEvent(self._wall(), text, bad))
