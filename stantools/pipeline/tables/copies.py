"""Local files to read from: the files themselves, or minimal copies of remote ones.

The index of a remote slice is copied first. If it can be trusted, only the selected bytes of the data file are
copied; the rest of the copy is a hole that is never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, RECORD_HEADER_SIZE
from stantools.pipeline.tables.listing import DirectoryEntry
from stantools.pipeline.tables.message_rows import INDEXED_COLUMNS
from stantools.pipeline.tables.model import ReadCounter, SlicePiece, SliceRef, StorePart, StoreRef, TableName
from stantools.pipeline.tables.remote import RemoteFileSystem, is_remote, join_url, split_url, temporary_directory
from stantools.pipeline.tables.slice_pieces import chosen_rows, selection_of, split_slice, trusted_chain
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import (
    CLIENTS_FILE,
    INDEX_NAME,
    SERVER_FILE,
    SLICE_NAME,
    SUBS_FILE,
    slice_number,
)
from stantools.store.indexes import SliceIndex
from stantools.store.mapping import mapped
from stantools.store.ranges import Bounds

#: `split_bytes` that never splits a slice.
_NO_SPLIT = 1 << 62
#: Index records whose data is copied for a summary of a slice: the last messages show whether it is encrypted.
_TAIL_RECORDS = 8


@contextmanager
def copied_pieces(
    piece: SlicePiece, options: TableOptions, counter: ReadCounter | None = None
) -> Iterator[list[SlicePiece]]:
    """Yields the parts of a piece as local files, in the order of the file; valid until the end of the block.

    A remote piece is a whole slice; the bounds of the options limit the copy. Raises `StoreUnwritableError` if the
    copy cannot be written.
    """
    ref = piece.slice
    whole = piece.start <= FILE_HEADER_SIZE and piece.end >= ref.data_size
    bounded = options.bounds != Bounds()
    if not is_remote(ref.data):
        yield _narrowed(ref, options, counter) if bounded and whole else [piece]
        return
    with temporary_directory() as directory:
        remote = RemoteFileSystem(ref.data, options.storage)
        local = _copy_index(remote, ref, directory)
        by_index = not options.check_crc and options.columns and INDEXED_COLUMNS.issuperset(options.columns)
        enough = (bounded or by_index) and whole and _copy_tail(remote, ref, local, 1)
        if enough and bounded:
            enough = _copy_selection(remote, ref, local, options)
        if not enough:
            remote.copy(ref.data, Path(local.data))
        yield _narrowed(local, options, counter) if bounded and whole else [replace(piece, slice=local)]


def _narrowed(ref: SliceRef, options: TableOptions, counter: ReadCounter | None) -> list[SlicePiece]:
    return split_slice(ref, replace(options, split_bytes=_NO_SPLIT), counter)


def _copy_index(remote: RemoteFileSystem, ref: SliceRef, directory: Path) -> SliceRef:
    """Copies the index of a slice; returns the slice with its paths in the directory."""
    data, index = directory / split_url(ref.data)[1], None
    if ref.index is not None:
        index = directory / split_url(ref.index)[1]
        remote.copy(ref.index, index)
    return replace(ref, data=str(data), index=None if index is None else str(index))


def _copy_tail(remote: RemoteFileSystem, ref: SliceRef, local: SliceRef, messages: int) -> bool:
    """Copies the header and the last messages of a slice into a file with a hole.

    Returns False, without a file, if the index cannot be trusted or does not name everything in the data file.
    """
    target, size = Path(local.data), ref.data_size
    start = _offset_of_last(local, messages)
    if start is None or not FILE_HEADER_SIZE <= start <= size - RECORD_HEADER_SIZE:
        return False
    remote.copy(ref.data, target, 0, FILE_HEADER_SIZE)
    remote.copy(ref.data, target, start, size)
    with (
        mapped(target) as data,
        trusted_chain(local, data, Crc(ref.store.polynomial), ReadCounter()) as records,
    ):
        complete = records is not None and records[-1].end == size
        records = None
    if not complete:
        target.unlink()
    return complete


def _copy_selection(remote: RemoteFileSystem, ref: SliceRef, local: SliceRef, options: TableOptions) -> bool:
    """Copies the selected bytes of a slice and the messages next to them, which show that the index is right.

    Returns False if it is not; then the whole slice is needed.
    """
    selection = selection_of(options.bounds)
    if selection is None:
        return True
    with (
        mapped(Path(local.data)) as data,
        trusted_chain(local, data, Crc(ref.store.polynomial), ReadCounter()) as records,
    ):
        start, end = 0, ref.data_size
        if records is not None:
            # From the message before the first selected one to the end of the message after the last one.
            first, last = chosen_rows(records, selection)
            start, end = 0, 0
            if first >= 0:
                start = records[max(first - 1, 0)].offset
                end = records[min(last + 1, len(records) - 1)].end
        records = None
    if start < end:
        remote.copy(ref.data, Path(local.data), start, end)
    return all(start <= piece.start and piece.end <= end for piece in _narrowed(local, options, None))


def _offset_of_last(local: SliceRef, messages: int) -> int | None:
    """Returns the offset of one of the last messages according to the unchecked index."""
    if local.index is None:
        return None
    content = memoryview(Path(local.index).read_bytes())
    index = SliceIndex.whole(content)
    return index[max(len(index) - messages, 0)].offset if len(index) else None


@contextmanager
def copied_part(part: StorePart, options: TableOptions) -> Iterator[Path]:
    """Yields the store's root, or the root of a copy with the files that the table needs.

    Raises `StoreUnwritableError` if the copy cannot be written.
    """
    if not is_remote(part.store.root):
        yield Path(part.store.root)
        return
    with temporary_directory() as directory:
        copy = _StoreCopy(part.store, directory, options)
        if part.file is not None and options.table is TableName.RECORDS:
            copy.file(part.file)
        elif part.file is not None:
            copy.slice(part.file, whole=options.table is not TableName.SLICES)
        elif part.channel is not None:
            copy.root_files(CLIENTS_FILE)
            copy.channel(part.channel, whole=options.table is TableName.FINDINGS)
        elif options.table is TableName.CLIENTS:
            copy.root_files(CLIENTS_FILE)
            copy.every_subs()
        elif options.table is TableName.SUBSCRIPTIONS:
            copy.root_files(CLIENTS_FILE)
        else:
            copy.root_files(SERVER_FILE, CLIENTS_FILE)
            copy.root_names()
        yield directory


class _StoreCopy:
    """A copy of parts of a remote store, with the same directories."""

    def __init__(self, store: StoreRef, directory: Path, options: TableOptions) -> None:
        self._store = store
        self._directory = directory
        self._remote = RemoteFileSystem(store.root, options.storage)
        self._root: list[DirectoryEntry] | None = None

    def _entries(self) -> list[DirectoryEntry]:
        if self._root is None:
            self._root = self._remote.entries(self._store.root)
        return self._root

    def file(self, name: str) -> None:
        target = self._directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._remote.copy(join_url(self._store.root, name), target)

    def root_files(self, *names: str) -> None:
        """Copies those of the named root files that exist."""
        for entry in self._entries():
            if entry.name in names and not entry.directory:
                self.file(entry.name)

    def root_names(self) -> None:
        """Makes empty files and directories for everything else in the root: their names are findings."""
        has_files = False
        for entry in self._entries():
            place = self._directory / entry.name
            if entry.directory:
                place.mkdir(exist_ok=True)
            else:
                place.touch()
                has_files |= entry.name in (SERVER_FILE, CLIENTS_FILE)
        if not has_files:
            self._channel_names()

    def _channel_names(self) -> None:
        """Makes the files of the first channel, empty: without files in the root, they show that this is a store."""
        for directory in self._entries():
            if directory.directory:
                entries = self._remote.entries(join_url(self._store.root, directory.name))
                names = [e.name for e in entries if e.name == SUBS_FILE or SLICE_NAME.fullmatch(e.name)]
                for name in names:
                    (self._directory / directory.name / name).touch()
                if names:
                    return

    def every_subs(self) -> None:
        for directory in self._entries():
            if directory.directory:
                entries = self._remote.entries(join_url(self._store.root, directory.name))
                if any(entry.name == SUBS_FILE and not entry.directory for entry in entries):
                    self.file(f"{directory.name}/{SUBS_FILE}")

    def channel(self, name: str, *, whole: bool) -> None:
        """Copies a channel. Unless `whole`, only the first and last message of live slices are copied."""
        (self._directory / name).mkdir()
        entries = self._remote.entries(join_url(self._store.root, name))
        for entry in entries:
            place = f"{name}/{entry.name}"
            if entry.directory:
                (self._directory / place).mkdir()
            elif whole or entry.name == SUBS_FILE:
                self.file(place)
            elif (match := SLICE_NAME.fullmatch(entry.name)) and match[2] is None:
                self.slice(place, entries, whole=False)

    def slice(self, file: str, entries: Sequence[DirectoryEntry] = (), *, whole: bool) -> None:
        """Copies a slice and its index. Unless `whole`, only the last messages are copied if the index is right."""
        directory, _, name = file.rpartition("/")
        target = self._directory / directory
        target.mkdir(exist_ok=True)
        url = join_url(self._store.root, directory) if directory else self._store.root
        sizes = {entry.name: entry.size for entry in entries or self._remote.entries(url) if not entry.directory}
        match = SLICE_NAME.fullmatch(name)
        number = slice_number(match[1]) if match else None
        index = f"msgs.{number}.idx{(match and match[2]) or ''}"
        has_index = INDEX_NAME.fullmatch(index) is not None and index in sizes
        ref = SliceRef(
            self._store,
            split_url(url)[1],
            number or 0,
            bool(match and match[2]),
            join_url(url, name),
            join_url(url, index) if has_index else None,
            sizes.get(name, 0),
            sizes.get(index, 0),
        )
        local = _copy_index(self._remote, ref, target)
        if whole or not _copy_tail(self._remote, ref, local, _TAIL_RECORDS):
            self._remote.copy(ref.data, Path(local.data))
