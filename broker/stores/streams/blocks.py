"""The files of a stream: blocks of records, `msgs/N.blk` (jetstream-server.md section 20), and their descriptors."""

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

#: open blocks of all streams at most
_MOST_OPEN: Final = 256


class Descriptors:
    """The most recently used open files."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def get(self, path: str) -> int:
        """Returns the descriptor of a file, to read and write, and creates a missing file. May raise StorageError."""
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
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


class MessageBlock:
    """A file of records. File errors are raised as StorageError.

    `unsynced` says that records were written since the last sync. `durable` is the highest sequence in the synced part,
    -1 before the first sync.
    """

    __slots__ = (
        "_files",
        "_name",
        "durable",
        "key",
        "number",
        "path",
        "size",
        "tombstone_sequences",
        "unsynced",
        "waiting",
    )

    def __init__(self, directory: Path, stream: str, number: int, files: Descriptors) -> None:
        self.number = number  #: number in the file's name and in the hashes of its records
        self.path = directory / f"{number}.blk"
        self._name = str(self.path)
        self.key = highwayhash.block_key(stream, number)  #: key of the hashes
        self.size = 0  #: bytes in the file
        self.waiting = bytearray()  #: bytes to append to the file
        self.tombstone_sequences = array("Q")  #: sequences of its tombstones
        self.unsynced = False
        self.durable = -1
        self._files = files

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self.size + len(self.waiting)

    def flush(self) -> None:
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
        """Returns the bytes to append, which the caller writes."""
        data = bytes(self.waiting)
        self.size += len(data)
        self.waiting.clear()
        return data

    def overwrite(self, place: int, data: bytes) -> None:
        """Overwrites a record."""
        if place >= self.size:
            self.waiting[place - self.size : place - self.size + len(data)] = data
            return
        try:
            os.pwrite(self._files.get(self._name), data, place)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error
        self.unsynced = True

    def read(self, place: int, size: int) -> bytes:
        if place >= self.size:
            return bytes(self.waiting[place - self.size : place - self.size + size])
        try:
            return os.pread(self._files.get(self._name), size, place)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error

    def read_flushed(self, place: int, size: int, room: int) -> bytearray:
        """Returns flushed bytes, with `room` more bytes after them."""
        buffer = bytearray(size + room)
        try:
            with memoryview(buffer)[:size] as part:
                os.preadv(self._files.get(self._name), [part], place)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error
        return buffer

    def sync(self, last: int) -> None:
        """Makes the file durable. `last` is the highest sequence in it."""
        try:
            os.fdatasync(self._files.get(self._name))
        except OSError as error:
            raise StorageError(f"{self.path} cannot be synced: {error.strerror}") from error
        self.unsynced, self.durable = False, last

    def share(self, files: Descriptors) -> None:
        """Uses the shared descriptors from now on; the file must be closed."""
        self._files = files

    def sync_soon(self, last: int) -> None:
        """Syncs a full block in a thread."""
        threading.Thread(target=self._sync_full, args=(last,), name="block-sync", daemon=True).start()

    def _sync_full(self, last: int) -> None:
        try:
            fsync_file(self.path)
        except OSError:
            return  # The file was removed, or the next sync reports the error.
        self.durable = last

    def close(self) -> None:
        self._files.close(self._name)

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)
