"""Messages from the slices of a channel, by sequence (filestore.md sections 5.3 and 7.7).

Files are read, not mapped: a mapped file that another process truncates, or that a disk cannot read, would end the
process. The bytes of the file are delivered as they are.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from broker.log import FailedLookups
from broker.record_buffer import MessageRecordBuffer
from broker.stores.blocklist import EMPTY, part_of
from broker.stores.file.services import OpenFileCount
from stantools.format import kernels
from stantools.format.columns import MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    ScanStop,
)
from stantools.inspection.forecast.server_reading import decode_message, read_payload
from stantools.store.indexes import SliceIndex
from stantools.store.retention import Retention
from stantools.store.slicestate import SliceState

#: messages of one read at most: its columns fit into the processor's cache
MAX_ROWS = 4096
#: messages and bytes of one read at least: a reader of one message mostly wants the next
_MIN_ROWS = 64
_MIN_BYTES = 64 << 10
#: blocks of a channel that are kept because they hold more messages than requested
_MAX_BLOCKS = 4
#: bytes of one read at most: a larger message means a damaged index
_MAX_BYTES = 1 << 30


class UnreadableError(Exception):
    """A message cannot be read. The text is the original's where it has one."""

    def __init__(self, sequence: int, text: str) -> None:
        super().__init__(text)
        self.sequence = sequence


class _LookupColumns:
    """Column buffers for the kernels, shared by all readers (there is one thread)."""

    def __init__(self) -> None:
        self.messages = MessageColumns(MAX_ROWS)
        self.stops = np.zeros(MAX_ROWS, np.uint8)


_columns = _LookupColumns()


class SliceReader:
    """Reads messages of one channel. `odd_paths` has the data files that are not named `msgs.N.dat`, by number."""

    def __init__(
        self,
        directory: Path,
        channel: bytes,
        crc: Crc,
        open_files: OpenFileCount,
        odd_paths: dict[int, Path],
    ) -> None:
        self.files = 0
        self._directory = directory
        self._channel = channel
        self._crc = crc
        self._open_files = open_files
        self._odd_paths = odd_paths
        self._number: int | None = None
        self._data = self._index_file = -1
        self._index = SliceIndex(self._read_index, 0)

    def read(
        self, found: SliceState, first: int, count: int, size: int, removed: int = 0
    ) -> MessageRecordBuffer | None:
        """Reads messages of a slice, all of which must be written; UnreadableError if the first one cannot be read.

        Returns at most `MAX_ROWS` and `count` messages and `size` bytes, but at least one message; None if the slice
        has no message from `first` on. Limits have removed `removed` messages at the front.
        """
        try:
            self._open(found)
            row = max(self._row(found, first), removed)
            if row >= found.count:
                return None
            entries = self._index.rows(row, row + min(count, MAX_ROWS))
            try:
                return self._messages(entries, first, size)
            except UnreadableError:
                # Only the index may be wrong: the message may follow directly after the previous record.
                following = self._record_after(row)
                if following is None:
                    raise
                return following
        except OSError as error:
            raise UnreadableError(first, f"{self._directory}: {error.strerror}") from error

    def row_of_time(self, found: SliceState, timestamp: int) -> int:
        """Returns the sequence of the first message of a slice whose timestamp is not lower; 0 if there is none."""
        self._open(found)
        row = self._index.first("timestamp", timestamp)
        return self._index[row].sequence if row < found.count else 0

    def release(self) -> bool:
        if self._number is not None:
            os.close(self._data)
            os.close(self._index_file)
            self._number = None
            self.files = 0
            self._open_files.leave(self)
        return True

    def _open(self, found: SliceState) -> None:
        number = found.number
        if self._number != number:
            self.release()
            path = self._odd_paths.get(number) or self._directory / f"msgs.{number}.dat"
            self._data = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._index_file = os.open(self._directory / f"msgs.{number}.idx", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                os.close(self._data)
                raise
            self._number = number
            self.files = 2
        self._index = SliceIndex(self._read_index, found.count)
        self._open_files.touch(self)

    def _read_index(self, offset: int, size: int) -> bytes:
        return os.pread(self._index_file, size, offset)

    def _row(self, found: SliceState, sequence: int) -> int:
        """Returns the row of the first message whose sequence is not lower."""
        index = self._index
        if sequence <= found.first_sequence:
            return 0
        if found.last_sequence - found.first_sequence + 1 == found.count:
            row = sequence - found.first_sequence
            if row < found.count and index[row].sequence == sequence:
                return row
        row = index.first("sequence", sequence)
        if row < found.count and index[row].sequence >= sequence and (row == 0 or index[row - 1].sequence < sequence):
            return row
        # Sequences are out of order: only a full scan helps.
        begin = 0
        for part in index.parts():
            places = np.flatnonzero(part.sequence >= sequence)
            if len(places):
                return begin + int(places[0])
            begin += len(part)
        return found.count

    def _messages(self, entries: MessageRecords, first: int, size: int) -> MessageRecordBuffer:
        """Reads the messages of index records, up to the first faulty one."""
        if not len(entries):
            raise OSError(0, "the index has become shorter")
        offsets = np.ascontiguousarray(entries.offset)
        wanted = entries.sequence
        rows = len(offsets)
        begin = int(offsets[0])
        stop = begin + RECORD_HEADER_SIZE + int(entries.size[0])
        if rows > 1:
            ends = entries.ends
            # Where records are not contiguous, the index is damaged or other bytes lie between them.
            broken = np.flatnonzero((offsets[1:] != ends[:-1]) | (wanted[1:] <= wanted[:-1]))
            rows = int(broken[0]) + 1 if len(broken) else rows
            rows = max(int(ends[:rows].searchsorted(begin + RECORD_HEADER_SIZE + size, "right")), 1)
            stop = int(ends[rows - 1])
        if begin < FILE_HEADER_SIZE or stop - begin > _MAX_BYTES:
            raise UnreadableError(max(int(wanted[0]), first), "the index points outside the file")
        data = _pread(self._data, stop - begin, begin)
        columns, stops = _columns.messages.take(rows), _columns.stops[:rows]
        places = offsets[:rows] - begin
        kernels.read_messages_at(data, len(data), places, self._crc, self._channel, columns, stops)
        good = (stops == ScanStop.END) & (columns.sequence == wanted[:rows]) & (columns.size == entries.size[:rows])
        if not good[0]:
            return self._recheck(data, entries)
        if not good.all():
            rows = int(np.flatnonzero(~good)[0])
            columns = columns.take(rows)
        return MessageRecordBuffer(
            data,
            places[:rows] + RECORD_HEADER_SIZE,
            columns.size.copy(),
            columns.sequence.copy(),
            columns.timestamp.copy(),
        )

    def _record_after(self, row: int) -> MessageRecordBuffer | None:
        """Reads the record after the previous row's, if it is the expected message."""
        offset = self._index[row - 1].end if row else FILE_HEADER_SIZE
        header = _pread(self._data, RECORD_HEADER_SIZE, offset) if offset >= FILE_HEADER_SIZE else b""
        if len(header) < RECORD_HEADER_SIZE:
            return None
        size, _ = RECORD_HEADER.unpack(header)
        if size > os.fstat(self._data).st_size - offset - RECORD_HEADER_SIZE:
            return None
        data = _pread(self._data, RECORD_HEADER_SIZE + size, offset)
        payload, error = read_payload(memoryview(data), 0, len(data), self._crc.checking)
        message = None if error else decode_message(payload)[0]
        if message is None or message.sequence != self._index[row].sequence:
            return None
        return _single(data, size, message.sequence, message.timestamp)

    def _recheck(self, data: bytes, entries: MessageRecords) -> MessageRecordBuffer:
        """Reads a record that failed its check: only its header may be damaged."""
        size, sequence = int(entries.size[0]), int(entries.sequence[0])
        view = memoryview(data)
        payload, error = read_payload(view, 0, len(view), self._crc, size=size)
        if not error:
            message, error = decode_message(payload)
            if message is not None and message.sequence != sequence:
                error = f"message sequence in index is {sequence}, data file is {message.sequence}"
        if error:
            raise UnreadableError(sequence, error)
        return _single(data, size, sequence, int(entries.timestamp[0]))


class ReadAhead:
    """Reads a channel's messages from its slices, and reads ahead for sequential readers."""

    def __init__(self, channel: bytes, files: SliceReader, retention: Retention, buffer_size: int) -> None:
        self.size = 0
        self._files = files
        self._retention = retention
        self._buffer_size = buffer_size
        self._ordered = _in_order(retention.slices)
        self._blocks: list[tuple[int, MessageRecordBuffer]] = []  # each with the requested sequence
        self._next = 0
        self._failed = FailedLookups(channel)

    def held(self, first: int, count: int, size: int) -> MessageRecordBuffer | None:
        """Returns messages that were read ahead, None if the first one is not among them."""
        for place, (begin, block) in enumerate(self._blocks):
            if begin <= first <= int(block.sequences[-1]):
                if place:
                    self._blocks.insert(0, self._blocks.pop(place))
                return part_of(block, int(block.sequences.searchsorted(first)), count, size)
        return None

    def read(self, states: Sequence[SliceState], first: int, count: int, size: int) -> MessageRecordBuffer:
        """Returns messages in order, as `MessageStore.read` does; all messages of `states` must be written."""
        wanted, max_size = count, size
        if first == self._next:
            wanted, max_size = MAX_ROWS, max(size, self._buffer_size)
        elif self._buffer_size:
            wanted, max_size = max(count, _MIN_ROWS), max(size, _MIN_BYTES)
        try:
            block = self._read(states, first, min(wanted, MAX_ROWS), max_size)
        except UnreadableError as error:
            self._failed.report(error.sequence, error)
            return EMPTY
        if block is None:
            return EMPTY
        self._next = int(block.sequences[-1]) + 1
        if len(block.sizes) > count or block.starts[-1] > size:
            self._blocks.insert(0, (first, block))
            del self._blocks[_MAX_BLOCKS:]
            self._measure()
        return part_of(block, 0, count, size)

    def clear(self) -> None:
        self._blocks.clear()
        self._measure()

    def _measure(self) -> None:
        self.size = sum(len(block.data) for _, block in self._blocks)

    def _read(self, states: Sequence[SliceState], first: int, count: int, size: int) -> MessageRecordBuffer | None:
        slices = self._retention.slices
        candidates: Iterator[SliceState]
        if self._ordered:
            place = bisect_left(states, first, key=lambda each: each.last_sequence)
            candidates = (states[at] for at in range(place, len(states)))
        else:
            # Slices overlap: those with the sequence come first, newest first; later ones follow.
            later = [each for each in states if each.last_sequence >= first]
            candidates = iter(sorted(later, key=lambda each: (max(each.first_sequence, first), -each.number)))
        for each in candidates:
            removed = self._retention.removed if slices and each.number == slices[0].number else 0
            found = self._files.read(each, first, count, size, removed)
            if found is not None:
                return found
        return None


def _in_order(slices: Iterable[SliceState]) -> bool:
    """Returns whether the sequences rise from slice to slice."""
    last = 0
    for each in slices:
        if each.first_sequence <= last or each.last_sequence < each.first_sequence:
            return False
        last = each.last_sequence
    return True


def _single(data: bytes, size: int, sequence: int, timestamp: int) -> MessageRecordBuffer:
    return MessageRecordBuffer(
        data,
        np.array([RECORD_HEADER_SIZE], np.int64),
        np.array([size], np.uint32),
        np.array([sequence], np.uint64),
        np.array([timestamp], np.int64),
    )


def _pread(descriptor: int, count: int, offset: int) -> bytes:
    """Reads `count` bytes, fewer only at the end of the file."""
    data = os.pread(descriptor, count, offset)
    while 0 < len(data) < count:
        more = os.pread(descriptor, count - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
