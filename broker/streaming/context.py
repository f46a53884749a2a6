"""What every part of the rules has at hand: options, store, bus, time, timers and unique ids."""

from __future__ import annotations

import heapq
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.ports import Clock
from broker.stores.interface import StateStore
from broker.streaming.ports import Recipients, StreamingBus, StreamingDriver
from broker.streaming.streaming_options import StreamingOptions

#: Cancelled timers that may stay in the heap.
_MANY: Final = 1024
_DIGITS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_SIZE: Final = 12
_COUNTER_SIZE: Final = 10
_COUNTERS: Final = len(_DIGITS) ** _COUNTER_SIZE


class Timer:
    """An action that is run once, at a time."""

    __slots__ = ("_action", "queued", "time")

    def __init__(self, time: int, action: Callable[[], None]) -> None:
        self.time = time
        self.queued = True
        self._action: Callable[[], None] | None = action

    @property
    def pending(self) -> bool:
        """Whether it is still to be run."""
        return self._action is not None

    def _take(self) -> Callable[[], None] | None:
        action, self._action = self._action, None
        return action


class Timers:
    """A heap of timers. Times are monotonic nanoseconds."""

    def __init__(self, clock: Clock, driver: StreamingDriver) -> None:
        self._clock = clock
        self._driver = driver
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        self._wish: int | None = None
        self._running = False

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, time: int, action: Callable[[], None]) -> Timer:
        """Runs an action at a time; at the next occasion if that is past."""
        timer = Timer(time, action)
        heapq.heappush(self._heap, (time, next(self._numbers), timer))
        self._tell()
        return timer

    def after(self, delay: int, action: Callable[[], None]) -> Timer:
        """Runs an action after a while."""
        return self.at(self._clock.monotonic() + delay, action)

    def cancel(self, timer: Timer | None) -> None:
        """Cancels a timer, if it is not None and still to be run."""
        if timer is None or timer._take() is None:
            return
        self._cancelled += timer.queued
        if self._cancelled > _MANY and self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].pending]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def run(self) -> None:
        """Does what is due, except for what becomes due by doing it, and returns when to come again."""
        now = self._clock.monotonic()
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            timer.queued = False
            if timer.pending:
                due.append(timer)
            else:
                self._cancelled -= 1
        self._running = True
        waiting = iter(due)
        try:
            for timer in waiting:
                # One of those before may have cancelled it.
                if (action := timer._take()) is not None:
                    action()
        finally:
            # There is something left only if one has failed.
            for timer in waiting:
                timer.queued = True
                heapq.heappush(self._heap, (timer.time, next(self._numbers), timer))
            self._running = False
            self._wish = None
            self._tell()

    def clear(self) -> None:
        """Forgets all timers."""
        self._heap.clear()
        self._cancelled = 0

    def _tell(self) -> None:
        """Asks to be woken for the first timer, if that is earlier than what was asked for before."""
        if self._running or not self._heap:
            return
        first = self._heap[0][0]
        if self._wish is None or first < self._wish:
            self._wish = first
            self._driver.wake_at(first)


class Nuids:
    """Unique names of 22 digits and letters: a random part, and a counter that begins and steps at random."""

    def __init__(self) -> None:
        self._random = bytes(secrets.choice(_DIGITS) for _ in range(_RANDOM_SIZE))
        self._counter = secrets.randbelow(_COUNTERS)
        self._step = 33 + secrets.randbelow(300)

    def new(self) -> bytes:
        """Returns the next one."""
        self._counter = rest = (self._counter + self._step) % _COUNTERS
        digits = bytearray(_COUNTER_SIZE)
        for i in range(_COUNTER_SIZE - 1, -1, -1):
            rest, digit = divmod(rest, len(_DIGITS))
            digits[i] = _DIGITS[digit]
        return self._random + bytes(digits)

    def inbox(self) -> bytes:
        """Returns a new inbox."""
        return b"_INBOX." + self.new()


def new_id() -> str:
    """Returns an id that nothing else has, as servers call themselves: 22 digits and letters."""
    return Nuids().new().decode()


@dataclass(slots=True)
class StreamingStatistics:
    """Counters since the start, as monitoring shows them: publishes that could be decoded, and deliveries."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


@dataclass(slots=True)
class Context:
    """The world of the rules."""

    options: StreamingOptions
    store: StateStore  #: a store that nobody has used yet
    bus: StreamingBus  #: NATS
    clock: Clock  #: the time
    driver: StreamingDriver  #: calls `commit` and `run_timers` as asked
    audience: Recipients | None = None  #: who else reads the channels, if somebody does
    timers: Timers = field(init=False)
    statistics: StreamingStatistics = field(default_factory=StreamingStatistics)
    nuids: Nuids = field(default_factory=Nuids)

    def __post_init__(self) -> None:
        self.timers = Timers(self.clock, self.driver)
