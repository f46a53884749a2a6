"""Records of a damaged message block: the good ones, and the bytes that belong to none.

A record proves itself by its hash (jetstream-migration.md section 5.2), so that reading can restart anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.streamfiles import kernels
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    HEADER_LENGTH_SIZE,
    MAX_RECORD_SIZE,
    MAX_SEQUENCE,
    TOMBSTONE,
    RecordColumns,
    RecordFlaw,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS: Final = 65536
#: offsets per step
_CHUNK: Final = 1 << 18
#: byte of a record with the high bits of its sequence, two of which are flags
_HIGH_BYTE: Final = 11
_HIGH_BITS: Final = 0x3F
_TIME_AT: Final = 12
_SUBJECT_SIZE_AT: Final = 20


@dataclass(slots=True)
class Gap:
    """Bytes that belong to no record."""

    start: int
    end: int
    flaw: RecordFlaw
    before: int  #: sequence of the block's last message before them, 0 for none
    after: int = 0  #: sequence of the block's next message, 0 for none
    claimed: int = 0  #: greatest sequence in the headers of damaged records among them, 0 for none


def scan_block(data: bytes, key: bytes, position: int = 0) -> tuple[list[RecordColumns], int, RecordFlaw]:
    """Reads records up to the first that is not good; returns them, the end, and the reason."""
    batches: list[RecordColumns] = []
    flaw = RecordFlaw.FULL
    while flaw is RecordFlaw.FULL:
        columns = RecordColumns(min(_ROWS, (len(data) - position) // EMPTY_RECORD_SIZE + 1))
        rows, position, flaw = kernels.scan_records(data, position, key, columns)
        batches.append(columns.take(rows))
    return batches, position, flaw


def is_record(data: bytes, position: int, key: bytes) -> bool:
    return 0 <= position < len(data) and kernels.scan_records(data, position, key, RecordColumns(1))[0] == 1


def intact_records(data: bytes, key: bytes) -> tuple[bytes, list[Gap]]:
    """Returns the good records of a block one after the other, and the gaps between them."""
    good, gaps = bytearray(), list[Gap]()
    position = before = 0
    while True:
        start = position
        batches, position, flaw = scan_block(data, key, position)
        messages = [batch.sequence[batch.flags == 0] for batch in batches]
        numbers = np.concatenate(messages)
        if len(numbers):
            before = int(numbers[-1])
            for gap in gaps:
                gap.after = gap.after or int(numbers[0])
        good += data[start:position]
        if flaw is RecordFlaw.NONE:
            return bytes(good), gaps
        end = next_record(data, position, key)
        gaps.append(Gap(position, end, flaw, before, claimed=_max_claimed(data[position:end])))
        position = end


def _max_claimed(data: bytes) -> int:
    """Returns the greatest sequence in the headers of damaged records, as far as their sizes lead to the next."""
    greatest = position = 0
    while position + EMPTY_RECORD_SIZE <= len(data):
        size = int.from_bytes(data[position : position + 4], "little") & 0x7FFFFFFF
        sequence = int.from_bytes(data[position + 4 : position + _TIME_AT], "little")
        if not EMPTY_RECORD_SIZE <= size <= len(data) - position:
            break
        # the sequence of a tombstone says nothing about the end of the stream
        if not sequence & TOMBSTONE:
            greatest = max(greatest, sequence & MAX_SEQUENCE)
        position += size
    return greatest


def next_record(data: bytes, position: int, key: bytes) -> int:
    """Returns the offset of the next good record after a damaged one; the end of the block if there is none."""
    own = position + (int.from_bytes(data[position : position + 4], "little") & 0x7FFFFFFF)
    if own > position and is_record(data, own, key):
        return own
    view = np.frombuffer(data, np.uint8)
    for begin in range(position + 1, len(view) - EMPTY_RECORD_SIZE + 1, _CHUNK):
        part = view[begin : begin + _CHUNK + EMPTY_RECORD_SIZE - 1]
        for place in map(int, _candidates(part, len(view) - begin) + begin):
            if is_record(data, place, key):
                return place
    return len(view)


def _candidates(part: NDArray[np.uint8], left: int) -> NDArray[np.int64]:
    """Returns the offsets in a part of a block where a record may begin, by its sizes and its sequence."""
    count = len(part) - EMPTY_RECORD_SIZE + 1

    def number(at: int, size: int) -> NDArray[np.int64]:
        columns = (part[at + byte : at + byte + count].astype(np.int64) << 8 * byte for byte in range(size))
        return sum(columns, np.zeros(count, np.int64))

    word = number(0, 4)
    size = word & 0x7FFFFFFF
    least = number(_SUBJECT_SIZE_AT, 2) + EMPTY_RECORD_SIZE + (word >> 31) * HEADER_LENGTH_SIZE
    fits = (size >= least) & (size <= MAX_RECORD_SIZE) & (size <= left - np.arange(count))
    return np.flatnonzero(fits & (part[_HIGH_BYTE : _HIGH_BYTE + count] & _HIGH_BITS == 0))
