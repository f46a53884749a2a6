from array import array
from collections.abc import Sequence

import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import ArrayLike, NDArray

from stantools.format.columns import FewMessages, LogColumns, MessageColumns
from stantools.format.crc import Crc
from stantools.format.envelope import Buffer
from stantools.format.layout import (
    ScanStop,
)

def scan_messages(
    buffer: ReadableBuffer,
    start: int,
    limit: int,
    crc: Crc,
    channel: bytes,
    columns: MessageColumns,
    row: int = 0,
) -> tuple[int, int, ScanStop]:
    """Walks the records of a data file as the server reads them (filestore.md section 7.2), up to the first problem.

    Good records fill `columns` from `row` on; other subjects than `channel` are flagged. Returns the number of rows
    in use (those before `row` included), the offset of the record where the scan stopped, and the reason.
    """

def scan_run(
    buffer: ReadableBuffer,
    start: int,
    until: int,
    crc: Crc,
    channel: bytes,
    index: ReadableBuffer | None,
    entry: int,
    after: int,
    rows: int,
) -> tuple[int, int, list[tuple[int, int]], int, int, int, int, int]:
    """Walks the records of a data file while all is as in a healthy slice, and keeps only sums.

    Every record is good and of the channel, its sequence exceeds that of the record before (`after` for the first),
    and it matches the next record of the index, from number `entry` on, which is good as well; without an index
    nothing is compared. The walk stops before a record that begins at `until` or later, after `rows` records, or at
    more than `MOST_RANGES` ranges of sequences.

    Returns the number of records; the offset after the last; their sequences, as ranges; the total sizes of their
    payloads and of the messages' data; the largest of the latter; the first and the last timestamp.
    """

def read_messages_at(
    buffer: ReadableBuffer,
    limit: int,
    offsets: NDArray[np.int64] | array[int],
    crc: Crc,
    channel: bytes,
    columns: MessageColumns | FewMessages,
    stops: NDArray[np.uint8] | bytearray,
) -> None:
    """Reads the record at each of the given offsets, independently; row i belongs to offset i.

    For a bad record, the row holds the offset, the size if there is a header, and zeros; `stops` receives the reason
    (`ScanStop.END` for good records, `SHORT_HEADER` also for offsets outside the readable part). `columns` and `stops`
    must have at least as many rows as offsets.
    """

def gather(
    buffer: ReadableBuffer,
    starts: NDArray[np.int64],
    sizes: NDArray[np.uint32],
    offsets: NDArray[np.int32],
    target: NDArray[np.uint8],
) -> None:
    """Copies parts of a buffer one after the other, as Arrow keeps binary values.

    `offsets` receives the place of each part in `target` and the end of the last one: one more than parts. Raises
    ValueError if a part lies outside the buffer, or if a column has the wrong length.
    """

def find_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, channel: bytes, until: int = -1) -> int:
    """Searches for the next message record after damage; returns the offset of its header, -1 if there is none.

    A record counts if its payload fits, is a message with a sequence and a subject (of at most
    `fieldscan.MAX_FIELDS` fields) and has the right CRC. Records of other subjects than `channel` count. Records
    must begin before `until`, unless that is negative, and end by `limit`.
    """

def scan_log(
    buffer: ReadableBuffer,
    start: int,
    limit: int,
    crc: Crc,
    columns: LogColumns,
    row: int = 0,
) -> tuple[int, int, ScanStop]:
    """Walks the records of clients.dat or subs.dat as the server reads them (filestore.md section 7.2).

    Payloads of the types 3, 4 and 5 are decoded (subs.dat, filestore.md section 3.4); the walk stops with BAD_DECODE
    where that fails. All other types get a row, unknown ones included. Returns the number of rows in use (those
    before `row` included), the offset of the record where the walk stopped, and the reason.
    """

def find_log_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, max_type: int, until: int = -1) -> int:
    """Searches for the next record of clients.dat or subs.dat after damage; returns its offset, -1 if there is none.

    A record counts if its type is 1 to `max_type`, its payload is not empty, fits, consists of protobuf fields (at
    most `fieldscan.MAX_FIELDS`) and has the right CRC.
    """

def scan_index(buffer: ReadableBuffer, start: int, limit: int, crc: Crc) -> tuple[int, ScanStop, int, bool]:
    """Counts the good records of an index file, as the server reads them (filestore.md section 7.6).

    Returns the number of good records; the reason for the stop: END, SHORT_HEADER (1 to 31 bytes are left), ZEROS (a
    record of zeros) or BAD_CRC; the total of their message sizes; whether their sequences rise.
    """

def read_index(
    descriptor: int, start: int, limit: int, crc: Crc, part: int = 1 << 18
) -> tuple[int, ScanStop, int, bool] | None:
    """Reads an open file, `part` bytes at a time, as `scan_index` reads a buffer; None if the file is too short.

    Bytes that are read once cost less copied than mapped. `part` is a whole number of records.
    """

def scan_leaf(
    buffer: ReadableBuffer, at: int, limit: int, count: int, low: bytes, high: bytes | None, term: int, bound: int
) -> list[int | tuple[int, int, int, bytes, int, int, int, int, int]] | None:
    """Reads a leaf page of a Raft log's entries if it is as servers write it for published messages; saves time only.

    Keys lie from `low` to below `high`. `term` is the highest term of the entries before; a run ends at index
    `bound`. Returns None if the page may be damaged and its elements must be checked against each other. Else, in
    the order of the keys, the place of each element that must be decoded by itself (`format.raftlog`), and between
    them runs as arguments of `raftlog.Publishes`: successive entries of one term with successive messages of one
    channel.
    """

def same_entries(
    buffer: ReadableBuffer, at: int, row: int, other: ReadableBuffer, other_at: int, other_row: int, count: int
) -> tuple[int, int]:
    """Compares entries of two Raft logs within runs of `scan_leaf`.

    `at` and `other_at` are the starts of the leaf pages, `row` and `other_row` the places of the first elements.
    Returns the number of leading entries that are equal byte by byte, and the sequence of the last message in them.
    """

def encode_index(sequence: ArrayLike, offset: ArrayLike, timestamp: ArrayLike, size: ArrayLike, crc: Crc) -> bytes:
    """Returns index records, without the file's version header (filestore.md section 2.3)."""

def index_record(sequence: int, offset: int, timestamp: int, size: int, crc: Crc) -> bytes:
    """Returns the index record of one message (filestore.md section 2.3), faster than `encode_index`."""

def index_run(
    data: Buffer,
    starts: NDArray[np.int64],
    sizes: NDArray[np.uint32],
    sequences: NDArray[np.uint64],
    timestamps: NDArray[np.int64],
    offset: int,
    after: int,
    crc: Crc,
) -> tuple[bytes, int, int] | None:
    """Returns index records for a run of encoded messages that is copied unchanged to `offset` of a data file.

    Also returns where in `data` the run begins and ends. None if it is not a run: the records, each with its header,
    do not follow each other directly, or their sequences do not follow `after` without gaps. Raises ValueError if
    the columns differ in length.
    """

def encode_messages(
    channel: bytes,
    sequences: ArrayLike,
    timestamps: ArrayLike,
    replies: Sequence[bytes] | None,
    payloads: Sequence[bytes],
    crc: Crc,
) -> tuple[bytes, NDArray[np.uint32]]:
    """Encodes messages as records of a data file, byte by byte as the server does (filestore.md section 3.1).

    Timestamps are nanoseconds since 1970; `replies` is None when no message has a reply subject. Returns the records
    one after the other, and the payload size of each (8 bytes less than the record).
    """

def encode_flow(kind: int, number: int, sequences: Sequence[int], crc: Crc) -> bytes:
    """Encodes that messages were sent to a subscription (`SubRecord.MSG`), or acknowledged by it (`ACK`)."""
