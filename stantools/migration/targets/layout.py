"""The store directory of a nats-server: which accounts and streams lie in it (jetstream-migration.md section 5.5).

    <store_dir>/jetstream/<account>/streams/<stream>/meta.inf      configuration, json (encrypted where meta.key is)
                                                     meta.sum      its hash
                                                     meta.key      only in an encrypted store
                                                     msgs/N.blk    messages
                                                     obs/<name>/   consumers
    <store_dir>/jetstream/$SYS/_js_/…                              raft state: this server belongs to a cluster

Seen with every version from 2.9 to 2.15: a server looks at nothing in an account's directory but `streams`. Hidden
directories among the streams it removes when it starts (2.10 and later), or complains about (2.9). So what is
unfinished or was replaced lies beside `streams`, never in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError, StoreUnreadableError

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
    """A stream that lies in a store.

    Attributes:
        name: Its name, which is also the directory's.
        path: Its directory.
        config: Its configuration; None if the server will not find a stream here either.
    """

    name: str
    path: Path
    config: dict[str, Any] | None

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
    """What lies in a store directory.

    Attributes:
        root: The directory `jetstream`; it need not exist.
        streams: The streams of the account that was asked for, by name.
        accounts: The accounts that have a directory.
        raft: Raft state, if the server belongs, or belonged, to a cluster.
        key: A key file, if the store is encrypted.
    """

    root: Path
    streams: dict[str, StreamDirectory] = field(default_factory=dict)
    accounts: tuple[str, ...] = ()
    raft: Path | None = None
    key: Path | None = None

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
    try:
        root = _root(store_dir)
        if not root.is_dir():
            return Layout(root)
        accounts = _accounts(root)
        raft = next((place for each in accounts if (place := root / each / _RAFT).exists()), None)
        key = next(_keys(root, accounts), None)
        streams = {} if key else {each.name: each for each in _streams(root / account / STREAMS)}
    except OSError as problem:
        raise StoreUnreadableError(
            f"{problem.filename or store_dir}: cannot be read: {problem.strerror}",
            "run it as the user that the nats-server runs as",
        ) from problem
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
    """Reads a stream's configuration; None if there is none, or one of another name: a server passes over it too."""
    meta = directory / _META
    try:
        with meta.open("rb") as file:
            config = json.loads(file.read(_META_MAX))
        name = config["name"]
        if not all(isinstance(subject, str) for subject in config.get("subjects") or ()):
            raise ValueError("subjects that are no strings")
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
