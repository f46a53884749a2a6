"""The two open files of one message slice, for writing.

Facts: filestore.md sections 1.1, 2.1, 2.3 and 7.6. Both files are opened in append mode, so all writes go to the
end. Nothing is buffered here.

A server trusts the index. The remains of a killed write after the last message that the index names do no harm. Only
if the index names nothing, it reads the data file, and does not start if that ends with half a record: so the first
write to a data file is complete or absent, and its index is created afterwards, with the first messages in it. An
empty index would mislead the server (weakness W10).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stantools.errors import StoreUnwritableError
from stantools.format.layout import FILE_HEADER, FILE_HEADER_SIZE, FILE_VERSION, INDEX_RECORD_SIZE
from stantools.store.atomic_append import append_records
from stantools.store.durable import UnnamedFile, write_all, writing

_HEADER = FILE_HEADER.pack(FILE_VERSION)
_MODE = 0o666  # less the umask, as the server
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
_MAX_PARTS = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 16
_REMEDY = "run `stantools verify` on the store"


class SliceOutput:
    """The open data and index file of slice number `number` of a channel's directory.

    With `names_later`, new files get their names by `name`, after their first bytes are synced. The index is then
    written after the first data.
    """

    def __init__(self, directory: Path, number: int, *, names_later: bool = False) -> None:
        self.number = number
        self._directory = directory
        self._names_later = names_later
        self._data: int | None = None
        self._index: int | None = None
        self._unnamed: list[UnnamedFile] = []  # files that have no name yet

    @property
    def data_path(self) -> Path:
        return self._directory / f"msgs.{self.number}.dat"

    @property
    def index_path(self) -> Path:
        return self._directory / f"msgs.{self.number}.idx"

    @classmethod
    def create(cls, directory: Path, number: int, *, names_later: bool = False) -> SliceOutput:
        """Begins a slice, whose files are created with its first messages.

        Files of that number may exist if they are empty. The index is made by `write_index`; an existing one is
        removed, because its records would be taken for those of the new messages (weakness W7). Raises
        StoreUnwritableError if there is a non-empty data file of that number.
        """
        file = cls(directory, number, names_later=names_later)
        if file.data_path.exists():
            file._begin()
        else:
            file.index_path.unlink(missing_ok=True)
        return file

    @classmethod
    def open(cls, directory: Path, number: int) -> SliceOutput:
        file = cls(directory, number)
        file._data = os.open(file.data_path, _FLAGS, _MODE)
        return file

    def _begin(self) -> None:
        """Opens a data file that has only its header then. Errors as of `create`."""
        self._data = os.open(self.data_path, _FLAGS, _MODE)
        try:
            size = os.fstat(self._data).st_size
            if size > FILE_HEADER_SIZE:
                raise StoreUnwritableError(
                    f"{self.data_path}: already exists, with {size} bytes, where a new slice was to begin", _REMEDY
                )
            self.index_path.unlink(missing_ok=True)
            header = os.pread(self._data, FILE_HEADER_SIZE, 0)
            if header and header != _HEADER:
                os.ftruncate(self._data, 0)
            if header != _HEADER:
                write_all(self._data, _HEADER)
        except StoreUnwritableError:
            self.close()
            raise
        except BaseException:
            # a file without its header would keep a server from starting (weakness W15)
            self.close()
            self.data_path.unlink(missing_ok=True)
            raise

    @classmethod
    def reopen(
        cls, directory: Path, number: int, data_size: int, count: int, *, names_later: bool = False
    ) -> SliceOutput:
        """Opens a slice to continue it, which must have `data_size` bytes of data and `count` messages in the index.

        Raises StoreUnwritableError if the files have changed.
        """
        if not count:
            return cls.create(directory, number, names_later=names_later)
        for path in (directory / f"msgs.{number}.dat", directory / f"msgs.{number}.idx"):
            # An empty file in its place would keep a server from starting (weakness W15).
            if not path.exists():
                raise StoreUnwritableError(f"{path}: is gone", _REMEDY)
        file = cls.open(directory, number)
        try:
            assert file._data is not None
            file._index = os.open(file.index_path, _FLAGS, _MODE)
            wanted = (file._data, file.data_path, data_size), (file._index, file.index_path, index_size(count))
            for descriptor, path, size in wanted:
                found = os.fstat(descriptor).st_size
                if found != size or os.pread(descriptor, FILE_HEADER_SIZE, 0) != _HEADER:
                    raise StoreUnwritableError(f"{path}: has {found} bytes and should have {size}", _REMEDY)
        except BaseException:
            file.close()
            raise
        return file

    def write_data(self, parts: Sequence[bytes | memoryview]) -> None:
        """Appends to the data file; an OSError may leave a part of the data."""
        if self._data is None or self._index is None:
            self._write_first(parts)
            return
        if len(parts) == 1:
            write_all(self._data, parts[0])
            return
        for first in range(0, len(parts), _MAX_PARTS):
            group = parts[first : first + _MAX_PARTS]
            written = os.writev(self._data, group)
            for part in group:
                # the part that the system did not take at once
                if written < len(part):
                    write_all(self._data, memoryview(part)[written:])
                written = max(written - len(part), 0)

    def write_pair(self, record: bytes, entry: bytes) -> None:
        """Appends a record to the data file, and its index record to the index; neither file is empty.

        An OSError may leave a part of the data.
        """
        data, index = self._data, self._index
        assert data is not None and index is not None
        # Usually the system takes all, and nearly all of the time is the system's.
        if (written := os.write(data, record)) < len(record):
            write_all(data, memoryview(record)[written:])
        if (written := os.write(index, entry)) < len(entry):
            write_all(index, memoryview(entry)[written:])

    def _write_first(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._data is None:
            self._data = self._create(self.data_path, b"".join((_HEADER, *parts)))
            if self._data is not None:
                return
            self._begin()
        # the file's own descriptor is in append mode and ignores offsets
        descriptor = os.open(self.data_path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            end = os.fstat(descriptor).st_size
            append_records(descriptor, parts[0] if len(parts) == 1 else b"".join(parts), end)
        finally:
            os.close(descriptor)

    def write_index(self, records: bytes) -> None:
        """Appends to the index file, which is created with its first records in it.

        An OSError may leave a part of the data.
        """
        if self._index is not None:
            write_all(self._index, records)
            return
        self._index = self._create(self.index_path, _HEADER + records)
        if self._index is not None:
            return
        self._index = os.open(self.index_path, _FLAGS, _MODE)
        try:
            os.ftruncate(self._index, 0)
            write_all(self._index, _HEADER + records)
        except OSError:
            self._drop_index()
            raise

    def _create(self, path: Path, data: bytes) -> int | None:
        """Creates a file with its first bytes, and with its name unless that comes later.

        Returns None if it exists, or cannot be made in that way.
        """
        file = None if path.exists() else UnnamedFile.create(path, data, _MODE)
        if file is None:
            return None
        if self._names_later:
            self._unnamed.append(file)
            return file.descriptor
        with file:
            try:
                file.link()
            except OSError:
                return None
            return file.detach()

    def name(self) -> None:
        """Gives new files their names, which are durable after a sync of the directory."""
        while self._unnamed:
            self._unnamed[0].link()
            self._unnamed.pop(0).detach()

    def _drop_index(self) -> None:
        if self._index is not None:
            os.close(self._index)
            self._index = None
        self.index_path.unlink(missing_ok=True)

    def cut(self, data_size: int, count: int) -> None:
        """Cuts both files back to `data_size` bytes of data and `count` messages in the index."""
        if not count:
            # The data first: a wrong index is recreated, but data without an index must not have a torn end.
            if self._unnamed:
                self.close()
            if self._data is not None:
                os.ftruncate(self._data, data_size)
            self._drop_index()
            return
        assert self._data is not None
        if self._index is None:
            self._index = os.open(self.index_path, _FLAGS, _MODE)
        os.ftruncate(self._index, index_size(count))
        os.ftruncate(self._data, data_size)

    @property
    def unnamed(self) -> bool:
        return bool(self._unnamed)

    @property
    def descriptors(self) -> Sequence[int]:
        """The open descriptors, the data file's first."""
        return [each for each in (self._data, self._index) if each is not None]

    def sync(self) -> None:
        """Makes both files durable, the data first."""
        for descriptor in self.descriptors:
            os.fsync(descriptor)

    def close(self) -> None:
        for each in self._unnamed:
            each.detach()
        self._unnamed = []
        for descriptor in self.descriptors:
            os.close(descriptor)
        self._data = self._index = None


def index_size(count: int) -> int:
    """Size in bytes of an index file with `count` messages."""
    return FILE_HEADER_SIZE + count * INDEX_RECORD_SIZE


def remove_slice(directory: Path, number: int, *, archive: bool = False) -> tuple[Path, Path] | None:
    """Removes a slice as the server does, the data file first (filestore.md sections 5.4 and 5.5).

    With `archive` the files are renamed to `.bak` instead, for an archive script; returns the archived data file and
    index then. Raises StoreUnwritableError if the files can be neither renamed nor removed.
    """
    data, index = directory / f"msgs.{number}.dat", directory / f"msgs.{number}.idx"
    archived = Path(f"{data}.bak"), Path(f"{index}.bak")
    with writing(data):
        if archive:
            try:
                data.replace(archived[0])
                index.replace(archived[1])
                return archived
            except OSError:
                # as the server: without both files there is no archive
                archived[0].unlink(missing_ok=True)
        data.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
    return None
