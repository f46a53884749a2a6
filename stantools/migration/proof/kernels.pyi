import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import NDArray

from stantools.format.message_batch import MessageBatch
from stantools.nats.columns import FrameColumns

def compare_messages(
    batch: MessageBatch,
    row: int,
    received: ReadableBuffer,
    columns: FrameColumns,
    other_row: int,
    *,
    origin: bool,
    published: bool,
    marks: NDArray[np.uint8],
    other_marks: NDArray[np.uint8],
) -> tuple[int, int]:
    """Compares messages by sequence until one side ends; both sides must rise. Returns the rows where it stopped.

    Args:
        batch: The expected messages.
        row: The first row in it.
        received: The buffer that `columns` point into.
        columns: The received messages; sequence 0 must not occur.
        other_row: The first row in them.
        origin: Headers with channel, sequence and timestamp are expected.
        published: Messages may have been published: then the header block has lines `Nats-Msg-Id` or
            `Nats-Expected-…` after ours, and the timestamp is the stream's own.
        marks: Gets `Mark` for each compared row of the batch.
        other_marks: Gets `Mark.ABSENT` for each received row without counterpart, else 0.
    """
