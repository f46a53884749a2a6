"""The store directory of a nats-server: its layout, and how a stream is placed in it.

Facts: jetstream-migration.md section 5.5.

    <store_dir>/jetstream/<account>/streams/<stream>/meta.inf      configuration, json (encrypted with a meta.key)
                                                     meta.sum      its hash
                                                     meta.key      only in an encrypted store
                                                     msgs/N.blk    messages
                                                     obs/<name>/   consumers
    <store_dir>/jetstream/$SYS/_js_/…                              raft state: this server belongs to a cluster

Seen with every version from 2.9 to 2.15: in an account's directory a server reads only `streams`. It removes hidden
directories among the streams when it starts (2.10 and later), or complains about them (2.9). So unfinished and
replaced streams lie beside `streams`, never in it:

    <account>/.<stream>.stantools-partial     unfinished, see `stantools.store.atomic`
    <account>/<stream>.replaced, .replaced-2  replaced streams

A killed run thus leaves nothing that a server could mistake for a stream, and a replaced stream is safe from
removal.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError, readable
from stantools.store.atomic import clear_leftovers, finish_replacement, new_directory, replacement_directory
from stantools.store.durable import fsync_directory, write_all, writing

#: account of a server without configured accounts
GLOBAL_ACCOUNT = "$G"
#: directory that the server adds to its `store_dir`
JETSTREAM = "jetstream"
STREAMS = "streams"
SYSTEM_ACCOUNT = "$SYS"
_RAFT = "_js_"
_META = "meta.inf"
_KEY = "meta.key"
#: bytes; no real configuration is larger
_META_MAX = 16 << 20


@dataclass(frozen=True)
class StreamDirectory:
    name: str  #: name of the stream and its directory
    path: Path
    config: dict[str, Any] | None  #: configuration; None if a server would not find a stream here

    @property
    def subjects(self) -> list[str]:
        """Subjects; none for mirrors and streams that only have sources."""
        config = self.config or {}
        given = config.get("subjects")
        if given or config.get("mirror") or config.get("sources"):
            return list(given or ())
        return [self.name] if self.config else []


@dataclass(frozen=True)
class StoreLayout:
    root: Path  #: the directory `jetstream`; may be missing
    #: streams of the selected account, by name
    streams: dict[str, StreamDirectory] = field(default_factory=dict)
    accounts: tuple[str, ...] = ()  #: accounts with a directory
    raft: Path | None = None  #: Raft state, if the server is or was in a cluster
    key: Path | None = None  #: a key file, if the store is encrypted

    def account_directory(self, account: str) -> Path:
        return self.root / account


def read_layout(store_dir: Path, account: str) -> StoreLayout:
    """Reads a store directory, read-only.

    `store_dir` is the server's `store_dir`, or the directory `jetstream` in it; it may be missing. Raises
    RefusedError for an unknown layout.
    """
    with readable(store_dir, "run it as the user that the nats-server runs as"):
        root = _root(store_dir)
        if not root.is_dir():
            return StoreLayout(root)
        accounts = _accounts(root)
        raft = next((place for each in accounts if (place := root / each / _RAFT).exists()), None)
        directories = (each for name in accounts for each in _directories(root / name / STREAMS))
        key = next((path for each in directories if (path := each / _KEY).exists()), None)
        found = () if key else _directories(root / account / STREAMS)
        streams = {each.name: StreamDirectory(each.name, each, _config(each)) for each in found}
    return StoreLayout(root, streams, tuple(accounts), raft, key)


def _root(store_dir: Path) -> Path:
    """Returns the directory of the accounts."""
    if not store_dir.exists():
        return store_dir / JETSTREAM
    if not store_dir.is_dir():
        raise _unknown(store_dir, "is not a directory")
    entries = sorted(entry.name for entry in store_dir.iterdir())
    if JETSTREAM in entries or not entries:
        return store_dir / JETSTREAM
    accounts = (store_dir / name for name in entries)
    if store_dir.name == JETSTREAM and all((each / STREAMS).is_dir() or (each / _RAFT).is_dir() for each in accounts):
        return store_dir
    raise _unknown(store_dir, f"has no directory {JETSTREAM}, but {entries[0]}")


def _accounts(root: Path) -> list[str]:
    names = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if not entry.is_dir():
            raise _unknown(Path(entry.path), "is not the directory of an account")
        names.append(entry.name)
    return names


def _directories(streams: Path) -> Iterator[Path]:
    """Yields the directories that a server takes for streams."""
    if streams.is_dir():
        for entry in os.scandir(streams):
            if entry.is_dir() and not entry.name.startswith("."):
                yield Path(entry.path)


def _config(directory: Path) -> dict[str, Any] | None:
    """Reads a stream's configuration; None if it is missing or names another stream: a server skips it as well."""
    meta = directory / _META
    try:
        with meta.open("rb") as file:
            config = json.loads(file.read(_META_MAX))
        name = config["name"]
        if not all(isinstance(subject, str) for subject in config.get("subjects") or ()):
            raise ValueError("subjects that are not strings")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise _unknown(meta, f"is not the configuration of a stream ({type(problem).__name__}: {problem})") from problem
    return dict(config) if name == directory.name else None


def _unknown(path: Path, flaw: str) -> RefusedError:
    return RefusedError(
        f"{path}: {flaw}; this is not the store directory of a nats-server",
        "name the directory that is `store_dir` in the server's configuration",
    )


_REPLACED = ".replaced"
#: mode of directories in a new store of a server
_NEW_MODE = 0o700


@dataclass(frozen=True)
class Ownership:
    """Owner and permissions of the files of a store."""

    user: int
    group: int
    mode: int  #: permission bits of directories

    @classmethod
    def around(cls, path: Path, root: Path) -> Ownership:
        """Returns those of a directory or its nearest existing parent.

        Parents above `root` do not belong to the server and may be open to more users.
        """
        existing = next(each for each in (path, *path.parents) if each.is_dir())
        status = existing.stat()
        mode = stat.S_IMODE(status.st_mode) & 0o777 if existing.is_relative_to(root) else _NEW_MODE
        return cls(status.st_uid, status.st_gid, mode)

    @property
    def file_mode(self) -> int:
        return self.mode & 0o666

    @property
    def possible(self) -> bool:
        """This process can create such files."""
        return os.geteuid() in (0, self.user)

    def give(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, self.user, self.group)


def fill(directory: Path, members: Iterable[tuple[str, bytes | memoryview]], owner: Ownership) -> None:
    """Writes the files of a stream into an empty directory. `members` are relative paths with `/`, and contents."""
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
    """Creates the parent directories of a stream; empty ones are removed at the end."""
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
            with suppress(OSError):  # not empty
                directory.rmdir()


@contextmanager
def arriving(target: Path, owner: Ownership) -> Iterator[tuple[Path, Path | None]]:
    """Yields an empty directory that becomes a stream at the end of the block, and the new path of the one there.

    `target` is `<account>/streams/<stream>`. Raises RefusedError if another run is placing this stream.
    """
    near, replaced = _beside(target), None
    if target.exists():
        number, replaced = 1, near.with_name(f"{near.name}{_REPLACED}")
        while os.path.lexists(replaced):
            number += 1
            replaced = near.with_name(f"{near.name}{_REPLACED}-{number}")
    untouched = "nothing was placed"
    building = (
        replacement_directory(target, replaced, near=near)
        if replaced
        else new_directory(target, untouched=untouched, near=near)
    )
    with building as content:
        yield content, replaced
        with writing("", untouched):
            owner.give(content, owner.mode)


def tidy(target: Path) -> Path | None:
    """Cleans up after a killed run; returns the new path of a stream that it had replaced."""
    kept = finish_replacement(target, _beside(target))
    clear_leftovers(target, _beside(target))
    return kept


def _beside(target: Path) -> Path:
    return target.parent.with_name(target.name)
