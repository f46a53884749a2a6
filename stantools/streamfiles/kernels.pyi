import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import NDArray

from stantools.format.message_batch import MessageBatch
from stantools.streamfiles.layout import (
    MessagePlaces,
    OpenBlock,
    RecordColumns,
    RecordFlaw,
    WriteStop,
)
from stantools.streamfiles.record_batch import RecordBatch

def hash64(data: ReadableBuffer, key: bytes) -> int:
    """Returns HighwayHash-64 of one text; `key` is 32 bytes."""

def crc32c(data: ReadableBuffer) -> int:
    """Returns CRC-32C as the frames use it (jetstream-migration.md section 7), not masked."""

def frame(data: ReadableBuffer, out: NDArray[np.uint8], position: int) -> int:
    """Writes data as stored chunks of the snappy framing format (jetstream-migration.md section 7).

    `out` needs 8 bytes more than the data for each 65536 bytes or part of them, from `position` on. Returns the
    position after the chunks.
    """

def encode_records(batch: MessageBatch, first: int, block: OpenBlock, origin: bool) -> tuple[int, int, WriteStop]:
    """Writes messages as records of a block, with a skip record for each sequence missing between two of them.

    No sequence is skipped at the start of a block, and the first record may be larger than its room. If even that
    one does not fit into the content, the result is FULL with an empty block. The block's position, last sequence
    and last time advance. With `origin`, headers with channel, sequence and time are written.

    Returns the next row, the size of the messages' records (a server's count of the stream's bytes), and the reason
    of the end.
    """

def copy_records(batch: RecordBatch, first: int, block: OpenBlock) -> tuple[int, int, WriteStop]:
    """Writes records of another block as records of this one, as `encode_records` does."""

def content_hashes(block: ReadableBuffer, columns: RecordColumns, key: bytes) -> NDArray[np.uint64]:
    """Returns the hash of each record's sequence, time, subject, headers and payload under one key."""

def encode_skips(block: OpenBlock, sequence: int, count: int, timestamp: int) -> None:
    """Appends `count` skip records from `sequence` on to a block, and advances its position."""

def encode_pending(pending: dict[int, tuple[int, int]], floor: int, number_floor: int) -> bytes:
    """Returns the pending messages of `o.dat`, from their base second on, by sequence.

    Raises OverflowError for what has no place in 64 bits.
    """

def encode_redelivered(redelivered: dict[int, int], floor: int) -> bytes:
    """Returns the redeliveries of `o.dat`, by sequence; raises as `encode_pending`."""

def scan_records(
    block: ReadableBuffer, position: int, key: bytes, columns: RecordColumns
) -> tuple[int, int, RecordFlaw]:
    """Reads the records of a whole block as a server does, from `position` up to the first that is not good.

    Fills `columns` from row 0 on. Returns the number of rows, the end position and the reason.
    """

def end_of_records(block: ReadableBuffer, key: bytes) -> int:
    """Returns the end of the good records at the beginning of a whole block: its size if all are good."""

def next_record(block: ReadableBuffer, position: int, key: bytes, budget: int) -> int:
    """Returns the offset of the first good record at or after `position`; the size of the block if there is none.

    The search ends after records of `budget` bytes in all turned out to be none.
    """

def subject_hashes(block: ReadableBuffer, columns: RecordColumns) -> NDArray[np.uint64]:
    """Returns a hash of each record's subject, which tells subjects of this process apart."""

def decompress_s2(data: ReadableBuffer, limit: int) -> tuple[bytes, bool]:
    """Returns the content of a block of S2 up to its first impossible token, and whether that is all of it.

    Nothing is returned of a block that claims more than `limit` bytes.
    """

def encode_record(sequence: int, time: int, subject: bytes, header: bytes, payload: bytes, key: bytes) -> bytes:
    """Returns a record; `sequence` includes flags, `time` is in nanoseconds since 1970, `key` is that of the block.

    Raises ValueError if it is too large for a record.
    """

def encode_tombstones(sequences: NDArray[np.uint64], times: NDArray[np.int64], key: bytes) -> bytes:
    """Returns the records that delete messages of these sequences and times (nanoseconds since 1970).

    `key` is that of the block that the records go to.
    """

def decode_record(data: bytes, key: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Returns subject, header block and payload of a record; None if it is invalid or its hash differs."""

def direct_answer(data: bytes, key: bytes, stream: bytes) -> tuple[bytes, int] | None:
    """Returns header block and payload of a record's message, in the form of a direct get, and the size of the block.

    `stream` is the name of the stream, for the headers that locate the message. None if the record is invalid or its
    hash differs.
    """

def find_messages(
    block: ReadableBuffer, starts: NDArray[np.uint32], sizes: NDArray[np.uint32], key: bytes, places: MessagePlaces
) -> int:
    """Locates the messages of records with known starts and sizes, up to the first record that is not good.

    Fills `places`, which is as long as the others. Returns the number of good records.
    """
