"""Comparing messages in Python, which the compiled kernel is compared with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.migration.proof.stream_proof import Difference
from stantools.streamfiles.headers import END_LINE, VERSION_LINE, header_block

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray

    from stantools.format.message_batch import MessageBatch
    from stantools.nats.columns import FrameColumns


#: What publishing adds behind the lines of `header_block`.
ADDED_LINES: Final = re.compile(rb"(?:Nats-(?:Msg-Id|Expected-[^\r\n:]*): [^\r\n]*\r\n)+\r\n")


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
    """Compares messages by sequence until one side is used up; both sides must rise."""
    store, view = memoryview(batch.buffer).cast("B"), memoryview(received).cast("B")
    while row < len(batch) and other_row < len(columns):
        wanted, have = int(batch.stream_sequence[row]), int(columns.sequence[other_row])
        if wanted < have:
            marks[row] = Difference.ABSENT
            row += 1
            continue
        if have < wanted:
            other_marks[other_row] = Difference.ABSENT
            other_row += 1
            continue
        mark = Difference(0)
        if _part(view, columns.subject_start, columns.subject_size, other_row) != batch.subject:
            mark |= Difference.SUBJECT
        header = _part(view, columns.header_start, columns.header_size, other_row)
        reply = _part(store, batch.reply_start, batch.reply_size, row)
        expected = header_block(
            batch.channel, int(batch.sequence[row]), int(batch.timestamp[row]), reply, origin=origin
        )
        was_published = published and is_extended(expected, header)
        if header != expected and not was_published:
            mark |= Difference.HEADER
        if batch.timestamp[row] != columns.timestamp[other_row] and not was_published:
            mark |= Difference.TIME
        if _part(store, batch.data_start, batch.data_size, row) != _part(
            view, columns.data_start, columns.data_size, other_row
        ):
            mark |= Difference.DATA
        marks[row], other_marks[other_row] = mark, 0
        row, other_row = row + 1, other_row + 1
    return row, other_row


def is_extended(expected: bytes, header: bytes) -> bool:
    """Returns whether a header block is the expected one with the lines behind it that publishing adds."""
    begin = expected.removesuffix(END_LINE) or VERSION_LINE
    return header.startswith(begin) and ADDED_LINES.fullmatch(header, len(begin)) is not None


def _part(view: memoryview, starts: NDArray[np.int64], sizes: NDArray[np.uint32], row: int) -> bytes:
    start, size = int(starts[row]), int(sizes[row])
    if start < 0 or start + size > len(view):
        raise ValueError(f"bytes {start} to {start + size} lie outside of a buffer of {len(view)}")
    return bytes(view[start : start + size])
