"""Files as read-only buffers: mapped, not loaded (except small ones), and never changed."""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stantools.errors import STILL_THERE, StoreChangedError, StoreUnreadableError, readable
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.store.permissions import refusal

if TYPE_CHECKING:
    from stantools.store.directory import FileSnapshot

#: a read-only view of a file's bytes
Buffer = memoryview

#: bytes up to which reading costs a fifth of mapping, which counts in stores of thousands of small channels
_MAX_READ = 1 << 16


class _GuardedMapping(mmap.mmap):
    """A mapped file that detects the loss of its bytes."""

    path: Path
    status: os.stat_result  #: state of the file when it was opened
    _file: io.FileIO | None = None
    _data = 0, 0

    def __init__(self, *_: Any, **__: Any) -> None:
        from stantools.store.guard import Guard  # loaded with the first large file

        self._guard = Guard()
        self._guard.watch(self)

    def close(self) -> None:
        # the addresses may belong to another mapping after this one is closed
        self._guard.leave()
        if self._file:
            self._file.close()
            self._file = None
        try:
            super().close()
        except BufferError:
            self._guard.watch(self)
            raise

    def data_from(self, at: int) -> tuple[int, int]:
        """Returns the first range from `at` on that is on disk; bytes before and after it read as zeros."""
        begin, end = self._data
        if not begin <= at < end:
            begin = self._seek(at, "SEEK_DATA", at)
            end = self._seek(begin, "SEEK_HOLE", len(self)) if begin < len(self) else begin
            self._data = begin, end
        return max(at, begin), end

    def _seek(self, at: int, whence: str, default: int) -> int:
        try:
            if not hasattr(os, whence) or (file := self._open_file()) is None:
                return default
            return min(os.lseek(file.fileno(), at, getattr(os, whence)), len(self))
        except OSError as error:
            return len(self) if error.errno == errno.ENXIO else default

    def descriptor(self) -> int | None:
        """Returns the file's descriptor; None if another file has its name."""
        try:
            file = self._open_file()
        except OSError:
            return None
        return None if file is None else file.fileno()

    def _open_file(self) -> io.FileIO | None:
        """The mapped file, opened again; None if another file has its name."""
        if self._file is None:
            self._file = io.FileIO(self.path)
        return self._file if os.path.samestat(os.fstat(self._file.fileno()), self.status) else None

    def check(self, end: int) -> None:
        """Raises StoreChangedError if the file's first `end` bytes are no longer there or readable."""
        if self.size() < end:
            raise _truncation_error(self.path, len(self), self.size())
        if self._guard.fault >= 0:
            raise StoreChangedError(
                f"{self.path}: cannot be read from byte {self._guard.fault} on, though it has {self.size()} bytes: "
                "it was truncated and rewritten while it was read, or its disk returns errors",
                "check the system log for errors of the disk; copy the store to another disk, with ddrescue where a "
                "plain copy fails, and run the command on the copy",
            )


def _truncation_error(path: Path, before: int, now: int) -> StoreChangedError:
    return StoreChangedError(
        f"{path}: was truncated while it was read: it had {before} bytes and now has {now}; "
        "expected was a file that only grows",
        "stop all writes to the store (by a server, another tool, an unfinished copy) and run the command again",
    )


@contextmanager
def mapped(path: Path, *, sequential: bool = False, snapshot: FileSnapshot | None = None) -> Iterator[Buffer]:
    """Maps a file read-only for the length of the `with` block; a small one is read.

    The buffer has the file's size at the time of opening; bytes that a running server appends later are not in it.
    If the file becomes shorter, the lost bytes read as zeros, and `MappedWindow.reach` or the end of the block raises
    StoreChangedError. `sequential` advises the kernel of a read from start to end.

    Bytes appended after `snapshot`, an earlier state of the file, are left out. Raises StoreUnreadableError if the file
    is missing, not a regular file, or must not be read.
    """
    content = open_mapped(path, snapshot)
    view = memoryview(content)
    if isinstance(content, bytes):
        yield view
        return
    if sequential and hasattr(content, "madvise"):
        content.madvise(mmap.MADV_SEQUENTIAL)
    try:
        try:
            yield view
        except Exception as error:
            # zeros may have caused the error
            if not isinstance(error, StoreChangedError):
                content.check(len(content))
            raise
        content.check(len(content))
    finally:
        # If a column or payload view still points into the mapping, it closes with the last view.
        with suppress(BufferError):
            view.release()
            content.close()


def open_regular(path: Path | str) -> tuple[int, os.stat_result]:
    """Opens a file for reading; returns its descriptor and state."""
    try:
        with readable(path, STILL_THERE):
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    except StoreUnreadableError as error:
        if isinstance(error.__cause__, PermissionError):
            raise refusal(Path(path), [Path(path)]) from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise StoreUnreadableError(f"{path}: is not a regular file")
    return descriptor, status


def open_mapped(path: Path, snapshot: FileSnapshot | None = None) -> _GuardedMapping | bytes:
    """Maps a file, or reads a small one; `mapped` closes it."""
    descriptor, status = open_regular(path)
    try:
        try:
            size = (
                min(status.st_size, snapshot.size) if snapshot and snapshot.inode == status.st_ino else status.st_size
            )
            if size <= _MAX_READ:
                return os.read(descriptor, size)
            mapping = _GuardedMapping(descriptor, size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StoreUnreadableError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:  # the file is shorter by now
            raise _truncation_error(path, size, os.fstat(descriptor).st_size) from error
        mapping.path = path
        mapping.status = status
        return mapping
    finally:
        os.close(descriptor)


def data_from(buffer: Buffer, at: int) -> tuple[int, int]:
    """Finds the data of a file: a sparse one may be a thousand times larger than its data.

    Returns the first range from `at` on that may hold anything but zeros; empty, at the end, if there is none. The
    buffer may also be plain bytes.
    """
    mapping = buffer.obj
    return mapping.data_from(at) if isinstance(mapping, _GuardedMapping) else (at, len(buffer))


def descriptor_of(buffer: Buffer) -> int | None:
    """Returns the descriptor of a mapped file, which stays open as long as the file is mapped.

    None if the buffer is not a mapped file, or another file has its name.
    """
    mapping = buffer.obj
    return mapping.descriptor() if isinstance(mapping, _GuardedMapping) else None


def find_in_data(buffer: Buffer, start: int, limit: int, find: Callable[[int, int], int]) -> int:
    """Searches for a record, skipping ranges that are not on disk.

    `find` gets the start of a search, and an offset before which the record must begin; both functions return -1 if
    there is none.
    """
    while start < limit:
        begin, end = data_from(buffer, start)
        # A header may begin with zeros that are not on disk.
        found = find(max(start, begin - RECORD_HEADER_SIZE), min(end, limit))
        if found >= 0 or end >= limit:
            return found
        start = end
    return -1


#: Bytes per step: few enough that several workers and their indexes stay far below 300 MB.
WINDOW = 16 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which Python 3.11 does not name


class MappedWindow:
    """A pass over a mapped file from start to end, with only a part of it in memory.

    The pages ahead are mapped by one call instead of one fault each; those further back than `retained` (a window by
    default) are released, so that a file of any size takes no more than a few windows. `size` is smaller where many
    files are read at once.
    """

    def __init__(self, buffer: Buffer, size: int = WINDOW, retained: int | None = None) -> None:
        mapping = buffer.obj
        self._mapping = mapping if isinstance(mapping, _GuardedMapping) and hasattr(mapping, "madvise") else None
        self._size = size
        self._retained = size if retained is None else retained
        self._populated = 0
        self._released = 0

    def reach(self, at: int) -> None:
        """Maps the bytes from `at` on, and releases those further back.

        Raises StoreChangedError if the file has become shorter.
        """
        if self._mapping is None or at + self._size // 2 <= self._populated:
            return
        self.check()
        end = (at - self._retained) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > self._released:
            self._mapping.madvise(mmap.MADV_DONTNEED, self._released, end - self._released)
            self._released = end
        start = max(self._populated, at) // mmap.PAGESIZE * mmap.PAGESIZE
        length = min(self._size, len(self._mapping) - start)
        if length > 0:
            # Older systems do not know the advice; then every page is mapped at its first access.
            with suppress(OSError):
                self._mapping.madvise(_POPULATE_READ, start, length)
            self._populated = start + length

    def check(self, end: int | None = None) -> None:
        """Raises StoreChangedError if the file's first `end` bytes (by default all) are no longer there."""
        if self._mapping is not None:
            self._mapping.check(len(self._mapping) if end is None else end)

    def drop(self) -> None:
        """Releases all pages; later accesses map them again."""
        self._populated = self._released = 0
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)
