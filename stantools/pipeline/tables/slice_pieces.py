"""Cutting a slice into pieces that can be read independently, without the parts that cannot hold a selected message.

Together the pieces of a slice must yield exactly the rows of a single read. A reader goes from record to record, so
a piece may begin only at a record boundary of that walk. If the index names every record without a gap, the
boundaries are in the index. Without such an index, a boundary is a place followed by enough good bytes that
it cannot be inside the payload of a message: payloads may hold whole store files. A reader that reaches the end of its
piece notices a wrong boundary (`messages.read_piece`).

A table shows the content of the data files. An index that the server would believe is therefore not enough: its
records must be consecutive from the first byte of the data file on, so that it names everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.format.columns import MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.envelope import check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, ScanStop
from stantools.inspection.stored_messages import Selection, chosen
from stantools.pipeline.tables.model import ReadCounter, SlicePiece, SliceRef
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.indexes import IndexRecord, SliceIndex
from stantools.store.mapping import Buffer, MappedWindow, mapped
from stantools.store.ranges import Bounds
from stantools.store.slice_reader import SliceFile


@lru_cache(maxsize=8)
def crc_of(polynomial: int, check: bool = True) -> Crc:
    """Cached, because the tables of a CRC take longer to make than a small slice takes to read."""
    return Crc(polynomial, check)


@contextmanager
def trusted_chain(ref: SliceRef, data: Buffer, crc: Crc, counter: ReadCounter) -> Iterator[SliceIndex | None]:
    """Opens the index of a slice and checks all of it.

    Yields it if it can be trusted and names everything in the data file up to its last record, of at least one; else
    None. There may be more in the data file after the last one.
    """
    with ExitStack() as stack:
        index = None
        if ref.index is not None and not check_file_version(data):
            opened = SliceFile(data, os.fsencode(ref.channel), crc.checking)
            opened.open_index(ref.files, stack)
            index = opened.index
            counter.index(ref.index_size)
        if index is None or index[0].offset != FILE_HEADER_SIZE:
            yield None
            return
        counter.data(index[-1].end - index[-1].offset)
        parts = [(int(part.offset[0]), part.end, part.consecutive) for part in index.parts()]
        whole = all(part[2] for part in parts) and all(one[1] == two[0] for one, two in pairwise(parts))
        yield index if whole else None


def chosen_rows(index: SliceIndex, selection: Selection) -> tuple[int, int]:
    """Returns the first and the last record of a selected message; -1 and -1 if there is none."""
    first = last = -1
    row = 0
    for part in index.parts():
        rows = np.flatnonzero(chosen(part.sequence, part.timestamp, selection))
        if len(rows):
            first = row + int(rows[0]) if first < 0 else first
            last = row + int(rows[-1])
        row += len(part)
    return first, last


def _agrees(file: SliceFile, record: IndexRecord) -> bool | None:
    """Compares an index record with the data file; None if the record in the data file is damaged."""
    found = file.message_at(record.offset)
    if found is None:
        return None
    return (found.sequence[0], found.size[0], found.timestamp[0]) == (record.sequence, record.size, record.timestamp)


@contextmanager
def unchecked_index(ref: SliceRef, data: Buffer) -> Iterator[SliceIndex | None]:
    """Opens the index of a slice without checking its records; yields None if it has none."""
    with mapped_index(ref) as buffer:
        index = SliceIndex.whole(buffer)
        fit = len(index) and not check_file_version(data) and not check_file_version(buffer)
        yield index if fit else None


@contextmanager
def mapped_index(ref: SliceRef) -> Iterator[Buffer]:
    """Maps the index of a slice; empty if it is missing or unreadable."""
    with ExitStack() as stack:
        buffer: Buffer = memoryview(b"")
        if ref.index is not None:
            with suppress(StoreUnreadableError):
                buffer = stack.enter_context(mapped(Path(ref.index)))
        yield buffer


def records_of(
    piece: SlicePiece, index: SliceIndex, data: Buffer, crc: Crc, counter: ReadCounter
) -> MessageRecords | None:
    """Reads the index records of one piece only.

    Returns those that name consecutive records of the data file from the start of the piece on; None if there are
    none, or if the last of them does not agree with the data file.
    """
    low = index.first("offset", piece.start)
    high = index.first("offset", piece.end, low)
    count = index.good_rows(low, high, crc.checking)
    counter.index((high - low) * INDEX_RECORD_SIZE)
    part = index.rows(low, low + count)
    if not count or int(part.offset[0]) != piece.start or not part.consecutive:
        return None
    last = index[low + count - 1]
    if last.end > (len(data) if piece.end >= piece.slice.data_size else piece.end):
        return None
    counter.data(last.end - last.offset)
    return part if _agrees(SliceFile(data, os.fsencode(piece.slice.channel), crc.checking), last) else None


#: Good bytes that prove a boundary found by searching. Servers advise against longer messages.
_PROOF_BYTES = 8 << 20
#: Candidates to examine for one boundary; more fail only in a file full of damage.
_CANDIDATES = 32

Range = tuple[int, int]


def split_slice(ref: SliceRef, options: TableOptions, counter: ReadCounter | None = None) -> list[SlicePiece]:
    """Cuts a slice into the pieces to read, in the order of the file.

    The slice must have local files. Returns no piece if nothing in it can be selected. A file that cannot be read is
    one piece; its reader reports it. A small slice without bounds costs nothing; else its index and single records
    are read.
    """
    whole = [SlicePiece(ref, FILE_HEADER_SIZE, ref.data_size)]
    if ref.data_size <= options.split_bytes and options.bounds == Bounds():
        return whole
    selection = selection_of(options.bounds)
    if selection is None:
        return []
    try:
        with mapped(Path(ref.data)) as data:
            return list(_Splitter(ref, data, options, counter or ReadCounter()).pieces(selection))
    except StoreUnreadableError:
        return whole


def selection_of(bounds: Bounds) -> Selection | None:
    """Returns bounds as a selection, without bounds that exclude nothing; None if they exclude everything."""
    if (bounds.last is not None and bounds.last < 0) or (bounds.first is not None and bounds.first >= 1 << 64):
        return None
    if bounds.since is not None and bounds.since >= 1 << 63:
        return None
    if bounds.until is not None and bounds.until <= -(1 << 63):
        return None
    first = None if bounds.first is None or bounds.first <= 0 else bounds.first
    last = None if bounds.last is None or bounds.last >= (1 << 64) - 1 else bounds.last
    since = None if bounds.since is None or bounds.since <= -(1 << 63) else bounds.since
    until = None if bounds.until is None or bounds.until >= 1 << 63 else bounds.until
    return Selection(first, last, since, until)


class _Splitter:
    def __init__(self, ref: SliceRef, data: Buffer, options: TableOptions, counter: ReadCounter) -> None:
        self._crc = crc_of(ref.store.polynomial, options.check_crc)
        self._counter = counter
        self._ref = ref
        self._data = data
        self._channel = os.fsencode(ref.channel)
        self._split_bytes = options.split_bytes
        self._window = MappedWindow(data, _PROOF_BYTES)
        self._columns = MessageColumns(1024)

    def pieces(self, selection: Selection) -> Iterator[SlicePiece]:
        ranges = [(FILE_HEADER_SIZE, self._ref.data_size)]
        if selection != Selection():
            with trusted_chain(self._ref, self._data, self._crc, self._counter) as records:
                if records is not None:
                    ranges = self._narrowed(records, selection)
        if self._split_bytes > 0 and any(end - start > self._split_bytes for start, end in ranges):
            with unchecked_index(self._ref, self._data) as records:
                cuts = [self._cuts(start, end, records) for start, end in ranges]
        else:
            cuts = [[start, end] for start, end in ranges]
        for row in cuts:
            for low, high in pairwise(row):
                yield SlicePiece(self._ref, low, high)

    def _narrowed(self, records: SliceIndex, selection: Selection) -> list[Range]:
        """Returns the ranges of the file that may hold a selected message, by an index that names all of it."""
        size = self._ref.data_size
        first, last = chosen_rows(records, selection)
        ranges = []
        if first >= 0:
            around = {max(first - 1, 0), first, last, min(last + 1, len(records) - 1)}
            if any(self._agrees(records[each]) is False for each in around):
                return [(FILE_HEADER_SIZE, size)]
            if records[first].offset < size:
                ranges.append((self._start(records, first), min(self._end(records, last), size)))
        behind = records[-1].end
        if behind < size:
            if ranges and ranges[-1][1] == behind:
                ranges[-1] = (ranges[-1][0], size)
            else:
                ranges.append((behind, size))
        return ranges

    def _start(self, records: SliceIndex, first: int) -> int:
        """Returns the last boundary at or before a record: a good record, or the beginning of the file."""
        for row in range(first, max(first - _CANDIDATES, -1), -1):
            if self._agrees(records[row]):
                return records[row].offset
        return FILE_HEADER_SIZE

    def _end(self, records: SliceIndex, last: int) -> int:
        """Returns the first boundary after a record: a good record, or the end of the index."""
        for row in range(last + 1, min(last + 1 + _CANDIDATES, len(records))):
            if self._agrees(records[row]):
                return records[row].offset
        return records[-1].end

    def _cuts(self, start: int, end: int, records: SliceIndex | None) -> list[int]:
        cuts = [start]
        parts = -(-(end - start) // self._split_bytes)
        for part in range(1, parts):
            wanted = start + (end - start) * part // parts
            if wanted <= cuts[-1]:
                continue
            found = self._index_boundary(wanted, records) if records is not None else None
            if found is None:
                found = self._search_boundary(wanted, end)
            if found is None:
                break  # nor after it; a hole of many gigabytes is searched once
            if cuts[-1] < found < end:
                cuts.append(found)
        return [*cuts, end]

    def _index_boundary(self, wanted: int, records: SliceIndex) -> int | None:
        """Returns the offset of a record that the index names, if it agrees with the data file; else None.

        A payload can hold whole store files, but it is not in the index.
        """
        low = records.first("offset", wanted)
        high = min(low + _CANDIDATES, len(records))
        self._counter.index((high - low) * INDEX_RECORD_SIZE)
        for row in range(low, low + records.good_rows(low, high, self._crc.checking)):
            record = records[row]
            if (
                wanted <= record.offset < len(self._data)
                and (row == 0 or records[row - 1].end == record.offset)
                and self._agrees(record)
            ):
                return record.offset
        return None

    def _agrees(self, record: IndexRecord) -> bool | None:
        self._counter.data(record.end - record.offset)
        return _agrees(SliceFile(self._data, self._channel, self._crc), record)

    def _search_boundary(self, wanted: int, end: int) -> int | None:
        """Returns the offset of the first record that enough good ones follow.

        None if no record begins there; -1 if there are some, but none of the first ones is good enough.
        """
        data, size = self._data, len(self._data)
        at = wanted
        for _ in range(_CANDIDATES):
            self._window.reach(at)
            found = kernels.find_record(data, at, size, self._crc, self._channel)
            if not 0 <= found < end:
                return None
            at, proven = self._walk(found)
            self._counter.data(at - wanted)
            if proven:
                return found
        return -1

    def _walk(self, start: int) -> tuple[int, bool]:
        """Follows good records; returns the end, and whether there were enough of them."""
        at, limit, stop = start, len(self._data), ScanStop.FULL
        while stop == ScanStop.FULL and at - start < _PROOF_BYTES:
            self._window.reach(at)
            _, at, stop = kernels.scan_messages(self._data, at, limit, self._crc.checking, self._channel, self._columns)
        return max(at, start + 1), stop in (ScanStop.END, ScanStop.FULL)
