"""The files of a datastore directory, identified without opening any of them.

Facts: filestore.md sections 1 and 7.5. Files and directories that the server would ignore or misunderstand are kept
in lists of their own, so that inspection can report them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stantools.errors import NotAStoreError, StoreUnreadableError, UsageError
from stantools.escaping import escape
from stantools.format.crc import Crc
from stantools.store.names import CLIENTS_FILE as CLIENTS_FILE
from stantools.store.names import FT_LOCK_FILE as FT_LOCK_FILE
from stantools.store.names import INDEX_NAME as INDEX_NAME
from stantools.store.names import MANIFEST_FILE as MANIFEST_FILE
from stantools.store.names import RAFT_LOG_FILE as RAFT_LOG_FILE
from stantools.store.names import SERVER_FILE as SERVER_FILE
from stantools.store.names import SLICE_NAME as SLICE_NAME
from stantools.store.names import SUBS_FILE as SUBS_FILE
from stantools.store.names import WITNESS_FILE as WITNESS_FILE
from stantools.store.names import is_system_name
from stantools.store.permissions import check_permitted, refusal

_NUMBER = re.compile(r"[+-]?[0-9]+")
_LEFTOVER = re.compile(r"(?:subs|clients\.dat)[0-9]+")
_INT64_MAX = 2**63 - 1
#: remedy for a path that is no store
NAME_STORE = "name the directory that the server uses: -dir of NATS Streaming, store_dir of JetStream"


@dataclass(frozen=True)
class SliceFiles:
    """The two files of one message slice."""

    number: int  #: the slice number; the server sorts and names by it
    data: Path | None  #: `msgs.N.dat`, or None if only the index exists
    index: Path | None  #: `msgs.N.idx`, or None; as in the server it is looked up under the plain decimal number
    archived: bool  #: these are `.bak` files, which the server never reads
    data_size: int  #: bytes, 0 if missing
    index_size: int  #: bytes, 0 if missing
    #: The server does not take this file for a slice; it may be a slice under another name. Its number is 0.
    stray: bool = False

    @property
    def name(self) -> str:
        """The name of the data file, or of the index if there is no data file."""
        path = self.data or self.index
        assert path is not None
        return path.name


class FileSnapshot(NamedTuple):
    """State of a file at a moment."""

    inode: int
    size: int

    @classmethod
    def of(cls, path: Path) -> FileSnapshot | None:
        """The present state of a file; None if there is no access to it."""
        try:
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_ino, status.st_size)


@dataclass
class ChannelFiles:
    """The files of one channel, as listed."""

    name: str  #: channel name; bytes that are not UTF-8 appear as surrogate escapes (`os.fsencode` restores them)
    path: Path  #: the directory
    slices: list[SliceFiles] = field(default_factory=list)  #: slices the server would read, by number
    archived: list[SliceFiles] = field(default_factory=list)  #: `.bak` slices, by number
    lone_indexes: list[SliceFiles] = field(default_factory=list)  #: indexes without data file
    subs: Path | None = None  #: `subs.dat`, or None
    #: `subs.dat` before anything else of the channel was looked at. What a server has appended since may name messages
    #: that a reader of slices does not see yet.
    subs_seen: FileSnapshot | None = None
    #: `msgs.*.dat` files whose number cannot be read: the server refuses to start.
    misnamed: list[Path] = field(default_factory=list)
    foreign: list[Path] = field(default_factory=list)  #: files of no known kind (the server ignores them)
    #: Raft logs of a clustered node in the directory: then it is not a channel, although the server takes it for one.
    raft_logs: list[Path] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)  #: directories inside the channel (the server ignores them)

    @property
    def all_slices(self) -> list[SliceFiles]:
        """All files for a survey: slices, then indexes without data file, then files that may be slices."""
        return [*self.slices, *self.lone_indexes, *possible_slices([*self.misnamed, *self.foreign])]

    @property
    def raw_name(self) -> bytes:
        """The channel name as the bytes of the records' subjects."""
        return os.fsencode(self.name)


@dataclass
class Datastore:
    """The files of a store, as listed; `open_datastore` makes it."""

    path: Path  #: the root
    server: Path | None = None  #: `server.dat`, or None
    clients: Path | None = None  #: `clients.dat`, or None
    #: all real directories in the root that may be channels, sorted as the server sorts (by bytes)
    channel_names: list[str] = field(default_factory=list)
    #: directories of the operating system, such as lost+found: not channels, although the server takes some for one
    system_names: list[str] = field(default_factory=list)
    #: temporary files of an unfinished compaction (filestore.md section 1.1)
    leftovers: list[Path] = field(default_factory=list)
    symlinks: list[Path] = field(default_factory=list)  #: symbolic links to directories, which the server ignores
    foreign: list[Path] = field(default_factory=list)  #: other plain files in the root
    raft_logs: list[Path] = field(default_factory=list)  #: Raft logs of a clustered node found below the root
    alone: bool = False  #: it is one channel without the files of its store's root
    witness: bool = False  #: the witness file of the truncate option is there (filestore.md section 7.8)
    manifest: Path | None = None  #: the account of the salvage that made this store, if any
    #: The CRC of its records, and whether it is checked (`options.open_store` determines it).
    crc: Crc = field(default_factory=Crc)
    #: The encryption key of its messages; None leaves payloads as they are stored.
    key: bytes | None = field(default=None, repr=False)

    @property
    def server_channel_names(self) -> list[str]:
        """The names of all directories that the server takes for channels, in its order."""
        return sorted([*self.channel_names, *self.system_names], key=os.fsencode)

    def check_permitted(self, names: Iterable[str]) -> None:
        """Refuses to continue if this user may not read a file of the store or of the named channels.

        Raises:
            NotPermittedError: The files, and the users who may read them.
        """
        files = (self.server, self.clients, self.manifest, *self.leftovers, *self.raft_logs)
        check_permitted(self.path, files, [*(self.path / name for name in names), *self.symlinks])

    @property
    def checking(self) -> Datastore:
        """The same store with CRCs always checked: for callers that must recognise good records."""
        return replace(self, crc=self.crc.checking)

    def channel(self, name: str) -> ChannelFiles:
        """Lists one channel directory.

        Raises:
            StoreUnreadableError: There is no such channel or it cannot be listed.
        """
        return list_channel(self.path / name)

    def channels(self, patterns: Sequence[str] = ()) -> Iterator[ChannelFiles]:
        """Lists the channels one by one, so that tens of thousands need no memory.

        Args:
            patterns: NATS subject patterns (`*` one token, `>` the rest); a channel must match one of them. None
                given selects all.
        """
        for name in self.matching(patterns):
            yield self.channel(name)

    def matching(self, patterns: Sequence[str] = ()) -> list[str]:
        """Returns the names of the channels that match any of the patterns (all, if none is given)."""
        return [name for name in self.channel_names if matches_any(name, patterns)]

    def chosen(self, patterns: Sequence[str] = ()) -> list[str]:
        """Returns the result of `matching` for patterns that a user wrote.

        Raises:
            UsageError: Patterns were given, and none matches.
        """
        names = self.matching(patterns)
        if patterns and not names:
            raise UsageError(f"no channel matches {', '.join(map(escape, patterns))}", "see: stantools info STORE")
        return names

    def data_size(self, names: Sequence[str]) -> int:
        """Returns the bytes of the slices of some channels, to measure progress; unreadable ones count 0."""
        total = 0
        for name in names:
            try:
                with os.scandir(self.path / name) as entries:
                    total += sum(entry.stat().st_size for entry in entries if entry.name.endswith(".dat"))
            except OSError:
                continue
        return total


def subject_matches(pattern: str, subject: str) -> bool:
    """Returns whether a subject matches a pattern with NATS wildcards."""
    if "*" not in pattern and ">" not in pattern:
        return pattern == subject
    wanted, have = pattern.split("."), subject.split(".")
    for position, token in enumerate(wanted):
        if token == ">" and position == len(wanted) - 1:
            return len(have) > position
        if position >= len(have) or (token != "*" and token != have[position]):
            return False
    return len(wanted) == len(have)


def matches_any(name: str, patterns: Collection[str]) -> bool:
    """Returns whether a name matches one of some patterns; without patterns, every name does."""
    return not patterns or any(subject_matches(pattern, name) for pattern in patterns)


def open_datastore(path: Path | str, crc: Crc | None = None, key: bytes | None = None) -> Datastore:
    """Lists a datastore directory without opening its files.

    Args:
        path: The directory.
        crc: The CRC of its records, if known; else the default polynomial.
        key: The encryption key of its messages.

    Raises:
        StoreUnreadableError: The path is missing, not a directory, not listable, or nothing in it belongs to a
            store.
    """
    root = Path(path)
    store = Datastore(root, crc=crc or Crc(), key=key)
    try:
        entries = sorted(os.scandir(root), key=lambda entry: os.fsencode(entry.name))
    except PermissionError as error:
        raise refusal(root, [root]) from error
    except (NotADirectoryError, FileNotFoundError) as error:
        raise _no_store(root) from error
    except OSError as error:
        raise StoreUnreadableError(f"{root}: cannot be listed: {error.strerror}", NAME_STORE) from error
    for entry in entries:
        _sort_root_entry(store, entry)
    if not _is_store(store):
        closed = [root / name for name in store.channel_names if not os.access(root / name, os.R_OK | os.X_OK)]
        if closed and len(closed) == len(store.channel_names):
            raise refusal(root, closed)
        raise _no_store(root)
    return store


def _no_store(root: Path) -> NotAStoreError:
    if not os.path.exists(root):  # noqa: PTH110 - never raises
        return NotAStoreError(f"{root}: no such directory", NAME_STORE)
    missing = f"neither {SERVER_FILE} nor {CLIENTS_FILE} nor a channel directory is in it"
    return NotAStoreError(f"{root}: is not a file store: {missing}", NAME_STORE)


def _sort_root_entry(store: Datastore, entry: os.DirEntry[str]) -> None:
    path = store.path / entry.name
    if entry.is_dir(follow_symlinks=False):
        is_channel = not is_system_name(entry.name) or _holds_slices(path)
        (store.channel_names if is_channel else store.system_names).append(entry.name)
    elif entry.is_symlink() and _is_directory(entry):
        store.symlinks.append(path)
    elif entry.name == SERVER_FILE:
        store.server = path
    elif entry.name == CLIENTS_FILE:
        store.clients = path
    elif entry.name == WITNESS_FILE:
        store.witness = True
    elif entry.name == MANIFEST_FILE:
        store.manifest = path
    elif entry.name == RAFT_LOG_FILE:
        store.raft_logs.append(path)
    elif _LEFTOVER.fullmatch(entry.name):
        store.leftovers.append(path)
    elif entry.name != FT_LOCK_FILE:
        store.foreign.append(path)


def _holds_slices(path: Path) -> bool:
    try:
        return any(SLICE_NAME.fullmatch(each.name) for each in path.iterdir())
    except OSError:
        return False


def _is_store(store: Datastore) -> bool:
    if store.server or store.clients:
        return True
    for name in store.channel_names:
        try:
            files = store.channel(name)
        except StoreUnreadableError:
            continue
        if files.subs or files.slices or files.archived:
            return True
    return False


def list_channel(path: Path) -> ChannelFiles:
    """Lists one channel directory.

    Raises:
        StoreUnreadableError: The directory is missing or cannot be listed.
    """
    channel = ChannelFiles(path.name, path, subs_seen=FileSnapshot.of(path / SUBS_FILE))
    data: dict[tuple[bool, int], list[tuple[Path, int]]] = {}
    indexes: dict[tuple[bool, str], tuple[Path, int]] = {}
    try:
        entries = sorted(os.scandir(path), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise StoreUnreadableError(f"{path}: cannot be listed: {error.strerror}") from error
    for entry in entries:
        entry_path = path / entry.name
        if _is_directory(entry):
            channel.directories.append(entry_path)
            channel.raft_logs += raft_logs_in(entry_path)
        elif entry.name == RAFT_LOG_FILE:
            channel.raft_logs.append(entry_path)
        elif entry.name == SUBS_FILE:
            channel.subs = entry_path
        elif match := SLICE_NAME.fullmatch(entry.name):
            number = slice_number(match[1])
            archived = match[2] is not None
            if number is not None:
                data.setdefault((archived, number), []).append((entry_path, size_of(entry)))
            elif archived:
                channel.foreign.append(entry_path)
            else:
                channel.misnamed.append(entry_path)
        elif entry.name == "msgs.dat":
            channel.misnamed.append(entry_path)
        elif match := INDEX_NAME.fullmatch(entry.name):
            indexes[(match[2] is not None, match[1])] = (entry_path, size_of(entry))
        else:
            channel.foreign.append(entry_path)
    for (archived, number), files in sorted(data.items()):
        index, index_size = indexes.pop((archived, str(number)), (None, 0))
        target = channel.archived if archived else channel.slices
        target.extend(SliceFiles(number, file, index, archived, size, index_size) for file, size in files)
    for (archived, text), (index_path, index_size) in sorted(indexes.items()):
        number = slice_number(text)
        if number is None:
            channel.foreign.append(index_path)
        else:
            channel.lone_indexes.append(SliceFiles(number, None, index_path, archived, 0, index_size))
    return channel


def possible_slices(files: Iterable[Path]) -> Iterator[SliceFiles]:
    """Iterates over files that may be slices under a name that no server gives."""
    for path in files:
        try:
            size = path.stat().st_size
        except OSError:
            continue
        yield SliceFiles(0, path, None, False, size, 0, stray=True)


def raft_logs_in(directory: Path) -> list[Path]:
    """Returns the Raft logs in a directory or one level below, where a clustered node puts its own (1.5)."""
    try:
        return [p for p in (directory / RAFT_LOG_FILE, *directory.glob(f"*/{RAFT_LOG_FILE}")) if p.is_file()]
    except OSError:
        return []


@lru_cache(maxsize=4096)
def slice_number(text: str) -> int | None:
    """Parses the part of a slice's name between `msgs.` and `.dat` as the server does: a signed 64-bit decimal."""
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a directory or a link to one; a circular link is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def size_of(file: Path | os.DirEntry[str]) -> int:
    """Returns the bytes of a file; 0 if unknown."""
    try:
        return file.stat().st_size
    except OSError:
        return 0
