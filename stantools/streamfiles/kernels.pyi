import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import NDArray

from stantools.streamfiles.batch import Batch
from stantools.streamfiles.layout import (
    Flaw,
    OpenBlock,
    Places,
    RecordColumns,
    Stop,
)

def hash64(data: ReadableBuffer, key: bytes) -> int:
    """HighwayHash-64 of one text; `key` is 32 bytes."""

def crc32c(data: ReadableBuffer) -> int:
    """CRC-32C as the frames use it (jetstream-migration.md section 7), not masked."""

def frame(data: ReadableBuffer, out: NDArray[np.uint8], position: int) -> int:
    """Writes data as stored chunks of the snappy framing format (jetstream-migration.md section 7).

    Args:
        data: Anything.
        out: Where to write; needs 8 bytes more than the data for each 65536 bytes or part of them.
        position: Where in `out` to begin.

    Returns:
        The position in `out` behind the chunks.
    """

def encode_records(batch: Batch, first: int, block: OpenBlock, origin: bool) -> tuple[int, int, Stop]:
    """Writes messages as records of a block, with a skip record for each sequence missing between two of them.

    Nothing is skipped at the beginning of a block, and the first record may be larger than its room. If even that one
    does not fit into the content, the block is full while it is empty.

    Args:
        batch: The messages.
        first: The first row to write.
        block: The block; its position, last sequence and last time are moved on.
        origin: Write headers with channel, sequence and time.

    Returns:
        The row to go on with, the size of the records of messages (what a server counts as bytes of the stream), and
        why it ended.
    """

def encode_skips(block: OpenBlock, sequence: int, count: int, timestamp: int) -> None:
    """Writes `count` skip records from `sequence` on behind what is in a block, and moves its position on."""

def scan_records(block: ReadableBuffer, position: int, key: bytes, columns: RecordColumns) -> tuple[int, int, Flaw]:
    """Reads the records of a block as a server does, up to the first that is not good.

    Args:
        block: The whole block.
        position: Where to begin.
        key: Of the block, 32 bytes.
        columns: Filled from row 0 on.

    Returns:
        The number of rows, the position where it ended and why.
    """

def encode_record(sequence: int, time: int, subject: bytes, header: bytes, payload: bytes, key: bytes) -> bytes:
    """Returns a record.

    Args:
        sequence: Its sequence, with flags.
        time: Nanoseconds since 1970.
        subject: The subject.
        header: The header block; empty for none.
        payload: The payload.
        key: Of the block, 32 bytes.

    Raises:
        ValueError: It is too large for a record.
    """

def encode_tombstones(sequences: NDArray[np.uint64], times: NDArray[np.int64], key: bytes) -> bytes:
    """Returns the records that take out messages.

    Args:
        sequences: The sequences of the messages.
        times: Their times, nanoseconds since 1970.
        key: Of the block that the records go to, 32 bytes.
    """

def decode_record(data: bytes, key: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Returns subject, header block and payload of a record; None if it is none, or its hash is another one."""

def direct_answer(data: bytes, key: bytes, stream: bytes) -> tuple[bytes, int] | None:
    """Returns header block and payload of a record's message, as a direct get is answered, and the size of the block.

    Args:
        data: The record.
        key: Of its block, 32 bytes.
        stream: Name of the stream, for the headers that say where the message is.

    Returns:
        None if it is no record, or its hash is another one.
    """

def find_messages(
    block: ReadableBuffer, starts: NDArray[np.uint32], sizes: NDArray[np.uint32], key: bytes, places: Places
) -> int:
    """Looks where the messages of records are, up to the first record that is not good.

    Args:
        block: Bytes of a block.
        starts: Where in them each record begins.
        sizes: Its size, as it is known from elsewhere.
        key: Of the block, 32 bytes.
        places: Filled; as long as the others.

    Returns:
        How many records are good.
    """
