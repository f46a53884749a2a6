"""Stores that only fsspec can open: their listings, and copies of the parts to read.

Readers map slices, so the selected part of a remote slice is copied into a private directory first, in blocks. The
index comes first: if it can be trusted and bounds are given, only that part of the data file is copied, into a file
with a hole in place of the rest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from stantools.errors import StoreUnreadableError, StoreUnwritableError
from stantools.install_hints import install_command
from stantools.pipeline.tables.listing import DirectoryEntry, Listing
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, SUBS_FILE

_Result = TypeVar("_Result")

#: bytes copied at once
_BLOCK = 4 << 20
#: Bytes of a file's head that suffice to recognise a polynomial.
_SAMPLE = 1 << 16
_CHANNELS_SAMPLED = 8
_FILE_URL = re.compile(r"file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^/@:\s]*):[^/@\s]*@")
_REMEDY = "check the URL, the credentials (options storage.…) and the network"


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL for fsspec; one of a local file is not."""
    return "://" in path and ("::" in path or _FILE_URL.match(path) is None)


def local_path(path: str) -> str:
    return path[match.end() :] if (match := _FILE_URL.match(path)) and "::" not in path else path


def shown_url(url: str) -> str:
    """Returns a URL without its password, for messages."""
    return _PASSWORD.sub(r"\1:***@", url)


def join_url(url: str, name: str) -> str:
    """Returns the URL of an entry in the directory of a URL, also in chains of URLs with `::`."""
    before, head, behind = _parts(url)
    head = head if head.endswith("/") else f"{head}/"
    return f"{before}{head}{name}{behind}"


def split_url(url: str) -> tuple[str, str]:
    """Returns the URL of the containing directory, and the name."""
    before, head, behind = _parts(url)
    protocol, path = head.split("://", 1)
    directory, _, name = path.rpartition("/")
    return f"{before}{protocol}://{directory}{behind}", name


def _parts(url: str) -> tuple[str, str, str]:
    """Splits a chain of URLs around the one that the path belongs to: the first that has one."""
    links = url.split("::")
    place = next((at for at, link in enumerate(links) if "://" in link), 0)
    before = "".join(f"{link}::" for link in links[:place])
    behind = "".join(f"::{link}" for link in links[place + 1 :])
    return before, links[place], behind


def normal_url(url: str) -> str:
    before, head, behind = _parts(url)
    protocol, path = head.split("://", 1)
    kept = path.rstrip("/")
    return f"{before}{protocol}://{kept or path[:1]}{behind}"


class RemoteFileSystem:
    """The file system of a URL; storage options `true`, `false` and with the prefix `json:` are json values."""

    def __init__(self, url: str, storage: Sequence[tuple[str, str]] = ()) -> None:
        self._url = shown_url(url)
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise StoreUnreadableError(
                f"{self._url}: is a URL, and the package fsspec is not installed", install_command("fsspec")
            ) from error
        settings = {name: _setting(name, value) for name, value in storage}
        self.fs: Any
        self.fs, _ = self.asked(self._url, lambda: url_to_fs(url, **settings))

    def asked(self, url: str, question: Callable[[], _Result]) -> _Result:
        """Runs a query; any failure becomes `StoreUnreadableError` (implementations for fsspec raise anything)."""
        try:
            return question()
        except (StoreUnreadableError, StoreUnwritableError):
            raise
        except FileNotFoundError as error:
            raise StoreUnreadableError(f"{shown_url(url)}: no such file or directory", _REMEDY) from error
        except ImportError as error:
            raise StoreUnreadableError(f"{shown_url(url)}: {error}", "install the named package") from error
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise StoreUnreadableError(f"{shown_url(url)}: cannot be read: {reason}", _REMEDY) from error

    def path(self, url: str) -> str:
        return str(self.fs._strip_protocol(_parts(url)[1]))

    def entries(self, url: str) -> list[DirectoryEntry]:
        path = self.path(url)
        found = self.asked(url, lambda: self.fs.ls(path, detail=True))
        return sorted_entries(_entry(info) for info in found if _key(info["name"]) != _key(path))

    def read(self, url: str, start: int, end: int) -> bytes:
        return bytes(self.asked(url, lambda: self.fs.cat_file(self.path(url), start=start, end=end)))

    def copy(self, url: str, target: Path, start: int = 0, end: int | None = None) -> None:
        """Copies a file, or a range of it to the same place of a file with a hole before it."""

        def copied() -> None:
            with self.fs.open(self.path(url), "rb") as source, _opened(target) as copy:
                if start:
                    source.seek(start)
                    copy.seek(start)
                left = end - start if end is not None else None
                while left is None or left > 0:
                    block = source.read(_BLOCK if left is None else min(left, _BLOCK))
                    if not block:
                        break
                    try:
                        copy.write(block)
                    except OSError as error:
                        raise _copy_failed(target, error) from error
                    left = left - len(block) if left is not None else None

        self.asked(url, copied)


def _opened(target: Path) -> Any:
    try:
        return target.open("r+b" if target.exists() else "wb")
    except OSError as error:
        raise _copy_failed(target, error) from error


def _copy_failed(target: Path, error: OSError) -> StoreUnwritableError:
    return StoreUnwritableError(
        f"{target}: the copy of a remote file cannot be written: {error.strerror}",
        "set TMPDIR to a directory with enough space for the largest slice of each task",
    )


def _setting(name: str, value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    if value.startswith("json:"):
        try:
            return json.loads(value[5:])
        except ValueError as error:
            raise StoreUnreadableError(
                f"option storage.{name}: the text after json: is not json", "leave json: out for a plain text"
            ) from error
    return value


def _key(name: str) -> str:
    return name.strip("/")


def _entry(info: dict[str, Any]) -> DirectoryEntry:
    name = _key(info["name"]).rpartition("/")[2]
    directory = info.get("type") == "directory"
    return DirectoryEntry(name, 0 if directory else int(info.get("size") or 0), directory, bool(info.get("islink")))


def sorted_entries(entries: Iterator[DirectoryEntry]) -> list[DirectoryEntry]:
    return sorted(entries, key=lambda entry: os.fsencode(entry.name))


class RemotePlace:
    """A directory tree at a URL. The first query lists all of it: object stores answer that best."""

    def __init__(self, url: str, options: TableOptions) -> None:
        self.remote = RemoteFileSystem(url, options.storage)
        self.remote.fs.invalidate_cache()
        self._directories: dict[str, dict[str, DirectoryEntry]] = {}

    def entries(self, path: str) -> list[DirectoryEntry]:
        known = self._directories.get(_key(self.remote.path(path)))
        return sorted_entries(iter(known.values())) if known is not None else self.remote.entries(path)

    def is_directory(self, path: str) -> bool | None:
        key = _key(self.remote.path(path))
        parent, _, name = key.rpartition("/")
        if key not in self._directories and name not in self._directories.get(parent, {}):
            self._load(path)
        if key in self._directories:
            return True
        return False if name in self._directories.get(parent, {}) else None

    def _load(self, url: str) -> None:
        path = self.remote.path(url)
        try:
            found = self.remote.asked(url, lambda: self.remote.fs.find(path, withdirs=True, detail=True))
        except StoreUnreadableError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return
            raise
        for info in found.values():
            key, entry = _key(info["name"]), _entry(info)
            if entry.directory:
                self._directories.setdefault(key, {})
            while True:
                parent, _, name = key.rpartition("/")
                if name:
                    self._directories.setdefault(parent, {})[name] = entry
                if not parent or len(parent) < len(_key(path)):
                    break
                key, entry = parent, DirectoryEntry(parent.rpartition("/")[2], 0, True)

    def identity(self, path: str) -> Hashable:
        return _key(self.remote.path(path)), _parts(path)[2]

    def join(self, path: str, name: str) -> str:
        return join_url(path, name)

    def split(self, path: str) -> tuple[str, str]:
        return split_url(path)

    def matches(self, pattern: str) -> list[str]:
        before, head, behind = _parts(pattern)
        protocol, path = head.split("://", 1)
        fixed = re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
        base = f"{before}{protocol}://{fixed}{behind}"
        own = _key(self.remote.path(base))
        found = self.remote.asked(pattern, lambda: self.remote.fs.glob(self.remote.path(pattern)))
        return [join_url(base, _key(each)[len(own) :].lstrip("/")) for each in sorted(map(str, found))]

    def head(self, path: str, size: int) -> bytes:
        return self.remote.read(path, 0, size)


def remote_place(url: str, options: TableOptions) -> tuple[RemotePlace, str]:
    """Returns the place of a URL, and the URL as the table shows it."""
    return RemotePlace(url, options), normal_url(url)


@contextmanager
def temporary_directory() -> Iterator[Path]:
    try:
        directory = tempfile.mkdtemp(prefix="stantools-")
    except OSError as error:
        raise StoreUnwritableError(
            f"no directory for copies of remote files can be made: {error.strerror}", "set TMPDIR to a writable one"
        ) from error
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def sampled(place: Listing, url: str, entries: Sequence[DirectoryEntry]) -> Iterator[str]:
    """Copies enough of a remote store to determine its release and its polynomial; yields the directory of the copy."""
    with temporary_directory() as copy:
        files = [entry for entry in entries if entry.name in (SERVER_FILE, CLIENTS_FILE) and not entry.directory]
        for entry in files:
            _sample(place, place.join(url, entry.name), copy / entry.name)
        if not any(entry.size > _HEADER for entry in files):
            for entry in [entry for entry in entries if entry.directory][:_CHANNELS_SAMPLED]:
                channel = place.join(url, entry.name)
                logs = [each for each in place.entries(channel) if not each.directory]
                chosen = [each for each in logs if each.name == SUBS_FILE]
                chosen += [each for each in logs if each.name.startswith("msgs.")][-4:]
                for each in chosen:
                    _sample(place, place.join(channel, each.name), copy / entry.name / each.name)
        yield str(copy)


#: bytes of a file without any record
_HEADER = 4


def _sample(place: Listing, url: str, copy: Path) -> None:
    head = place.head(url, _SAMPLE)
    try:
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(head)
    except OSError as error:
        raise _copy_failed(copy, error) from error
