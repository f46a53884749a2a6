"""Frames of single messages and fillers with the sequence expected before them; `kernels` encodes them in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stantools.streamfiles import headers

if TYPE_CHECKING:
    from stantools.streamfiles.batch import MessageBatch

#: maximum number of unanswered messages to a stream: its queue in the server is bounded
MAX_WINDOW: Final = 4096


def encode_message(
    batch: MessageBatch, row: int, reply: bytes, identity: bytes, origin: bool, expected_last: int
) -> tuple[bytes, int]:
    """Returns the frame of one message, and the total bytes of its header block and payload."""
    columns = batch.columns
    parts = []
    for start, size in ((columns.data_start, columns.data_size), (columns.reply_start, columns.reply_size)):
        begin, end = int(start[row]), int(start[row]) + int(size[row])
        if begin < 0 or end > len(batch.buffer):
            raise ValueError(f"row {row} points out of the buffer")
        parts.append(bytes(batch.buffer[begin:end]))
    data, answer = parts
    own = int(columns.sequence[row])
    block = headers.header_block(batch.channel, own, int(columns.timestamp[row]), answer, origin=origin)
    block = headers.guarded(block, identity, own, expected_last)
    total = len(block) + len(data)
    head = b"HPUB %b %b%d %d %d\r\n" % (batch.subject, reply, int(batch.sequence[row]), len(block), total)
    return b"%b%b%b\r\n" % (head, block, data), total


def encode_fillers(subject: bytes, reply: bytes, shift: int, first: int, count: int) -> bytes:
    """Returns the frames of fillers at `count` sequences of the stream from `first` on."""
    frames = []
    for sequence in range(first, first + count):
        block = headers.filler(sequence - 1 - shift)
        frames.append(b"HPUB %b %b%d %d %d\r\n%b\r\n" % (subject, reply, sequence, len(block), len(block), block))
    return b"".join(frames)
