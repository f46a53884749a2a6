"""The start of one stream's store: its index, or a rebuild from its blocks and tombstones.

Facts: jetstream-store.md sections 5, 6, 13, 14, 16, 17, 19 and 20.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.inspection.stream_forecast.blocks import RebuiltRecords, ServerBlock, rebuild_records
from stantools.inspection.stream_forecast.changes import DirectoryChanges
from stantools.inspection.stream_forecast.versions import ServerRules
from stantools.progress import Progress
from stantools.store.mapping import Buffer
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.blocks import strict_content
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.indexes import KnownStream, read_index
from stantools.streamfiles.layout import BLOCK_NAME, HASH_SIZE, MESSAGES, PURGED, PURGING, ArchiveError

_MIN_INDEX: Final = 32
#: names that servers before 2.11 take for blocks
_LOOSE_NAME: Final = re.compile(r"([0-9]{1,10})\.blk.*", re.DOTALL)
_TOMBSTONE_SIZE: Final = 30
#: records that are kept in memory
_MAX_KEPT: Final = 1 << 20
#: records that need as much memory as a block besides its own
_ROWS_OF_BLOCK: Final = 64


class StoreNotOpened(Exception):  # noqa: N818
    """A store cannot be opened; the text is the server's."""

    def __init__(self, text: str, *, deletes: bool) -> None:
        super().__init__(text)
        self.text = text
        self.deletes = deletes


class ServerPanic(Exception):  # noqa: N818
    """The server's process ends; the text is its own."""


@dataclass(slots=True)
class StoreState:
    """The state of a stream as the server keeps it."""

    messages: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0
    last_time: int = 0


@dataclass
class RecoveredStream:
    """A stream's store in a server's memory, from its start on."""

    stream: StoredStream
    rules: ServerRules
    changes: DirectoryChanges
    now: int
    config: Mapping[str, Any]
    warn: Callable[[str], None]
    progress: Progress
    blocks: list[ServerBlock] = field(default_factory=list)
    _state: StoreState = field(default_factory=StoreState)
    opened: StoreState = field(default_factory=StoreState)  #: the state once it is loaded
    trusted: bool = False  #: the state is that of index.db
    outdated: bool = False  #: the last block ends with another record than index.db says
    lost: bool = False  #: a rebuild left something out
    limited: bool = False  #: limits removed messages
    beyond_limits: list[Ranges] = field(default_factory=list)  #: messages that limits removed, or that are too old
    removed: list[Ranges] = field(default_factory=list)  #: messages that a wrong index of lifetimes removed
    fired: list[Ranges] = field(default_factory=list)  #: schedules that ended with a message
    added: Ranges = field(default_factory=Ranges)  #: messages that the server stored after its start
    last_number: int = 0
    moved: Path | None = None  #: the folder of the blocks until the server puts it in place
    kept: dict[int, Ranges] = field(default_factory=dict)  #: messages before the cut of each block that is cut
    _records: OrderedDict[int, RebuiltRecords] = field(default_factory=OrderedDict)
    _kept_rows: int = 0  #: of these, with an allowance for each block
    _tombstones: list[NDArray[np.uint64]] = field(default_factory=list)
    _changed: bool = False  #: blocks have changed since the state was summed up

    @cached_property
    def folder(self) -> Path:
        return self.stream.path / MESSAGES

    @property
    def state(self) -> StoreState:
        if self._changed:
            self._changed = False
            self._sum_up()
        return self._state

    @state.setter
    def state(self, state: StoreState) -> None:
        self._state, self._changed = state, False

    def path(self, block: ServerBlock) -> Path:
        return self.folder / f"{block.number}.blk"

    # The start

    def open(self) -> None:
        """Opens the store; StoreNotOpened if that fails."""
        self._finish_purge()
        prior = self._load_index()
        if prior is not None:
            self._rebuild()
            forgotten = self.outdated and self.rules.forgets_outdated and not self.lost
            if prior.last > self.state.last and not forgotten:
                self.state.last, self.state.last_time = prior.last, prior.last_time
                if not self.state.messages and not self.rules.forgets_first:
                    self.state.first = prior.last + 1
                self.begin_block(prior.last, prior.last_time)
        if self.rules.index_version:
            for name in _names(self.folder):
                if name.endswith((".idx", ".fss")):
                    self.changes.remove(self.folder / name)
        if prior is not None:
            self._apply_tombstones()

    def _finish_purge(self) -> None:
        old, new = self.stream.path / PURGED, self.stream.path / PURGING
        if old.is_dir():
            self.changes.remove_directory(old)
        if new.is_dir() and self.rules.completes_purges:
            if any(BLOCK_NAME.fullmatch(each.name) for each in new.iterdir()):
                self.changes.move_directory(new, self.folder)
                self.moved = new
            else:
                self.changes.remove_directory(new)

    def _files(self) -> list[BlockFile]:
        """Lists the files that the server takes for blocks, by number."""
        folder = self.moved or self.folder
        found = []
        try:
            entries = sorted(folder.iterdir(), key=lambda each: each.name)
        except FileNotFoundError:
            return []
        pattern = BLOCK_NAME if self.rules.exact_names else _LOOSE_NAME
        for entry in entries:
            if match := pattern.fullmatch(entry.name):
                # a file with a longer name is read as the block of that number
                block = BlockFile(int(match[1]), folder, f"{int(match[1])}.blk")
                found.append(replace(block, size=block.path.stat().st_size if block.path.exists() else -1))
        return sorted(found, key=lambda each: each.number)

    # The index

    def _load_index(self) -> KnownStream | None:
        """Takes the state from index.db; if it is not trusted, returns the part that is remembered."""
        nothing = KnownStream(0, 0, 0, {})
        path = self.folder / "index.db"
        if not self.rules.index_version or not path.is_file() or self.moved:
            return nothing
        with self.stream.mapped(path) as raw:
            data = bytes(raw)
        known: KnownStream | None = None
        line, drops = "", True
        asset = self.stream.key
        if len(data) < _MIN_INDEX:
            line = f"Stream state too short ({len(data)} bytes)"
        elif kernels.hash64(data[:-HASH_SIZE], highwayhash.stream_key(self.stream.name)) != int.from_bytes(
            data[-HASH_SIZE:], "little"
        ):
            line = "Stream state checksum did not match"
        else:
            try:
                body = asset.unseal(data[:-HASH_SIZE]) if asset else data[:-HASH_SIZE]
                if body[0] != 11 or not 1 <= body[1] <= self.rules.index_version:
                    line = "Stream state magic and version mismatch"
                else:
                    own = self.stream.index
                    key, unseal = highwayhash.stream_key(self.stream.name), asset.unseal if asset else None
                    known = own if own and own.version else read_index(data, key, unseal)
            except ArchiveError as problem:
                line = f"Stream state error reading encryption key: {problem.message}" if asset else ""
                drops = not asset
        if known is not None:
            self.last_number = known.last_block
            line, drops = self._doubt(known)
            if not line:
                self._trust(known)
                return None
        if line:
            self.warn(f"Filestore [{self.stream.name}] {line}")
        kind = "corrupt" if drops else "prior"
        self.warn(f"Filestore [{self.stream.name}] Recovering stream state from index errored: {kind} state file")
        if drops:
            self.changes.remove(path)
        self.outdated = "additional entries" in line
        return known or nothing

    def _doubt(self, known: KnownStream) -> tuple[str, bool]:
        """Returns the line that tells why the index is not trusted, and whether its file is removed."""
        files = {each.number: each for each in self._files()}
        missing = "Stream state detected prior state, could not locate msg block {}"
        if known.last_block not in known.blocks and known.blocks:
            return "Stream state block does not exist or index mismatch", True
        if self.rules.misses_blocks:
            for number, entry in known.blocks.items():
                if number not in files and (entry.messages or number == known.last_block):
                    return missing.format(number), False
        if known.last_block not in files and known.blocks:
            return missing.format(known.last_block), False
        if known.blocks:
            last = files[known.last_block]
            if (self.stream.tail(last) or bytes(HASH_SIZE)) != known.last_hash:
                return "Stream state outdated, last block has additional entries, will rebuild", False
        if max(files, default=0) > known.last_block:
            return "Stream state outdated, found extra blocks, will rebuild", False
        if (known.messages, known.size) != (
            sum(each.messages for each in known.blocks.values()),
            sum(each.size for each in known.blocks.values()),
        ):
            return "Stream state encountered internal inconsistency on recover", True
        return "", False

    def _trust(self, known: KnownStream) -> None:
        self.trusted = True
        sizes = {each.number: each.size for each in self._files()}
        for number, entry in sorted(known.blocks.items()):
            if not entry.messages and number != known.last_block and self.rules.misses_blocks:
                continue
            block = ServerBlock(
                number,
                sizes.get(number, 0),
                entry.first,
                entry.last,
                bytes=entry.size,
                deleted=Ranges.from_sequences(entry.deleted.astype(np.uint64)),
                messages=entry.messages,
                unproven=True,
            )
            self.blocks.append(block)
        self.last_number = known.last_block
        self.state = StoreState(known.messages, known.size, known.first, known.last, known.last_time)

    # Blocks

    @contextmanager
    def content(self, block: ServerBlock) -> Iterator[Buffer | bytes]:
        """The records of a block as its file is now; StoreUnreadableError and ArchiveError if it cannot be read."""
        file = BlockFile(block.number, self.moved or self.folder, f"{block.number}.blk")
        key = self.stream.block_key(file)
        with self.stream.mapped(file.path, sequential=True) as raw:
            data: Buffer | bytes = raw
            if block.size != len(raw):
                data = bytes(raw[: block.size]).ljust(block.size, b"\0")
            yield strict_content(data, key, sized=self.rules.reads_by_size)

    def key_of(self, block: ServerBlock) -> bytes:
        return highwayhash.block_key(self.stream.name, block.number)

    def records(self, block: ServerBlock) -> RebuiltRecords:
        """Returns the records of a block; none if it cannot be read."""
        if block.number not in self._records:
            try:
                with self.content(block) as data:
                    return self._remember(block, rebuild_records(data, self.key_of(block)))
            except NotPermittedError:
                raise
            except (ArchiveError, StoreUnreadableError):
                return rebuild_records(b"", bytes(highwayhash.KEY_SIZE))
        self._records.move_to_end(block.number)
        return self._records[block.number]

    def _remember(self, block: ServerBlock, records: RebuiltRecords) -> RebuiltRecords:
        """Keeps the records of the blocks that were used last."""
        if earlier := self._records.pop(block.number, None):
            self._kept_rows -= _ROWS_OF_BLOCK + len(earlier.sequence)
        self._records[block.number] = records
        self._kept_rows += _ROWS_OF_BLOCK + len(records.sequence)
        while len(self._records) > 1 and self._kept_rows > _MAX_KEPT:
            self._kept_rows -= _ROWS_OF_BLOCK + len(self._records.popitem(last=False)[1].sequence)
        return records

    def _rebuild(self) -> None:
        """Reads every block, cuts it at its first bad record, and drops those without content."""
        self.blocks.clear()
        self.state = StoreState()
        old = self.stream.index if "index.db" not in _names(self.folder) else None
        for file in self._files():
            block = ServerBlock(file.number, max(file.size, 0))
            change = self.changes.files.get(self.changes.name(file.path))
            if file.size < 0 or (change and change.after is None and not self.moved):
                raise StoreNotOpened(
                    f"open {file.path}: no such file or directory", deletes=self.rules.deletes_unopened
                )
            entry = old.blocks.get(file.number) if old and not old.version else None
            if entry:
                block.first, block.deleted = entry.first, Ranges.from_sequences(entry.deleted.astype(np.uint64))
            self.last_number = file.number
            if entry and old and file.number not in old.stale:
                block.last, block.bytes, block.messages = entry.last, entry.size, entry.messages
                block.unproven = True
            elif not self._rebuild_block(block):
                continue
            self._add(block)
        if self.blocks:
            self.last_number = self.blocks[-1].number
        else:
            self.begin_block()
        if self.lost:
            for block in [each for each in self.blocks if not each.messages and not each.size]:
                if block is not self.blocks[-1]:
                    self.drop(block)
                elif self.rules.replaces_empty:
                    self.drop(block)
                    self.begin_block(tombstone=True)

    def _rebuild_block(self, block: ServerBlock) -> bool:
        """Rebuilds the state of a block; False if the block is removed."""
        try:
            with self.content(block) as data:
                records = rebuild_records(data, self.key_of(block))
        except NotPermittedError:
            raise
        except ArchiveError as problem:
            if self.rules.deletes_undecoded:
                raise StoreNotOpened(problem.message, deletes=True) from problem
            self.drop(block, listed=False)
            return False
        except StoreUnreadableError as problem:
            if self.rules.deletes_undecoded:
                raise StoreNotOpened(problem.message, deletes=True) from problem
            return False
        self.progress(block.size)
        if records.headers_without_room and self.rules.panics_on_headers:
            raise ServerPanic("runtime error: slice bounds out of range [4:0]")
        if records.end < records.size:
            self.lost = True
            block.spoiled = self.rules.checks_places and records.size != block.size
            if block.spoiled and self.rules.deletes_undecoded:
                raise StoreNotOpened("error reading compression reader: s2: corrupt input", deletes=True)
            self._cut(block, records)
        self._remember(block, records)
        tombstones = block.apply(records, counts_twice=self.rules.counts_twice)
        if self.rules.tombstones:
            self._tombstones.append(tombstones)
        if not block.first:
            self.drop(block, listed=False)
            return False
        return True

    def _cut(self, block: ServerBlock, records: RebuiltRecords) -> None:
        """Truncates the file of a block after its good records; the size counts plain bytes."""
        if not block.spoiled:
            self.kept[block.number] = Ranges.from_sequences(records.sequence[records.flags == 0])
        block.size = size = records.end
        self.changes.write(self.path(block), size)

    def _add(self, block: ServerBlock) -> None:
        state = self.state
        if not state.messages:
            state.first = state.last = 0
        if not state.first or (block.first < state.first and block.first_time):
            state.first = block.first
        if block.last > state.last:
            state.last, state.last_time = block.last, block.last_time
        state.messages += block.messages
        state.bytes += block.bytes
        self.blocks.append(block)

    def drop(self, block: ServerBlock, *, listed: bool = True) -> None:
        self.kept[block.number] = Ranges()
        self.changes.remove(self.path(block))
        self.changes.remove(self.path(block).with_suffix(".key"))
        if listed:
            at = bisect_left(self.blocks, block.number, key=lambda each: each.number)
            del self.blocks[self.blocks.index(block, at)]

    def begin_block(self, sequence: int = 0, time: int = 0, *, tombstone: bool = False) -> None:
        """Begins a block; with a tombstone if a sequence has to be remembered."""
        self.last_number += 1
        block = ServerBlock(self.last_number, _TOMBSTONE_SIZE if sequence or tombstone else 0)
        if sequence:
            block.first, block.last, block.last_time = sequence + 1, sequence, time
        self.blocks.append(block)
        self.changes.write(self.path(block), block.size)

    # Removals

    def _apply_tombstones(self) -> None:
        gone = Ranges.union(Ranges.from_sequences(each) for each in self._tombstones)
        if gone:
            for block in list(self.blocks):
                chosen = block.live & gone
                if chosen and not block.spoiled:
                    self.remove_from(block, chosen, limits=False)

    def remove_from(self, block: ServerBlock, chosen: Ranges, *, limits: bool = True) -> None:
        records = self.records(block)
        rows = (records.flags == 0) & chosen.select(records.sequence)
        size = int(records.length[rows].sum())
        had_first = self.state.first in chosen
        self.limited = self.limited or limits
        self.beyond_limits += [chosen] if limits else []
        before = block.messages
        block.remove(chosen, size)
        self.state.messages -= before - block.messages
        self.state.bytes -= size
        if not block.messages:
            if block is self.blocks[-1]:
                self.begin_block(block.last, block.last_time)
            self.drop(block)
        if had_first:
            self.select_first()

    def select_first(self) -> None:
        self.state.first = self.blocks[0].first if self.blocks else self.state.last + 1

    def live(self) -> Ranges:
        return Ranges.union(each.live for each in self.blocks)

    def apply_first_sequence(self) -> None:
        """Purges a stream that has to begin at a later sequence."""
        wanted = self.config.get("first_seq")
        if not isinstance(wanted, int) or wanted <= 0 or self.state.first > wanted:
            return
        if self.state.first == wanted and not self.rules.first_seq_purges:
            return
        had = self.state.messages
        if not had and [each.number for each in self.blocks] == [1] and self.blocks[0].size == _TOMBSTONE_SIZE:
            self.changes.remove(self.folder / "index.db")
            return
        last = self.state.last if self.state.first == wanted else max(self.state.last, wanted - 1)
        for block in list(self.blocks):
            self.drop(block)
        self.last_number = 0
        self.state = StoreState(0, 0, last + 1, last, self.state.last_time)
        self.begin_block(last, self.state.last_time)
        if had:
            self.changes.write(self.folder / "index.db", 0)
        else:
            self.changes.remove(self.folder / "index.db")

    # After the start

    def consumer_names(self) -> list[str]:
        folder = self.stream.path / "obs"
        return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []

    def rebuild_late(self, block: ServerBlock) -> None:
        """Rebuilds a block whose damage a lookup met."""
        head, deleted = block.first, block.deleted
        with self.content(block) as data:
            records = rebuild_records(data, self.key_of(block))
        if records.end < records.size:
            self._cut(block, records)
        block.first = head
        self._remember(block, records)
        block.apply(records, counts_twice=self.rules.counts_twice)
        block.remembered = deleted - block.deleted
        self._changed = True

    def forget(self, block: ServerBlock) -> None:
        """Gives up the messages of a block that holds none of them."""
        block.messages = block.bytes = 0
        block.first, block.deleted = block.last + 1, Ranges()
        self._changed = True

    def deleted_count(self) -> int:
        """Counts the sequences that the server lists as deleted."""
        state = self.state
        count, place = 0, state.first
        for block in self.blocks:
            if block.first > place:
                count += block.first - place
            count += block.deleted.count() + (block.remembered.count() if block.deleted else 0)
            place = max(place, block.last + 1)
        return count if self.blocks and (state.messages or state.last) else int(state.first == state.last == 0)

    def _sum_up(self) -> None:
        first = 0
        self.state.messages = sum(each.messages for each in self.blocks)
        self.state.bytes = sum(each.bytes for each in self.blocks)
        for block in self.blocks:
            if not first or block.first < first:
                first = block.first
            self.state.last, self.state.last_time = block.last, block.last_time
        self.state.first = first


def _names(folder: Path) -> set[str]:
    try:
        return {each.name for each in folder.iterdir()}
    except OSError:
        return set()
