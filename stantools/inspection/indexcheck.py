"""Comparison of a slice's index with its data, record by record, during the scan of the data.

Facts: filestore.md sections 2.3 and 7.6 and weaknesses W6 to W9. The usual case, an index that names exactly the
records of the data file in their order, costs four comparisons of arrays per batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from stantools.format.columns import MessageColumns
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, ScanStop
from stantools.lazy_numpy import np
from stantools.store.indexes import INDEX_ROWS, IndexOrder, SliceIndex
from stantools.store.mapping import Buffer, MappedWindow
from stantools.store.ranges import Ranges

if TYPE_CHECKING:
    import numpy.typing as npt

_FIELDS = ("offset", "sequence", "timestamp", "size")
#: Number of single disagreements that are kept; the counts are always complete.
_MAX_MISMATCHES = 100


@dataclass(frozen=True)
class IndexMismatch:
    """An index record that disagrees with the data record at its offset."""

    position: int  #: number of the index record, from 0
    fields: tuple[str, ...]  #: names of the fields that differ
    index: tuple[int, ...]  #: values in the index, in the order of `fields`
    data: tuple[int, ...]  #: values in the data file

    @property
    def file_offset(self) -> int:
        """Offset of the record in the index file."""
        return FILE_HEADER_SIZE + self.position * INDEX_RECORD_SIZE


@dataclass
class IndexReport:
    """The result of a comparison of an index with its data file."""

    present: bool = False  #: the file exists
    size: int = 0  #: length in bytes
    header_error: str | None = None  #: error in its file version
    count: int = 0  #: good records from the start
    stop: ScanStop = ScanStop.END  #: reason why reading them ended
    orphans: Ranges = field(default_factory=Ranges)  #: sequences of good data records that no index record points to
    orphan_count: int = 0  #: number of such data records
    first_orphan: int = -1  #: offset of the first of them in the data file, -1 if none
    #: Sequences in index records whose offset has no good data record.
    dangling: Ranges = field(default_factory=Ranges)
    dangling_count: int = 0  #: number of such index records
    first_dangling: int = -1  #: number of the first of them, -1 if none
    #: Index records that point to a record with other values (the first hundred).
    mismatches: list[IndexMismatch] = field(default_factory=list)
    mismatch_count: int = 0  #: number of all of them
    #: Sequences whose index record is right but in the place of another.
    displaced: Ranges = field(default_factory=Ranges)
    displaced_count: int = 0  #: number of such index records
    first_displaced: int = -1  #: number of the first of them, -1 if none

    @property
    def end(self) -> int:
        """End of the good records in the index file."""
        return min(self.size, FILE_HEADER_SIZE + self.count * INDEX_RECORD_SIZE)

    @property
    def usable(self) -> bool:
        """The index holds records that the server would use."""
        return self.present and self.header_error is None and self.count > 0

    def agrees(self) -> bool:
        """Returns whether the index names exactly the good records of the data file."""
        return (
            self.present
            and self.header_error is None
            and self.stop == ScanStop.END
            and not (self.orphan_count or self.dangling_count or self.mismatch_count or self.displaced_count)
        )


class IndexCheck:
    """Compares batches of good data records with the index records, and fills in `report`.

    `entries` is the mapped index file of `index`; its pages are released after the comparison.
    """

    def __init__(self, report: IndexReport, index: SliceIndex, entries: Buffer) -> None:
        self.index = index
        self._report = report
        self._entries = entries
        self._window = MappedWindow(entries)
        self._next = 0
        self._order = IndexOrder(index)
        self._matched_rows: npt.NDArray[np.bool_] | None = None
        self._orphans: list[Ranges] = []
        # Numbers of the index records that agree with their message, in the order of the messages.
        self._matched: list[range | npt.NDArray[np.int64]] = []

    def agrees(self, rows: int) -> None:
        """Skips the next `rows` index records, which were compared elsewhere."""
        end = self._next + rows
        if self._matched_rows is not None:
            self._matched_rows[self._next : end] = True
        self._matched.append(range(self._next, end))
        self._next = end

    def add(self, columns: MessageColumns) -> None:
        rows = len(columns.offset)
        end = self._next + rows
        self._window.reach(FILE_HEADER_SIZE + self._next * INDEX_RECORD_SIZE)
        if end <= len(self.index):
            window = self.index.rows(self._next, end)
            if all(np.array_equal(getattr(window, name), getattr(columns, name)) for name in _FIELDS):
                self.agrees(rows)
                return
        self._compare(columns)

    def _compare(self, columns: MessageColumns) -> None:
        if self._matched_rows is None:
            self._matched_rows = np.zeros(len(self.index), dtype=bool)
            # Up to here every batch agreed, so the records before are all seen.
            self._matched_rows[: self._next] = True
        seen = self._matched_rows
        matched = self._order.match(columns.offset)
        known = matched >= 0
        orphan = ~known
        if orphan.any():
            self._orphans.append(Ranges.from_sequences(columns.sequence[orphan]))
            self._report.orphan_count += int(orphan.sum())
            if self._report.first_orphan < 0:
                self._report.first_orphan = int(columns.offset[orphan][0])
        rows = np.flatnonzero(known)
        positions = matched[rows]
        seen[positions] = True
        differs = np.zeros(len(rows), dtype=bool)
        named = self.index.rows()
        for name in _FIELDS:
            differs |= getattr(named, name)[positions] != getattr(columns, name)[rows]
        self._report.mismatch_count += int(differs.sum())
        for row, position in zip(rows[differs].tolist(), positions[differs].tolist(), strict=True):
            if len(self._report.mismatches) >= _MAX_MISMATCHES:
                break
            self._report.mismatches.append(self._mismatch(columns, row, position))
        self._matched.append(positions[~differs])
        if len(positions):
            self._next = int(positions[-1]) + 1

    def _find_displaced(self) -> None:
        """Finds index records that agree with their message, but are not in the order of the messages."""
        ends = [(int(part[0]), int(part[-1])) for part in self._matched if len(part)]
        inside = any(bool((part[1:] < part[:-1]).any()) for part in self._matched if not isinstance(part, range))
        if not inside and all(one[1] < two[0] for one, two in pairwise(ends)):
            return
        positions = np.concatenate([np.asarray(part, np.int64) for part in self._matched])
        displaced = np.sort(positions[positions != np.sort(positions)])
        self._report.displaced = Ranges.from_sequences(self.index.rows().sequence[displaced])
        self._report.displaced_count = len(displaced)
        self._report.first_displaced = int(displaced[0])

    def _mismatch(self, columns: MessageColumns, row: int, position: int) -> IndexMismatch:
        record = self.index[position]
        names = tuple(name for name in _FIELDS if getattr(record, name) != getattr(columns, name)[row])
        return IndexMismatch(
            position,
            names,
            tuple(getattr(record, name) for name in names),
            tuple(int(getattr(columns, name)[row]) for name in names),
        )

    def finish(self) -> IndexReport:
        """Returns the report, including the index records without a data record."""
        report, dangling, window = self._report, [], MappedWindow(self._entries)
        for first in range(self._next if self._matched_rows is None else 0, len(self.index), INDEX_ROWS):
            part = self.index.rows(first, first + INDEX_ROWS).sequence
            left = (
                np.arange(len(part))
                if self._matched_rows is None
                else np.flatnonzero(~self._matched_rows[first : first + INDEX_ROWS])
            )
            if not len(left):
                continue
            window.reach(FILE_HEADER_SIZE + first * INDEX_RECORD_SIZE)
            dangling.append(Ranges.from_sequences(part[left]))
            report.dangling_count += len(left)
            if report.first_dangling < 0:
                report.first_dangling = first + int(left[0])
        report.dangling = Ranges.union(dangling)
        report.orphans = Ranges.union(self._orphans)
        self._find_displaced()
        return report
