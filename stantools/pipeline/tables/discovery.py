"""Discovery: the stores and slices that paths lead to (stores, directories of stores, slices, glob patterns, URLs).

What a directory is, `sources.store_search` says; a channel without a store around it, or with archived slices only, is
slices without a store. A slice is this slice only.

The channel of slices without a store is the subject of their first good record, else the name of the directory. A
directory that is reached twice, also through a link, counts once.

Names and sizes come from listings; file heads are read only for slices without a store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from stantools.errors import RefusedError, StoreUnreadableError
from stantools.format.crc import IEEE, Crc
from stantools.inspection.records import FileKind, kind_of
from stantools.pipeline.tables.listing import DirectoryEntry, Listing, LocalPlace, expand_braces, is_pattern, listed
from stantools.pipeline.tables.model import FailedRead, Mode, SliceRef, StoreRef, TableName
from stantools.pipeline.tables.remote import is_remote, local_path, remote_place, sampled
from stantools.pipeline.tables.table_options import TableOptions
from stantools.sources import files
from stantools.sources.directories import CHANNEL, STORE
from stantools.sources.door import recognise
from stantools.sources.source import Capability, RecognisedPath, Source
from stantools.sources.sql import DATABASE, file_of
from stantools.sources.store_search import DirectoryNames, find_stores
from stantools.sqlstore.address import is_address, without_password
from stantools.store.directory import (
    INDEX_NAME,
    SLICE_NAME,
    matches_any,
    open_datastore,
    slice_number,
)
from stantools.store.names import is_system_name
from stantools.store.permissions import check_permitted
from stantools.store.read_options import ReadOptions, resolve_crc, resolve_file_crc
from stantools.store.resync import DamagedRange
from stantools.store.serverinfo import refuse_0_1
from stantools.store.slice_reader import SliceFile

#: kinds of files that this module has words for
_FILES = (files.FILE, files.FILE_OF_STORE)


@dataclass(frozen=True)
class ListedChannel:
    store: StoreRef
    name: str
    directory: str  #: path or URL
    entries: tuple[DirectoryEntry, ...]  #: files in it; for slices without a store, these and their indexes

    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


@dataclass
class FoundStore:
    """A store, or the slices of one directory outside of any store."""

    ref: StoreRef  #: path and polynomial
    place: Listing
    entries: tuple[DirectoryEntry, ...] = ()  #: entries of its root
    #: Channels in the server's order; empty for slices without a store.
    channel_names: list[str] = field(default_factory=list)
    loose: list[ListedChannel] | None = None  #: slices without a store by channel; None for a store
    #: Include `.bak` slices although not requested: there are no others, or a path names them.
    archived: bool = False
    source: Source | None = None  #: the same, if a path of the user was opened as a source

    @property
    def shown(self) -> str:
        """Its path or URL in the output."""
        return self.source.shown if self.source else self.ref.root

    @property
    def streams(self) -> Source | None:
        """The source, if it is a JetStream directory."""
        return self.source if self.source and self.source.holds_streams else None

    @property
    def reference(self) -> StoreRef:
        """The directory of a file store; of a SQL store that of a private copy."""
        if self.source and self.source.sql:
            return StoreRef(str(self.source.store().path), self.ref.polynomial)
        return self.ref

    @property
    def special(self) -> Source | None:
        """The source, if it is anything but the directory of a file store: then a verb reads it whole, as if alone."""
        if not (source := self.source):
            return None
        other = source.nodes or source.flaws or source.holds_streams or source.sql or source.found.kind is CHANNEL
        return source if other else None

    @property
    def name(self) -> str:
        """The name of its directory, or of its archive, dump or database without endings."""
        file, schema = file_of(Path(self.shown))
        name = file.name
        if self.source and (self.source.archived or self.source.sql):
            name = "-".join(filter(None, (name.partition(".")[0] or name, schema)))
        return name

    def opened(self) -> Source:
        """Opens a store of this machine."""
        if self.source:
            return self.source
        path = Path(self.ref.root)
        store = open_datastore(path, Crc(self.ref.polynomial))
        return Source(RecognisedPath(STORE, path, stores=(path,)), ReadOptions(self.ref.polynomial), path, store)

    def opened_in_task(self, options: TableOptions) -> Source:
        """The same, with the key, which a task looks up where it runs."""
        source = self.opened()
        return replace(source, read_options=replace(source.read_options, encryption_key=options.key.key()))

    def channels(self, patterns: tuple[str, ...] = ()) -> Iterator[ListedChannel | FailedRead]:
        """Yields its channels that match any of the patterns (all without patterns), or the failure to list one."""
        if self.loose is not None:
            yield from (each for each in self.loose if matches_any(each.name, patterns))
            return
        yield from listed(self._channel, [name for name in self.channel_names if matches_any(name, patterns)])

    def data_size(self, patterns: tuple[str, ...] = ()) -> int:
        """Returns the bytes of its streams, or of its channels as far as they can be listed."""
        if self.streams:
            return self.streams.data_size()
        return sum(each.size() for each in self.channels(patterns) if isinstance(each, ListedChannel))

    def _channel(self, name: str) -> ListedChannel | FailedRead:
        directory = self.place.join(self.ref.root, name)
        try:
            return ListedChannel(self.ref, name, directory, tuple(self.place.entries(directory)))
        except StoreUnreadableError as error:
            return FailedRead(self.ref.root, error.message, error.remedy, name)

    def slices(self, channel: ListedChannel, *, archived: bool = False) -> list[SliceRef]:
        """Returns the slices of a channel by number, an archived one before a live one of the same number."""
        data: list[tuple[int, bool, DirectoryEntry]] = []
        indexes: dict[tuple[str, bool], DirectoryEntry] = {}
        for entry in channel.entries:
            if match := SLICE_NAME.fullmatch(
                entry.name
            ):  # a directory of this name as well, which the reader will refuse
                number = slice_number(match[1])
                if number is not None and (match[2] is None or archived or self.archived):
                    data.append((number, match[2] is None, entry))
            elif not entry.directory and (match := INDEX_NAME.fullmatch(entry.name)):
                indexes[match[1], match[2] is None] = entry
        data.sort(key=lambda each: each[:2])
        join = self.place.join
        refs = []
        for number, live, entry in data:
            index = indexes.get((str(number), live))
            refs.append(
                SliceRef(
                    self.ref,
                    channel.name,
                    number,
                    not live,
                    join(channel.directory, entry.name),
                    join(channel.directory, index.name) if index else None,
                    entry.size,
                    index.size if index else 0,
                )
            )
        return refs


#: Sizes of the heads of a slice to search for its channel: most slices name it at once, a damaged one later.
HEADS = (1 << 14, 1 << 20, 64 << 20)


def slices_by_channel(
    place: Listing, directory: str, entries: list[DirectoryEntry], crc: Crc, *, others: bool
) -> dict[str, list[DirectoryEntry]]:
    """Sorts the slices and indexes of one directory by channel; with `others`, keeps the other files as well."""
    fallback = place.split(directory)[1] or directory
    indexes = {entry.name: entry for entry in entries if INDEX_NAME.fullmatch(entry.name)}
    slices = [entry for entry in entries if SLICE_NAME.fullmatch(entry.name)]
    groups: dict[str, list[DirectoryEntry]] = {}

    def channel(entry: DirectoryEntry) -> str:
        return _channel_of(place, place.join(directory, entry.name), crc) or fallback

    for entry, name in zip(slices, listed(channel, slices), strict=True):
        group = groups.setdefault(name, [])
        group.append(entry)
        match = SLICE_NAME.fullmatch(entry.name)
        number = slice_number(match[1]) if match else None
        index = indexes.pop(f"msgs.{number}.idx{(match and match[2]) or ''}", None)
        if index:
            group.append(index)
    if others:
        rest = [
            e
            for e in entries
            if e.name in indexes or not (SLICE_NAME.fullmatch(e.name) or INDEX_NAME.fullmatch(e.name))
        ]
        groups.setdefault(next(iter(groups), fallback), []).extend(rest)
    return groups


def _channel_of(place: Listing, path: str, crc: Crc) -> str | None:
    """Returns the subject of the first good record of a slice; None if there is none or it cannot be read."""
    for size in HEADS:
        try:
            head = place.head(path, size)
        except StoreUnreadableError:
            return None
        for event in SliceFile(memoryview(head), b"", crc).records(rows=1):
            if isinstance(event, DamagedRange):
                if len(head) < size or size == HEADS[-1]:
                    continue
                break  # this may be damage, or only the end of the head
            return os.fsdecode(event.record_subject(0))
        if len(head) < size:
            return None
    return None


#: Levels of directories to search for stores.
_MAX_DEPTH = 8
#: Directories to list for stores below one path.
_MAX_DIRECTORIES = 200_000
_REMEDY = "name the directory given to the server as -dir, a directory of such, or a slice (msgs.N.dat or .bak)"


def discover(
    options: TableOptions, opening: Callable[[str], Source | None] | None = None
) -> tuple[list[FoundStore], list[FailedRead]]:
    """Finds the stores and slices of the options' paths, in their order, each once; with the failures.

    Reads directories, and the few records that tell a polynomial or a channel. `opening` opens a path as a source, or
    returns None if it has to be searched. Raises `StoreUnreadableError` if nothing at all is found, or for any failure
    in mode FAILFAST.
    """
    search = _Search(options)
    for path in options.paths:
        search.path(path, opening)
    if search.unreadable and (options.mode is Mode.FAILFAST or not search.stores):
        first = search.unreadable[0]
        more = len(search.unreadable) - 1
        also = f" (and {more} more that cannot be read)" if more and not search.stores else ""
        raise StoreUnreadableError(first.message + also, first.remedy)
    return search.stores, search.unreadable


def absolute(options: TableOptions) -> TableOptions:
    """Returns the options with absolute local paths: on a cluster every process has its own working directory."""
    paths = (
        path if is_remote(path) or is_address(path) else os.path.abspath(local_path(path))  # noqa: PTH100
        for path in options.paths
    )
    return replace(options, paths=tuple(paths))


class _Search:
    """One search: its results and the directories it visited."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._reading = ReadOptions(options.polynomial, options.check_crc)
        self._visited: dict[Hashable, bool] = {}  # whether it held a store or slice
        self._repeats = 0  # paths that led to a directory or file visited before
        self._loose: dict[str, FoundStore] = {}
        self.stores: list[FoundStore] = []
        self.unreadable: list[FailedRead] = []

    def path(self, path: str, opening: Callable[[str], Source | None] | None = None) -> None:
        try:
            if opening and (source := opening(path)):
                self._add_source(source)
                return
        except (StoreUnreadableError, RefusedError) as error:  # the latter for an archive that becomes too large
            self._add_failure(path, error)
            return
        try:
            if other := _recognise_address(path):
                raise _problem(other)
            place: Listing
            if is_remote(path):
                place, plain = remote_place(path, self._options)
            else:
                place, plain = LocalPlace(), str(Path(local_path(path)))
            if is_pattern(plain) and place.is_directory(plain) is None:
                self._pattern(place, plain)
            else:
                self._one(place, plain)
        except StoreUnreadableError as error:
            self._add_failure(path, error)

    def _pattern(self, place: Listing, pattern: str) -> None:
        matches = [path for each in expand_braces(pattern) for path in place.matches(each)]
        before = len(self.stores) + len(self.unreadable) + len(self._visited) + self._repeats
        for path in dict.fromkeys(matches):
            directory = place.is_directory(path)
            if directory or self._is_wanted_file(place.split(path)[1]):
                try:
                    self._one(place, path, matched=True)
                except StoreUnreadableError as error:
                    self._add_failure(path, error)
        if len(self.stores) + len(self.unreadable) + len(self._visited) + self._repeats == before:
            what = "nothing matches the pattern" if not matches else "nothing that matches the pattern is of a store"
            raise StoreUnreadableError(f"{pattern}: {what}", _REMEDY)

    def _one(self, place: Listing, path: str, *, matched: bool = False) -> None:
        directory = place.is_directory(path)
        if directory is None:
            raise StoreUnreadableError(f"{path}: no such file or directory", _REMEDY)
        if not directory:
            self._file(place, path)
        elif not self._directory(place, path) and not matched:
            if isinstance(place, LocalPlace):
                raise _problem(recognise(Path(path)))  # it may be a Raft log, for example
            raise StoreUnreadableError(f"{path}: neither a file store nor a slice is in it", _REMEDY)

    def _file(self, place: Listing, path: str) -> None:
        directory, name = place.split(path)
        if not self._is_wanted_file(name):
            if isinstance(place, LocalPlace) and (found := recognise(Path(path))).kind not in _FILES:
                raise _problem(found)
            what = (
                "is not a message slice" if self._options.table is not TableName.RECORDS else "is not a file of a store"
            )
            raise StoreUnreadableError(f"{path}: {what}", _REMEDY)
        entries = place.entries(directory)
        match = SLICE_NAME.fullmatch(name)
        companions = {name}
        if match and (number := slice_number(match[1])) is not None:
            companions.add(f"msgs.{number}.idx{match[2] or ''}")
        chosen = [each for each in entries if each.name in companions]
        self._add_loose(place, directory, [each for each in chosen if self._first(place, directory, each)])

    def _is_wanted_file(self, name: str) -> bool:
        kind = kind_of(name)
        if self._options.table is TableName.RECORDS:
            return kind is not None
        match = SLICE_NAME.fullmatch(name)
        return kind is FileKind.MESSAGES and match is not None and slice_number(match[1]) is not None

    def _first(self, place: Listing, directory: str, entry: DirectoryEntry) -> bool:
        """Returns whether a file is new; an index counts only with its slice."""
        if INDEX_NAME.fullmatch(entry.name) and self._options.table is not TableName.RECORDS:
            return True
        return self._new(("file", place.identity(place.join(directory, entry.name))))

    def _new(self, identity: Hashable) -> bool:
        if identity in self._visited:
            self._repeats += 1
            return False
        self._visited[identity] = False
        return True

    def _directory(self, place: Listing, path: str) -> bool:
        """Searches a directory; returns whether it holds any store or slice, now or at an earlier visit."""
        tree = _Tree(place, path, self._new)
        found = find_stores(
            path, tree.list_all, depth=_MAX_DEPTH, most=_MAX_DIRECTORIES, in_stores=False, join=place.join
        )
        if found.too_many:
            raise StoreUnreadableError(f"{path}: has more than {_MAX_DIRECTORIES} directories below it", _REMEDY)
        stores = [] if found.channels[:1] == [path] else found.stores  # of a single channel, there are only its slices
        channels = [each for each in found.channels if tree.around.get(each) not in stores]
        slices = {each: inside for each in channels if (inside := _slices_in(tree.entries[each]))}
        failed = [each for each in tree.failed if tree.around[each] not in stores]
        results = sorted([*stores, *slices, *failed], key=tree.order.__getitem__)
        for each in results:
            if each in tree.failed:
                self._add_failure(each, tree.failed[each])
            elif each in tree.visited:
                if each in slices:
                    self._add_directory(place, each, tree.entries[each], slices[each])
                else:
                    self._add_store(place, each, tree.entries[each])
        held = {tree.order[each][:length] for each in results for length in range(len(tree.order[each]) + 1)}
        for each, identity in tree.visited.items():
            self._visited[identity] = tree.order[each] in held
        return bool(results) or (path not in tree.visited and self._visited[place.identity(path)])

    def _add_source(self, source: Source) -> None:
        """Adds a source as the user named it: a store by itself, one channel of it, or a node with its Raft log."""
        place, root, store = LocalPlace(), str(source.place), source.datastore
        if source.node and source.node.data:
            store, root = source.store(), str(source.node.data)
        one = source.found.kind is CHANNEL
        identities = {place.identity(each) for each in (str(source.found.path), *(() if one else (root,)))}
        new = [self._new(each) for each in identities]
        if not all(new):
            return
        self._visited |= dict.fromkeys(identities, True)
        ref = StoreRef(root, store.crc.polynomial if store else IEEE)
        names = store.channel_names if store else []
        alone = store is None or store.alone
        entries = () if alone else tuple(place.entries(root))
        self.stores.append(FoundStore(ref, place, entries, names, source=source))

    def _add_store(self, place: Listing, path: str, entries: list[DirectoryEntry]) -> None:
        try:
            ref = StoreRef(path, self._polynomial(place, path, entries))
        except StoreUnreadableError as error:
            self._add_failure(path, error)
            return
        directories = [entry.name for entry in entries if entry.directory and not entry.link]
        names = [name for name in directories if not is_system_name(name)]
        self.stores.append(FoundStore(ref, place, tuple(entries), names))

    def _polynomial(self, place: Listing, path: str, entries: list[DirectoryEntry]) -> int:
        with sampled(place, path, entries) if not isinstance(place, LocalPlace) else nullcontext(path) as root:
            store = open_datastore(root)
            if isinstance(place, LocalPlace) and not self._options.accept_unreadable:
                store.check_permitted(store.matching(self._options.channels))
            refuse_0_1(store)
            return resolve_crc(store, self._reading).polynomial

    def _add_directory(
        self, place: Listing, path: str, entries: list[DirectoryEntry], slices: list[DirectoryEntry]
    ) -> None:
        live = [entry for entry in slices if not entry.name.endswith(".bak")]
        if live and not self._options.archived:
            slices = live
        indexes = [entry for entry in entries if INDEX_NAME.fullmatch(entry.name)]
        others = [entry for entry in entries if kind_of(entry.name) not in (None, FileKind.MESSAGES, FileKind.INDEX)]
        new = [entry for entry in slices if self._first(place, path, entry)]
        others = others if self._options.table is TableName.RECORDS else []
        self._add_loose(place, path, [*new, *indexes, *others] if new else [])

    def _add_loose(self, place: Listing, directory: str, entries: list[DirectoryEntry]) -> None:
        """Adds slices without a store; those of one directory stay together."""
        if not entries:
            return
        if isinstance(place, LocalPlace) and not self._options.accept_unreadable:
            check_permitted(Path(directory), [Path(directory, each.name) for each in entries], ())
        store = self._loose.get(directory)
        if store is None:
            ref = StoreRef(directory, self._loose_polynomial(place, directory, entries))
            store = self._loose[directory] = FoundStore(ref, place, loose=[], archived=True)
            self.stores.append(store)
        assert store.loose is not None
        groups = {channel.name: channel for channel in store.loose}
        crc, others = Crc(store.ref.polynomial), self._options.table is TableName.RECORDS
        for name, grouped in slices_by_channel(place, directory, entries, crc, others=others).items():
            have = groups[name].entries if name in groups else ()
            merged = {entry.name: entry for entry in (*have, *grouped)}
            groups[name] = ListedChannel(store.ref, name, directory, tuple(merged.values()))
        store.loose[:] = groups.values()

    def _loose_polynomial(self, place: Listing, directory: str, entries: list[DirectoryEntry]) -> int:
        first = next((e for e in entries if SLICE_NAME.fullmatch(e.name)), entries[0])
        try:
            head = place.head(place.join(directory, first.name), HEADS[0])
        except StoreUnreadableError:
            head = b""  # the reader will report it
        return resolve_file_crc(Path(first.name), memoryview(head), self._reading).polynomial

    def _add_failure(self, path: str, error: StoreUnreadableError | RefusedError) -> None:
        self.unreadable.append(FailedRead.of(without_password(path), error))


def _recognise_address(path: str) -> RecognisedPath | None:
    """Recognises a database, whose text may hold a password, and the URL of a NATS server."""
    found = recognise(Path(path)) if "://" in path or is_address(path) else None
    if found and (found.kind is DATABASE or (found.kind is files.URL and not path.lower().startswith("http"))):
        return found
    return None


def _problem(found: RecognisedPath) -> StoreUnreadableError:
    """Returns the error for a path whose files are those of no store; other kinds of sources hold no tables."""
    return found.refusal(Capability.TABLE) if found.kind.capabilities else found.problem()


def _slices_in(entries: Iterable[DirectoryEntry]) -> list[DirectoryEntry]:
    return [
        entry
        for entry in entries
        if not entry.directory and (match := SLICE_NAME.fullmatch(entry.name)) and slice_number(match[1]) is not None
    ]


class _Tree:
    """The directories of a search, listed in threads if that is slow; one that was visited before is not entered."""

    def __init__(self, place: Listing, path: str, new: Callable[[Hashable], bool]) -> None:
        self._place = place
        self._path = path
        self._new = new
        self.entries: dict[str, list[DirectoryEntry]] = {}
        self.visited: dict[str, Hashable] = {}  #: identities of the directories visited now
        self.failed: dict[str, StoreUnreadableError] = {}  #: directories that cannot be listed
        self.around: dict[str, str] = {}  #: the directory that holds each
        self.order: dict[str, tuple[bytes, ...]] = {path: ()}  #: the names below the path

    def list_all(self, paths: list[str]) -> Iterator[DirectoryNames]:
        for path, entries in zip(paths, listed(self._list, paths), strict=True):
            if isinstance(entries, StoreUnreadableError):
                if path == self._path:
                    raise entries
                self.failed[path] = entries
                yield DirectoryNames(set(), [])
                continue
            self.entries[path] = entries
            names = {entry.name for entry in entries if not entry.directory}
            identity = self._place.identity(path)
            if not self._new(identity):
                yield DirectoryNames(names, [])
                continue
            self.visited[path] = identity
            children = [entry for entry in entries if entry.directory and not entry.name.startswith(".")]
            for child in children:
                where = self._place.join(path, child.name)
                self.around[where] = path
                self.order[where] = (*self.order[path], os.fsencode(child.name))
            linked = frozenset(child.name for child in children if child.link)
            yield DirectoryNames(names, [child.name for child in children], linked)

    def _list(self, path: str) -> list[DirectoryEntry] | StoreUnreadableError:
        try:
            return self._place.entries(path)
        except StoreUnreadableError as error:
            return error
