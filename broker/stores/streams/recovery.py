"""Reads a stream's directory: blocks, and the indexes that servers write (jetstream-server.md section 20).

The records of the blocks say which messages exist. Only an index knows the messages that were removed without
tombstones, the last sequence if the newest block is lost, and the numbers of lost blocks. Recovery turns this
knowledge into tombstones, so that the directory no longer needs an index.

A damaged block is rewritten with its good records; the original file is kept in `damaged`, beside `msgs`. Every step
is logged. Files that could still be useful are never deleted.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.stores.streams.blocks import Descriptors, MessageBlock
from broker.stores.streams.metafiles import CONSUMERS, META, STATE, is_at_start
from broker.stores.streams.quarantine import copy_aside, move_aside
from stantools.store.durable import replace_file
from stantools.streamfiles import highwayhash
from stantools.streamfiles.blocks import block_content, number_of_records
from stantools.streamfiles.damage import FLAW_TEXTS, MAX_CLAIMED_STEP, Gap, intact_records, scan_block
from stantools.streamfiles.framing import MAX_FILE_SIZE
from stantools.streamfiles.indexes import KnownStream, read_index, read_old_index
from stantools.streamfiles.layout import (
    BLOCK_NAME,
    COMPRESSED,
    HASH_SIZE,
    INDEX,
    MAX_RECORD_SIZE,
    MESSAGES,
    NEW_BLOCK_NAME,
    PURGED,
    PURGING,
    ArchiveError,
    RecordFlaw,
)
from stantools.streamfiles.meta import decode_consumer
from stantools.streamfiles.record_batch import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from broker.stores.streams.contents import Contents, RowSegment

#: incomplete files
_LEFT: Final = re.compile(r"\..*|.*\.tmp")
#: other files of servers, which only repeat the content of the blocks
_OTHERS: Final = re.compile(r"index\.db|thw\.db|sched\.db|[0-9]+\.(idx|fss)")
_TOMBSTONE: Final = 1
#: messages by which a consumer may be ahead of the stream to be trusted: no checksum protects its file
_MOST_AHEAD: Final = 1 << 24
#: log lines per block
_MOST_LINES: Final = 10


class StreamRecovery:
    """Reads the messages of a stream once.

    Args:
        files: The open files of all streams.
        contents: Receives the messages.
        blocks: Receives the blocks, by number.

    Attributes:
        repeated: Blocks with records whose sequences occur earlier in the stream.
    """

    def __init__(
        self, directory: Path, stream: str, files: Descriptors, contents: Contents, blocks: dict[int, MessageBlock]
    ) -> None:
        self._directory, self._messages, self._stream = directory, directory / MESSAGES, stream
        self._files, self._contents, self._blocks = files, contents, blocks
        self._tails: dict[int, bytes] = {}
        self._repaired: set[int] = set()
        self._index: KnownStream | None = None
        self._current: set[int] = set()  # blocks that match an index exactly
        self._claimed = 0  # the highest sequence in a damaged record
        self._complete = False  # whether the last sequence is certain
        self._lost = False  # whether the index knows of lost messages or blocks
        self._empty: dict[int, int] = {}  # the last sequence before each empty block
        self.repeated: set[int] = set()

    # Blocks

    def read(self) -> None:
        """Reads the blocks and indexes. Raises StorageError or OSError if that fails."""
        self._end_purge()
        self._messages.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in list(self._messages.iterdir()):
            if new := NEW_BLOCK_NAME.fullmatch(path.name):
                self._end_rewrite(path, int(new[1]))
            elif _LEFT.fullmatch(path.name):
                path.unlink(missing_ok=True)
        tombstone_sequences: dict[int, int] = {}
        for number in self._renumber(self._numbers()):
            block = self._blocks[number] = MessageBlock(self._messages, self._stream, number, self._files)
            self._read(block, self._content(block), tombstone_sequences)
        contents = self._contents
        for sequence in tombstone_sequences:
            found = contents.locate(sequence)
            if found is not None:
                contents.discard(*found)
        if tombstone_sequences:
            highest = max(tombstone_sequences)
            contents.skip(highest, max(tombstone_sequences[highest], contents.last_time))
        for number in sorted(self.repeated):
            aside = copy_aside(self._blocks[number].path, self._directory)
            text = (
                "%s has messages whose sequences occur earlier in the stream; they are left out; the file as it was: %s"
            )
            NATS.warning(text, self._blocks[number].path, aside)
        self._read_indexes()
        self._report_empty_blocks()

    def _end_purge(self) -> None:
        """Completes or undoes a purge that a server had begun."""
        old, new = self._directory / PURGED, self._directory / PURGING
        if new.is_dir() and any(BLOCK_NAME.fullmatch(path.name) for path in new.iterdir()):
            aside = move_aside(self._messages, self._directory) if self._messages.exists() else None
            new.rename(self._messages)
            NATS.warning(
                "%s: a purge was interrupted and is completed; the messages as they were: %s", old.parent, aside
            )
        elif old.is_dir() and not self._messages.exists():
            old.rename(self._messages)
            NATS.warning("%s: a purge was interrupted and is undone: the messages are restored", old.parent)

    def _end_rewrite(self, path: Path, number: int) -> None:
        """Uses the rewritten form of a block if the block itself is damaged."""
        block, key = self._messages / f"{number}.blk", highwayhash.block_key(self._stream, number)
        if block.is_file() and scan_block(block.read_bytes(), key)[2] is RecordFlaw.NONE and block.stat().st_size:
            path.unlink()
        elif scan_block(path.read_bytes(), key)[2] is not RecordFlaw.NONE:
            NATS.warning("%s is incomplete: moved to %s", path, move_aside(path, self._directory))
        else:
            aside = move_aside(block, self._directory) if block.exists() else "missing"
            path.rename(block)
            NATS.warning("%s is damaged; %s takes its place; the file as it was: %s", block, path.name, aside)

    def _numbers(self) -> list[int]:
        names = (path.name for path in self._messages.iterdir() if path.is_file())
        return sorted(int(found[1]) for found in map(BLOCK_NAME.fullmatch, names) if found)

    def _renumber(self, numbers: list[int]) -> list[int]:
        """Renames blocks to the numbers that match their hashes. Returns the numbers."""
        moved = {number: proper for number in numbers if (proper := self._proper_number(number, numbers)) != number}
        if not moved:
            return numbers
        asides = {number: move_aside(self._messages / f"{number}.blk", self._directory) for number in moved}
        for number, proper in moved.items():
            path = self._messages / f"{proper}.blk"
            if path.exists():
                text = "%s/%d.blk has the records of block %d, which exists: moved to %s"
                NATS.warning(text, self._messages, number, proper, asides[number])
            else:
                asides[number].rename(path)
                NATS.warning("%s/%d.blk has the records of block %d: renamed", self._messages, number, proper)
        return self._numbers()

    def _proper_number(self, number: int, numbers: list[int]) -> int:
        with (self._messages / f"{number}.blk").open("rb") as file:
            head = file.read(4)
            size = int.from_bytes(head, "little") & 0x7FFFFFFF
            if head == COMPRESSED or not 0 < size <= MAX_RECORD_SIZE:
                return number
            record = head + file.read(size - len(head))
        found = number_of_records(record, [self._stream], [number, *numbers])
        return found[1] if found else number

    def _content(self, block: MessageBlock) -> bytes:
        try:
            size = block.path.stat().st_size
            if size > MAX_FILE_SIZE:
                raise StorageError(f"{block.path} has {size} bytes, more than any block")
            if block.path.with_suffix(".key").exists():
                raise StorageError(f"{block.path} is encrypted by its server", "restore the stream from a backup")
            data = block.path.read_bytes()
        except OSError as error:
            raise StorageError(f"{block.path} cannot be read: {error.strerror}") from error
        self._tails[block.number] = data[-HASH_SIZE:]
        content = block_content(data)
        if not content.compressed:
            return data
        plain = bytes(content.data)
        if content.magic_damaged or content.damaged_chunks or any(content.surplus):
            self._repaired.add(block.number)
            aside = copy_aside(block.path, self._directory)
            text = "%s cannot be decompressed completely; %d bytes of its records are kept; the file as it was: %s"
            NATS.error(text, block.path, len(plain), aside)
        replace_file(block.path, plain, mode=0o600)
        return plain

    def _read(self, block: MessageBlock, data: bytes, tombstone_sequences: dict[int, int]) -> None:
        batches, position, flaw = scan_block(data, block.key)
        if any((columns.flags == 0).any() for columns in batches):
            # Messages follow a damaged record.
            self._claimed = 0
        if flaw is not RecordFlaw.NONE:
            data = self._repair(block, data)
            batches, position, _ = scan_block(data, block.key)
        block.size = position
        contents = self._contents
        if not data and block.number not in self._repaired and len(self._blocks) > 1:
            self._empty[block.number] = contents.last
        begun, place = False, 0
        for columns in batches:
            for sequence, flags, time, size, start, length in _rows(columns):
                if flags == _TOMBSTONE:
                    block.tombstone_sequences.append(sequence)
                    tombstone_sequences[sequence] = time
                elif sequence > contents.last:
                    if flags:
                        # It may be the only trace of the stream's last sequence.
                        block.tombstone_sequences.append(sequence)
                    contents.skip(sequence if flags else sequence - 1, max(time, contents.last_time))
                    if not flags:
                        if not begun:
                            contents.begin(sequence, block.number)
                            begun = True
                        contents.add(sequence, time, data[start : start + length], size, place)
                elif not flags:
                    self.repeated.add(block.number)
                place += size

    def _repair(self, block: MessageBlock, data: bytes) -> bytes:
        """Rewrites a block without its damaged parts. Returns its bytes."""
        good, gaps = intact_records(data, block.key)
        reached = self._contents.last
        for gap in gaps[:_MOST_LINES]:
            NATS.error("%s: %s", block.path, _described(gap, gap.before or reached))
        for gap in gaps:
            if not gap.after and gap.claimed <= (gap.before or reached) + MAX_CLAIMED_STEP:
                self._claimed = max(self._claimed, gap.claimed)
        if len(gaps) > _MOST_LINES:
            NATS.error("%s: the same at %d more places", block.path, len(gaps) - _MOST_LINES)
        if block.number not in self._repaired:
            aside = copy_aside(block.path, self._directory)
            NATS.error("%s: its good records are kept; the file as it was: %s", block.path, aside)
        replace_file(block.path, good, mode=0o600)
        self._repaired.add(block.number)
        return good

    # Indexes

    def _read_indexes(self) -> None:
        path, contents = self._messages / INDEX, self._contents
        try:
            known = self._index = read_index(path.read_bytes(), highwayhash.stream_key(self._stream))
        except FileNotFoundError:
            self._index = self._old_indexes()
            return
        except ArchiveError as problem:
            aside = move_aside(path, self._directory)
            NATS.warning("%s is not used: %s; moved to %s", path, problem, aside)
            return
        last = max(self._tails, default=0)
        if known.last_block == last and known.last_hash == self._tails.get(last):
            self._current, self._complete = set(self._tails), True
        incomplete = self._lost = known.last > contents.last
        for number, block in known.blocks.items():
            if number not in self._blocks:
                fault, lost = "is missing", block.messages
            elif (self._complete or incomplete) and number not in self._repaired:
                fault, lost = "is incomplete", block.messages - self._count_messages(number, block.first, block.last)
            else:
                continue
            if lost > 0:
                self._lost = True
                what = f"{lost} messages, of sequences {block.first} to {block.last}, are lost"
                if not self._complete and not incomplete:
                    what += f", or were removed after {INDEX} was written"
                NATS.error("%s/%d.blk %s: %s", self._messages, number, fault, what)
        if incomplete:
            text = "%s: the messages end at sequence %d, but %s names %d: the next message gets %d"
            NATS.warning(text, self._messages, contents.last, INDEX, known.last, known.last + 1)

    def _report_empty_blocks(self) -> None:
        """Warns of empty blocks that had messages, according to the index or to the sequences around them.

        The file of a new block is empty until its first write: a kill in between loses nothing.
        """
        for number, last in self._empty.items():
            entry = self._index.blocks.get(number) if self._index is not None else None
            next_first = self._contents.first_after_block(number)
            if (entry is not None and entry.messages > 0) or next_first > last + 1:
                NATS.warning("%s is empty: its messages are lost", self._blocks[number].path)

    def _count_messages(self, number: int, first: int, last: int) -> int:
        return sum(
            int(
                np.count_nonzero(
                    np.frombuffer(each.sizes, np.uint32)[max(first - each.first, 0) : max(last + 1 - each.first, 0)]
                )
            )
            for each in self._contents.segments_of_block(number)
        )

    def _old_indexes(self) -> KnownStream:
        """Reads the indexes of servers before 2.10, one per block."""
        known = KnownStream(0, 0, self._contents.last_time, {})
        for number, tail in self._tails.items():
            try:
                block, last_hash = read_old_index((self._messages / f"{number}.idx").read_bytes())
            except (OSError, ArchiveError):
                continue
            known.blocks[number] = block
            if last_hash == tail or not tail:
                self._current.add(number)
            elif block.last > self._contents.last:
                self._lost = True
                text = "%s: the messages end at sequence %d, but %d.idx names %d: the next message gets %d"
                NATS.warning(text, self._messages, self._contents.last, number, block.last, block.last + 1)
        # The last sequence of an emptied stream is only there.
        known.last = max((each.last for each in known.blocks.values()), default=0)
        return known

    def gone(self) -> list[tuple[RowSegment, NDArray[np.int64]]]:
        """Removes the messages that an index reports as removed. Returns their rows."""
        known, found = self._index, list[tuple["RowSegment", "NDArray[np.int64]"]]()
        for segment, rows in self._contents.rows(None) if known is not None else ():
            assert known is not None
            block, sequences = known.blocks.get(segment.block), rows + segment.first
            gone = sequences < known.first
            if block is not None:
                gone |= sequences < block.first
                if segment.block in self._current:
                    gone |= sequences > block.last
                gone |= np.isin(sequences, block.deleted)
            if segment.block not in self._current:
                gone &= sequences <= (known.last if block is None else max(block.last, known.last))
            if gone.any():
                found.append((segment, rows[gone]))
        self._contents.drop_rows(found)
        return found

    def last_known(self) -> tuple[int, int]:
        """Returns the last used sequence according to indexes and consumers, and its time (0: unknown)."""
        known = self._index
        last, time = (known.last, known.last_time) if known is not None else (0, 0)
        last = max(last, self._claimed)
        reached = max(last, self._contents.last)
        if self._complete:
            return last, time
        delivered = {path: self._delivered(path) for path in (self._directory / CONSUMERS).glob(f"*/{STATE}")}
        path, ahead = max(delivered.items(), key=lambda each: each[1], default=(Path(), 0))
        if reached < ahead <= reached + _MOST_AHEAD:
            text = "%s: message %d was delivered, but the stream ends at %d: the next message gets %d"
            NATS.warning(text, path, ahead, reached, ahead + 1)
            last = ahead
        return last, time

    @staticmethod
    def _delivered(path: Path) -> int:
        try:
            state = decode_consumer(path.read_bytes())
        except (OSError, ArchiveError):
            return 0  # logged when consumers are opened
        with contextlib.suppress(OSError, ValueError, RecursionError):
            config = json.loads(path.with_name(META).read_bytes())
            if isinstance(config, dict) and is_at_start(config, state):
                return 0
        return state.delivered[1]

    @property
    def has_index(self) -> bool:
        """Whether there is an index or another file that the next write makes wrong."""
        return any(_OTHERS.fullmatch(path.name) for path in self._messages.iterdir())

    def settle(self) -> None:
        """Removes the indexes: their content is in the blocks now, and the next write would make them wrong."""
        for path in list(self._messages.iterdir()):
            if path.name == INDEX and self._lost:
                NATS.warning("%s: moved to %s", path, move_aside(path, self._directory))
            elif _OTHERS.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _rows(columns: RecordBatch) -> Iterable[tuple[int, int, int, int, int, int]]:
    return zip(
        columns.sequence.tolist(),
        columns.flags.tolist(),
        columns.timestamp.tolist(),
        columns.length.tolist(),
        columns.subject_start.tolist(),
        columns.subject_size.tolist(),
        strict=True,
    )


def _described(gap: Gap, before: int) -> str:
    place = f"no good record in bytes {gap.start} to {gap.end}: {FLAW_TEXTS[gap.flaw]}"
    if not gap.after:
        return f"{place}; all after message {before} is lost there, removals of earlier ones included"
    match max(gap.after - before - 1, 0):
        case 0:
            return f"{place}; no message is lost"
        case 1:
            return f"{place}; message {before + 1} is lost"
        case _:
            return f"{place}; the messages from {before + 1} to {gap.after - 1} are lost there"
