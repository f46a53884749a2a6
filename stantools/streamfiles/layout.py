"""The layout of message blocks in a stream archive (jetstream-migration.md section 5.2), and columns of their records.

A block consists of successive records, little endian:

    u32 length of the whole record (bit 31: there are headers) | u64 sequence (bit 63: erased or skipped) | i64 time
    u16 size of the subject | subject | u32 size of the headers and headers, if bit 31 says so | payload | 8 bytes hash

The hash is HighwayHash-64 over sequence, time, subject, headers and payload, without the sizes.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stantools.errors import StantoolsError
from stantools.lazy_numpy import np
from stantools.streamfiles import headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stantools.format.columns import MessageColumns


class ArchiveError(StantoolsError):
    """Bytes are not a stream archive, or a damaged one; the message has the place and the expectation."""


#: directory of a stream's blocks; during a purge those of the old and the new messages
MESSAGES: Final = "msgs"
PURGED: Final = "__msgs__"
PURGING: Final = "__new_msgs__"
#: file in `msgs` with the state of all blocks
INDEX: Final = "index.db"
#: files of blocks, and of blocks that were being rewritten, with their number
BLOCK_NAME: Final = re.compile(r"([1-9][0-9]{0,9})\.blk")
NEW_BLOCK_NAME: Final = re.compile(r"([1-9][0-9]{0,9})\.(?:blk\.tmp|new)")
#: first bytes of a compressed block
COMPRESSED: Final = b"cmp\x01"

#: length, sequence, time and size of the subject
RECORD_HEAD_SIZE: Final = 22
#: the size of the headers, if there are any
HEADER_LENGTH_SIZE: Final = 4
HASH_SIZE: Final = 8
#: a record without subject, headers and payload, such as a skip record
EMPTY_RECORD_SIZE: Final = RECORD_HEAD_SIZE + HASH_SIZE
#: maximum size of a record; the server takes a longer one for damage
MAX_RECORD_SIZE: Final = 32 << 20
#: bit 31 of the length
HAS_HEADERS: Final = 1 << 31
#: bit 63 of the sequence: no message has it
SKIPPED: Final = 1 << 63
#: Bit 62 of the sequence: it was deleted later than it was stored. Never written (jetstream-migration.md section 5.3).
TOMBSTONE: Final = 1 << 62
#: the greatest sequence that is not mistaken for a flag
MAX_SEQUENCE: Final = TOMBSTONE - 1
MAX_SUBJECT_SIZE: Final = 0xFFFF

#: A gap up to this is filled with skip records; a wider one starts a new block, since a server keeps a table over the
#: whole span of a block (jetstream-migration.md section 5.3).
MAX_SKIPS: Final = 65536

#: uncompressed bytes in a chunk of a frame, and the bytes before them (jetstream-migration.md section 7)
CHUNK_SIZE: Final = 65536
CHUNK_HEAD_SIZE: Final = 8


class WriteStop(enum.IntEnum):
    """Reasons of the end of writing records."""

    #: every row is written
    DONE = 0
    #: the next record does not fit into the block
    FULL = 1
    #: more sequences are missing before the next one than a block should span
    GAP = 2
    #: the next record would exceed `MAX_RECORD_SIZE`
    TOO_LARGE = 3
    #: the next sequence is not greater than the last one, or exceeds `MAX_SEQUENCE`
    BAD_SEQUENCE = 4


class RecordFlaw(enum.IntEnum):
    """Reasons of the end of reading records."""

    #: all records are read
    NONE = 0
    #: the columns are full
    FULL = 1
    #: the block ends within a record
    CUT = 2
    #: the sizes in a record contradict each other
    BAD_LENGTH = 3
    #: the hash of a record does not match
    BAD_HASH = 4


@dataclass(slots=True)
class OpenBlock:
    """A block that is being written."""

    #: Memory with room for `MAX_SKIPS` empty records after `room`, or after a larger first record.
    content: NDArray[np.uint8]
    room: int  #: offset in `content` that no record should pass
    key: bytes  #: key of the block, 32 bytes
    position: int = 0  #: end of the records so far
    last: int = 0  #: the last sequence of the stream so far, skip records included; 0 at its beginning
    last_time: int = 0  #: its time


class RecordColumns:
    """Columns of the records of a block, one row per record. Positions count from the start of the block."""

    names = (
        "data_size",
        "data_start",
        "flags",
        "header_size",
        "header_start",
        "length",
        "sequence",
        "subject_size",
        "subject_start",
        "timestamp",
    )
    __slots__ = ("capacity", *names)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.sequence: NDArray[np.uint64] = np.zeros(capacity, np.uint64)  #: sequence in the stream, without flags
        #: the flags of the sequence: 2 skipped, 1 tombstone
        self.flags: NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self.timestamp: NDArray[np.int64] = np.zeros(capacity, np.int64)  #: nanoseconds since 1970
        self.length: NDArray[np.uint32] = np.zeros(capacity, np.uint32)  #: size of the record in bytes
        self.subject_start: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.subject_size: NDArray[np.uint32] = np.zeros(capacity, np.uint32)  #: bytes
        self.header_start: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.header_size: NDArray[np.uint32] = np.zeros(capacity, np.uint32)  #: bytes, 0 without headers
        self.data_start: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.data_size: NDArray[np.uint32] = np.zeros(capacity, np.uint32)  #: bytes

    def __len__(self) -> int:
        return self.capacity

    def take(self, rows: int | slice | NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Returns some of the rows: the first `rows` or a slice as views, or those of a mask or list as copies."""
        part = object.__new__(type(self))
        part._fill(self, slice(rows) if isinstance(rows, int) else rows)
        return part

    def _fill(self, source: RecordColumns, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> None:
        for name in RecordColumns.names:
            setattr(self, name, getattr(source, name)[rows])
        self.capacity = len(self.sequence)


class MessagePlaces(NamedTuple):
    """Places of messages in a buffer, one row each. The columns may be those of a larger table."""

    subject: NDArray[np.int32]  #: where the subject begins
    subject_size: NDArray[np.int32]  #: bytes of the subject
    header_size: NDArray[np.int32]  #: bytes of headers before the payload, 0 for none
    start: NDArray[np.int32]  #: where headers (if any) and payload begin
    size: NDArray[np.int32]  #: bytes of headers and payload


_POWERS: Final = tuple(10**power for power in range(1, 20))
#: Constant bytes: of a block with origin (with an empty channel and numbers of one digit), and of a reply in a block
#: that exists anyway and in one that does not.
_WITH_ORIGIN: Final = len(headers.header_block(b"", 0, 0, b"", origin=True)) - 2
_FRAME: Final = len(headers.VERSION_LINE) + len(headers.END_LINE)
_REPLY_LINE: Final = len(headers.header_block(b"", 0, 0, b"x", origin=False)) - 1 - _FRAME


def decimal_sizes(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the number of digits of each number."""
    return np.searchsorted(np.array(_POWERS, np.uint64), numbers, "right") + 1


def header_sizes(columns: MessageColumns, channel_size: int, origin: bool) -> NDArray[np.int64]:
    """Returns the size of the header block of each message; 0 if it needs none."""
    replies = columns.reply_size.astype(np.int64)
    line = np.where(replies > 0, replies + _REPLY_LINE, 0)
    if not origin:
        return np.where(replies > 0, line + _FRAME, 0)
    negative = columns.timestamp < 0
    # correct also for the least number, whose magnitude wraps to itself
    magnitude = np.where(negative, -columns.timestamp, columns.timestamp).view(np.uint64)
    numbers = decimal_sizes(columns.sequence) + decimal_sizes(magnitude) + negative
    return numbers + (_WITH_ORIGIN + channel_size) + line


def record_size(subject: bytes, header: bytes, payload: bytes) -> int:
    size = EMPTY_RECORD_SIZE + len(subject) + len(header) + len(payload)
    return size + HEADER_LENGTH_SIZE if header else size


def record_sizes(
    columns: MessageColumns, channel_size: int, subject_size: int, origin: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the size of the record and of the header block of each message (jetstream-migration.md section 5.2)."""
    blocks = header_sizes(columns, channel_size, origin)
    sizes = columns.data_size.astype(np.int64) + blocks + (EMPTY_RECORD_SIZE + subject_size)
    return np.where(blocks > 0, sizes + HEADER_LENGTH_SIZE, sizes), blocks
