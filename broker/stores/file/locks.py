"""Who may write to a store's directory: one broker, and of a fault-tolerant group the one that has its lock.

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

#: Locks of this process, with how many stores share each: who opens a directory twice is trusted to know why.
_held: dict[Path, tuple[int, int]] = {}
#: Errors of a lock that another process holds, or that is not available at the moment.
_NOT_NOW: Final = (errno.EAGAIN, errno.EACCES, errno.EINTR, errno.ENOLCK)
#: Bytes of a group's name that are looked at.
_LONGEST: Final = 1024


def make_directory(root: Path) -> None:
    """Creates a store's directory, if it is not there.

    Raises:
        StorageError: It cannot be; the text is the original's.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "not a directory" if isinstance(error, FileExistsError) else (error.strerror or "").lower()
        raise StorageError(f"unable to create the root directory [{root}]: mkdir {root}: {reason}") from error


def lock_directory(root: Path) -> Path:
    """Takes the lock of a directory: two brokers that write the same files would destroy them.

    The lock is on the directory itself, so that no file is made that the original would not make. The original takes no
    lock, and does not see this one.

    Returns:
        What `unlock_directory` wants.

    Raises:
        InUseError: Another process has it.
        StorageError: The directory cannot be opened.
    """
    key = root.resolve()
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
                f"{root}: another broker is using this store; each needs a directory of its own"
            ) from error
        # A file system without locks: then there is none.
    _held[key] = descriptor, 1
    return key


def descriptor_of(key: Path) -> int:
    """Returns the open descriptor of a lock: the lock lasts as long as any process has it open."""
    return _held[key][0]


def unlock_directory(key: Path) -> None:
    """Releases a lock."""
    descriptor, users = _held.pop(key)
    if users > 1:
        _held[key] = descriptor, users - 1
    else:
        os.close(descriptor)


class GroupLock:
    """The lock that the active server of a fault-tolerant group has: the original's, which sees this one and is seen.

    It belongs to the process. Whatever closes the lock file in this process drops it: nothing else may open that file.
    The file is empty in the original's hands; here whoever has the lock writes the name of its group into it, so that a
    server of another group can say why it waits in vain.

    Args:
        directory: The store's.
        group: The group's name.
    """

    def __init__(self, directory: Path, group: bytes) -> None:
        self._path = directory / FT_LOCK_FILE
        self._group = group
        self._descriptor = -1

    def take(self) -> Attempt:
        """Tries to take it, without waiting for anybody but a file server."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (FileNotFoundError, PermissionError) as error:
            return Attempt(problem=f"open {self._path}: {(error.strerror or '').lower()}")
        except OSError:
            return Attempt()
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NOT_NOW:
                os.close(descriptor)
                return Attempt(problem=(error.strerror or str(error)).lower())
            holder = b""
            with suppress(OSError):
                holder = os.pread(descriptor, _LONGEST, 0)
            os.close(descriptor)
            return Attempt(holder=holder)
        self._descriptor = descriptor
        with suppress(OSError):  # it is for others to read, no more
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._group, 0)
        return Attempt(taken=True)

    def release(self) -> None:
        """Releases it, if it was taken; the file stays, empty as the original leaves it."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1
