"""The scan and encode kernels in Python and numpy, which the compiled ones are compared with.

All take any contiguous object with the buffer protocol and
absolute offsets, read nothing outside of it, and never raise for what the bytes are: `ValueError` only reports
of wrong use.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.format import fieldscan
from stantools.format.columns import FewMessages, LogColumns, MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    INDEX_DTYPE,
    INDEX_RECORD_SIZE,
    MAX_TYPED_PAYLOAD,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    Flag,
    ScanStop,
    SubRecord,
)
from tests.oracles import vectordecode

if TYPE_CHECKING:
    from array import array

    from _typeshed import ReadableBuffer
    from numpy.typing import ArrayLike, NDArray

    from stantools.format.envelope import Buffer

_header = RECORD_HEADER.unpack_from
_LOG_ROW: Final = np.dtype([(name, getattr(LogColumns(0), name).format) for name in LogColumns.names])
_INDEX_ROW: Final = np.dtype(INDEX_DTYPE)
#: An index record without its CRC.
_INDEX_FIELDS: Final = struct.Struct("<QqqI")
_ZERO_INDEX_RECORD: Final = bytes(INDEX_RECORD_SIZE)
_MAX_PAYLOAD: Final = 0xFFFFFFFF
_MAX_OFFSET: Final = 0x7FFFFFFF
_END: Final = ScanStop.END  # looking up a member of an enumeration takes as long as a function call

#: Ranges of sequences that a call of `scan_run` reports.
MOST_RANGES: Final = 1024
_SEARCH_BLOCK: Final = 1 << 20
#: Whether a byte can begin a payload: as the first byte of a field's tag.
_BEGINS_FIELD: Final = np.array([byte >= 8 and byte & 7 in (0, 1, 2, 3, 5) for byte in range(256)])


def scan_messages(
    buffer: ReadableBuffer,
    start: int,
    limit: int,
    crc: Crc,
    channel: bytes,
    columns: MessageColumns,
    row: int = 0,
) -> tuple[int, int, ScanStop]:
    """Walks the records of a data file as the server reads them (filestore.md section 7.2), up to the first problem."""
    view, limit = _window(buffer, start, limit)
    _check_row(columns, row)
    positions: list[int] = []
    sizes: list[int] = []
    position = start
    stop = ScanStop.END
    while position < limit:
        if row + len(positions) == columns.capacity:
            stop = ScanStop.FULL
            break
        stop, size = _read_record(view, position, limit, crc.function if crc.check else None)
        if stop is not _END:
            break
        positions.append(position)
        sizes.append(size)
        position += RECORD_HEADER_SIZE + size
    rows, accepted = vectordecode.decode(view, np.array(positions, np.int64), np.array(sizes, np.int64), channel)
    if not accepted.all():
        first = int(accepted.argmin())
        rows, position, stop = rows[:first], positions[first], ScanStop.BAD_DECODE
    _fill(columns, rows, row)
    return row + len(rows), position, stop


def scan_run(
    buffer: ReadableBuffer,
    start: int,
    until: int,
    crc: Crc,
    channel: bytes,
    index: ReadableBuffer | None,
    entry: int,
    after: int,
    rows: int,
) -> tuple[int, int, list[tuple[int, int]], int, int, int, int, int]:
    """Walks the records of a data file as long as all is as in a healthy slice, and keeps nothing but sums.

    Every record is good and of the channel, its sequence is higher than that of the record before, and it is what the
    next record of the index names, which is good as well.
    """
    view, limit = _window(buffer, start, until)
    if entry < 0:
        raise ValueError(f"index record {entry}")
    columns = MessageColumns(rows)
    found, _, _ = scan_messages(buffer, start, len(view), crc, channel, columns)
    part = columns.take(found)
    before = np.concatenate((np.array([after], np.uint64), part.sequence[:-1])) if found else part.sequence
    good = (part.offset < limit) & (part.flags & Flag.FOREIGN_SUBJECT == 0) & (part.sequence > before)
    if index is not None:
        good &= _named(memoryview(index).cast("B"), entry, part, crc)
    opens = part.sequence - before != 1
    opens[:1] = True
    good &= np.cumsum(opens) <= MOST_RANGES
    count = found if good.all() else int(good.argmin())
    if not count:
        return 0, start, [], 0, 0, 0, 0, 0
    part, starts = columns.take(count), np.flatnonzero(opens[:count])
    ends = np.append(starts[1:], count) - 1
    return (
        count,
        part.end,
        list(zip(part.sequence[starts].tolist(), part.sequence[ends].tolist(), strict=True)),
        int(part.size.sum(dtype=np.uint64)),
        int(part.data_size.sum(dtype=np.uint64)),
        int(part.data_size.max()),
        int(part.timestamp[0]),
        int(part.timestamp[-1]),
    )


def _named(index: Buffer, entry: int, messages: MessageColumns, crc: Crc) -> NDArray[np.bool_]:
    """Returns which messages the records of an index name, one after the other, from that entry on."""
    first = FILE_HEADER_SIZE + entry * INDEX_RECORD_SIZE
    count = min(max((len(index) - first) // INDEX_RECORD_SIZE, 0), messages.capacity)
    same = np.zeros(messages.capacity, bool)
    if not count:
        return same
    records = np.frombuffer(index, _INDEX_ROW, count, first)
    same[:count] = True
    for name in ("sequence", "offset", "timestamp", "size"):
        same[:count] &= records[name] == getattr(messages, name)[:count]
    if crc.check:
        places = range(first, first + count * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
        same[:count] &= records["crc"] == [crc(index[at : at + INDEX_RECORD_SIZE - 4]) for at in places]
    return same


def read_messages_at(
    buffer: ReadableBuffer,
    limit: int,
    offsets: NDArray[np.int64] | array[int],
    crc: Crc,
    channel: bytes,
    columns: MessageColumns | FewMessages,
    stops: NDArray[np.uint8] | bytearray,
) -> None:
    """Reads the record at each of the given offsets, independent of each other.

    Row i belongs to offset i. Where a record is not good, the row holds the offset, the size if there was a
    header, and zeros.
    """
    view, limit = _window(buffer, 0, limit)
    if len(offsets) > columns.capacity or len(offsets) > len(stops):
        raise ValueError(f"{len(offsets)} offsets for {columns.capacity} rows and {len(stops)} stops")
    positions = np.asarray(offsets, np.int64)
    sizes = np.zeros(len(positions), np.int64)
    found = np.full(len(positions), ScanStop.SHORT_HEADER, np.uint8)
    for i, position in enumerate(positions.tolist()):
        if 0 <= position < limit:
            found[i], sizes[i] = _read_record(view, position, limit, crc.function if crc.check else None)
    good = np.flatnonzero(found == ScanStop.END)
    rows = np.zeros(len(positions), vectordecode.ROW)
    rows["offset"], rows["size"] = positions, sizes
    rows[good], accepted = vectordecode.decode(view, positions[good], sizes[good], channel)
    found[good[~accepted]] = ScanStop.BAD_DECODE
    _fill(columns, rows, 0)
    np.frombuffer(stops, np.uint8)[: len(found)] = found


def gather(
    buffer: ReadableBuffer,
    starts: NDArray[np.int64],
    sizes: NDArray[np.uint32],
    offsets: NDArray[np.int32],
    target: NDArray[np.uint8],
) -> None:
    """Copies parts of a buffer one behind the other, as Arrow keeps binary values."""
    view = memoryview(buffer).cast("B")
    total = int(sizes.sum(dtype=np.int64))
    if len(sizes) != len(starts) or len(offsets) != len(starts) + 1 or len(target) != total or total > _MAX_OFFSET:
        raise ValueError(f"{len(starts)} parts of {total} bytes for {len(offsets)} offsets and {len(target)} bytes")
    if bool(((sizes > 0) & ((starts < 0) | (starts > len(view) - sizes.astype(np.int64)))).any()):
        raise ValueError("a part lies outside of the buffer")
    offsets[0] = 0
    np.cumsum(sizes, out=offsets[1:])
    parts = [view[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True) if size]
    target.data[:] = b"".join(parts)


def find_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, channel: bytes, until: int = -1) -> int:
    """Searches for the next message record after damage.

    A record counts when its payload fits, is a message with a sequence and a subject (of at most
    `fieldscan.MAX_FIELDS` fields) and has the right CRC.
    """
    view, limit = _window(buffer, start, limit)
    for position in _candidates(view, start, limit, until, typed=0):
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
    columns: LogColumns,
    row: int = 0,
) -> tuple[int, int, ScanStop]:
    """Walks the records of clients.dat or subs.dat as the server reads them (filestore.md section 7.2).

    It stops at the first problem.

    Payloads of the types 3, 4 and 5 are decoded (subs.dat, filestore.md section 3.4); where that fails it stops with
    BAD_DECODE. All other types get a row, unknown ones too.
    """
    view, limit = _window(buffer, start, limit)
    _check_row(columns, row)
    rows: list[tuple[int, ...]] = []
    position = start
    stop = ScanStop.END
    while position < limit:
        if row + len(rows) == columns.capacity:
            stop = ScanStop.FULL
            break
        stop, size = _read_record(view, position, limit, crc.function if crc.check else None, MAX_TYPED_PAYLOAD)
        if stop is not _END:
            break
        kind = view[position + 3]
        ids = (0, 0)
        if SubRecord.DELETE <= kind <= SubRecord.MSG:
            payload = bytes(view[position + RECORD_HEADER_SIZE : position + RECORD_HEADER_SIZE + size])
            try:
                ids = fieldscan.update(payload, with_sequence=kind != SubRecord.DELETE)
            except fieldscan.FieldScanError:
                stop = ScanStop.BAD_DECODE
                break
        rows.append((position, size, kind, *ids))
        position += RECORD_HEADER_SIZE + size
    _fill(columns, np.array(rows, _LOG_ROW), row)
    return row + len(rows), position, stop


def find_log_record(buffer: ReadableBuffer, start: int, limit: int, crc: Crc, max_type: int, until: int = -1) -> int:
    """Searches for the next record of clients.dat or subs.dat after damage.

    A record counts when its type is 1 to `max_type`, its payload is not empty, fits, consists of protobuf
    fields (at most `fieldscan.MAX_FIELDS`) and has the right CRC.
    """
    view, limit = _window(buffer, start, limit)
    for position in _candidates(view, start, limit, until, typed=max_type):
        word, stored = _header(view, position)
        end = position + RECORD_HEADER_SIZE + (word & MAX_TYPED_PAYLOAD)
        payload = view[position + RECORD_HEADER_SIZE : end]
        if fieldscan.is_fields(payload) and crc(payload) == stored:
            return position
    return -1


def scan_index(buffer: ReadableBuffer, start: int, limit: int, crc: Crc) -> tuple[int, ScanStop, int, bool]:
    """Counts the good records of an index file, as the server reads them (filestore.md section 7.6)."""
    view, limit = _window(buffer, start, limit)
    count, stop = 0, ScanStop.END
    while (position := start + count * INDEX_RECORD_SIZE) < limit:
        record = view[position : min(limit, position + INDEX_RECORD_SIZE)]
        if len(record) < INDEX_RECORD_SIZE:
            stop = ScanStop.SHORT_HEADER
        elif record == _ZERO_INDEX_RECORD:
            stop = ScanStop.ZEROS
        elif crc.check and crc(record[:-4]) != int.from_bytes(record[-4:], "little"):
            stop = ScanStop.BAD_CRC
        if stop is not ScanStop.END:
            break
        count += 1
    records = np.frombuffer(view, _INDEX_ROW, count, start) if count else np.empty(0, _INDEX_ROW)
    sequences = records["sequence"]
    return count, stop, int(records["size"].sum(dtype=np.uint64)), bool((sequences[1:] > sequences[:-1]).all())


def read_index(
    descriptor: int, start: int, limit: int, crc: Crc, part: int = 1 << 18
) -> tuple[int, ScanStop, int, bool] | None:
    """Does what `scan_index` does with an open file: bytes that are looked at once cost less copied than mapped."""
    if start < 0 or limit < 0:
        raise ValueError(f"start {start} or limit {limit} is negative")
    if part <= 0 or part % INDEX_RECORD_SIZE:
        raise ValueError(f"{part} bytes are not whole records")
    count, stop, sizes, rises, last = 0, ScanStop.END, 0, True, -1
    for begin in range(start, limit, part):
        size = min(part, limit - begin)
        try:
            content = os.pread(descriptor, size, begin)
        except OSError:
            return None
        if len(content) < size:
            return None
        rows, stop, named, rising = scan_index(content, 0, size, crc)
        if rows:
            rises = rises and rising and last < int.from_bytes(content[:8], "little")
            last = int.from_bytes(content[(rows - 1) * INDEX_RECORD_SIZE :][:8], "little")
        count, sizes = count + rows, sizes + named
        if stop is not ScanStop.END:
            break
    return count, stop, sizes, rises


def scan_leaf(
    buffer: ReadableBuffer, at: int, limit: int, count: int, low: bytes, high: bytes | None, term: int, bound: int
) -> list[int | tuple[int, int, int, bytes, int, int, int, int, int]] | None:
    """Reads a leaf page of a Raft log's entries as far as they are what servers write when messages are published.

    It only saves time, so the plain kernels do without: they leave every leaf to those who look at single elements
    (`format.raftlog`).
    """


def same_entries(
    buffer: ReadableBuffer, at: int, row: int, other: ReadableBuffer, other_at: int, other_row: int, count: int
) -> tuple[int, int]:
    """Compares entries of two Raft logs that `scan_leaf` has put together.

    Like that it only saves time: the plain kernels know of none that they are the same.
    """
    return 0, 0


def encode_index(sequence: ArrayLike, offset: ArrayLike, timestamp: ArrayLike, size: ArrayLike, crc: Crc) -> bytes:
    """Index records for messages of the given properties, without the file's version header.

    Facts: filestore.md section 2.3.
    """
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


def index_record(sequence: int, offset: int, timestamp: int, size: int, crc: Crc) -> bytes:
    """The index record of one message, faster than `encode_index` for columns of one.

    Facts: filestore.md section 2.3.
    """
    named = _INDEX_FIELDS.pack(sequence, offset, timestamp, size)
    return named + crc.function(named).to_bytes(4, "little")


def index_run(
    data: Buffer,
    starts: NDArray[np.int64],
    sizes: NDArray[np.uint32],
    sequences: NDArray[np.uint64],
    timestamps: NDArray[np.int64],
    offset: int,
    after: int,
    crc: Crc,
) -> tuple[bytes, int, int] | None:
    """Index records for a run of encoded messages that is to be copied to a data file as it is.

    Facts: filestore.md section 2.3.
    """
    count = len(sizes)
    if len(starts) != count or len(sequences) != count or len(timestamps) != count:
        raise ValueError("the columns of a run have different lengths")
    if not count:
        return None
    ends = starts + sizes
    begin, end = int(starts[0]) - RECORD_HEADER_SIZE, int(ends[-1])
    if begin < 0 or end > len(data) or bool((starts[1:] != ends[:-1] + RECORD_HEADER_SIZE).any()):
        return None
    if int(sequences[0]) != after + 1 or bool((np.diff(sequences) != 1).any()):
        return None
    unpack = RECORD_HEADER.unpack_from
    if any(unpack(data, start)[0] != size for start, size in zip((starts - 8).tolist(), sizes.tolist(), strict=True)):
        return None
    return encode_index(sequences, starts + (offset - int(starts[0])), timestamps, sizes, crc), begin, end


def encode_messages(
    channel: bytes,
    sequences: ArrayLike,
    timestamps: ArrayLike,
    replies: Sequence[bytes] | None,
    payloads: Sequence[bytes],
    crc: Crc,
) -> tuple[bytes, NDArray[np.uint32]]:
    """Encodes messages as records of a data file, byte by byte as the server does (filestore.md section 3.1)."""
    numbers = np.asarray(sequences, np.uint64).tolist()
    times = np.asarray(timestamps, np.int64).view(np.uint64).tolist()
    count = len(payloads)
    if len(numbers) != count or len(times) != count or (replies is not None and len(replies) != count):
        raise ValueError("sequences, timestamps, replies and payloads differ in number")
    varint = fieldscan.encode_varint
    subject = b"\x12" + varint(len(channel)) + channel if channel else b""
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


def encode_flow(kind: int, number: int, sequences: Sequence[int], crc: Crc) -> bytes:
    """Encodes that messages were sent to a subscription, or acknowledged by it (filestore.md sections 2.2 and 3.4)."""
    from stantools.format import logencode  # loads protobuf

    if number < 0 or number >> 64 or any(each < 0 or each >> 64 for each in sequences):
        raise OverflowError("a number does not fit into 64 bits")
    return logencode.encode_flow(kind, number, sequences, crc)


def _window(buffer: ReadableBuffer, start: int, limit: int) -> tuple[memoryview, int]:
    """The buffer as bytes, and the limit within it."""
    view = memoryview(buffer).cast("B")
    if start < 0 or limit < 0:
        raise ValueError(f"start {start} or limit {limit} is negative")
    return view, min(limit, len(view))


def _check_row(columns: MessageColumns | LogColumns, row: int) -> None:
    if not 0 <= row <= columns.capacity:
        raise ValueError(f"row {row} of {columns.capacity}")


def _fill(columns: MessageColumns | FewMessages | LogColumns, rows: NDArray[Any], row: int) -> None:
    for name in type(columns).names:
        np.asarray(getattr(columns, name))[row : row + len(rows)] = rows[name]


def _read_record(
    view: memoryview,
    position: int,
    limit: int,
    crc: Callable[[memoryview], int] | None,
    mask: int = _MAX_PAYLOAD,
) -> tuple[ScanStop, int]:
    """Why the record at `position` (before the limit) is not good, or END; and its payload size."""
    begin = position + RECORD_HEADER_SIZE
    if begin > limit:
        return ScanStop.SHORT_HEADER, 0
    word, stored = _header(view, position)
    size = word & mask
    end = begin + size
    if end > limit:
        return ScanStop.DANGLING if begin == limit else ScanStop.SHORT_PAYLOAD, size
    if not word and not stored:
        return ScanStop.ZEROS, 0
    if crc and crc(view[begin:end]) != stored:
        return ScanStop.BAD_CRC, size
    return _END, size


def _candidates(view: memoryview, start: int, limit: int, until: int, typed: int) -> Iterator[int]:
    """Offsets at which a record header might begin: a size that fits, and a payload that begins with a tag."""
    data = np.frombuffer(view, np.uint8) if len(view) else np.empty(0, np.uint8)
    last = limit - RECORD_HEADER_SIZE - 1  # the last header with one byte of payload behind it
    if until >= 0:
        last = min(last, until - 1)
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
