"""The context of the rules: options, store, bus, clock, timers and unique ids."""

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

#: cancelled timers in the heap before it is rebuilt
_MAX_CANCELLED: Final = 1024
_DIGITS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_SIZE: Final = 12
_COUNTER_SIZE: Final = 10
_COUNTERS: Final = len(_DIGITS) ** _COUNTER_SIZE


class Timer:
    """An action that runs once."""

    __slots__ = ("_action", "queued", "time")

    def __init__(self, time: int, action: Callable[[], None]) -> None:
        self.time = time
        self.queued = True
        self._action: Callable[[], None] | None = action

    @property
    def pending(self) -> bool:
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
        self._wakeup: int | None = None
        self._running = False

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, time: int, action: Callable[[], None]) -> Timer:
        """Runs an action at a time, or as soon as possible if that is past."""
        timer = Timer(time, action)
        heapq.heappush(self._heap, (time, next(self._numbers), timer))
        self._request_wakeup()
        return timer

    def after(self, delay: int, action: Callable[[], None]) -> Timer:
        return self.at(self._clock.monotonic() + delay, action)

    def cancel(self, timer: Timer | None) -> None:
        """Cancels a timer. None, and a timer that has run, are ignored."""
        if timer is None or timer._take() is None:
            return
        self._cancelled += timer.queued
        if self._cancelled > _MAX_CANCELLED and self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].pending]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def run(self) -> None:
        """Runs the timers that are due now, without timers that they add, and asks the driver for the next call."""
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
                # An earlier action may have cancelled it.
                if (action := timer._take()) is not None:
                    action()
        finally:
            # Timers are left only after an exception.
            for timer in waiting:
                timer.queued = True
                heapq.heappush(self._heap, (timer.time, next(self._numbers), timer))
            self._running = False
            self._wakeup = None
            self._request_wakeup()

    def clear(self) -> None:
        self._heap.clear()
        self._cancelled = 0

    def _request_wakeup(self) -> None:
        """Asks the driver for a call at the first timer, if that is earlier than the last request."""
        if self._running or not self._heap:
            return
        first = self._heap[0][0]
        if self._wakeup is None or first < self._wakeup:
            self._wakeup = first
            self._driver.wake_at(first)


class Nuids:
    """Unique names of 22 digits and letters: a random part, and a counter with a random start and step."""

    def __init__(self) -> None:
        self._random = bytes(secrets.choice(_DIGITS) for _ in range(_RANDOM_SIZE))
        self._counter = secrets.randbelow(_COUNTERS)
        self._step = 33 + secrets.randbelow(300)

    def new(self) -> bytes:
        self._counter = rest = (self._counter + self._step) % _COUNTERS
        digits = bytearray(_COUNTER_SIZE)
        for i in range(_COUNTER_SIZE - 1, -1, -1):
            rest, digit = divmod(rest, len(_DIGITS))
            digits[i] = _DIGITS[digit]
        return self._random + bytes(digits)

    def inbox(self) -> bytes:
        return b"_INBOX." + self.new()


def new_id() -> str:
    """Returns a new server id: 22 random digits and letters."""
    return Nuids().new().decode()


@dataclass(slots=True)
class StreamingStatistics:
    """Counters since the start for monitoring: decoded publishes, and deliveries."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


@dataclass(slots=True)
class Context:
    options: StreamingOptions
    store: StateStore  #: not recovered yet
    bus: StreamingBus
    clock: Clock
    driver: StreamingDriver  #: calls `commit` and `run_timers` on request
    audience: Recipients | None = None  #: another reader of the channels
    timers: Timers = field(init=False)
    statistics: StreamingStatistics = field(default_factory=StreamingStatistics)
    nuids: Nuids = field(default_factory=Nuids)

    def __post_init__(self) -> None:
        self.timers = Timers(self.clock, self.driver)
