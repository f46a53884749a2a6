"""A survey of one block: its records, and the bytes that belong to none.

A record proves itself by its hash, so the search restarts after damage. A block with the records of another number or
stream is read with that one's key.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.store.mapping import Buffer, data_from
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash
from stantools.streamfiles.blocks import MAX_TRIED_KEYS, BlockContent, number_of_records
from stantools.streamfiles.damage import FLAW_TEXTS, MAX_CLAIMED_STEP, Gap, scan
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.flaws import FileFlaw, FlawKind
from stantools.streamfiles.layout import MESSAGES, RecordFlaw
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.subjects import SubjectCounts, without_header_form

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TOMBSTONE: Final = 1
_NONE: Final = np.zeros(0, np.uint64)
_PIECE: Final = 1 << 20
_KINDS: Final = {
    RecordFlaw.CUT: FlawKind.BLOCK_CUT,
    RecordFlaw.BAD_LENGTH: FlawKind.BLOCK_LENGTH,
    RecordFlaw.BAD_HASH: FlawKind.BLOCK_HASH,
}
_DETAILS: Final = {
    **{kind: FLAW_TEXTS[flaw] for flaw, kind in _KINDS.items()},
    FlawKind.BLOCK_ZEROS: "zeros follow the last record",
    FlawKind.BLOCK_TAIL: "bytes that are no record follow the last one",
}


@dataclass(slots=True)
class BlockSurvey:
    file: BlockFile
    records: int = 0
    messages: int = 0
    erased: int = 0
    first: int = 0  #: sequence of its first message, 0 without messages
    last: int = 0
    first_time: int = 0
    last_time: int = 0
    size: int = 0  #: of the records of its messages
    compressed: bool = False
    encrypted: bool = False
    readable: bool = True
    disordered: bool = False  #: its sequences do not rise
    key: bytes = b""  #: of its records' hashes
    tombstones: NDArray[np.uint64] = field(default_factory=lambda: _NONE)
    erasures: NDArray[np.uint64] = field(default_factory=lambda: _NONE)
    gaps: list[Gap] = field(default_factory=list)
    moved_borders: frozenset[int] = frozenset()  #: messages whose headers do not have their form
    flaws: list[FileFlaw] = field(default_factory=list)
    _sequences: Ranges | None = None

    @property
    def name(self) -> str:
        """Path relative to the stream's directory."""
        return f"{self.file.place}/{self.file.name}"

    @property
    def sequences(self) -> Ranges:
        """The sequences of its messages."""
        if self._sequences is not None:
            return self._sequences
        return Ranges(array("Q", (self.first,)), array("Q", (self.last,))) if self.messages else Ranges()

    @sequences.setter
    def sequences(self, found: Ranges) -> None:
        whole = not self.disordered and self.last - self.first + 1 == self.messages  # it can be told from its ends
        self._sequences = None if whole or not found else found

    @property
    def damaged(self) -> bool:
        """It has less than it had, as far as the file itself tells."""
        return bool(self.gaps) or not self.readable or not self.file.size

    @property
    def may_lack_tombstones(self) -> bool:
        return self.damaged and not (self.gaps and all(each.covered for each in self.gaps))

    def flaw(self, kind: FlawKind, detail: str, gap: Gap | None = None, sequence: int | None = None) -> None:
        offset, length = (gap.start, gap.end - gap.start) if gap else (None, None)
        self.flaws.append(FileFlaw(kind, self.name, detail, offset, length, sequence))


def survey_block(stream: StoredStream, file: BlockFile, subjects: SubjectCounts) -> BlockSurvey:
    """Reads a block once; the subjects of messages in their proper place are counted."""
    block = BlockSurvey(file)
    try:
        with stream.content(file) as content:
            block.compressed, block.encrypted = content.compressed, content.encrypted
            block.readable = not content.sealed
            if not content.sealed:
                _scan(block, content, stream, subjects)
    except NotPermittedError:
        raise
    except StoreUnreadableError as problem:
        block.readable = False
        block.flaw(FlawKind.BLOCK_UNREADABLE, problem.message.removeprefix(f"{file.path}: "))
    return block


def _scan(block: BlockSurvey, content: BlockContent, stream: StoredStream, subjects: SubjectCounts) -> None:
    block.key = highwayhash.block_key(stream.name, block.file.number)
    if not len(content.data):
        if len(stream.blocks) > 1 or (stream.index and stream.index.messages):
            block.flaw(FlawKind.BLOCK_EMPTY, "it is empty")
        return
    _collect(block, content.data, subjects)
    if not block.records:
        if proper := _proper_key(block, content.data, stream):
            block.gaps.clear()
            block.key = highwayhash.block_key(*proper)
            block.flaw(FlawKind.BLOCK_NUMBER, f"it has the records of block {proper[1]} of stream {proper[0]}")
            _collect(block, content.data, subjects)
        elif stream.encrypted and not content.encrypted:
            block.flaw(FlawKind.BLOCK_KEY, f"it is encrypted, and its key, {block.file.number}.key, is not there")
            block.readable = False
            block.gaps.clear()
            return
    if content.magic_damaged or content.damaged_chunks:
        detail = "it is compressed, and its first bytes are damaged"
        if content.damaged_chunks:
            detail = f"it cannot be decompressed completely: chunk at {content.damaged_chunks[0]}"
        block.flaw(FlawKind.BLOCK_COMPRESSED, detail)
    if content.surplus and not any(content.surplus):
        detail = f"zeros follow its compressed content, {len(content.surplus)} or more: 2.14 and newer cannot read it"
        block.flaw(FlawKind.BLOCK_COMPRESSED, detail)
    elif content.surplus:
        block.flaw(FlawKind.ERASE_BUG, f"{len(content.surplus)} bytes follow the compressed content of the block")
        for piece in scan(content.surplus, block.key):
            if isinstance(piece, RecordBatch):
                block.erasures = np.concatenate((block.erasures, piece.sequence[piece.flags > _TOMBSTONE]))
    for gap in block.gaps if block.file.name.endswith(".blk") else ():
        _tell_gap(block, gap, content.data)


def _tell_gap(block: BlockSurvey, gap: Gap, data: Buffer | bytes) -> None:
    kind = _KINDS[gap.flaw]
    if gap.end == len(data) and not gap.claimed:
        if _is_zeros(data, gap.start, gap.end):
            kind = FlawKind.BLOCK_ZEROS
        elif gap.flaw is RecordFlaw.BAD_LENGTH:
            kind = FlawKind.BLOCK_TAIL
    detail = _DETAILS[kind]
    if gap.before and kind is not FlawKind.BLOCK_ZEROS:
        detail += f"; after message {gap.before}"
    sequence = gap.claimed if gap.before < gap.claimed <= gap.before + MAX_CLAIMED_STEP else None
    block.flaw(kind, detail, gap, sequence)


def _proper_key(block: BlockSurvey, data: Buffer | bytes, stream: StoredStream) -> tuple[str, int] | None:
    inner = (stream.config or {}).get("name")
    names = dict.fromkeys((stream.name, *([inner] if isinstance(inner, str) else []), *stream.other_names))
    numbers = chain((block.file.number,), (each.number for each in stream.blocks))
    return number_of_records(data, names, numbers, max(len(names), MAX_TRIED_KEYS // len(stream.blocks or (block,))))


def _collect(block: BlockSurvey, data: Buffer | bytes, subjects: SubjectCounts) -> None:
    tombstones, erasures, parts = [], [], []
    for piece in scan(data, block.key):
        if isinstance(piece, Gap):
            block.gaps.append(piece)
            continue
        live = piece.flags == 0
        block.records += len(piece)
        messages = int(np.count_nonzero(live))
        if messages < len(piece):
            tombstones.append(piece.sequence[piece.flags == _TOMBSTONE].copy())
            erasures.append(piece.sequence[piece.flags > _TOMBSTONE].copy())
            piece = piece.take(live)
        if messages:
            _add_messages(block, piece)
            parts.append(Ranges.from_sequences(piece.sequence))
            if moved := without_header_form(piece):
                block.moved_borders |= set(moved)
            if block.file.place == MESSAGES:
                subjects.add(piece.subject_hashes())
    block.sequences = Ranges.union(parts)
    if tombstones:
        block.tombstones, block.erasures = np.concatenate(tombstones), np.concatenate(erasures)
        block.erased = len(block.erasures)


def _add_messages(block: BlockSurvey, rows: RecordBatch) -> None:
    numbers = rows.sequence
    if not block.messages:
        block.first, block.first_time = int(numbers[0]), int(rows.timestamp[0])
    elif int(numbers[0]) <= block.last:
        block.disordered = True
        block.flaw(FlawKind.BLOCK_ORDER, f"sequence {numbers[0]} follows {block.last}", sequence=int(numbers[0]))
    block.last, block.last_time = int(numbers[-1]), int(rows.timestamp[-1])
    block.messages += len(rows)
    block.size += int(rows.length.sum())
    if len(numbers) > 1 and not block.disordered and bool((numbers[1:] <= numbers[:-1]).any()):
        block.disordered = True
        block.flaw(FlawKind.BLOCK_ORDER, f"its sequences do not rise, between {numbers[0]} and {numbers[-1]}")


def _is_zeros(data: Buffer | bytes, start: int, end: int) -> bool:
    while start < end:
        begin, stop = data_from(data, start) if isinstance(data, memoryview) else (start, end)
        for at in range(begin, min(stop, end), _PIECE):
            if bytes(data[at : min(at + _PIECE, stop, end)]).strip(b"\0"):
                return False
        start = stop
    return True
