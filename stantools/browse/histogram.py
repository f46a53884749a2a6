"""Messages per period of time: counted in narrow bins, which are added up to wider ones at once.

Widths are easy to read, and damaged times do not distort the range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.store.ranges import Ranges

Times = npt.NDArray[np.int64]

_SECOND = 1_000_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

#: Widths of buckets in nanoseconds, rising. Each divides all later ones, so that wide buckets are sums of narrow ones.
WIDTHS: tuple[int, ...] = (
    *(digit * 10**power for power in range(9) for digit in (1, 5)),
    *(count * _SECOND for count in (1, 5, 10, 30)),
    *(count * _MINUTE for count in (1, 5, 10, 30)),
    *(count * _HOUR for count in (1, 3, 6, 12)),
    *(count * _DAY for count in (1, 5, 10, 30, 90, 360, 3600, 36000)),
)
#: Maximum number of buckets that a page shows.
BARS = 240
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))

#: Times that a server can have stored (2000 to 2100); others count as damaged as long as they are few.
PLAUSIBLE = (946_684_800 * _SECOND, 4_102_444_800 * _SECOND)
#: Times kept one by one at the beginning and at the end; the size of the groups in between.
_HEAD, _TAIL, _GROUP = 4096, 512, 2048
#: Share of messages that may lie outside although each of their times could be true.
_MAX_OUTLIERS = 0.05


def width_text(width: int) -> str:
    """Writes the width of a bucket for people: `5 min`."""
    unit, name = next((unit, name) for unit, name in _UNITS if width >= unit)
    return f"{width // unit} {name}"


def bucket_width(span: int, limit: int) -> int:
    """Returns the smallest width at which a span of nanoseconds needs at most `limit` buckets, wherever it begins."""
    for width in WIDTHS:
        if span // width + 2 <= limit:
            return width
    return WIDTHS[-1]


def wider(width: int) -> int:
    """Returns the next larger width, or the same if there is none."""
    return WIDTHS[min(WIDTHS.index(width) + 1, len(WIDTHS) - 1)]


def narrower(width: int) -> int:
    """Returns the next smaller width, or the same if there is none."""
    return WIDTHS[max(WIDTHS.index(width) - 1, 0)]


class Samples:
    """A sample of a channel's times, in the order of its messages, from which to estimate their range.

    Of many messages it keeps the first and the last ones, and the median of each group in between.
    """

    def __init__(self) -> None:
        self.count = 0
        self._head: list[Times] = []
        self._middle: list[Times] = []
        self._tail: Times = np.empty(0, np.int64)

    def add(self, times: Times) -> None:
        """Adds the times of the next messages."""
        if self.count < _HEAD:
            self._head.append(times[: _HEAD - self.count].copy())
        self.count += len(times)
        whole = len(times) // _GROUP * _GROUP
        if whole:
            groups = np.partition(times[:whole].reshape(-1, _GROUP), _GROUP // 2, axis=1)
            self._middle.append(groups[:, _GROUP // 2].copy())
        self._tail = np.concatenate((self._tail, times[-_TAIL:]))[-_TAIL:]

    def times(self) -> list[int]:
        """Returns the sample in order."""
        head = np.concatenate(self._head) if self._head else np.empty(0, np.int64)
        if self.count <= _HEAD:
            return [int(each) for each in head]
        return [int(each) for each in np.concatenate((head[:_TAIL], *self._middle, self._tail))]

    def usual(self) -> tuple[int, int] | None:
        """Returns the first and the last nanosecond of plausible times; None if all times are plausible.

        Times rise with the sequences. A time that contradicts most others and is far from them is damaged, and so is
        one that no server's clock shows.
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
        return usual if outside <= max(len(plausible) * _MAX_OUTLIERS, 1) else (low, high - 1)


def _longest_rise(times: list[int]) -> list[int]:
    """Returns the longest subsequence of times that never falls; the other times are out of order."""
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


Sequences = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.uint32]
_Counts = npt.NDArray[np.int64]

_NO_SEQUENCE = np.uint64(2**64 - 1)
_INT64 = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class Bucket:
    """The messages of a period of time."""

    start: int  #: first nanosecond
    stop: int  #: first nanosecond after it
    count: int
    bytes: int  #: bytes of their records' payloads
    largest: int  #: bytes of the largest one
    first_seq: int  #: lowest sequence, 0 if there is no message
    last_seq: int  #: highest sequence
    missing: int  #: sequences without any byte
    damaged: int  #: sequences with a damaged record
    gap: bool  #: it contains a part of the time between two messages with others missing or damaged between them

    @property
    def mean(self) -> float:
        """Bytes per message, 0 if there is none."""
        return self.bytes / self.count if self.count else 0.0


class Histogram:
    """Messages in bins of equal width.

    `start` is the first nanosecond of the first bin, a multiple of the width (in nanoseconds).
    """

    def __init__(self, start: int, width: int, bins: int) -> None:
        self.start = start
        self.width = width
        #: Messages in each bin; the other attributes are as those of a `Bucket`.
        self.count: _Counts = np.zeros(bins, np.int64)
        self.bytes: _Counts = np.zeros(bins, np.int64)
        self.largest: _Counts = np.zeros(bins, np.int64)
        self.first_seq: Sequences = np.full(bins, _NO_SEQUENCE, np.uint64)
        self.last_seq: Sequences = np.zeros(bins, np.uint64)
        self.missing: _Counts = np.zeros(bins, np.int64)
        self.damaged: _Counts = np.zeros(bins, np.int64)
        self.gap: npt.NDArray[np.bool_] = np.zeros(bins, np.bool_)
        self.strays = 0  #: messages outside all bins
        #: The earliest and the latest time in a bin; None if there is no message.
        self.times: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.count)

    @property
    def stop(self) -> int:
        """The first nanosecond after the last bin."""
        return self.start + self.width * len(self)

    def covers(self, start: int, stop: int) -> bool:
        return self.start <= start and stop <= self.stop

    def places(self, times: Times) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Returns a mask of the times that lie in a bin, and the bins of these times."""
        low, high = max(self.start, _INT64[0]), min(self.stop - 1, _INT64[1])
        inside: npt.NDArray[np.bool_] = (times >= low) & (times <= high)
        chosen = times if inside.all() else times[inside]
        # Differences of distant times exceed a signed number, never an unsigned one.
        distance = np.ascontiguousarray(chosen).view(np.uint64) - np.uint64(self.start % 2**64)
        return inside, (distance // np.uint64(self.width)).astype(np.int64)

    def add(self, sequence: Sequences, timestamp: Times, size: Sizes) -> None:
        if not len(timestamp):
            return
        inside, place = self.places(timestamp)
        if len(place) < len(timestamp):
            self.strays += len(timestamp) - len(place)
            sequence, size = sequence[inside], size[inside]
            if not len(place):
                return
        self._note_times(timestamp[inside])
        if bool((place[1:] < place[:-1]).any()):
            order = np.argsort(place, kind="stable")
            place, sequence, size = place[order], sequence[order], size[order]
        starts = np.concatenate(([0], np.flatnonzero(place[1:] != place[:-1]) + 1))
        bins = place[starts]
        self.count[bins] += np.diff(np.append(starts, len(place)))
        self.bytes[bins] += np.add.reduceat(size.astype(np.int64), starts)
        self.largest[bins] = np.maximum(self.largest[bins], np.maximum.reduceat(size, starts))
        self.first_seq[bins] = np.minimum(self.first_seq[bins], np.minimum.reduceat(sequence, starts))
        self.last_seq[bins] = np.maximum(self.last_seq[bins], np.maximum.reduceat(sequence, starts))

    def add_damaged(self, timestamp: Times) -> None:
        """Counts messages of which only the time is known."""
        inside, place = self.places(timestamp)
        np.add.at(self.damaged, place, 1)
        self._note_times(timestamp[inside])

    def _note_times(self, times: Times) -> None:
        if len(times):
            low, high = int(times.min()), int(times.max())
            self.times = (min(low, self.times[0]), max(high, self.times[1])) if self.times else (low, high)

    def add_holes(self, before: Times, after: Times, missing: _Counts, damaged: _Counts) -> None:
        """Counts missing sequences between two messages each, stored at times `before` and `after`.

        `missing` are the sequences in the hole without any byte, counted at its end; `damaged` those with a damaged
        record.
        """
        inside, place = self.places(after)
        np.add.at(self.missing, place, missing[inside])
        np.add.at(self.damaged, place, damaged[inside])
        first, last = np.minimum(before, after), np.maximum(before, after)
        touched = (last >= max(self.start, _INT64[0])) & (first <= min(self.stop - 1, _INT64[1]))
        if not touched.any():
            return
        low = np.clip(first[touched], max(self.start, _INT64[0]), min(self.stop - 1, _INT64[1]))
        high = np.clip(last[touched], max(self.start, _INT64[0]), min(self.stop - 1, _INT64[1]))
        depth = np.zeros(len(self) + 1, np.int64)
        np.add.at(depth, self.places(low)[1], 1)
        np.add.at(depth, self.places(high)[1] + 1, -1)
        self.gap |= np.cumsum(depth)[:-1] > 0

    def regroup(self, start: int, width: int, buckets: int) -> Histogram:
        """Adds bins up to wider ones; times without bins count as empty.

        `start` is the first nanosecond of the first bucket, a multiple of the new width, which is a multiple of the
        bins' width.
        """
        each = width // self.width
        low = (start - self.start) // self.width
        high = low + each * buckets
        take = slice(max(low, 0), min(max(high, 0), len(self)))
        first = max(low, 0) - low
        result = Histogram(start, width, buckets)
        if take.stop <= take.start:
            return result
        put = slice(first, first + take.stop - take.start)
        for name, combine in _COMBINE.items():
            source = getattr(self, name)
            fine = np.full(each * buckets, _NO_SEQUENCE if name == "first_seq" else 0, source.dtype)
            fine[put] = source[take]
            setattr(result, name, combine(fine.reshape(buckets, each), axis=1))
        return result

    def bucket(self, place: int) -> Bucket:
        start = self.start + place * self.width
        values = {name: getattr(self, name)[place].item() for name in _COMBINE}
        if not values["count"]:
            values["first_seq"] = 0
        return Bucket(start, start + self.width, **values)


_COMBINE: dict[str, Callable[..., npt.NDArray[Any]]] = {
    "count": np.sum,
    "bytes": np.sum,
    "largest": np.max,
    "first_seq": np.min,
    "last_seq": np.max,
    "missing": np.sum,
    "damaged": np.sum,
    "gap": np.any,
}


class Counter:
    """Counts, for many ranges at once, how many of their sequences are in a set."""

    def __init__(self, sequences: Ranges) -> None:
        pairs = sequences.pairs()
        self._first = np.array([first for first, _ in pairs], np.uint64)
        self._last = np.array([last for _, last in pairs], np.uint64)
        lengths = (self._last - self._first + np.uint64(1)).astype(np.uint64)
        self._before = np.concatenate((np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)))

    def count(self, first: Sequences, last: Sequences) -> _Counts:
        """Returns how many sequences of the set each range from `first` to `last` contains."""
        if not len(self._first):
            return np.zeros(len(first), np.int64)
        counts = (self._up_to(last) - self._up_to(first)).astype(np.int64)
        at = np.searchsorted(self._first, first, side="right") - 1
        counts += (at >= 0) & (first <= self._last[np.maximum(at, 0)])
        return counts

    def _up_to(self, sequence: Sequences) -> Sequences:
        at = np.searchsorted(self._first, sequence, side="right")
        whole = self._before[np.maximum(at - 1, 0)]
        held = np.minimum(sequence, self._last[np.maximum(at - 1, 0)]) - self._first[np.maximum(at - 1, 0)]
        result: Sequences = np.where(at > 0, whole + held + np.uint64(1), np.uint64(0))
        return result
