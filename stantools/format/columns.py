"""Columns: one array per property of a record, filled by the scan kernels.

Columns are made once and reused for every part of a file; `take` returns views of the rows in use. Offsets are
absolute positions in the scanned buffer, which is not copied. Columns for computation are numpy arrays; records of
logs, and small numbers of messages, use plain memory without numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from struct import calcsize
from typing import TYPE_CHECKING, Any, Self

from stantools.format.layout import INDEX_DTYPE, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE
from stantools.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: a size at which the columns fit the processor's cache and the cost of a call is negligible
DEFAULT_CAPACITY = 16384


class _ColumnSet:
    __slots__ = ("capacity",)
    names: tuple[str, ...] = ()

    capacity: int
    offset: Any
    size: Any

    @property
    def end(self) -> int:
        """Where the last record ends; at least one is required."""
        return int(self.offset[-1]) + RECORD_HEADER_SIZE + int(self.size[-1])

    def take(self, rows: int) -> Self:
        """Returns the first rows as views, which change when the columns are filled again."""
        if not 0 <= rows <= self.capacity:
            raise ValueError(f"{rows} rows of {self.capacity}")
        part = object.__new__(type(self))
        part.capacity = rows
        for name in self.names:
            setattr(part, name, getattr(self, name)[:rows])
        return part


class MessageRecords(_ColumnSet):
    """Places and timestamps of messages, in the order of a file: columns of the same length."""

    __slots__ = _places = ("offset", "size", "sequence", "timestamp")
    names: tuple[str, ...] = _places

    offset: NDArray[np.int64]  #: where the record's header begins
    size: NDArray[np.uint32]  #: payload size as in the header, without the 8 bytes of the header
    sequence: NDArray[np.uint64]  #: message sequence
    timestamp: NDArray[np.int64]  #: nanoseconds since the epoch

    @staticmethod
    def of_index(content: memoryview | bytes) -> MessageRecords:
        """Returns views of index records (msgs.N.idx, filestore.md section 2.3) without the file's header."""
        table = np.frombuffer(content, _index_dtype(), len(content) // INDEX_RECORD_SIZE)
        return MessageRecords.of(table["offset"], table["size"], table["sequence"], table["timestamp"])

    @staticmethod
    def joined(parts: Iterable[MessageRecords]) -> MessageRecords:
        """Copies places and timestamps; each part is used before the next one is requested."""
        copies = [part.copied() for part in parts]
        if len(copies) == 1:
            return copies[0]
        if not copies:
            return MessageRecords.of_index(b"")
        return MessageRecords.of(*map(np.concatenate, zip(*map(MessageRecords._columns, copies), strict=True)))

    @staticmethod
    def of(
        offset: NDArray[np.int64], size: NDArray[np.uint32], sequence: NDArray[np.uint64], timestamp: NDArray[np.int64]
    ) -> MessageRecords:
        """Returns columns that exist."""
        records = object.__new__(MessageRecords)
        records.capacity = len(offset)
        records.offset, records.size, records.sequence, records.timestamp = offset, size, sequence, timestamp
        return records

    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.int64]]:
        return self.offset, self.size, self.sequence, self.timestamp

    def __len__(self) -> int:
        return self.capacity

    def take(self, rows: int) -> Self:
        if not 0 <= rows <= self.capacity:
            raise ValueError(f"{rows} rows of {self.capacity}")
        return self.part(0, rows)

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each record ends."""
        return self.offset + self.size + np.int64(RECORD_HEADER_SIZE)

    @property
    def consecutive(self) -> bool:
        """Every record begins where the one before it ends."""
        return bool((self.offset[1:] == self.ends[:-1]).all())

    def copied(self) -> MessageRecords:
        """Returns contiguous copies of places and timestamps."""
        return MessageRecords.of(self.offset.copy(), self.size.copy(), self.sequence.copy(), self.timestamp.copy())

    def pick(self, rows: NDArray[Any]) -> Self:
        part = object.__new__(type(self))
        for name in self.names:
            setattr(part, name, getattr(self, name)[rows])
        part.capacity = len(part.offset)
        return part

    def part(self, low: int, high: int) -> Self:
        """Returns the rows from `low` to `high`, the latter excluded, as views."""
        return self.pick(slice(low, high))  # type: ignore[arg-type]


class MessageColumns(MessageRecords):
    """Columns of the messages of a slice, one row per record (msgs.N.dat, filestore.md sections 2.2 and 3.5)."""

    __slots__ = _content = ("data_start", "data_size", "reply_start", "reply_size", "flags")
    names = (*MessageRecords._places, *_content)

    data_start: NDArray[np.int64]  #: where the message's data begins; 0 when it has none
    data_size: NDArray[np.uint32]  #: size of the message's data in bytes
    reply_start: NDArray[np.int64]  #: where the reply subject begins; 0 when there is none
    reply_size: NDArray[np.uint32]  #: size of the reply subject in bytes
    flags: NDArray[np.uint8]  #: bits of `layout.Flag`

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self.offset = np.zeros(capacity, np.int64)
        self.size = np.zeros(capacity, np.uint32)
        self.sequence = np.zeros(capacity, np.uint64)
        self.timestamp = np.zeros(capacity, np.int64)
        self.data_start = np.zeros(capacity, np.int64)
        self.data_size = np.zeros(capacity, np.uint32)
        self.reply_start = np.zeros(capacity, np.int64)
        self.reply_size = np.zeros(capacity, np.uint32)
        self.flags = np.zeros(capacity, np.uint8)

    def part(self, low: int, high: int) -> Self:
        part = object.__new__(type(self))
        part.capacity = high - low
        # Written out: merging channels calls this for every few messages.
        part.offset = self.offset[low:high]
        part.size = self.size[low:high]
        part.sequence = self.sequence[low:high]
        part.timestamp = self.timestamp[low:high]
        part.data_start = self.data_start[low:high]
        part.data_size = self.data_size[low:high]
        part.reply_start = self.reply_start[low:high]
        part.reply_size = self.reply_size[low:high]
        part.flags = self.flags[low:high]
        return part


class FewMessages(_ColumnSet):
    """A few messages, with the columns of `MessageColumns` as memory views."""

    __slots__ = names = MessageColumns.names

    offset: memoryview
    size: memoryview
    sequence: memoryview
    timestamp: memoryview
    data_start: memoryview
    data_size: memoryview
    reply_start: memoryview
    reply_size: memoryview
    flags: memoryview

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        for name, code in zip(self.names, "qIQqqIqIB", strict=True):
            setattr(self, name, _zeros(code, capacity))


class LogColumns(_ColumnSet):
    """Columns of the typed records of a log, one row per record (filestore.md section 2.2)."""

    __slots__ = names = ("offset", "size", "type", "id", "seq")

    offset: memoryview  #: where the record's header begins, i64
    size: memoryview  #: payload size in bytes, u32
    type: memoryview  #: record type, u8
    id: memoryview  #: subscription id of the types 3, 4 and 5 of subs.dat, else 0; u64
    seq: memoryview  #: message sequence of the types 4 and 5 of subs.dat, else 0; u64

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self.offset = _zeros("q", capacity)
        self.size = _zeros("I", capacity)
        self.type = _zeros("B", capacity)
        self.id = _zeros("Q", capacity)
        self.seq = _zeros("Q", capacity)


@cache
def _index_dtype() -> np.dtype[Any]:
    return np.dtype(INDEX_DTYPE)


def _zeros(code: str, rows: int) -> memoryview:
    """Makes a column of numbers; `code` is a type code of the module `struct`."""
    return memoryview(bytearray(calcsize(code) * rows)).cast(code)  # type: ignore[call-overload,no-any-return]
