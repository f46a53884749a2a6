"""Records of a damaged message block: the good ones, and the bytes that belong to none.

A record proves itself by its hash (jetstream-migration.md section 5.2), so that reading can restart anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stantools.format.envelope import Buffer
from stantools.store.mapping import data_from
from stantools.streamfiles import kernels
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    MAX_RECORD_SIZE,
    MAX_SEQUENCE,
    TOMBSTONE,
    RecordColumns,
    RecordFlaw,
)
from stantools.streamfiles.record_batch import ROWS, RecordBatch

#: bytes of supposed records that are hashed for each byte that is searched
_MAX_HASHED: Final = 1024
_TIME_AT: Final = 12
#: distance from the message before up to which the sequence of a damaged record is trusted
MAX_CLAIMED_STEP: Final = 1 << 16
#: continue "the place of damage: "
FLAW_TEXTS: Final = {
    RecordFlaw.CUT: "the block ends within a record",
    RecordFlaw.BAD_LENGTH: "the record has impossible sizes",
    RecordFlaw.BAD_HASH: "the record has another hash than its content",
}


@dataclass(slots=True)
class Gap:
    """Bytes that belong to no record."""

    start: int
    end: int
    flaw: RecordFlaw
    before: int  #: sequence of the block's last message before them, 0 for none
    after: int = 0  #: sequence of the block's next message, 0 for none
    claimed: int = 0  #: greatest sequence in the headers of damaged records among them, 0 for none
    #: These records cover all of the bytes, and none of them is a tombstone.
    covered: bool = False


def scan(data: Buffer, key: bytes, position: int = 0) -> Iterator[RecordBatch | Gap]:
    """Yields the good records of a block in batches, and the gaps between them, in their order.

    A batch is valid until the next one is requested. The `after` of a gap is known with the next message.
    """
    columns = RecordColumns(min(ROWS, len(data) // EMPTY_RECORD_SIZE + 1))
    before, last_gaps = 0, list[Gap]()
    while True:
        batch, position, flaw = RecordBatch.read(data, position, key, columns)
        numbers = batch.sequence[batch.flags == 0]
        if len(numbers):
            before = int(numbers[-1])
            for gap in last_gaps:
                gap.after = int(numbers[0])
            last_gaps.clear()
        if len(batch):
            yield batch
        if flaw is RecordFlaw.NONE:
            return
        if flaw is not RecordFlaw.FULL:
            end = next_record(data, position, key)
            claimed, covered = _claims(data, position, end)
            gap = Gap(position, end, flaw, before, claimed=claimed, covered=covered)
            last_gaps.append(gap)
            yield gap
            position = end


def scan_block(data: Buffer, key: bytes, position: int = 0) -> tuple[list[RecordBatch], int, RecordFlaw]:
    """Reads records up to the first that is not good; returns them, the end, and the reason."""
    batches: list[RecordBatch] = []
    flaw = RecordFlaw.FULL
    while flaw is RecordFlaw.FULL:
        batch, position, flaw = RecordBatch.read(data, position, key)
        batches.append(batch)
    return batches, position, flaw


def is_record(data: Buffer, position: int, key: bytes) -> bool:
    return 0 <= position < len(data) and kernels.scan_records(data, position, key, RecordColumns(1))[0] == 1


def intact_records(data: bytes, key: bytes) -> tuple[bytes, list[Gap]]:
    """Returns the good records of a block one after the other, and the gaps between them."""
    good, gaps = bytearray(), list[Gap]()
    position = 0
    for piece in scan(data, key):
        if isinstance(piece, Gap):
            good += data[position : piece.start]
            position = piece.end
            gaps.append(piece)
    good += data[position:]
    return bytes(good), gaps


def _claims(data: Buffer, position: int, end: int) -> tuple[int, bool]:
    """Follows the headers of damaged records, as far as their sizes lead to the next.

    Returns the greatest sequence in them, and whether they cover all of the bytes and none is a tombstone.
    """
    greatest, tombstones = 0, False
    while position + EMPTY_RECORD_SIZE <= end:
        size = int.from_bytes(data[position : position + 4], "little") & 0x7FFFFFFF
        sequence = int.from_bytes(data[position + 4 : position + _TIME_AT], "little")
        if not EMPTY_RECORD_SIZE <= size <= end - position:
            break
        # the sequence of a tombstone says nothing about the end of the stream
        if sequence & TOMBSTONE:
            tombstones = True
        else:
            greatest = max(greatest, sequence & MAX_SEQUENCE)
        position += size
    return greatest, position == end and not tombstones


def next_record(data: Buffer, position: int, key: bytes) -> int:
    """Returns the offset of the next good record after a damaged one; the end of the block if there is none.

    The search is bounded, since bytes can be made that look like a long record at every offset.
    """
    own = position + (int.from_bytes(data[position : position + 4], "little") & 0x7FFFFFFF)
    if own > position and is_record(data, own, key):
        return own
    start, size = position + 1, len(data)
    while start < size:
        begin, end = data_from(data, start) if isinstance(data, memoryview) else (start, size)
        if begin >= size:
            break
        # a header may begin with zeros that are not on disk, and a record may end with them
        begin, stop = max(start, begin - EMPTY_RECORD_SIZE), min(end + MAX_RECORD_SIZE, size)
        part = data[begin:stop]
        found = kernels.next_record(part, 0, key, _MAX_HASHED * len(part))
        if found < len(part):
            return begin + found
        start = end
    return size
