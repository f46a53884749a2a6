"""A log that is appended to, and compacted into a new file that takes its place.

Facts: filestore.md sections 6.1 and 8.

A compaction writes the live state to a temporary file in the store's root, syncs it, renames it over the log and
syncs the directory. The server omits the syncs for clients.dat (weakness W17) and always changes the mode to 0600;
here the log keeps its mode. Between compactions a kill leaves whole records (see `appending`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stantools.errors import StoreUnwritableError
from stantools.format.envelope import FILE_HEADER_BYTES, check_file_version
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.store.atomic_append import append_records
from stantools.store.compactionrules import CompactionRules
from stantools.store.durable import (
    create_temporary,
    create_whole,
    fsync_directory,
    fsync_file,
    unwritable,
    write_all,
    writing,
)

if TYPE_CHECKING:
    from stantools.format.crc import Crc

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_CHUNK = 1 << 20
_NOT_DURABLE = "the last writes may not be durable"
_UNCHANGED = "it is unchanged"


class AppendLog:
    """An open log file. `size` counts the bytes of all records, without the version header, as the server does."""

    def __init__(
        self,
        path: Path,
        root: Path,
        crc: Crc,
        rules: CompactionRules | None,
        *,
        buffer_size: int,
    ) -> None:
        self.path = path
        self._root = root
        self._crc = crc
        self._rules = rules = rules or CompactionRules()
        self.least: float = rules.min_size if rules.enabled else float("inf")  #: bytes below which it is not compacted
        self._buffer_size = buffer_size
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._replacement: Replacement | None = None  # set during a compaction
        self._incomplete = False  # records are missing: new ones go to the replacement only
        #: the file may end with a partial record that could not be cut off yet
        self._partial_end = False
        #: time of the last compaction, in seconds of the clock that schedules compactions
        self.compacted = float("-inf")
        with writing(path, "nothing was changed"):
            create_whole(path, FILE_HEADER_BYTES)
            self.descriptor = os.open(path, _FLAGS, 0o666)
            try:
                self._begin()
            except BaseException:
                os.close(self.descriptor)
                raise

    def _begin(self) -> None:
        size = os.fstat(self.descriptor).st_size
        if size == 0:
            try:
                write_all(self.descriptor, FILE_HEADER_BYTES)
            except BaseException:
                self.path.unlink()  # a file without its header would keep a server from starting (weakness W15)
                raise
            size = FILE_HEADER_SIZE
        elif (text := check_file_version(memoryview(os.pread(self.descriptor, FILE_HEADER_SIZE, 0)))) is not None:
            raise StoreUnwritableError(f"{self.path}: cannot be appended to: {text}", "use `stantools salvage`")
        self.size = size - FILE_HEADER_SIZE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._forget()
        self.close()

    def syncing(self) -> Callable[[], None]:
        """Returns a function that makes everything written so far durable.

        The caller must call it once; any thread may, also after the log is closed. It raises StoreUnwritableError,
        as does this method if no file descriptor is left.
        """
        with writing(self.path, _NOT_DURABLE):
            descriptor = os.dup(self.descriptor)

        def sync() -> None:
            try:
                with writing(self.path, _NOT_DURABLE):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

        return sync

    def close(self) -> None:
        """Writes the buffered records, and closes the file; errors as of `write_out`."""
        try:
            self.write_out()
        finally:
            os.close(self.descriptor)

    def abandon(self) -> None:
        """Closes the file without writing the buffered records."""
        self._forget()
        os.close(self.descriptor)

    def add_encoded(self, records: bytes) -> None:
        """Takes whole records; they are written when the buffer is full, or at once without one."""
        if self._replacement is not None:
            self._replacement.add(records)
            if self._incomplete:
                return
        self._buffer.append(records)
        self._buffered += len(records)
        self.size += len(records)
        if self._buffered >= self._buffer_size:
            self.write_out()

    def write_out(self) -> None:
        """Writes the buffered records without syncing them.

        After a StoreUnwritableError the file ends with the last record that was written before.
        """
        if not self._buffered:
            return
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        written = self.size - self._buffered
        self._buffer, self._buffered = [], 0
        end = FILE_HEADER_SIZE + written
        try:
            if self._partial_end:
                os.ftruncate(self.descriptor, end)
                self._partial_end = False
            append_records(self.descriptor, data, end)
        except OSError as error:
            self.size = written
            kept = "it ends with the last whole record before the error"
            try:
                os.ftruncate(self.descriptor, end)
                self._partial_end = False
            except OSError as second:
                self._partial_end = True
                kept = f"its end could not be cut back to the last whole record: {second}"
            raise unwritable(error, self.path, kept) from error

    def _forget(self) -> None:
        self.size -= self._buffered
        self._buffer, self._buffered = [], 0

    def _due(self, fragmentation: int, now: float | None) -> bool:
        rules = self._rules
        # Most logs are small; checking that first saves reading the clock.
        return (
            self.size >= self.least
            and fragmentation >= rules.fragmentation
            and (time.monotonic() if now is None else now) - self.compacted >= rules.interval
        )

    def _begin_replacement(self, prefix: str, records: Iterable[bytes], *, incomplete: bool = False) -> Replacement:
        self._incomplete = incomplete
        if incomplete:
            self._forget()
        else:
            # if the compaction fails, the buffered records are still needed
            self.write_out()
        with writing(self.path, _UNCHANGED):
            status = os.fstat(self.descriptor)
        self._replacement = Replacement(self._root, self.path, prefix, records, status)
        return self._replacement

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        """Puts the filled replacement in the place of the log.

        Returns a function that makes this durable, as `syncing` does. After a StoreUnwritableError from this method
        the file is unchanged and the replacement removed.
        """
        replacement = self._replacement
        assert replacement is not None
        try:
            # if the rename fails, the old file must be complete
            self.write_out()
            descriptor = replacement.take_place()
        except BaseException:
            replacement.discard()
            raise
        finally:
            self._replacement = None
        os.close(self.descriptor)
        self.descriptor = descriptor
        self._partial_end = False
        self.size = replacement.size
        self.compacted = time.monotonic() if now is None else now

        def sync() -> None:
            with writing(self.path, _NOT_DURABLE):
                fsync_file(self.path)
            with writing(self.path, "the new file is complete but its name may not be durable"):
                fsync_directory(self.path.parent)
                if self._root != self.path.parent:
                    fsync_directory(self._root)

        return sync

    def _finish(self, now: float | None) -> None:
        replacement = self._replacement
        assert replacement is not None
        try:
            replacement.fill()
        except BaseException:
            self.give_up()
            replacement.discard()
            raise
        self.replace(now=now)()

    def give_up(self) -> None:
        """Detaches the replacement, which the caller discards."""
        self._replacement = None


class Replacement:
    """A file that is going to replace a log; new records of the log are added to it meanwhile.

    It is filled in steps so that threads can do the waiting for a disk: `fill`, and the function that `catching_up`
    returns. Then `AppendLog.replace` renames it, and the function that this returns makes it durable. A kill leaves
    either the old file or the whole new one.
    """

    def __init__(self, root: Path, path: Path, prefix: str, records: Iterable[bytes], status: os.stat_result) -> None:
        self.size = 0  #: bytes of its records
        self.waiting = 0  #: bytes of records not written yet
        self._root = root
        self._path = path
        self._prefix = prefix
        self._records = records
        self._status = status
        self._added: list[bytes] = []
        self._descriptor: int | None = None
        self._temporary: Path | None = None

    def add(self, records: bytes) -> None:
        self._added.append(records)
        self.waiting += len(records)

    def fill(self) -> None:
        with writing(self._path, _UNCHANGED):
            self._descriptor, self._temporary = create_temporary(self._root, self._prefix)
            self.size, self._records = _fill(self._descriptor, self._records), ()
            os.fchmod(self._descriptor, stat.S_IMODE(self._status.st_mode))
            if os.geteuid() == 0:
                os.fchown(self._descriptor, self._status.st_uid, self._status.st_gid)
            os.fsync(self._descriptor)

    def catching_up(self) -> Callable[[], None]:
        """Returns a function that writes and syncs the records added so far; it raises StoreUnwritableError."""
        since = self._take_added()

        def catch_up() -> None:
            assert self._descriptor is not None
            with writing(self._path, _UNCHANGED):
                write_all(self._descriptor, since)
                os.fsync(self._descriptor)

        return catch_up

    def take_place(self) -> int:
        """Writes the remaining records, renames the file, and returns its descriptor."""
        assert self._descriptor is not None and self._temporary is not None
        with writing(self._path, _UNCHANGED):
            write_all(self._descriptor, self._take_added())
            self._temporary.replace(self._path)
        return self._descriptor

    def discard(self) -> None:
        if self._descriptor is not None and self._temporary is not None:
            os.close(self._descriptor)
            self._temporary.unlink(missing_ok=True)

    def _take_added(self) -> bytes:
        since, self._added, self.waiting = b"".join(self._added), [], 0
        self.size += len(since)
        return since


def _fill(descriptor: int, records: Iterable[bytes]) -> int:
    """Writes a whole log in big pieces; returns the bytes of its records."""
    size = 0
    gathered = bytearray(FILE_HEADER_BYTES)
    for each in records:
        size += len(each)
        gathered += each
        if len(gathered) >= _CHUNK:
            write_all(descriptor, gathered)
            gathered.clear()
    write_all(descriptor, gathered)
    return size
