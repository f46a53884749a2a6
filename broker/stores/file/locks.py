"""Locks of a store's directory: for one broker, and for the active server of a fault-tolerant group.

Facts: filestore.md sections 1.4 and 12 (W19), high-availability.md section A.2.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.stores.interface import Attempt, InUseError, StorageError
from stantools.store.directory import FT_LOCK_FILE

#: Descriptors of this process's locks, and how many stores share each: a caller that opens a directory twice is
#: trusted.
_held: dict[Path, tuple[int, int]] = {}
#: Errors of a lock that another process holds, or that is not available at the moment.
_UNAVAILABLE: Final = (errno.EAGAIN, errno.EACCES, errno.EINTR, errno.ENOLCK)
#: bytes of a group's name that are read
_MAX_NAME: Final = 1024


def make_directory(root: Path) -> None:
    """Creates a store's directory if necessary. A StorageError has the original's text."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "not a directory" if isinstance(error, FileExistsError) else (error.strerror or "").lower()
        raise StorageError(f"unable to create the root directory [{root}]: mkdir {root}: {reason}") from error


def lock_directory(root: Path) -> Path:
    """Locks a directory, as two brokers that write the same files would destroy them; InUseError if another has it.

    The lock is on the directory itself, so that no file is made that the original would not make. The original does
    not use this lock. Returns the key for `unlock_directory`.
    """
    key = Path(os.path.realpath(root))
    if key in _held:
        descriptor, users = _held[key]
        _held[key] = descriptor, users + 1
        return key
    try:
        descriptor = os.open(key, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"open {root}: {(error.strerror or '').lower()}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(descriptor)
            raise InUseError(
                f"{root}: another broker is using this store; each broker needs its own directory"
            ) from error
        # The file system has no locks: the store is used without one.
    _held[key] = descriptor, 1
    return key


def descriptor_of(key: Path) -> int:
    """Returns the open descriptor of a lock, which lasts as long as any process has it open."""
    return _held[key][0]


def unlock_directory(key: Path) -> None:
    descriptor, users = _held.pop(key)
    if users > 1:
        _held[key] = descriptor, users - 1
    else:
        os.close(descriptor)


class GroupLock:
    """The lock of a fault-tolerant group's active server: the original's, so that both servers respect it.

    It belongs to the process: closing the lock file anywhere in this process drops it, so no other code may open
    that file. The original leaves the file empty; here the holder writes the name of its group into it, so that a
    waiting server of another group can name the reason.
    """

    def __init__(self, directory: Path, group: bytes) -> None:
        self._path = directory / FT_LOCK_FILE
        self._group = group
        self._descriptor = -1

    def take(self) -> Attempt:
        """Tries to take the lock; waits for a file server only."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (FileNotFoundError, PermissionError) as error:
            return Attempt(problem=f"open {self._path}: {(error.strerror or '').lower()}")
        except OSError:
            return Attempt()
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _UNAVAILABLE:
                os.close(descriptor)
                return Attempt(problem=(error.strerror or str(error)).lower())
            holder = b""
            with suppress(OSError):
                holder = os.pread(descriptor, _MAX_NAME, 0)
            os.close(descriptor)
            return Attempt(holder=holder)
        self._descriptor = descriptor
        with suppress(OSError):  # the name is only information
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._group, 0)
        return Attempt(taken=True)

    def release(self) -> None:
        """Releases the lock, if it was taken; the file stays, empty as the original leaves it."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1
