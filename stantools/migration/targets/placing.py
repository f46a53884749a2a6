"""Putting the directory of a stream into a store: built beside the streams, then renamed into place.

    <account>/streams/<stream>                where it belongs
    <account>/<stream>.stantools-new          whole and synced, on its way
    <account>/<stream>.replaced, .replaced-2  streams that others took the place of

A server looks at nothing of that but `streams` (see `storedir_layout`), so a killed run leaves nothing that it could
take for a stream, and the old stream is never where a server removes it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stantools.store.atomic import new_directory
from stantools.store.durable import exchange, fsync_directory, write_all, writing

_NEW = ".stantools-new"
_REPLACED = ".replaced"
#: As servers make the directories of a new store.
_NEW_MODE = 0o700


@dataclass(frozen=True)
class Ownership:
    """Whose the files of a store are, and who may read them.

    Attributes:
        user: Owner.
        group: Group.
        mode: Permission bits of directories.
    """

    user: int
    group: int
    mode: int

    @classmethod
    def around(cls, path: Path, root: Path) -> Ownership:
        """Returns that of a directory, or of the nearest one above it that is there.

        Args:
            path: The directory.
            root: From here on directories are the server's: what is above may be open to more users.

        Raises:
            OSError: None can be looked at.
        """
        existing = next(each for each in (path, *path.parents) if each.is_dir())
        status = existing.stat()
        mode = stat.S_IMODE(status.st_mode) & 0o777 if existing.is_relative_to(root) else _NEW_MODE
        return cls(status.st_uid, status.st_gid, mode)

    @property
    def file_mode(self) -> int:
        """Permission bits of files."""
        return self.mode & 0o666

    @property
    def possible(self) -> bool:
        """Whether we can make files that look so."""
        return os.geteuid() in (0, self.user)

    def give(self, path: Path, mode: int) -> None:
        """Makes a file or directory look so.

        Raises:
            OSError: As from chmod and chown.
        """
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, self.user, self.group)


def fill(directory: Path, members: Iterable[tuple[str, bytes | memoryview]], owner: Ownership) -> None:
    """Writes the files of a stream.

    Args:
        directory: An empty directory.
        members: Relative names with `/`, and contents.
        owner: What they are to look like.

    Raises:
        OSError: As from writing.
    """
    for name, content in members:
        path = directory / name
        for parent in reversed(path.relative_to(directory).parents[:-1]):
            if not (directory / parent).exists():
                (directory / parent).mkdir()
                owner.give(directory / parent, owner.mode)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        owner.give(path, owner.file_mode)


@contextmanager
def parents(streams: Path, owner: Ownership) -> Iterator[None]:
    """Makes the directories that are to hold a stream; those that are still empty afterwards are removed again.

    Raises:
        StoreUnwritableError: They cannot be made.
    """
    missing = [each for each in (streams, *streams.parents) if not each.exists()]
    with writing("", "nothing was placed"):
        for directory in reversed(missing):
            directory.mkdir()
            owner.give(directory, owner.mode)
            fsync_directory(directory.parent)
    try:
        yield
    finally:
        for directory in missing:
            with suppress(OSError):  # it holds something
                directory.rmdir()


@contextmanager
def arriving(target: Path, owner: Ownership) -> Iterator[Path]:
    """Builds a stream's directory that takes its place, or the place of the one that is there, by one rename.

    Args:
        target: `<account>/streams/<stream>`.
        owner: What it is to look like.

    Yields:
        The directory to fill.

    Raises:
        StoreUnwritableError: It cannot be written.
        RefusedError: Another run is placing this stream.
    """
    new = _beside(target, _NEW)
    with new_directory(new, untouched="nothing was placed") as content:
        yield content
        with writing("", "nothing was placed"):
            owner.give(content, owner.mode)


def move_in(target: Path) -> Path | None:
    """Moves a stream that was built by `arriving` to where it belongs.

    Returns:
        Where the stream is now that was there before, None if there was none.

    Raises:
        StoreUnwritableError: It cannot be renamed; the store is as it was.
    """
    new = _beside(target, _NEW)
    with writing(target, f"the new stream is whole, in {new}"):
        if not target.exists():
            new.rename(target)
            fsync_directory(target.parent)
            fsync_directory(new.parent)
            return None
        exchange(target, new)
        return _set_aside(new, target)


def give_up(target: Path) -> None:
    """Removes a stream that was built by `arriving` and is not to be moved in after all.

    Raises:
        StoreUnwritableError: It cannot be removed.
    """
    new = _beside(target, _NEW)
    with writing(new, "nothing was placed"):
        shutil.rmtree(new)


def tidy(target: Path) -> Path | None:
    """Deals with what a killed run left on its way into a store.

    A directory that never arrived is removed. Where there is a stream in its place, the directory may be the old one
    already, so it is kept under the name for what was replaced.

    Returns:
        Where something was put aside, None if nothing was.

    Raises:
        StoreUnwritableError: It cannot be renamed or removed.
    """
    new = _beside(target, _NEW)
    aside = new.with_name(f"{new.name}.old")
    with writing("", "nothing was placed"):
        if aside.is_dir():
            # An exchange by renames (see `exchange`), ended between two of them: this is the old stream.
            if target.exists():
                return _set_aside(aside, target)
            aside.rename(target)
            fsync_directory(target.parent)
            if new.is_dir():
                shutil.rmtree(new)
            return None
        if not new.is_dir():
            return None
        if target.exists():
            return _set_aside(new, target)
        shutil.rmtree(new)
    return None


def _set_aside(directory: Path, target: Path) -> Path:
    place, number = _beside(target, _REPLACED), 1
    while os.path.lexists(place):
        number += 1
        place = _beside(target, f"{_REPLACED}-{number}")
    directory.rename(place)
    fsync_directory(place.parent)
    return place


def _beside(target: Path, suffix: str) -> Path:
    return target.parent.parent / f"{target.name}{suffix}"
