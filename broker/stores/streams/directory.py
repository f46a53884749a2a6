"""The store directory of streams, in the layout of nats-server: `<store_dir>/jetstream/$G/streams/<stream>`.

Facts: jetstream-server.md section 20. Two servers on one directory would destroy it, so a lock file lies beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.stores.streams.archives import IncomingArchive, StreamSnapshot
from broker.stores.streams.blocks import Descriptors
from broker.stores.streams.file_stream import FileStream
from broker.stores.streams.interface import StreamStore
from broker.stores.streams.memory import MemoryStream
from broker.stores.streams.metafiles import META, make_directories, read_meta, remove_left
from stantools.streamfiles import highwayhash

_ACCOUNT: Final = "$G"
_LOCK: Final = "streams.lock"


class StreamsDirectory:
    """The directory of all streams in files. Streams in memory have no files.

    Args:
        store_dir: The configured directory; `jetstream` is appended unless it is that folder already.
        temporary: The directory is a default in the system's temporary directory, where all users can write.

    Raises:
        StorageError: The directory cannot be created, or another server uses it.
    """

    def __init__(self, store_dir: Path, *, temporary: bool = False) -> None:
        self.path = _folder(store_dir)
        self._streams = self.path / _ACCOUNT / "streams"
        self._files = Descriptors()
        self._open: dict[str, FileStream] = {}
        self._syncing: threading.Thread | None = None
        try:
            if temporary:
                make_own_directory(store_dir)
            make_directories(self._streams)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(self.path.parent / _LOCK, flags, 0o600)
        except OSError as error:
            raise StorageError(f"{self._streams} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StorageError(
                f"{self.path} is in use by another broker", "stop it, or choose another store_dir"
            ) from error

    @property
    def name(self) -> str:
        return str(self.path)

    @staticmethod
    def machine_memory() -> int:
        """Returns three quarters of the machine's memory in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 * 3

    def free_space(self) -> int:
        """Returns three quarters of the free bytes of the file system."""
        return shutil.disk_usage(self.path).free // 4 * 3

    def streams(self) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Iterates over the stored streams: configuration and time of creation. Raises StorageError on read errors."""
        remove_left(self._streams)
        for directory in sorted(self._streams.iterdir()):
            if directory.name.startswith(".") or not directory.is_dir():
                continue
            if (directory / "meta.key").exists():
                NATS.error("  %s is encrypted by its server and not served: restore it from a backup", directory)
                continue
            found = read_meta(directory, highwayhash.stream_key(directory.name))
            if found is None or found[0].get("name") != directory.name:
                NATS.warning("  %s has no valid %s and is left alone", directory, META)
                continue
            yield found

    def create(self, name: str, storage: str, next_sequence: int) -> StreamStore:
        """Creates a stream. Raises StorageError on failure."""
        if storage == "memory":
            return MemoryStream(next_sequence)
        directory = self._streams / name
        if directory.exists():
            raise StorageError(f"{directory} already exists, and cannot be served")
        store = self._open[name] = FileStream(directory, name, self._files, next_sequence)
        return store

    def open(self, name: str) -> StreamStore:
        """Opens a stream. Raises StorageError on failure."""
        store = self._open[name] = FileStream(self._streams / name, name, self._files)
        return store

    def open_apart(self, name: str) -> StreamStore:
        """Opens a stream for use in a thread: it shares nothing with other streams until `share`."""
        return FileStream(self._streams / name, name, Descriptors())

    def share(self, name: str, store: StreamStore) -> None:
        """Adds a stream from `open_apart` to the others."""
        assert isinstance(store, FileStream)
        store.share(self._files)
        self._open[name] = store

    def delete(self, name: str, store: StreamStore) -> None:
        self._open.pop(name, None)
        store.delete()

    def take(self, name: str, *, consumers: bool, time: int) -> StreamSnapshot:
        """Links the current files of a stream for an archive."""
        return StreamSnapshot(self._streams / name, consumers=consumers, time=time)

    def expect(self, name: str) -> IncomingArchive:
        """Starts to receive the archive of a stream."""
        return IncomingArchive(self._streams / name)

    def sync(self) -> None:
        """Syncs written files in a thread."""
        if self._syncing is not None and self._syncing.is_alive():
            return
        paths = [path for store in self._open.values() for path in store.unsynced()]
        if paths:
            self._syncing = threading.Thread(target=_sync, args=(paths,), name="stream-sync", daemon=True)
            self._syncing.start()

    def close(self) -> None:
        """Closes all files, and releases the directory."""
        if self._syncing is not None:
            self._syncing.join()
        self._files.close_all()
        os.close(self._lock)


def make_own_directory(directory: Path) -> None:
    """Creates a directory with a well-known name. Refuses one in which other users could have put files.

    Raises StorageError if it is a link, belongs to another user, or others may write there.
    """
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    remedy = "configure a directory for streams: -sd DIR, or `jetstream { store_dir: DIR }`"
    for each in (directory, directory / "jetstream"):
        try:
            found = each.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(found.st_mode):
            raise StorageError(
                f"{each} is no directory, but a link or a file that somebody else may have made; {remedy}"
            )
        if found.st_uid != os.geteuid():
            raise StorageError(f"{each} belongs to another user (uid {found.st_uid}); {remedy}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StorageError(f"other users may write in {each}; {remedy}")


def _folder(store_dir: Path) -> Path:
    """Returns the folder of all accounts, for that folder or the one above it."""
    folder = store_dir / "jetstream"
    if _has_streams(folder / _ACCOUNT):
        if _has_streams(store_dir / _ACCOUNT):
            NATS.warning(
                "%s holds streams that are not served: the broker serves those of %s", store_dir / _ACCOUNT, folder
            )
    elif _has_streams(store_dir / _ACCOUNT):
        NATS.warning("%s is the folder `jetstream` itself; give %s", store_dir, store_dir.parent)
        return store_dir
    elif _has_streams(folder / "jetstream" / _ACCOUNT):
        raise StorageError(f"{folder} has no streams, {folder / 'jetstream'} has", f"give {folder} instead")
    elif _has_streams(store_dir):
        above = store_dir.absolute().parents
        raise StorageError(f"{store_dir} is the folder of one account", f"give {above[min(1, len(above) - 1)]} instead")
    elif (store_dir / META).is_file() and (store_dir / "msgs").is_dir():
        above = store_dir.absolute().parents
        raise StorageError(f"{store_dir} is the folder of one stream", f"give {above[min(3, len(above) - 1)]} instead")
    for other in folder.glob("*") if folder.is_dir() else ():
        if other.name not in (_ACCOUNT, "$SYS") and _has_streams(other):
            NATS.warning("%s: the streams of this account are not served, only those of %s", other, _ACCOUNT)
    return folder


def _has_streams(account: Path) -> bool:
    return any((account / "streams").glob(f"*/{META}"))


def _sync(paths: list[Path]) -> None:
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # removed in the meantime
        try:
            os.fsync(descriptor)
        except OSError as error:
            NATS.error("%s cannot be synced: %s", path, error.strerror)
        finally:
            os.close(descriptor)
