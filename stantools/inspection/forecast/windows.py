"""Going through mapped files of any size without keeping them in memory.

Pages of a mapped file that were touched count as memory of the process until they are given back. What was read is
given back a window at a time; it stays in the system's cache.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from stantools.format import index as index_format
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, Stop
from stantools.store.mapping import Buffer

#: Bytes of a file that are kept mapped in before they are given back.
WINDOW = 32 * 1024 * 1024
#: Index records that are looked at together.
INDEX_ROWS = 131072


class Window:
    """Gives back what lies behind the reader of a mapped file.

    Args:
        buffer: A mapped file; for any other buffer this does nothing.
    """

    def __init__(self, buffer: Buffer) -> None:
        mapping = buffer.obj
        self._mapping = mapping if isinstance(mapping, mmap.mmap) and hasattr(mapping, "madvise") else None
        self._kept = 0

    def done(self, offset: int) -> None:
        """Says that the reader will not come back behind an offset; being wrong costs time, nothing else."""
        if self._mapping is None or offset - self._kept < WINDOW:
            return
        end = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_DONTNEED, self._kept, end - self._kept)
        self._kept = end


def count_index_records(buffer: Buffer, crc: Crc, check_crc: bool) -> tuple[int, Stop]:
    """Counts the good records of a mapped index file, and tells why it stopped (`kernels.scan_index`)."""
    window = Window(buffer)
    count, stop, at = 0, Stop.END, FILE_HEADER_SIZE
    while stop is Stop.END and at < len(buffer):
        limit = min(len(buffer), at + INDEX_ROWS * INDEX_RECORD_SIZE)
        more, code = kernels.scan_index(buffer, at, limit, crc, check_crc)
        stop = Stop(code)
        count += more
        at = limit
        window.done(at)
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
        yield records[first : first + INDEX_ROWS]
        window.done(FILE_HEADER_SIZE + INDEX_RECORD_SIZE * (first + INDEX_ROWS))
