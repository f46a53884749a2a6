"""Times of a channel's messages: how many in each period, and where some are missing.

If the index of a slice can be trusted, it is enough; otherwise the data file is scanned. The data read so far is
kept in pieces with their times, so that a look at a short period reads little again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from stantools.browse.histogram import Counter, Histogram, Samples, bucket_width
from stantools.errors import StoreUnreadableError
from stantools.format.columns import MessageRecords
from stantools.format.crc import Crc
from stantools.inspection.survey import ChannelSurvey
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles, SliceFiles
from stantools.store.indexes import SliceIndex
from stantools.store.mapping import mapped
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile

#: Bins over the whole time: enough for some steps of zooming in without reading again.
BINS = 8192
#: Rows of data files without index that are kept, so that they need not be scanned again: 20 bytes each.
_MAX_KEPT_ROWS = 500_000
#: Rows of an index per piece.
_PIECE = 1 << 16


class TimedRows(NamedTuple):
    """Consecutive messages of one file."""

    rows: MessageRecords  #: valid until the next ones are requested
    again: Callable[[], MessageRecords]  #: reads them again; raises `StoreUnreadableError`


class TimelineSource(Protocol):
    """The messages of a channel, and the sequences that are known to have none."""

    #: sequences with a damaged record, and those without any byte; None before a scan
    damaged: Ranges
    missing: Ranges | None

    def files(self) -> Iterable[Iterable[TimedRows]]:
        """Reads file by file; reading one may raise `StoreUnreadableError`."""


@dataclass
class _TimelineRun:
    """Consecutive messages of one file.

    `highest` is the highest sequence before it and `time` the time of the message before it; both are 0 for the first
    piece.
    """

    again: Callable[[], MessageRecords]
    count: int
    earliest: int
    latest: int
    first_seq: int
    last_seq: int
    highest: int
    time: int


class Timeline:
    """The times of a channel's messages, from `read_timeline`.

    Attributes:
        count: Messages, including damaged ones that an index still names.
        bytes: Bytes of their records' payloads.
        earliest: The earliest time of all, in nanoseconds since 1970; 0 if there is no message.
        latest: The latest time of all.
        disorder: Messages with an earlier time than the one before them.
        first: The earliest time that is no stray.
        last: The latest time that is no stray.
    """

    def __init__(self, source: TimelineSource) -> None:
        self.count = self.bytes = self.earliest = self.latest = self.disorder = 0
        self.first = self.last = 0
        #: The messages with usual times, in fine bins; without bins if there is no message.
        self.whole = Histogram(0, 1, 0)
        self.problems: list[str] = []  #: files that could not be read, with the reason
        self._source = source
        self._pieces: list[_TimelineRun] = []
        self._samples = Samples()
        self._typical_range = 0, 0
        self._previous_time = 0
        self._known = source.missing is not None
        self._damaged, self._missing = source.damaged, source.missing or Ranges()
        self._damaged_counter, self._missing_counter = Counter(self._damaged), Counter(self._missing)

    @property
    def strays(self) -> int:
        """Messages whose times are far outside: they are damaged, or a clock was wrong."""
        return self.whole.strays

    @property
    def damaged(self) -> int:
        """Sequences with a damaged record, as far as a scan has shown."""
        return self._damaged.count()

    @property
    def missing(self) -> int | None:
        """Sequences without any byte; None before a scan."""
        return self._missing.count() if self._known else None

    def detail(self, start: int, stop: int, width: int, progress: Progress | None = None) -> Histogram:
        """Counts the messages from `start` to `stop` (exclusive), in bins of `width`; all in nanoseconds.

        `start` is a multiple of the width. `progress` is called with numbers of messages. Raises
        `StoreUnreadableError` if a file has disappeared since the timeline was read.
        """
        result = Histogram(start, width, max(-(-(stop - start) // width), 1))
        for piece in self._pieces:
            near = piece.earliest < result.stop and piece.latest >= start
            across = piece.highest and min(piece.time, piece.earliest) < result.stop and piece.latest >= start
            if near or across:
                self._count(result, piece, piece.again())
            else:
                result.strays += piece.count
            if progress:
                progress(piece.count)
        self._count_ends(result)
        return result

    def time_of(self, sequence: int) -> int | None:
        """Returns the time of a message, or of the one before it if it is missing; None if there is neither.

        Raises `StoreUnreadableError` if a file has disappeared since the timeline was read.
        """
        found: tuple[int, int] | None = None
        for piece in self._pieces:
            if piece.first_seq > sequence or (found and found[0] >= piece.last_seq):
                continue
            rows = piece.again()
            before = np.flatnonzero(rows.sequence <= np.uint64(sequence))
            if not len(before):
                continue
            best = before[int(np.argmax(rows.sequence[before]))]
            if found is None or int(rows.sequence[best]) > found[0]:
                found = int(rows.sequence[best]), int(rows.timestamp[best])
        return found[1] if found else None

    def read(self, progress: Progress | None = None) -> None:
        """Reads the times of all messages. Unreadable files go to `problems`."""
        for file in self._source.files():
            try:
                for rows, again in file:
                    self._add(self._piece(rows, again), rows)
                    if progress:
                        progress(len(rows))
            except StoreUnreadableError as error:
                self.problems.append(error.message)
        if not self.count:
            return
        self._typical_range = self._samples.usual() or (self.earliest, self.latest)
        low, high = max(self._typical_range[0], self.earliest), min(self._typical_range[1], self.latest)
        self.whole = self._binned(low, high, progress)
        if self.whole.times and self.whole.times != (low, high):
            # The range was wide enough for all possible times; now it is cut to the actual ones.
            low, high = self.whole.times
            self.whole = self._binned(low, high, progress)
        self.first, self.last = low, high

    def _binned(self, low: int, high: int, progress: Progress | None) -> Histogram:
        width = bucket_width(high - low, BINS)
        return self.detail(low // width * width, high + 1, width, progress)

    def _piece(self, rows: MessageRecords, again: Callable[[], MessageRecords]) -> _TimelineRun:
        last = self._pieces[-1] if self._pieces else None
        return _TimelineRun(
            again,
            len(rows),
            int(rows.timestamp.min()),
            int(rows.timestamp.max()),
            int(rows.sequence.min()),
            int(rows.sequence.max()),
            max(last.highest, last.last_seq) if last else 0,
            self._previous_time,
        )

    def _add(self, piece: _TimelineRun, rows: MessageRecords) -> None:
        times = rows.timestamp
        self.earliest = min(self.earliest, piece.earliest) if self.count else piece.earliest
        self.latest = max(self.latest, piece.latest) if self.count else piece.latest
        self.disorder += int((times[1:] < times[:-1]).sum())
        self.disorder += int(bool(self.count) and int(times[0]) < self._previous_time)
        self.count += piece.count
        self.bytes += int(rows.size.sum(dtype=np.int64))
        self._samples.add(times)
        self._previous_time = int(times[-1])
        self._pieces.append(piece)

    def _count(self, result: Histogram, piece: _TimelineRun, rows: MessageRecords) -> None:
        if not len(rows):
            return
        self._count_holes(result, piece, rows)
        if self._damaged:
            bad = self._damaged.select(rows.sequence)
            if bad.any():
                result.add_damaged(rows.timestamp[bad])
                rows = rows.pick(~bad)
        result.add(rows.sequence, rows.timestamp, rows.size)

    def _count_holes(self, result: Histogram, piece: _TimelineRun, rows: MessageRecords) -> None:
        """Finds missing sequences: a sequence higher by more than one than all before it follows a hole."""
        sequence = rows.sequence
        highest = np.maximum.accumulate(np.concatenate((np.array([piece.highest], np.uint64), sequence)))[:-1]
        behind = np.flatnonzero((sequence > highest) & (sequence - highest > np.uint64(1)) & (highest > 0))
        if not len(behind):
            return
        first, last = highest[behind] + np.uint64(1), sequence[behind] - np.uint64(1)
        times = np.concatenate((np.array([piece.time], np.int64), rows.timestamp))
        before, after = times[behind], times[behind + 1]
        damaged = self._damaged_counter.count(first, last)
        missing = self._missing_counter.count(first, last) if self._known else (last - first).astype(np.int64) + 1
        known = (damaged > 0) | (missing > 0)
        # A time far outside says nothing about the place of the hole; then its other end does.
        low, high = self._typical_range
        before = np.where((before < low) | (before > high), after, before)
        after = np.where((after < low) | (after > high), before, after)
        result.add_holes(before[known], after[known], missing[known], damaged[known])

    def _count_ends(self, result: Histogram) -> None:
        """Counts damaged and missing sequences before the first message and after the last one, at these ends."""
        if not self._known or not self._pieces:
            return
        lowest = min(piece.first_seq for piece in self._pieces)
        highest = max(piece.last_seq for piece in self._pieces)
        ends = ((0, lowest - 1, self.first or self.earliest), (highest + 1, 2**64 - 1, self._previous_time))
        for first, last, time in ends:
            if first > last:
                continue
            span = np.array([first], np.uint64), np.array([last], np.uint64)
            damaged, missing = self._damaged_counter.count(*span), self._missing_counter.count(*span)
            if damaged[0] or missing[0]:
                at = np.array([time], np.int64)
                result.add_holes(at, at, missing, damaged)


class SliceTimes:
    """The messages of a channel's slices, by their indexes if these can be trusted.

    The rows of data files without index are kept, up to a number.
    """

    def __init__(self, files: ChannelFiles, crc: Crc, survey: ChannelSurvey | None) -> None:
        self.damaged = survey.damaged if survey else Ranges()
        self.missing = survey.missing if survey else None
        self._files = files
        self._crc = crc
        self._kept = 0
        # A scan shows more about an index than its last record.
        self._distrusted = (
            {
                each.files.number
                for each in survey.slices
                if each.index.mismatch_count or each.index.orphan_count or each.index.displaced_count
            }
            if survey
            else set()
        )

    def files(self) -> Iterator[Iterator[TimedRows]]:
        return (self._read(files, files.data) for files in self._files.slices if files.data is not None)

    def _read(self, files: SliceFiles, data: Path) -> Iterator[TimedRows]:
        trusted = files.number not in self._distrusted
        with SliceFile.open(files, self._files.raw_name, self._crc, by_index=trusted) as opened:
            if opened.index is not None and not opened.problem:
                yield from self._from_index(files, opened.index)
                return
            for part in opened.records():
                if isinstance(part, DamagedRange):
                    continue
                if self._kept < _MAX_KEPT_ROWS:
                    kept = part.copied()
                    self._kept += len(kept)
                    yield TimedRows(kept, lambda kept=kept: kept)  # type: ignore[misc]
                else:
                    again = partial(self._scanned, data, int(part.offset[0]), part.end)
                    yield TimedRows(part, again)

    def _from_index(self, files: SliceFiles, index: SliceIndex) -> Iterator[TimedRows]:
        assert files.index is not None
        at = 0
        for part in index.parts():
            for low in range(0, len(part), _PIECE):
                # Copies: mapped memory is released, and sums of strided fields cost more.
                rows = part.part(low, low + _PIECE).copied()
                yield TimedRows(rows, partial(_indexed, files.index, at, at + len(rows)))
                at += len(rows)

    def _scanned(self, data: Path, begin: int, end: int) -> MessageRecords:
        with mapped(data) as buffer:
            scan = SliceFile(buffer, self._files.raw_name, self._crc).records(begin, end)
            return MessageRecords.joined(part for part in scan if not isinstance(part, DamagedRange))


def _indexed(index: Path, begin: int, end: int) -> MessageRecords:
    with mapped(index) as buffer:
        return SliceIndex.whole(buffer).rows(begin, end).copied()


def read_timeline(
    files: ChannelFiles,
    crc: Crc,
    *,
    survey: ChannelSurvey | None = None,
    progress: Progress | None = None,
) -> Timeline:
    """Reads the times of a channel's messages.

    A `survey` shows damaged messages and wrong indexes. `progress` is called with numbers of messages: once for
    their times, once for their count.
    """
    timeline = Timeline(SliceTimes(files, crc, survey))
    timeline.read(progress)
    return timeline
