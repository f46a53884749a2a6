"""Resources that all channels of a file store share: open files, memory, the archive script."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from broker.log import STREAMING
from broker.stores.file.deferred_log_writes import DeferredLogWrites
from broker.stores.file.disk import Disk
from broker.stores.interface import Flush
from broker.stores.store_options import FileOptions
from stantools.format.crc import Crc
from stantools.format.quoting import quote

#: The default limit of open files is the process's limit divided by `_LIMIT_DIVISOR` (clients use the rest), at least
#: `_MIN_LIMIT`.
_LIMIT_DIVISOR = 2
_MIN_LIMIT = 64
#: owners of files that are asked to close them at a time
_MAX_ASKED = 16
#: bytes of payloads that are kept in memory
_CACHE_BYTES = 32 << 20


class FileHolder(Protocol):
    """An owner of open files."""

    files: int

    def release(self) -> bool:
        """Closes the files if possible. Returns whether they are closed."""


_Owner = TypeVar("_Owner")


class UsageOrder(Generic[_Owner]):
    """Owners of a resource, the least recently used first, each with the amount that it holds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[_Owner, int] = OrderedDict()
        self.count = 0  #: held by all

    def _use(self, owner: _Owner, amount: int) -> None:
        self.count += amount - self._held.get(owner, 0)
        self._held[owner] = amount
        self._held.move_to_end(owner)

    def leave(self, owner: _Owner) -> None:
        self.count -= self._held.pop(owner, 0)


class OpenFileCount(UsageOrder[FileHolder]):
    """Counts open files, and closes the least recently used ones beyond a limit; 0 uses the process's limit."""

    def __init__(self, limit: int = 0) -> None:
        if limit <= 0:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            limit = (1 << 62) if soft == resource.RLIM_INFINITY else max(soft // _LIMIT_DIVISOR, _MIN_LIMIT)
        super().__init__(limit)
        self.few = True  #: so few that owners need not call `touch` for files that are open already

    def touch(self, owner: FileHolder) -> None:
        """Registers a use of an owner's files; files of other owners are closed beyond the limit."""
        self._use(owner, owner.files)
        self.few = 2 * self.count <= self._limit
        if self.count > self._limit:
            self._close_some(owner)

    def _close_some(self, user: FileHolder) -> None:
        # Each call asks only a few owners; one that cannot close its files now is asked again after the others.
        for other in tuple(islice(self._held, _MAX_ASKED)):
            if other is user:
                continue
            if other.release():
                self.leave(other)
                if self.count <= self._limit:
                    return
            else:
                self._held.move_to_end(other)


class MessageCache(Protocol):
    """An owner of messages that can be read again."""

    def forget(self) -> None: ...


class CacheBudget(UsageOrder[MessageCache]):
    """Bounds the memory for messages that are also on disk: the least recently used owners forget theirs."""

    def __init__(self, limit: int = _CACHE_BYTES) -> None:
        super().__init__(limit)

    def use(self, owner: MessageCache, size: int) -> None:
        """Registers a use by an owner that holds `size` bytes now."""
        self._use(owner, size)
        while self.count > self._limit and len(self._held) > 1:
            other = next(iter(self._held))
            self.leave(other)
            other.forget()


class Archiver:
    """Runs the archive script, if there is one, for slices that limits removed (filestore.md section 5.5)."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._running: set[threading.Thread] = set()

    def __bool__(self) -> bool:
        return bool(self._script)

    def run(self, channel: bytes, data: Path, index: Path) -> None:
        """Starts the script for one slice; its outcome is logged."""
        self._running = {each for each in self._running if each.is_alive()}
        thread = threading.Thread(target=self._run, args=(os.fsdecode(channel), str(data), str(index)))
        self._running.add(thread)
        thread.start()

    def wait(self) -> None:
        """Waits for all running scripts."""
        while self._running:
            self._running.pop().join()

    def _run(self, channel: str, data: str, index: str) -> None:
        output, problem = b"", ""
        try:
            done = subprocess.run(
                [self._script, channel, data, index],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output = done.stdout
            if done.returncode > 0:
                problem = f"exit status {done.returncode}"
            elif done.returncode < 0:
                problem = f"signal: {-done.returncode}"
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problem = f"fork/exec {self._script}: {reason.lower()}"
        text = output.decode("utf-8", "replace")
        if problem:
            script = quote(os.fsencode(self._script))
            STREAMING.info("Error invoking archive script %s: %s (output=%s)", script, problem, text)
        else:
            STREAMING.info("Output of archive script for %s (%s and %s): %s", channel, data, index, text)


class SyncTarget(Protocol):
    """A store with unsynced records."""

    def write_out(self) -> list[Path]:
        """Writes all records and returns the files to sync. Raises StorageError."""


@dataclass(slots=True)
class Services:
    options: FileOptions
    crc: Crc
    wall: Callable[[], int]  #: nanoseconds since the epoch
    open_files: OpenFileCount
    cache: CacheBudget
    archiver: Archiver
    disk: Disk = field(default_factory=Disk)
    later: DeferredLogWrites = field(
        default_factory=DeferredLogWrites
    )  #: writes subscription records that no flush waits for
    completed: list[Flush] = field(default_factory=list)  #: flushes completed since the last `Store.completed`
    unsynced: set[SyncTarget] = field(default_factory=set)  #: message stores with unsynced messages
    unsynced_logs: set[SyncTarget] = field(default_factory=set)  #: subscription stores with unsynced records
    at_once: bool = False  #: the loop makes files itself, before the call returns
