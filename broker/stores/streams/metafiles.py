"""Configurations in files, `meta.inf` with `meta.sum`, and what is kept of consumers, in `obs` beside the messages.

Facts: jetstream-server.md section 20.
"""

from __future__ import annotations

import json
import secrets
import shutil
from abc import ABC
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.stores.streams.interface import StreamStore
from stantools.errors import StantoolsError
from stantools.notation import parse_moment
from stantools.store.durable import fsync_directory, replace_file
from stantools.streamfiles import highway
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import (
    ConsumerState,
    decode_consumer,
    encode_consumer,
    full_consumer_meta,
    meta_sum,
)

META: Final = "meta.inf"
META_SUM: Final = "meta.sum"
CONSUMERS: Final = "obs"
STATE: Final = "o.dat"
#: More than any configuration.
_MOST_META: Final = 16 << 20


class KeptConsumers(StreamStore, ABC):
    """A stream whose consumers are kept in files."""

    _directory: Path  #: of the stream
    _name: str  #: of the stream

    def consumers(self) -> Iterator[tuple[dict[str, Any], int, ConsumerState | None]]:
        """Iterates over the consumers that are kept.

        Raises:
            StorageError: One cannot be read.
        """
        folder = self._directory / CONSUMERS
        for directory in sorted(folder.iterdir()) if folder.is_dir() else ():
            found = read_meta(directory, highway.consumer_key(self._name, directory.name))
            if found is None:
                continue
            config, created = found
            config["name"] = config.pop("Name", directory.name)
            state = None
            try:
                state = decode_consumer((directory / STATE).read_bytes())
            except FileNotFoundError:
                pass
            except ArchiveError as error:
                NATS.error("%s: %s; the consumer starts over", directory / STATE, error.message)
            except OSError as error:
                raise StorageError(f"{directory / STATE} cannot be read: {error.strerror}") from error
            yield config, created, state

    def keep_consumer(self, name: str, config: Mapping[str, Any], created: int) -> None:
        """Writes the configuration of a consumer.

        Raises:
            StorageError: It cannot be written.
        """
        data = full_consumer_meta(name, config, created)
        write_meta(self._directory / CONSUMERS / name, data, highway.consumer_key(self._name, name))

    def keep_state(self, name: str, state: ConsumerState) -> None:
        """Writes the state of a consumer. It is not synced: what is lost comes again.

        Raises:
            StorageError: It cannot be written.
        """
        path = self._directory / CONSUMERS / name / STATE
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_bytes(encode_consumer(state))
            temporary.replace(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error

    def forget_consumer(self, name: str) -> None:
        """Removes what is kept of a consumer."""
        shutil.rmtree(self._directory / CONSUMERS / name, ignore_errors=True)

    def delete(self) -> None:
        """Takes the directory away, if there is one."""
        self.abandon()
        # Hidden directories are rubbish to every server.
        hidden = self._directory.with_name(f".{secrets.token_hex(4)}")
        try:
            self._directory.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be removed: {error.strerror}") from error


def write_meta(directory: Path, data: bytes, key: bytes) -> None:
    """Writes a configuration and its hash.

    Raises:
        StorageError: They cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(directory / META, data, mode=0o600)
        replace_file(directory / META_SUM, meta_sum(data, key), mode=0o600)
        fsync_directory(directory)
    except StantoolsError as error:
        raise StorageError(error.message) from error
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from error


def read_meta(directory: Path, key: bytes) -> tuple[dict[str, Any], int] | None:
    """Reads a configuration with its hash. Returns it and when it was made; None if they are not valid.

    Raises:
        StorageError: They cannot be read.
    """
    path = directory / META
    try:
        if path.stat().st_size > _MOST_META:
            return None
        data, expected = path.read_bytes(), (directory / META_SUM).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if meta_sum(data, key) != expected.strip():
        return None
    try:
        values = json.loads(data)
        created = parse_moment(values.pop("Created"))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return values, created
