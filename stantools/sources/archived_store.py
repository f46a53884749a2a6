"""Stores in archives: the members that belong to a store are copied into a private directory, and opened there.

The directory is under TMPDIR, belongs to this user alone, and is removed at the end of the program, also after errors
and signals. No link, device or path out of the archive is ever made or followed in it.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename, commonpath, dirname, join
from typing import Final

from stantools import escaping
from stantools.errors import NotAStoreError, RefusedError, StoreUnreadableError, StoreUnwritableError
from stantools.notation import format_size, some_of
from stantools.progress import Progress
from stantools.sources import jetstream
from stantools.sources.archive import Archive, BombError, Member
from stantools.sources.private_copy import private_directory, remove, renamed_stream
from stantools.sources.source import ArchiveFormat, RecognisedPath, Source, SourceRequest
from stantools.sources.store_search import DirectoryNames, find_stores, holds_channel
from stantools.store.directory import matches_any, subject_matches
from stantools.store.names import CLIENTS_FILE, RAFT_LOG_FILE, SERVER_FILE, SUBS_FILE, is_system_name

#: bytes of the file system that stay free
_RESERVE: Final = 64 << 20
_NAMED: Final = 3
_ELSEWHERE: Final = "set TMPDIR to a directory with more space"


@dataclass(frozen=True)
class StoreMembers:
    """The members of an archive that belong to a store, or to the directories of nodes or of JetStream."""

    stores: frozenset[str]  #: roots of stores; "" is that of the archive
    whole: frozenset[str]  #: directories that are copied whole: with a Raft log, or of JetStream
    opened: str  #: the directory to open
    channels: Sequence[str] = ()  #: patterns of the channels to read; () for all
    unread: frozenset[str] = frozenset()  #: directories of streams that are not read

    def has(self, name: str) -> bool:
        """Returns whether a member is needed."""
        if (root := self._store(name)) is None:
            above = {name, *_parents(name)}
            return not above.isdisjoint(self.whole) and above.isdisjoint(self.unread)
        first, _, rest = _below(name, root).partition("/")
        return not rest or matches_any(first, self.channels) or is_system_name(first)

    def channel_of(self, name: str) -> str:
        """Returns the directory of the channel that a member belongs to; "" if it belongs to none."""
        if (root := self._store(name)) is None:
            return ""
        channel = dirname(_below(name, root)).partition("/")[0]
        return join(root, channel) if channel else ""

    def _store(self, name: str) -> str | None:
        return next((each for each in (name, *_parents(name)) if each in self.stores), None) if self.stores else None


class SeveralArchivedStores(Exception):  # noqa: N818
    def __init__(self, stores: Sequence[str]) -> None:
        super().__init__()
        self.stores = stores


def _parents(name: str) -> Iterator[str]:
    """Yields the directories around a member, the nearest first; the last one is "", that of the archive."""
    while name:
        name = dirname(name)
        yield name


def _within(name: str, root: str) -> bool:
    return not root or name == root or name.startswith(f"{root}/")


def _below(name: str, root: str) -> str:
    return name[len(root) :].lstrip("/")


def store_members(members: Sequence[Member], inner: str, channels: Sequence[str]) -> StoreMembers | None:
    """Finds the stores, Raft logs and JetStream directories at or below a path in an archive; None if there are none.

    The path may also be in a store: then it is one channel of it, or a part of a JetStream directory.

    Raises:
        SeveralArchivedStores: There are several that are no nodes of a cluster.
    """
    listings: defaultdict[str, DirectoryNames] = defaultdict(lambda: DirectoryNames(set(), []))
    directories = {""}
    for each in members:
        if each.kind == "file" and each.name:
            directory = dirname(each.name)
            listings[directory].names.add(basename(each.name))
            while directory not in directories:
                directories.add(directory)
                directory = dirname(directory)
    for directory in sorted(directories - {""}):
        listings[dirname(directory)].folders.append(basename(directory))

    def list_all(paths: list[str]) -> Iterator[DirectoryNames]:
        return map(listings.__getitem__, paths)

    everywhere = find_stores("", list_all)
    streams = jetstream.listed_streams({each: listings[each] for each in sorted(directories)})
    if root := [each for each in everywhere.stores if inner != each and _within(inner, each)]:
        channel = _below(inner, root[0]).partition("/")[0]
        return (
            StoreMembers(frozenset(root), frozenset(), inner, (channel,))
            if holds_channel(listings[inner].names)
            else None
        )
    found = find_stores(inner, list_all)
    stores = found.nearest
    parts = stores + found.logs
    roots = [each for each in streams.roots if _within(each, inner)]
    blocks = [each for each in streams.blocks if _within(each, inner)]
    if not (roots or parts) and len(blocks) == 1:
        roots = blocks
    if (len(stores) > 1 and not found.logs) or (roots and parts) or (len(roots) > 1 and not streams.nodes >= {*roots}):
        raise SeveralArchivedStores(sorted({*parts, *roots}))
    if roots or any(_within(inner, each) for each in streams.roots):
        return _stream_members(streams, roots, inner, channels)
    if not parts:
        return None
    opened = commonpath(parts)
    if stores == [opened] and len(found.channels) == 1:
        (opened,) = found.channels  # an archive of one channel
    return StoreMembers(frozenset(stores), frozenset(found.logs), opened, channels)


def _stream_members(
    streams: jetstream.ListedStreams, roots: Sequence[str], inner: str, channels: Sequence[str]
) -> StoreMembers | None:
    """Chooses the members of JetStream directories at or below a path, or of the one around the path."""
    if not roots:
        stream = next((each for each in (inner, *_parents(inner)) if each in streams.streams), inner)
        return StoreMembers(frozenset(), frozenset({stream}), inner)
    opened = commonpath(roots)
    while basename(opened) == jetstream.FOLDER and opened != inner:
        opened = dirname(opened)  # a directory that was copied a level too deep is seen from above
    below = {each: basename(each) for each in streams.streams if any(_within(each, root) for root in roots)}
    chosen = {each for each, name in below.items() if any(subject_matches(pattern, name) for pattern in channels)}
    unread = below.keys() - chosen if chosen else set()
    return StoreMembers(frozenset(), frozenset(roots), opened, unread=frozenset(unread))


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
        members = self._members()
        try:
            chosen = store_members(members, self.found.inner, self.request.channels)
        except SeveralArchivedStores as problem:
            raise self._several(problem.stores) from None
        if chosen is None:
            raise self._no_store(members)
        wanted = self._wanted(members, chosen.has)
        folders = {each.name for each in members if each.kind == "directory" and chosen.has(each.name)}
        folders |= {chosen.channel_of(each.name) for each in members}
        if chosen.opened:
            self.notes.append(f"{self.archive.path}: reading {chosen.opened} in it")
        with self._unpack(members, wanted, folders, chosen.opened) as root:
            return self._open(root / chosen.opened, root)

    def run_file(self) -> Source:
        """Copies a single file, and the files beside it that tell whether its directory is a channel of a store."""
        members, inner = self._members(), self.found.inner
        if not any(each.name == inner and each.kind == "file" for each in members):
            raise self._no_file(members)
        channel = dirname(inner)
        files = {inner, join(channel, SUBS_FILE), join(dirname(channel), SERVER_FILE)}
        if inner.endswith(".blk"):
            stream = dirname(channel)
            files |= {f"{inner.removesuffix('.blk')}.key", *(join(stream, each) for each in jetstream.META_FILES)}
        with self._unpack(members, self._wanted(members, files.__contains__), set(), "") as root:
            return self._source(Source(self.found, self.request.read_options, root / inner), root)

    def _members(self) -> list[Member]:
        try:
            return self.archive.members()
        except BombError as bomb:
            raise self._bomb() from bomb

    @property
    def _shown(self) -> Path:
        return self.archive.path / self.found.inner

    @contextmanager
    def _unpack(self, members: Sequence[Member], wanted: set[int], folders: set[str], opened: str) -> Iterator[Path]:
        """Copies members into a private directory, which is removed again if the rest fails."""
        directory = self._directory(sum(members[number].size for number in wanted))
        try:
            root = directory / (self.archive.path.name.partition(".")[0] or "archive")
            root.mkdir()
            escaping.show_as(root, str(self.archive.path), opened, str(self._shown))
            for name in sorted(folders):
                self._make(root / name)
            self._copy(root, wanted)
            if self.archive.cut:
                self.flaws.append(f"the archive is cut or damaged: {self.archive.cut}; what follows is unknown")
            if self.archive.damaged:
                self.flaws.append(f"damaged in the archive: {some_of(self.archive.damaged, _NAMED)}")
            yield root
        except BaseException as problem:
            remove(directory)
            if isinstance(problem, BombError):
                raise self._bomb() from problem
            raise

    def _open(self, place: Path, root: Path) -> Source:
        assert self.request.open
        if place == root and (place := renamed_stream(root)) != root:
            escaping.show_as(place, str(self.archive.path), "", str(self._shown))
        try:
            source = self.request.open(place, self.request)
        except NotAStoreError as problem:
            raise NotAStoreError(problem.message, self.found.remedy) from problem
        source.path, source.copied = self._shown, source.place
        return self._source(source, root)

    def _source(self, source: Source, root: Path) -> Source:
        source.unpack = self.format.unpack
        source.notes[:0], source.flaws[:0] = self.notes, self.flaws
        inner = source.release

        def release() -> None:
            inner()
            remove(root.parent)

        source.release = release
        return source

    def _wanted(self, members: Sequence[Member], has: Callable[[str], bool]) -> set[int]:
        """Returns the numbers of the members to copy; of equal names the last, as when an archive is unpacked."""
        last = {each.name: number for number, each in enumerate(members) if each.kind == "file" and each.name}
        wanted = {number for name, number in last.items() if has(name)}
        counts = Counter(each.name for each in members if each.kind == "file" and each.name)
        twice = [name for name, count in counts.items() if count > 1 and has(name)]
        links = [each.written for each in members if each.kind == "link" and (not each.name or has(each.name))]
        outside = [each.written for each in members if not each.name and each.kind == "file"]
        special = [each.written for each in members if each.kind == "special"]
        for names, text in (
            (twice, "in it more than once, the last one counts"),
            (special, "no files, and are left out"),
            (outside, "outside of it or named too long, and are left out"),
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
            return private_directory(place)
        except OSError as error:
            raise StoreUnwritableError(
                f"{self.archive.path}: no directory for its content: {error.strerror}", _ELSEWHERE
            ) from error

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
            f"{self.archive.path}: {self.found.sentence} with several stores ({len(stores)}: {listed})",
            f"name one: `stantools verify {one}`; or {self.found.remedy}",
        )

    def _no_store(self, members: Sequence[Member]) -> NotAStoreError:
        path, inner = self.archive.path, self.found.inner
        text, remedy = f"{path}: {self.found.sentence} without a store", self.found.remedy
        if any(each.name == inner and each.kind == "file" for each in members):
            text = f"{self._shown}: is a single file in an archive"
            remedy = (
                f"`stantools records {escaping.shell_word(str(self._shown))}`, if it is one of a store; or {remedy}"
            )
        elif inner:
            text = f"{self._shown}: no such part of the archive, or no store is in it"
        return NotAStoreError(text + self._cut(), remedy)

    def _no_file(self, members: Sequence[Member]) -> StoreUnreadableError:
        files = [each.name for each in members if each.kind == "file" and _is_of_store(basename(each.name))]
        inside = sorted(each for each in files if _within(each, self.found.inner))
        what = "no such file in the archive" if self.found.inner else self.found.sentence
        remedy = "no file of a store is in it"
        if shown := inside or files:
            word = escaping.shell_word(str(self.archive.path / shown[0]))
            remedy = f"name a file in it: `stantools records {word}`; it has {some_of(shown, _NAMED)}"
        return StoreUnreadableError(f"{self._shown}: {what}{self._cut()}", remedy)

    def _cut(self) -> str:
        return f"; the archive is cut or damaged: {self.archive.cut}" if self.archive.cut else ""


def _is_of_store(name: str) -> bool:
    return name in (SERVER_FILE, CLIENTS_FILE, RAFT_LOG_FILE) or holds_channel({name})


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


def open_archive(found: RecognisedPath, request: SourceRequest) -> Source:
    return _unpacking(found, request).run()


def open_archived_file(found: RecognisedPath, request: SourceRequest) -> Source:
    """Copies a single file of an archive; the path of the result is that of the copy."""
    return _unpacking(found, request).run_file()


def _unpacking(found: RecognisedPath, request: SourceRequest) -> _Unpacking:
    assert found.archive
    return _Unpacking(Archive(found.path, found.archive.name), found.archive, found, request)
