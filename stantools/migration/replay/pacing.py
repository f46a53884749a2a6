"""When each message is due: at its own pace, faster, slower, or as fast as a limit allows. No clock, no sleeping.

The times of the messages, which the server that stored them took from its clock, become a schedule: nanoseconds after
the start of the replay, never falling. All messages go through one pacer, in the order in which they are sent, so that
channels keep their relative timing. Times that go backwards (a clock was set back) do not make anybody wait.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SECOND = 1_000_000_000
#: About 290 years: what is due later is due never, and the sums cannot overflow.
_NEVER = 2**62


class Pacer:
    """Makes a schedule.

    Args:
        speed: How many times faster than the original; None does not wait for original times at all.
        rate: Messages a second at most, None for no limit. It holds at every moment: there are no bursts.
        longest_pause: No pause between two messages is longer than this, in nanoseconds of the replay; None for no
            limit.
    """

    def __init__(self, speed: float | None = 1.0, rate: float | None = None, longest_pause: int | None = None) -> None:
        self._speed = speed
        self._step = 0 if rate is None else _SECOND / rate
        self._pause = longest_pause
        self._last: int | None = None
        self._due = 0.0
        self._next = 0.0

    @property
    def waits(self) -> bool:
        """Messages may be due later than at once."""
        return self._speed is not None or bool(self._step)

    def schedule(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns when each of the next messages is due, in nanoseconds after the start of the replay.

        Args:
            timestamps: When they were stored, in nanoseconds since 1970.
        """
        if len(timestamps) <= 1:
            # The usual case where channels alternate.
            return np.array([self._one(int(each)) for each in timestamps], np.int64)
        due = self._by_time(timestamps)
        if self._step:
            # Each is at least a step after the one before: due[i] = max(due[i], due[i - 1] + step).
            steps = np.arange(len(due)) * self._step
            due = np.maximum.accumulate(np.maximum(due, self._next + steps) - steps) + steps
            self._next = float(due[-1]) + self._step
        return np.minimum(due, _NEVER).astype(np.int64)

    def _one(self, timestamp: int) -> int:
        """Does what `schedule` does, for a single message."""
        due = 0.0
        if self._speed is not None:
            last = timestamp if self._last is None else self._last
            self._last = max(last, timestamp)
            pause = (self._last - last) / self._speed
            self._due += pause if self._pause is None else min(pause, self._pause)
            due = self._due
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
        # The difference of two times of which the later is not smaller always fits, as an unsigned number.
        numbers: npt.NDArray[np.uint64] = times.view(np.uint64)
        pauses: npt.NDArray[np.float64] = (numbers[1:] - numbers[:-1]) / self._speed
        if self._pause is not None:
            pauses = np.minimum(pauses, self._pause)
        due: npt.NDArray[np.float64] = np.cumsum(pauses) + self._due
        self._due = float(due[-1])
        return due
