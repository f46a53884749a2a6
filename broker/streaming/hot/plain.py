"""The kernels in Python: always there, and the reference for the compiled ones. Use them through `kernels`.

They take what every protobuf decoder takes for the same: fields in any order, the last value of a repeated one, unknown
fields of the simple wire types. What decoders may disagree about (known fields of a wrong wire type, groups, field
numbers above 2047) is left to the caller, one frame at a time, and so is everything that is to be refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from broker.blocks import Payloads, Records
from broker.streaming.hot import columns
from broker.streaming.hot.columns import Group, Publishes, Run, Status
from broker.wire import frames as frame_columns
from stantools.format.crc import Crc
from stantools.format.fieldscan import encode_varint
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE

if TYPE_CHECKING:
    from broker.streaming.hot.columns import Rows, Table
    from broker.wire.frames import Frames
    from stantools.format.envelope import Buffer

NAME: Final = "plain"

_CLIENT_ID, _GUID, _SUBJECT, _REPLY, _DATA, _CONN_ID, _SHA256 = 1, 2, 3, 4, 5, 6, 10
_ACK_SUBJECT, _ACK_SEQUENCE = 1, 2
_MAX_TAG_BYTES, _MAX_LENGTH_BYTES, _MAX_VARINT_BYTES = 2, 5, 10
_MAX_SIZE: Final = 0xFFFFFFFF
_MAX_UINT64: Final = (1 << 64) - 1

_Span = tuple[int, int]
_NOTHING: Final[_Span] = (0, 0)


class Names:
    """Small numbers under names, looked up by the kernels without an object per name."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, name: bytes, number: int) -> None:
        """Puts a number (0 to 2^31 - 1) under a name, instead of the one that may be there."""
        if not 0 <= number < 1 << 31:
            raise ValueError(f"{number} is no number for a name")
        self._numbers[bytes(name)] = number

    def discard(self, name: bytes) -> None:
        """Forgets a name, known or not."""
        self._numbers.pop(name, None)

    def get(self, name: bytes) -> int:
        """Returns what is under a name, -1 for nothing."""
        return self._numbers.get(name, -1)


def read_publishes(
    buffer: Buffer,
    frames: Frames,
    begin: int,
    end: int,
    clients: Names,
    connections: Names,
    channels: Names,
    table: Table,
) -> Publishes:
    """Decodes publishes (protocol sections 2 and 7.2) up to the first that is not plainly good.

    A publisher is known by its connection id if it gives one, else by its client id.

    Args:
        buffer: What the frames point into.
        frames: Table of frames, each with a PubMsg.
        begin: First row of it.
        end: The row behind the last.
        clients: Numbers of the client ids.
        connections: Numbers of the connection ids.
        channels: Numbers of the channels that need no further look.
        table: Is filled, from row 0 on.

    Raises:
        ValueError: A row of the frames, or what it points to, lies outside.
    """
    view = memoryview(buffer).cast("B")
    _check_rows(begin, end, len(frames))
    status = Status.GOOD
    rows: list[tuple[int, ...]] = []
    groups: dict[int, list[int]] = {}
    runs: list[Run] = []
    acks: list[bytes] = []
    size = 0
    for frame in frames[begin:end].tolist():
        row = len(rows)
        if row == len(table):
            status = Status.FULL
            break
        _check_frame(frame, len(view))
        start = frame[frame_columns.PAYLOAD] + frame[frame_columns.HEADER_SIZE]
        stop = frame[frame_columns.PAYLOAD] + frame[frame_columns.PAYLOAD_SIZE]
        fields = _publish_fields(view[start:stop], start)
        if fields is None:
            status = Status.UNDECODABLE
            break
        client_id, guid, subject, answer, data, conn_id = fields
        if not guid[1]:
            status = Status.NO_GUID
            break
        client = connections.get(_bytes(view, conn_id)) if conn_id[1] else clients.get(_bytes(view, client_id))
        if client < 0:
            status = Status.UNKNOWN_CLIENT
            break
        channel = channels.get(_bytes(view, subject))
        if channel < 0:
            status = Status.UNKNOWN_CHANNEL
            break
        rows.append((client, channel, *guid, *answer, *data))
        groups.setdefault(channel, []).append(row)
        acks.append(b"\x0a" + encode_varint(guid[1]) + _bytes(view, guid))
        reply = _bytes(view, (frame[frame_columns.REPLY], frame[frame_columns.REPLY_SIZE]))
        if runs and runs[-1].reply == reply:
            runs[-1] = runs[-1]._replace(end=row + 1)
        else:
            runs.append(Run(reply, row, row + 1))
        size += stop - start
    if rows:
        table[: len(rows)] = rows
    parted = [Group(channel, np.array(members, np.int32)) for channel, members in groups.items()]
    return Publishes(len(rows), status, parted, _payloads(acks), runs, size)


def encode_records(
    buffer: Buffer, table: Table, rows: Rows, name: bytes, first_sequence: int, timestamp: int, crc: Crc | None
) -> Records:
    """Encodes publishes as messages of a channel, as they are delivered and stored (file store sections 2 and 3.1).

    The records lie one after the other from the start of the buffer, each behind its header of eight bytes.

    Args:
        buffer: What the table points into.
        table: From `read_publishes`.
        rows: The rows to take, in this order.
        name: The channel.
        first_sequence: Sequence of the first; the others follow.
        timestamp: Nanoseconds since the epoch, of all.
        crc: How to make the CRCs of the headers; None writes zeros.

    Raises:
        ValueError: A row, or what it points to, lies outside; or a sequence does not fit into 64 bits.
    """
    view = memoryview(buffer).cast("B")
    count = len(rows)
    if not 0 <= first_sequence <= _MAX_UINT64 - count or not -(1 << 63) <= timestamp < 1 << 63:
        raise ValueError(f"sequence {first_sequence} or timestamp {timestamp} is out of range")
    if count and not (int(rows.min()) >= 0 and int(rows.max()) < len(table)):
        raise ValueError("a row lies outside of the table")
    subject = b"\x12" + encode_varint(len(name)) + name if name else b""
    tail = b"\x28" + encode_varint(timestamp & _MAX_UINT64) if timestamp else b""
    sequence = first_sequence
    pieces: list[bytes] = []
    sizes = np.zeros(count, np.uint32)
    for i, row in enumerate(table[rows].tolist()):
        parts: list[Buffer] = [b"\x08" + encode_varint(sequence) if sequence else b"", subject]
        for tag, position, size in (
            (b"\x1a", row[columns.REPLY], row[columns.REPLY_SIZE]),
            (b"\x22", row[columns.DATA], row[columns.DATA_SIZE]),
        ):
            _check_span(position, size, len(view))
            if size:
                parts += (tag, encode_varint(size), view[position : position + size])
        payload = b"".join((*parts, tail))
        sizes[i] = len(payload)
        pieces += (RECORD_HEADER.pack(len(payload), crc(payload) if crc else 0), payload)
        sequence += 1
    ends = np.cumsum(sizes + np.uint32(RECORD_HEADER_SIZE), dtype=np.int64)
    sequences = np.arange(count, dtype=np.uint64) + np.uint64(first_sequence)
    return Records(b"".join(pieces), ends - sizes, sizes, sequences, np.full(count, timestamp, np.int64))


def read_acks(buffer: Buffer, frames: Frames, begin: int, end: int, channel: bytes) -> tuple[list[int], int]:
    """Decodes acknowledgements of messages (protocol section 15) up to the first that is not plainly good.

    Args:
        buffer: What the frames point into.
        frames: Table of frames, each with an Ack.
        begin: First row of it.
        end: The row behind the last.
        channel: Which channel they should name.

    Returns:
        The sequences, and the row that was not taken because it is no Ack, or not one of that channel; else `end`.

    Raises:
        ValueError: A row of the frames, or what it points to, lies outside.
    """
    view = memoryview(buffer).cast("B")
    _check_rows(begin, end, len(frames))
    sequences: list[int] = []
    for frame in frames[begin:end].tolist():
        _check_frame(frame, len(view))
        start = frame[frame_columns.PAYLOAD] + frame[frame_columns.HEADER_SIZE]
        payload = view[start : frame[frame_columns.PAYLOAD] + frame[frame_columns.PAYLOAD_SIZE]]
        sequence = _ack_sequence(payload, channel)
        if sequence is None:
            break
        sequences.append(sequence)
    return sequences, begin + len(sequences)


def encode_publishes(block: Payloads, begin: int, end: int, subject: bytes) -> bytes:
    """Returns PUB frames: rows `begin` to `end` of a block, as they are published to one subject.

    Raises:
        ValueError: A row, or what it points to, lies outside.
    """
    view = memoryview(block.data).cast("B")
    _check_rows(begin, end, len(block))
    head = b"PUB %b " % subject
    parts: list[Buffer] = []
    for start, size in zip(block.starts[begin:end].tolist(), block.sizes[begin:end].tolist(), strict=True):
        _check_span(start, size, len(view))
        parts += (head, b"%d\r\n" % size, view[start : start + size], b"\r\n")
    return b"".join(parts)


def _payloads(pieces: list[bytes]) -> Payloads:
    sizes = np.array([len(piece) for piece in pieces], np.uint32)
    return Payloads(b"".join(pieces), np.cumsum(sizes, dtype=np.int64) - sizes, sizes)


def _bytes(view: memoryview, span: _Span) -> bytes:
    return bytes(view[span[0] : span[0] + span[1]])


def _check_rows(begin: int, end: int, rows: int) -> None:
    if not 0 <= begin <= end <= rows:
        raise ValueError(f"rows {begin} to {end} of {rows}")


def _check_span(start: int, size: int, limit: int) -> None:
    if size and not (start >= 0 and 0 < size <= limit - start):
        raise ValueError(f"{size} bytes at {start} of {limit}")


def _check_frame(frame: list[int], limit: int) -> None:
    _check_span(frame[frame_columns.PAYLOAD], frame[frame_columns.PAYLOAD_SIZE], limit)
    _check_span(frame[frame_columns.REPLY], frame[frame_columns.REPLY_SIZE], limit)
    if not 0 <= frame[frame_columns.HEADER_SIZE] <= frame[frame_columns.PAYLOAD_SIZE]:
        raise ValueError(f"headers of {frame[frame_columns.HEADER_SIZE]} bytes")


class _StrangeError(Exception):
    """Bytes that the general decoder should judge."""


def _varint(payload: memoryview, position: int, longest: int) -> tuple[int, int]:
    value = 0
    for i in range(longest):
        if position >= len(payload):
            raise _StrangeError
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value > _MAX_UINT64:
                raise _StrangeError
            return value, position
    raise _StrangeError


def _field(payload: memoryview, position: int) -> tuple[int, int, int, int, int]:
    """Returns number, wire type, value (of a varint, else the size), where the bytes begin, and where the next is."""
    tag, position = _varint(payload, position, _MAX_TAG_BYTES)
    number, wire = tag >> 3, tag & 7
    if number == 0:
        raise _StrangeError
    if wire == 0:
        value, position = _varint(payload, position, _MAX_VARINT_BYTES)
        return number, wire, value, position, position
    if wire == 2:
        value, position = _varint(payload, position, _MAX_LENGTH_BYTES)
    elif wire in (1, 5):
        value = 8 if wire == 1 else 4
    else:
        raise _StrangeError
    if value > len(payload) - position:
        raise _StrangeError
    return number, wire, value, position, position + value


def _publish_fields(payload: memoryview, base: int) -> list[_Span] | None:
    """Where the fields 1 to 6 of a PubMsg are; None if the general decoder should look."""
    spans = [_NOTHING] * 6
    position = 0
    try:
        while position < len(payload):
            number, wire, size, start, position = _field(payload, position)
            if number <= _CONN_ID or number == _SHA256:
                if wire != 2:
                    return None
                if number <= _CONN_ID:
                    spans[number - 1] = (base + start, size) if size else _NOTHING
    except _StrangeError:
        return None
    return spans


def _ack_sequence(payload: memoryview, channel: bytes) -> int | None:
    subject: Buffer = b""
    sequence = position = 0
    try:
        while position < len(payload):
            number, wire, value, start, position = _field(payload, position)
            if number == _ACK_SUBJECT:
                if wire != 2:
                    return None
                subject = payload[start : start + value]
            elif number == _ACK_SEQUENCE:
                if wire != 0:
                    return None
                sequence = value
    except _StrangeError:
        return None
    return sequence if subject == channel else None
