"""The directory of one stream, as a nats-server leaves it (jetstream-store.md sections 1, 2, 5, 6, 9 to 11).

Nothing is ever written. What is damaged becomes a flaw; only a file that the user is not permitted to read is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.store.mapping import mapped
from stantools.streamfiles import highwayhash
from stantools.streamfiles.blocks import BlockContent, block_content
from stantools.streamfiles.flaws import FileFlaw, FlawKind
from stantools.streamfiles.indexes import KnownBlock, KnownStream, read_index, read_old_index
from stantools.streamfiles.layout import BLOCK_NAME, HASH_SIZE, MESSAGES, NEW_BLOCK_NAME, PURGED, ArchiveError
from stantools.streamfiles.meta import ConsumerState, decode_consumer, meta_sum
from stantools.streamfiles.sealing import AssetKey, ServerKeys

#: bytes of a configuration, a consumer's state, an index: more is no file of a server
_MAX_META: Final = 16 << 20
_MAX_INDEX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class BlockFile:
    number: int  #: as its name says
    path: Path
    #: from its own directory, an interrupted rewrite, or an interrupted purge
    place: str = MESSAGES
    size: int = 0


@dataclass(slots=True)
class StoredConsumer:
    name: str
    config: Mapping[str, Any] | None  #: None if it cannot be read
    state: ConsumerState | None  #: None if it has none, or it cannot be read


@dataclass
class StoredStream:
    path: Path
    account: str
    server_keys: ServerKeys | None = None
    flaws: list[FileFlaw] = field(default_factory=list)
    other_names: tuple[str, ...] = ()  #: other streams, whose blocks may be here
    node: str = ""  #: name of its node, if there are several
    hashed_as: str = ""  #: name by which its files were hashed, if the directory was renamed

    @cached_property
    def name(self) -> str:
        """Name of the stream, by which its files were hashed; that of a directory being deleted begins with a dot."""
        return self.hashed_as or self.path.name.removeprefix(".")

    @cached_property
    def names(self) -> set[str]:
        return {each.name for each in _entries(self.path)}

    def _flaw(self, kind: FlawKind, file: str, detail: str, **place: Any) -> None:
        self.flaws.append(FileFlaw(kind, file, detail, **place))

    def read(self, file: str, limit: int = _MAX_META) -> bytes | None:
        """Returns the content of a file; None if there is none, StoreUnreadableError if it cannot be read."""
        path = self.path / file
        if not path.exists():
            return None
        with mapped(path) as buffer:
            if len(buffer) > limit:
                raise StoreUnreadableError(f"{path}: has {len(buffer)} bytes, at most {limit} are expected")
            return bytes(buffer)

    # Configuration

    @cached_property
    def key(self) -> AssetKey | None:
        """The key of the stream's configuration and index; None if it is not encrypted, or cannot be opened."""
        return self._asset_key("meta.key", self.name)

    def _asset_key(self, file: str, context: str, consumer: str | None = None) -> AssetKey | None:
        try:
            sealed = self.read(file)
            if sealed is None:
                return None
            if self.server_keys is None:
                self._flaw(FlawKind.KEY_MISSING, file, "it is encrypted, and no key was given", consumer=consumer)
                return None
            return self.server_keys.open(sealed, context)
        except NotPermittedError:
            raise
        except (ArchiveError, StoreUnreadableError) as problem:
            is_block = file.startswith(MESSAGES)
            self._flaw(FlawKind.BLOCK_KEY if is_block else FlawKind.KEY_WRONG, file, problem.message, consumer=consumer)
            return None

    @cached_property
    def encrypted(self) -> bool:
        return "meta.key" in self.names

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
        if f"{folder}meta.key" in self.names if not folder else (self.path / folder / "meta.key").exists():
            if asset is None:
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

    def consumer_key(self, name: str) -> AssetKey | None:
        return self._asset_key(f"obs/{name}/meta.key", f"{self.name}.{name}", name)

    def _consumer(self, name: str) -> StoredConsumer:
        folder = f"obs/{name}/"
        asset = self.consumer_key(name)
        config = self._config(folder, highwayhash.consumer_key(self.name, name), asset)
        state: ConsumerState | None = None
        try:
            data = self.read(f"{folder}o.dat")
            if data is not None and (asset or not (self.path / folder / "meta.key").exists()):
                state = decode_consumer(asset.unseal(data) if asset else data)
        except NotPermittedError:
            raise
        except (ArchiveError, StoreUnreadableError) as problem:
            self._flaw(FlawKind.CONSUMER_STATE, f"{folder}o.dat", problem.message, consumer=name)
        return StoredConsumer(name, config, state)

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
        return sorted(found, key=lambda each: (each.place, each.number, each.path.name))

    def _files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[BlockFile]:
        for entry in _entries(self.path / folder):
            if match := pattern.fullmatch(entry.name):
                yield BlockFile(int(match[1]), entry, folder, entry.stat().st_size)

    def block_key(self, block: BlockFile) -> AssetKey | None:
        path = block.path.with_name(f"{block.number}.key")
        return self._asset_key(f"{block.place}/{path.name}", f"{self.name}:{block.number}")

    @contextmanager
    def content(self, block: BlockFile) -> Iterator[BlockContent]:
        """The content of a block; StoreUnreadableError if it cannot be read."""
        with mapped(block.path, sequential=True) as raw:
            yield block_content(raw, self.block_key(block))

    def tail(self, block: BlockFile) -> bytes:
        """The last 8 bytes of a block, the hash of its last record; empty if it cannot be read."""
        try:
            with mapped(block.path) as raw:
                if asset := self.block_key(block):
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
        file = f"{MESSAGES}/index.db"
        try:
            data = self.read(file, _MAX_INDEX)
            if data is None or (self.encrypted and self.key is None):
                return self._old_indexes()
            asset = self.key
            return read_index(data, highwayhash.stream_key(self.name), asset.unseal if asset else None)
        except NotPermittedError:
            raise
        except (ArchiveError, StoreUnreadableError) as problem:
            self._flaw(FlawKind.INDEX_HASH, file, problem.message)
            return None

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
        raise NotPermittedError(f"{folder}: cannot be read: {error.strerror}") from error
    except OSError:
        return []
