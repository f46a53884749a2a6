"""Durable writes: whole writes, fsync of files, directories and trees, atomic replacement.

The order is always: write, fsync the content, rename, fsync the directory that holds the name. The server omits most
of this (filestore.md weaknesses W15 and W17).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from stantools.errors import StoreUnwritableError

#: A tree with more entries than this is synced by one syncfs() instead of an fsync() per entry.
SYNCFS_FROM = 256

#: errors of a file system that cannot sync a directory
NO_SYNCS = (errno.EINVAL, errno.ENOTSUP)

#: errors of a file system without hard links
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_DESCRIPTORS = Path("/proc/self/fd")

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}

_REMEDIES = {
    errno.ENOSPC: "free some space or choose a place on another file system, then run it again",
    errno.EDQUOT: "the quota is exhausted: free some space or choose another place, then run it again",
    errno.EFBIG: "the file system does not take files of this size: choose another place",
    errno.EACCES: "run it as a user that may write there, or choose another place",
    errno.EPERM: "run it as a user that may write there, or choose another place",
    errno.EROFS: "the file system is mounted read-only: choose another place",
    errno.ENOENT: "create the parent directory first",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def unwritable(error: OSError, path: Path | str = "", untouched: str = "") -> StoreUnwritableError:
    """Turns an operating system error into ours, with path and remedy; `untouched` names the unchanged files."""
    named = os.fsdecode(error.filename) if error.filename is not None else "output"
    text = f"{path or named}: cannot be written: {error.strerror or type(error).__name__}"
    if untouched:
        text = f"{text}; {untouched}"
    return StoreUnwritableError(text, _REMEDIES.get(error.errno or 0, "fix that, then run it again"))


@contextmanager
def writing(path: Path | str = "", untouched: str = "") -> Iterator[None]:
    """Turns every `OSError` of the block into a `StoreUnwritableError`, see `unwritable`."""
    try:
        yield
    except OSError as error:
        raise unwritable(error, path, untouched) from error


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Writes all of a buffer, even if the system takes it in pieces."""
    written = os.write(descriptor, data)
    if written == len(data):
        return
    view = memoryview(data).cast("B")
    while written < len(view):
        written += os.write(descriptor, view[written:])


def write_all_at(descriptor: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Writes all of a buffer at an offset of a file that is not in append mode."""
    written = os.pwrite(descriptor, data, at)
    if written == len(data):
        return
    view = memoryview(data).cast("B")
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], at + written)


def open_directory(path: Path) -> int:
    return os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))


def fsync_directory(path: Path) -> None:
    """Makes the names in a directory durable; a file system that cannot sync directories is not an error."""
    descriptor = open_directory(path)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNCS:
            raise
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Makes a whole directory tree durable: every file, then every directory from the leaves up."""
    files: list[Path] = []
    directories: list[Path] = []
    for base, _, names in os.walk(root):
        directories.append(Path(base))
        files += [Path(base, name) for name in names]
    if len(files) + len(directories) > SYNCFS_FROM and sync_file_system(root):
        return
    for file in files:
        if not file.is_symlink():
            fsync_file(file)
    for directory in reversed(directories):
        fsync_directory(directory)


def create_temporary(directory: Path, prefix: str, mode: int = 0o600, flags: int = 0) -> tuple[int, Path]:
    """Creates a new file `<prefix><digits>`, as the server names its temporary files (filestore.md section 1.1).

    `flags` are added to those for reading and writing. Returns an open descriptor, and the path.
    """
    while True:
        path = directory / f"{prefix}{int.from_bytes(os.urandom(8)) % 10**9:09d}"
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags, mode), path


def create_whole(path: Path, data: bytes) -> bool:
    """Creates a file that has its first bytes, durably, from the moment it has its name; see `UnnamedFile`.

    The name is durable after a sync of the directory. Returns whether the file was made.
    """
    if path.exists() or (file := UnnamedFile.create(path, data)) is None:
        return False
    with file:
        try:
            os.fsync(file.descriptor)
            file.link()
        except OSError:
            return False
    return True


class UnnamedFile:
    """A file that gets its name after its first bytes.

    A file without its version header keeps a server from starting (filestore.md weakness W15). A kill leaves none if
    the file has its first bytes before it has its name, a power failure none if these were synced before.
    `descriptor` is open for reading and appending; -1 if closed.
    """

    def __init__(self, path: Path, descriptor: int, temporary: Path | None) -> None:
        self.descriptor = descriptor
        self._path = path
        self._temporary = temporary

    @classmethod
    def create(cls, path: Path, data: bytes, mode: int = 0o666) -> Self | None:
        """Creates the file with its first bytes.

        Returns None on any failure: the caller then creates the file in the usual way, and reports errors.
        """
        without_name = getattr(os, "O_TMPFILE", 0) if _DESCRIPTORS.is_dir() else 0
        file = cls(path, -1, None)
        try:
            if without_name:
                with suppress(OSError):
                    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | without_name
                    file.descriptor = os.open(path.parent, flags, mode)
            if file.descriptor < 0:
                # a file system that cannot make files without a name
                made = create_temporary(path.parent, f".{path.name}.", mode, os.O_APPEND)
                file.descriptor, file._temporary = made
            write_all(file.descriptor, data)
        except OSError:
            file.close()
            return None
        return file

    def link(self) -> None:
        path = self._path
        if self._temporary is None:
            # a link from the descriptor to the name
            os.link(f"{_DESCRIPTORS}/{self.descriptor}", path, src_dir_fd=self.descriptor, follow_symlinks=True)
            return
        try:
            os.link(self._temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS or path.exists():
                raise
            self._temporary.rename(path)
            self._temporary = None

    def detach(self) -> int:
        descriptor, self.descriptor = self.descriptor, -1
        self.close()
        return descriptor

    def close(self) -> None:
        """Closes the file; without a name it is deleted."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def replace_file(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replaces the content of a file, which has either the old or the new content at any time.

    The file need not exist. `mode` defaults to that of the replaced file, or to the umask's. After a
    StoreUnwritableError the old file is unchanged.
    """
    with replacing(path, mode=mode) as descriptor:
        write_all(descriptor, data)


@contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[int]:
    """Opens a temporary file that becomes `path` when the block succeeds; see `replace_file`.

    Yields the descriptor for writing.
    """
    with writing(path, "the old file is unchanged" if path.exists() else ""):
        if mode is None and path.exists():
            mode = stat.S_IMODE(path.stat().st_mode)
        descriptor, temporary = create_temporary(path.parent, f".{path.name}.", 0o666)
        try:
            try:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                yield descriptor
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_directory(path.parent)


def exchange(one: Path, two: Path) -> None:
    """Exchanges two directories of the same file system.

    On Linux by one atomic system call. Elsewhere (other systems, network file systems) by renames: `one` becomes
    `<two>.old`, `two` becomes `one`, `<two>.old` becomes `two`. After an OSError both are unchanged.
    """
    if not rename_exchange(one, two):
        moved = two.with_name(f"{two.name}.old")
        one.rename(moved)
        try:
            fsync_directory(moved.parent)
            two.rename(one)
        except OSError:
            moved.rename(one)
            raise
        fsync_directory(one.parent)
        moved.rename(two)
    # The old content of `one` must be durable in one of the two places at any time.
    fsync_directory(two.parent)
    fsync_directory(one.parent)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def sync_file_system(path: Path) -> bool:
    """Syncs the whole file system; False if the system cannot."""
    libc = _libc()
    if libc is None or not hasattr(libc, "syncfs"):
        return False
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)
    return True


def rename_exchange(one: Path, two: Path) -> bool:
    """Exchanges two names atomically; False if the system or the file system cannot."""
    libc = _libc()
    if libc is None:
        return False
    names = os.fsencode(one), os.fsencode(two)
    if hasattr(libc, "renameat2"):
        outcome = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    elif (number := _RENAMEAT2.get(os.uname().machine)) is not None:
        outcome = libc.syscall(number, _AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    else:
        return False
    if outcome == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(two))
