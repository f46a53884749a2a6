"""Scanning index files, and looking records up in them, for files of any size: only a window is in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stantools.format import kernels
from stantools.format.columns import MessageRecords
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE, ScanStop
from stantools.lazy_numpy import np
from stantools.store.mapping import WINDOW, Buffer, MappedWindow, descriptor_of

if TYPE_CHECKING:
    import numpy.typing as npt

#: index records per step
INDEX_ROWS = WINDOW // 2 // INDEX_RECORD_SIZE


class IndexScan(NamedTuple):
    rows: int  #: number of good records from its start
    stop: ScanStop  #: reason of the end (see `kernels.scan_index`)
    sizes: int  #: total payload size of the messages
    rises: bool  #: the sequences rise


def scan_index(buffer: Buffer, crc: Crc) -> IndexScan:
    """Scans the good records of a mapped index file from its start."""
    descriptor, end = descriptor_of(buffer), len(buffer)
    found = None if descriptor is None else kernels.read_index(descriptor, FILE_HEADER_SIZE, end, crc)
    # A file that was cut has zeros in the mapping; the end of the mapping reports it.
    return IndexScan(*(found or kernels.scan_index(buffer, FILE_HEADER_SIZE, end, crc)))


class IndexRecord(NamedTuple):
    sequence: int
    offset: int  #: offset of the message's record in the data file
    timestamp: int  #: nanoseconds since 1970
    size: int  #: bytes of the payload
    crc: int

    @property
    def end(self) -> int:
        return self.offset + RECORD_HEADER_SIZE + self.size

    def proven(self, crc: Crc) -> bool:
        """Returns whether the record matches its CRC."""
        return crc(INDEX_RECORD.pack(*self)[:-4]) == self.crc


class SliceIndex:
    """The records of an index file by row, without the file: mapped, or read in pieces.

    `source` is the mapped file; or a function that reads bytes at an offset, fewer where the file ends.
    """

    def __init__(self, source: Buffer | Callable[[int, int], bytes], count: int) -> None:
        if not callable(source) and not 0 <= count <= _whole_records(source):
            raise ValueError(f"{count} index records in {len(source)} bytes")
        self._source = source
        self._count = count

    @classmethod
    def whole(cls, buffer: Buffer) -> SliceIndex:
        """Returns all whole records of a mapped file, unchecked."""
        return cls(buffer, _whole_records(buffer))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> IndexRecord:
        """Reads a record; raises OSError if the file has become shorter."""
        content = self._content(row if row >= 0 else row + self._count, 1)
        if len(content) < INDEX_RECORD_SIZE:
            raise OSError(0, "the index has become shorter")
        return IndexRecord(*INDEX_RECORD.unpack(content))

    def rows(self, low: int = 0, high: int | None = None) -> MessageRecords:
        """Returns the records from `low` to `high`, the latter excluded: views of a mapped file; fewer if it ends."""
        end = self._count if high is None else min(high, self._count)
        return MessageRecords.of_index(self._content(low, max(end - low, 0)))

    def parts(self, start: int = 0) -> Iterator[MessageRecords]:
        """Iterates over the records from `start`, in parts of `INDEX_ROWS`, each valid until the next."""
        window = None if callable(self._source) else MappedWindow(self._source)
        for low in range(start, self._count, INDEX_ROWS):
            if window:
                window.reach(FILE_HEADER_SIZE + low * INDEX_RECORD_SIZE)
            yield self.rows(low, low + INDEX_ROWS)

    def good_rows(self, low: int, high: int, crc: Crc) -> int:
        """Counts the records from `low` to `high`, the latter excluded, up to the first with a wrong CRC."""
        content = self._content(low, high - low)
        return kernels.scan_index(content, 0, len(content), crc)[0]

    def first(self, name: str, value: int, low: int = 0) -> int:
        """Returns the row of the first record with at least `value` in a field that rises from record to record."""
        return bisect_left(range(self._count), value, low, key=lambda row: getattr(self[row], name))

    def _content(self, row: int, count: int) -> Buffer | bytes:
        at, size = FILE_HEADER_SIZE + row * INDEX_RECORD_SIZE, count * INDEX_RECORD_SIZE
        return self._source(at, size) if callable(self._source) else self._source[at : at + size]


def _whole_records(buffer: Buffer) -> int:
    return max(len(buffer) - FILE_HEADER_SIZE, 0) // INDEX_RECORD_SIZE


class IndexOrder:
    """The records of a mapped index in the order of their offsets; equal offsets keep the order of the file.

    The records are not read before the first query. An index with rising offsets is not copied; only one out of
    order is sorted. The records must be good ones.
    """

    def __init__(self, index: SliceIndex) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def place(self, offset: int) -> int:
        """Returns the place of the first record, in this order, with this offset or a higher one."""
        if self._sorted is None:
            return self._index.first("offset", offset)
        return int(np.searchsorted(self._sorted[1], offset))

    def __getitem__(self, place: int) -> IndexRecord:
        return self._index[place if self._sorted is None else int(self._sorted[0][place])]

    def match(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Finds the first record for each of many rising offsets.

        Returns the numbers of the records in the file; -1 for an offset without one.
        """
        if self._sorted is None:
            low, high = self.place(int(offsets[0])), self.place(int(offsets[-1]) + 1)
            order, named = None, self._index.rows(low, high).offset.copy()
        else:
            low, (order, named) = 0, self._sorted
        found = np.full(len(offsets), -1, np.int64)
        if len(named):
            at = np.searchsorted(named, offsets)
            at[at == len(named)] = 0
            known = named[at] == offsets
            found[known] = at[known] + low if order is None else order[at[known]]
        return found

    @cached_property
    def _sorted(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]] | None:
        """The numbers of the records by offset, and the offsets; None if they rise in the file."""
        if self._rises():
            return None
        offsets = self._index.rows().offset
        order = np.argsort(offsets, kind="stable")
        return order, offsets[order]

    def _rises(self) -> bool:
        last = None
        for part in self._index.parts():
            offsets = part.offset
            if bool((offsets[1:] <= offsets[:-1]).any()) or (last is not None and offsets[0] <= last):
                return False
            last = offsets[-1]
        return True
