"""Stores in archives: the members that belong to a store are copied into a private directory, and opened there.

The directory is under TMPDIR, belongs to this user alone, and is removed at the end of the program, also after errors
and signals. No link, device or path out of the archive is ever made or followed in it.
"""

from __future__ import annotations

import atexit
import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from stantools import escaping
from stantools.errors import NotAStoreError, RefusedError, StoreUnreadableError, StoreUnwritableError
from stantools.notation import format_size, some_of
from stantools.progress import Progress
from stantools.sources.archive import Archive, BombError, Member
from stantools.sources.source import ArchiveFormat, RecognisedPath, Source, SourceRequest
from stantools.store.directory import subject_matches
from stantools.store.names import (
    CLIENTS_FILE,
    INDEX_NAME,
    MANIFEST_FILE,
    RAFT_LOG_FILE,
    SERVER_FILE,
    SLICE_NAME,
    SUBS_FILE,
    is_system_name,
)

#: bytes of the file system that stay free
_RESERVE: Final = 64 << 20
_ROOT_FILES: Final = (SERVER_FILE, CLIENTS_FILE, MANIFEST_FILE)
_NAMED: Final = 3
_ELSEWHERE: Final = "set TMPDIR to a directory with more space"
#: private directories of this process
_private: list[Path] = []


@dataclass(frozen=True)
class StoreMembers:
    """The members of an archive that belong to a store, or to the stores and Raft logs of nodes."""

    stores: tuple[str, ...]  #: roots of stores; "" is that of the archive
    logs: tuple[str, ...]  #: directories with a Raft log
    opened: str  #: the directory to open
    channels: Sequence[str]  #: patterns of the channels to read; () for all

    def has(self, name: str) -> bool:
        """Returns whether a member is needed."""
        for root in self.stores:
            if _within(name, root):
                first, _, rest = name[len(root) :].lstrip("/").partition("/")
                return not rest or not self.channels or is_system_name(first) or self._is_chosen(first)
        return any(_within(name, root) for root in self.logs)

    def channel_of(self, name: str) -> str:
        """Returns the directory of the channel that a member belongs to; "" if it belongs to none."""
        for root in self.stores:
            if _within(name, root):
                first, _, rest = name[len(root) :].lstrip("/").partition("/")
                return "/".join(filter(None, (root, first))) if rest else ""
        return ""

    def _is_chosen(self, channel: str) -> bool:
        return any(subject_matches(pattern, channel) for pattern in self.channels)


def _within(name: str, root: str) -> bool:
    return not root or name == root or name.startswith(f"{root}/")


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def find_stores(members: Sequence[Member], inner: str, channels: Sequence[str]) -> StoreMembers | None:
    """Finds what is at or below a path in an archive, as `PathFacts.below` does in directories; None for nothing.

    The path may also be in a store: then it is one channel of it.
    """
    files = [each.name for each in members if each.kind == "file" and each.name]
    rooted = {_parent(name) for name in files if PurePosixPath(name).name in _ROOT_FILES}
    stores = {each for each in rooted if not any(each != other and _within(each, other) for other in rooted)}
    folders = {_parent(name) for name in files if _is_of_channel(PurePosixPath(name).name)}
    alone = {each for each in folders if not any(_within(each, root) for root in stores)}
    for each in sorted(alone, key=lambda name: name.count("/")):
        if not any(_within(each, root) for root in stores if root != each):
            stores.add(_parent(each))
    logs = {_parent(name) for name in files if PurePosixPath(name).name == RAFT_LOG_FILE}
    logs = {each for each in logs if not any(_within(each, root) for root in rooted)}
    if around := [root for root in stores if inner != root and _within(inner, root)]:
        channel = inner[len(around[0]) :].lstrip("/").partition("/")[0]
        return StoreMembers(tuple(around), (), inner, (channel,)) if inner in folders else None
    parts = sorted(each for each in (*stores, *logs) if _within(each, inner))
    if not parts:
        return None
    stores, logs = ({each for each in group if _within(each, inner)} for group in (stores, logs))
    opened = parts[0] if len(parts) == 1 else _common(parts)
    if stores == {opened} and opened not in rooted and len(alone) == 1:
        (opened,) = alone  # an archive of one channel
    return StoreMembers(tuple(sorted(stores)), tuple(sorted(logs)), opened, channels)


def _is_of_channel(name: str) -> bool:
    return name == SUBS_FILE or bool(SLICE_NAME.fullmatch(name) or INDEX_NAME.fullmatch(name))


def _common(names: Sequence[str]) -> str:
    common = names[0].split("/") if names[0] else []
    for name in names[1:]:
        parts = name.split("/")
        while common != parts[: len(common)]:
            common.pop()
    return "/".join(common)


@dataclass
class _Unpacking:
    """One archive on its way into a private directory."""

    archive: Archive
    format: ArchiveFormat
    found: RecognisedPath
    request: SourceRequest
    notes: list[str] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)

    def run(self) -> Source:
        try:
            members = self.archive.members()
        except BombError as bomb:
            raise self._bomb() from bomb
        chosen = find_stores(members, self.found.inner, self.request.channels)
        if chosen is None:
            raise self._no_store(members)
        wanted = self._wanted(members, chosen)
        if len(chosen.stores) > 1 and not chosen.logs:
            raise self._several(chosen.stores)
        directory = self._directory(sum(members[number].size for number in wanted))
        try:
            return self._unpack(directory, members, chosen, wanted)
        except BaseException as problem:
            remove(directory)
            if isinstance(problem, BombError):
                raise self._bomb() from problem
            raise

    def _unpack(self, directory: Path, members: Sequence[Member], chosen: StoreMembers, wanted: set[int]) -> Source:
        path = self.archive.path
        root = directory / _stem(path)
        root.mkdir()
        shown = path / self.found.inner if self.found.inner else path
        escaping.show_as(root, str(path), chosen.opened, str(shown))
        for name in sorted({each.name for each in members if each.kind == "directory" and chosen.has(each.name)}):
            self._make(root / name)
        for name in {folder for each in members if each.name and (folder := chosen.channel_of(each.name))}:
            self._make(root / name)
        self._copy(root, wanted)
        if self.archive.cut:
            self.flaws.append(f"the archive is cut or damaged: {self.archive.cut}; what follows is unknown")
        if self.archive.damaged:
            self.flaws.append(f"damaged in the archive: {some_of(self.archive.damaged, _NAMED)}")
        if chosen.opened:
            self.notes.append(f"{path}: reading {chosen.opened} in it")
        return self._open(root / chosen.opened, shown, directory)

    def _open(self, place: Path, shown: Path, directory: Path) -> Source:
        assert self.request.open
        try:
            source = self.request.open(place, self.request)
        except NotAStoreError as problem:
            raise NotAStoreError(problem.message, self.found.remedy) from problem
        source.path = shown
        source.unpack = self.format.unpack
        source.notes[:0], source.flaws[:0] = self.notes, self.flaws
        source.release = lambda: remove(directory)
        return source

    def _wanted(self, members: Sequence[Member], chosen: StoreMembers) -> set[int]:
        """Returns the numbers of the members to copy; of equal names the last, as when an archive is unpacked."""
        last = {each.name: number for number, each in enumerate(members) if each.kind == "file" and each.name}
        wanted = {number for name, number in last.items() if chosen.has(name)}
        counts = Counter(each.name for each in members if each.kind == "file" and each.name)
        twice = [name for name, count in counts.items() if count > 1 and chosen.has(name)]
        links = [each.written for each in members if each.kind == "link" and (not each.name or chosen.has(each.name))]
        outside = [each.written for each in members if not each.name and each.kind == "file"]
        special = [each.written for each in members if each.kind == "special"]
        for names, text in (
            (twice, "in it more than once, the last one counts"),
            (special, "no files, and are left out"),
            (outside, "outside of it, and are left out"),
        ):
            if names:
                self.notes.append(f"{self.archive.path}: members that are {text}: {some_of(names, _NAMED)}")
        if links:
            self.flaws.append(f"links in archives are not followed: {some_of(links, _NAMED)}")
        if locked := [members[number].name for number in wanted if members[number].encrypted]:
            raise StoreUnreadableError(
                f"{self.archive.path}: is encrypted: {some_of(sorted(locked), _NAMED)}",
                f"unpack it with its password: `{self.format.check}`",
            )
        return wanted

    def _directory(self, size: int) -> Path:
        """Makes a private directory with enough space for the members."""
        if size > self.archive.limit:
            raise self._bomb()
        try:
            place = Path(tempfile.gettempdir())
            free = shutil.disk_usage(place).free - _RESERVE
            if size > free:
                raise StoreUnwritableError(
                    f"{self.archive.path}: its store needs {format_size(size)}, but {place} has "
                    f"{format_size(max(free, 0))} free",
                    _ELSEWHERE,
                )
            directory = Path(tempfile.mkdtemp(prefix="stantools-", dir=place))
        except OSError as error:
            raise StoreUnwritableError(
                f"{self.archive.path}: no directory for its content: {error.strerror}", _ELSEWHERE
            ) from error
        _private.append(directory)
        return directory

    def _make(self, path: Path) -> bool:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._cannot(path, error)
            return False
        return True

    def _cannot(self, path: Path, error: OSError) -> None:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise StoreUnwritableError(f"{path}: {error.strerror}", _ELSEWHERE) from error
        self.flaws.append(f"{path.name}: cannot be copied: {error.strerror}")

    def _copy(self, root: Path, wanted: set[int]) -> None:
        for member, parts in self.archive.contents(lambda number, _: number in wanted):
            path = root / member.name
            if not self._make(path.parent):
                continue
            try:
                done = _write(path, parts, self.request.progress)
            except OSError as error:
                self._cannot(path, error)
                continue
            if done < member.size and not any(each.startswith("cut short") for each in self.flaws):
                self.flaws.append(f"cut short: {member.name}, {done} of {member.size} bytes")

    def _bomb(self) -> RefusedError:
        limit = format_size(self.archive.limit)
        return RefusedError(
            f"{self.archive.path}: becomes larger than {limit}, which no store of its size does: it is not read",
            self.found.remedy,
        )

    def _several(self, stores: Sequence[str]) -> NotAStoreError:
        listed = some_of([each or "." for each in stores], 5)
        one = escaping.shell_word(str(self.archive.path / stores[0]))
        return NotAStoreError(
            f"{self.archive.path}: {self.found.sentence} with several file stores ({len(stores)}: {listed})",
            f"name one: `stantools verify {one}`; or {self.found.remedy}",
        )

    def _no_store(self, members: Sequence[Member]) -> NotAStoreError:
        path, inner = self.archive.path, self.found.inner
        text = f"{path}: {self.found.sentence} without a file store"
        if inner:
            text = f"{path / inner}: no such part of the archive, or no store is in it"
        elif any(each.name.endswith(".blk") for each in members):
            text += ": it holds a JetStream store directory"
        if self.archive.cut:
            text += f"; the archive is cut or damaged: {self.archive.cut}"
        return NotAStoreError(text, self.found.remedy)


def _write(path: Path, parts: Iterator[bytes], progress: Progress | None) -> int:
    """Writes a content, with holes for zeros; returns its size."""
    done = 0
    with path.open("wb") as file:
        for part in parts:
            if part.strip(b"\0"):
                file.seek(done)
                file.write(part)
            done += len(part)
            if progress:
                progress(len(part))
        file.truncate(done)
    return done


def _stem(path: Path) -> str:
    """Returns a name for the archive's content: that of the archive without its suffixes."""
    return path.name.partition(".")[0] or "archive"


def open_archive(found: RecognisedPath, request: SourceRequest) -> Source:
    assert found.archive
    return _Unpacking(Archive(found.path, found.archive.name), found.archive, found, request).run()


def remove(directory: Path) -> None:
    """Removes a private directory."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory in _private:
        _private.remove(directory)


def remove_all() -> None:
    """Removes all private directories of this process."""
    for each in list(_private):
        remove(each)


atexit.register(remove_all)
