"""Time scales for plots: widths of buckets that people read easily, and a range that damaged times do not break."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

_SECOND = 1_000_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

#: Widths of buckets in nanoseconds, rising. Each divides all that follow, so that wide buckets are sums of narrow ones.
WIDTHS: tuple[int, ...] = (
    *(digit * 10**power for power in range(9) for digit in (1, 5)),
    *(count * _SECOND for count in (1, 5, 10, 30)),
    *(count * _MINUTE for count in (1, 5, 10, 30)),
    *(count * _HOUR for count in (1, 3, 6, 12)),
    *(count * _DAY for count in (1, 5, 10, 30, 90, 360, 3600, 36000)),
)
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))

#: Times that a server can have stored (2000 to 2100); others are taken for damaged as long as they are few.
PLAUSIBLE = (946_684_800 * _SECOND, 4_102_444_800 * _SECOND)
#: Times that are looked at one by one at the beginning, and at the end; of those between, groups.
_HEAD, _TAIL, _GROUP = 4096, 512, 2048
#: Share of messages that may lie outside although each of their times could be true.
_FEW = 0.05


def width_text(width: int) -> str:
    """Writes the width of a bucket for people: `5 min`."""
    unit, name = next((unit, name) for unit, name in _UNITS if width >= unit)
    return f"{width // unit} {name}"


def fitting(span: int, most: int) -> int:
    """Returns the smallest width at which a span of nanoseconds needs at most so many buckets, however they lie."""
    for width in WIDTHS:
        if span // width + 2 <= most:
            return width
    return WIDTHS[-1]


def wider(width: int) -> int:
    """Returns the next larger width, or the same if there is none."""
    return WIDTHS[min(WIDTHS.index(width) + 1, len(WIDTHS) - 1)]


def narrower(width: int) -> int:
    """Returns the next smaller width, or the same if there is none."""
    return WIDTHS[max(WIDTHS.index(width) - 1, 0)]


class Samples:
    """Some of the times of a channel, in the order of its messages: enough to see in which range they lie.

    Of many messages it keeps the first and the last ones, and the median of each group in between.
    """

    def __init__(self) -> None:
        self.count = 0
        self._head: list[Times] = []
        self._middle: list[Times] = []
        self._tail: Times = np.empty(0, np.int64)

    def add(self, times: Times) -> None:
        """Adds the times of the messages that follow."""
        if self.count < _HEAD:
            self._head.append(times[: _HEAD - self.count].copy())
        self.count += len(times)
        whole = len(times) // _GROUP * _GROUP
        if whole:
            groups = np.partition(times[:whole].reshape(-1, _GROUP), _GROUP // 2, axis=1)
            self._middle.append(groups[:, _GROUP // 2].copy())
        self._tail = np.concatenate((self._tail, times[-_TAIL:]))[-_TAIL:]

    def times(self) -> list[int]:
        """Returns the times that were kept, in order."""
        head = np.concatenate(self._head) if self._head else np.empty(0, np.int64)
        if self.count <= _HEAD:
            return [int(each) for each in head]
        return [int(each) for each in np.concatenate((head[:_TAIL], *self._middle, self._tail))]

    def usual(self) -> tuple[int, int] | None:
        """Returns a range outside which times are damaged, from the first to the last nanosecond; None for all times.

        Times rise with the sequences. One that contradicts most others and lies far from them is damaged, and so is
        one that no clock of a server shows.
        """
        times = self.times()
        low, high = PLAUSIBLE
        plausible = [each for each in times if low <= each < high]
        if len(plausible) * 2 <= len(times):
            return None
        rising = _longest_rise(plausible)
        slack = max(rising[-1] - rising[0], _DAY)
        usual = max(rising[0] - slack, low), min(rising[-1] + slack, high - 1)
        outside = sum(not usual[0] <= each <= usual[1] for each in plausible)
        return usual if outside <= max(len(plausible) * _FEW, 1) else (low, high - 1)


def _longest_rise(times: list[int]) -> list[int]:
    """Returns the longest series of times that never falls, in their order: who is not in it is out of line."""
    ends: list[int] = []  # the lowest time with which a series of each length can end
    places: list[int] = []
    before: list[int] = []
    for place, time in enumerate(times):
        length = bisect_right(ends, time)
        before.append(places[length - 1] if length else -1)
        if length == len(ends):
            ends.append(time)
            places.append(place)
        else:
            ends[length], places[length] = time, place
    series, place = [], places[-1]
    while place >= 0:
        series.append(times[place])
        place = before[place]
    return series[::-1]
