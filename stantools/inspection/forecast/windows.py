"""Going through index files of any size, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from stantools.format import index as index_format
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, Stop
from stantools.store.mapping import Buffer, Window

#: Index records that are looked at together.
INDEX_ROWS = 131072


def count_index_records(buffer: Buffer, crc: Crc, check_crc: bool) -> tuple[int, Stop]:
    """Counts the good records of a mapped index file, and tells why it stopped (`kernels.scan_index`)."""
    window = Window(buffer)
    count, stop, at = 0, Stop.END, FILE_HEADER_SIZE
    while stop is Stop.END and at < len(buffer):
        window.reach(at)
        limit = min(len(buffer), at + INDEX_ROWS * INDEX_RECORD_SIZE)
        more, code = kernels.scan_index(buffer, at, limit, crc, check_crc)
        stop = Stop(code)
        count += more
        at = limit
    return count, stop


def index_rows(buffer: Buffer, count: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
    """Gives the records of an index file in parts.

    Args:
        buffer: The mapped index file.
        count: Number of good records.
        start: The first record that is wanted.

    Yields:
        Structured arrays of `format.index.DTYPE`, views of the file.
    """
    window = Window(buffer)
    records = index_format.view(buffer, count)
    for first in range(start, count, INDEX_ROWS):
        window.reach(FILE_HEADER_SIZE + INDEX_RECORD_SIZE * first)
        yield records[first : first + INDEX_ROWS]
