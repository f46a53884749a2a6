"""Files as read-only buffers: mapped, never loaded whole (but for small ones), never changed."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stantools.errors import StoreUnreadableError

#: A read-only view of a file's bytes.
Buffer = memoryview

#: Up to this size reading costs a fifth of mapping, which counts in stores of thousands of small channels.
_SMALL = 1 << 16


@contextmanager
def mapped(path: Path, *, sequential: bool = False) -> Iterator[Buffer]:
    """Maps a file read-only for the length of the `with` block; a small one is read.

    The buffer has the file's size at the time of opening: what a running server appends later is not seen.

    Args:
        path: A regular file.
        sequential: Tell the kernel that the file will be read from start to end.

    Yields:
        The bytes of the file.

    Raises:
        StoreUnreadableError: The file is missing, not a regular file, or must not be read.
    """
    content = _open(path)
    view = memoryview(content)
    if isinstance(content, bytes):
        yield view
        return
    if sequential and hasattr(content, "madvise"):
        content.madvise(mmap.MADV_SEQUENTIAL)
    try:
        yield view
    finally:
        # Where a column or payload view still points into the mapping, it closes when the last view goes.
        with suppress(BufferError):
            view.release()
            content.close()


def _open(path: Path) -> mmap.mmap | bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise StoreUnreadableError(
            f"{path}: cannot be read: {error.strerror}",
            "check that the file is there and that you may read it",
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StoreUnreadableError(f"{path}: is not a regular file")
        try:
            if status.st_size <= _SMALL:
                return os.read(descriptor, status.st_size)
            return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StoreUnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


#: Bytes that are made ready at once: few enough that several workers and their indexes stay far below 300 MB.
WINDOW = 16 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which Python 3.11 does not name


class Window:
    """Goes along a mapped file from start to end, so that only a part of it occupies memory at any time.

    The pages ahead are mapped in one call instead of one fault each; those behind are let go, so that a file of any
    size takes no more than a few windows.

    Args:
        buffer: The file, as `mapped` gives it.
        size: Bytes of a window; less where many files are gone through at once.
        behind: Bytes that stay mapped before the place that is reached; a window if not given.
    """

    def __init__(self, buffer: Buffer, size: int = WINDOW, behind: int | None = None) -> None:
        mapping = buffer.obj
        self._mapping = mapping if isinstance(mapping, mmap.mmap) and hasattr(mapping, "madvise") else None
        self._size = size
        self._behind = size if behind is None else behind
        self._ready = 0
        self._kept = 0

    def reach(self, at: int) -> None:
        """Makes the bytes from `at` on ready, and lets go what lies further before it than is to stay."""
        if self._mapping is None or at + self._size // 2 <= self._ready:
            return
        behind = (at - self._behind) // mmap.PAGESIZE * mmap.PAGESIZE
        if behind > self._kept:
            self._mapping.madvise(mmap.MADV_DONTNEED, self._kept, behind - self._kept)
            self._kept = behind
        start = max(self._ready, at) // mmap.PAGESIZE * mmap.PAGESIZE
        length = min(self._size, len(self._mapping) - start)
        if length > 0:
            # Older systems do not know the advice; then every page is mapped when it is touched.
            with suppress(OSError):
                self._mapping.madvise(_POPULATE_READ, start, length)
            self._ready = start + length

    def drop(self) -> None:
        """Lets go of everything; what is looked at again is mapped again."""
        self._ready = self._kept = 0
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)
