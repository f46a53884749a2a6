"""Rates of the last hour for the live page: the counters of the server, once a second.

The endpoint `ratesz` is not in the original. Its points have a width that divides the time, so that a point does not
change after its end.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

#: seconds between two samples, and of the longest window
_INTERVAL: Final = 1.0
LONGEST: Final = 3600
#: points of a window
_POINTS: Final = 120


class RateHistory:
    """Samples of a server's counters: messages received and delivered.

    `counters` returns both; `clock` the time in seconds.
    """

    def __init__(self, counters: Callable[[], tuple[int, int]], clock: Callable[[], float] = time.time) -> None:
        self._counters = counters
        self._clock = clock
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=LONGEST + _POINTS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Takes a sample every second from now on."""
        self.sample()
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def sample(self) -> None:
        now = self._clock()
        if self._samples and now < self._samples[-1][0]:
            self._samples.clear()  # the clock was set back
        self._samples.append((now, *self._counters()))

    def document(self, window: int) -> dict[str, Any]:
        """Returns the rates of the last `window` seconds; None for the time before the first sample."""
        window = max(_POINTS, min(window, LONGEST))
        step = window // _POINTS
        times = [each[0] for each in self._samples]
        until = int(times[-1]) // step * step if times else 0
        first = until - step * _POINTS
        edges = [self._at(times, first + step * edge) for edge in range(_POINTS + 1)]
        received: list[float | None] = []
        delivered: list[float | None] = []
        for begin, end in pairwise(edges):
            for rates, which in ((received, 0), (delivered, 1)):
                # The counters of another server of the group begin at 0.
                rates.append(round(max(end[which] - begin[which], 0.0) / step, 3) if begin and end else None)
        return {"until": until, "step": step, "in": received, "out": delivered}

    def _at(self, times: list[float], moment: float) -> tuple[float, float] | None:
        """Returns the counters at a moment between two samples; None before the first one."""
        place = bisect_right(times, moment)
        if not place:
            return None
        before, after = self._samples[place - 1], self._samples[min(place, len(times) - 1)]
        share = (moment - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
        return before[1] + (after[1] - before[1]) * share, before[2] + (after[2] - before[2]) * share
