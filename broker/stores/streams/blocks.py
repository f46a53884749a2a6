"""The files of a stream: blocks of records, `msgs/N.blk` (jetstream-server.md section 20), and who has them open."""

from __future__ import annotations

import os
import threading
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Final

from broker.stores.interface import StorageError
from stantools.store.durable import fsync_file
from stantools.streamfiles import highwayhash

#: Blocks that are open at a time, of all streams.
_MOST_OPEN: Final = 256


class Descriptors:
    """Open files, the last used ones."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def get(self, path: str) -> int:
        """Returns the descriptor of a file, to read and write; it is made if it is not there.

        Raises:
            StorageError: It cannot be opened.
        """
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        while len(self._open) >= _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error.strerror}") from error
        self._open[path] = descriptor
        return descriptor

    def close(self, path: str) -> None:
        """Closes a file, if it is open."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Closes everything."""
        while self._open:
            os.close(self._open.popitem()[1])


class MessageBlock:
    """A file of records.

    Attributes:
        unsynced: Something was written since it was last synced.
        safe: It has been synced, if not all of it.
    """

    __slots__ = ("_files", "_name", "graves", "key", "number", "path", "safe", "size", "unsynced", "waiting")

    def __init__(self, directory: Path, stream: str, number: int, files: Descriptors) -> None:
        self.number = number  #: its number, in its name and in the hashes of its records
        self.path = directory / f"{number}.blk"  #: the file
        self._name = str(self.path)
        self.key = highwayhash.block_key(stream, number)  #: of the hashes
        self.size = 0  #: bytes that are in the file
        self.waiting = bytearray()  #: bytes that are still to be written to its end
        self.graves = array("Q")  #: sequences that its tombstones take out
        self.unsynced = self.safe = False
        self._files = files

    @property
    def end(self) -> int:
        """Where the next record goes."""
        return self.size + len(self.waiting)

    def flush(self) -> None:
        """Writes what waits.

        Raises:
            StorageError: It cannot be written.
        """
        data = self.waiting
        try:
            descriptor = self._files.get(self._name)
            written = os.pwrite(descriptor, data, self.size)
            while written < len(data):
                with memoryview(data)[written:] as rest:
                    written += os.pwrite(descriptor, rest, self.size + written)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error
        self.size += written
        data.clear()
        self.unsynced = True

    def take(self) -> bytes:
        """Returns what waits, which the caller writes."""
        data = bytes(self.waiting)
        self.size += len(data)
        self.waiting.clear()
        return data

    def overwrite(self, place: int, data: bytes) -> None:
        """Writes over a record.

        Raises:
            StorageError: It cannot be written.
        """
        if place >= self.size:
            self.waiting[place - self.size : place - self.size + len(data)] = data
            return
        try:
            os.pwrite(self._files.get(self._name), data, place)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error
        self.unsynced = True

    def read(self, place: int, size: int) -> bytes:
        """Returns bytes of it.

        Raises:
            StorageError: They cannot be read.
        """
        if place >= self.size:
            return bytes(self.waiting[place - self.size : place - self.size + size])
        try:
            return os.pread(self._files.get(self._name), size, place)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error

    def read_flushed(self, place: int, size: int, room: int) -> bytearray:
        """Returns bytes that were flushed, with room behind them.

        Raises:
            StorageError: They cannot be read.
        """
        buffer = bytearray(size + room)
        try:
            with memoryview(buffer)[:size] as part:
                os.preadv(self._files.get(self._name), [part], place)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error
        return buffer

    def sync(self) -> None:
        """Has it survive a loss of power.

        Raises:
            StorageError: It cannot be synced.
        """
        if self.unsynced or not self.safe:
            try:
                os.fdatasync(self._files.get(self._name))
            except OSError as error:
                raise StorageError(f"{self.path} cannot be synced: {error.strerror}") from error
            self.unsynced, self.safe = False, True

    def share(self, files: Descriptors) -> None:
        """Has its file open among others; it is closed now."""
        self._files = files

    def sync_soon(self) -> None:
        """Syncs it in a thread: it is full."""
        threading.Thread(target=self._sync_full, name="block-sync", daemon=True).start()

    def _sync_full(self) -> None:
        try:
            fsync_file(self.path)
        except OSError:
            return  # it is gone meanwhile; or what comes to sync it later says why not
        self.safe = True

    def close(self) -> None:
        """Closes the file, if it is open."""
        self._files.close(self._name)

    def remove(self) -> None:
        """Takes the file away."""
        self.close()
        self.path.unlink(missing_ok=True)
