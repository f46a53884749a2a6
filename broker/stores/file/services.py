"""What all channels of a file store share: bounds for files and memory, the archive script."""

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
from typing import Protocol

from broker.log import STREAMING
from broker.stores.file.deferred_log_writes import DeferredLogWrites
from broker.stores.file.disk import Disk
from broker.stores.interface import Flush
from broker.stores.store_options import FileOptions
from stantools.format.crc import Crc
from stantools.format.quoting import quote

#: What is left for clients, of the files that the system allows, when nothing is configured: half of them.
_SHARE = 2
_LEAST = 64
#: Owners of files who are asked at a time to close them.
_ASKED = 16
#: Bytes of payloads that are kept in memory.
_CACHE_BYTES = 32 << 20


class FileHolder(Protocol):
    """Something with open files."""

    files: int

    def release(self) -> bool:
        """Closes them, if nothing speaks against it. Returns whether they are closed."""


class OpenFileCount:
    """Counts open files.

    Args:
        limit: How many may be open; 0 goes by what the system allows the process.
    """

    def __init__(self, limit: int = 0) -> None:
        if limit <= 0:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            limit = (1 << 62) if soft == resource.RLIM_INFINITY else max(soft // _SHARE, _LEAST)
        self._limit = limit
        self._open: OrderedDict[FileHolder, int] = OrderedDict()
        self.count = 0
        self.few = True  #: so few that nobody need say that files are used which were open before

    def touch(self, owner: FileHolder) -> None:
        """Takes note that an owner uses its files now, and closes those of others if that is too much."""
        held = self._open
        self.count += owner.files - held.get(owner, 0)
        self.few = 2 * self.count <= self._limit
        held[owner] = owner.files
        held.move_to_end(owner)
        if self.count > self._limit:
            self._close_some(owner)

    def leave(self, owner: FileHolder) -> None:
        """Takes note that an owner has closed its files."""
        self.count -= self._open.pop(owner, 0)

    def _close_some(self, user: FileHolder) -> None:
        # Where many are at work each call asks a few: who cannot close them now is asked again after the others.
        for other in tuple(islice(self._open, _ASKED)):
            if other is user:
                continue
            if other.release():
                self.leave(other)
                if self.count <= self._limit:
                    return
            else:
                self._open.move_to_end(other)


class MessageCache(Protocol):
    """Something that holds messages that can be read again."""

    def forget(self) -> None:
        """Forgets them."""


class CacheBudget:
    """How much memory all channels together may use for messages that are also on disk.

    Lets those that were not used for the longest time forget, when all hold too much together.
    """

    def __init__(self, limit: int = _CACHE_BYTES) -> None:
        self._limit = limit
        self._held: OrderedDict[MessageCache, int] = OrderedDict()
        self._total = 0

    def use(self, owner: MessageCache, size: int) -> None:
        """Takes note that an owner was used and how many bytes it holds now."""
        held = self._held
        self._total += size - held.get(owner, 0)
        held[owner] = size
        held.move_to_end(owner)
        while self._total > self._limit and len(held) > 1:
            other, freed = held.popitem(last=False)
            self._total -= freed
            other.forget()

    def leave(self, owner: MessageCache) -> None:
        """Takes note that an owner holds nothing any more."""
        self._total -= self._held.pop(owner, 0)


class Archiver:
    """Runs the script that is given slices that limits removed, in the background (filestore.md section 5.5).

    Args:
        script: Its path; empty for none.
    """

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
        """Returns when no script is running any more."""
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
    """Something that holds what is not durable."""

    def write_out(self) -> list[Path]:
        """Writes what it has and returns the files that are to be synced. Raises StorageError."""


@dataclass(slots=True)
class Services:
    """What all channels of a store share."""

    options: FileOptions  #: of the store
    crc: Crc  #: the store's CRC
    wall: Callable[[], int]  #: nanoseconds since the epoch
    open_files: OpenFileCount  #: counts open files
    cache: CacheBudget  #: bounds the memory for messages
    archiver: Archiver  #: runs the archive script
    disk: Disk = field(default_factory=Disk)  #: writes and syncs
    later: DeferredLogWrites = field(
        default_factory=DeferredLogWrites
    )  #: has subscription stores write what nobody waits for
    completed: list[Flush] = field(default_factory=list)  #: flushes that were under way and are not any more
    unsynced: set[SyncTarget] = field(default_factory=set)  #: message stores that hold something which is not durable
    unsynced_logs: set[SyncTarget] = field(default_factory=set)  #: subscription stores that do
    at_once: bool = False  #: what makes files is done by the loop, and complete when it returns
