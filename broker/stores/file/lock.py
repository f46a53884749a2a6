"""One broker for a directory: two that write the same files would destroy them (filestore.md section 12, W19).

The lock is on the directory itself, so that no file is made that the original would not make. The original takes no
lock, and does not see this one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from broker.stores.interface import StorageError

#: Locks of this process, with how many stores share each: who opens a directory twice is trusted to know why.
_held: dict[Path, tuple[int, int]] = {}


def lock_directory(root: Path) -> Path:
    """Takes the lock of a directory.

    Returns:
        What `unlock_directory` wants.

    Raises:
        StorageError: Another process has it.
        OSError: The directory cannot be opened.
    """
    key = root.resolve()
    if key in _held:
        descriptor, users = _held[key]
        _held[key] = descriptor, users + 1
        return key
    descriptor = os.open(key, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(descriptor)
            raise StorageError(f"{root}: another broker is using this store") from error
        # A file system without locks: then there is none.
    _held[key] = descriptor, 1
    return key


def unlock_directory(key: Path) -> None:
    """Gives a lock back."""
    descriptor, users = _held.pop(key)
    if users > 1:
        _held[key] = descriptor, users - 1
    else:
        os.close(descriptor)
