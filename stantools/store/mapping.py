"""Files as read-only buffers: mapped, never loaded whole, never changed."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stantools.errors import StoreUnreadableError

#: A read-only view of a file's bytes; `b""` for an empty file, which cannot be mapped.
Buffer = memoryview


@contextmanager
def mapped(path: Path, *, sequential: bool = False) -> Iterator[Buffer]:
    """Maps a file read-only for the length of the `with` block.

    The buffer has the file's size at the time of opening: what a running server appends later is not seen.

    Args:
        path: A regular file.
        sequential: Tell the kernel that the file will be read from start to end.

    Yields:
        The bytes of the file.

    Raises:
        StoreUnreadableError: The file is missing, not a regular file, or must not be read.
    """
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
        if status.st_size == 0:
            yield memoryview(b"")
            return
        try:
            mapping = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StoreUnreadableError(f"{path}: cannot be mapped: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if sequential and hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_SEQUENTIAL)
    view = memoryview(mapping)
    try:
        yield view
    finally:
        # Where a column or payload view still points into the mapping, it closes when the last view goes.
        with suppress(BufferError):
            view.release()
            mapping.close()
