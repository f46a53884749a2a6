"""Writing to disk so that it stays: whole writes, fsync of files, directories and trees, atomic replacement.

The order is always: write, fsync what was written, rename, fsync the directory that holds the name. The
server leaves out most of this (filestore.md weaknesses W15 and W17).
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

#: A tree with more entries than this is synced by one syncfs() instead of an fsync() for each entry.
SYNCFS_FROM = 256

#: What a file system says that cannot sync a directory.
NO_SYNCS = (errno.EINVAL, errno.ENOTSUP)

#: What a file system says that knows no second name of a file.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_DESCRIPTORS = Path("/proc/self/fd")

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}

_REMEDIES = {
    errno.ENOSPC: "free some space or choose a place on another file system, then run it again",
    errno.EDQUOT: "the quota is used up: free some space or choose another place, then run it again",
    errno.EFBIG: "the file system does not take files of this size: choose another place",
    errno.EACCES: "run it as a user that may write there, or choose another place",
    errno.EPERM: "run it as a user that may write there, or choose another place",
    errno.EROFS: "the file system is mounted read-only: choose another place",
    errno.ENOENT: "create the directory that is to hold it first",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def unwritable(error: OSError, path: Path | str = "", untouched: str = "") -> StoreUnwritableError:
    """Turns an operating system error into ours, saying where, what is as it was, and what to do.

    Args:
        error: What the operating system said.
        path: What was being written; by default what the error names.
        untouched: A sentence on what is as it was before.
    """
    named = os.fsdecode(error.filename) if error.filename is not None else "output"
    text = f"{path or named}: cannot be written: {error.strerror or type(error).__name__}"
    if untouched:
        text = f"{text}; {untouched}"
    return StoreUnwritableError(text, _REMEDIES.get(error.errno or 0, "see to that, then run it again"))


@contextmanager
def writing(path: Path | str = "", untouched: str = "") -> Iterator[None]:
    """Turns every `OSError` of the block into a `StoreUnwritableError`, see `unwritable`."""
    try:
        yield
    except OSError as error:
        raise unwritable(error, path, untouched) from error


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Writes all of a buffer, also where the system takes it in pieces.

    Raises:
        OSError: As from `os.write`.
    """
    written = os.write(descriptor, data)
    if written == len(data):
        return
    view = memoryview(data).cast("B")
    while written < len(view):
        written += os.write(descriptor, view[written:])


def write_all_at(descriptor: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Does what `write_all` does, at an offset, of a file that is not in append mode.

    Raises:
        OSError: As from `os.pwrite`.
    """
    written = os.pwrite(descriptor, data, at)
    if written == len(data):
        return
    view = memoryview(data).cast("B")
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], at + written)


def open_directory(path: Path) -> int:
    """Opens a directory, to sync the names in it.

    Raises:
        OSError: As from `os.open`.
    """
    return os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))


def fsync_directory(path: Path) -> None:
    """Makes the names in a directory durable.

    Raises:
        OSError: As from `os.fsync`; a file system that cannot sync a directory is not an error.
    """
    descriptor = open_directory(path)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNCS:
            raise
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Makes a file's content durable.

    Raises:
        OSError: As from `os.fsync`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Makes a whole directory tree durable: every file, then every directory from the leaves up.

    Raises:
        OSError: As from `os.fsync`.
    """
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

    Args:
        directory: Where.
        prefix: Of its name.
        mode: Permission bits.
        flags: How it is opened, besides for reading and writing.

    Returns:
        An open, writable descriptor, and the path.

    Raises:
        OSError: It cannot be created.
    """
    while True:
        path = directory / f"{prefix}{int.from_bytes(os.urandom(8)) % 10**9:09d}"
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags, mode), path


def create_whole(path: Path, data: bytes) -> bool:
    """Creates a file that has its first bytes, durably, from the moment it has its name; see `UnnamedFile`.

    The name is durable when the directory is synced.

    Returns:
        Whether the file was made.
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
    """A file that gets its name when its first bytes are there.

    A file without its version header keeps a server from starting (filestore.md weakness W15). A kill leaves none if
    the file has its first bytes before it has its name, a loss of power none if these were synced before.

    Attributes:
        descriptor: Open for reading and appending; -1 if closed.
    """

    def __init__(self, path: Path, descriptor: int, temporary: Path | None) -> None:
        self.descriptor = descriptor
        self._path = path
        self._temporary = temporary

    @classmethod
    def create(cls, path: Path, data: bytes, mode: int = 0o666) -> Self | None:
        """Creates it with its first bytes.

        Returns:
            The file. None if anything fails: the caller then creates it as usual, and reports what fails.
        """
        without_name = getattr(os, "O_TMPFILE", 0) if _DESCRIPTORS.is_dir() else 0
        file = cls(path, -1, None)
        try:
            if without_name:
                with suppress(OSError):
                    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | without_name
                    file.descriptor = os.open(path.parent, flags, mode)
            if file.descriptor < 0:
                # A file system that cannot make files without a name.
                made = create_temporary(path.parent, f".{path.name}.", mode, os.O_APPEND)
                file.descriptor, file._temporary = made
            write_all(file.descriptor, data)
        except OSError:
            file.close()
            return None
        return file

    def link(self) -> None:
        """Gives it its name.

        Raises:
            OSError: As from `os.link`.
        """
        path = self._path
        if self._temporary is None:
            # From its descriptor: a link from no name to a name.
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
        """Returns the descriptor, which is the caller's to close then."""
        descriptor, self.descriptor = self.descriptor, -1
        self.close()
        return descriptor

    def close(self) -> None:
        """Closes it; without a name it is gone."""
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
    """Replaces the content of a file: the file has the old or the new content, never a part.

    Args:
        path: The file; it need not exist.
        data: The new content.
        mode: Permission bits; by default those of the file that is replaced, or what the umask leaves.

    Raises:
        StoreUnwritableError: It cannot be written; the old file is as it was.
    """
    with replacing(path, mode=mode) as descriptor:
        write_all(descriptor, data)


@contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[int]:
    """Opens a temporary file that becomes `path` when the block ends well; see `replace_file`.

    Yields:
        The descriptor to write to.

    Raises:
        StoreUnwritableError: It cannot be written; the old file is as it was.
    """
    with writing(path, "the old file is as it was" if path.exists() else ""):
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

    On Linux by one atomic system call. Where there is none (other systems, network file systems) by renames:
    `one` becomes `<two>.old`, `two` becomes `one`, `<two>.old` becomes `two`.

    Raises:
        OSError: It could not be done; both are as they were.
    """
    if not rename_exchange(one, two):
        aside = two.with_name(f"{two.name}.old")
        one.rename(aside)
        try:
            fsync_directory(aside.parent)
            two.rename(one)
        except OSError:
            aside.rename(one)
            raise
        fsync_directory(one.parent)
        aside.rename(two)
    # What `one` was first: at no moment may it be durable in neither place.
    fsync_directory(two.parent)
    fsync_directory(one.parent)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def sync_file_system(path: Path) -> bool:
    """Syncs the whole file system; False where the system cannot."""
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
    """Exchanges two names atomically; False where the system or the file system cannot."""
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
