import numpy as np
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

from stantools.format.message_batch import MessageBatch
from stantools.nats.columns import FrameColumns

# All functions raise ValueError if rows, or the bytes they point to, lie outside of their buffer.

def encode_publishes(
    batch: MessageBatch,
    row: int,
    rows: int,
    reply: bytes,
    identity: bytes,
    origin: bool,
    exact: bool,
    shift: int,
    largest: int,
    out: WriteableBuffer,
) -> tuple[int, int]:
    """Writes messages as clients publish them, one `HPUB` frame per row, with the lines that `headers.guarded` adds.

    At most `rows` rows from `row` on are written to `out`. The reply subject of each is `reply` and its sequence in
    the stream; its id begins with `identity` (of `headers.identity`). With `origin`, channel, sequence and time are
    headers; with `exact` the last sequence expected before the message is one as well. `shift` is the lag of the
    server's last sequence of the stream (see `migration.publish.loader`). `largest` limits the bytes of header block
    and payload together.

    Returns the number of messages written, and their bytes. It ends early before a message that does not follow the
    one before without a gap, does not fit into the rest of `out`, or exceeds `largest`.
    """

def read_origins(
    buffer: ReadableBuffer,
    frames: FrameColumns,
    times: NDArray[np.int64],
    reply_starts: NDArray[np.int64],
    reply_sizes: NDArray[np.uint32],
) -> int:
    """Reads time and reply of the original messages from header blocks of `encode_publishes`.

    `times` gets the time of each, in nanoseconds since 1970; it is left unchanged for a message without a time, or
    with one beyond 8,999,999,999,999,999,999. `reply_starts` and `reply_sizes` get the reply subject of each in the
    buffer; start 0 if there is none. Returns the number of non-empty reply subjects.
    """

def check_answers(
    buffer: ReadableBuffer, frames: FrameColumns, row: int, reply: bytes, expected: int, exact: bool
) -> tuple[int, int, int, int]:
    """Checks answers to published messages from `row` on, up to the first that is not the expected success.

    Answers to reply subjects without the prefix `reply` (of `encode_publishes`) are skipped; `expected` is the
    number of the next answer. With `exact` the message must be stored at that sequence, else at any.

    Returns the row of the first answer that does not confirm the expected message (the number of rows if there is
    none), the number expected then, the sequence of the last confirmed message in its stream (0 without any), and the
    number of confirmed messages that the stream had before.
    """
