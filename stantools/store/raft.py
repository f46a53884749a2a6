"""A clustered node's Raft directory: where its parts lie, its log, its snapshots.

Facts: clustered-stores.md sections 1, 2 and 5.

    raft.log                                        the log (`stantools.format.raftlog`)
    snapshots/<term>-<index>-<unix ms>/meta.json    what the snapshot is, with the CRC-64 of the state
    snapshots/<term>-<index>-<unix ms>/state.bin    | length u32, little-endian | RaftSnapshot |

Files are only read, and no lock is taken, not even to see whether a server holds the log.
"""

from __future__ import annotations

import base64
import binascii
import json
import lzma
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stantools.errors import StoreUnreadableError
from stantools.format import gogo
from stantools.format.bbolt import Buffer, Fault
from stantools.format.encryption import DataCipher
from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import Entry, EntryError, Flaw, RaftLog, Server, decode_entry, decode_operation
from stantools.store.directory import CLIENTS_FILE, RAFT_LOG_FILE, SERVER_FILE, SLICE_NAME, SUBS_FILE
from stantools.store.mapping import Window, mapped

SNAPSHOTS = "snapshots"
META_FILE = "meta.json"
STATE_FILE = "state.bin"
_TEMPORARY = ".tmp"
#: With its default path the log of a node lies three directories below the working directory of the server.
_DEPTH = 4
_MOST_DIRECTORIES = 2000
_META_SIZE = 1 << 24
_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 20
#: Entries that are read before the pages behind are let go, in bytes.
_KEPT = 16 << 20

#: An operation, and the first byte of its entry's data.
Read = tuple[pb.RaftOperation, int]
_E = TypeVar("_E", bound=Entry | Fault | Flaw)


@dataclass(frozen=True)
class NodeFiles:
    """The directories of a clustered node.

    Attributes:
        path: What was asked for; of directories that were named one by one, the name that they go by together.
        raft: The directory that holds `raft.log`; None if there is none.
        data: The file store; None if there is none.
    """

    path: Path
    raft: Path | None
    data: Path | None

    def __str__(self) -> str:
        """Describes it as `node_of` reads it."""
        parts = [f"{kind}={each}" for kind, each in (("data", self.data), ("raft", self.raft)) if each]
        return f"{self.path.name}:{','.join(parts)}"

    @property
    def log(self) -> Path | None:
        """The Raft log, which may be missing."""
        return self.raft / RAFT_LOG_FILE if self.raft else None

    @property
    def cluster_id(self) -> str:
        """The cluster's id: a server gives its name to the directory of the log."""
        return self.raft.absolute().name if self.raft else ""


def node_of(text: str) -> NodeFiles:
    """Reads `NAME:data=DIR,raft=DIR`: a node whose directories do not lie together. One of them may be left out.

    Raises:
        ValueError: It is written otherwise, or there is no such directory, or not one Raft log in it.
    """
    name, _, rest = text.partition(":")
    given = dict(each.partition("=")[::2] for each in re.split(r",(?=data=|raft=)", rest))
    if not name or "/" in name or not given or not given.keys() <= {"data", "raft"}:
        raise ValueError(f"{text!r}: expected NAME:data=DIR,raft=DIR, or one of the two")
    found = {kind: Path(path) for kind, path in given.items()}
    for kind, path in found.items():
        if not path.is_dir():
            raise ValueError(f"{text!r}: {kind}={path} is no directory")
    if raft := found.get("raft"):
        logs, _stores = _look(raft)
        if len(logs) != 1:
            raise ValueError(f"{text!r}: there are {len(logs)} files {RAFT_LOG_FILE} in {raft}, expected one")
        found["raft"] = logs[0]
    return NodeFiles(Path(name), found.get("raft"), found.get("data"))


def find_node(path: Path) -> NodeFiles | None:
    """Finds the parts of a node at or below a path, at the depths at which servers put them.

    Args:
        path: The directory of a node, its Raft directory at any level, or `raft.log`.

    Returns:
        The node; None if there is no Raft log, or the path is a file store by itself.

    Raises:
        StoreUnreadableError: There are several Raft logs or several stores: these are several nodes.
    """
    if path.name == RAFT_LOG_FILE and path.is_file():
        return NodeFiles(path, path.parent, None)
    if not path.is_dir() or (path / SERVER_FILE).exists() or (path / CLIENTS_FILE).exists():
        return None
    logs, stores = _look(path)
    if not logs:
        return None
    for what, found in (("Raft logs", logs), ("file stores", stores)):
        if len(found) > 1:
            raise StoreUnreadableError(
                f"{path}: holds {len(found)} {what}, expected those of one node: "
                + ", ".join(str(each.relative_to(path)) for each in found[:3]),
                "name the directory of one node",
            )
    return NodeFiles(path, logs[0], stores[0] if stores else None)


def _look(path: Path) -> tuple[list[Path], list[Path]]:
    """Returns the directories with a Raft log, and those with a file store."""
    logs: list[Path] = []
    stores: list[Path] = []
    level = [path]
    seen = 0
    for _ in range(_DEPTH + 1):
        deeper: list[Path] = []
        for directory in level:
            try:
                entries = list(os.scandir(directory))
            except OSError:
                continue
            names = {entry.name for entry in entries}
            if RAFT_LOG_FILE in names:
                logs.append(directory)
                continue
            if SERVER_FILE in names:
                stores.append(directory)
            # The directories of channels are many and hold no log; a log below a store is in one of another kind.
            if SUBS_FILE not in names and not any(SLICE_NAME.fullmatch(name) for name in names):
                deeper += [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and e.name != SNAPSHOTS]
        seen += len(deeper)
        level = sorted(deeper) if seen <= _MOST_DIRECTORIES else []
    return logs, stores


class OpenLog(RaftLog):
    """A Raft log in a mapped file, of which only a part occupies memory while its entries are gone through."""

    def __init__(self, buffer: Buffer) -> None:
        self._window = Window(buffer)
        super().__init__(buffer)

    def entries(self) -> Iterator[Entry | Fault | Flaw]:
        """Iterates over the log in order, as `RaftLog.entries`; views of entries stay valid."""
        return self._letting_go(super().entries())

    def free_entries(self) -> Iterator[Entry]:
        """Iterates over entries in free pages, as `RaftLog.free_entries`."""
        return self._letting_go(super().free_entries())

    def _letting_go(self, found: Iterator[_E]) -> Iterator[_E]:
        read = 0
        for each in found:
            yield each
            if isinstance(each, Entry):
                read += each.size
                if read > _KEPT:
                    self._window.drop()
                    read = 0


@contextmanager
def open_log(path: Path) -> Iterator[OpenLog]:
    """Maps a Raft log read-only for the length of the `with` block.

    Raises:
        StoreUnreadableError: The file cannot be read.
        StoreChangedError: It got shorter while it was read.
    """
    with mapped(path) as buffer:
        log = OpenLog(buffer)
        yield log


def read_operations(path: Path, places: Iterable[tuple[int, int]], cipher: DataCipher | None = None) -> Iterator[Read]:
    """Iterates over operations of a Raft log whose places are known, and the first byte of each: 1 or 2 if encrypted.

    Args:
        path: The log.
        places: Offset and size of the entries.
        cipher: What decrypts them.

    Raises:
        StoreUnreadableError: It cannot be read, or there are no such entries.
    """
    with mapped(path) as buffer:
        window, read = Window(buffer), 0
        for offset, size in places:
            try:
                data = decode_entry(buffer[offset : offset + size], offset).data
                yield decode_operation(data, cipher), data[0] if len(data) else 0
            except EntryError as error:
                raise StoreUnreadableError(
                    f"{path}: is not as it was when it was read before, at offset {offset}: {error.message}",
                    "make sure that no server uses the node, and run again",
                ) from error
            read += size
            if read > _KEPT:
                window.drop()
                read = 0


@dataclass
class Snapshot:
    """A snapshot on disk.

    Attributes:
        path: Its directory.
        temporary: It was being written when the server ended; servers pass it over.
        term: Term of the last entry contained.
        index: Index of the last entry contained.
        servers: The members of the cluster.
        state: Clients and channels with subscriptions; None if nothing could be decoded.
        size: Bytes of `state.bin`.
        errors: What makes a server pass it over, each in words.
    """

    path: Path
    temporary: bool = False
    term: int = 0
    index: int = 0
    servers: tuple[Server, ...] = ()
    state: pb.RaftSnapshot | None = field(default=None, repr=False)
    size: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its directory, which is its id."""
        return self.path.name

    @property
    def usable(self) -> bool:
        """A server restores it."""
        return not self.temporary and not self.errors and self.state is not None


def read_snapshots(raft: Path) -> list[Snapshot]:
    """Reads the snapshots of a Raft directory, the newest first, damaged and temporary ones included.

    Raises:
        StoreUnreadableError: The directory of snapshots is there and cannot be listed.
    """
    directory = raft / SNAPSHOTS
    try:
        entries = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreUnreadableError(f"{directory}: cannot be listed: {error.strerror}") from error
    found = [read_snapshot(directory / name) for name in entries]
    return sorted(found, key=lambda each: (each.term, each.index, each.name), reverse=True)


def read_snapshot(path: Path) -> Snapshot:
    """Reads one snapshot; whatever is wrong with it is in its errors."""
    result = Snapshot(path, path.name.endswith(_TEMPORARY))
    numbers = path.name.removesuffix(_TEMPORARY).split("-")
    with suppress(ValueError):
        result.term, result.index = (int(each) for each in numbers[:2])
    meta = _read_meta(result)
    _read_state(result, meta)
    return result


def _read_meta(result: Snapshot) -> dict[str, Any]:
    try:
        with mapped(result.path / META_FILE) as buffer:
            if len(buffer) > _META_SIZE:
                raise ValueError(f"it has {len(buffer)} bytes")
            meta = json.loads(bytes(buffer))
        if not isinstance(meta, dict):
            raise ValueError("it is no object")
        if meta.get("Version") != 1:
            raise ValueError(f"its version is {meta.get('Version')!r:.40}, expected 1")
        result.term, result.index = (_natural(meta.get(name), name) for name in ("Term", "Index"))
        result.servers = tuple(_servers(meta.get("Configuration")))
    except StoreUnreadableError as error:
        result.errors.append(error.message)
    except (ValueError, RecursionError) as error:
        result.errors.append(f"failed to read metadata: {META_FILE}: {error}")
    else:
        return meta
    return {}


def _natural(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{name} is {value!r:.40}, expected a number")
    return value


def _servers(configuration: Any) -> Iterator[Server]:
    servers = configuration.get("Servers") if isinstance(configuration, dict) else None
    for each in servers if isinstance(servers, list) else ():
        if isinstance(each, dict):
            yield Server(str(each.get("ID", "")), str(each.get("Address", "")), each.get("Suffrage", 0) == 0)


def _read_state(result: Snapshot, meta: dict[str, Any]) -> None:
    try:
        with mapped(result.path / STATE_FILE, sequential=True) as buffer:
            result.size = len(buffer)
            if meta and not result.temporary:
                result.errors += _mismatches(buffer, meta)
            result.state = decode_state(buffer)
    except StoreUnreadableError as error:
        result.errors.append(error.message)
    except ValueError as error:
        result.errors.append(f"error decoding snapshot record: {error}")


def _mismatches(buffer: Buffer, meta: dict[str, Any]) -> Iterator[str]:
    if meta.get("Size") != len(buffer):
        yield f"{STATE_FILE} has {len(buffer)} bytes, expected {meta.get('Size')!r:.40}"
    try:
        stored = base64.b64decode(meta.get("CRC") or b"", validate=True)
    except (binascii.Error, TypeError, ValueError):
        stored = b""
    computed = crc64(buffer)
    if stored != computed:
        yield f"CRC mismatch: stored {stored.hex() or 'nothing'}, computed {computed.hex()}"


def decode_state(buffer: Buffer | bytes) -> pb.RaftSnapshot:
    """Decodes `state.bin`.

    Raises:
        ValueError: It is not whole, or no snapshot.
    """
    if len(buffer) < _LENGTH.size:
        raise ValueError(f"it has {len(buffer)} bytes, expected {_LENGTH.size} at least")
    length = _LENGTH.unpack_from(buffer)[0]
    if length != len(buffer) - _LENGTH.size:
        raise ValueError(f"it says that {length} bytes follow its length, and {len(buffer) - _LENGTH.size} do")
    try:
        return gogo.decode(pb.RaftSnapshot, buffer[_LENGTH.size :])
    except gogo.DecodeError as error:
        raise ValueError(error.message) from error


def crc64(data: Buffer | bytes) -> bytes:
    """Returns the CRC-64 of a snapshot's state, 8 bytes, big-endian: reflected ECMA polynomial, all ones in and out.

    That is the CRC that the xz format has. So xz computes it, in compiled code; what it compresses is thrown away but
    for its end: | check 8 | index | CRC 4 | size of the index 4 | flags 2 | YZ |.
    """
    if not len(data):
        return bytes(8)
    packer = lzma.LZMACompressor(lzma.FORMAT_XZ, lzma.CHECK_CRC64, preset=0)
    end = b""
    for at in range(0, len(data), _CHUNK):
        end = (end + packer.compress(data[at : at + _CHUNK]))[-64:]
    end = (end + packer.flush())[-64:]
    index_size = (int.from_bytes(end[-8:-4], "little") + 1) * 4
    check = len(end) - 12 - index_size - 8
    return end[check : check + 8][::-1]
