"""Reading pieces of files that stay open: what a window needs of slices that may be of any size, and may vanish.

Files are read, not mapped: a mapping that is kept would end the program if another one cut the file.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from pathlib import Path

from stantools.errors import StoreUnreadableError

#: Files that are open at the same time.
_OPEN = 16


class OpenFiles:
    """A few open files. A file that is removed while it is open can be read on."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Reads a part of a file; less than asked for if the file ends before.

        Args:
            path: A regular file.
            offset: First byte.
            size: How many bytes.

        Raises:
            StoreUnreadableError: The file is missing, not a regular file, or cannot be read.
        """
        if size <= 0 or offset < 0:
            return b""
        try:
            return os.pread(self._descriptor(path), size, offset)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise StoreUnreadableError(f"{path}: cannot be read: {reason}") from error

    def _descriptor(self, path: Path) -> int:
        found = self._descriptors.get(path)
        if found is not None:
            self._descriptors.move_to_end(path)
            return found
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreUnreadableError(f"{path}: is not a regular file")
        self._descriptors[path] = descriptor
        if len(self._descriptors) > _OPEN:
            os.close(self._descriptors.popitem(last=False)[1])
        return descriptor

    def close(self) -> None:
        """Closes all files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __del__(self) -> None:
        self.close()
