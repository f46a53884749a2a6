"""How large records and header blocks become, without building them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.migration import headers
from stantools.migration.archive.layout import EMPTY_RECORD_SIZE, HEADER_LENGTH_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stantools.format.columns import MessageColumns

_POWERS: Final = np.array([10**power for power in range(1, 20)], np.uint64)
#: What is always there: a block with origin whose channel is empty and whose numbers have one digit, and what a reply
#: adds to a block and to one that would not be there without it.
_WITH_ORIGIN: Final = len(headers.header_block(b"", 0, 0, b"", origin=True)) - 2
_FRAME: Final = len(headers.VERSION_LINE) + len(headers.END_LINE)
_REPLY_LINE: Final = len(headers.header_block(b"", 0, 0, b"x", origin=False)) - 1 - _FRAME


def decimal_sizes(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the number of digits of each number."""
    return np.searchsorted(_POWERS, numbers, "right") + 1


def header_sizes(columns: MessageColumns, channel_size: int, origin: bool) -> NDArray[np.int64]:
    """Returns the size of the header block of each message; 0 where it needs none."""
    replies = columns.reply_size.astype(np.int64)
    line = np.where(replies > 0, replies + _REPLY_LINE, 0)
    if not origin:
        return np.where(replies > 0, line + _FRAME, 0)
    negative = columns.timestamp < 0
    # The magnitude of the least number is right as well: it wraps to itself.
    magnitude = np.where(negative, -columns.timestamp, columns.timestamp).view(np.uint64)
    numbers = decimal_sizes(columns.sequence) + decimal_sizes(magnitude) + negative
    return numbers + (_WITH_ORIGIN + channel_size) + line


def record_sizes(
    columns: MessageColumns, channel_size: int, subject_size: int, origin: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the size of the record of each message and that of its header block.

    Facts: jetstream-migration.md section 5.2.
    """
    blocks = header_sizes(columns, channel_size, origin)
    sizes = columns.data_size.astype(np.int64) + blocks + (EMPTY_RECORD_SIZE + subject_size)
    return np.where(blocks > 0, sizes + HEADER_LENGTH_SIZE, sizes), blocks
