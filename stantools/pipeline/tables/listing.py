"""Directory listings, local or remote: names and sizes; no file is opened."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from stantools.errors import StoreUnreadableError
from stantools.store.mapping import mapped
from stantools.work import ThreadWork

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Directories to list before deciding whether threads pay.
_TRIAL_COUNT = 16
#: Seconds per directory above which threads pay: the time goes into waiting for a network.
_SLOW_SECONDS = 0.0005
_THREADS = 16
#: The innermost braces, which are expanded first.
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    name: str  #: bytes that are not UTF-8 are surrogate escapes
    size: int = 0  #: bytes; 0 for a directory
    directory: bool = False  #: a directory or a link to one
    link: bool = False  #: a symbolic link


class Listing(Protocol):
    def entries(self, path: str) -> list[DirectoryEntry]: ...

    def is_directory(self, path: str) -> bool | None:
        """Returns whether a path is a directory; None if it does not exist."""

    def identity(self, path: str) -> Hashable:
        """Returns a value that is equal for two paths to the same directory or file."""

    def join(self, path: str, name: str) -> str:
        """Returns the path of an entry; the name may have several parts."""

    def split(self, path: str) -> tuple[str, str]: ...

    def matches(self, pattern: str) -> list[str]:
        """Returns the sorted paths that match a glob pattern without braces."""

    def head(self, path: str, size: int) -> bytes: ...


class LocalPlace:
    def entries(self, path: str) -> list[DirectoryEntry]:
        try:
            with os.scandir(path) as found:
                entries = [_entry(each) for each in found]
        except OSError as error:
            raise StoreUnreadableError(
                f"{path}: cannot be listed: {error.strerror}", "check the path and the permissions"
            ) from error
        entries.sort(key=lambda entry: os.fsencode(entry.name))
        return entries

    def is_directory(self, path: str) -> bool | None:
        """As `Listing.is_directory`; a path that may not be examined counts as a directory."""
        try:
            Path(path).stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError:
            return True
        return Path(path).is_dir()

    def identity(self, path: str) -> Hashable:
        try:
            status = Path(path).stat()
        except OSError:
            return path
        return status.st_dev, status.st_ino

    def join(self, path: str, name: str) -> str:
        return f"{path}{name}" if path.endswith("/") else f"{path}/{name}"

    def split(self, path: str) -> tuple[str, str]:
        directory, name = os.path.split(path)
        return directory or ".", name

    def matches(self, pattern: str) -> list[str]:
        import glob

        return sorted((str(Path(each)) for each in glob.iglob(pattern, recursive=True)), key=os.fsencode)  # noqa: PTH207

    def head(self, path: str, size: int) -> bytes:
        with mapped(Path(path)) as content:
            return bytes(content[:size])


def is_pattern(path: str) -> bool:
    """Returns whether a path has glob characters: `*`, `?`, `[…]`, `{a,b}`."""
    return any(character in path for character in "*?[{")


def expand_braces(pattern: str) -> list[str]:
    """Returns the patterns that `{a,b}` expands to, in order."""
    match = _BRACES.search(pattern)
    if not match:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    parts = (each for part in match[1].split(",") for each in expand_braces(f"{before}{part}{after}"))
    return list(dict.fromkeys(parts))


def _entry(each: os.DirEntry[str]) -> DirectoryEntry:
    link = each.is_symlink()
    try:
        if each.is_dir():
            return DirectoryEntry(each.name, 0, True, link)
        return DirectoryEntry(each.name, each.stat().st_size, False, link)
    except OSError:
        return DirectoryEntry(each.name, 0, False, link)  # a broken link, or a file removed meanwhile


def listed(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Applies a function that lists or opens something to many items, in order; in threads if it is slow.

    On a local disk a thread costs more than a listing; over a network most of the time is waiting.
    """
    upcoming = iter(items)
    spent, count = 0.0, 0
    for item in upcoming:
        begin = time.perf_counter()
        result = function(item)
        spent += time.perf_counter() - begin
        count += 1
        yield result
        if count == _TRIAL_COUNT:
            break
    if count < _TRIAL_COUNT or spent / count < _SLOW_SECONDS:
        yield from map(function, upcoming)
        return
    yield from ThreadWork(_THREADS).in_order(function, upcoming)
