"""The store directory of a nats-server: what lies in it, and how a stream gets there.

Facts: jetstream-migration.md section 5.5.

    <store_dir>/jetstream/<account>/streams/<stream>/meta.inf      configuration, json (encrypted where meta.key is)
                                                     meta.sum      its hash
                                                     meta.key      only in an encrypted store
                                                     msgs/N.blk    messages
                                                     obs/<name>/   consumers
    <store_dir>/jetstream/$SYS/_js_/…                              raft state: this server belongs to a cluster

Seen with every version from 2.9 to 2.15: a server looks at nothing in an account's directory but `streams`. Hidden
directories among the streams it removes when it starts (2.10 and later), or complains about (2.9). So what is
unfinished or was replaced lies beside `streams`, never in it:

    <account>/<stream>.stantools-new          whole and synced, on its way
    <account>/<stream>.replaced, .replaced-2  streams that others took the place of

So a killed run leaves nothing that a server could take for a stream, and the old stream is never where a server removes
it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError, readable
from stantools.store.atomic import new_directory
from stantools.store.durable import exchange, fsync_directory, write_all, writing

#: The account of a server that was not told of any.
GLOBAL_ACCOUNT = "$G"
#: Added by the server to the directory that it is given.
JETSTREAM = "jetstream"
STREAMS = "streams"
SYSTEM_ACCOUNT = "$SYS"
_RAFT = "_js_"
_META = "meta.inf"
_KEY = "meta.key"
#: More than any real configuration.
_META_MAX = 16 << 20


@dataclass(frozen=True)
class StreamDirectory:
    """A stream that lies in a store."""

    name: str  #: its name, which is also the directory's
    path: Path  #: its directory
    config: dict[str, Any] | None  #: its configuration; None if the server will not find a stream here either

    @property
    def subjects(self) -> list[str]:
        """What it listens on; nothing for mirrors and streams that only have sources."""
        config = self.config or {}
        given = config.get("subjects")
        if given or config.get("mirror") or config.get("sources"):
            return list(given or ())
        return [self.name] if self.config else []


@dataclass(frozen=True)
class Layout:
    """What lies in a store directory."""

    root: Path  #: the directory `jetstream`; it need not exist
    #: The streams of the account that was asked for, by name.
    streams: dict[str, StreamDirectory] = field(default_factory=dict)
    accounts: tuple[str, ...] = ()  #: the accounts that have a directory
    raft: Path | None = None  #: Raft state, if the server belongs, or belonged, to a cluster
    key: Path | None = None  #: a key file, if the store is encrypted

    def account_directory(self, account: str) -> Path:
        """Where an account's streams are, or would be."""
        return self.root / account


def read_layout(store_dir: Path, account: str) -> Layout:
    """Looks at a store directory, changing nothing.

    Args:
        store_dir: What the server has as `store_dir`, or the directory `jetstream` in it. It need not exist.
        account: The account whose streams are wanted.

    Raises:
        StoreUnreadableError: It cannot be read.
        RefusedError: It does not look as servers leave it.
    """
    with readable(store_dir, "run it as the user that the nats-server runs as"):
        root = _root(store_dir)
        if not root.is_dir():
            return Layout(root)
        accounts = _accounts(root)
        raft = next((place for each in accounts if (place := root / each / _RAFT).exists()), None)
        key = next(_keys(root, accounts), None)
        streams = {} if key else {each.name: each for each in _streams(root / account / STREAMS)}
    return Layout(root, streams, tuple(accounts), raft, key)


def _root(store_dir: Path) -> Path:
    """The directory that holds the accounts."""
    if not store_dir.exists():
        return store_dir / JETSTREAM
    if not store_dir.is_dir():
        raise _unknown(store_dir, "is not a directory")
    entries = sorted(entry.name for entry in store_dir.iterdir())
    if JETSTREAM in entries or not entries:
        return store_dir / JETSTREAM
    if store_dir.name == JETSTREAM and all(_is_account(store_dir / name) for name in entries):
        return store_dir
    raise _unknown(store_dir, f"has no directory {JETSTREAM}, but {entries[0]}")


def _is_account(path: Path) -> bool:
    return (path / STREAMS).is_dir() or (path / _RAFT).is_dir()


def _accounts(root: Path) -> list[str]:
    names = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if not entry.is_dir():
            raise _unknown(Path(entry.path), "is not the directory of an account")
        names.append(entry.name)
    return names


def _keys(root: Path, accounts: list[str]) -> Iterator[Path]:
    for account in accounts:
        for directory in _directories(root / account / STREAMS):
            if (directory / _KEY).exists():
                yield directory / _KEY


def _directories(streams: Path) -> Iterator[Path]:
    """The directories that a server takes for streams."""
    if streams.is_dir():
        for entry in os.scandir(streams):
            if entry.is_dir() and not entry.name.startswith("."):
                yield Path(entry.path)


def _streams(streams: Path) -> Iterator[StreamDirectory]:
    for path in _directories(streams):
        yield StreamDirectory(path.name, path, _config(path))


def _config(directory: Path) -> dict[str, Any] | None:
    """Reads a stream's configuration; None if there is none, or one of another name: a server skips it too."""
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


def _unknown(path: Path, what: str) -> RefusedError:
    return RefusedError(
        f"{path}: {what}; a nats-server's store directory looks otherwise",
        "name the directory that is `store_dir` in the server's configuration",
    )


_NEW = ".stantools-new"
_REPLACED = ".replaced"
#: As servers make the directories of a new store.
_NEW_MODE = 0o700


@dataclass(frozen=True)
class Ownership:
    """Whose the files of a store are, and who may read them."""

    user: int  #: owner
    group: int
    mode: int  #: permission bits of directories

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
