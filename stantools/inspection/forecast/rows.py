"""The messages of a recovered slice in file order, from its index or, where that is written anew, from its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stantools.format import index as index_format
from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, RECORD_HEADER_SIZE
from stantools.inspection.forecast.slices import Slice
from stantools.store.indexes import index_parts
from stantools.store.mapping import Buffer, Window, mapped

_ROWS = 16384


class Rows(NamedTuple):
    """Index records of some messages, in file order.

    Attributes:
        sequence: Sequences.
        offset: Where the record's header is said to be.
        size: Payload sizes.
        timestamp: Nanoseconds since the epoch.
    """

    sequence: NDArray[np.uint64]
    offset: NDArray[np.int64]
    size: NDArray[np.uint32]
    timestamp: NDArray[np.int64]


def slice_rows(found: Slice, crc: Crc, check_crc: bool, channel: bytes) -> Iterator[Rows]:
    """Gives all rows of a slice in parts, from the first one stored on; each part is valid until the next.

    Args:
        found: The slice.
        crc: The server's CRC.
        check_crc: The server checks CRCs.
        channel: The channel's name.
    """
    if found.index is None:
        with mapped(found.data) as data:
            for batch in data_batches(data, found.data_end, crc, check_crc, channel):
                yield Rows(batch.sequence, batch.offset, batch.size, batch.timestamp)
    else:
        with mapped(found.index) as index:
            for part in index_parts(index_format.view(index, found.rows)):
                yield Rows(part["sequence"], part["offset"], part["size"], part["timestamp"])


def data_batches(data: Buffer, end: int, crc: Crc, check_crc: bool, channel: bytes) -> Iterator[MessageColumns]:
    """Gives the good records of a data file in batches, each valid until the next."""
    columns = MessageColumns(_ROWS)
    window = Window(data)
    at, rows = FILE_HEADER_SIZE, _ROWS
    while rows == _ROWS and at < end - RECORD_HEADER_SIZE:
        window.reach(at)
        rows, at, _ = kernels.scan_messages(data, at, end, crc, check_crc, channel, columns)
        if rows:
            yield columns.take(rows)
