"""A survey of a stream's blocks: which messages it held, which of them are intact, and where damage is.

A record proves itself by its hash, so the search restarts after damage. Deletions are known from tombstones, erased
records and the indexes. A sequence in none of them that lies in damaged bytes is damaged; one in a block that is not
there is missing; any other gap was deleted without a trace, by a limit.

The hash covers neither the size of the subject nor that of the headers: a message whose border was moved keeps a valid
hash. It shows by headers without their form, or by a subject that nothing else names (jetstream-store.md section 3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.progress import Progress
from stantools.store.mapping import Buffer, data_from
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.blocks import BlockContent, number_of_records
from stantools.streamfiles.damage import Gap, scan
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.flaws import FileFlaw, FlawKind
from stantools.streamfiles.indexes import KnownBlock, KnownStream
from stantools.streamfiles.layout import (
    HEADER_LENGTH_SIZE,
    MESSAGES,
    PURGED,
    RECORD_HEAD_SIZE,
    RecordColumns,
    RecordFlaw,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TOMBSTONE: Final = 1
_PIECE: Final = 1 << 20
#: distinct subjects that are counted
_MAX_SUBJECTS: Final = 1 << 21
#: Subjects that occur once, and are compared with the others; more are the nature of the stream.
_MAX_SINGLES: Final = 1 << 12
#: bits of a subject's size that may have flipped
_SIZE_BITS: Final = 16
#: distance from the message before up to which the sequence of a damaged record is trusted
_MOST_CLAIMED: Final = 1 << 16
_FLAWS: Final = {
    RecordFlaw.CUT: FlawKind.BLOCK_CUT,
    RecordFlaw.BAD_LENGTH: FlawKind.BLOCK_LENGTH,
    RecordFlaw.BAD_HASH: FlawKind.BLOCK_HASH,
}
_DETAILS: Final = {
    FlawKind.BLOCK_CUT: "the record ends beyond the block",
    FlawKind.BLOCK_LENGTH: "the record has impossible sizes",
    FlawKind.BLOCK_HASH: "the record has another hash than its content",
    FlawKind.BLOCK_ZEROS: "zeros follow the last record",
    FlawKind.BLOCK_TAIL: "bytes that are no record follow the last one",
}


@dataclass(slots=True)
class BlockSurvey:
    file: BlockFile
    name: str  #: path relative to the stream's directory
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
    sequences: Ranges = field(default_factory=Ranges)  #: of its messages
    tombstones: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    erasures: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    gaps: list[Gap] = field(default_factory=list)
    moved_borders: set[int] = field(default_factory=set)  #: messages whose headers do not have their form


class _SubjectCounts:
    """How often each subject occurs, by its hash."""

    def __init__(self) -> None:
        self.hashes: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._new: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self._waiting = 0
        self.overflow = False

    def add(self, hashes: NDArray[np.uint64]) -> None:
        if self.overflow or not len(hashes):
            return
        unique, counts = np.unique(hashes, return_counts=True)
        self._new.append((unique, counts))
        self._waiting += len(unique)
        if self._waiting > max(1 << 16, len(self.hashes)):
            self.settle()

    def settle(self) -> None:
        hashes = np.concatenate([self.hashes, *(each for each, _ in self._new)])
        counts = np.concatenate([self.counts, *(each for _, each in self._new)])
        self.hashes, places = np.unique(hashes, return_inverse=True)
        self.counts = np.bincount(places.reshape(-1), counts, len(self.hashes)).astype(np.int64)
        self._new, self._waiting = [], 0
        self.overflow = self.overflow or len(self.hashes) > _MAX_SUBJECTS


def _contains(sorted_hashes: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    if not len(sorted_hashes):
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(sorted_hashes, hashes), len(sorted_hashes) - 1)
    found: NDArray[np.bool_] = sorted_hashes[places] == hashes
    return found


def hashes_of(text: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    columns = RecordColumns(0)
    columns.subject_start, columns.subject_size = starts, sizes.astype(np.uint32)
    return kernels.subject_hashes(text, columns)


class StreamSurvey:
    """Reads all blocks of a stream once, and those again whose deleted messages have to be counted out.

    `flaws` has those of the blocks; those of other files are in the directory's.
    """

    def __init__(self, directory: StoredStream, progress: Progress | None = None) -> None:
        self.directory = directory
        self._progress = progress or (lambda _size: None)
        self.flaws: list[FileFlaw] = []
        self.bytes_scanned = 0
        self._subjects = _SubjectCounts()
        self.blocks: list[BlockSurvey] = [self._read(block) for block in directory.blocks]
        self.others: list[BlockSurvey] = [self._read(block) for block in directory.other_blocks]
        self._subjects.settle()
        self.deleted, self.damaged, self.missing, self.borders = Ranges(), Ranges(), Ranges(), Ranges()
        self.intact = Ranges()
        self._judge()

    @property
    def live(self) -> Ranges:
        """What the stream held, as far as the directory tells."""
        return Ranges.union((self.intact, self.damaged, self.missing))

    @property
    def last(self) -> int:
        """The last sequence that was ever used, as far as the directory tells."""
        known = self.directory.index
        lasts = [known.last if known else 0, self.live.last if self.live else 0]
        for each in self.blocks:
            lasts += [each.last, int(each.tombstones.max(initial=0)), int(each.erasures.max(initial=0))]
        return max(lasts)

    # Blocks

    def _flaw(self, kind: FlawKind, block: BlockSurvey, detail: str, gap: Gap | None = None, **more: int) -> None:
        offset, length = (gap.start, gap.end - gap.start) if gap else (None, None)
        self.flaws.append(FileFlaw(kind, block.name, detail, offset, length, more.get("sequence")))

    def _read(self, file: BlockFile) -> BlockSurvey:
        block = BlockSurvey(file, f"{file.place}/{file.path.name}")
        try:
            with self.directory.content(file) as content:
                self._scan(block, content)
        except NotPermittedError:
            raise
        except StoreUnreadableError as problem:
            block.readable = False
            self._flaw(FlawKind.BLOCK_UNREADABLE, block, problem.message)
        self.bytes_scanned += file.size
        self._progress(file.size)
        return block

    def _scan(self, block: BlockSurvey, content: BlockContent) -> None:
        block.compressed, block.encrypted = content.compressed, content.encrypted
        block.key = highwayhash.block_key(self.directory.name, block.file.number)
        if not len(content.data):
            known = self.directory.index
            if len(self.directory.blocks) > 1 or (known and known.messages):
                self._flaw(FlawKind.BLOCK_EMPTY, block, "it is empty")
            return
        self._collect(block, content.data)
        if not block.records and (proper := self._proper_key(block, content.data)):
            block.gaps.clear()
            block.key = highwayhash.block_key(*proper)
            self._flaw(FlawKind.BLOCK_NUMBER, block, f"it has the records of block {proper[1]} of stream {proper[0]}")
            self._collect(block, content.data)
        if content.magic_damaged or content.damaged_chunks:
            detail = "it is compressed, and its first bytes are damaged"
            if content.damaged_chunks:
                detail = f"it cannot be decompressed completely: chunk at {content.damaged_chunks[0]}"
            self._flaw(FlawKind.BLOCK_COMPRESSED, block, detail)
        if any(content.surplus):
            self._flaw(
                FlawKind.ERASE_BUG, block, f"{len(content.surplus)} bytes follow the compressed content of the block"
            )
            for piece in scan(content.surplus, block.key):
                if isinstance(piece, RecordColumns):
                    block.erasures = np.concatenate((block.erasures, piece.sequence[piece.flags > _TOMBSTONE]))
        for gap in block.gaps if block.file.path.suffix == ".blk" else ():
            kind = _FLAWS[gap.flaw]
            if gap.end == len(content.data) and not gap.claimed:
                kind = FlawKind.BLOCK_ZEROS if _is_zeros(content.data, gap.start, gap.end) else FlawKind.BLOCK_TAIL
            self._flaw(kind, block, _DETAILS[kind], gap, sequence=gap.claimed or gap.before)

    def _proper_key(self, block: BlockSurvey, data: Buffer | bytes) -> tuple[str, int] | None:
        directory = self.directory
        inner = (directory.config or {}).get("name")
        names = [directory.name, *([inner] if isinstance(inner, str) else []), *directory.other_names]
        numbers = [block.file.number, *(each.number for each in directory.blocks)]
        return number_of_records(data, dict.fromkeys(names), dict.fromkeys(numbers))

    def _collect(self, block: BlockSurvey, data: Buffer | bytes) -> None:
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
            if not messages:
                continue
            numbers = piece.sequence
            if not block.messages:
                block.first, block.first_time = int(numbers[0]), int(piece.timestamp[0])
            elif int(numbers[0]) <= block.last:
                block.disordered = True
                self._flaw(FlawKind.BLOCK_ORDER, block, f"sequence {numbers[0]} follows {block.last}")
            block.last, block.last_time = int(numbers[-1]), int(piece.timestamp[-1])
            block.messages += messages
            block.size += int(piece.length.sum())
            if len(numbers) > 1 and not block.disordered and bool((numbers[1:] <= numbers[:-1]).any()):
                block.disordered = True
                self._flaw(
                    FlawKind.BLOCK_ORDER, block, f"its sequences do not rise, between {numbers[0]} and {numbers[-1]}"
                )
            parts.append(Ranges.from_sequences(numbers))
            block.moved_borders.update(_moved(data, piece))
            if block.file.place == MESSAGES:
                self._subjects.add(kernels.subject_hashes(data, piece))
        block.sequences = Ranges.union(parts)
        if tombstones:
            block.tombstones, block.erasures = np.concatenate(tombstones), np.concatenate(erasures)
            block.erased = len(block.erasures)

    # Judgement

    def _judge(self) -> None:
        known, config = self.directory.index, self.directory.config or {}
        found = Ranges.union(each.sequences for each in self.blocks)
        everything = (*self.blocks, *self.others)
        gone = [Ranges.from_sequences(part) for each in everything for part in (each.tombstones, each.erasures)]
        listed = Ranges()
        if known:
            listed = Ranges.union(_listed(known.first, known.blocks.values()))
            if known.version:
                gone.append(Ranges.of([(0, known.last)]) - listed)
            else:
                gone += self._gone_by_old_indexes(known)
        self.deleted = Ranges.union(gone)
        damaged, holes = self._unread(found)
        others = Ranges.union(each.sequences for each in self.others)
        wanted = [damaged, holes, listed]
        for each in self.others:
            own = [block for block in self.blocks if block.file.number == each.file.number]
            if each.file.place == PURGED or not own or own[0].gaps or not own[0].readable or not own[0].records:
                wanted.append(each.sequences)
        self.intact = (found | others & Ranges.union(wanted)) - self.deleted
        if known and known.version:
            damaged = damaged & (listed | Ranges.of([(known.last + 1, 2**64 - 1)]))
            holes = (holes | self._not_there(listed)) & (listed | Ranges.of([(known.last + 1, 2**64 - 1)]))
        elif config.get("max_msgs_per_subject", -1) > 0:
            holes = Ranges()  # blocks without messages are removed, and nothing tells
        if self.directory.index_doubt and not (known and known.version and not self.directory.index_is_older):
            removed = self._beyond_limits(config)
            self.deleted, self.intact = self.deleted | removed, self.intact - removed
        self._find_borders()
        self.intact = self.intact - self.borders
        self.damaged = (damaged - self.deleted - self.intact) | self.borders
        self.missing = holes - self.deleted - self.intact - self.damaged
        present = {each.file.number for each in self.blocks if each.messages}
        for number, entry in known.blocks.items() if known else ():
            if number not in present and Ranges.of([(entry.first, entry.last)]) & self.missing:
                detail = f"it is not there; it had messages {entry.first} to {entry.last}"
                self.flaws.append(FileFlaw(FlawKind.BLOCK_MISSING, f"{MESSAGES}/{number}.blk", detail))
        if self.missing and not any(each.kind is FlawKind.BLOCK_MISSING for each in self.flaws):
            detail = f"a block is not there; messages {self.missing.first} to {self.missing.last} are missing"
            self.flaws.append(FileFlaw(FlawKind.BLOCK_MISSING, MESSAGES, detail, sequence=self.missing.first))

    def _not_there(self, listed: Ranges) -> Ranges:
        """Returns what the index lists and no block has, except what a limit may have removed since then."""
        found = Ranges.union(each.sequences for each in self.blocks)
        if self.directory.index_is_older and found and self._is_limited():
            listed = listed & Ranges.of([(found.first, 2**64 - 1)])
        return listed - found

    def _gone_by_old_indexes(self, known: KnownStream) -> Iterator[Ranges]:
        """Yields what the indexes of single blocks tell: a block's messages outside of its list were removed."""
        for block in self.blocks:
            if entry := known.blocks.get(block.file.number):
                reach = entry.last if block.file.number in known.stale else max(entry.last, block.last)
                rest = block.sequences & Ranges.of([(0, reach)])
                yield rest - Ranges.union(_listed(entry.first, [entry]))

    def _beyond_limits(self, config: Mapping[str, Any]) -> Ranges:
        """Returns the messages that the limits of the stream had removed, which nothing but an index tells."""
        per_subject, messages, size = (
            limit if isinstance(limit := config.get(name), int) and limit > 0 else 1 << 63
            for name in ("max_msgs_per_subject", "max_msgs", "max_bytes")
        )
        if per_subject == messages == size == 1 << 63:
            return Ranges()
        whole = self.intact.count() <= messages and sum(each.size for each in self.blocks) <= size
        if whole and per_subject == 1 << 63:
            return Ranges()
        counts: Counter[int] = Counter()
        beyond: list[int] = []
        kept = bytes_kept = 0
        lowest = 1 << 64
        for block in sorted(self.blocks, key=lambda each: each.first, reverse=True):
            rows_of_block = [
                (sequence, int(length), int(subject))
                for data, rows in self.records(block)
                for sequence, length, subject in zip(
                    rows.sequence.tolist(), rows.length, kernels.subject_hashes(data, rows), strict=True
                )
                if sequence in self.intact
            ]
            for sequence, length, subject in reversed(rows_of_block):
                if sequence >= lowest:
                    continue
                lowest = sequence
                counts[subject] += 1
                if counts[subject] > per_subject or kept >= messages or bytes_kept + length > size:
                    beyond.append(sequence)
                    if counts[subject] <= per_subject:
                        messages = kept  # all before it are gone as well
                else:
                    kept, bytes_kept = kept + 1, bytes_kept + length
        return Ranges.of((each, each) for each in beyond)

    def _is_limited(self) -> bool:
        config = self.directory.config or {}
        names = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
        limits = (config.get(name) for name in names)
        return config.get("retention", "limits") != "limits" or any(
            isinstance(each, int) and each > 0 for each in limits
        )

    def _unread(self, found: Ranges) -> tuple[Ranges, Ranges]:
        """Returns the sequences that lie in damaged bytes, and those between blocks that are not neighbors."""
        damaged: list[tuple[int, int]] = []
        holes: list[tuple[int, int]] = []
        last = number = 0
        broken = False  # a block without a good message lies between
        for block in sorted(self.blocks, key=lambda each: (each.first or each.file.number, each.file.number)):
            if not block.messages:
                broken = broken or bool(block.gaps) or not block.readable or not block.file.size
                continue
            for gap in block.gaps:
                before = gap.before or last
                if gap.after:
                    damaged.append((before + 1, gap.after - 1))
                elif gap.claimed and before < gap.claimed <= before + _MOST_CLAIMED:
                    damaged.append((before + 1, gap.claimed))
            if last and block.first > last + 1:
                if broken:
                    damaged.append((last + 1, block.first - 1))
                elif number and block.file.number > number + 1:
                    holes.append((last + 1, block.first - 1))
            previous = [gap for each in self.blocks if each.last == last and last for gap in each.gaps if not gap.after]
            if previous and block.first > last + 1:
                damaged.append((last + 1, block.first - 1))
            last, number, broken = max(last, block.last), block.file.number, False
        return Ranges.of(damaged) - found, Ranges.of(holes) - found

    # Borders

    def _find_borders(self) -> None:
        """Finds messages whose subject or headers begin or end elsewhere than they did."""
        known = self.directory.index
        moved = Ranges.of((each, each) for block in self.blocks for each in block.moved_borders) & self.intact
        if known and known.version and known.subjects:
            starts = np.cumsum(known.subject_sizes) - known.subject_sizes
            names = np.sort(hashes_of(known.subject_text, starts, known.subject_sizes))
            strange = self._subjects.hashes[~_contains(names, self._subjects.hashes)]
            limit = known.last
        else:
            names = self._subjects.hashes[self._subjects.counts > 1]
            strange, limit = self._subjects.hashes[self._subjects.counts == 1], 2**64 - 1
        if self._subjects.overflow or len(strange) > _MAX_SINGLES:
            strange = strange[:0]
        suspects: list[tuple[int, int]] = []
        for block in self.blocks if len(strange) else ():
            for data, rows in self.records(block):
                odd = rows.take(_contains(strange, kernels.subject_hashes(data, rows)))
                suspects += [
                    (sequence, sequence)
                    for row, sequence in enumerate(odd.sequence.tolist())
                    if sequence <= limit and _fits(data, odd, row, names) == 1
                ]
        self.borders = (Ranges.of(suspects) & self.intact) | moved
        for first, last in self.borders:
            for sequence in range(first, last + 1):
                block = next(each for each in self.blocks if sequence in each.sequences)
                detail = "the border between subject, headers and payload was moved; the hash does not cover it"
                self._flaw(FlawKind.BORDER, block, detail, sequence=sequence)

    def records(self, block: BlockSurvey) -> Iterator[tuple[Buffer | bytes, RecordColumns]]:
        """Reads the messages of a block again."""
        for data, rows in self.all_records(block):
            yield data, rows.take(rows.flags == 0)

    def all_records(self, block: BlockSurvey) -> Iterator[tuple[Buffer | bytes, RecordColumns]]:
        """Reads the good records of a block again, tombstones and erased ones included."""
        if not block.readable:
            return
        with self.directory.content(block.file) as content:
            for piece in scan(content.data, block.key):
                if isinstance(piece, RecordColumns):
                    yield content.data, piece

    def messages(self) -> Iterator[tuple[BlockSurvey, Buffer | bytes, RecordColumns]]:
        """Yields the intact messages that are live, in the order of the blocks, leftovers last."""
        seen = Ranges()
        for block in (*self.blocks, *self.others):
            chosen = (block.sequences & self.intact) - seen
            if not chosen:
                continue
            rest = chosen
            for data, rows in self.records(block):
                chosen_rows = rest.select(rows.sequence)
                if block.disordered:
                    firsts = np.zeros(len(rows), np.bool_)
                    firsts[np.unique(rows.sequence, return_index=True)[1]] = True
                    chosen_rows &= firsts
                    rest = rest - Ranges.from_sequences(rows.sequence)
                yield block, data, rows.take(chosen_rows)
            seen = seen | chosen

    def totals(self) -> tuple[int, int | None]:
        """Returns the size of the intact messages' records, and the number of their subjects; None if unknown."""
        size, subjects = 0, _SubjectCounts()
        whole = all(not each.sequences - self.intact for each in self.blocks) and not self.others
        if whole and sum(each.messages for each in self.blocks) == self.intact.count():
            counted = None if self._subjects.overflow else len(self._subjects.hashes)
            return sum(each.size for each in self.blocks), counted
        for _, data, rows in self.messages():
            size += int(rows.length.sum())
            subjects.add(kernels.subject_hashes(data, rows))
        subjects.settle()
        return size, None if subjects.overflow else len(subjects.hashes)


def _listed(first: int, blocks: Iterable[KnownBlock]) -> Iterator[Ranges]:
    for each in blocks:
        whole = Ranges.of([(max(each.first, first, 1), each.last)])
        yield whole - Ranges.from_sequences(each.deleted.astype(np.uint64))


def _is_zeros(data: Buffer | bytes, start: int, end: int) -> bool:
    while start < end:
        begin, stop = data_from(data, start) if isinstance(data, memoryview) else (start, end)
        for at in range(begin, min(stop, end), _PIECE):
            if bytes(data[at : min(at + _PIECE, stop, end)]).strip(b"\0"):
                return False
        start = stop
    return True


def _moved(data: Buffer | bytes, rows: RecordColumns) -> list[int]:
    """Returns the sequences of messages whose headers do not have their form."""
    headed = np.flatnonzero(rows.header_start > 0)
    if not len(headed):
        return []
    array = np.frombuffer(data, np.uint8)
    starts, sizes = rows.header_start[headed], rows.header_size[headed].astype(np.int64)
    good = sizes >= 12
    begins = np.where(good, starts, 0)
    ends = np.where(good, starts + sizes, 12)
    for at, byte in enumerate(b"NATS/1.0"):
        good &= array[begins + at] == byte
    for at, byte in enumerate(b"\r\n\r\n"):
        good &= array[ends - 4 + at] == byte
    return [int(each) for each in rows.sequence[headed[~good]]]


def _fits(data: Buffer | bytes, rows: RecordColumns, row: int, names: NDArray[np.uint64]) -> int:
    """Returns how many sizes of the subject that differ in one bit give a known subject."""
    size, start = int(rows.subject_size[row]), int(rows.subject_start[row])
    left = int(rows.length[row]) - RECORD_HEAD_SIZE - 8
    if rows.header_start[row]:
        left -= HEADER_LENGTH_SIZE
    sizes = [each for bit in range(_SIZE_BITS) if 0 < (each := size ^ 1 << bit) <= left]
    if not sizes or rows.header_start[row]:
        return 0
    text = bytes(data[start : start + max(sizes)])
    hashes = hashes_of(text, np.zeros(len(sizes), np.int64), np.array(sizes, np.int64))
    return int(np.count_nonzero(_contains(names, hashes)))
