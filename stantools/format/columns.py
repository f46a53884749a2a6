"""Columns: one array per property of a record, filled by the scan kernels.

Columns are made once and reused for every part of a file; `take` returns views of the rows in use. Offsets are
absolute positions in the scanned buffer, which is not copied. Columns for computation are numpy arrays; records of
logs, and small numbers of messages, use plain memory without numpy.
"""

from __future__ import annotations

from struct import calcsize
from typing import TYPE_CHECKING, Any, Self

from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: a size at which the columns fit the processor's cache and the cost of a call is negligible
DEFAULT_CAPACITY = 16384


class _ColumnSet:
    __slots__ = ("capacity",)
    _arrays: tuple[str, ...] = ()

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
        for name in self._arrays:
            setattr(part, name, getattr(self, name)[:rows])
        return part


class MessageColumns(_ColumnSet):
    """Columns of the messages of a slice, one row per record (msgs.N.dat, filestore.md sections 2.2 and 3.5)."""

    __slots__ = _arrays = (
        "offset",
        "size",
        "sequence",
        "timestamp",
        "data_start",
        "data_size",
        "reply_start",
        "reply_size",
        "flags",
    )

    offset: NDArray[np.int64]  #: where the record's header begins
    size: NDArray[np.uint32]  #: payload size as in the header, without the 8 bytes of the header
    sequence: NDArray[np.uint64]  #: message sequence
    timestamp: NDArray[np.int64]  #: nanoseconds since the epoch
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

    def pick(self, rows: NDArray[Any]) -> MessageColumns:
        part = object.__new__(MessageColumns)
        for name in self._arrays:
            setattr(part, name, getattr(self, name)[rows])
        part.capacity = len(part.offset)
        return part

    def part(self, low: int, high: int) -> MessageColumns:
        """Returns the rows from `low` to `high`, the latter excluded, as views."""
        part = object.__new__(MessageColumns)
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

    __slots__ = _arrays = MessageColumns.__slots__

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
        for name, code in zip(self._arrays, "qIQqqIqIB", strict=True):
            setattr(self, name, _zeros(code, capacity))


class LogColumns(_ColumnSet):
    """Columns of the typed records of a log, one row per record (filestore.md section 2.2)."""

    __slots__ = _arrays = ("offset", "size", "type", "id", "seq")

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


def _zeros(code: str, rows: int) -> memoryview:
    """Makes a column of numbers; `code` is a type code of the module `struct`."""
    return memoryview(bytearray(calcsize(code) * rows)).cast(code)  # type: ignore[call-overload,no-any-return]
