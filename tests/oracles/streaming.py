"""The streaming kernels in Python, which the compiled ones are compared with.

They take what every protobuf decoder takes for the same: fields in any order, the last value of a repeated one, unknown
fields of the simple wire types. What decoders may disagree about is left to the caller, one frame at a time, and so is
everything that is to be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.record_buffer import MessageRecordBuffer, Record
from broker.streaming.publishes import columns
from broker.streaming.publishes.columns import AckRun, ChannelPublishes, PublishColumns, PublishStop
from stantools.format.crc import Crc
from stantools.format.fieldscan import encode_varint
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE
from stantools.nats.frames import Payloads
from tests.oracles.decode import Pattern, Row, Span, ack_sequence, publish_fields, whole_varint

if TYPE_CHECKING:
    from broker.streaming.publishes.columns import Rows, Table
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames
    from stantools.nats.kernels import Names

_MAX_UINT64: Final = (1 << 64) - 1


def read_publishes(
    buffer: Buffer,
    frames: Frames,
    begin: int,
    end: int,
    clients: Names,
    connections: Names,
    channels: Names,
    table: Table,
    prefix: int = -1,
) -> PublishColumns:
    """Decodes publishes (streaming-protocol.md sections 2 and 7.2) up to the first that is not plainly good.

    A publisher is known by its connection id if it sends one, else by its client id.
    """
    view = memoryview(buffer).cast("B")
    limit = len(view)
    _check_rows(begin, end, len(frames))
    capacity = len(table)
    status = PublishStop.GOOD
    rows: list[Row] = []
    groups: dict[int, list[int]] = {}
    runs: list[tuple[bytes, int]] = []
    acks: list[bytes] = []
    size = 0
    patterns: dict[bytes, Pattern] = {}  # by NATS subject, which usually names publisher and channel
    last_reply: bytes | None = None
    for number, (at, length, reply, reply_size, header_size, start, stop, _) in enumerate(frames[begin:end].tolist()):
        if number == capacity:
            status = PublishStop.FULL
            break
        if not (0 <= header_size <= stop <= limit - start and start >= 0 <= reply_size <= limit - reply and reply >= 0):
            _check_frame(reply, reply_size, header_size, start, stop, limit)
        if prefix >= 0:
            _check_span(at, length, limit)
        stop += start
        start += header_size
        payload = bytes(view[start:stop])
        nats_subject = bytes(view[at : at + length])
        pattern = patterns.get(nats_subject)
        row = pattern.read(payload, start) if pattern else None
        if row is None:
            spans = publish_fields(payload)
            if spans is None:
                status = PublishStop.UNDECODABLE
                break
            client_id, guid, subject, answer, data, conn_id = spans
            if not guid[1]:
                status = PublishStop.NO_GUID
                break
            client = (
                connections.get(_bytes(payload, conn_id)) if conn_id[1] else clients.get(_bytes(payload, client_id))
            )
            if client < 0:
                status = PublishStop.UNKNOWN_CLIENT
                break
            if prefix >= 0 and nats_subject[prefix:] != _bytes(payload, subject):
                status = PublishStop.WRONG_SUBJECT
                break
            channel = channels.get(_bytes(payload, subject))
            if channel < 0:
                status = PublishStop.UNKNOWN_CHANNEL
                break
            pattern = Pattern(payload, client, channel, guid, answer, data)
            patterns[nats_subject] = pattern
            row = pattern.row(start, data)
        rows.append(row)
        try:
            groups[row[columns.CHANNEL]].append(number)
        except KeyError:
            groups[row[columns.CHANNEL]] = [number]
        guid_start, guid_size = row[columns.GUID] - start, row[columns.GUID_SIZE]
        acks.append(_ack_head(guid_size) + payload[guid_start : guid_start + guid_size])
        reply_subject = bytes(view[reply : reply + reply_size])
        if reply_subject != last_reply:
            last_reply = reply_subject
            runs.append((reply_subject, number))
        size += stop - start
    count = len(rows)
    if rows:
        table[:count] = rows
    ends = [*(number for _, number in runs[1:]), count]
    return PublishColumns(
        count,
        status,
        [
            ChannelPublishes(channel, np.array(members, np.int32))
            for channel, members in groups.items()
            if len(members) > 1
        ],
        [(channel, members[0]) for channel, members in groups.items() if len(members) == 1],
        _payloads(acks),
        [AckRun(subject, number, stop) for (subject, number), stop in zip(runs, ends, strict=False)],
        size,
    )


def encode_records(
    buffer: Buffer, table: Table, rows: Rows, name: bytes, first_sequence: int, timestamp: int, crc: Crc | None
) -> MessageRecordBuffer:
    """Encodes publishes as messages of a channel, as they are delivered and stored (filestore.md sections 2 and 3.1).

    The records lie one after the other from the start of the buffer, each behind its header of eight bytes.
    """
    view = memoryview(buffer).cast("B")
    limit = len(view)
    count = len(rows)
    if not 0 <= first_sequence <= _MAX_UINT64 - count or not -(1 << 63) <= timestamp < 1 << 63:
        raise ValueError(f"sequence {first_sequence} or timestamp {timestamp} is out of range")
    chosen = rows.tolist()
    if count and not (min(chosen) >= 0 and max(chosen) < len(table)):
        raise ValueError("a row lies outside of the table")
    subject = b"\x12" + encode_varint(len(name)) + name if name else b""
    tail = b"\x28" + encode_varint(timestamp & _MAX_UINT64) if timestamp else b""
    function = crc.function if crc else _no_crc
    sequence = first_sequence
    high = b""  # the sequence without its lowest seven bits
    pieces: list[bytes] = []
    starts: list[int] = []
    sizes: list[int] = []
    start = RECORD_HEADER_SIZE
    for _, _, _, _, reply, reply_size, data, data_size in table[chosen].tolist():
        if sequence < 128:
            head = b"\x08%c" % sequence if sequence else b""
        else:
            if not high or sequence & 0x7F == 0:
                high = encode_varint(sequence >> 7)
            head = b"\x08%c%b" % (sequence & 0x7F | 0x80, high)
        if not (0 <= data_size <= limit - data and data >= 0):
            _check_span(data, data_size, limit)
        body = bytes(view[data : data + data_size])
        middle = subject
        if reply_size:
            _check_span(reply, reply_size, limit)
            middle += b"\x1a%b%b" % (encode_varint(reply_size), bytes(view[reply : reply + reply_size]))
        if data_size:
            middle += b"\x22%c" % data_size if data_size < 0x80 else b"\x22" + encode_varint(data_size)
        payload = b"%b%b%b%b" % (head, middle, body, tail)
        length = len(payload)
        starts.append(start)
        sizes.append(length)
        start += length + RECORD_HEADER_SIZE
        pieces += (RECORD_HEADER.pack(length, function(payload)), payload)
        sequence += 1
    return MessageRecordBuffer(
        b"".join(pieces),
        np.array(starts, np.int64),
        np.array(sizes, np.uint32),
        np.arange(first_sequence, sequence, dtype=np.uint64),
        np.full(count, timestamp, np.int64),
        sum(sizes),
    )


def encode_lone_records(
    buffer: Buffer, table: Table, wanted: Iterable[tuple[int, bytes, int, int]], crc: Crc | None
) -> list[Record]:
    """Encodes publishes as messages of several channels, each for itself."""
    found = []
    for row, name, sequence, timestamp in wanted:
        if not 0 <= row < len(table):
            raise ValueError("a row lies outside of the table")
        block = encode_records(buffer, table, np.array([row], np.int32), name, sequence, timestamp, crc)
        found.append((bytes(block.data), sequence, timestamp))
    return found


def read_acks(buffer: Buffer, frames: Frames, begin: int, end: int, channel: bytes) -> tuple[list[int], int]:
    """Decodes acks of messages (streaming-protocol.md section 15) up to the first that is not plainly good."""
    view = memoryview(buffer).cast("B")
    limit = len(view)
    _check_rows(begin, end, len(frames))
    usual = b"\x0a" + encode_varint(len(channel)) + channel + b"\x10"
    length = len(usual)
    sequences: list[int] = []
    for _, _, reply, reply_size, header_size, start, stop, _ in frames[begin:end].tolist():
        _check_frame(reply, reply_size, header_size, start, stop, limit)
        payload = bytes(view[start + header_size : start + stop])
        sequence = whole_varint(payload[length:]) if payload.startswith(usual) else None
        if sequence is None:
            sequence = ack_sequence(payload, channel)
        if sequence is None:
            break
        sequences.append(sequence)
    return sequences, begin + len(sequences)


def read_lone_acks(buffer: Buffer, frames: Frames, rows: Sequence[int], channels: Sequence[bytes]) -> list[int | None]:
    """Decodes acknowledgements of messages of several channels, one each."""
    found: list[int | None] = []
    for row, channel in zip(rows, channels, strict=True):
        sequences, _ = read_acks(buffer, frames, row, row + 1, channel)
        found.append(sequences[0] if sequences else None)
    return found


def _payloads(pieces: list[bytes]) -> Payloads:
    sizes = [len(piece) for piece in pieces]
    starts = [0, *accumulate(sizes)][: len(sizes)]
    return Payloads(b"".join(pieces), np.array(starts, np.int64), np.array(sizes, np.uint32))


def _bytes(payload: bytes, span: Span) -> bytes:
    return payload[span[0] : span[0] + span[1]]


def _check_rows(begin: int, end: int, rows: int) -> None:
    if not 0 <= begin <= end <= rows:
        raise ValueError(f"rows {begin} to {end} of {rows}")


def _check_span(start: int, size: int, limit: int) -> None:
    if size and not (start >= 0 and 0 < size <= limit - start):
        raise ValueError(f"{size} bytes at {start} of {limit}")


def _check_frame(reply: int, reply_size: int, header_size: int, start: int, size: int, limit: int) -> None:
    _check_span(start, size, limit)
    _check_span(reply, reply_size, limit)
    if not 0 <= header_size <= size:
        raise ValueError(f"headers of {header_size} bytes")


def _ack_head(size: int) -> bytes:
    """Tag and size of a guid."""
    return b"\x0a%c" % size if size < 0x80 else b"\x0a" + encode_varint(size)


def _no_crc(payload: Buffer) -> int:
    return 0
