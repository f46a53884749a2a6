from array import array
from collections.abc import Sequence

import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import ArrayLike, NDArray

from stantools.format.columns import FewMessages, LogColumns, MessageColumns
from stantools.format.crc import Crc
from stantools.format.envelope import Buffer
from stantools.format.layout import (
    Stop,
)

def scan_messages(
    buffer: ReadableBuffer,
    start: int,
    limit: int,
    crc: Crc,
    channel: bytes,
    columns: MessageColumns,
    row: int = 0,
) -> tuple[int, int, Stop]:
    """Walks the records of a data file as the server reads them (filestore.md section 7.2), up to the first problem.

    Args:
        buffer: The file.
        start: Offset of the first record's header.
        limit: Where to stop; the end of the buffer if it is beyond.
        crc: How the CRCs were made.
        channel: The subject that messages should have; others are flagged.
        columns: Filled with the good records.
        row: The first row to fill.

    Returns:
        The number of rows in use (those before `row` included), the offset of the record where it stopped,
        and why.
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
    """Walks the records of a data file as long as all is as in a healthy slice, and keeps nothing but sums.

    Every record is good and of the channel, its sequence is higher than that of the record before, and it is what the
    next record of the index names, which is good as well.

    Args:
        buffer: The data file.
        start: Offset of the first record's header.
        until: Stop before a record that begins here or further on.
        crc: How the CRCs were made.
        channel: The subject of the messages.
        index: The index file; None compares with none.
        entry: Number of its record that names the first message.
        after: Sequence of the record before the first.
        rows: Stop behind so many records; also where there are more than `MOST_RANGES` ranges of sequences.

    Returns:
        How many records there are; the offset behind the last; their sequences, as ranges; the sizes of their payloads,
        and those of the messages' data, summed up; the largest of the latter; the first and the last timestamp.
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
    """Reads the record at each of the given offsets, independent of each other.

    Row i belongs to offset i. Where a record is not good, the row holds the offset, the size if there was a
    header, and zeros.

    Args:
        buffer: The file.
        limit: End of the readable part; the end of the buffer if it is beyond.
        offsets: Offsets of record headers, any numbers.
        crc: How the CRCs were made.
        channel: The subject that messages should have; others are flagged.
        columns: At least as many rows as offsets.
        stops: Receives `Stop.END` for good records, else what is wrong; `SHORT_HEADER` also for offsets at or
            beyond the limit or negative. At least as many as offsets.
    """

def gather(
    buffer: ReadableBuffer,
    starts: NDArray[np.int64],
    sizes: NDArray[np.uint32],
    offsets: NDArray[np.int32],
    target: NDArray[np.uint8],
) -> None:
    """Copies parts of a buffer one behind the other, as Arrow keeps binary values.

    Args:
        buffer: The file.
        starts: Where each part begins; of an empty one it does not matter.
        sizes: Bytes of each.
        offsets: Receives where each part begins in `target`, and where the last one ends: one more than parts.
        target: Receives the bytes, as many as all parts have together.

    Raises:
        ValueError: A part lies outside of the buffer, or there are not as many offsets or bytes as there should be.
    """

def find_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, channel: bytes, until: int = -1) -> int:
    """Searches for the next message record after damage.

    A record counts when its payload fits, is a message with a sequence and a subject (of at most
    `fieldscan.MAX_FIELDS` fields) and has the right CRC.

    Args:
        buffer: The file.
        start: First offset to look at.
        limit: Records must end here; the end of the buffer if it is beyond.
        crc: How the CRCs were made.
        channel: The channel that is searched; records of other subjects count, too.
        until: Records must begin before this offset; if below zero, anywhere.

    Returns:
        Offset of the record's header, -1 if there is none.
    """

def scan_log(
    buffer: ReadableBuffer,
    start: int,
    limit: int,
    crc: Crc,
    columns: LogColumns,
    row: int = 0,
) -> tuple[int, int, Stop]:
    """Walks the records of clients.dat or subs.dat as the server reads them (filestore.md section 7.2).

    It stops at the first problem.

    Payloads of the types 3, 4 and 5 are decoded (subs.dat, filestore.md section 3.4); where that fails it stops with
    BAD_DECODE. All other types get a row, unknown ones too.

    Args:
        buffer: The file.
        start: Offset of the first record's header.
        limit: Where to stop; the end of the buffer if it is beyond.
        crc: How the CRCs were made.
        columns: Filled with the good records.
        row: The first row to fill.

    Returns:
        The number of rows in use (those before `row` included), the offset of the record where it stopped,
        and why.
    """

def find_log_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, max_type: int, until: int = -1) -> int:
    """Searches for the next record of clients.dat or subs.dat after damage.

    A record counts when its type is 1 to `max_type`, its payload is not empty, fits, consists of protobuf
    fields (at most `fieldscan.MAX_FIELDS`) and has the right CRC.

    Returns:
        Offset of the record's header, -1 if there is none.
    """

def scan_index(buffer: ReadableBuffer, start: int, limit: int, crc: Crc) -> tuple[int, Stop, int, bool]:
    """Counts the good records of an index file, as the server reads them (filestore.md section 7.6).

    Args:
        buffer: The file.
        start: Offset of the first record, 4 in a file.
        limit: Where to stop; the end of the buffer if it is beyond.
        crc: How the CRCs were made.

    Returns:
        The number of good records; why it stopped: END, SHORT_HEADER (1 to 31 bytes are left), ZEROS (a record of
        zeros) or BAD_CRC; the sum of the sizes that they name; whether their sequences rise.
    """

def read_index(
    descriptor: int, start: int, limit: int, crc: Crc, part: int = 1 << 18
) -> tuple[int, Stop, int, bool] | None:
    """Does what `scan_index` does with an open file: bytes that are looked at once cost less copied than mapped.

    Args:
        descriptor: The file.
        start: Offset of the first record.
        limit: Where to stop; the file has to reach so far.
        crc: How the CRCs were made.
        part: Bytes that are read at once, whole records.

    Returns:
        As `scan_index`; None if the file could not be read as far as that.
    """

def scan_leaf(
    buffer: ReadableBuffer, at: int, limit: int, count: int, low: bytes, high: bytes | None, term: int, bound: int
) -> list[int | tuple[int, int, int, bytes, int, int, int, int, int]] | None:
    """Reads a leaf page of a Raft log's entries as far as they are what servers write when messages are published.

    It only saves time, so the plain kernels do without: they leave every leaf to those who look at single elements
    (`format.raftlog`).

    Args:
        buffer: The file.
        at: Where the page begins.
        limit: Where it ends.
        count: How many elements it should have.
        low: Keys are not below this.
        high: They are below this, if it is there.
        term: The highest term of the entries before.
        bound: An index behind which a run ends.

    Returns:
        None if the elements have to be held against each other, for the page may be damaged. Else, in the order of the
        keys, the place of each element that has to be looked at, and between them runs: entries that follow each other,
        of one term, with messages of one channel that follow each other, as arguments of `raftlog.Publishes`.
    """

def same_entries(
    buffer: ReadableBuffer, at: int, row: int, other: ReadableBuffer, other_at: int, other_row: int, count: int
) -> tuple[int, int]:
    """Compares entries of two Raft logs that `scan_leaf` has put together.

    Like that it only saves time: the plain kernels know of none that they are the same.

    Args:
        buffer: The file.
        at: Where its leaf page begins.
        row: The place of the first element.
        other: The other file.
        other_at: Where its leaf page begins.
        other_row: The place of the first element there.
        count: How many to compare.

    Returns:
        How many from the first on are byte by byte the same, and the sequence of the last message in them.
    """

def encode_index(sequence: ArrayLike, offset: ArrayLike, timestamp: ArrayLike, size: ArrayLike, crc: Crc) -> bytes:
    """Index records for messages of the given properties, without the file's version header.

    Facts: filestore.md section 2.3.
    """

def index_record(sequence: int, offset: int, timestamp: int, size: int, crc: Crc) -> bytes:
    """The index record of one message, faster than `encode_index` for columns of one.

    Facts: filestore.md section 2.3.

    Args:
        sequence: Of the message.
        offset: Where its record begins in the data file.
        timestamp: Nanoseconds since the epoch.
        size: Bytes of its payload.
        crc: How to make CRCs.
    """

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
    """Index records for a run of encoded messages that is to be copied to a data file as it is.

    Facts: filestore.md section 2.3.

    Args:
        data: Holds the records.
        starts: Where each payload begins.
        sizes: Payload size of each.
        sequences: Sequence of each.
        timestamps: Timestamp of each.
        offset: Where in the data file the first record is going to be.
        after: Sequence of the message before the first one.
        crc: How to make CRCs.

    Returns:
        The index records, and where in `data` the run begins and ends. None if it is no run: the records, each with
        its header in front, do not follow each other directly, or their sequences do not follow `after` without gaps.

    Raises:
        ValueError: The columns have different lengths.
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

    Args:
        channel: The subject of all of them.
        sequences: Message sequences, unsigned 64 bits.
        timestamps: Nanoseconds since the epoch, signed 64 bits.
        replies: Reply subjects, empty where there is none; None when no message has one.
        payloads: The messages' data.
        crc: How to make CRCs.

    Returns:
        The records one after the other, and the payload size of each (8 bytes less than it takes in the
        file).
    """

def encode_flow(kind: int, number: int, sequences: Sequence[int], crc: Crc) -> bytes:
    """Encodes that messages were sent to a subscription, or acknowledged by it (filestore.md sections 2.2 and 3.4).

    Args:
        kind: `SubRecord.MSG` or `SubRecord.ACK`.
        number: The subscription's id.
        sequences: Of the messages.
        crc: How to make CRCs.

    Returns:
        The records one after the other.

    Raises:
        OverflowError: A number does not fit into 64 bits.
    """
