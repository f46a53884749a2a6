"""Reading single records anywhere in a block of a stream, and the meaning of every byte of one.

Facts: jetstream-store.md section 3. Offsets count in the plain content of the block.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stantools.browse.record_fields import PartRole, RecordPart
from stantools.browse.record_map import RecordMap, RecordStretch
from stantools.browse.record_reader import MAX_RECORD, Decoded, RecordReader
from stantools.browse.stream_rows import BlockStretchReader, StoredBlock
from stantools.escaping import escape
from stantools.format.crc import Crc
from stantools.inspection.block_records import RECORD_TYPES, block_fields
from stantools.inspection.records import FileKind, FileRecord
from stantools.notation import cut, format_time
from stantools.progress import Progress
from stantools.streamfiles import kernels
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.blocks import BlockContent
from stantools.streamfiles.damage import FLAW_TEXTS, Gap, scan
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.headers import header_fields
from stantools.streamfiles.highwayhash import block_key
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    HAS_HEADERS,
    HASH_SIZE,
    HEADER_LENGTH_SIZE,
    MAX_SEQUENCE,
    RECORD_HEAD_SIZE,
    SKIPPED,
    TOMBSTONE,
    RecordColumns,
)
from stantools.streamfiles.record_batch import RecordBatch

#: records of an entry of a map
_STRETCH: Final = 4096
#: characters of a value
_MAX_VALUE: Final = 80


class BlockRecordReader(RecordReader):
    """An open block. A `survey` tells the block whose records it has."""

    def __init__(self, stream: StoredStream, file: BlockFile, survey: BlockSurvey | None) -> None:
        super().__init__(file.path, FileKind.BLOCK, Crc())
        self._stream = stream
        self._file = file
        self._key = survey.key if survey and survey.key else block_key(stream.name, file.number)
        self._block = StoredBlock(file, self._key)
        self._content = BlockStretchReader(stream, None)

    def close(self) -> None:
        super().close()
        self._content.close()

    def read(self, offset: int, length: int) -> bytes:
        return self._content.read_block(self._block, offset, length) if length > 0 and offset >= 0 else b""

    def map_records(self, progress: Progress | None = None) -> RecordMap:
        """Reads the block and maps its records; `progress` is called with bytes."""
        with self._stream.content(self._file) as content:
            self._block = StoredBlock(self._file, self._key, not (content.compressed or content.encrypted))
            return _map_of(content, self._key, progress)

    def parts(self, row: FileRecord) -> list[RecordPart]:
        record = self.read(row.offset, min(row.length, MAX_RECORD))
        return record_parts(record, self._key, row.offset, row.length)

    def _decode(self, entry: RecordStretch) -> Decoded:
        data = self.read(entry.start, entry.end - entry.start)
        rows = RecordBatch.read(data, 0, self._key, RecordColumns(entry.rows))[0]
        ends = np.cumsum(rows.length, dtype=np.int64)
        starts = ends - rows.length

        def describe(low: int, high: int) -> list[FileRecord]:
            found = []
            for row in range(low, min(high, len(rows))):
                at, end = int(starts[row]), int(ends[row])
                kind = RECORD_TYPES[int(rows.flags[row])]
                stored = int.from_bytes(data[end - HASH_SIZE : end], "little")
                fields = block_fields(rows, row, kind)
                found.append(FileRecord(entry.start + at, end - at, kind, True, stored, fields=fields))
            return found

        return Decoded(starts + entry.start, rows.sequence, describe)


def _map_of(content: BlockContent, key: bytes, progress: Progress | None) -> RecordMap:
    result = RecordMap(FileKind.BLOCK, len(content.data))
    at = 0
    for piece in scan(content.data, key):
        before = at
        if isinstance(piece, Gap):
            sequence = piece.claimed or None
            result.add_single(piece.start, piece.end, "damaged", False, FLAW_TEXTS[piece.flaw], sequence)
            at = piece.end
        else:
            ends = at + np.cumsum(piece.length, dtype=np.int64)
            for low in range(0, len(piece), _STRETCH):
                high = min(low + _STRETCH, len(piece))
                result.add_stretch(high - low, at, int(ends[high - 1]))
                at = int(ends[high - 1])
        if progress:
            progress(at - before)
    return result


def record_parts(record: bytes, key: bytes, offset: int, length: int) -> list[RecordPart]:
    """Returns the meaning of every byte of a record, or of damaged bytes.

    `record` may be only the beginning of `length` bytes.
    """
    parts = _BlockParts(offset, record)
    if record and not any(record):
        parts.add(len(record), "zeros", f"{len(record)} zero bytes", PartRole.ZEROS)
    elif len(record) < EMPTY_RECORD_SIZE:
        what = f"{len(record)} of at least {EMPTY_RECORD_SIZE} bytes of a record"
        parts.add(len(record), "torn", what, PartRole.WRONG)
    else:
        _record(parts, record, key, length)
    left = offset + length - parts.end
    parts.add(left, "not read" if parts.end - offset >= len(record) else "no record", f"{left:,} bytes")
    return parts.list


class _BlockParts:
    """Collects consecutive parts of a record."""

    def __init__(self, offset: int, record: bytes) -> None:
        self.begin = self.end = offset
        self.record = record
        self.list: list[RecordPart] = []

    def add(self, size: int, name: str, value: str, role: PartRole = PartRole.UNKNOWN) -> None:
        if size > 0:
            self.list.append(RecordPart(self.end, self.end + size, name, value, role))
            self.end += size

    def text(self, size: int, name: str, role: PartRole) -> None:
        at = self.end - self.begin
        self.add(size, name, cut(escape(self.record[at : at + min(size, _MAX_VALUE + 1)]), _MAX_VALUE), role)


def _record(parts: _BlockParts, record: bytes, key: bytes, length: int) -> None:
    word = int.from_bytes(record[:4], "little")
    size, with_headers = word & ~HAS_HEADERS, bool(word & HAS_HEADERS)
    what = f"{size:,}{', with headers' if with_headers else ''}"
    right = size == length
    parts.add(4, "length", what if right else f"{what}, but {length:,} bytes are here", _role(right, PartRole.SIZE))
    number = int.from_bytes(record[4:12], "little")
    flag = "erased or skipped" if number & SKIPPED else "deleted" if number & TOMBSTONE else ""
    parts.add(8, "sequence", f"{number & MAX_SEQUENCE:,}{f', {flag}' if flag else ''}", PartRole.NUMBER)
    time = int.from_bytes(record[12:20], "little", signed=True)
    parts.add(8, "time", f"{time} = {format_time(time)}", PartRole.TIME)
    subject = int.from_bytes(record[20:RECORD_HEAD_SIZE], "little")
    end = min(size, length, len(record)) - HASH_SIZE
    rest = end - RECORD_HEAD_SIZE - (HEADER_LENGTH_SIZE if with_headers else 0)
    fits = subject <= rest
    parts.add(2, "subject size", f"{subject:,}", _role(fits, PartRole.SIZE))
    if not fits:
        return
    parts.text(subject, "subject", PartRole.TEXT)
    if with_headers:
        at = RECORD_HEAD_SIZE + subject
        headers = int.from_bytes(record[at : at + HEADER_LENGTH_SIZE], "little")
        fits = headers <= rest - subject
        parts.add(HEADER_LENGTH_SIZE, "headers size", f"{headers:,}", _role(fits, PartRole.SIZE))
        if not fits:
            return
        at += HEADER_LENGTH_SIZE
        named = header_fields(record[at : at + headers])
        lines = ", ".join(f"{name}: {value}" for name, values in named.items() for value in values)
        parts.add(headers, "headers", cut(escape(lines), _MAX_VALUE), PartRole.TEXT)
    parts.text(end - (parts.end - parts.begin), "payload", PartRole.DATA)
    if size > len(record):
        return
    stored = int.from_bytes(record[end : end + HASH_SIZE], "little")
    good = kernels.decode_record(record[:size], key) is not None
    value = f"0x{stored:016x}, right" if good else f"0x{stored:016x}, the content has another"
    parts.add(HASH_SIZE, "hash", value, _role(good, PartRole.CRC))


def _role(good: bool, role: PartRole) -> PartRole:
    return role if good else PartRole.WRONG
