"""Blocks of stored messages in memory, in the order of their sequences.

Blocks are kept as appended. Only runs of very small blocks, and single messages, are merged, once, so that a channel
with one message at a time does not end up as millions of objects.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from broker.record_buffer import MessageRecordBuffer, Record
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.message_batch import MessageBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stantools.format.crc import Crc

#: blocks with fewer messages and bytes are small
_SMALL = 16
_SMALL_SIZE = 16 << 10
#: small blocks in a row, or single messages, that are merged
_RUN = 128
#: bytes up to which blocks of fewer than `_RUN` messages are merged for a reader
_JOINED_SIZE = 256 << 10
#: emptied places at the front of the list that are kept before the list is cut
_SLACK = 256


class BlockList:
    """Messages without gaps, in blocks.

    Attributes:
        first: Sequence of the first message; 0 if there is none.
        size: Payload bytes of all blocks, including messages dropped from the first block.
    """

    def __init__(self) -> None:
        self.first = self.last = 0
        self.size = 0
        self._blocks: list[MessageRecordBuffer] = []
        self._firsts: list[int] = []
        self._singles: list[Record] = []  # after the last block
        self._head = 0
        self._small = 0

    def __len__(self) -> int:
        return self.last - self.first + 1 if self.first else 0

    def append(self, records: MessageRecordBuffer) -> int:
        """Adds a block, and forgets the others if it does not follow them. Returns its payload bytes."""
        count = len(records.sizes)
        if not count:
            return 0
        begin: int = records.sequences.item(0)
        end: int = records.sequences.item(-1)
        if end - begin != count - 1:
            raise ValueError(f"{count} messages with the sequences {begin} to {end}")
        if self.first == 0 or begin != self.last + 1:
            self.clear()
            self.first = begin
        if self._singles:
            self._merge_single()
        size = size_of(records)
        self._put(records, begin, size)
        self.last = end
        self.size += size
        return size

    def add(self, record: Record) -> int:
        """Adds one message, as `append` does. Returns its payload bytes."""
        data, sequence, _ = record
        if self.first == 0 or sequence != self.last + 1:
            self.clear()
            self.first = sequence
        self._singles.append(record)
        self.last = sequence
        size = len(data) - RECORD_HEADER_SIZE
        self.size += size
        if len(self._singles) >= _RUN or size > _SMALL_SIZE:
            self._merge_single()
        return size

    def _put(self, records: MessageRecordBuffer, begin: int, size: int) -> None:
        self._blocks.append(records)
        self._firsts.append(begin)
        if len(records.sizes) >= _SMALL or size > _SMALL_SIZE:
            self._small = 0
        else:
            self._small += 1
            if self._small == _RUN:
                self._blocks[-_RUN:] = [joined(self._blocks[-_RUN:])]
                del self._firsts[1 - _RUN :]
                self._small = 0

    def _merge_single(self) -> None:
        """Makes a block of the single messages."""
        if self._singles:
            singles, self._singles = self._singles, []
            block = block_of_records(singles)
            self._put(block, singles[0][1], size_of(block))

    def read(self, first: int, count: int, size: int) -> MessageRecordBuffer:
        """Returns up to `count` messages of one block, about `size` bytes; the list must contain `first`."""
        self._merge_single()
        place = bisect_right(self._firsts, first, self._head) - 1
        row = first - self._firsts[place]
        rows = len(self._blocks[place].sizes)
        if rows < _RUN and rows - row < count and place < len(self._blocks) - 1:
            # The reader has small blocks ahead: once they are merged, one read returns them.
            self._join_from(place, size)
        return part_of(self._blocks[place], row, count, size)

    def block(self) -> tuple[MessageRecordBuffer, int]:
        """Returns the first block, and how many of its messages were dropped."""
        self._merge_single()
        return self._blocks[self._head], self.first - self._firsts[self._head]

    def blocks(self) -> list[tuple[int, MessageRecordBuffer]]:
        """Returns all blocks, each with its first sequence."""
        self._merge_single()
        return list(zip(self._firsts[self._head :], self._blocks[self._head :], strict=True))

    def drop_before(self, sequence: int) -> None:
        """Forgets messages before a sequence; a block is freed when all of its messages are dropped."""
        if sequence <= self.first or not self.first:
            return
        if sequence > self.last:
            self.clear()
            return
        self._merge_single()
        self.first = sequence
        head = self._head
        while head + 1 < len(self._firsts) and self._firsts[head + 1] <= sequence:
            self.size -= size_of(self._blocks[head])
            self._blocks[head] = EMPTY
            head += 1
        self._head = head
        self._small = min(self._small, len(self._blocks) - head)
        if head > _SLACK and head * 2 > len(self._blocks):
            del self._blocks[:head], self._firsts[:head]
            self._head = 0

    def shrink(self, size: int) -> None:
        """Forgets whole blocks at the front until at most `size` bytes are left, or only the last block."""
        self._merge_single()
        place, left = self._head, self.size
        while left > size and place + 1 < len(self._blocks):
            left -= size_of(self._blocks[place])
            place += 1
        self.drop_before(self._firsts[place])

    def drop_after(self, sequence: int) -> None:
        """Forgets messages after a sequence."""
        if sequence >= self.last:
            return
        if sequence < self.first:
            self.clear()
            return
        self._merge_single()
        while self._firsts[-1] > sequence:
            self.size -= size_of(self._blocks.pop())
            self._firsts.pop()
            self._small = max(self._small - 1, 0)
        block, begin = self._blocks[-1], self._firsts[-1]
        part = part_of(block, 0, sequence - begin + 1, 1 << 62)
        self.size -= size_of(block) - size_of(part)
        self._blocks[-1] = part
        self.last = sequence

    def clear(self) -> None:
        self._blocks, self._firsts, self._singles = [], [], []
        self.first = self.last = self.size = self._head = self._small = 0

    def _join_from(self, place: int, size: int) -> None:
        """Merges a block with those after it, as long as they have few messages, and not many bytes in all."""
        blocks, end, left = self._blocks, place, min(size, _JOINED_SIZE)
        while end < len(blocks) and len(blocks[end].sizes) < _RUN and (left := left - size_of(blocks[end])) >= 0:
            end += 1
        if end - place > 1:
            blocks[place:end] = [joined(blocks[place:end])]
            del self._firsts[place + 1 : end]
            self._small = min(self._small, len(blocks) - place - 1)


def part_of(block: MessageRecordBuffer, row: int, count: int, size: int) -> MessageRecordBuffer:
    """Returns messages of a block from a row on: at most `count`, of about `size` bytes, but at least one."""
    starts = block.starts
    rows = len(starts)
    end = min(row + count, rows)
    if end - row > 1 and int(starts[end - 1]) - int(starts[row]) + int(block.sizes[end - 1]) > size:
        end = row + max(int(starts[row:end].searchsorted(int(starts[row]) + size, "right")) - 1, 1)
    if row == 0 and end == rows:
        return block
    return MessageRecordBuffer(
        block.data, starts[row:end], block.sizes[row:end], block.sequences[row:end], block.timestamps[row:end]
    )


def size_of(block: MessageRecordBuffer) -> int:
    """Returns the payload bytes of a block."""
    if block.total >= 0:
        return block.total
    return int(block.sizes[0]) if len(block.sizes) == 1 else int(block.sizes.sum())


def block_of(
    data: bytes, sizes: NDArray[np.uint32], sequences: NDArray[np.uint64], timestamps: NDArray[np.int64]
) -> MessageRecordBuffer:
    """Returns a block of contiguous records that fill the data; `sizes` are those of the payloads."""
    lengths = sizes.astype(np.int64)
    starts = (lengths + RECORD_HEADER_SIZE).cumsum() - lengths
    return MessageRecordBuffer(data, starts, sizes, sequences, timestamps, len(data) - RECORD_HEADER_SIZE * len(sizes))


def block_of_records(records: list[Record]) -> MessageRecordBuffer:
    """Returns a block of single messages, at least one."""
    data, sequences, timestamps = zip(*records, strict=True)
    sizes = np.array([*map(len, data)], np.uint32) - np.uint32(RECORD_HEADER_SIZE)
    return block_of(b"".join(data), sizes, np.array(sequences, np.uint64), np.array(timestamps, np.int64))


def decoded(block: MessageRecordBuffer, channel: bytes, crc: Crc) -> tuple[MessageBatch, NDArray[np.uint8]]:
    """Returns the messages of a block with their fields, and the fault of each (`ScanStop`)."""
    return MessageBatch.at(block.data, block.starts - RECORD_HEADER_SIZE, channel, crc.unchecked)


def joined(blocks: list[MessageRecordBuffer]) -> MessageRecordBuffer:
    """Returns one block with the messages of several, record headers included."""
    sizes = np.concatenate([block.sizes for block in blocks])
    sequences = np.concatenate([block.sequences for block in blocks])
    timestamps = np.concatenate([block.timestamps for block in blocks])
    if all(block.total >= 0 for block in blocks):
        return block_of(b"".join([block.data for block in blocks]), sizes, sequences, timestamps)
    pieces, starts = [], []
    at = 0
    for block in blocks:
        begin = max(int(block.starts[0]) - RECORD_HEADER_SIZE, 0)
        end = int(block.starts[-1]) + int(block.sizes[-1])
        pieces.append(memoryview(block.data)[begin:end])
        starts.append(block.starts + (at - begin))
        at += end - begin
    return MessageRecordBuffer(b"".join(pieces), np.concatenate(starts), sizes, sequences, timestamps)


EMPTY = MessageRecordBuffer(
    b"", np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint64), np.empty(0, np.int64)
)
