"""The scan and encode kernels in Python and numpy: always there, and the reference for the compiled ones.

Use them through `stantools.format.kernels`. All take any contiguous object with the buffer protocol and
absolute offsets, read nothing outside of it, and never raise for what the bytes are: `ValueError` only tells
of wrong use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.format import fieldscan
from stantools.format.columns import LogColumns, MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import (
    INDEX_DTYPE,
    INDEX_RECORD_SIZE,
    MAX_TYPED_PAYLOAD,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    Flag,
    Stop,
    SubRecord,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike, NDArray

NAME: Final = "plain"

_header = RECORD_HEADER.unpack_from
_MESSAGE_ROW: Final = np.dtype(
    [(name, getattr(MessageColumns(0), name).dtype) for name in MessageColumns.__slots__]  # in the order of the slots
)
_LOG_ROW: Final = np.dtype([(name, getattr(LogColumns(0), name).dtype) for name in LogColumns.__slots__])
_INDEX_ROW: Final = np.dtype(INDEX_DTYPE)
_ZERO_INDEX_RECORD: Final = bytes(INDEX_RECORD_SIZE)
_MAX_PAYLOAD: Final = 0xFFFFFFFF
_END: Final = Stop.END  # looking up a member of an enumeration takes as long as a function call

#: The bits of a varint of nine bytes that say where it ends.
_NINE_BYTES_MASK: Final = int.from_bytes(b"\x80" * 9, "little")
_NINE_BYTES: Final = int.from_bytes(b"\x80" * 8, "little")

_SEARCH_BLOCK: Final = 1 << 20
#: Whether a byte can begin a payload: as the first byte of a field's tag.
_BEGINS_FIELD: Final = np.array([byte >= 8 and byte & 7 in (0, 1, 2, 3, 5) for byte in range(256)])


def scan_messages(
    buffer: ReadableBuffer,
    start: int,
    limit: int,
    crc: Crc,
    check_crc: bool,
    channel: bytes,
    columns: MessageColumns,
    row: int = 0,
) -> tuple[int, int, Stop]:
    """Walks the records of a data file as the server reads them (section 7.2), up to the first problem.

    Args:
        buffer: The file.
        start: Offset of the first record's header.
        limit: Where to stop; the end of the buffer if it is beyond.
        crc: How the CRCs were made.
        check_crc: When off, wrong CRCs are accepted, as by a server with that option.
        channel: The subject that messages should have; others are flagged.
        columns: Filled with the good records.
        row: The first row to fill.

    Returns:
        The number of rows in use (those before `row` included), the offset of the record where it stopped,
        and why.
    """
    view, limit = _window(buffer, start, limit)
    _check_row(columns, row)
    rows: list[tuple[int, ...]] = []
    subject = _subject_field(channel)
    position = start
    stop = Stop.END
    while position < limit:
        if row + len(rows) == columns.capacity:
            stop = Stop.FULL
            break
        stop, size, stored = _read_header(view, position, limit)
        if stop is not _END:
            break
        payload = bytes(view[position + RECORD_HEADER_SIZE : position + RECORD_HEADER_SIZE + size])
        if check_crc and crc(payload) != stored:
            stop = Stop.BAD_CRC
            break
        decoded = _message_row(payload, position, channel, subject)
        if decoded is None:
            stop = Stop.BAD_DECODE
            break
        rows.append(decoded)
        position += RECORD_HEADER_SIZE + size
    _fill(columns, np.array(rows, _MESSAGE_ROW), row)
    return row + len(rows), position, stop


def read_messages_at(
    buffer: ReadableBuffer,
    limit: int,
    offsets: NDArray[np.int64],
    crc: Crc,
    check_crc: bool,
    channel: bytes,
    columns: MessageColumns,
    stops: NDArray[np.uint8],
) -> None:
    """Reads the record at each of the given offsets, independent of each other.

    Row i belongs to offset i. Where a record is not good, the row holds the offset, the size if there was a
    header, and zeros.

    Args:
        buffer: The file.
        limit: End of the readable part; the end of the buffer if it is beyond.
        offsets: Offsets of record headers, any numbers.
        crc: How the CRCs were made.
        check_crc: When off, wrong CRCs are accepted.
        channel: The subject that messages should have; others are flagged.
        columns: At least as many rows as offsets.
        stops: Receives `Stop.END` for good records, else what is wrong; `SHORT_HEADER` also for offsets at or
            beyond the limit or negative. At least as many as offsets.
    """
    view, limit = _window(buffer, 0, limit)
    if len(offsets) > columns.capacity or len(offsets) > len(stops):
        raise ValueError(f"{len(offsets)} offsets for {columns.capacity} rows and {len(stops)} stops")
    subject = _subject_field(channel)
    rows = []
    for i, position in enumerate(offsets.tolist()):
        stop, size, stored = _read_header(view, position, limit) if 0 <= position < limit else (Stop.SHORT_HEADER, 0, 0)
        decoded = None
        if stop is _END:
            payload = bytes(view[position + RECORD_HEADER_SIZE : position + RECORD_HEADER_SIZE + size])
            if check_crc and crc(payload) != stored:
                stop = Stop.BAD_CRC
            else:
                decoded = _message_row(payload, position, channel, subject)
                stop = Stop.END if decoded else Stop.BAD_DECODE
        rows.append(decoded or (position, size, 0, 0, 0, 0, 0, 0, 0))
        stops[i] = stop
    _fill(columns, np.array(rows, _MESSAGE_ROW), 0)


def find_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, channel: bytes) -> int:
    """Searches for the next message record after damage.

    A record counts when its payload fits, is a message with a sequence and a subject (of at most
    `fieldscan.MAX_FIELDS` fields) and has the right CRC.

    Args:
        buffer: The file.
        start: First offset to look at.
        limit: Records must end here; the end of the buffer if it is beyond.
        crc: How the CRCs were made.
        channel: The channel that is searched; records of other subjects count, too.

    Returns:
        Offset of the record's header, -1 if there is none.
    """
    view, limit = _window(buffer, start, limit)
    for position in _candidates(view, start, limit, typed=0):
        size, stored = _header(view, position)
        payload = view[position + RECORD_HEADER_SIZE : position + RECORD_HEADER_SIZE + size]
        if fieldscan.is_message(payload) and crc(payload) == stored:
            return position
    return -1


def scan_log(
    buffer: ReadableBuffer,
    start: int,
    limit: int,
    crc: Crc,
    check_crc: bool,
    columns: LogColumns,
    row: int = 0,
) -> tuple[int, int, Stop]:
    """Walks the records of clients.dat or subs.dat as the server reads them (section 7.2).

    It stops at the first problem.

    Payloads of the types 3, 4 and 5 are decoded (subs.dat, section 3.4); where that fails it stops with
    BAD_DECODE. All other types get a row, unknown ones too.

    Args:
        buffer: The file.
        start: Offset of the first record's header.
        limit: Where to stop; the end of the buffer if it is beyond.
        crc: How the CRCs were made.
        check_crc: When off, wrong CRCs are accepted.
        columns: Filled with the good records.
        row: The first row to fill.

    Returns:
        The number of rows in use (those before `row` included), the offset of the record where it stopped,
        and why.
    """
    view, limit = _window(buffer, start, limit)
    _check_row(columns, row)
    rows: list[tuple[int, ...]] = []
    position = start
    stop = Stop.END
    while position < limit:
        if row + len(rows) == columns.capacity:
            stop = Stop.FULL
            break
        stop, size, stored = _read_header(view, position, limit, MAX_TYPED_PAYLOAD)
        if stop is not _END:
            break
        payload = bytes(view[position + RECORD_HEADER_SIZE : position + RECORD_HEADER_SIZE + size])
        if check_crc and crc(payload) != stored:
            stop = Stop.BAD_CRC
            break
        kind = view[position + 3]
        ids = (0, 0)
        if SubRecord.DELETE <= kind <= SubRecord.MSG:
            try:
                ids = fieldscan.update(payload, with_sequence=kind != SubRecord.DELETE)
            except fieldscan.DecodeError:
                stop = Stop.BAD_DECODE
                break
        rows.append((position, size, kind, *ids))
        position += RECORD_HEADER_SIZE + size
    _fill(columns, np.array(rows, _LOG_ROW), row)
    return row + len(rows), position, stop


def find_log_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, max_type: int) -> int:
    """Searches for the next record of clients.dat or subs.dat after damage.

    A record counts when its type is 1 to `max_type`, its payload is not empty, fits, consists of protobuf
    fields (at most `fieldscan.MAX_FIELDS`) and has the right CRC.

    Returns:
        Offset of the record's header, -1 if there is none.
    """
    view, limit = _window(buffer, start, limit)
    for position in _candidates(view, start, limit, typed=max_type):
        word, stored = _header(view, position)
        end = position + RECORD_HEADER_SIZE + (word & MAX_TYPED_PAYLOAD)
        payload = view[position + RECORD_HEADER_SIZE : end]
        if fieldscan.is_fields(payload) and crc(payload) == stored:
            return position
    return -1


def scan_index(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, check_crc: bool) -> tuple[int, Stop]:
    """Counts the good records of an index file, as the server reads them (section 7.6).

    Args:
        buffer: The file.
        start: Offset of the first record, 4 in a file.
        limit: Where to stop; the end of the buffer if it is beyond.
        crc: How the CRCs were made.
        check_crc: When off, wrong CRCs are accepted.

    Returns:
        The number of good records, and why it stopped: END, SHORT_HEADER (1 to 31 bytes are left), ZEROS (a
        record of zeros) or BAD_CRC.
    """
    view, limit = _window(buffer, start, limit)
    count = 0
    while (position := start + count * INDEX_RECORD_SIZE) < limit:
        record = view[position : min(limit, position + INDEX_RECORD_SIZE)]
        if len(record) < INDEX_RECORD_SIZE:
            return count, Stop.SHORT_HEADER
        if record == _ZERO_INDEX_RECORD:
            return count, Stop.ZEROS
        if check_crc and crc(record[:-4]) != int.from_bytes(record[-4:], "little"):
            return count, Stop.BAD_CRC
        count += 1
    return count, Stop.END


def encode_index(sequence: ArrayLike, offset: ArrayLike, timestamp: ArrayLike, size: ArrayLike, crc: Crc) -> bytes:
    """Index records (section 2.3) for messages of the given properties, without the file's version header."""
    columns = [
        np.asarray(sequence, "<u8"),
        np.asarray(offset, "<i8"),
        np.asarray(timestamp, "<i8"),
        np.asarray(size, "<u4"),
    ]
    if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        raise ValueError("the columns of an index have different lengths")
    records = np.zeros(len(columns[0]), _INDEX_ROW)
    records["sequence"], records["offset"], records["timestamp"], records["size"] = columns
    encoded = memoryview(records.tobytes())
    parts = range(0, len(encoded), INDEX_RECORD_SIZE)
    records["crc"] = np.array([crc(encoded[i : i + INDEX_RECORD_SIZE - 4]) for i in parts], "<u4")
    return records.tobytes()


def encode_messages(
    channel: bytes,
    sequences: ArrayLike,
    timestamps: ArrayLike,
    replies: Sequence[bytes] | None,
    payloads: Sequence[bytes],
    crc: Crc,
) -> tuple[bytes, NDArray[np.uint32]]:
    """Encodes messages as records of a data file, byte by byte as the server does (section 3.1).

    Args:
        channel: The subject of all of them.
        sequences: Message sequences, unsigned 64 bits.
        timestamps: Nanoseconds since the epoch, signed 64 bits.
        replies: Reply subjects, empty where there is none; None when no message has one.
        payloads: The messages' data.
        crc: How to make CRCs.

    Returns:
        The records one after the other, and the payload size of each (8 bytes less than it takes in the
        file).
    """
    numbers = np.asarray(sequences, np.uint64).tolist()
    times = np.asarray(timestamps, np.int64).view(np.uint64).tolist()
    count = len(payloads)
    if len(numbers) != count or len(times) != count or (replies is not None and len(replies) != count):
        raise ValueError("sequences, timestamps, replies and payloads differ in number")
    varint = fieldscan.encode_varint
    subject = _subject_field(channel)
    records: list[bytes] = []
    sizes = np.zeros(count, np.uint32)
    for i in range(count):
        data = payloads[i]
        parts = [b"\x08" + varint(numbers[i]) if numbers[i] else b"", subject]
        if replies is not None and (reply := replies[i]):
            parts += (b"\x1a", varint(len(reply)), reply)
        if data:
            parts += (b"\x22", varint(len(data)), data)
        if times[i]:
            parts += (b"\x28", varint(times[i]))
        payload = b"".join(parts)
        if len(payload) > _MAX_PAYLOAD:
            raise ValueError(f"a message of {len(payload)} bytes does not fit into a record")
        sizes[i] = len(payload)
        records += (RECORD_HEADER.pack(len(payload), crc(payload)), payload)
    return b"".join(records), sizes


def _window(buffer: ReadableBuffer, start: int, limit: int) -> tuple[memoryview, int]:
    """The buffer as bytes, and the limit within it."""
    view = memoryview(buffer).cast("B")
    if start < 0 or limit < 0:
        raise ValueError(f"start {start} or limit {limit} is negative")
    return view, min(limit, len(view))


def _check_row(columns: MessageColumns | LogColumns, row: int) -> None:
    if not 0 <= row <= columns.capacity:
        raise ValueError(f"row {row} of {columns.capacity}")


def _fill(columns: MessageColumns | LogColumns, rows: NDArray[Any], row: int) -> None:
    for name in type(columns).__slots__:
        getattr(columns, name)[row : row + len(rows)] = rows[name]


def _read_header(view: memoryview, position: int, limit: int, mask: int = _MAX_PAYLOAD) -> tuple[Stop, int, int]:
    """Why the record at `position` (before the limit) cannot be read, or END; payload size and CRC."""
    left = limit - position - RECORD_HEADER_SIZE
    if left < 0:
        return Stop.SHORT_HEADER, 0, 0
    word, stored = _header(view, position)
    if not word and not stored:
        return Stop.ZEROS, 0, 0
    size = word & mask
    if size > left:
        return Stop.SHORT_PAYLOAD if left else Stop.DANGLING, size, stored
    return _END, size, stored


def _subject_field(channel: bytes) -> bytes:
    return b"\x12" + fieldscan.encode_varint(len(channel)) + channel if channel else b""


def _message_row(payload: bytes, position: int, channel: bytes, subject: bytes) -> tuple[int, ...] | None:
    """A row of `MessageColumns` for the record at `position`; None if the payload is not a message."""
    begin = position + RECORD_HEADER_SIZE
    usual = _usual_message(payload, subject)
    if usual is not None:
        sequence, timestamp, start, size = usual
        return position, len(payload), sequence, timestamp, start + begin if size else 0, size, 0, 0, 0
    try:
        decoded = fieldscan.message(payload)
    except fieldscan.DecodeError:
        return None
    return (
        position,
        len(payload),
        decoded.sequence,
        decoded.timestamp,
        begin + decoded.data_start if decoded.data_size else 0,
        decoded.data_size,
        begin + decoded.reply_start if decoded.reply_size else 0,
        decoded.reply_size,
        decoded.flags if decoded.subject == channel else decoded.flags | Flag.FOREIGN_SUBJECT,
    )


def _usual_message(payload: bytes, subject: bytes) -> tuple[int, int, int, int] | None:
    """Sequence, timestamp, data start and size of a message as the server mostly writes it, else None."""
    try:
        if payload[0] != 0x08:
            return None
        sequence = payload[1]
        position = 2
        if sequence > 0x7F:
            sequence &= 0x7F
            shift = 7
            while (byte := payload[position]) > 0x7F:
                sequence |= (byte & 0x7F) << shift
                shift += 7
                position += 1
            if shift > 56 or not byte:
                return None
            sequence |= byte << shift
            position += 1
        if not sequence or not subject or not payload.startswith(subject, position):
            return None
        position += len(subject)
        start = size = 0
        if payload[position] == 0x22:
            size = payload[position + 1]
            start = position + 2
            if size > 0x7F:
                high = payload[start]
                if high > 0x7F or not high:
                    return None
                size = size & 0x7F | high << 7
                start += 1
            position = start + size
            if not size:
                return None
        if payload[position] != 0x28 or len(payload) - position != 10:
            return None
    except IndexError:
        return None
    # Timestamps from 1972 to 2262 take nine bytes: eight that announce another, and a last one above zero.
    bits = int.from_bytes(payload[-9:], "little")
    if bits & _NINE_BYTES_MASK != _NINE_BYTES or not bits >> 64:
        return None
    timestamp = (
        (bits & 0x7F)
        | (bits >> 1 & 0x7F << 7)
        | (bits >> 2 & 0x7F << 14)
        | (bits >> 3 & 0x7F << 21)
        | (bits >> 4 & 0x7F << 28)
        | (bits >> 5 & 0x7F << 35)
        | (bits >> 6 & 0x7F << 42)
        | (bits >> 7 & 0x7F << 49)
        | (bits >> 8 & 0x7F << 56)
    )
    return sequence, timestamp, start, size


def _candidates(view: memoryview, start: int, limit: int, typed: int) -> Iterator[int]:
    """Offsets at which a record header might begin: a size that fits, and a payload that begins with a tag.

    Args:
        view: The file.
        start: First offset.
        limit: End of the readable part.
        typed: The highest record type; 0 for untyped records.
    """
    data = np.frombuffer(view, np.uint8) if len(view) else np.empty(0, np.uint8)
    last = limit - RECORD_HEADER_SIZE - 1  # the last header with one byte of payload behind it
    for base in range(start, last + 1, _SEARCH_BLOCK):
        count = min(_SEARCH_BLOCK, last + 1 - base)
        word = np.zeros(count, np.int64)
        for byte in range(3 if typed else 4):
            word |= data[base + byte : base + byte + count].astype(np.int64) << 8 * byte
        payload = base + RECORD_HEADER_SIZE
        good = (word > 0) & (word <= limit - payload - np.arange(count))
        good &= _BEGINS_FIELD[data[payload : payload + count]]
        if typed:
            kind = data[base + 3 : base + 3 + count]
            good &= (kind > 0) & (kind <= typed)
        yield from (np.flatnonzero(good) + base).tolist()
