"""The kernels of NATS frames in Python, which the compiled ones are compared with.

Whatever the bytes are, parsing raises nothing and reads nothing outside them.

A control line ends with CR LF or LF; its words are separated by blanks and tabs; operations are read without regard to
case. A line is too long if what follows the operation and its blanks is, or if those blanks alone are. One thing is
stricter than in the original: a CR within a word is refused, as it would end up in the control lines of receivers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.nats.encoding import message
from stantools.nats.frames import (
    HEADER_SIZE,
    PAYLOAD_SIZE,
    REPLY,
    REPLY_SIZE,
    ROUTE,
    SUBJECT,
    SUBJECT_SIZE,
    ParseStop,
    Share,
    Span,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stantools.format.envelope import Buffer
    from stantools.nats.columns import FrameColumns
    from stantools.nats.frames import Frames, Payloads

_BLANKS: Final = b" \t"
_BLANK: Final = ord(" ")
_CR: Final = ord("\r")
_CRLF: Final = memoryview(b"\r\n")
#: The table counts in int32.
_MOST: Final = (1 << 31) - 1
_LONGEST_LINE: Final = 1 << 30
#: Bytes of a message, or of what is collected for a client, beyond which `hand_out` leaves it alone.
SMALL: Final = 64 * 1024
#: So many rows are worth a copy of the buffer.
_MANY: Final = 64

_WORD: Final = rb"[ \t]++([^ \t\r\n]++)"
_SIZE: Final = rb"[ \t]++([0-9]{1,9}+)"
_END: Final = rb"[ \t]*+\r?\n"
_EMPTY: Final = rb"()"
#: Groups: subject, subscription, reply, size of headers, size of all.
_PUB: Final = re.compile(rb"(?i:PUB)" + _WORD + _EMPTY + rb"(?:" + _WORD + rb")?" + _EMPTY + _SIZE + _END)
_HPUB: Final = re.compile(rb"(?i:HPUB)" + _WORD + _EMPTY + rb"(?:" + _WORD + rb")?" + _SIZE + _SIZE + _END)
_MSG: Final = re.compile(rb"(?i:MSG)" + _WORD + _WORD + rb"(?:" + _WORD + rb")?" + _EMPTY + _SIZE + _END)
_HMSG: Final = re.compile(rb"(?i:HMSG)" + _WORD + _WORD + rb"(?:" + _WORD + rb")?" + _SIZE + _SIZE + _END)
_U64: Final = (1 << 64) - 1
_NUMBER: Final = re.compile(rb"[0-9]{1,20}\Z")
_SIGNED: Final = re.compile(rb"-?[0-9]{1,19}\Z")
_STATUS: Final = re.compile(rb"NATS/1\.0 ([0-9]{3})[ \r]")
_SID: Final = re.compile(rb"[0-9]{1,9}\Z")

#: Rows in the table, the offset where parsing ended, why, the runs of equal routes, and for PARTIAL the bytes that the
#: frame at that offset has in all (0 where it cannot be determined yet).
Parsed = tuple[int, int, ParseStop, list[Span], int]
#: The shares of the routes; and of each piece the frames and the bytes of their payloads, 0 if it was not taken.
Gathered = tuple[list[Share], list[tuple[int, int]]]
#: In the order of the columns of a frame table.
_Row = tuple[int, int, int, int, int, int, int, int]


class Names:
    """Small numbers (0 to 2^31 - 1) under names, looked up by the kernels without an object per name.

    Subjects have their routes under them, for example. How many there are is bounded by whoever fills it.
    """

    __slots__ = ("_heads", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._heads: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, name: bytes, number: int) -> None:
        """Puts a number under a name, instead of the one that may be there."""
        if not 0 <= number <= _MOST:
            raise ValueError(f"{number} is no number for a name")
        self._numbers[bytes(name)] = number

    def discard(self, name: bytes) -> None:
        """Forgets a name, known or not."""
        self._numbers.pop(name, None)

    def begin_with(self, heads: Mapping[bytes, int]) -> None:
        """Puts numbers under all subjects that begin with a head and go on with tokens, without a blank."""
        for number in heads.values():
            if not 0 <= number <= _MOST:
                raise ValueError(f"{number} is no number for names")
        self._heads = dict(heads)

    def get(self, name: bytes) -> int:
        """Returns what is under a name or a head that it begins with, -1 for nothing."""
        found = self._numbers.get(name, -1)
        if found < 0 and self._heads:
            for head, number in self._heads.items():
                if name.startswith(head) and name != head:
                    rest = name[len(head) :]
                    return number if b"" not in rest.split(b".") and min(rest) > _BLANK else -1
        return found

    def clear(self) -> None:
        """Forgets all."""
        self._numbers.clear()
        self._heads.clear()


def parse_publishes(
    buffer: Buffer, begin: int, end: int, frames: Frames, table: Names, max_control_line: int, max_payload: int
) -> Parsed:
    """Parses PUB and HPUB frames up to the first thing that is not a whole one, and looks their subjects up.

    The runs of equal routes cover the rows without a gap. A run of route -1 (unknown) has one subject only, so that it
    is enough to look at its first row.
    """
    return _parse(buffer, begin, end, frames, table, max_control_line, max_payload)


def parse_gathered(
    buffer: Buffer,
    ends: list[int],
    first: int,
    frames: Frames,
    table: Names,
    ranks: Buffer,
    max_control_line: int,
    max_payload: int,
) -> Gathered:
    """Parses pieces from several clients, each for itself, and sorts the frames by the ranks of their routes.

    A piece is taken if it is whole PUB frames, without headers, whose routes all have a rank, and there is room for
    them. The first piece that is not ends the parsing. Frames of the same rank stay in order.
    """
    if not 0 <= first <= len(ends):
        raise IndexError(f"there is no piece {first}")
    taken: list[tuple[int, int]] = []
    begin, count = ends[first - 1] if first else 0, 0
    for end in ends[first:]:
        free = frames[count:]
        rows, at, _, spans, _ = parse_publishes(buffer, begin, end, free, table, max_control_line, max_payload)
        whole = at == end and all(0 < route < len(ranks) and ranks[route] for route, _, _ in spans)
        if not whole or free[:rows, HEADER_SIZE].any():
            break
        taken.append((rows, int(free[:rows, PAYLOAD_SIZE].sum())))
        count += rows
        begin = end
    order = sorted(range(count), key=[ranks[route] for route in frames[:count, ROUTE].tolist()].__getitem__)
    frames[:count] = frames[order]
    found: list[Share] = []
    for row, (size, route) in enumerate(frames[:count, PAYLOAD_SIZE:].tolist()):
        if found and found[-1][0] == route:
            _, first, _, total = found.pop()
            found.append((route, first, row + 1, total + size))
        else:
            found.append((route, row, row + 1, size))
    return found, taken


def parse_messages(
    buffer: Buffer, begin: int, end: int, frames: Frames, max_control_line: int, max_payload: int
) -> Parsed:
    """Parses MSG and HMSG frames, what a server sends: the subscription (`sid`) is in the column ROUTE.

    It is -1 if it is not a number of at most nine digits. All else is as for `parse_publishes`.
    """
    return _parse(buffer, begin, end, frames, None, max_control_line, max_payload)


def _parse(
    buffer: Buffer,
    begin: int,
    end: int,
    frames: Frames,
    table: Names | None,
    max_control_line: int,
    max_payload: int,
) -> Parsed:
    view = memoryview(buffer).cast("B")
    if not 0 <= begin <= end <= min(len(view), _MOST):
        raise ValueError(f"begin {begin} or end {end} lies outside")
    names, lines = ((b"PUB", b"HPUB"), (_PUB, _HPUB)) if table is not None else ((b"MSG", b"HMSG"), (_MSG, _HMSG))
    max_control_line = min(max(max_control_line, 0), _LONGEST_LINE)
    capacity, at, stop, need = len(frames), begin, ParseStop.END, 0
    rows: list[_Row] = []
    spans: list[Span] = []
    first, last_route, last_subject = 0, -1, b""
    # Lines are often the same, byte by byte.
    before, last_line, last_length = begin, b"", 0
    while at < end:
        if len(rows) == capacity:
            stop = ParseStop.FULL
            break
        if last_length and last_length <= end - at and view[at : at + len(last_line)] == last_line:
            if view[at + last_length - 2 : at + last_length] != _CRLF:
                stop = ParseStop.MALFORMED
                break
            moved = at - before
            start, size, reply, reply_size, header_size, body, total, route = rows[-1]
            reply = reply + moved if reply_size else 0
            rows.append((start + moved, size, reply, reply_size, header_size, body + moved, total, route))
            before = at
            at += last_length
            continue
        # What is looked at is bounded: the operation, its blanks, the rest, the end of the line.
        bound = min(end, at + 2 * max_control_line + 6)
        headed = view[at] in b"Hh"
        line = lines[headed].match(view, at, bound)
        if line is None or line.end() - at > max_control_line:
            stop = _judge(view, at, end, names[headed], max_control_line)
            if stop is ParseStop.END and line is None:
                stop = ParseStop.MALFORMED
            if line is None or stop is not ParseStop.END:
                break
        body, total, header_size = line.end(), int(line[5]), int(line[4] or 0)
        length = body - at + total + 2
        if header_size > total:
            stop = ParseStop.MALFORMED
        elif 0 <= max_payload < total:
            stop = ParseStop.PAYLOAD_TOO_LARGE
        elif length > end - at:
            stop, need = ParseStop.PARTIAL, length
        elif view[at + length - 2 : at + length] != _CRLF:
            stop = ParseStop.MALFORMED
        if stop is not ParseStop.END:
            break
        subject, reply, row = line[1], line.start(3), len(rows)
        route = (int(line[2]) if _SID.match(line[2]) else -1) if table is None else table.get(subject)
        if route != last_route or (route < 0 and subject != last_subject):
            if row:
                spans.append((last_route, first, row))
            first = row
        last_route, last_subject = route, subject
        rows.append((line.start(1), len(subject), max(reply, 0), len(line[3] or b""), header_size, body, total, route))
        before, last_line, last_length = at, line[0], length
        at += length
    if rows:
        frames[: len(rows)] = np.array(rows, np.int32)
        spans.append((last_route, first, len(rows)))
    return len(rows), at, stop, spans, need


def _judge(view: memoryview, at: int, end: int, word: bytes, max_control_line: int) -> ParseStop:
    """Returns why there is no line of this operation; END if there is one, whose length is all right."""
    found = bytes(view[at : min(at + len(word), end)])
    if not word.startswith(found.upper()):
        return ParseStop.OTHER
    i = at + len(found)
    if i == end:
        return ParseStop.PARTIAL
    if view[i] not in _BLANKS:
        return ParseStop.OTHER
    blanks = i
    while i < end and view[i] in _BLANKS:
        i += 1
        if i - blanks > max_control_line:
            return ParseStop.LINE_TOO_LONG
    # The longest line has CR and LF behind it.
    rest = bytes(view[i : min(end, i + max_control_line + 2)])
    size = rest.find(b"\n")
    complete = size >= 0
    if not complete:
        size = len(rest)
    if size and rest[size - 1] == _CR:
        size -= 1
    if size > max_control_line:
        return ParseStop.LINE_TOO_LONG
    return ParseStop.END if complete else ParseStop.PARTIAL


def read_deliveries(
    buffer: Buffer, frames: Frames, begin: int, end: int, columns: FrameColumns, row: int = 0, shift: int = 0
) -> None:
    """Fills columns with messages that `parse_messages` has found, and the numbers in their reply subjects."""
    if not (0 <= begin <= end <= len(frames) and 0 <= row <= len(columns) - (end - begin)):
        raise ValueError(f"rows {begin} to {end}, or {row}, lie outside")
    view = memoryview(buffer).cast("B")
    most = len(view)
    for start, length, reply, reply_size, header_size, body, size, sid in frames[begin:end].tolist():
        start, reply, body = start + shift, reply + shift if reply_size else reply, body + shift
        if (
            not (start >= 0 <= length and reply >= 0 <= reply_size and body >= 0 <= header_size <= size)
            or start + length > most
            or reply + reply_size > most
            or body + size > most
        ):
            raise ValueError(f"{size} bytes at {body}, or what belongs to them, lie outside")
        status = _STATUS.match(view, body, body + header_size)
        sequence, delivery, time, pending = acknowledgement(bytes(view[reply : reply + reply_size]))
        columns.sid[row] = sid
        columns.subject_start[row], columns.subject_size[row] = start, length
        columns.reply_start[row], columns.reply_size[row] = reply, reply_size
        columns.header_start[row], columns.header_size[row] = body if header_size else 0, header_size
        columns.data_start[row], columns.data_size[row] = body + header_size, size - header_size
        columns.status[row] = int(status[1]) if status else 0
        columns.sequence[row], columns.consumer_sequence[row] = sequence, delivery
        columns.timestamp[row], columns.pending[row] = time, pending
        row += 1


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


def encode_messages(
    buffer: Buffer, frames: Frames, begin: int, end: int, sid: bytes, headers: bool, subject: bytes | None = None
) -> bytes:
    """Returns MSG and HMSG frames of some rows for one subscription."""
    if not 0 <= begin <= end <= len(frames):
        raise ValueError(f"rows {begin} to {end} lie outside")
    view = memoryview(buffer).cast("B")
    most = len(view)
    # Parts of bytes are cheaper than parts of a view.
    data: bytes | memoryview = bytes(view) if end - begin > _MANY else view
    parts: list[bytes | memoryview] = []
    for start, length, reply, reply_size, header_size, body, size, _ in frames[begin:end].tolist():
        if (
            not (start >= 0 <= length and reply >= 0 <= reply_size and body >= 0 <= header_size <= size)
            or start + length > most
            or reply + reply_size > most
            or body + size > most
        ):
            raise ValueError(f"{size} bytes at {body}, or what belongs to them, lie outside")
        name = bytes(data[start : start + length]) if subject is None else subject
        answer = bytes(data[reply : reply + reply_size]) + b" " if reply_size else b""
        if header_size and headers:
            parts.append(b"HMSG %b %b %b%d %d\r\n" % (name, sid, answer, header_size, size))
        else:
            parts.append(b"MSG %b %b %b%d\r\n" % (name, sid, answer, size - header_size))
            body, size = body + header_size, size - header_size
        parts.append(data[body : body + size])
        parts.append(b"\r\n")
    return b"".join(parts)


def encode_message(subject: bytes, sid: bytes, payload: bytes, reply: bytes = b"", header_size: int = 0) -> bytes:
    """Returns one message for one subscription."""
    if not 0 <= header_size <= len(payload):
        raise ValueError(f"headers of {header_size} bytes in {len(payload)}")
    return message(subject, sid, payload[header_size:], reply, payload[:header_size])


def hand_out(
    messages: Sequence[tuple[bytes, bytes]], at: int, known: Mapping[bytes, Any], patient: bool
) -> tuple[int, int, int, list[Any]]:
    """Adds messages to what is collected for their receivers, as far as that is all there is to do."""
    first, total, fresh = at, 0, []
    while at < len(messages):
        subject, payload = messages[at]
        route = known.get(subject)
        to = None if route is None else route.only
        if to is None or to.handler is not None or to.limit or to.closed:
            break
        client, size = to.client, len(payload)
        if not client.direct or size > SMALL:
            break
        if not client.out:
            fresh.append(client)
        elif client.out_size > SMALL or (patient and client.congested):
            break
        frame = encode_message(subject, to.sid, payload)
        client.out.append(frame)
        client.out_size += len(frame)
        to.delivered += 1
        client.counters.out_msgs += 1
        client.counters.out_bytes += size
        total += size
        at += 1
    return at, at - first, total, fresh


def hand_out_runs(
    runs: Sequence[tuple[bytes, int, int]], block: Payloads, at: int, known: Mapping[bytes, Any]
) -> tuple[int, int, int, list[Any]]:
    """Adds runs of rows of a block, each as a whole, to what is collected for their receivers; see `hand_out`."""
    messages, total, fresh = 0, 0, []
    while at < len(runs):
        subject, begin, end = runs[at]
        route = known.get(subject)
        to = None if route is None else route.only
        if to is None or to.handler is not None or to.limit or to.closed:
            break
        frames = encode_block(block, begin, end, subject, to.sid)
        client, size = to.client, int(block.sizes[begin:end].sum())
        if not client.direct or size > SMALL:
            break
        if not client.out:
            fresh.append(client)
        elif client.out_size > SMALL:
            break
        client.out.append(frames)
        client.out_size += len(frames)
        to.delivered += end - begin
        client.counters.out_msgs += end - begin
        client.counters.out_bytes += size
        messages += end - begin
        total += size
        at += 1
    return at, messages, total, fresh


def subject_runs(buffer: Buffer, frames: Frames, begin: int, end: int) -> list[int]:
    """Returns the rows that have another subject than the row before, the first one among them."""
    if not 0 <= begin <= end <= len(frames):
        raise ValueError(f"rows {begin} to {end} lie outside")
    view = memoryview(buffer).cast("B")
    found: list[int] = []
    before: bytes | None = None
    for row, (start, size) in enumerate(frames[begin:end, SUBJECT : SUBJECT_SIZE + 1].tolist(), begin):
        if not 0 <= start <= len(view) - size or size < 0:
            raise ValueError(f"{size} bytes at {start} lie outside")
        subject = bytes(view[start : start + size])
        if subject != before:
            found.append(row)
        before = subject
    return found


def encode_numbers(
    buffer: Buffer, frames: Frames, begin: int, end: int, head: bytes, first: int, tail: bytes, answers: Frames
) -> tuple[bytes, int]:
    """Makes answers to rows that have a reply: each is its number, counted through all rows, between two texts."""
    if not (0 <= begin <= end <= len(frames) and end - begin <= len(answers) and first >= 0):
        raise ValueError(f"rows {begin} to {end} lie outside")
    view = memoryview(buffer).cast("B")
    parts: list[bytes] = []
    rows: list[_Row] = []
    at = 0
    for number, (reply, size) in enumerate(frames[begin:end, REPLY : REPLY_SIZE + 1].tolist(), first):
        if not 0 <= reply <= len(view) - size or size < 0:
            raise ValueError(f"{size} bytes at {reply} lie outside")
        if size:
            text = b"%b%d%b" % (head, number, tail)
            parts += (bytes(view[reply : reply + size]), text)
            rows.append((at, size, 0, 0, 0, at + size, len(text), -1))
            at += size + len(text)
    if rows:
        answers[: len(rows)] = np.array(rows, np.int32)
    return b"".join(parts), len(rows)


def put_acknowledgements(
    buffer: bytearray,
    at: int,
    frames: Frames,
    prefix: bytes,
    sequences: NDArray[np.int64],
    times: NDArray[np.int64],
    number: int,
    left: int,
) -> int:
    """Gives each row the ack subject of its first delivery (jetstream-api.md section 9) as its reply."""
    if not len(frames) == len(sequences) == len(times):
        raise ValueError(f"{len(frames)} rows, {len(sequences)} sequences, {len(times)} times")
    places: list[tuple[int, int]] = []
    for sequence, time in zip(sequences.tolist(), times.tolist(), strict=True):
        subject = b"%b1.%d.%d.%d.%d" % (prefix, sequence, number, time, left)
        if not 0 <= at <= len(buffer) - len(subject):
            raise ValueError(f"{len(subject)} bytes at {at} lie outside")
        buffer[at : at + len(subject)] = subject
        places.append((at, len(subject)))
        at, number, left = at + len(subject), number + 1, left - 1
    if places:
        frames[:, REPLY : REPLY_SIZE + 1] = places
    return at


def encode_block(block: Payloads, begin: int, end: int, subject: bytes, sid: bytes) -> bytes:
    """Returns MSG frames for some payloads of a block, all with one subject and without reply."""
    return _encode(block, begin, end, b"MSG %b %b " % (subject, sid))


def _encode(block: Payloads, begin: int, end: int, head: bytes) -> bytes:
    if not 0 <= begin <= end <= min(len(block.starts), len(block.sizes)):
        raise ValueError(f"rows {begin} to {end} lie outside")
    view = memoryview(block.data).cast("B")
    most = len(view)
    parts: list[bytes | memoryview] = []
    for start, size in zip(block.starts[begin:end].tolist(), block.sizes[begin:end].tolist(), strict=True):
        if start < 0 or start + size > most:
            raise ValueError(f"{size} bytes at {start} lie outside")
        parts.append(b"%b%d\r\n" % (head, size))
        parts.append(view[start : start + size])
        parts.append(b"\r\n")
    return b"".join(parts)


def encode_publishes(block: Payloads, begin: int, end: int, subject: bytes) -> bytes:
    """Returns PUB frames for some payloads of a block; as `encode_block`, for the other direction."""
    return _encode(block, begin, end, b"PUB %b " % subject)
