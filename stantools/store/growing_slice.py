"""One slice that a server may be writing: the part that is safe to read, and whether it is still the same slice.

A server writes data before index (filestore.md section 6.1), so the last record of the index marks the messages that
are complete and will stay. Data after it is a write in progress, or the remains of a killed server, which may cut it
off when it restarts, append after it, or begin a new slice: readers wait for it. Whole messages after the index are
read when the file has not been written for a while; a torn end is skipped when a later slice has begun. Where the
index does not fit the data, records are followed in the data file itself, as a starting server does.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    INDEX_RECORD,
    INDEX_RECORD_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    ScanStop,
)
from stantools.format.message_batch import MessageBatch
from stantools.store.directory import SliceFiles
from stantools.store.indexes import IndexRecord, SliceIndex
from stantools.store.mapping import mapped, open_regular
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile

#: last index records that are tried to find one that fits the data; earlier ones are older still
_MAX_TRIES = 4
#: Seconds without a write after which no write is in progress. Whole messages that the index does not name are then
#: messages: a server that starts either finds them or leaves them where they are.
SETTLED_SECONDS = 60.0
#: Tag of the last field that the server writes into a message, and bytes of the field (filestore.md section 3.5).
_TIMESTAMP = b"\x28"
_TIMESTAMP_SIZE = 11
_SEQUENCE = b"\x08"


#: sequence of a position without a known good message before it
UNKNOWN = -1


class ChannelPosition(NamedTuple):
    slice: int  #: number of the slice; all before it are read
    offset: int = FILE_HEADER_SIZE  #: bytes read of its data file; a record begins here
    #: sequence of the last message before it; 0 at the start of the channel, `UNKNOWN` if it cannot be determined
    sequence: int = 0
    timestamp: int = 0  #: its timestamp, nanoseconds; 0 if there is none
    size: int = 0  #: its payload size in its record; 0 if there is none


class SlicePosition(NamedTuple):
    end: int  #: offset of the first byte after it
    sequence: int  #: its sequence, or `UNKNOWN`
    timestamp: int  #: its timestamp, nanoseconds
    size: int  #: its payload size in its record


class GrowingSlice:
    """A slice's data file, opened for inspection.

    `size` counts the bytes of the data file, which has all messages that the index names. Raises
    StoreUnreadableError if the data file cannot be read, or is gone.
    """

    def __init__(self, files: SliceFiles, channel: bytes, crc: Crc) -> None:
        assert files.data is not None
        self._path, self._index_path = files.data, files.index or files.data.with_suffix(".idx")
        self._rows = 0
        self._channel, self._crc = channel, crc
        self._tail: bytes | None = None
        self._index_is_torn = False
        try:
            self._data, status = open_regular(self._path)
        except StoreUnreadableError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise StoreUnreadableError(f"{self._path}: is gone since it was listed", "look again") from error
            raise
        self.size, self._written = status.st_size, status.st_mtime

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._data)

    # The readable part.

    def indexed(self) -> SlicePosition | None:
        """Returns the end of the last message that the index names, if the data file has it; else None."""
        if self._tail is None:
            # The index first: the data file then has all messages that it names.
            self._tail = self._index_records(last=True)
            self.size = os.fstat(self._data).st_size
        content = self._tail
        for at in range(len(content) - INDEX_RECORD_SIZE, -1, -INDEX_RECORD_SIZE):
            entry = self._decode(content[at : at + INDEX_RECORD_SIZE])
            if entry is not None and (mark := self._confirm(entry)) is not None:
                return mark
        return None

    def safe(self, start: int) -> SlicePosition | None:
        """Returns the end of the part that is safe to read while a server writes the slice.

        `start` is the beginning of a record, up to which the slice was read. Returns the end of a message after it;
        None if no further one is safe.
        """
        mark = self.indexed()
        if self.settled or mark is None or self._index_is_torn:
            begin = max(start, mark.end) if mark is not None else start
            found = self._good_run(begin, None, None) if begin < self.size else None
            mark = found or mark
        return mark if mark is not None and mark.end > start else None

    @property
    def settled(self) -> bool:
        """The data file has not been written for a while."""
        return math.isinf(self.settles)

    @property
    def settles(self) -> float:
        """The time when the data file counts as settled, seconds since 1970; infinity if it does already."""
        at = self._written + SETTLED_SECONDS
        return at if at >= time.time() else math.inf

    def whole(self) -> SlicePosition:
        """Returns the end of a slice that is not written any more: all its bytes, and its last message."""
        mark = self.indexed()
        if mark is None:
            mark = self._last_good()
        return mark._replace(end=self.size) if mark else SlicePosition(self.size, UNKNOWN, 0, 0)

    def part(
        self, start: int, end: int, max_bytes: int | None, max_rows: int | None
    ) -> tuple[SlicePosition | None, int]:
        """Returns a place between `start` and `end` with about `max_bytes` and at most `max_rows` messages before it.

        The part has at least one message; None is no limit. Returns the place and the number of messages before it;
        None if the part cannot be divided.
        """
        if self.indexed() is not None:
            with mapped(self._index_path) as buffer:
                index = SliceIndex.whole(buffer)
                first, stop = index.first("offset", start), len(index)
                if max_bytes is not None:
                    stop = index.first("offset", start + max_bytes) - 1
                if max_rows is not None:
                    stop = min(stop, first + max_rows)
                stop = min(max(stop, first + 1), len(index))
                if first < len(index) and index[first].offset == start:
                    entry = index[stop - 1]
                    if start < entry.end <= end and (found := self._confirm(entry)) is not None:
                        return found, stop - first
        mark = self._good_run(start, max_bytes, max_rows, end)
        return mark, self._rows

    def first(self) -> SlicePosition | None:
        """Returns the first message: its sequence and timestamp, and where it ends; None if there is none."""
        entry = self._decode(self._index_records(last=False))
        if entry is not None and (mark := self._confirm(entry)) is not None:
            return mark
        with mapped(self._path) as data:
            for part in self._scan(data, FILE_HEADER_SIZE):
                if not isinstance(part, DamagedRange):
                    return _mark(part, 0)
        return None

    # Identity of the slice.

    def continues(self, at: ChannelPosition) -> bool:
        """Returns whether the slice certainly continues at a position.

        Either the last message that was read ends there; or the slice was not begun, and its first message is the
        next one.
        """
        if at.offset > self.size:
            return False
        if at.offset <= FILE_HEADER_SIZE:
            first = self.first() if at.sequence > 0 else None
            return first is None or first.sequence == at.sequence + 1
        entry = IndexRecord(at.sequence, at.offset - RECORD_HEADER_SIZE - at.size, at.timestamp, at.size, 0)
        return at.sequence >= 0 and self._confirm(entry) == SlicePosition(*at[1:])

    def behind(self, at: ChannelPosition) -> int | None:
        """Returns the offset of the first message later than the last one that was read; None if there is none."""
        with mapped(self._path) as data:
            for part in self._scan(data, FILE_HEADER_SIZE):
                if isinstance(part, DamagedRange):
                    continue
                later = part.timestamp > at.timestamp
                if at.sequence >= 0:
                    later |= (part.timestamp == at.timestamp) & (part.sequence > np.uint64(at.sequence))
                if later.any():
                    return int(part.offset[int(later.argmax())])
        return None

    # Internals.

    def _index_records(self, *, last: bool) -> bytes:
        """Returns the last few whole records of the index, or the first one; none if it cannot be read."""
        try:
            flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(self._index_path, flags)
        except OSError:
            return b""
        try:
            at, count = FILE_HEADER_SIZE, 1
            if last:
                have, rest = divmod(max(os.fstat(descriptor).st_size - FILE_HEADER_SIZE, 0), INDEX_RECORD_SIZE)
                self._index_is_torn = rest > 0
                count = min(have, _MAX_TRIES)
                at += (have - count) * INDEX_RECORD_SIZE
            return os.pread(descriptor, count * INDEX_RECORD_SIZE, at)
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def _decode(self, content: bytes) -> IndexRecord | None:
        if len(content) < INDEX_RECORD_SIZE:
            return None
        entry = IndexRecord(*INDEX_RECORD.unpack(content))
        return entry if entry.proven(self._crc) and any(entry[:-1]) else None

    def _confirm(self, entry: IndexRecord) -> SlicePosition | None:
        """Returns the end of the message that the index names, if the data file has it there."""
        end = entry.end
        if entry.offset < FILE_HEADER_SIZE or end > self.size:
            return None
        head = os.pread(self._data, RECORD_HEADER_SIZE + _TIMESTAMP_SIZE, entry.offset)
        if len(head) < RECORD_HEADER_SIZE or RECORD_HEADER.unpack_from(head)[0] != entry.size:
            return None
        tail = os.pread(self._data, _TIMESTAMP_SIZE, max(end - _TIMESTAMP_SIZE, 0))
        begins = head[RECORD_HEADER_SIZE:].startswith(_SEQUENCE + _varint(entry.sequence))
        if begins and tail.endswith(_TIMESTAMP + _varint(entry.timestamp)):
            return SlicePosition(end, entry.sequence, entry.timestamp, entry.size)
        # Not as the server encodes it: then the whole record must prove it.
        with mapped(self._path) as data:
            if end > len(data):
                return None
            found = SliceFile(data, self._channel, self._crc).message_at(entry.offset)
            if found is None or (found.sequence[0], found.size[0]) != (entry.sequence, entry.size):
                return None
            return SlicePosition(end, entry.sequence, int(found.timestamp[0]), entry.size)

    def _good_run(
        self, start: int, max_bytes: int | None, max_rows: int | None, limit: int | None = None
    ) -> SlicePosition | None:
        """Follows records in the data file from an offset on.

        Damage is skipped if good records follow it, except where a record reaches beyond the end of the file: that
        may be a write in progress, whose payload may look like records.
        """
        self._rows = 0
        mark: SlicePosition | None = None
        with mapped(self._path) as data:
            for part in self._scan(data[: self.size if limit is None else min(limit, self.size)], start):
                if isinstance(part, DamagedRange):
                    if not self.settled and part.stop in (
                        ScanStop.SHORT_HEADER,
                        ScanStop.SHORT_PAYLOAD,
                        ScanStop.DANGLING,
                    ):
                        break
                    continue
                rows = part.capacity if max_rows is None else min(part.capacity, max_rows - self._rows)
                ends = part.ends[:rows]
                if max_bytes is not None:
                    rows = int(np.searchsorted(ends, start + max_bytes, "right"))
                    if not self._rows:
                        rows = max(rows, 1)
                if rows:
                    mark = _mark(part, rows - 1)
                    self._rows += rows
                if rows < part.capacity or self._rows == max_rows:
                    break
        return mark

    def _last_good(self) -> SlicePosition | None:
        mark: SlicePosition | None = None
        with mapped(self._path, sequential=True) as data:
            for part in self._scan(data, FILE_HEADER_SIZE):
                if not isinstance(part, DamagedRange):
                    mark = _mark(part, -1)
        return mark

    def _scan(self, data: memoryview, start: int) -> Iterator[MessageBatch | DamagedRange]:
        return SliceFile(data, self._channel, self._crc).records(start)


def _mark(part: MessageBatch, row: int) -> SlicePosition:
    size = int(part.size[row])
    end = int(part.offset[row]) + RECORD_HEADER_SIZE + size
    return SlicePosition(end, int(part.sequence[row]), int(part.timestamp[row]), size)


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
