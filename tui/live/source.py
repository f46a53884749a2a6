"""A server that is watched: asked again and again, at a pace that can be changed; what becomes of its counters."""

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

#: So many rates are remembered.
LENGTH = 60


class Meter:
    """How fast a counter grows. What it counts started over when it goes back: then there is no rate at first."""

    __slots__ = ("_at", "_rates", "_value", "rate")

    def __init__(self) -> None:
        self._value: int | None = None
        self._at = 0.0
        self._rates = array("f")
        #: In a second, between the last two looks; None if there were none.
        self.rate: float | None = None

    def see(self, value: int | None, at: float) -> bool:
        """Takes note of the counter.

        Args:
            value: What it is; None if that cannot be determined.
            at: When, in seconds on any clock that only goes forward.

        Returns:
            False if it has gone back.
        """
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
        """The counter starts over: what it was says nothing about its rate."""
        self._value = self.rate = None

    @property
    def rates(self) -> list[float]:
        """The last rates, oldest first."""
        return self._rates.tolist()


#: Seconds between two rounds that can be chosen.
STEPS: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_LOOK = 0.1


class Pace:
    """The time between two rounds. Changed by the user interface, kept to by the one who asks."""

    def __init__(self) -> None:
        self._step = STEPS.index(1.0)
        self.paused = False  #: nothing is asked

    @property
    def seconds(self) -> float:
        """Between two rounds."""
        return STEPS[self._step]

    def faster(self) -> None:
        """Takes the next shorter time."""
        self._step = max(self._step - 1, 0)

    def slower(self) -> None:
        """Takes the next longer time."""
        self._step = min(self._step + 1, len(STEPS) - 1)

    def toggle_pause(self) -> None:
        """Pauses, or resumes at once."""
        self.paused = not self.paused

    def wait(self, check: Callable[[], None], *, at_least: float = 0.0) -> None:
        """Waits until the next round is due.

        Args:
            check: Called many times a second; raises when the work is to end.
            at_least: Seconds.
        """
        begun = time.monotonic()
        while self.left(time.monotonic() - begun, at_least) > 0:
            time.sleep(_LOOK)
            check()

    def left(self, waited: float, at_least: float = 0.0) -> float:
        """Returns how many seconds are left to wait."""
        return float("inf") if self.paused else max(self.seconds, at_least) - waited


#: Things that happened are remembered, the newest last.
_EVENTS = 100


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a server; `time` is in seconds since 1970."""

    time: float
    text: str
    bad: bool = False


class LiveSource:
    """A server that is watched. The user interface only reads it: members are replaced as a whole.

    Args:
        name: What is asked, for people.
        pace: How often.
        clock: Returns seconds that only go forward.
        wall: Returns seconds since 1970.
    """

    def __init__(self, name: str, pace: Pace, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.name = name
        self.pace = pace  #: how often it is asked
        self.events: deque[Event] = deque(maxlen=_EVENTS)  #: what happened: restarts, the server gone and back
        #: Why it could not be asked in the last round; None if it could. What is known is old then.
        self.problem: StantoolsError | None = None
        self.answered: float | None = None  #: when it answered last, by the clock; None if never
        self.took = 0.0  #: seconds that the last whole round took
        self.revision = 0  #: grows with every round
        self._clock, self._wall = clock, wall
        self._asked = threading.Lock()

    @property
    def age(self) -> float:
        """For how many seconds the server has not answered; 0 if it never did."""
        return self._clock() - self.answered if self.answered is not None else 0.0

    def run(self, job: Job[None]) -> None:
        """Asks again and again until the job is cancelled.

        Raises:
            StantoolsError: It cannot be asked at all.
        """
        raise NotImplementedError

    def job(self) -> Job[None]:
        """Returns the job that asks. It waits until the job of an earlier view has ended."""
        return Job(self.name, self._alone)

    def ended(self, job: Job[None]) -> None:
        """Notes why the job that asked has ended by itself."""
        if job.problem is not None:
            self.problem = job.problem
            self.revision += 1

    def _alone(self, job: Job[None]) -> None:
        while not self._asked.acquire(timeout=0.1):
            job.check()
        try:
            self.run(job)
        finally:
            self._asked.release()

    def _fail(self, problem: StantoolsError) -> None:
        """Notes that it cannot be asked now."""
        if self.problem is None and self.answered is not None:
            self._tell(f"the server does not answer: {problem.message}", bad=True)
        self.problem = problem

    def _tell(self, text: str, *, bad: bool = False) -> None:
        self.events.append(Event(self._wall(), text, bad))
