import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import NDArray

from stantools.nats.columns import FrameColumns
from stantools.streamfiles.batch import Batch

def compare_messages(
    batch: Batch,
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
    """Compares messages by sequence until one side is used up; both sides must rise.

    Args:
        batch: What should be there.
        row: Where to begin in it.
        received: The buffer that `columns` point into.
        columns: What is there; sequence 0 may not occur.
        other_row: Where to begin in it.
        origin: Headers with channel, sequence and timestamp are expected.
        published: Messages may have come by publishing: then the header block has the lines `Nats-Msg-Id` or
            `Nats-Expected-…` behind ours, and the timestamp is the stream's own.
        marks: Gets `Mark` for each row of the batch that was dealt with.
        other_marks: Gets `Mark.ABSENT` for each received row that has no counterpart, else 0.

    Returns:
        The rows where it stopped; at least one is behind the last row of its side.
    """
