"""Parsing what a server sends, in Python: always there, and the reference for the compiled kernel.

Use it through `stantools.migration.wire.kernels`. It takes any contiguous object with the buffer protocol, reads
nothing outside of it, and never raises for what the bytes are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.migration.wire.columns import FrameColumns, FrameStop

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray

NAME: Final = "plain"

_H: Final = ord("H")
_CR: Final = ord("\r")

#: A line that is longer is no line of the protocol: far beyond the longest that servers send.
MAX_LINE: Final = 1 << 20

_U64: Final = (1 << 64) - 1
_NUMBER: Final = re.compile(rb"[0-9]{1,20}\Z")
_SIGNED: Final = re.compile(rb"-?[0-9]{1,19}\Z")
_STATUS: Final = re.compile(rb"NATS/1\.0 ([0-9]{3})[ \r]")
#: Subject, subscription, reply, header size, size.
_LINE: Final = rb"MSG[ \t]+([^ \t\n]+)[ \t]+([0-9]{1,18})(?:[ \t]+([^ \t\n]+))?%b[ \t]+([0-9]{1,9})[ \t]*\r\n"
_MSG: Final = re.compile(_LINE % rb"()")
_HMSG: Final = re.compile(b"H" + _LINE % rb"[ \t]+([0-9]{1,9})")
_ROW: Final = np.dtype([(name, getattr(FrameColumns(0), name).dtype) for name in FrameColumns.__slots__])

Parsed = tuple[int, int, FrameStop, int]


def parse_frames(
    buffer: ReadableBuffer, start: int, limit: int, sids: NDArray[np.int64], columns: FrameColumns, row: int = 0
) -> Parsed:
    """Parses MSG and HMSG frames of some subscriptions, up to the first frame that is something else.

    Args:
        buffer: Bytes from the server.
        start: Where a frame begins.
        limit: Where the bytes end; at most the size of the buffer.
        sids: The subscriptions whose messages are wanted.
        columns: Filled with the messages.
        row: The first row to fill.

    Returns:
        The number of rows in use (those before `row` included), the offset of the frame where it stopped, why, and for
        OTHER and PARTIAL the length of that frame (0 where it cannot be told yet).

    Raises:
        ValueError: Start, limit or row lie outside.
    """
    view = memoryview(buffer).cast("B")
    if not 0 <= start <= limit <= len(view) or not 0 <= row <= len(columns):
        raise ValueError(f"start {start}, limit {limit} or row {row} lies outside")
    wanted = set(sids.tolist())
    rows: list[tuple[Any, ...]] = []
    at, room, stop, length = start, len(columns) - row, FrameStop.END, 0
    while at < limit:
        if len(rows) == room:
            stop = FrameStop.FULL
            break
        line = (_HMSG if view[at] == _H else _MSG).match(view, at, min(limit, at + MAX_LINE))
        if line is None:
            stop, length = _not_a_message(view, at, limit)
            break
        end, sid, size, header_size = line.end(), int(line[2]), int(line[5]), int(line[4] or 0)
        length = end - at + size + 2
        if header_size > size:
            stop, length = FrameStop.MALFORMED, 0
        elif length > limit - at:
            stop = FrameStop.PARTIAL
        elif bytes(view[at + length - 2 : at + length]) != b"\r\n":
            stop, length = FrameStop.MALFORMED, 0
        elif sid not in wanted:
            stop = FrameStop.OTHER
        if stop is not FrameStop.END:
            break
        rows.append(_row(view, line, sid, header_size, size))
        at, length = at + length, 0
    if rows:
        table = np.array(rows, _ROW)
        for name in FrameColumns.__slots__:
            getattr(columns, name)[row : row + len(rows)] = table[name]
    return row + len(rows), at, stop, length


def _row(view: memoryview, line: re.Match[bytes], sid: int, header_size: int, size: int) -> tuple[Any, ...]:
    """Returns the values of one message in the order of the slots of the columns."""
    end, reply = line.end(), line[3] or b""
    status = _STATUS.match(view, end, end + header_size)
    sequence, delivery, time, pending = acknowledgement(reply)
    return (
        delivery,
        size - header_size,
        end + header_size,
        header_size,
        end if header_size else 0,
        pending,
        len(reply),
        line.start(3) if reply else 0,
        sequence,
        sid,
        int(status[1]) if status else 0,
        line.end(1) - line.start(1),
        line.start(1),
        time,
    )


def acknowledgement(reply: bytes) -> tuple[int, int, int, int]:
    """Returns stream sequence, consumer sequence, timestamp and pending of an acknowledgement subject, else zeros.

    Both forms are known: `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<ns>.<pending>` and
    the one with domain and account hash in front of the stream, with or without a last token
    (jetstream-api.md section 9).
    """
    tokens = reply.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"] or len(tokens) not in (9, 11, 12):
        return 0, 0, 0, 0
    sequence, delivery, time, pending = tokens[5:9] if len(tokens) == 9 else tokens[7:11]
    if not (_NUMBER.match(sequence) and _NUMBER.match(delivery) and _SIGNED.match(time) and _NUMBER.match(pending)):
        return 0, 0, 0, 0
    numbers = int(sequence), int(delivery), int(time), int(pending)
    unfit = max(numbers[0], numbers[1], numbers[3]) > _U64 or abs(numbers[2]) > _U64 >> 1
    return (0, 0, 0, 0) if unfit else numbers


def _not_a_message(view: memoryview, at: int, limit: int) -> tuple[FrameStop, int]:
    """Tells what begins where no complete control line of a message does."""
    step, begin, last = 256, at, min(limit, at + MAX_LINE)
    while begin < last:
        piece = bytes(view[begin : min(begin + step, last)])
        found = piece.find(b"\n")
        if found < 0:
            begin, step = begin + len(piece), step * 2
            continue
        end = begin + found + 1
        head = bytes(view[at : at + 5])
        if end - at < 2 or view[end - 2] != _CR or head.removeprefix(b"H").startswith((b"MSG ", b"MSG\t")):
            return FrameStop.MALFORMED, 0
        return FrameStop.OTHER, end - at
    return (FrameStop.PARTIAL if limit - at < MAX_LINE else FrameStop.MALFORMED), 0
