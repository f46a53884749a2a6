"""The directory of one stream, as a nats-server leaves it (jetstream-store.md sections 1, 2, 5, 6, 9 to 11).

Nothing is ever written. Damage becomes a flaw; only a file that the user is not permitted to read is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.store.directory import matches_any
from stantools.store.mapping import Buffer, mapped
from stantools.store.permissions import refusal
from stantools.streamfiles import highwayhash, s2
from stantools.streamfiles.blocks import BlockContent, block_content
from stantools.streamfiles.flaws import FileFlaw, FlawKind
from stantools.streamfiles.indexes import IndexVersionError, KnownBlock, KnownStream, read_index, read_old_index
from stantools.streamfiles.layout import BLOCK_NAME, HASH_SIZE, INDEX, MESSAGES, NEW_BLOCK_NAME, PURGED, ArchiveError
from stantools.streamfiles.meta import ConsumerState, decode_consumer, meta_sum
from stantools.streamfiles.sealing import AssetKey, ServerKeys

#: bytes of a configuration, a consumer's state, an index: more is no file of a server
_MAX_META: Final = 16 << 20
_MAX_INDEX: Final = 1 << 30
#: blocks of which no key opens, so that it is another server's
_TRIED_BLOCKS: Final = 4
#: sealed key of a stream's configuration
_KEY_FILE: Final = "meta.key"


@dataclass(frozen=True, slots=True)
class BlockFile:
    number: int  #: as its name says
    folder: Path = field(repr=False)
    name: str
    #: from its own directory, an interrupted rewrite, or an interrupted purge
    place: str = MESSAGES
    size: int = 0

    @property
    def path(self) -> Path:
        return self.folder / self.name


@dataclass(slots=True)
class StoredConsumer:
    name: str
    config: Mapping[str, Any] | None  #: None if it cannot be read
    state: ConsumerState | None  #: None if it has none, or it cannot be read


@dataclass(eq=False)
class StoredStream:
    path: Path
    account: str
    server_keys: ServerKeys | None = None
    flaws: list[FileFlaw] = field(default_factory=list)
    other_names: tuple[str, ...] = ()  #: other streams, whose blocks may be here
    _keys: dict[str, AssetKey | None] = field(default_factory=dict, init=False, repr=False)  #: of blocks, by key file
    node: str = ""  #: name of its node, if there are several
    hashed_as: str = ""  #: name by which its files were hashed, if the directory was renamed
    accept_unreadable: bool = False  #: a file that the user is not permitted to read counts as damaged

    @cached_property
    def name(self) -> str:
        """Name of the stream, by which its files were hashed; that of a directory being deleted begins with a dot."""
        return self.hashed_as or self.path.name.removeprefix(".")

    @property
    def full_name(self) -> str:
        """ACCOUNT/NAME."""
        return f"{self.account}/{self.name}"

    def matches(self, patterns: Collection[str]) -> bool:
        """Returns whether its name matches one of some patterns, or one is ACCOUNT/NAME; without patterns it does."""
        return matches_any(self.name, patterns) or self.full_name in patterns

    @cached_property
    def names(self) -> set[str]:
        return {each.name for each in _entries(self.path)}

    @cached_property
    def message_names(self) -> set[str]:
        """Names in the directory of the blocks."""
        return {each.name for each in _entries(self.path / MESSAGES)}

    def _flaw(self, kind: FlawKind, file: str, detail: str, **place: Any) -> None:
        self.flaws.append(FileFlaw(kind, file, detail, **place))

    def read(self, file: str, limit: int = _MAX_META) -> bytes | None:
        """Returns the content of a file; None if there is none, StoreUnreadableError if it cannot be read."""
        path = self.path / file
        if not path.exists():
            return None
        with self.mapped(path) as buffer:
            if len(buffer) > limit:
                raise StoreUnreadableError(f"{path}: has {len(buffer)} bytes, at most {limit} are expected")
            return bytes(buffer)

    @contextmanager
    def mapped(self, path: Path, *, sequential: bool = False) -> Iterator[Buffer]:
        """Maps one of its files; NotPermittedError if the user may not read it, unless that is accepted."""
        try:
            with mapped(path, sequential=sequential) as buffer:
                yield buffer
        except NotPermittedError as problem:
            if not self.accept_unreadable:
                raise
            raise StoreUnreadableError(problem.message) from problem

    # Configuration

    @cached_property
    def key(self) -> AssetKey | None:
        """The key of the stream's configuration and index; None if it is not encrypted, or cannot be opened."""
        return self._asset_key(_KEY_FILE, self.name)

    def _asset_key(self, file: str, context: str, consumer: str | None = None) -> AssetKey | None:
        try:
            sealed = self.read(file)
            if sealed is None:
                return None
            if self.server_keys is None:
                self._tell_locked(file)
                return None
            return self.server_keys.open(sealed, context)
        except NotPermittedError:
            raise
        except (ArchiveError, StoreUnreadableError) as problem:
            if file == _KEY_FILE or _KEY_FILE not in self.names or self.key:
                kind = FlawKind.BLOCK_KEY if file.startswith(MESSAGES) else FlawKind.KEY_WRONG
                self._flaw(kind, file, problem.message, consumer=consumer)
            return None  # with another key, one flaw is enough

    def _tell_locked(self, file: str) -> None:
        if not any(each.kind is FlawKind.KEY_MISSING for each in self.flaws):
            detail = (
                "the stream is encrypted, and no key was given: its messages, configuration and consumers cannot be "
                "judged, only the checksums of the configurations"
            )
            self._flaw(FlawKind.KEY_MISSING, file, detail)

    @cached_property
    def encrypted(self) -> bool:
        return _KEY_FILE in self.names or any(each.endswith(".key") for each in self.message_names)

    @cached_property
    def locked(self) -> str:
        """The reason why nothing of an encrypted stream can be read; empty if a key of it can be opened."""
        if _KEY_FILE not in self.names or self.key or any(map(self.block_key, self.blocks[:_TRIED_BLOCKS])):
            return ""
        return "its key was not given" if self.server_keys is None else "the given key does not open it"

    @cached_property
    def config(self) -> Mapping[str, Any] | None:
        """The members of `meta.inf`; None if it cannot be read."""
        return self._config("", highwayhash.stream_key(self.name), self.key)

    def _config(self, folder: str, key: bytes, asset: AssetKey | None) -> Mapping[str, Any] | None:
        consumer = folder.split("/")[1] if folder else None
        missing, summed = (
            (FlawKind.CONSUMER_META, FlawKind.CONSUMER_SUM) if folder else (FlawKind.META_MISSING, FlawKind.META_SUM)
        )
        file = f"{folder}meta.inf"
        data, checksum = self._content(file, missing, consumer), self._content(f"{folder}meta.sum", missing, consumer)
        if data is None:
            return None
        if checksum is not None and checksum != (proper := meta_sum(data, key)):
            stored = checksum[:20].decode("ascii", "backslashreplace")
            self._flaw(
                summed, f"{folder}meta.sum", f'it is "{stored}", expected "{proper.decode()}"', consumer=consumer
            )
        if self.encrypted:
            if asset is None:
                if not (self.path / folder / "meta.key").exists():
                    self._flaw(FlawKind.KEY_WRONG, f"{folder}meta.key", "it is missing", consumer=consumer)
                return None
            try:
                data = asset.unseal(data)
            except ArchiveError as problem:
                self._flaw(FlawKind.KEY_WRONG, file, problem.message, consumer=consumer)
                return None
        try:
            values = json.loads(data)
            if not isinstance(values, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as problem:
            kind = FlawKind.CONSUMER_META if folder else FlawKind.META_JSON
            self._flaw(kind, file, f"it is no configuration: {problem}", consumer=consumer)
            return None
        return values

    def _content(self, file: str, kind: FlawKind, consumer: str | None = None) -> bytes | None:
        try:
            data = self.read(file)
        except NotPermittedError:
            raise
        except StoreUnreadableError as problem:
            self._flaw(kind, file, problem.message, consumer=consumer)
            return None
        if data is None:
            self._flaw(kind, file, "it is missing", consumer=consumer)
        return data

    # Consumers

    @cached_property
    def consumers(self) -> list[StoredConsumer]:
        names = sorted(each.name for each in _entries(self.path / "obs") if each.is_dir())
        return [self._consumer(name) for name in names]

    def _consumer(self, name: str) -> StoredConsumer:
        folder = f"obs/{name}/"
        asset = self.consumer_key(name)
        config = self._config(folder, highwayhash.consumer_key(self.name, name), asset)
        state: ConsumerState | None = None
        try:
            data = self.read(f"{folder}o.dat")
            if data is None:
                self._flaw(FlawKind.CONSUMER_STATE, f"{folder}o.dat", "it is missing", consumer=name)
            elif asset or not self.encrypted:
                state = decode_consumer(asset.unseal(data) if asset else data)
        except NotPermittedError:
            raise
        except (ArchiveError, StoreUnreadableError) as problem:
            self._flaw(FlawKind.CONSUMER_STATE, f"{folder}o.dat", problem.message, consumer=name)
        return StoredConsumer(name, config, state)

    def consumer_key(self, name: str) -> AssetKey | None:
        return self._asset_key(f"obs/{name}/meta.key", f"{self.name}.{name}", name)

    # Blocks

    @cached_property
    def blocks(self) -> list[BlockFile]:
        """The blocks in `msgs`, by number."""
        return sorted(self._files(MESSAGES, BLOCK_NAME), key=lambda each: each.number)

    @cached_property
    def other_blocks(self) -> list[BlockFile]:
        """Blocks in leftovers of interrupted rewrites and purges, which may hold what `msgs` lost."""
        found = list(self._files(MESSAGES, NEW_BLOCK_NAME))
        if not self.blocks:
            found += self._files(PURGED, BLOCK_NAME)
        return sorted(found, key=lambda each: (each.place, each.number, each.name))

    def _files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[BlockFile]:
        place = self.path / folder
        for entry in _entries(place):
            if match := pattern.fullmatch(entry.name):
                yield BlockFile(int(match[1]), place, entry.name, folder, entry.stat().st_size)

    def block_key(self, block: BlockFile) -> AssetKey | None:
        """The key of a block; None if it is not encrypted, or its key cannot be opened."""
        if not self.encrypted:
            return None
        file = f"{block.place}/{block.number}.key"
        if file not in self._keys:
            self._keys[file] = self._asset_key(file, f"{self.name}:{block.number}")
        return self._keys[file]

    @contextmanager
    def content(self, block: BlockFile) -> Iterator[BlockContent]:
        """The content of a block; StoreUnreadableError if it cannot be read."""
        key = self.block_key(block)
        with self.mapped(block.path, sequential=True) as raw:
            if key is None and self.encrypted and block.path.with_name(f"{block.number}.key").exists():
                yield BlockContent(b"", encrypted=True, sealed=True)
            else:
                yield block_content(raw, key)

    def tail(self, block: BlockFile) -> bytes:
        """The last 8 bytes of a block, the hash of its last record; empty if it cannot be read."""
        try:
            with self.mapped(block.path) as raw:
                if asset := self.block_key(block):
                    if len(raw) > s2.MAX_CONTENT:
                        return b""  # no server writes such a block
                    return asset.decrypt_block(raw)[-HASH_SIZE:]
                return bytes(raw[-HASH_SIZE:])
        except NotPermittedError:
            raise
        except StoreUnreadableError:
            return b""

    # Indexes

    @cached_property
    def index(self) -> KnownStream | None:
        """The content of `index.db`, if its own hash is right; else of the indexes of servers before 2.10."""
        file = f"{MESSAGES}/{INDEX}"
        try:
            data = self.read(file, _MAX_INDEX)
            if data is None or (self.encrypted and self.key is None):
                return self._old_indexes()
            asset = self.key
            return read_index(data, highwayhash.stream_key(self.name), asset.unseal if asset else None)
        except NotPermittedError:
            raise
        except (ArchiveError, StoreUnreadableError) as problem:
            kind = FlawKind.INDEX_VERSION if isinstance(problem, IndexVersionError) else FlawKind.INDEX_HASH
            self._flaw(kind, file, problem.message)
            return None

    @cached_property
    def index_file(self) -> bool:
        """Whether there is an `index.db`, of whatever content."""
        return INDEX in self.message_names

    @cached_property
    def index_totals_differ(self) -> bool:
        """Whether `index.db` counts other messages than those of its blocks; a server rejects it then."""
        known = self.index
        return (
            known is not None
            and bool(known.version)
            and known.messages != sum(each.messages for each in known.blocks.values())
        )

    def _old_indexes(self) -> KnownStream | None:
        known: dict[int, KnownBlock] = {}
        stale: set[int] = set()
        for block in self.blocks:
            file = f"{MESSAGES}/{block.number}.idx"
            try:
                data = self.read(file)
                if data is None:
                    continue
                entry, last_hash = read_old_index(data)
            except NotPermittedError:
                raise
            except (ArchiveError, StoreUnreadableError) as problem:
                self._flaw(FlawKind.OLD_INDEX, file, problem.message)
                continue
            known[block.number] = entry
            if block.size and last_hash != self.tail(block):
                stale.add(block.number)
                self._flaw(FlawKind.OLD_INDEX, file, f"{block.number}.blk ends with another record than it says")
        if not known:
            return None
        last = max(each.last for each in known.values())
        return KnownStream(min(each.first for each in known.values()), last, 0, known, stale=frozenset(stale))

    @cached_property
    def index_doubt(self) -> str:
        """The reason why `index.db` does not describe the blocks as they are; empty if it does."""
        known = self.index
        if known is None or not known.version:
            return "there is none"
        if self.index_totals_differ:
            return f"its total is {known.messages} messages, the sum of its blocks is another"
        numbers, last = {each.number for each in self.blocks}, self._last_indexed
        if not numbers and not known.messages:
            return ""
        if last is None:
            return f"its last block, {known.last_block}.blk, is not there"
        if max(numbers) > known.last_block:
            return f"{max(numbers)}.blk is newer"
        if lost := [number for number in known.blocks if number not in numbers]:
            return f"{lost[0]}.blk, which it names, is not there"
        if self._continues_index:
            return f"{known.last_block}.blk ends with another record"
        return "" if last.size or not any(known.last_hash) else "its last block is empty"

    @cached_property
    def index_is_older(self) -> bool:
        """Whether blocks were written to after `index.db`."""
        known = self.index
        if known is None or not known.version:
            return True
        newer = any(each.number > known.last_block and each.size for each in self.blocks)
        return newer or self._continues_index

    @cached_property
    def _last_indexed(self) -> BlockFile | None:
        """The last block that the index knows, if it is there."""
        return next((each for each in self.blocks if self.index and each.number == self.index.last_block), None)

    @cached_property
    def _continues_index(self) -> bool:
        """Whether the last block that the index knows ends with another record than the index says."""
        known, last = self.index, self._last_indexed
        return known is not None and last is not None and last.size > 0 and self.tail(last) != known.last_hash


def _entries(folder: Path) -> list[Path]:
    """Lists a folder; empty if it is not there."""
    try:
        return list(folder.iterdir())
    except PermissionError as error:
        raise refusal(folder, [folder]) from error
    except OSError:
        return []
