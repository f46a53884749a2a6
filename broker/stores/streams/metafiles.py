"""Configurations in files (`meta.inf` with its hash in `meta.sum`), and the consumers in `obs` beside the messages.

Facts: jetstream-server.md section 20.
"""

from __future__ import annotations

import enum
import json
import re
import secrets
import shutil
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.stores.streams.interface import StreamStore
from broker.stores.streams.quarantine import move_aside
from stantools.errors import StantoolsError
from stantools.notation import parse_moment
from stantools.store.durable import fsync_directory, fsync_file, replace_file, sync_tree
from stantools.streamfiles import highwayhash
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import (
    ConsumerState,
    CopiedState,
    decode_consumer,
    decode_copied,
    encode_consumer,
    encode_copied,
    full_consumer_meta,
    meta_sum,
)

META: Final = "meta.inf"
META_SUM: Final = "meta.sum"
CONSUMERS: Final = "obs"
STATE: Final = "o.dat"
#: hash and configuration that will become `meta.sum` and `meta.inf`
NEXT_META: Final = ".meta.next"
#: hidden directories with incomplete or removed streams and consumers
_LEFT: Final = re.compile(r"\.((restore|snapshot)-)?[0-9a-f]{8}")
COPIED: Final = "sources.db"
#: suffix of the last synced state, while `o.dat` or `sources.db` is not synced
_OLD: Final = ".old"
_State = TypeVar("_State")
#: bytes of a configuration at most
_MOST_META: Final = 16 << 20


class StateFileCondition(Enum):
    """A state (of a consumer, of copies) after a loss of power."""

    WRITTEN = enum.auto()  #: the previous state: the new one is not synced
    SYNCING = enum.auto()  #: the previous or the new state
    SYNCED = enum.auto()  #: the new state


class KeptConsumers(StreamStore, ABC):
    """A stream whose consumers and positions in its sources are in files.

    A state is replaced without a sync, which would block everything else. The last synced state stays beside it as
    `o.old` or `sources.old` until the new one is synced.
    """

    _directory: Path  #: of the stream
    _name: str  #: of the stream
    _forgotten = False  #: a consumer was removed since the last sync of the directory

    @cached_property
    def _states(self) -> dict[Path, StateFileCondition]:
        return {}

    def consumers(self) -> Iterator[tuple[dict[str, Any], int, ConsumerState | None]]:
        """Iterates over the stored consumers. Raises StorageError if one cannot be read."""
        folder = self._directory / CONSUMERS
        remove_left(folder)
        for directory in sorted(folder.iterdir()) if folder.is_dir() else ():
            if directory.name.startswith(".") or not directory.is_dir():
                continue
            found = read_meta(directory, highwayhash.consumer_key(self._name, directory.name))
            if found is None:
                # A lost position is worse than a wrong letter: servers ignore the hash.
                found = _decoded(_read_small(directory / META))
                if found is not None:
                    NATS.warning("%s has another hash than %s; it is used anyway", directory / META, META_SUM)
            if found is None:
                text = (
                    "%s has no valid %s: the consumer is not served; a new one with its name continues from its state"
                )
                NATS.warning(text, directory, META)
                continue
            config, created = found
            config["name"] = config.pop("Name", directory.name)
            yield config, created, self.kept_state(directory.name, config)

    def kept_state(self, name: str, config: Mapping[str, Any]) -> ConsumerState | None:
        """Returns the stored state of a consumer; None if it is missing or damaged. May raise StorageError."""
        path = self._directory / CONSUMERS / name / STATE
        state = self._read_state(path, decode_consumer)
        return state if state is None or is_at_start(config, state) else self._clamp(name, path, state)

    def _read_state(self, path: Path, decode: Callable[[bytes], _State]) -> _State | None:
        """Returns a state, or the last synced one; None if they are missing or damaged. May raise StorageError."""
        _remove_unfinished(path)
        for each in (path, path.with_suffix(_OLD)):
            try:
                state = decode(each.read_bytes())
                if each == path:
                    # The previous process may have written it just before it was killed.
                    self._sync_state(path)
                return state
            except FileNotFoundError:
                continue
            except ArchiveError as error:
                NATS.error("%s: %s; moved to %s", each, error.message, move_aside(each, self._directory))
            except OSError as error:
                raise StorageError(f"{each} cannot be read: {error.strerror}") from error
        return None

    def _sync_state(self, path: Path) -> None:
        fsync_file(path)
        fsync_directory(path.parent)
        self._states[path] = StateFileCondition.SYNCED

    def _write_state(self, path: Path, data: bytes) -> None:
        """Writes a state without a sync. Raises StorageError."""
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_bytes(data)
            if self._states.get(path) is StateFileCondition.SYNCED:
                path.rename(path.with_suffix(_OLD))
            temporary.replace(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
        self._states[path] = StateFileCondition.WRITTEN

    def _clamp(self, name: str, path: Path, state: ConsumerState) -> ConsumerState:
        """Returns a state that does not go beyond the end of the stream."""
        last = self.contents.last
        number, delivered = state.delivered
        if delivered <= last:
            return state
        text = "%s: message %d was delivered, but the stream ends at %d: the consumer continues from there"
        NATS.error(text, path, delivered, last)
        pending = {each: place for each, place in state.pending.items() if each <= last}
        again = {each: count for each, count in state.redelivered.items() if each <= last}
        floor = (state.ack_floor[0], min(state.ack_floor[1], last))
        state = ConsumerState(floor, (number, last), pending, again)
        self.keep_state(name, state)
        return state

    def keep_consumer(
        self, name: str, config: Mapping[str, Any], created: int, begins: ConsumerState | None = None
    ) -> None:
        """Writes the configuration of a consumer; `begins` is the state of a new one. May raise StorageError."""
        data, key = full_consumer_meta(name, config, created), highwayhash.consumer_key(self._name, name)
        directory = self._directory / CONSUMERS / name
        if directory.exists():
            write_meta(directory, data, key)
        else:
            state = {} if begins is None else {STATE: encode_consumer(begins)}
            place_directory(directory, {META: data, META_SUM: meta_sum(data, key), **state})
            if state:
                self._states[directory / STATE] = StateFileCondition.SYNCED

    def keep_state(self, name: str, state: ConsumerState) -> None:
        """Writes the state of a consumer without a sync: messages are delivered again if it is lost."""
        self._write_state(self._directory / CONSUMERS / name / STATE, encode_consumer(state))

    def unsynced(self) -> list[Path]:
        """Returns the paths written since the last call; the caller has synced those of the last call."""
        for path, state in self._states.items():
            if state is StateFileCondition.SYNCING:
                self._states[path] = StateFileCondition.SYNCED
        written = [path for path, state in self._states.items() if state is StateFileCondition.WRITTEN]
        self._states.update(dict.fromkeys(written, StateFileCondition.SYNCING))
        paths = written + [path.parent for path in written]
        if self._forgotten:
            paths.append(self._directory / CONSUMERS)
            self._forgotten = False
        return paths

    def copied(self) -> CopiedState | None:
        """Reads the positions of the stream in its sources; None if they are missing or damaged."""
        return self._read_state(self._directory / COPIED, decode_copied)

    def keep_copied(self, state: CopiedState) -> None:
        """Writes the positions of the stream in its sources, without a sync."""
        self._write_state(self._directory / COPIED, encode_copied(state))

    def _sync_copied(self) -> None:
        path = self._directory / COPIED
        if self._states.get(path, StateFileCondition.SYNCED) is not StateFileCondition.SYNCED:
            self._sync_state(path)

    def forget_consumer(self, name: str) -> None:
        self._states.pop(self._directory / CONSUMERS / name / STATE, None)
        remove_directory(self._directory / CONSUMERS / name)
        self._forgotten = True

    def delete(self) -> None:
        self.abandon()
        remove_directory(self._directory)


def is_at_start(config: Mapping[str, Any], state: ConsumerState) -> bool:
    """Returns whether a consumer waits for its configured first sequence, which may be beyond the end of the stream."""
    begins = config.get("opt_start_seq")
    return isinstance(begins, int) and state.delivered == (0, begins - 1)


def _remove_unfinished(path: Path) -> None:
    """Removes an unfinished replacement: a loss of power could restore its old content even if it were overwritten."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{temporary} cannot be removed: {error.strerror}") from error


def remove_directory(directory: Path) -> None:
    """Removes a directory if it exists. If that is interrupted, the next start removes the rest."""
    # Every server ignores hidden directories.
    hidden = directory.with_name(f".{secrets.token_hex(4)}")
    try:
        directory.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{directory} cannot be removed: {error.strerror}") from error


def remove_left(folder: Path) -> None:
    """Removes the directories whose creation or removal was interrupted."""
    for path in folder.glob(".*"):
        if _LEFT.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def place_directory(directory: Path, files: Mapping[str, bytes], folders: Iterable[str] = ()) -> None:
    """Creates a directory atomically and durably, together with its files."""
    hidden = directory.with_name(f".{secrets.token_hex(4)}")
    try:
        make_directories(directory.parent)
        hidden.mkdir(mode=0o700)
        for folder in folders:
            (hidden / folder).mkdir(mode=0o700)
        for name, data in files.items():
            (hidden / name).write_bytes(data)
            (hidden / name).chmod(0o600)
        sync_tree(hidden)
        hidden.rename(directory)
        fsync_directory(directory.parent)
    except OSError as error:
        shutil.rmtree(hidden, ignore_errors=True)
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from error


def make_directories(directory: Path) -> None:
    """Creates a directory and its parents durably. Raises OSError on failure."""
    if not directory.is_dir():
        make_directories(directory.parent)
        directory.mkdir(mode=0o700)
        fsync_directory(directory.parent)


def write_meta(directory: Path, data: bytes, key: bytes) -> None:
    """Replaces a configuration and its hash atomically."""
    checksum = meta_sum(data, key)
    try:
        # Two files cannot be replaced at once: the next start completes an interrupted change.
        replace_file(directory / NEXT_META, checksum + data, mode=0o600)
        _put_meta(directory, data, checksum)
    except StantoolsError as error:
        raise StorageError(error.message) from error
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from error


def _put_meta(directory: Path, data: bytes, checksum: bytes) -> None:
    replace_file(directory / META, data, mode=0o600)
    replace_file(directory / META_SUM, checksum, mode=0o600)
    (directory / NEXT_META).unlink(missing_ok=True)


def read_meta(directory: Path, key: bytes) -> tuple[dict[str, Any], int] | None:
    """Returns a configuration and its time of creation; None if it does not match its hash."""
    data, checksum = _read_small(directory / META), _read_small(directory / META_SUM).strip()
    following = _read_small(directory / NEXT_META)
    if not checksum.strip(b"\0") and not following and _decoded(data) is not None:
        NATS.warning("%s is missing or empty; %s is complete, and is used", directory / META_SUM, META)
        checksum = meta_sum(data, key)
    if meta_sum(data, key) != checksum:
        checksum, data = following[: len(meta_sum(b"", key))], following[len(meta_sum(b"", key)) :]
        if not data or meta_sum(data, key) != checksum:
            return None
        NATS.warning("%s: a change of the configuration was interrupted; it is completed", directory)
        try:
            _put_meta(directory, data, checksum)
        except (OSError, StantoolsError) as error:
            raise StorageError(f"{directory / META} cannot be written: {error}") from error
    elif following:
        (directory / NEXT_META).unlink(missing_ok=True)
    return _decoded(data)


def _decoded(data: bytes) -> tuple[dict[str, Any], int] | None:
    try:
        values = json.loads(data)
        return values, parse_moment(values.pop("Created"))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def _read_small(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _MOST_META else b""
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
