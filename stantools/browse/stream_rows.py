"""The rows of a stream: the messages of its blocks, with notes on damaged bytes and on missing or deleted sequences.

Offsets count in the records of a block: in a compressed or encrypted one, from the start of its plain content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from stantools.browse.row_model import (
    MessageStretch,
    Piece,
    Row,
    RowNote,
    RowNoteKind,
    SliceParts,
    WindowMessage,
)
from stantools.browse.stretch_reader import BLOCK, HEAD, LARGE, StoredTexts, StretchReader
from stantools.errors import StoreUnreadableError
from stantools.format.columns import MessageRecords
from stantools.format.layout import RECORD_HEADER_SIZE, Flag
from stantools.store.growing_channel import sign
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.damage import FLAW_TEXTS, MAX_CLAIMED_STEP, Gap, scan
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    HAS_HEADERS,
    HASH_SIZE,
    HEADER_LENGTH_SIZE,
    RECORD_HEAD_SIZE,
    RecordColumns,
)
from stantools.streamfiles.record_batch import RecordBatch

#: contents of compressed or encrypted blocks that are kept
_CONTENTS: Final = 2


@dataclass(frozen=True)
class StoredBlock:
    """A block of a stream that holds runs."""

    file: BlockFile
    key: bytes  #: of its records' hashes
    plain: bool = True  #: neither compressed nor encrypted
    live: Ranges | None = None  #: the sequences that count; None before they are known

    index = None

    @property
    def name(self) -> str:
        return self.file.path.name

    @property
    def data(self) -> Path:
        return self.file.path


def places_of(rows: RecordBatch, start: int = 0) -> MessageRecords:
    """Returns the places of messages that were read from offset `start` on."""
    size = rows.length - np.uint32(RECORD_HEADER_SIZE)
    return MessageRecords.of(rows.offset + start, size, rows.sequence, rows.timestamp)


class BlockStretchReader(StretchReader):
    """Reads the messages of runs in blocks.

    Args:
        stream: The stream, with its keys.
        missing: The sequences that are damaged or missing, not deleted; None before they are known.
    """

    has_subjects = True

    def __init__(self, stream: StoredStream, missing: Ranges | None) -> None:
        super().__init__(b"", key=None)
        self._stream = stream
        self._missing = missing
        self._contents: OrderedDict[Path, bytes] = OrderedDict()

    def another(self, key: bytes | None) -> BlockStretchReader:
        return BlockStretchReader(self._stream, self._missing)

    def close(self) -> None:
        super().close()
        self._contents.clear()

    def absent(self, first: int, last: int) -> RowNote:
        count = last - first + 1
        if self._missing is None:
            return RowNote(RowNoteKind.GAP, "missing or deleted", first=first, last=last)
        missing = (self._missing & Ranges.of([(first, last)])).count()
        if not missing:
            return RowNote(RowNoteKind.DELETED, "deleted", first=first, last=last)
        text = "missing" if missing == count else f"without a message, {missing:,} of them missing, the rest deleted"
        return RowNote(RowNoteKind.GAP, text, first=first, last=last)

    def read(self, stretch: MessageStretch, offset: int, size: int) -> bytes:
        block = stretch.files
        assert isinstance(block, StoredBlock)
        return self.read_block(block, offset, size)

    def read_block(self, block: StoredBlock, offset: int, size: int) -> bytes:
        """Reads bytes of a block's records; fewer if it ends before."""
        if block.plain:
            return self._open.read(block.data, offset, size)
        return self._content(block)[offset : offset + size]

    def _content(self, block: StoredBlock) -> bytes:
        content = self._contents.get(block.data)
        if content is None:
            with self._stream.content(block.file) as found:
                content = self._contents[block.data] = bytes(found.data)
            if len(self._contents) > _CONTENTS:
                self._contents.popitem(last=False)
        return content

    def _records(self, stretch: MessageStretch, start: int, end: int) -> RecordBatch:
        """Returns the messages among the records in a part of a block that count."""
        block = stretch.files
        assert isinstance(block, StoredBlock)
        raw = self.read_block(block, start, end - start)
        columns = RecordColumns(len(raw) // EMPTY_RECORD_SIZE + 1)
        return counted_rows(RecordBatch.read(raw, 0, block.key, columns)[0], block.live)

    def _scan(self, stretch: MessageStretch, start: int, end: int, count: int) -> MessageRecords:
        return places_of(self._records(stretch, start, end).take(slice(count)), start)

    def _first(self, stretch: MessageStretch, number: int) -> MessageRecords:
        start = int(stretch.offsets[number])
        length = int.from_bytes(self.read(stretch, start, 4), "little") & ~HAS_HEADERS
        if length < EMPTY_RECORD_SIZE:
            return MessageRecords.joined(())
        return self._scan(stretch, start, min(start + length, stretch.end), 1)

    def texts(self, stretch: MessageStretch, located: MessageRecords) -> StoredTexts:
        start = int(located.offset[0])
        rows = self._records(stretch, start, located.end)
        wanted, there, raw = located.offset - start, rows.offset, bytes(rows.buffer)
        at = np.minimum(np.searchsorted(there, wanted), max(len(there) - 1, 0))
        good = (there[at] == wanted) if len(there) else np.zeros(len(wanted), np.bool_)
        if not len(there):
            return StoredTexts(raw, wanted, located.ends - start, good, ())
        fields = (
            (rows.data_start[at], rows.data_size[at]),
            (rows.header_start[at], rows.header_size[at]),
            (rows.subject_start[at], rows.subject_size[at]),
        )
        return StoredTexts(raw, wanted, located.ends - start, good, fields)

    def messages(self, stretch: MessageStretch, located: MessageRecords, *, whole: bool = False) -> list[Row]:
        table = zip(located.offset.tolist(), located.size.tolist(), located.sequence.tolist(), strict=True)
        return [
            self._message(stretch, offset, size + RECORD_HEADER_SIZE, sequence, whole=whole)
            for offset, size, sequence in table
        ]

    def _message(self, stretch: MessageStretch, offset: int, length: int, sequence: int, *, whole: bool) -> Row:
        block = stretch.files
        assert isinstance(block, StoredBlock)
        large = length > LARGE and not whole
        raw = self.read_block(block, offset, HEAD if large else length)
        decoded = None if large else kernels.decode_record(raw, block.key)
        if decoded is not None:
            subject, headers, data = decoded
        elif large and len(raw) == HEAD and int.from_bytes(raw[:4], "little") & ~HAS_HEADERS == length:
            subject, headers, data = _beginning(raw)
        else:
            text = "it has changed since it was read"
            return RowNote(RowNoteKind.DAMAGE, text, block.name, offset, length, sequence, sequence)
        sizes = len(subject) + len(headers) + (HEADER_LENGTH_SIZE if raw[3] & 0x80 else 0)
        return WindowMessage(
            sequence,
            int.from_bytes(raw[12:20], "little", signed=True),
            subject,
            b"",
            data,
            length - EMPTY_RECORD_SIZE - sizes,
            block.name,
            offset,
            length - RECORD_HEADER_SIZE,
            0 if large else int.from_bytes(raw[-HASH_SIZE:], "little"),
            Flag(0),
            whole=not large,
            headers=headers,
        )


def _beginning(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """Returns subject, headers and the beginning of the payload of a large record, as far as they are there."""
    at = RECORD_HEAD_SIZE + int.from_bytes(raw[20:22], "little")
    subject = raw[RECORD_HEAD_SIZE:at]
    if not raw[3] & 0x80:
        return subject, b"", raw[at:]
    end = at + HEADER_LENGTH_SIZE + int.from_bytes(raw[at : at + HEADER_LENGTH_SIZE], "little")
    return subject, raw[at + HEADER_LENGTH_SIZE : end], raw[end:]


def counted_rows(rows: RecordBatch, live: Ranges | None) -> RecordBatch:
    """Returns the messages among records; with `live`, those of them that are in it."""
    chosen = rows.flags == 0
    if live is not None:
        chosen &= live.select(rows.sequence)
    return rows if chosen.all() else rows.take(chosen)


@dataclass
class _OpenRun:
    """A run that is being read."""

    block: StoredBlock
    start: int
    first: int
    count: int = 0
    end: int = 0
    last: int = 0
    last_timestamp: int = 0
    marks: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    breaks: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def extend(self, rows: MessageRecords) -> None:
        sequence = rows.sequence
        before = np.concatenate((np.array([self.last], np.uint64), sequence[:-1]))
        jumps = np.flatnonzero(sequence - before != np.uint64(1)) + self.count
        self.breaks.append(jumps[jumps > 0].astype(np.int64))
        for row in range(0, len(rows), BLOCK):
            self.marks.append(self.count + row)
            self.offsets.append(int(rows.offset[row]))
        self.count += len(rows)
        self.end, self.last, self.last_timestamp = rows.end, int(sequence[-1]), int(rows.timestamp[-1])

    def stretch(self) -> MessageStretch:
        return MessageStretch(
            self.block,
            b"",
            self.count,
            self.start,
            self.end,
            self.first,
            self.last,
            self.last_timestamp,
            marks=np.array(self.marks, np.int64),
            offsets=np.array(self.offsets, np.int64),
            breaks=np.concatenate(self.breaks),
        )


def block_parts(
    stream: StoredStream, file: BlockFile, survey: BlockSurvey | None, live: Ranges | None, damaged: Ranges | None
) -> SliceParts:
    """Reads the rows of a block; before a survey of the stream, deleted messages are among them."""
    mark = (sign(file.path),)
    try:
        with stream.content(file) as content:
            if content.sealed:
                text = f"{file.path.name} is encrypted, and its key cannot be opened"
                return SliceParts(file.path.name, mark, (RowNote(RowNoteKind.FILE, text, file.path.name),))
            key = survey.key if survey else highwayhash.block_key(stream.name, file.number)
            block = StoredBlock(file, key, not (content.compressed or content.encrypted), live)
            found = list(_runs_and_gaps(block, scan(content.data, key)))
    except StoreUnreadableError as problem:
        text = f"{file.path.name} cannot be read: {problem.message}"
        return SliceParts(file.path.name, mark, (RowNote(RowNoteKind.FILE, text, file.path.name),))
    pieces = tuple(_gap_note(block, each, damaged) if isinstance(each, Gap) else each for each in found)
    return SliceParts(block.name, mark, pieces, exact=live is not None)


def _runs_and_gaps(block: StoredBlock, pieces: Iterator[RecordBatch | Gap]) -> Iterator[MessageStretch | Gap]:
    run: _OpenRun | None = None
    for piece in pieces:
        if isinstance(piece, Gap):
            if run:
                yield run.stretch()
                run = None
            yield piece
            continue
        rows = places_of(counted_rows(piece, block.live))
        if not len(rows):
            continue
        before = np.concatenate((np.array([run.last if run else 0], np.uint64), rows.sequence[:-1]))
        low = 0
        for cut in [*np.flatnonzero(rows.sequence <= before).tolist(), len(rows)]:
            if cut > low:
                part = rows.part(low, cut)
                run = run or _OpenRun(block, int(part.offset[0]), int(part.sequence[0]))
                run.extend(part)
            if cut < len(rows) and run:
                yield run.stretch()
                run = None
            low = cut
    if run:
        yield run.stretch()


def _gap_note(block: StoredBlock, gap: Gap, damaged: Ranges | None) -> Piece:
    first = last = 0
    if gap.after > gap.before + 1:
        first, last = gap.before + 1, gap.after - 1
    elif gap.before < gap.claimed <= gap.before + MAX_CLAIMED_STEP:
        first, last = gap.before + 1, gap.claimed
    if damaged is not None:
        inside = damaged & Ranges.of([(first, last)]) if last else Ranges()
        first, last = (inside.first, inside.last) if inside else (0, 0)
    return RowNote(RowNoteKind.DAMAGE, FLAW_TEXTS[gap.flaw], block.name, gap.start, gap.end - gap.start, first, last)
