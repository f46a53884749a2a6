"""A clustered node's Raft directory (`stantools.store.nodes`): its log and its snapshots.

Facts: clustered-stores.md sections 2 and 5.

    raft.log                                        the log (`stantools.format.raftlog`)
    snapshots/<term>-<index>-<unix ms>/meta.json    description of the snapshot, with the CRC-64 of the state
    snapshots/<term>-<index>-<unix ms>/state.bin    | length u32, little-endian | RaftSnapshot |

Files are only read, and no lock is taken, not even to test whether a server holds the log.
"""

from __future__ import annotations

import base64
import binascii
import json
import lzma
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stantools.errors import StoreUnreadableError
from stantools.format import gogo
from stantools.format.bbolt import Fault
from stantools.format.encryption import DataCipher
from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import (
    EntryError,
    LoggedPublishes,
    RaftEntry,
    RaftFlaw,
    RaftLog,
    RaftServer,
    decode_entry,
    decode_operation,
)
from stantools.store.mapping import MappedWindow, mapped
from stantools.store.nodes import SNAPSHOTS

META_FILE = "meta.json"
STATE_FILE = "state.bin"
_TEMPORARY = ".tmp"
_META_SIZE = 1 << 24
_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 20
#: bytes of entries that are read before earlier pages are released
_RELEASE_BYTES = 16 << 20

#: an operation, and the first byte of its entry's data
Read = tuple[pb.RaftOperation, int]
_SIZED = (RaftEntry, LoggedPublishes)
_E = TypeVar("_E", bound=RaftEntry | LoggedPublishes | Fault | RaftFlaw)


class OpenLog(RaftLog):
    """A Raft log in a mapped file, with only a part in memory during iteration; views of entries stay valid."""

    def __init__(self, buffer: memoryview) -> None:
        self._window = MappedWindow(buffer)
        super().__init__(buffer)

    def entries(self) -> Iterator[RaftEntry | Fault | RaftFlaw]:
        return self._release_pages(super().entries())

    def runs(self, bound: int) -> Iterator[LoggedPublishes | RaftEntry | Fault | RaftFlaw]:
        return self._release_pages(super().runs(bound))

    def free_entries(self) -> Iterator[RaftEntry]:
        return self._release_pages(super().free_entries())

    def _release_pages(self, found: Iterator[_E]) -> Iterator[_E]:
        read = 0
        for each in found:
            yield each
            if isinstance(each, _SIZED):
                read += each.size
                if read > _RELEASE_BYTES:
                    self._window.drop()
                    read = 0


@contextmanager
def open_log(path: Path) -> Iterator[OpenLog]:
    """Maps a Raft log read-only for the length of the `with` block."""
    with mapped(path) as buffer:
        log = OpenLog(buffer)
        yield log


def read_operations(path: Path, places: Iterable[tuple[int, int]], cipher: DataCipher | None = None) -> Iterator[Read]:
    """Iterates over operations at known places (offset and size), each with its first byte: 1 or 2 if encrypted."""
    with mapped(path) as buffer:
        window, read = MappedWindow(buffer), 0
        for offset, size in places:
            try:
                data = decode_entry(buffer[offset : offset + size], offset).data
                yield decode_operation(data, cipher), data[0] if len(data) else 0
            except EntryError as error:
                raise StoreUnreadableError(
                    f"{path}: has changed since it was read before, at offset {offset}: {error.message}",
                    "make sure that no server uses the node, and run again",
                ) from error
            read += size
            if read > _RELEASE_BYTES:
                window.drop()
                read = 0


@dataclass
class Snapshot:
    path: Path
    temporary: bool = False  #: it was being written when the server ended; servers skip it
    term: int = 0  #: term of the last entry in it
    index: int = 0  #: index of the last entry in it
    servers: tuple[RaftServer, ...] = ()
    #: clients, and channels with subscriptions; None if it cannot be decoded
    state: pb.RaftSnapshot | None = field(default=None, repr=False)
    size: int = 0  #: bytes of `state.bin`
    errors: list[str] = field(default_factory=list)  #: reasons of a server to skip it, in words

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def usable(self) -> bool:
        return not self.temporary and not self.errors and self.state is not None


def read_snapshots(raft: Path) -> list[Snapshot]:
    """Reads the snapshots of a Raft directory, the newest first, damaged and temporary ones included."""
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
            raise ValueError("it is not an object")
        if meta.get("Version") != 1:
            raise ValueError(f"its version is {meta.get('Version')!r:.40}, expected 1")
        result.term, result.index = (_uint64(meta.get(name), name) for name in ("Term", "Index"))
        configuration = meta.get("Configuration")
        servers = configuration.get("Servers") if isinstance(configuration, dict) else None
        result.servers = tuple(
            RaftServer(str(each.get("ID", "")), str(each.get("Address", "")), each.get("Suffrage", 0) == 0)
            for each in (servers if isinstance(servers, list) else ())
            if isinstance(each, dict)
        )
    except StoreUnreadableError as error:
        result.errors.append(error.message)
    except (ValueError, RecursionError) as error:
        result.errors.append(f"failed to read metadata: {META_FILE}: {error}")
    else:
        return meta
    return {}


def _uint64(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{name} is {value!r:.40}, expected a number")
    return value


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


def _mismatches(buffer: memoryview, meta: dict[str, Any]) -> Iterator[str]:
    if meta.get("Size") != len(buffer):
        yield f"{STATE_FILE} has {len(buffer)} bytes, expected {meta.get('Size')!r:.40}"
    try:
        stored = base64.b64decode(meta.get("CRC") or b"", validate=True)
    except (binascii.Error, TypeError, ValueError):
        stored = b""
    computed = crc64(buffer)
    if stored != computed:
        yield f"CRC mismatch: stored {stored.hex() or 'nothing'}, computed {computed.hex()}"


def decode_state(buffer: memoryview | bytes) -> pb.RaftSnapshot:
    """Decodes `state.bin`; ValueError if it is incomplete or not a snapshot."""
    if len(buffer) < _LENGTH.size:
        raise ValueError(f"it has {len(buffer)} bytes, expected {_LENGTH.size} at least")
    length = _LENGTH.unpack_from(buffer)[0]
    if length != len(buffer) - _LENGTH.size:
        raise ValueError(f"its length field says {length} bytes, and {len(buffer) - _LENGTH.size} follow")
    try:
        return gogo.decode(pb.RaftSnapshot, buffer[_LENGTH.size :])
    except gogo.DecodeError as error:
        raise ValueError(error.message) from error


def crc64(data: memoryview | bytes) -> bytes:
    """Returns the CRC-64 of a snapshot's state, 8 bytes, big-endian: reflected ECMA polynomial, all ones in and out.

    The xz format uses the same CRC, so xz computes it, in compiled code; of the compressed data only the end is
    kept: | check 8 | index | CRC 4 | size of the index 4 | flags 2 | YZ |.
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
