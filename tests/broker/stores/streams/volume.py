"""A file system that forgets: what a loss of power may leave of the files below a folder.

A file's content is safe when it was synced, the names in a directory when the directory was. Later writes and names may
be kept, in part, or not at all: of a content any part with zeros for the rest, of the names of a directory those of any
later moment.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

_NAMED = ("rename", "replace", "unlink", "remove", "link", "mkdir", "rmdir")
_SYNCED = ("fsync", "fdatasync")
#: the system's own calls: while one volume is watched, the next one is made
_CALLS = {name: getattr(os, name) for name in _NAMED}
_PAGE = 64

Names = dict[str, int]


class Volume:
    """Watches what is done below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._directories: dict[int, list[Names]] = {}  # by inode: its names, at every moment
        self._safe: dict[int, int] = {}  # by inode of a directory: the moment when it was synced
        self._synced: dict[int, bytes] = {}  # by inode of a file: its content when it was synced
        self._last: dict[int, bytes] = {}  # by inode: the last content that was seen
        self._held: list[int] = []  # descriptors of files and directories that are gone
        self.settle()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the calls of the system."""
        calls = {name: self._named(name) for name in _NAMED} | {name: self._sync(name) for name in _SYNCED}
        with mock.patch.multiple(os, **calls):
            yield

    def settle(self) -> None:
        """Everything is safe."""
        self._look()
        for inode, moments in self._directories.items():
            self._safe[inode] = len(moments) - 1
        self._synced.update(self._last)

    def _named(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self._look()
            if name not in ("link", "mkdir"):
                moved = name in ("rename", "replace")
                self._hold(arguments[moved], more.get("dst_dir_fd" if moved else "dir_fd"))
            return _CALLS[name](*arguments, **more)

        return call

    def _hold(self, path: Any, folder: int | None) -> None:
        """Keeps the inode of what is about to go from being used again."""
        with suppress(OSError):
            self._held.append(os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder))

    def release(self) -> None:
        """Closes what is open."""
        while self._held:
            os.close(self._held.pop())

    def _sync(self, name: str) -> Callable[..., Any]:
        def call(descriptor: int) -> None:
            self._look()
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                if found.st_ino in self._directories:
                    self._safe[found.st_ino] = len(self._directories[found.st_ino]) - 1
            elif found.st_ino in self._last:
                self._synced[found.st_ino] = self._last[found.st_ino]

        return call

    def _look(self) -> None:
        """Notices names and contents as they are."""
        todo = [str(self.root)]
        for path in todo:
            names: Names = {}
            for entry in os.scandir(path):
                inode = names[entry.name] = entry.inode()
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif inode not in self._last or not entry.name.startswith("meta."):
                    self._last[inode] = Path(entry.path).read_bytes()
            moments = self._directories.setdefault(Path(path).stat().st_ino, [{}])
            if moments[-1] != names:
                moments.append(names)

    def lose_power(self, chance: random.Random, to: Path) -> None:
        """Writes what is left into another folder."""
        self._look()
        self._leave(self.root.stat().st_ino, chance, to, earliest=True)
        self.release()

    def _leave(self, inode: int, chance: random.Random, to: Path, *, earliest: bool = False) -> None:
        to.mkdir(exist_ok=earliest)
        moments = self._directories[inode]
        safe = self._safe.get(inode, 0)
        for name, each in moments[
            chance.choice((safe, len(moments) - 1, chance.randint(safe, len(moments) - 1)))
        ].items():
            if each in self._directories:
                self._leave(each, chance, to / name)
            else:
                (to / name).write_bytes(self._content(each, chance))

    def _content(self, inode: int, chance: random.Random) -> bytes:
        old, new = self._synced.get(inode, b""), self._last.get(inode, b"")
        if old == new or chance.random() < 0.3:
            return old
        if chance.random() < 0.3:
            return new
        size = chance.randint(min(len(old), len(new)), max(len(old), len(new)))
        pages = range(0, size, _PAGE)
        kept = b"".join((old if chance.random() < 0.5 else new)[at : at + _PAGE].ljust(_PAGE, b"\0") for at in pages)
        return kept[:size] if len(old) <= size else old
