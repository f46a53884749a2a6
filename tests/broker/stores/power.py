"""Machines whose power is lost: of files and names only what was synced is there afterwards for sure.

A file has at least the content of its last sync. What was written since then may be there, or zeros in its place, or
nothing of it; each file by itself. A directory has at least the names of its last sync; each change of its names since
then may be there or not, by itself. So a new name may lead to a file with nothing in it.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

#: Calls that change names, and those that change contents.
_NAMES = ("link", "unlink", "remove", "rename", "replace", "mkdir", "rmdir", "open")
_CONTENTS = ("write", "pwrite", "writev", "ftruncate", "truncate")
_PAGE = 4096

#: What a directory holds: the inode of each name.
_Names = dict[str, int]


@dataclass
class _File:
    """A file since its last sync."""

    synced: bytes = b""
    sizes: list[int] = field(default_factory=list)  #: after each write
    gone: bytes = b""  #: what it held when it lost its last name


class Machine:
    """Takes note of what is synced.

    Args:
        chance: Decides what is kept.
        tears: Whether a part of what one call has written may be there.
        look: Called before each call that changes something, with its name; not meanwhile.
    """

    def __init__(self, chance: random.Random, *, tears: bool = True, look: Callable[[str], None] | None = None) -> None:
        self.chance = chance
        self._tears = tears
        self.look = look
        self._paused = 0
        self._held: list[int] = []
        self._files: dict[int, _File] = {}
        self._names: dict[int, list[_Names]] = {}  # of directories: those that were synced, and all since then
        self._real: dict[str, Any] = {name: getattr(os, name) for name in (*_NAMES, *_CONTENTS, "fsync")}

    @contextmanager
    def watched(self) -> Iterator[None]:
        calls = {name: self._call_for(name) for name in (*_NAMES, *_CONTENTS)}
        try:
            with patch.multiple(os, fsync=self.fsync, **calls):
                yield
        finally:
            while self._held:
                os.close(self._held.pop())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing that happens meanwhile happens on this machine."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _call_for(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*arguments: Any, **more: Any) -> Any:
            if self._paused or (name == "open" and not self._makes(arguments)):
                return real(*arguments, **more)
            if self.look is not None:
                with self.paused():
                    self.look(name)
            if name in _CONTENTS:
                return self._write(real, arguments)
            places = [_directory(each, more) for each in arguments[: 2 if name in ("rename", "replace") else 1]]
            if name == "link":
                places = [_directory(arguments[1], {})]
            self._note(places, arguments, name, more)
            result = real(*arguments, **more)
            if name == "open":
                self._files[os.fstat(result).st_ino] = _File()
            elif name == "mkdir":
                self._names[Path(arguments[0]).stat().st_ino] = [{}]
            self._note(places, (), name, more)
            return result

        return call

    def _makes(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a call of `open` makes a file."""
        flags = arguments[1]
        without_name = getattr(os, "O_TMPFILE", 0)
        if without_name and flags & without_name == without_name:
            return True
        return bool(flags & os.O_CREAT) and not Path(os.fsdecode(arguments[0])).exists()

    def _write(self, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        result = real(*arguments)
        about = os.fstat(arguments[0]) if isinstance(arguments[0], int) else Path(arguments[0]).stat()
        if stat.S_ISREG(about.st_mode):
            self._file(about.st_ino).sizes.append(about.st_size)
        return result

    def _note(self, places: list[Path], arguments: tuple[Any, ...], name: str, more: dict[str, Any]) -> None:
        """Takes note of the names in directories, and of files that are about to lose theirs."""
        if arguments and name in ("rename", "replace", "unlink", "remove", "rmdir"):
            each = arguments[-1]
            with suppress(FileNotFoundError):
                path = _directory(each, more) / Path(os.fsdecode(each)).name
                # Its number is not given to another file meanwhile.
                self._held.append(self._real["open"](path, os.O_PATH))
                if not path.is_dir():
                    self._file(path.stat().st_ino).gone = path.read_bytes()
        for place in places:
            with suppress(FileNotFoundError):
                states = self._states(place)
                if (found := _names(place)) != states[-1]:
                    states.append(found)

    def _states(self, directory: Path) -> list[_Names]:
        return self._names.setdefault(directory.stat().st_ino, [_names(directory)])

    def _file(self, inode: int) -> _File:
        return self._files.setdefault(inode, _File())

    def fsync(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if self._paused:
            return
        if self.look is not None:
            with self.paused():
                self.look("fsync")
        if stat.S_ISDIR(about.st_mode):
            self._names[about.st_ino] = [_names(Path(f"/proc/self/fd/{descriptor}").readlink())]
        else:
            content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            self._files[about.st_ino] = _File(content, gone=content)

    def unsynced(self, root: Path) -> list[str]:
        """Returns the files with messages that are not synced as they are."""
        files = {path: path.stat() for path in root.rglob("msgs.*.dat")}
        return [str(path) for path, about in files.items() if len(self._file(about.st_ino).synced) < about.st_size]

    def lose_power(self, root: Path) -> None:
        """Leaves of a directory what is there afterwards, and goes on with that."""
        with self.paused():
            left = root.with_name(f"{root.name}.left")
            self.image(root, left)
            for path in (root, *root.rglob("*")):
                # Their numbers may be given to others.
                self._names.pop(path.stat().st_ino, None)
                self._files.pop(path.stat().st_ino, None)
            shutil.rmtree(root)
            left.rename(root)
        for base, _, files in os.walk(root):
            self._names[Path(base).stat().st_ino] = [_names(Path(base))]
            for name in files:
                path = Path(base, name)
                self._files[path.stat().st_ino] = _File(path.read_bytes())

    def image(self, root: Path, target: Path, how: str = "some") -> None:
        """Makes a copy of a directory as it may be after a loss of power.

        Args:
            root: The directory.
            target: Where the copy goes.
            how: `contents`: all names, and of the files what is synced; `names`: the other way round; `synced`: of both
                what is synced; `some`: by chance.
        """
        with self.paused():
            live = {path.stat().st_ino: path for path in root.rglob("*")}
            self._copy(root.stat().st_ino, target, live, how)

    def _copy(self, inode: int, target: Path, live: dict[int, Path], how: str) -> None:
        target.mkdir()
        for name, other in sorted(self._kept(self._names.get(inode, [{}]), how).items()):
            path = live.get(other)
            if (path is not None and path.is_dir()) or other in self._names:
                self._copy(other, target / name, live, how)
            else:
                file = self._files.get(other)
                now = path.read_bytes() if path is not None else file.gone if file is not None else b""
                (target / name).write_bytes(now if file is None else self._content(file, now, how))

    def _kept(self, states: list[_Names], how: str) -> _Names:
        if how != "some":
            return states[-1] if how == "contents" else states[0]
        one = self.chance.choice(states)
        if self.chance.random() < 0.5:
            return one
        every = {name for state in states for name in state}
        chosen = {name: self.chance.choice(states).get(name) for name in sorted(every)}
        return {name: inode for name, inode in chosen.items() if inode is not None}

    def _content(self, file: _File, now: bytes, how: str) -> bytes:
        synced, chance = file.synced, self.chance
        if how != "some":
            return now if how == "names" else synced
        if not now.startswith(synced) or not self._tears:
            # It was cut, or written anew in parts; or each call is there as a whole, as zeros, or not at all.
            sizes = [size for size in file.sizes if len(synced) < size <= len(now)]
            if not now.startswith(synced) or not sizes or chance.random() < 0.3:
                return chance.choice((synced, now))
            end = chance.choice(sizes)
            return now[:end] if chance.random() < 0.7 else now[:end] + bytes(max(chance.choice(sizes) - end, 0))
        end = chance.randint(len(synced), len(now))
        return now[:end] if chance.random() < 0.7 else now[:end] + bytes(len(now) - end)


def _names(directory: Path) -> _Names:
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _directory(path: Any, more: dict[str, Any]) -> Path:
    descriptor = more.get("dir_fd")
    if descriptor is not None:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    return Path(os.fsdecode(path)).parent
