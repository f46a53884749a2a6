import numpy as np
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

from stantools.nats.columns import FrameColumns
from stantools.streamfiles.batch import Batch

def encode_publishes(
    batch: Batch,
    row: int,
    rows: int,
    reply: bytes,
    identity: bytes,
    origin: bool,
    shift: int,
    largest: int,
    out: WriteableBuffer,
) -> tuple[int, int]:
    """Writes messages as clients publish them, one `HPUB` frame a row, with the lines that `headers.guarded` adds.

    The reply subject of each is `reply` and its sequence in the stream.

    Args:
        batch: The messages.
        row: The first one.
        rows: How many at most.
        reply: What their reply subjects begin with.
        identity: What their ids begin with, from `headers.identity`.
        origin: Write channel, sequence and time as headers.
        shift: How far behind the server's idea of the stream's last sequence is (see `migration.publish.loader`).
        largest: Bytes of header block and payload together that the server takes.
        out: Where to.

    Returns:
        How many messages were written, and the bytes they take. It ends early before a message that does not follow
        the one before it without a gap, that does not fit into what is left of `out`, or that is larger than `largest`.

    Raises:
        ValueError: A row, or what it points to, is outside of the batch.
    """

def read_origins(
    buffer: ReadableBuffer,
    frames: FrameColumns,
    times: NDArray[np.int64],
    reply_starts: NDArray[np.int64],
    reply_sizes: NDArray[np.uint32],
) -> int:
    """Reads from header blocks what `encode_publishes` has written there of the messages' own: time and reply.

    Args:
        buffer: What the frames point into.
        frames: Messages of the stream.
        times: Gets the time of each, in nanoseconds since 1970; what has none, or one beyond 8,999,999,999,999,999,999,
            is left as it is.
        reply_starts: Gets where the reply subject of each begins in the buffer; 0 if there is none.
        reply_sizes: Gets its size.

    Returns:
        How many have a reply subject that is not empty.

    Raises:
        ValueError: A row points outside, or there are not as many rows everywhere.
    """

def check_answers(
    buffer: ReadableBuffer, frames: FrameColumns, row: int, reply: bytes, expected: int
) -> tuple[int, int]:
    """Reads answers to published messages, as long as they say that all is well.

    Args:
        buffer: What the frames point into.
        frames: The answers. Those to other reply subjects than ours are skipped.
        row: The first one to look at.
        reply: What our reply subjects begin with, from `encode_publishes`.
        expected: The sequence that is to be answered next.

    Returns:
        The row that is not an answer that the message expected next is stored where it should be, the number of rows if
        there is none; and the sequence that is to be answered next by then.

    Raises:
        ValueError: A row, or what it points to, is outside.
    """
