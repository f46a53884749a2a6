"""What the index of a slice says about its data file, as far as a table may rely on it.

A table shows what lies in the data files, so an index is used to find places in them, and to leave parts out that
cannot hold what is wanted. For that it is not enough that the server would believe it: its records have to follow each
other from the first byte of the data file on without a gap, so that there is nothing that it does not name.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from stantools.errors import StoreUnreadableError
from stantools.format import index, kernels
from stantools.format.crc import Crc
from stantools.format.envelope import check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE
from stantools.inspection.messages import Selection, chosen
from stantools.pipeline.tables.model import Piece, ReadCounter, SliceRef
from stantools.store.indexes import IndexView, index_parts, scan_index
from stantools.store.mapping import Buffer, mapped
from stantools.store.reading import message_at, trusted_index


@lru_cache(maxsize=8)
def crc_of(polynomial: int, check: bool = True) -> Crc:
    """Returns the CRC of a polynomial; its tables take longer to make than a small slice to read."""
    return Crc(polynomial, check)


@contextmanager
def trusted_chain(ref: SliceRef, data: Buffer, crc: Crc, counter: ReadCounter) -> Iterator[IndexView | None]:
    """Opens the index of a slice and goes through all of it.

    Yields:
        Its records, at least one, if they can be believed and name everything in the data file up to the last one of
        them; else None. Behind the last one there may be more in the data file.
    """
    if ref.index is None or check_file_version(data):
        yield None
        return
    with trusted_index(ref.files, data, os.fsencode(ref.channel), crc.checking) as (trusted, _):
        counter.index(ref.index_size)
        if trusted is None or trusted[0].offset != FILE_HEADER_SIZE:
            yield None
            return
        records = trusted.view()
        counter.data(end_of(records[-1]) - int(records["offset"][-1]))
        yield records if follows(records) else None


def follows(records: IndexView) -> bool:
    """Returns whether index records name records of the data file that follow each other without a gap."""
    end = None
    for part in index_parts(records):
        offsets = part["offset"]
        ends = offsets + part["size"] + np.int64(RECORD_HEADER_SIZE)
        if (end is not None and int(offsets[0]) != end) or bool((offsets[1:] != ends[:-1]).any()):
            return False
        end = int(ends[-1])
    return True


def chosen_rows(records: IndexView, selection: Selection) -> tuple[int, int]:
    """Returns the first and the last record of a message that is wanted; -1 and -1 if there is none."""
    first = last = -1
    row = 0
    for part in index_parts(records):
        rows = np.flatnonzero(chosen(part["sequence"], part["timestamp"], selection))
        if len(rows):
            first = row + int(rows[0]) if first < 0 else first
            last = row + int(rows[-1])
        row += len(part)
    return first, last


def end_of(record: np.void) -> int:
    """Returns the offset behind the record of the data file that an index record names."""
    return int(record["offset"]) + RECORD_HEADER_SIZE + int(record["size"])


def agrees(data: Buffer, record: np.void, channel: bytes, crc: Crc) -> bool | None:
    """Compares an index record with the data file.

    Returns:
        None if the record in the data file is damaged, so that it says nothing.
    """
    found = message_at(data, int(record["offset"]), channel, crc)
    if found is None:
        return None
    return all(getattr(found, name)[0] == record[name] for name in ("sequence", "size", "timestamp"))


@contextmanager
def good_records(ref: SliceRef, crc: Crc, *, counter: ReadCounter) -> Iterator[IndexView | None]:
    """Opens the index of a slice for a search after damage: its good records, whatever they name.

    Yields:
        The records from the first to the last good one, or None if there are none.
    """
    with _index_of(ref) as buffer:
        counter.index(len(buffer))
        count = scan_index(buffer, crc).rows if len(buffer) > FILE_HEADER_SIZE else 0
        yield index.view(buffer, count) if count else None


@contextmanager
def unchecked_records(ref: SliceRef, data: Buffer) -> Iterator[IndexView | None]:
    """Opens the index of a slice without looking at its records; None if it has none."""
    with _index_of(ref) as buffer:
        count = (len(buffer) - FILE_HEADER_SIZE) // INDEX_RECORD_SIZE
        fit = count > 0 and not check_file_version(data) and not check_file_version(buffer)
        yield index.view(buffer, count) if fit else None


@contextmanager
def _index_of(ref: SliceRef) -> Iterator[Buffer]:
    """Maps the index of a slice; it is empty where there is none, or it cannot be read."""
    with ExitStack() as stack:
        buffer: Buffer = memoryview(b"")
        if ref.index is not None:
            with suppress(StoreUnreadableError):
                buffer = stack.enter_context(mapped(Path(ref.index)))
        yield buffer


def checked(records: IndexView, low: int, high: int, crc: Crc, counter: ReadCounter) -> IndexView:
    """Returns the records from `low` to `high` of an index up to the first one with a wrong CRC."""
    part = records[low:high]
    count, *_ = kernels.scan_index(part.view(np.uint8).data, 0, part.nbytes, crc.checking)
    counter.index(part.nbytes)
    return part[:count]


def records_of(piece: Piece, records: IndexView, data: Buffer, crc: Crc, counter: ReadCounter) -> IndexView | None:
    """Looks at the index records of one piece only.

    Returns:
        Those that name, without a gap, what lies in the data file from the start of the piece on, as far as there are
        such; None if there are none, or if the last of them does not agree with the data file.
    """
    low = bisect_left(records["offset"], piece.start)
    part = checked(records, low, bisect_left(records["offset"], piece.end, lo=low), crc, counter)
    if not len(part) or int(part["offset"][0]) != piece.start or not follows(part):
        return None
    last = part[-1]
    if end_of(last) > (len(data) if piece.end >= piece.slice.data_size else piece.end):
        return None
    counter.data(end_of(last) - int(last["offset"]))
    return part if agrees(data, last, os.fsencode(piece.slice.channel), crc.checking) else None
