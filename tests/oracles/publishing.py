"""The publishing kernels in Python, which the compiled ones are compared with. `ValueError` only means wrong use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stantools.streamfiles import headers

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import ReadableBuffer, WriteableBuffer
    from numpy.typing import NDArray

    from stantools.format.message_batch import MessageBatch
    from stantools.nats.columns import FrameColumns

#: The first name `seq` counts. Its value is written as a number is.
_STORED: Final = re.compile(rb'\{"stream":"(?:(?!"seq":).)*"seq": *(0|[1-9][0-9]*)(?![0-9])', re.DOTALL)
_DUPLICATE: Final = re.compile(rb'"duplicate": *t')
_TIME: Final = re.compile(rb"\r\n%b: ([0-9]{1,18}|[0-8][0-9]{18})(?=\r\n)" % headers.TIMESTAMP.encode())
_REPLY: Final = re.compile(rb"\r\n%b: ([^\r]*)(?=\r\n)" % headers.REPLY.encode())


def encode_message(
    batch: MessageBatch, row: int, reply: bytes, identity: bytes, origin: bool, expected_last: int | None
) -> tuple[bytes, int]:
    """Returns the frame of one message, and the total bytes of its header block and payload."""
    parts = []
    for start, size in ((batch.data_start, batch.data_size), (batch.reply_start, batch.reply_size)):
        begin, end = int(start[row]), int(start[row]) + int(size[row])
        if begin < 0 or end > len(batch.buffer):
            raise ValueError(f"row {row} points out of the buffer")
        parts.append(bytes(batch.buffer[begin:end]))
    data, answer = parts
    own = int(batch.sequence[row])
    block = headers.header_block(batch.channel, own, int(batch.timestamp[row]), answer, origin=origin)
    block = headers.guarded(block, identity, own, expected_last)
    total = len(block) + len(data)
    head = b"HPUB %b %b%d %d %d\r\n" % (batch.subject, reply, int(batch.stream_sequence[row]), len(block), total)
    return b"%b%b%b\r\n" % (head, block, data), total


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
    """Writes messages as clients publish them, one `HPUB` frame a row, with the lines that `headers.guarded` adds.

    The reply subject of each is `reply` and its sequence in the stream.
    """
    if row < 0 or rows < 0 or row + rows > len(batch):
        raise ValueError(f"rows {row} to {row + rows} of {len(batch)}")
    target = memoryview(out).cast("B")
    sequences = batch.stream_sequence[row : row + rows].tolist()
    at = done = 0
    for sequence in sequences:
        if done and sequence != sequences[done - 1] + 1:
            break
        expected_last = sequence - 1 - shift if exact else None
        frame, size = encode_message(batch, row + done, reply, identity, origin, expected_last)
        if size > largest or at + len(frame) > len(target):
            break
        target[at : at + len(frame)] = frame
        at += len(frame)
        done += 1
    return done, at


def read_origins(
    buffer: ReadableBuffer,
    frames: FrameColumns,
    times: NDArray[np.int64],
    reply_starts: NDArray[np.int64],
    reply_sizes: NDArray[np.uint32],
) -> int:
    """Reads from header blocks what `encode_publishes` has written there of the messages' own: time and reply."""
    if not len(frames) == len(times) == len(reply_starts) == len(reply_sizes):
        raise ValueError("the columns are not of the same length")
    view = memoryview(buffer).cast("B")
    replies = 0
    places = zip(frames.header_start.tolist(), frames.header_size.tolist(), strict=True)
    for row, (start, size) in enumerate(places):
        if start < 0 or start + size > len(view):
            raise ValueError(f"row {row} points out of the buffer")
        block = bytes(view[start : start + size])
        if (found := _TIME.search(block)) is not None:
            times[row] = int(found[1])
        found = _REPLY.search(block)
        own = found is not None and found.end(1) > found.start(1)
        reply_starts[row] = start + found.start(1) if found is not None and own else 0
        reply_sizes[row] = found.end(1) - found.start(1) if found is not None and own else 0
        replies += own
    return replies


def check_answers(
    buffer: ReadableBuffer, frames: FrameColumns, row: int, reply: bytes, expected: int, exact: bool
) -> tuple[int, int, int, int]:
    """Reads answers to published messages, as long as they say that all is well."""
    if not 0 <= row <= len(frames):
        raise ValueError(f"row {row} of {len(frames)}")
    view = memoryview(buffer).cast("B")
    stored = duplicates = 0
    names = ("subject_start", "subject_size", "header_size", "data_start", "data_size")
    for start, size, header_size, data_start, data_size in zip(
        *(getattr(frames, name)[row:].tolist() for name in names), strict=True
    ):
        if min(start, data_start) < 0 or max(start + size, data_start + data_size) > len(view):
            raise ValueError(f"row {row} points out of the buffer")
        subject = bytes(view[start : start + size])
        if subject.startswith(reply):
            data = bytes(view[data_start : data_start + data_size])
            place = None if header_size or subject[len(reply) :] != b"%d" % expected else _STORED.match(data)
            if place is None or int(place[1]) >= 2**64 or (exact and int(place[1]) != expected):
                break
            stored = int(place[1])
            duplicates += _DUPLICATE.search(data, place.end()) is not None
            expected += 1
        row += 1
    return row, expected, stored, duplicates
