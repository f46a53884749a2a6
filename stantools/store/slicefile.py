"""The two open files of one message slice, for writing.

Facts: filestore.md sections 1.1, 2.1, 2.3 and 7.6. Both files are opened in append mode, so whatever is
written goes to the end. Nothing is buffered here.

A server goes by the index. What a kill in the middle of a write leaves behind the last message that the index names
does no harm. Only where the index names nothing it reads the data file, and does not start if that ends with half a
record: so what is written first to a data file is there as a whole or not at all, and its index is made afterwards,
with the first messages in it. An index without any would lead the server astray (weakness W10).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stantools.errors import StoreUnwritableError
from stantools.format.layout import FILE_HEADER, FILE_HEADER_SIZE, FILE_VERSION, INDEX_RECORD_SIZE
from stantools.store.appending import append_records
from stantools.store.durable import UnnamedFile, write_all, writing

_HEADER = FILE_HEADER.pack(FILE_VERSION)
_MODE = 0o666  # less the umask, as the server
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
_MAX_PARTS = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 16
_REMEDY = "run `stantools verify` on the store"


class SliceFile:
    """The open data and index file of a slice.

    Args:
        directory: The channel's directory.
        number: N of `msgs.N.dat`.
        names_later: New files get their names by `name`, when their first bytes are synced. The first data is followed
            by its index then.
    """

    def __init__(self, directory: Path, number: int, *, names_later: bool = False) -> None:
        self.number = number  #: N of `msgs.N.dat`
        self._directory = directory
        self._names_later = names_later
        self._data: int | None = None
        self._index: int | None = None
        self._unnamed: list[UnnamedFile] = []  # files that have no name yet

    @property
    def data_path(self) -> Path:
        """The data file."""
        return self._directory / f"msgs.{self.number}.dat"

    @property
    def index_path(self) -> Path:
        """The index file."""
        return self._directory / f"msgs.{self.number}.idx"

    @classmethod
    def create(cls, directory: Path, number: int, *, names_later: bool = False) -> SliceFile:
        """Begins a slice, whose files are made with its first messages.

        Files of that number may be there if they are empty. The index is made by `write_index`; one that is there
        goes, as its records would be taken for those of the new messages (weakness W7).

        Raises:
            StoreUnwritableError: There is a data file of that number with something in it.
            OSError: It cannot be opened or written.
        """
        file = cls(directory, number, names_later=names_later)
        if file.data_path.exists():
            file._begin()
        else:
            file.index_path.unlink(missing_ok=True)
        return file

    @classmethod
    def open(cls, directory: Path, number: int) -> SliceFile:
        """Opens a slice that is there, whatever is in it. Raises OSError."""
        file = cls(directory, number)
        file._data = os.open(file.data_path, _FLAGS, _MODE)
        return file

    def _begin(self) -> None:
        """Opens a data file that has nothing but its header then. Raises as `create`."""
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
            # A file without its header would keep a server from starting (weakness W15).
            self.close()
            self.data_path.unlink(missing_ok=True)
            raise

    @classmethod
    def reopen(
        cls, directory: Path, number: int, data_size: int, count: int, *, names_later: bool = False
    ) -> SliceFile:
        """Opens a slice to go on with it.

        Args:
            directory: The channel's directory.
            number: The slice.
            data_size: The size that the data file must have.
            count: The messages that the index must have.
            names_later: As for the class.

        Raises:
            StoreUnwritableError: The files are not as they were left.
            OSError: They cannot be opened.
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
        """Appends to the data file.

        Raises:
            OSError: As from `os.write`; a part may have been written.
        """
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
                # What the system did not take at once.
                if written < len(part):
                    write_all(self._data, memoryview(part)[written:])
                written = max(written - len(part), 0)

    def write_pair(self, record: bytes, entry: bytes) -> None:
        """Appends a record to the data file, and its index record to the index, which both have others already.

        Raises:
            OSError: As from `os.write`; a part may have been written.
        """
        data, index = self._data, self._index
        assert data is not None and index is not None
        # Mostly the system takes all, and nearly all of the time that this takes is the system's.
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
        # Not by the file's own descriptor, which appends wherever it is asked to write.
        descriptor = os.open(self.data_path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            end = os.fstat(descriptor).st_size
            append_records(descriptor, parts[0] if len(parts) == 1 else b"".join(parts), end)
        finally:
            os.close(descriptor)

    def write_index(self, records: bytes) -> None:
        """Appends to the index file, which is made with its first records in it.

        Raises:
            OSError: As from `os.write`; a part may have been written.
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
        """Creates a file with its first bytes, and its name if that is not for later."""
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
        """Gives new files their names, which are durable when the directory is synced.

        Raises:
            OSError: As from `os.link`.
        """
        while self._unnamed:
            self._unnamed[0].link()
            self._unnamed.pop(0).detach()

    def _drop_index(self) -> None:
        if self._index is not None:
            os.close(self._index)
            self._index = None
        self.index_path.unlink(missing_ok=True)

    def cut(self, data_size: int, count: int) -> None:
        """Cuts both files back.

        Args:
            data_size: Bytes that the data file keeps.
            count: Messages that the index keeps.

        Raises:
            OSError: As from `os.ftruncate`.
        """
        if not count:
            # The data first: an index that is wrong is recreated, but without one nothing torn may be there.
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
        """Whether there are files that have no name yet."""
        return bool(self._unnamed)

    @property
    def descriptors(self) -> Sequence[int]:
        """What is open, the data first."""
        return [each for each in (self._data, self._index) if each is not None]

    def sync(self) -> None:
        """Makes both durable, the data first.

        Raises:
            OSError: As from `os.fsync`.
        """
        for descriptor in self.descriptors:
            os.fsync(descriptor)

    def close(self) -> None:
        """Closes both files."""
        for each in self._unnamed:
            each.detach()
        self._unnamed = []
        for descriptor in self.descriptors:
            os.close(descriptor)
        self._data = self._index = None


def index_size(count: int) -> int:
    """Size in bytes of an index file with so many messages."""
    return FILE_HEADER_SIZE + count * INDEX_RECORD_SIZE


def remove_slice(directory: Path, number: int, *, archive: bool = False) -> tuple[Path, Path] | None:
    """Removes a slice as the server does, the data file first (filestore.md sections 5.4 and 5.5).

    Args:
        directory: The channel's directory.
        number: The slice.
        archive: Rename the files to `.bak` instead, for an archive script.

    Returns:
        The archived data file and index, or None if they were removed.

    Raises:
        StoreUnwritableError: The files can be neither renamed nor removed.
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
                # As the server: without both files there is no archive.
                archived[0].unlink(missing_ok=True)
        data.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
    return None
