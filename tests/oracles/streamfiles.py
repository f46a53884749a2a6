"""The kernels of stream archives in Python and numpy, which the compiled ones are compared with.

All work on whole batches or blocks. `ValueError` only speaks of
wrong use; what the bytes of an archive are is never a reason to raise.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.format.crc import CASTAGNOLI, Crc
from stantools.streamfiles.headers import header_block, located
from stantools.streamfiles.highwayhash import KEY_SIZE
from stantools.streamfiles.layout import (
    CHUNK_HEAD_SIZE,
    CHUNK_SIZE,
    EMPTY_RECORD_SIZE,
    HAS_HEADERS,
    HASH_SIZE,
    HEADER_LENGTH_SIZE,
    MAX_RECORD_SIZE,
    MAX_SEQUENCE,
    MAX_SKIPS,
    MAX_SUBJECT_SIZE,
    RECORD_HEAD_SIZE,
    SKIPPED,
    TOMBSTONE,
    MessagePlaces,
    OpenBlock,
    RecordColumns,
    RecordFlaw,
    WriteStop,
    record_size,
    record_sizes,
)
from tests.oracles import highway

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray

    from stantools.format.columns import MessageColumns
    from stantools.format.message_batch import MessageBatch

#: From this size on it is faster to copy a piece on its own.
_LARGE: Final = 256
#: Bytes whose places are worked out at once: eight bytes are needed for each.
_GROUP: Final = 1 << 18


def counts_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns 0, 1, … for each count: [2, 0, 3] becomes [0, 1, 0, 1, 2]."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)


def copy_pieces(
    source: NDArray[np.uint8],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    target: NDArray[np.uint8],
    place: NDArray[np.int64],
) -> None:
    """Copies pieces of one array of bytes into another."""
    large = size >= _LARGE
    if large.any():
        read, write = source.data, target.data
        rows = (column[large].tolist() for column in (start, size, place))
        for origin, count, goal in zip(*rows, strict=True):
            write[goal : goal + count] = read[origin : origin + count]
        start, size, place = start[~large], size[~large], place[~large]
    ends = np.cumsum(size)
    begin = 0
    while begin < len(size):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _GROUP, "right")))
        part = slice(begin, end)
        counts = size[part]
        within = np.arange(int(ends[end - 1]) - done, dtype=np.int64)
        first = ends[part] - counts - done
        target[within + np.repeat(place[part] - first, counts)] = source[
            within + np.repeat(start[part] - first, counts)
        ]
        begin = end


_STORED: Final = 1

_HEAD: Final = np.dtype([("length", "<u4"), ("sequence", "<u8"), ("timestamp", "<i8"), ("subject", "<u2")])
_SKIP: Final = np.dtype([*_HEAD.descr, ("hash", "<u8")])
#: Places are counted in int32.
_MOST: Final = (1 << 31) - 1
_RECORD_HEAD: Final = struct.Struct("<IQqH")
#: Texts to hash that are put together at once.
_HASH_GROUP: Final = 8 << 20

_crc32c: Final = Crc(CASTAGNOLI).function


def hash64(data: ReadableBuffer, key: bytes) -> int:
    """HighwayHash-64 of one text; `key` is 32 bytes."""
    text = np.frombuffer(memoryview(data), np.uint8)
    padded = np.zeros(-(-max(len(text), 1) // highway.PACKET_SIZE) * highway.PACKET_SIZE, np.uint8)
    padded[: len(text)] = text
    sizes = np.array([len(text)], np.int64)
    return int(highway.hash_padded(padded.view("<u8").reshape(-1, 4), np.zeros(1, np.int64), sizes, _checked(key))[0])


def crc32c(data: ReadableBuffer) -> int:
    """CRC-32C as the frames use it (jetstream-migration.md section 7), not masked."""
    return _crc32c(data)


def frame(data: ReadableBuffer, out: NDArray[np.uint8], position: int) -> int:
    """Writes data as stored chunks of the snappy framing format (jetstream-migration.md section 7)."""
    view, target = memoryview(data).cast("B"), out.data
    for begin in range(0, len(view), CHUNK_SIZE):
        chunk = view[begin : begin + CHUNK_SIZE]
        end = position + CHUNK_HEAD_SIZE + len(chunk)
        if not 0 <= position <= end <= len(target):
            raise ValueError(f"the frame of {len(view)} bytes does not fit into {len(target)} bytes")
        crc = _crc32c(chunk)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        head = _STORED | len(chunk) + 4 << 8 | masked << 32
        target[position : position + CHUNK_HEAD_SIZE] = head.to_bytes(CHUNK_HEAD_SIZE, "little")
        target[position + CHUNK_HEAD_SIZE : end] = chunk
        position = end
    return position


def encode_records(batch: MessageBatch, first: int, block: OpenBlock, origin: bool) -> tuple[int, int, WriteStop]:
    """Writes messages as records of a block, with a skip record for each sequence missing between two of them.

    Nothing is skipped at the beginning of a block, and the first record may be larger than its room. If even that one
    does not fit into the content, the block is full while it is empty.
    """
    columns, sequence, channel, subject = batch, batch.stream_sequence, batch.channel, batch.subject
    out, position, buffer = block.content, block.position, batch.buffer
    if not 0 <= first <= len(sequence) or not 0 <= position <= len(out):
        raise ValueError(f"row {first} of {len(sequence)} at {position} of {len(out)}")
    if len(subject) > MAX_SUBJECT_SIZE or len(out) < EMPTY_RECORD_SIZE:
        raise ValueError(f"a subject of {len(subject)} bytes or a block of {len(out)} bytes")
    numbers, times = sequence[first:], columns.timestamp[first : len(sequence)]
    before = np.concatenate((np.array([block.last], np.uint64), numbers))[:-1]
    sizes, header_sizes = record_sizes(columns, len(channel), len(subject), origin)
    sizes, header_sizes = sizes[first : len(sequence)], header_sizes[first : len(sequence)]
    rising = (numbers > before) & (numbers <= np.uint64(MAX_SEQUENCE))
    gaps = np.minimum(numbers - before - np.uint64(1), np.uint64(MAX_SKIPS + 1)).astype(np.int64)
    if position == 0:
        gaps[:1] = 0
    stop, count = _first_stop(rising, gaps, sizes)
    gaps, sizes = gaps[:count], sizes[:count]
    ends = position + np.cumsum(gaps * EMPTY_RECORD_SIZE + sizes)
    too_far = ends > min(block.room, len(out))
    if position == 0:
        too_far[:1] = ends[:1] > len(out)
    if too_far.any():
        count, stop = int(too_far.argmax()), WriteStop.FULL
    filled = count + (stop is WriteStop.FULL)
    places = ends[:filled] - sizes[:filled]
    end = int(places[-1] if stop is WriteStop.FULL else ends[count - 1] if count else position)
    if end > len(out):
        raise ValueError(f"{end - position} bytes of records do not fit into the block at {position}")
    checked = _checked(block.key)
    if gaps[:filled].any():
        times_before = np.concatenate((np.array([block.last_time], np.int64), times))[:filled]
        _put_skips(out, places - gaps[:filled] * EMPTY_RECORD_SIZE, before, times_before, gaps[:filled], checked)
    rows = slice(first, first + count)
    source = np.frombuffer(memoryview(buffer), np.uint8)
    starts, data_sizes = columns.data_start[rows], columns.data_size[rows].astype(np.int64)
    _check_places(source, starts, data_sizes)
    replying = np.flatnonzero(columns.reply_size[rows]) + first
    _check_places(source, columns.reply_start[replying], columns.reply_size[replying].astype(np.int64))
    places, sizes, header_sizes = places[:count], sizes[:count], header_sizes[:count]
    _put_heads(out, places, sizes | np.where(header_sizes > 0, HAS_HEADERS, 0), numbers, times, len(subject))
    behind = places + RECORD_HEAD_SIZE
    subject_sizes = np.full(count, len(subject), np.int64)
    copy_pieces(np.frombuffer(subject, np.uint8), np.zeros(count, np.int64), subject_sizes, out, behind)
    behind = behind + len(subject)
    with_headers = np.flatnonzero(header_sizes)
    if len(with_headers):
        _put_headers(out, behind, buffer, columns, with_headers + first, with_headers, channel, origin)
        behind = behind + np.where(header_sizes > 0, header_sizes + HEADER_LENGTH_SIZE, 0)
    copy_pieces(source, starts, data_sizes, out, behind)
    _put_hashes(out, places, sizes, subject_sizes, header_sizes > 0, checked)
    block.position = end
    if count:
        block.last, block.last_time = int(numbers[count - 1]), int(times[count - 1])
    if stop is WriteStop.FULL and gaps[count]:  # its skip records are there
        block.last = int(numbers[count]) - 1
    return first + count, int(sizes.sum()), stop


def _first_stop(rising: NDArray[np.bool_], gaps: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[WriteStop, int]:
    """The first row that cannot be written whatever the room is, and why."""
    reasons = (
        (WriteStop.BAD_SEQUENCE, ~rising),
        (WriteStop.GAP, gaps > MAX_SKIPS),
        (WriteStop.TOO_LARGE, sizes > MAX_RECORD_SIZE),
    )
    stop, count = WriteStop.DONE, len(sizes)
    for reason, rows in reasons:
        if rows[:count].any():
            stop, count = reason, int(rows.argmax())
    return stop, count


def _put_heads(
    target: NDArray[np.uint8],
    places: NDArray[np.int64],
    lengths: NDArray[np.int64],
    numbers: NDArray[np.uint64],
    times: NDArray[np.int64],
    subject_size: int,
) -> None:
    heads = np.empty(len(places), _HEAD)
    heads["length"], heads["subject"] = lengths, subject_size
    heads["sequence"], heads["timestamp"] = numbers[: len(places)], times[: len(places)]
    target[places[:, None] + np.arange(RECORD_HEAD_SIZE)] = heads.view(np.uint8).reshape(-1, RECORD_HEAD_SIZE)


def _put_headers(
    target: NDArray[np.uint8],
    places: NDArray[np.int64],
    buffer: ReadableBuffer,
    columns: MessageColumns,
    rows: NDArray[np.int64],
    records: NDArray[np.int64],
    channel: bytes,
    origin: bool,
) -> None:
    """Header blocks, each after its size; `rows` are those of the columns, `records` those of the places."""
    view = memoryview(buffer).cast("B")
    replies = zip(columns.reply_start[rows].tolist(), columns.reply_size[rows].tolist(), strict=True)
    facts = zip(columns.sequence[rows].tolist(), columns.timestamp[rows].tolist(), replies, strict=True)
    blocks = [
        header_block(channel, number, time, bytes(view[start : start + size]), origin=origin)
        for number, time, (start, size) in facts
    ]
    pieces = [len(block).to_bytes(HEADER_LENGTH_SIZE, "little") + block for block in blocks]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    copy_pieces(np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(sizes) - sizes, sizes, target, places[records])


def encode_skips(block: OpenBlock, sequence: int, count: int, timestamp: int) -> None:
    """Writes `count` skip records from `sequence` on behind what is in a block, and moves its position on."""
    position, end = block.position, block.position + count * EMPTY_RECORD_SIZE
    if not 0 <= position <= end <= len(block.content):
        raise ValueError(f"{count} skip records do not fit into the block at {position}")
    one = np.ones(1, np.int64)
    before = np.array([sequence - 1], np.uint64)
    _put_skips(block.content, one * position, before, one * timestamp, one * count, _checked(block.key))
    block.position = end


def _put_skips(
    target: NDArray[np.uint8],
    places: NDArray[np.int64],
    before: NDArray[np.uint64],
    times: NDArray[np.int64],
    counts: NDArray[np.int64],
    key: bytes,
) -> None:
    """At each place `counts` skip records of the sequences after `before`."""
    within = counts_within(counts)
    skips = np.zeros(len(within), _SKIP)
    skips["length"] = EMPTY_RECORD_SIZE
    number = np.repeat(before[: len(counts)], counts) + within.astype(np.uint64) + np.uint64(1)
    skips["sequence"] = number | np.uint64(SKIPPED)
    skips["timestamp"] = np.repeat(times, counts)
    packets = np.zeros((len(skips), 4), "<u8")
    packets[:, 0] = skips["sequence"]
    packets[:, 1] = skips["timestamp"].view("<u8")
    texts = np.full(len(skips), 16, np.int64)
    skips["hash"] = highway.hash_padded(packets, np.arange(len(skips)), texts, key)
    place = np.repeat(places, counts) + within * EMPTY_RECORD_SIZE
    target[place[:, None] + np.arange(EMPTY_RECORD_SIZE)] = skips.view(np.uint8).reshape(-1, EMPTY_RECORD_SIZE)


def _put_hashes(
    target: NDArray[np.uint8],
    places: NDArray[np.int64],
    sizes: NDArray[np.int64],
    subjects: NDArray[np.int64],
    headers: NDArray[np.bool_],
    key: bytes,
) -> None:
    hashes = _record_hashes(target, places, sizes, subjects, headers, key).astype("<u8")
    behind = (places + sizes - HASH_SIZE)[:, None] + np.arange(HASH_SIZE)
    target[behind] = hashes.view(np.uint8).reshape(-1, HASH_SIZE)


def _record_hashes(
    block: NDArray[np.uint8],
    places: NDArray[np.int64],
    sizes: NDArray[np.int64],
    subjects: NDArray[np.int64],
    headers: NDArray[np.bool_],
    key: bytes,
) -> NDArray[np.uint64]:
    """The hashes of records, from what the block holds."""
    hashes = np.zeros(len(places), np.uint64)
    texts = sizes - (4 + 2 + HASH_SIZE) - np.where(headers, HEADER_LENGTH_SIZE, 0)
    packets = -(-texts // highway.PACKET_SIZE)
    totals = np.cumsum(packets) * highway.PACKET_SIZE
    begin = 0
    while begin < len(places):
        done = int(totals[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(totals, done + _HASH_GROUP, "right")))
        rows = slice(begin, end)
        scratch = np.zeros(int(totals[end - 1]) - done, np.uint8)
        start = totals[rows] - packets[rows] * highway.PACKET_SIZE - done
        place, subject, header = places[rows], subjects[rows], headers[rows]
        scratch[start[:, None] + np.arange(16)] = block[place[:, None] + np.arange(4, 20)]
        # Without headers the payload follows the subject.
        second = np.where(header, subject, texts[rows] - 16)
        copy_pieces(block, place + RECORD_HEAD_SIZE, second, scratch, start + 16)
        if header.any():
            third = place + RECORD_HEAD_SIZE + subject + HEADER_LENGTH_SIZE
            left = np.where(header, texts[rows] - 16 - subject, 0)
            copy_pieces(block, third, left, scratch, start + 16 + subject)
        words = scratch.view("<u8").reshape(-1, 4)
        hashes[rows] = highway.hash_padded(words, start // highway.PACKET_SIZE, texts[rows], key)
        begin = end
    return hashes


def end_of_records(block: ReadableBuffer, key: bytes) -> int:
    """Returns the end of the good records at the beginning of a block."""
    return scan_records(block, 0, key, RecordColumns(len(memoryview(block)) // EMPTY_RECORD_SIZE + 1))[1]


def scan_records(
    block: ReadableBuffer, position: int, key: bytes, columns: RecordColumns
) -> tuple[int, int, RecordFlaw]:
    """Reads the records of a block as a server does, up to the first that is not good."""
    view = np.frombuffer(memoryview(block), np.uint8)
    if not 0 <= position <= len(view):
        raise ValueError(f"position {position} of {len(view)}")
    places: list[int] = []
    flaw = RecordFlaw.NONE
    while position < len(view):
        if len(places) == columns.capacity:
            flaw = RecordFlaw.FULL
            break
        flaw, size = _record_size(view, position)
        if flaw is not RecordFlaw.NONE:
            break
        places.append(position)
        position += size
    found = np.array(places, np.int64)
    heads = view[found[:, None] + np.arange(RECORD_HEAD_SIZE)].reshape(-1).view(_HEAD)
    headers = (heads["length"] & np.uint32(HAS_HEADERS)) != 0
    sizes = (heads["length"] & np.uint32(HAS_HEADERS - 1)).astype(np.int64)
    subjects = heads["subject"].astype(np.int64)
    stored = view[(found + sizes)[:, None] - HASH_SIZE + np.arange(HASH_SIZE)].reshape(-1).view("<u8")
    good = _record_hashes(view, found, sizes, subjects, headers, _checked(key)) == stored
    rows = len(found)
    if not good.all():
        rows, flaw = int(good.argmin()), RecordFlaw.BAD_HASH
        position = places[rows]
    part = slice(rows)
    behind = found + RECORD_HEAD_SIZE + subjects
    header_sizes = np.zeros(len(found), np.int64)
    which = np.flatnonzero(headers)
    words = view[behind[which][:, None] + np.arange(HEADER_LENGTH_SIZE)].reshape(-1)
    header_sizes[which] = words.view("<u4")
    data = behind + np.where(headers, header_sizes + HEADER_LENGTH_SIZE, 0)
    columns.sequence[part] = heads["sequence"][part] & np.uint64(MAX_SEQUENCE)
    columns.flags[part] = (heads["sequence"][part] >> np.uint64(62)).astype(np.uint8)
    columns.timestamp[part] = heads["timestamp"][part]
    columns.length[part] = sizes[part]
    columns.subject_start[part] = found[part] + RECORD_HEAD_SIZE
    columns.subject_size[part] = subjects[part]
    columns.header_start[part] = np.where(headers, behind + HEADER_LENGTH_SIZE, 0)[part]
    columns.header_size[part] = header_sizes[part]
    columns.data_start[part] = data[part]
    columns.data_size[part] = (found + sizes - HASH_SIZE - data)[part]
    return rows, position, flaw


def _record_size(view: NDArray[np.uint8], position: int) -> tuple[RecordFlaw, int]:
    left = len(view) - position
    if left < EMPTY_RECORD_SIZE:
        return RecordFlaw.CUT, 0
    word = int.from_bytes(view[position : position + 4].tobytes(), "little")
    size = word & HAS_HEADERS - 1
    needed = EMPTY_RECORD_SIZE + int.from_bytes(view[position + 20 : position + 22].tobytes(), "little")
    if not needed <= size <= MAX_RECORD_SIZE:
        return RecordFlaw.BAD_LENGTH, 0
    if size > left:
        return RecordFlaw.CUT, 0
    if word & HAS_HEADERS:
        needed += HEADER_LENGTH_SIZE
        if needed > size:
            return RecordFlaw.BAD_LENGTH, 0
        place = position + needed - HASH_SIZE
        needed += int.from_bytes(view[place - HEADER_LENGTH_SIZE : place].tobytes(), "little")
        if needed > size:
            return RecordFlaw.BAD_LENGTH, 0
    return RecordFlaw.NONE, size


def encode_record(sequence: int, time: int, subject: bytes, header: bytes, payload: bytes, key: bytes) -> bytes:
    """Returns a record."""
    checked, size = _checked(key), record_size(subject, header, payload)
    if len(subject) > MAX_SUBJECT_SIZE or size > MAX_RECORD_SIZE:
        raise ValueError(f"a record of {size} bytes")
    head = _RECORD_HEAD.pack(size | HAS_HEADERS if header else size, sequence, time, len(subject))
    digest = hash64(b"%b%b%b%b" % (head[4:20], subject, header, payload), checked).to_bytes(HASH_SIZE, "little")
    if header:
        return b"%b%b%b%b%b%b" % (
            head,
            subject,
            len(header).to_bytes(HEADER_LENGTH_SIZE, "little"),
            header,
            payload,
            digest,
        )
    return b"%b%b%b%b" % (head, subject, payload, digest)


def encode_tombstones(sequences: NDArray[np.uint64], times: NDArray[np.int64], key: bytes) -> bytes:
    """Returns the records that take out messages."""
    if len(sequences) != len(times):
        raise ValueError(f"{len(sequences)} sequences with {len(times)} times")
    rows = zip(sequences.tolist(), times.tolist(), strict=True)
    return b"".join(encode_record(number | TOMBSTONE, time, b"", b"", b"", key) for number, time in rows)


def decode_record(data: bytes, key: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Returns subject, header block and payload of a record; None if it is none, or its hash is another one."""
    checked = _checked(key)
    if len(data) < EMPTY_RECORD_SIZE:
        return None
    word, _, _, subject_size = _RECORD_HEAD.unpack_from(data)
    end = len(data) - HASH_SIZE
    begin = RECORD_HEAD_SIZE + subject_size
    if word & HAS_HEADERS - 1 != len(data) or begin > end:
        return None
    subject, header = data[RECORD_HEAD_SIZE:begin], b""
    if word & HAS_HEADERS:
        if begin + HEADER_LENGTH_SIZE > end:
            return None
        size = int.from_bytes(data[begin : begin + HEADER_LENGTH_SIZE], "little")
        begin += HEADER_LENGTH_SIZE
        if size > end - begin:
            return None
        header = data[begin : begin + size]
        begin += size
    payload = data[begin:end]
    text = b"%b%b%b%b" % (data[4:20], subject, header, payload)
    if hash64(text, checked) != int.from_bytes(data[end:], "little"):
        return None
    return subject, header, payload


def direct_answer(data: bytes, key: bytes, stream: bytes) -> tuple[bytes, int] | None:
    """Returns header block and payload of a record's message, for a direct get, and the size of the block."""
    parts = decode_record(data, key)
    if parts is None:
        return None
    subject, header, payload = parts
    _, sequence, time, _ = _RECORD_HEAD.unpack_from(data)
    block = located(header, stream, subject, sequence & MAX_SEQUENCE, time)
    return block + payload, len(block)


def find_messages(
    block: ReadableBuffer, starts: NDArray[np.uint32], sizes: NDArray[np.uint32], key: bytes, places: MessagePlaces
) -> int:
    """Looks where the messages of records are, up to the first record that is not good."""
    view = memoryview(block).cast("B")
    checked = _checked(key)
    if not len(starts) == len(sizes) == len(places.subject):
        raise ValueError(f"{len(starts)} records, {len(sizes)} sizes, {len(places.subject)} places")
    if len(view) > _MOST:
        raise ValueError(f"{len(view)} bytes of a block")
    for row, (begin, length) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        if length < EMPTY_RECORD_SIZE or begin + length > len(view):
            return row
        word, _, _, subject_size = _RECORD_HEAD.unpack_from(view, begin)
        at, end, header = begin + RECORD_HEAD_SIZE + subject_size, begin + length - HASH_SIZE, 0
        if word & HAS_HEADERS - 1 != length or at > end:
            return row
        name = bytes(view[begin + RECORD_HEAD_SIZE : at])
        if word & HAS_HEADERS:
            if at + HEADER_LENGTH_SIZE > end:
                return row
            header = int.from_bytes(view[at : at + HEADER_LENGTH_SIZE], "little")
            at += HEADER_LENGTH_SIZE
            if header > end - at:
                return row
        text = b"%b%b%b" % (bytes(view[begin + 4 : begin + 20]), name, bytes(view[at:end]))
        if hash64(text, checked) != int.from_bytes(view[end : end + HASH_SIZE], "little"):
            return row
        for column, value in zip(places, (begin + RECORD_HEAD_SIZE, subject_size, header, at, end - at), strict=True):
            column[row] = value
    return len(starts)


def _check_places(source: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    if len(starts) and (int(starts.min()) < 0 or bool((starts > len(source) - sizes).any())):
        raise ValueError("a message reaches beyond its buffer")


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_SIZE:
        raise ValueError(f"a key of {len(key)} bytes")
    return key
