"""Scanning index files, and looking records up in them, for files of any size: only a window is in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE, ScanStop
from stantools.lazy_numpy import np
from stantools.store.mapping import WINDOW, Buffer, MappedWindow, descriptor_of

if TYPE_CHECKING:
    import numpy.typing as npt

#: index records per step
INDEX_ROWS = WINDOW // 2 // INDEX_RECORD_SIZE

IndexView: TypeAlias = "npt.NDArray[np.void]"


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

    @classmethod
    def at(cls, buffer: Buffer, row: int) -> IndexRecord:
        """Reads record number `row`, from 0, of a mapped index file."""
        return cls(*INDEX_RECORD.unpack_from(buffer, FILE_HEADER_SIZE + row * INDEX_RECORD_SIZE))


def index_parts(records: IndexView, start: int = 0) -> Iterator[IndexView]:
    """Iterates over the records of a mapped index (`format.index.view`) from `start`, in parts of `INDEX_ROWS`."""
    base: object = records.base
    window = MappedWindow(base) if isinstance(base, memoryview) else None
    for first in range(start, len(records), INDEX_ROWS):
        if window:
            window.reach(FILE_HEADER_SIZE + first * INDEX_RECORD_SIZE)
        yield records[first : first + INDEX_ROWS]


class IndexOrder:
    """The records of an index in the order of their offsets; equal offsets keep the order of the file.

    The records are not read before the first query. An index with rising offsets is not copied; only one out of
    order is sorted. The records must be good ones (`format.index.view`).
    """

    def __init__(self, records: IndexView) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def place(self, offset: int) -> int:
        """Returns the place of the first record, in this order, with this offset or a higher one."""
        if self._sorted is None:
            return bisect_left(self._records["offset"], offset)
        return int(np.searchsorted(self._sorted[1], offset))

    def position(self, place: int) -> int:
        """Returns the number of the record in the file, from 0."""
        return place if self._sorted is None else int(self._sorted[0][place])

    def offset(self, place: int) -> int:
        return int(self._records["offset"][self.position(place)])

    def size(self, place: int) -> int:
        return int(self._records["size"][self.position(place)])

    def sequence(self, place: int) -> int:
        return int(self._records["sequence"][self.position(place)])

    def match(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Finds the first record for each of many rising offsets.

        Returns the numbers of the records in the file; -1 for an offset without one.
        """
        if self._sorted is None:
            low, high = self.place(int(offsets[0])), self.place(int(offsets[-1]) + 1)
            order, named = None, self._records["offset"][low:high].copy()
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
        order = np.argsort(self._records["offset"], kind="stable")
        return order, self._records["offset"][order]

    def _rises(self) -> bool:
        last = None
        for part in index_parts(self._records):
            offsets = part["offset"]
            if bool((offsets[1:] <= offsets[:-1]).any()) or (last is not None and offsets[0] <= last):
                return False
            last = offsets[-1]
        return True
