"""Directories of channels, made and removed by threads, so that the loop does not wait for a disk.

Facts: filestore.md sections 1.1, 1.2, 5.4 and 5.5. A channel's directory comes first, then its subs.dat, which has
its header from the moment it has its name (durably where flushes are durable); slices come with messages, and the
oldest are removed first. A kill in between leaves a channel with fewer files; a partly removed channel is a channel
again at the next start.
"""

from __future__ import annotations

import enum
import errno
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.log import STREAMING
from broker.stores.file.services import Services
from broker.stores.interface import Flush, FlushOutcome, StorageError
from stantools.errors import StantoolsError
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.format.quoting import quote
from stantools.store.directory import SUBS_FILE
from stantools.store.durable import UnnamedFile, fsync_directory, writing
from stantools.store.logwriter import SubsLog
from stantools.store.slice_output import remove_slice


class DirectoryState(enum.Enum):
    NEW = enum.auto()  #: it is to be made; files there belong to a removed channel
    MADE = enum.auto()  #: it exists; where flushes are durable, files and names must still be synced
    READY = enum.auto()  #: it exists as durably as configured
    FAILED = enum.auto()  #: it cannot be made
    REMOVED = enum.auto()


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
NEW: Final = DirectoryState.NEW
MADE: Final = DirectoryState.MADE
READY: Final = DirectoryState.READY
FAILED: Final = DirectoryState.FAILED
REMOVED: Final = DirectoryState.REMOVED
_NEXT: Final = {
    NEW: (MADE, READY, FAILED, REMOVED),
    MADE: (READY, REMOVED),
    READY: (REMOVED,),
    FAILED: (),
    REMOVED: (),
}


class ChannelDirectory:
    """The directory of a channel: it exists, unless `gone` is given, which is called if it cannot be made.

    `before` is a removed channel of the same name, whose files must go first.
    """

    def __init__(
        self,
        path: Path,
        services: Services,
        gone: Callable[[], None] | None = None,
        before: ChannelDirectory | None = None,
    ) -> None:
        self.path = path
        self.state = READY if gone is None else NEW
        self.making = None if gone is None else Flush()  #: pending until the outcome of `make` is known
        self.slices: deque[int] = deque()  #: numbers of slices whose files must be removed, the oldest first
        self.busy = False  #: a thread is removing slices
        self._services = services
        self._gone = gone
        self._predecessor = before
        self._lock = threading.Lock()
        self._problem = ""  # reason of FAILED
        self._log: UnnamedFile | None = None  # subs.dat while it has no name
        self._archived: deque[tuple[Path, Path]] = deque()
        self._failed = False

    def make(self) -> None:
        """Makes it with its subs.dat, once; after a StorageError all calls fail. Called in a thread, or by the loop."""
        if self.state is MADE or self.state is READY:
            return
        with self._lock:
            if self.state is NEW:
                try:
                    self._make()
                except StantoolsError as error:
                    self._problem = error.message
                except OSError as error:
                    self._problem = str(error)
                self._advance(FAILED if self._problem else MADE if self._services.options.sync else READY)
            if self._problem:
                raise StorageError(self._problem)

    def _advance(self, state: DirectoryState) -> None:
        assert state in _NEXT[self.state], f"{self.state} does not become {state}"
        self.state = state

    def _make(self) -> None:
        path, services = self.path, self._services
        self._remove_predecessor()
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            reason = os.strerror(errno.ENOTDIR if error.errno == errno.EEXIST else error.errno or errno.EIO)
            raise StorageError(f"mkdir {path}: {reason.lower()}") from error
        log = path / SUBS_FILE
        self._log = None if log.exists() else UnnamedFile.create(log, FILE_HEADER_BYTES)
        if self._log is None:
            # It exists, or cannot be made; its records belong to another channel.
            truncate_log(log, FILE_HEADER_SIZE)
            SubsLog(path, services.options.directory, services.crc).abandon()
        elif not services.options.sync:
            self._name_log()

    @property
    def unnamed(self) -> Sequence[int]:
        """Descriptor of a subs.dat without a name, to be synced before `name_files`."""
        return () if self._log is None else (self._log.descriptor,)

    def name_files(self, *, sync: bool = False) -> None:
        """Gives subs.dat its name; with `sync` file and names become durable. Called as `make`."""
        with self._lock, writing(self.path / SUBS_FILE):
            if self._log is not None:
                if sync:
                    os.fsync(self._log.descriptor)
                self._name_log()
        if sync:
            with writing(self.path, "its name may not be durable"):
                fsync_directory(self.path)
                fsync_directory(self.path.parent)
            self.names_synced()

    def names_synced(self) -> None:
        """Records that all names are durable."""
        if self.state is MADE:
            self._advance(READY)

    def abandon(self) -> None:
        """Gives up a subs.dat without a name. Called by the loop."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _name_log(self) -> None:
        assert self._log is not None
        with self._log as log:
            self._log = None
            log.link()

    def conclude(self) -> None:
        """Completes `making` when its outcome is known. Called by the loop."""
        making = self.making
        if making is None or self.state is NEW:
            return
        self.making = None
        if self.state is FAILED:
            making.outcome, making.error = FlushOutcome.REFUSED, self._problem
            assert self._gone is not None
            self._gone()
        self._gone = None
        self._services.completed.append(making)

    def remove(self) -> None:
        """Removes it with everything in it, once; no thread may write to it any more. Called as `make`."""
        with self._lock, writing(self.path, "not all files in it were removed"):
            if self.state is REMOVED:
                return
            if self.state is NEW:
                # The next channel waits for this one only.
                self._remove_predecessor()
            while self.state is not NEW and self.path.exists():
                with suppress(FileNotFoundError):  # another process has removed a file
                    shutil.rmtree(self.path)
            self._advance(REMOVED)

    def _remove_predecessor(self) -> None:
        if self._predecessor is not None:
            self._predecessor.remove()
            self._predecessor = None

    def remove_slices(self, *, at_once: bool = False) -> None:
        """Removes or archives the files of `slices`, one after the other, in a thread or at once."""
        if not self.slices or self.busy:
            return
        if not at_once:
            self.busy = True
            self._services.disk.queue_job(lambda: (self._remove_slices, self._slices_removed))
            return
        problem: Exception | None = None
        try:
            self._remove_slices()
        except StantoolsError as error:
            problem = error
        self._slices_removed(problem)

    def _remove_slices(self) -> None:
        archiver = self._services.archiver
        while self.slices:
            archived = remove_slice(self.path, self.slices[0], archive=bool(archiver))
            self.slices.popleft()
            if archived is not None:
                self._archived.append(archived)

    def _slices_removed(self, problem: Exception | None) -> None:
        self.busy = False
        while self._archived:
            self._services.archiver.run(os.fsencode(self.path.name), *self._archived.popleft())
        if problem is None:
            self._failed = False
            self.remove_slices()  # slices added meanwhile
        elif not self._failed:
            # The next removal of messages tries again.
            self._failed = True
            STREAMING.error("Unable to remove old messages of %s: %s", quote(os.fsencode(self.path.name)), problem)


def truncate_log(path: Path, end: int) -> None:
    """Cuts a log after its last record: a record header without payload may follow there."""
    with writing(path, "it is unchanged"), suppress(FileNotFoundError):
        if path.stat().st_size > end:
            os.truncate(path, end)
