"""A Raft group of a clustered nats-server: its log, its snapshots, its term and vote.

Facts: jetstream-store.md section 12. A group's directory is that of a stream named like the group. The sequence of a
record is the index of an entry; its payload:

    8 bytes leader, u64 term, u64 commit, u64 term and u64 index of the entry before, u16 count,
    for each: u32 length (with the type), u8 type, data

Records prove themselves by their hash, so that a damaged log is read as far as it goes. An index that is there twice
was overwritten by a later term.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.damage import scan
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.layout import HASH_SIZE
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.sealing import ServerKeys

META_GROUP: Final = "_meta_"
#: names of groups of streams and consumers in memory
_IN_MEMORY: Final = re.compile(r"[SC]-R[0-9]+M-")
#: types of entries
NORMAL: Final = 0
OLD_SNAPSHOT: Final = 1
_HEAD: Final = struct.Struct("<8sQQQQH")
_SNAPSHOT: Final = struct.Struct("<QQI")
_LENGTH_SIZE: Final = 4
_TERM_SIZE: Final = 8
_PEER_SIZE: Final = 8
_MAX_SNAPSHOT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class GroupEntry:
    index: int
    term: int
    kind: int  #: its type
    data: bytes


@dataclass(frozen=True, slots=True)
class RaftSnapshot:
    term: int
    index: int  #: of the last entry that it includes
    data: bytes


@dataclass
class RaftGroup:
    path: Path
    node: str  #: name of the node, "" if there is one alone
    keys: tuple[bytes, ...] = ()  #: the server's encryption keys
    flaws: list[str] = field(default_factory=list)
    accept_unreadable: bool = False  #: a file that the user is not permitted to read counts as damaged

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def directory(self) -> StoredStream:
        keys = ServerKeys(self.keys, self.name) if self.keys else None
        return StoredStream(self.path, self.name, keys, accept_unreadable=self.accept_unreadable)

    @cached_property
    def asset(self) -> tuple[str, str, str]:
        """Account, stream, and consumer of the group; empty if it does not say."""
        metadata = (self.directory.config or {}).get("metadata")
        values = metadata if isinstance(metadata, dict) else {}
        return (*(str(values.get(name, "")) for name in ("account", "stream", "consumer")),)  # type: ignore[return-value]

    @property
    def on_disk(self) -> bool:
        """Whether its stream or consumer is stored in files, as its name tells."""
        return _IN_MEMORY.match(self.name) is None

    @property
    def term(self) -> int:
        """The latest term that the node knew, 0 if unknown."""
        return int.from_bytes(self._vote[:_TERM_SIZE], "little") if len(self._vote) >= _TERM_SIZE else 0

    @property
    def vote(self) -> str:
        """The peer that got the node's vote in this term, empty for none."""
        return self._vote[_TERM_SIZE : _TERM_SIZE + _PEER_SIZE].decode("ascii", "replace")

    @cached_property
    def _vote(self) -> bytes:
        return self._small("tav.idx")

    @cached_property
    def peers(self) -> list[str]:
        """The members of the group that the node knew."""
        data = self._small("peers.idx")
        count = int.from_bytes(data[4:8], "little")
        names = data[8 : 8 + count * _PEER_SIZE]
        return [names[at : at + _PEER_SIZE].decode("ascii", "replace") for at in range(0, len(names), _PEER_SIZE)]

    def _small(self, file: str) -> bytes:
        try:
            return self.directory.read(file) or b""
        except NotPermittedError:
            raise
        except StoreUnreadableError as problem:
            self.flaws.append(problem.message)
            return b""

    @cached_property
    def snapshot(self) -> RaftSnapshot | None:
        """The newest snapshot that is whole."""
        found = []
        folder = self.path / "snapshots"
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name.startswith("snap."):
                try:
                    data = self.directory.read(f"snapshots/{path.name}", _MAX_SNAPSHOT) or b""
                except NotPermittedError:
                    raise
                except StoreUnreadableError as problem:
                    self.flaws.append(problem.message)
                    continue
                if snapshot := _snapshot(data, self.name):
                    found.append(snapshot)
                else:
                    self.flaws.append(f"snapshots/{path.name}: it is cut, or its hash is wrong")
        return max(found, key=lambda each: (each.index, each.term), default=None)

    @cached_property
    def last_index(self) -> int:
        """The index of the last entry that the node has, or had before its snapshot."""
        return max([self.snapshot.index if self.snapshot else 0, *(each.index for each in self.entries)])

    @cached_property
    def entries(self) -> list[GroupEntry]:
        """The entries in the log, also entries that a snapshot includes, in the order of their index."""
        found: dict[int, tuple[int, list[GroupEntry]]] = {}
        for index, payload in self._payloads():
            term, entries = _decoded(index, payload)
            if index not in found or term >= found[index][0]:
                found[index] = term, entries
        return [entry for index in sorted(found) for entry in found[index][1]]

    def _payloads(self) -> Iterator[tuple[int, bytes]]:
        for block in self.directory.blocks:
            key = highwayhash.block_key(self.name, block.number)
            try:
                with self.directory.content(block) as content:
                    for piece in scan(content.data, key):
                        if not isinstance(piece, RecordBatch):
                            self.flaws.append(f"{block.place}/{block.name}: damaged at {piece.start}")
                            continue
                        batch = piece.messages
                        yield from zip(batch.sequence.tolist(), batch.payloads(), strict=True)
            except NotPermittedError:
                raise
            except StoreUnreadableError as problem:
                self.flaws.append(problem.message)


def _decoded(index: int, payload: bytes) -> tuple[int, list[GroupEntry]]:
    """Returns the term of an entry of the log, and its parts."""
    if len(payload) < _HEAD.size:
        return 0, []
    _, term, _, _, _, count = _HEAD.unpack_from(payload)
    at, entries = _HEAD.size, []
    for _ in range(count):
        size = int.from_bytes(payload[at : at + _LENGTH_SIZE], "little")
        at += _LENGTH_SIZE
        if not 1 <= size <= len(payload) - at:
            break
        entries.append(GroupEntry(index, term, payload[at], payload[at + 1 : at + size]))
        at += size
    return term, entries


def _snapshot(data: bytes, group: str) -> RaftSnapshot | None:
    key = highwayhash.stream_key(group)
    if len(data) < _SNAPSHOT.size + HASH_SIZE:
        return None
    if kernels.hash64(data[:-HASH_SIZE], key) != int.from_bytes(data[-HASH_SIZE:], "little"):
        return None
    term, index, size = _SNAPSHOT.unpack_from(data)
    begin = _SNAPSHOT.size + size
    return RaftSnapshot(term, index, data[begin:-HASH_SIZE]) if begin <= len(data) - HASH_SIZE else None
