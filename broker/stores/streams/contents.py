"""The table of a stream's messages with one row per sequence, and the counts of each subject.

Sequences are consecutive, so rows need no keys: a *segment* is a run of rows, with columns for time, subject, size
and place. A row with size 0 is a removed message, or a sequence that had none. Searches read whole columns at a
time, so that a consumer of a rare subject does not delay others.

Patterns find their subjects in a tree, which is built when a stream is first searched for a pattern. A search that
may meet many subjects is a generator, and can be interrupted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.stores.streams.subject_filter import SubjectFilter, SubjectRows
from stantools.nats.interest import Interest, finished
from stantools.nats.subjects import is_literal
from stantools.nats.subjecttree import STEP, PatternTree, SubjectTree

#: place of a row that never had a record
ABSENT: Final = 0xFFFFFFFF
#: rows that a search reads in one step
_CHUNK: Final = 8192
#: filters to keep for patterns of past searches
_MOST_ASKED: Final = 16
#: new subjects that the tree may lack until the next search for a pattern
_MOST_UNINDEXED: Final = 4096
#: rows that a search tests singly first: usually the next message matches
_FEW: Final = 4
#: the same after the first message was removed: with many recurring subjects, few of the oldest messages remain
_NEAR: Final = 64


class RowSegment:
    """A run of rows.

    Attributes:
        first: Sequence of the first row.
        block: Number of the block with the records.
        live: Number of messages.
        bytes: Sum of their sizes.
    """

    __slots__ = ("block", "bytes", "first", "live", "places", "records", "sizes", "subjects", "times")

    def __init__(self, first: int, block: int = 0) -> None:
        self.first, self.block = first, block
        self.live = self.bytes = 0
        self.times = array("q")  #: nanoseconds since 1970
        self.subjects = array("I")  #: numbers of subjects
        self.sizes = array("I")  #: bytes that count for the stream; 0 without a message
        self.places = array("I")  #: offsets in the block
        self.records: list[tuple[bytes, bytes] | None] = []  #: header block and payload, for a store in memory

    @property
    def end(self) -> int:
        """The sequence after the last row."""
        return self.first + len(self.sizes)

    def last_placed(self) -> int:
        """Returns the last row whose record is in the block, which skipped sequences are not; -1 if there is none."""
        last = len(self.places) - 1
        if last < 0 or self.places[last] != ABSENT:
            return last
        return int(np.flatnonzero(np.frombuffer(self.places, np.uint32) != ABSENT).max(initial=-1))


_block_of: Final = attrgetter("block")


class Contents:
    """The messages of a stream, without their payloads.

    Attributes:
        messages: Number of messages.
        bytes: Sum of their sizes.
        first: Sequence of the first message; without messages, the one after `last`.
        last: The last used sequence, 0 for none.
        first_time: Time of the first message, 0 for none.
        last_time: Time of `last`, 0 for none.
    """

    def __init__(self, next_sequence: int = 1) -> None:
        self.segments: list[RowSegment] = []  #: by sequence, and thereby by block
        self._firsts: list[int] = []
        self.subjects: dict[bytes, SubjectRows] = {}  #: subjects that have messages
        self._numbered: list[SubjectRows | None] = []
        self._free: list[int] = []
        #: the same by their tokens, from the first search for a pattern on; and the subjects still to add
        self._tree: SubjectTree[SubjectRows] | None = None
        self._unindexed: list[SubjectRows] = []
        self._filters: dict[tuple[bytes, ...], SubjectFilter] = {}
        #: the patterns of all filters, for new subjects
        self._filtered: Interest[SubjectFilter] = Interest()
        self._scratch = bytearray()  # a mask for few subjects, all 0 between searches
        self._asked: dict[bytes, SubjectFilter] = {}
        self.messages = self.bytes = 0
        self.first, self.last = next_sequence, next_sequence - 1
        self.first_time = self.last_time = 0

    # Rows

    def begin(self, first: int, block: int = 0) -> RowSegment:
        """Adds an empty segment at the end."""
        segment = RowSegment(first, block)
        self.segments.append(segment)
        self._firsts.append(first)
        return segment

    def add(self, sequence: int, time: int, subject: bytes, size: int, place: int) -> None:
        """Adds a message to the last segment, as its next row."""
        entry = self.subjects.get(subject) or self.named(subject)
        if not entry.count:
            entry.first = sequence
        entry.count += 1
        entry.last = sequence
        segment = self.segments[-1]
        if segment.first + len(segment.sizes) != sequence:
            segment = self.begin(sequence, segment.block)
        segment.times.append(time)
        segment.subjects.append(entry.number)
        segment.sizes.append(size)
        segment.places.append(place)
        segment.live += 1
        segment.bytes += size
        if not self.messages:
            self.first = sequence
            self.first_time = time
        self.messages += 1
        self.bytes += size
        self.last = sequence
        self.last_time = time

    def skip(self, sequence: int, time: int) -> None:
        """Uses the sequences up to this one without messages. Unless they are many, they become rows."""
        count = sequence - self.last
        if count <= 0:
            return
        if count <= _CHUNK and self.segments and self.segments[-1].end == self.last + 1:
            segment = self.segments[-1]
            # Searches by time also read the last row.
            segment.times.extend(array("q", (time,)) * count)
            for column in (segment.subjects, segment.sizes):
                column.frombytes(bytes(count * column.itemsize))
            segment.places.frombytes(b"\xff" * (count * segment.places.itemsize))
            if segment.records:
                segment.records.extend([None] * count)
        self.last, self.last_time = sequence, time
        if not self.messages:
            self.first = sequence + 1

    def locate(self, sequence: int) -> tuple[RowSegment, int] | None:
        """Returns the row of a message, None if there is no such message."""
        if not self.segments:
            return None
        segment = self.segments[-1]
        row = sequence - segment.first
        if row < 0:
            index = bisect_right(self._firsts, sequence) - 1
            if index < 0:
                return None
            segment = self.segments[index]
            row = sequence - segment.first
        sizes = segment.sizes
        return (segment, row) if row < len(sizes) and sizes[row] else None

    def subject_at(self, segment: RowSegment, row: int) -> bytes:
        entry = self._numbered[segment.subjects[row]]
        assert entry is not None
        return entry.name

    def discard(self, segment: RowSegment, row: int) -> None:
        """Removes the message of a row."""
        sequence, size = segment.first + row, segment.sizes[row]
        entry = self._numbered[segment.subjects[row]]
        assert entry is not None
        segment.sizes[row] = 0
        segment.live -= 1
        segment.bytes -= size
        if segment.records:
            segment.records[row] = None
        self.messages -= 1
        self.bytes -= size
        entry.count -= 1
        if not entry.count:
            self._forget(entry)
        elif entry.count == 1 and entry.last != sequence:
            entry.first = entry.last
        elif entry.last == sequence:
            entry.last = self._before(sequence, entry)
        if sequence == self.first:
            sizes = segment.sizes
            # Usually the next message is near.
            for following in range(row + 1, min(row + _NEAR, len(sizes))):
                if sizes[following]:
                    self.first = segment.first + following
                    self.first_time = segment.times[following]
                    return
            self.advance()

    def drop_below(self, sequence: int) -> None:
        """Removes all messages below a sequence."""
        for segment in self.segments:
            if segment.first >= sequence:
                break
            rows = min(sequence - segment.first, len(segment.sizes))
            if segment.live:
                self._drop(segment, slice(0, rows))
        self.advance()

    def drop_rows(self, gone: Iterable[tuple[RowSegment, NDArray[np.int64]]]) -> None:
        """Removes the messages of rows."""
        for segment, rows in gone:
            self._drop(segment, rows)
        self.advance()

    def _drop(self, segment: RowSegment, rows: slice | NDArray[np.int64]) -> None:
        sizes = np.frombuffer(segment.sizes, np.uint32)
        part = sizes[rows]
        live = part > 0
        gone = int(live.sum())
        if not gone:
            return
        size = int(part.sum())
        self.bytes -= size
        segment.bytes -= size
        self.messages -= gone
        segment.live -= gone
        numbers, counts = np.unique(np.frombuffer(segment.subjects, np.uint32)[rows][live], return_counts=True)
        sizes[rows] = 0
        if segment.records:
            for row in range(*rows.indices(len(sizes))) if isinstance(rows, slice) else rows.tolist():
                segment.records[row] = None
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            entry = self._numbered[number]
            assert entry is not None
            entry.count -= count
            if not entry.count:
                self._forget(entry)
            elif self.locate(entry.last) is None:
                entry.last = self._before(entry.last, entry)

    def segments_of_block(self, number: int) -> list[RowSegment]:
        begin = bisect_left(self.segments, number, key=_block_of)
        return self.segments[begin : bisect_right(self.segments, number, lo=begin, key=_block_of)]

    def segments_within(self, first: int, last: int) -> list[RowSegment]:
        """Returns the segments that may have sequences from `first` to `last`."""
        return self.segments[max(bisect_left(self._firsts, first) - 1, 0) : bisect_right(self._firsts, last)]

    def first_after_block(self, number: int) -> int:
        """Returns the first sequence in the blocks after this one; 0 if there are none."""
        following = bisect_right(self.segments, number, key=_block_of)
        return self._firsts[following] if following < len(self._firsts) else 0

    def remove_segment(self, segment: RowSegment) -> None:
        """Removes a segment without messages."""
        index = bisect_right(self._firsts, segment.first) - 1
        while self.segments[index] is not segment:
            index -= 1
        del self.segments[index], self._firsts[index]

    def restart(self, next_sequence: int) -> None:
        """Removes everything, and sets the next sequence."""
        self.segments.clear()
        self._firsts.clear()
        self.subjects, self._numbered, self._free = {}, [], []
        self._tree, self._unindexed = None, []
        for each in self._filtered:
            each.forget_all()
        self.messages = self.bytes = self.first_time = 0
        self.first, self.last = next_sequence, next_sequence - 1

    def advance(self) -> None:
        """Finds the first message after the previous first one was removed."""
        if not self.messages:
            self.first, self.first_time = self.last + 1, 0
            return
        for sequence in self.matching(None, self.first, 1):
            found = self.locate(sequence)
            assert found is not None
            self.first, self.first_time = sequence, found[0].times[found[1]]

    # Subjects

    def named(self, name: bytes) -> SubjectRows:
        """Returns a new entry for a subject without messages."""
        number = self._free.pop() if self._free else len(self._numbered)
        entry = self.subjects[name] = SubjectRows(name, number)
        if number == len(self._numbered):
            self._numbered.append(entry)
        else:
            self._numbered[number] = entry
        if self._tree is not None:
            self._unindexed.append(entry)
            if len(self._unindexed) > max(_MOST_UNINDEXED, len(self.subjects)):
                # No pattern was searched for a long time.
                self._tree, self._unindexed = None, []
        if self._filtered.count:
            for each in self._filtered.match(name).plain:
                each.learn(entry)
        return entry

    def _forget(self, entry: SubjectRows) -> None:
        entry.count = 0
        del self.subjects[entry.name]
        if self._tree is not None:
            self._tree.discard(entry)
        if self._filtered.count:
            for each in self._filtered.match(entry.name).plain:
                each.forget(entry.number)
        self._numbered[entry.number] = None
        self._free.append(entry.number)

    def last_before(self, sequence: int, entry: SubjectRows) -> int:
        """Returns the last sequence of a subject before another one; 0 if there is none."""
        return entry.last if entry.last < sequence else self._before(sequence, entry)

    def _before(self, sequence: int, wanted: SubjectRows | SubjectFilter | None) -> int:
        """Returns the last matching sequence before another one; 0 if there is none."""
        if isinstance(wanted, SubjectFilter) and wanted.few is not None:
            within = [entry for entry in wanted.few.values() if entry.first < sequence]
            if all(entry.last < sequence for entry in within):
                return max((entry.last for entry in within), default=0)
        index = bisect_right(self._firsts, sequence) - 1
        for segment in reversed(self.segments[: index + 1]):
            rows = min(sequence - segment.first, len(segment.sizes))
            while rows > 0:
                begin = max(0, rows - _CHUNK)
                found = self._rows(segment, wanted, begin, rows)
                if len(found):
                    return segment.first + begin + int(found[-1])
                rows = begin
        return 0

    def first_of(self, entry: SubjectRows) -> int:
        """Returns the sequence of the first message of a subject."""
        if entry.count == 1:
            entry.first = entry.last
        elif self.locate(entry.first) is None:
            entry.first = self.matching(entry, max(entry.first, self.first), 1)[0]
        return entry.first

    def select(self, patterns: Sequence[bytes]) -> Iterator[SubjectRows | None]:
        """Iterates over the subjects that match one of some patterns, or over all; yields None where others may run.

        A subject that is added or removed meanwhile may be missing or included.
        """
        steps = 0
        if patterns and all(map(is_literal, patterns)):
            for name in dict.fromkeys(patterns):
                if name in self.subjects:
                    yield self.subjects[name]
                if (steps := steps + 1) % STEP == 0:
                    yield None
            return
        if not patterns or b">" in patterns:
            for entry in list(self.subjects.values()):
                if self.subjects.get(entry.name) is entry:
                    yield entry
                if (steps := steps + 1) % STEP == 0:
                    yield None
            return
        wanted: PatternTree[bytes] = PatternTree()
        for pattern in patterns:
            wanted.add(pattern, pattern)
            if (steps := steps + 1) % STEP == 0:
                yield None
        for _ in self._index():
            yield None
        tree = self._tree
        assert tree is not None
        for found in tree.select(wanted):
            if found is None or self.subjects.get(found.name) is found:
                yield found

    def _index(self) -> Iterator[None]:
        """Builds or completes the tree of subjects."""
        # If all messages are removed meanwhile, the tree is removed as well, and is built again.
        while self._tree is None or self._unindexed:
            if self._tree is None:
                self._tree, self._unindexed = SubjectTree(), list(self.subjects.values())
            tree = self._tree
            for entry in self._unindexed[-STEP:]:
                if self.subjects.get(entry.name) is entry:
                    tree.add(entry)
            del self._unindexed[-STEP:]
            yield

    def selected(self, patterns: Sequence[bytes]) -> Iterator[SubjectRows]:
        """Iterates over the matching subjects without interruptions."""
        return (entry for entry in self.select(patterns) if entry is not None)

    def last_of(self, pattern: bytes) -> int:
        """Returns the last sequence of a subject or pattern; 0 if there is none."""
        return finished(self.find_last(pattern))

    def find_last(self, pattern: bytes) -> Generator[None, None, int]:
        """Finds `last_of` in steps."""
        if is_literal(pattern):
            entry = self.subjects.get(pattern)
            return entry.last if entry is not None else 0
        if pattern == b">":
            return self._before(self.last + 1, None)
        wanted = self._asked.get(pattern)
        if wanted is None:
            wanted = yield from self.make_filter((pattern,))
            assert wanted is not None
            while len(self._asked) >= _MOST_ASKED:
                self.release(self._asked.pop(next(iter(self._asked))))
            self.release(self._asked.pop(pattern, None))
            self._asked[pattern] = wanted
        return self._before(self.last + 1, wanted)

    def last_match(self, wanted: SubjectFilter | None) -> int:
        """Returns the sequence of the last matching message; 0 if there is none."""
        return self._before(self.last + 1, wanted)

    def find_next(self, pattern: bytes, start: int) -> Generator[None, None, int]:
        """Finds the first sequence of a subject or pattern from `start` on; 0 if there is none."""
        wanted = yield from self.make_filter((pattern,))
        found = self.matching(wanted, start, 1)
        self.release(wanted)
        return found[0] if found else 0

    def filter(self, patterns: Sequence[bytes]) -> SubjectFilter | None:
        """Returns a filter of patterns, which the caller must `release`; None if every subject matches."""
        return finished(self.make_filter(patterns))

    def make_filter(self, patterns: Sequence[bytes]) -> Generator[None, None, SubjectFilter | None]:
        """Makes a `filter` in steps."""
        key = tuple(patterns)
        if not key or b">" in key:
            return None
        found = self._filters.get(key)
        if found is None:
            made = SubjectFilter(key)
            # From now on it learns new subjects; others can use it once it knows the old ones.
            for pattern in key:
                self._filtered.insert(pattern, made)
            try:
                for entry in self.select(key):
                    if entry is None:
                        yield
                    else:
                        made.learn(entry)
                found = self._filters.setdefault(key, made)
            finally:
                if found is not made:
                    self._drop_filter(made)
        found.users += 1
        return found

    def release(self, used: SubjectFilter | None) -> None:
        if used is not None:
            used.users -= 1
            if not used.users:
                del self._filters[used.patterns]
                self._drop_filter(used)

    def _drop_filter(self, used: SubjectFilter) -> None:
        for pattern in used.patterns:
            self._filtered.remove(pattern, used)

    # Searches

    def matching(self, wanted: SubjectRows | SubjectFilter | None, start: int, most: int) -> list[int]:
        """Returns up to `most` sequences of matching messages, from `start` on.

        It may return fewer than exist, but at least one if any exists.
        """
        start, stop = max(start, self.first), self.last + 1
        if isinstance(wanted, SubjectFilter) and wanted.few is not None:
            within = [entry for entry in wanted.few.values() if entry.last >= start]
            if all(entry.count == 1 for entry in within):
                return sorted(entry.last for entry in within)[:most]
            start = max(start, min(entry.first for entry in within))
            stop = max(entry.last for entry in within) + 1
        for sequence in range(start, min(start + _FEW, stop)) if most == 1 and wanted is None else ():
            if self.locate(sequence) is not None:
                return [sequence]
        for segment in self.segments[max(bisect_right(self._firsts, start) - 1, 0) :]:
            if segment.first >= stop:
                break
            if not segment.live:
                continue
            rows = min(stop - segment.first, len(segment.sizes))
            for begin in range(max(start - segment.first, 0), rows, _CHUNK):
                found_rows = self._rows(segment, wanted, begin, min(begin + _CHUNK, rows))
                if len(found_rows):
                    found_here: list[int] = (found_rows[:most] + (segment.first + begin)).tolist()
                    return found_here
        return []

    def count(self, wanted: SubjectFilter | None, start: int) -> int:
        """Returns the number of matching messages from `start` on."""
        if start <= self.first and (wanted is None or not self.messages):
            return self.messages
        stop = self.last + 1
        if wanted is not None and wanted.few is not None:
            within = [entry for entry in wanted.few.values() if entry.last >= start]
            if all(entry.count == 1 or entry.first >= start for entry in within) or start <= self.first:
                return sum(entry.count for entry in within)
            stop = max(entry.last for entry in within) + 1
        elif wanted is not None and start <= self.first and len(self.subjects) < self.messages >> 6:
            return sum(entry.count for entry in self.subjects.values() if wanted.has(entry.number))
        total = 0
        for segment in self.segments[max(bisect_right(self._firsts, start) - 1, 0) :]:
            if segment.first >= stop:
                break
            rows = min(stop - segment.first, len(segment.sizes))
            total += len(self._rows(segment, wanted, max(start - segment.first, 0), rows))
        return total

    def rows(self, wanted: SubjectFilter | None, below: int = 0) -> Iterator[tuple[RowSegment, NDArray[np.int64]]]:
        """Iterates over the segments with their matching rows, for sequences below one (0: all)."""
        first = 0
        if wanted is not None and wanted.few is not None:
            first = min((entry.first for entry in wanted.few.values()), default=self.last + 1)
        for segment in list(self.segments):
            end = min(below - segment.first, len(segment.sizes)) if below else len(segment.sizes)
            if end > 0 and segment.live and segment.end > first:
                yield segment, self._rows(segment, wanted, 0, end)

    def first_since(self, time: int) -> int:
        """Returns the sequence of the first message that is not older than a time, or the one after the last."""
        for segment in self.segments:
            if not segment.live or segment.times[-1] < time:
                continue
            times, sizes = np.frombuffer(segment.times, np.int64), np.frombuffer(segment.sizes, np.uint32)
            found = np.flatnonzero((times >= time) & (sizes > 0))
            if len(found):
                return segment.first + int(found[0])
        return self.last + 1

    def deleted(self, most: int) -> Iterator[list[int]]:
        """Iterates over up to `most` sequences without messages between the first and the last message."""
        expected = self.first
        for segment, rows in self.rows(None):
            if not len(rows):
                continue
            sequences = rows + segment.first
            if segment.first + rows[0] > expected:
                yield list(range(expected, min(int(sequences[0]), expected + most)))
                most -= int(sequences[0]) - expected
            for at in np.flatnonzero(np.diff(sequences) > 1).tolist():
                if most <= 0:
                    return
                begin, end = int(sequences[at]) + 1, int(sequences[at + 1])
                yield list(range(begin, min(end, begin + most)))
                most -= end - begin
            expected = int(sequences[-1]) + 1
        if most > 0:
            yield list(range(expected, min(self.last + 1, expected + most)))

    def _rows(
        self, segment: RowSegment, wanted: SubjectRows | SubjectFilter | None, begin: int, end: int
    ) -> NDArray[np.int64]:
        live = np.frombuffer(segment.sizes, np.uint32)[begin:end] > 0
        numbers = np.frombuffer(segment.subjects, np.uint32)[begin:end]
        if isinstance(wanted, SubjectRows):
            live &= numbers == wanted.number
        elif wanted is not None and wanted.few is not None:
            scratch = self._scratch
            if len(scratch) < len(self._numbered):
                scratch.extend(bytes(2 * len(self._numbered) - len(scratch)))
            for number in wanted.few:
                scratch[number] = 1
            live &= np.frombuffer(scratch, np.uint8)[numbers] > 0
            for number in wanted.few:
                scratch[number] = 0
        elif wanted is not None:
            wanted.reach(len(self._numbered))
            live &= np.frombuffer(wanted.mask, np.uint8)[numbers] > 0
        return np.flatnonzero(live)
