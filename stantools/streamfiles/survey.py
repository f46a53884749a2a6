"""A survey of a stream's blocks: which messages it held, which of them are intact, and where damage is.

Deletions are known from tombstones, erased records and the indexes. A sequence in none of them that lies in damaged
bytes is damaged; one in a block that is not there is missing; any other gap was deleted without a trace, by a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.notation import counted
from stantools.progress import Progress
from stantools.store.ranges import Ranges
from stantools.streamfiles.block_survey import BlockSurvey, survey_block
from stantools.streamfiles.damage import MAX_CLAIMED_STEP, scan
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.flaws import FileFlaw, FlawKind
from stantools.streamfiles.indexes import KnownStream
from stantools.streamfiles.layout import INDEX, MESSAGES, PURGED
from stantools.streamfiles.limits import BlockMessages, StreamLimits
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.subjects import SubjectCounts, contains, fitting_borders, hashes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Subjects that occur once, and are compared with the others; more are the nature of the stream.
_MAX_SINGLES: Final = 1 << 12
_HIGHEST: Final = 2**64 - 1
#: blocks in disorder of which the repeated messages are told
_MAX_COMPARED: Final = 100


class StreamSurvey:
    """Reads all blocks of a stream once, and those again whose deleted messages have to be counted out.

    `flaws` has those of the blocks and of their index; those of other files are in the directory's.
    """

    def __init__(self, directory: StoredStream, progress: Progress | None = None) -> None:
        self.directory = directory
        config = directory.config or {}
        self._progress = progress or (lambda _size: None)
        self.bytes_scanned = 0
        self._subjects = SubjectCounts()
        self.blocks: list[BlockSurvey] = [self._read(each) for each in directory.blocks]
        self.others: list[BlockSurvey] = [self._read(each) for each in directory.other_blocks]
        self.flaws: list[FileFlaw] = [flaw for each in (*self.blocks, *self.others) for flaw in each.flaws]
        self._subjects.settle()
        known = directory.index
        if known and not known.version:
            known = None
        found = Ranges.union(each.sequences for each in self.blocks)
        listed = directory.index.listed() if directory.index else Ranges()
        self.deleted = Ranges.union(self._deletions(known, listed))
        damaged, holes = (each - found for each in self._unread())
        self.intact = (found | self._elsewhere(damaged | holes | listed)) - self.deleted
        if known:
            possible = listed | Ranges.of([(known.last + 1, _HIGHEST)])
            damaged, holes = damaged & possible, (holes | self._not_there(listed, found)) & possible
        elif config.get("max_msgs_per_subject", -1) > 0:
            holes = Ranges()  # blocks without messages are removed, and nothing tells
        if directory.index_doubt and not (known and not directory.index_is_older):
            removed = self._beyond_limits()
            self.deleted, self.intact = self.deleted | removed, self.intact - removed
        self.borders = self._moved_borders(known)
        self.intact = self.intact - self.borders
        self.damaged = (damaged - self.deleted - self.intact) | self.borders
        self.missing = holes - self.deleted - self.intact - self.damaged
        self.flaws += (*self._missing_blocks(), *self._repeated(), *self._index_flaws(known, listed & found, found))

    @property
    def live(self) -> Ranges:
        """What the stream held, as far as the directory tells."""
        return Ranges.union((self.intact, self.damaged, self.missing))

    @property
    def last(self) -> int:
        """The last sequence that was ever used, as far as the directory tells."""
        known = self.directory.index
        return max(known.last if known else 0, self.live.last if self.live else 0, self._last_stored)

    @property
    def _last_stored(self) -> int:
        """The last sequence that a record of a block names."""
        return max(
            (
                max(each.last, int(each.tombstones.max(initial=0)), int(each.erasures.max(initial=0)))
                for each in self.blocks
            ),
            default=0,
        )

    def _read(self, file: BlockFile) -> BlockSurvey:
        block = survey_block(self.directory, file, self._subjects)
        self.bytes_scanned += file.size
        self._progress(file.size)
        return block

    # Deletions

    def _deletions(self, known: KnownStream | None, listed: Ranges) -> Iterator[Ranges]:
        for each in (*self.blocks, *self.others):
            yield Ranges.from_sequences(each.tombstones)
            yield Ranges.from_sequences(each.erasures)
        if known:
            yield Ranges.of([(0, known.last)]) - listed
        elif old := self.directory.index:
            # the index of one block: its messages outside of the list were removed
            for block in self.blocks:
                if entry := old.blocks.get(block.file.number):
                    end = entry.last if block.file.number in old.stale else max(entry.last, block.last)
                    rest = block.sequences & Ranges.of([(0, end)])
                    yield rest - entry.listed()

    def _beyond_limits(self) -> Ranges:
        """Returns the messages that the limits of the stream had removed, which nothing but an index tells."""
        limits = StreamLimits.of(self.directory.config or {})
        if limits.allow(self.intact.count(), sum(each.size for each in self.blocks)):
            return Ranges()
        return limits.beyond(
            self._intact_of(each) for each in sorted(self.blocks, key=lambda each: each.first, reverse=True)
        )

    def _intact_of(self, block: BlockSurvey) -> BlockMessages:
        parts = [
            (rows.sequence.copy(), rows.length.astype(np.int64), rows.subject_hashes()) for rows in self.records(block)
        ]
        empty = (np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint64))
        sequence, length, subject = (np.concatenate(each) for each in zip(empty, *parts, strict=True))
        intact = self.intact.select(sequence)
        return BlockMessages(sequence[intact], length[intact], subject[intact])

    # Losses

    def _unread(self) -> tuple[Ranges, Ranges]:
        """Returns the sequences that lie in damaged bytes, and those between blocks that are not neighbors."""
        damaged: list[tuple[int, int]] = []
        holes: list[tuple[int, int]] = []
        last = number = 0
        broken = False  # a block without a good message lies between
        open_end = False  # the block with the last message is damaged after it
        for block in sorted(self.blocks, key=lambda each: (each.first or each.file.number, each.file.number)):
            if not block.messages:
                broken = broken or block.damaged
                continue
            for gap in block.gaps:
                before = gap.before or last
                if gap.after:
                    damaged.append((before + 1, gap.after - 1))
                elif gap.claimed and before < gap.claimed <= before + MAX_CLAIMED_STEP:
                    damaged.append((before + 1, gap.claimed))
            if last and block.first > last + 1:
                if broken or open_end:
                    damaged.append((last + 1, block.first - 1))
                elif number and block.file.number > number + 1:
                    holes.append((last + 1, block.first - 1))
            if block.last >= last:
                open_end = any(not gap.after for gap in block.gaps) or (open_end and block.last == last)
            last, number, broken = max(last, block.last), block.file.number, False
        return Ranges.of(damaged), Ranges.of(holes)

    def _elsewhere(self, wanted: Ranges) -> Ranges:
        """Returns the messages that count in leftovers of interrupted rewrites and purges."""
        own = {each.file.number: each for each in self.blocks}
        parts = [wanted]
        for each in self.others:
            block = own.get(each.file.number)
            if each.file.place == PURGED or block is None or block.damaged or not block.records:
                parts.append(each.sequences)
        return Ranges.union(each.sequences for each in self.others) & Ranges.union(parts)

    def _not_there(self, listed: Ranges, found: Ranges) -> Ranges:
        """Returns what the index lists and no block has, except what a limit may have removed since then."""
        if self.directory.index_is_older and found and self._is_limited():
            listed = listed & Ranges.of([(found.first, _HIGHEST)])
        return listed - found

    def _is_limited(self) -> bool:
        config = self.directory.config or {}
        names = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
        limits = (config.get(name) for name in names)
        return config.get("retention", "limits") != "limits" or any(
            isinstance(each, int) and each > 0 for each in limits
        )

    # Borders

    def _moved_borders(self, known: KnownStream | None) -> Ranges:
        """Returns messages whose subject or headers begin or end elsewhere than they did."""
        subjects, limit = self._subjects, known.last if known else _HIGHEST
        if known and known.subjects:
            starts = np.cumsum(known.subject_sizes) - known.subject_sizes
            names = np.sort(hashes_of(known.subject_text, starts, known.subject_sizes))
            strange = subjects.hashes[~contains(names, subjects.hashes)]
        else:
            names, strange = subjects.hashes[subjects.counts > 1], subjects.hashes[subjects.counts == 1]
        if subjects.overflow or len(strange) > _MAX_SINGLES:
            strange = strange[:0]
        moved: set[int] = set()
        for block in self.blocks:
            suspects = set(block.moved_borders)
            if len(strange):
                suspects.update(sequence for sequence in self._strange(block, strange, names) if sequence <= limit)
            for sequence in sorted(each for each in suspects - moved if each in self.intact):
                moved.add(sequence)
                detail = "the border between subject, headers and payload was moved; the hash does not cover it"
                self.flaws.append(FileFlaw(FlawKind.BORDER, block.name, detail, sequence=sequence))
        return Ranges.of((each, each) for each in moved)

    def _strange(self, block: BlockSurvey, strange: NDArray[np.uint64], names: NDArray[np.uint64]) -> Iterator[int]:
        """Yields messages whose strange subject is a known one, if one bit of its size is another."""
        for rows in self.records(block):
            odd = rows.take(contains(strange, rows.subject_hashes()))
            for row, sequence in enumerate(odd.sequence.tolist()):
                if fitting_borders(odd, row, names) == 1:
                    yield sequence

    # Flaws

    def _missing_blocks(self) -> Iterator[FileFlaw]:
        known = self.directory.index
        present = {each.file.number for each in self.blocks if each.messages}
        named = False
        for number, entry in known.blocks.items() if known else ():
            if number not in present and self.missing.meets(entry.first, entry.last):
                named = True
                detail = f"it is not there; it had messages {entry.first} to {entry.last}"
                yield FileFlaw(FlawKind.BLOCK_MISSING, f"{MESSAGES}/{number}.blk", detail, sequence=entry.first)
        if self.missing and not named:
            detail = (
                f"a block or its end is not there; messages {self.missing.first} to {self.missing.last} are missing"
            )
            yield FileFlaw(FlawKind.BLOCK_MISSING, MESSAGES, detail, sequence=self.missing.first)

    def _repeated(self) -> Iterator[FileFlaw]:
        """Yields a flaw for each block with sequences of an earlier one."""
        earlier: list[BlockSurvey] = []
        last = compared = 0
        for block in self.blocks:
            if not block.messages or any(each.kind is FlawKind.BLOCK_NUMBER for each in block.flaws):
                continue
            if block.first <= last:
                compared += 1
                near = (each.sequences for each in earlier if each.last >= block.first)
                twice = block.sequences & Ranges.union(near) if compared <= _MAX_COMPARED else Ranges()
                detail = f"its messages begin at {block.first}, those of earlier blocks end at {last}"
                if twice:
                    detail = (
                        f"{counted(twice.count(), 'message')} from {twice.first} on are in an earlier block as well"
                    )
                yield FileFlaw(FlawKind.BLOCK_ORDER, block.name, detail, sequence=twice.first or block.first)
            last = max(last, block.last)
            earlier.append(block)

    def _index_flaws(self, known: KnownStream | None, valid: Ranges, found: Ranges) -> Iterator[FileFlaw]:
        directory, file = self.directory, f"{MESSAGES}/{INDEX}"
        if known is None:
            if not directory.index_file and not directory.index and found:
                yield FileFlaw(FlawKind.INDEX_MISSING, file, "it is not there")
        elif directory.index_doubt:
            kind, detail = FlawKind.INDEX_STALE, directory.index_doubt
            if directory.index_totals_differ:
                kind = FlawKind.INDEX_TOTALS
            elif known.last > self._last_stored:
                kind = FlawKind.INDEX_AHEAD
                detail = f"it ends at sequence {known.last}, the blocks at {self._last_stored}"
            yield FileFlaw(kind, file, detail)
        unknown = [each for each in self.blocks if each.may_lack_tombstones]
        if not unknown and not self.missing:
            return
        if known is None:
            if found:
                detail = "tombstones may have been in the damaged bytes, so that deleted messages count as intact"
                yield FileFlaw(FlawKind.TOMBSTONES_LOST, unknown[0].name if unknown else MESSAGES, detail)
        elif forgotten := self._only_index_tells(known, found - valid):
            detail = (
                f"only {INDEX} tells of the deletion of {counted(forgotten.count(), 'message')}, from "
                f"{forgotten.first} on"
            )
            yield FileFlaw(FlawKind.TOMBSTONES_LOST, file, detail, sequence=forgotten.first)

    def _only_index_tells(self, known: KnownStream, gone: Ranges) -> Ranges:
        """Returns the messages that a server without the index would serve again."""
        config = self.directory.config or {}
        if config.get("max_msgs_per_subject", -1) > 0:
            return Ranges()
        gone = gone & Ranges.of([(known.first, known.last)])
        return gone - Ranges.union(Ranges.from_sequences(each.tombstones) for each in self.blocks)

    # Messages

    def records(self, block: BlockSurvey) -> Iterator[RecordBatch]:
        """Reads the messages of a block again."""
        return (batch.messages for batch in self.all_records(block))

    def all_records(self, block: BlockSurvey) -> Iterator[RecordBatch]:
        """Reads the good records of a block again, tombstones and erased ones included."""
        if not block.readable:
            return
        with self.directory.content(block.file) as content:
            yield from (piece for piece in scan(content.data, block.key) if isinstance(piece, RecordBatch))

    def messages(self, wanted: Ranges | None = None) -> Iterator[tuple[BlockSurvey, RecordBatch]]:
        """Yields the intact messages that are live, each once, block by block in the order of their sequences.

        `wanted` are some of the intact messages; without, all.
        """
        parts: list[tuple[Ranges, BlockSurvey]] = []
        last = 0
        for block in (*self.blocks, *self.others):
            chosen = block.sequences & (self.intact if wanted is None else wanted)
            if chosen and chosen.first <= last:
                chosen = chosen - Ranges.union(each for each, _ in parts if each.last >= chosen.first)
            if chosen:
                parts.append((chosen, block))
                last = max(last, chosen.last)
        for chosen, block in sorted(parts, key=lambda part: part[0].first):
            rest = chosen
            for rows in self.records(block):
                chosen_rows = rest.select(rows.sequence)
                if block.disordered:
                    firsts = np.zeros(len(rows), np.bool_)
                    firsts[np.unique(rows.sequence, return_index=True)[1]] = True
                    chosen_rows &= firsts
                    rest = rest - Ranges.from_sequences(rows.sequence)
                if chosen_rows.any():
                    yield block, rows.take(chosen_rows)

    def totals(self) -> tuple[int, int | None]:
        """Returns the size of the intact messages' records, and the number of their subjects; None if unknown."""
        size, subjects = 0, SubjectCounts()
        whole = all(not each.sequences - self.intact for each in self.blocks) and not self.others
        if whole and sum(each.messages for each in self.blocks) == self.intact.count():
            counted = None if self._subjects.overflow else len(self._subjects.hashes)
            return sum(each.size for each in self.blocks), counted
        for _, rows in self.messages():
            size += int(rows.length.sum())
            subjects.add(rows.subject_hashes())
        subjects.settle()
        return size, None if subjects.overflow else len(subjects.hashes)
