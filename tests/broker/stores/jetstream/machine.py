"""Machines whose power is lost: of files only what was synced is there afterwards for sure."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from broker.stores.file import FileStore
from tests.broker.stores.jetstream.model import Link

_SLOWEST = 0.02


class Machine:
    """Takes note of what is synced. Of the rest a part may be there after a loss of power: cut, or with zeros."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._sizes: dict[int, int] = {}
        self._names: dict[str, set[str]] = {}

    def fsync(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self._names[str(path)] = {each.name for each in path.iterdir()}
        else:
            self._sizes[about.st_ino] = about.st_size

    @contextmanager
    def watched(self) -> Iterator[None]:
        with patch.object(os, "fsync", self.fsync):
            yield

    def unsynced(self, root: Path) -> list[str]:
        """Returns the files with messages that are not synced as they are."""
        files = {path: path.stat() for path in root.rglob("msgs.*.dat")}
        return [str(path) for path, about in files.items() if self._sizes.get(about.st_ino, 0) < about.st_size]

    def lose_power(self, root: Path) -> None:
        for base, folders, files in os.walk(root):
            # The same on every file system.
            folders.sort()
            for name in tuple(folders):
                if self._goes(base, name):
                    shutil.rmtree(Path(base, name))
                    folders.remove(name)
            for name in sorted(files):
                path = Path(base, name)
                if self._goes(base, name):
                    path.unlink()
                    continue
                about = path.stat()
                kept = min(self._sizes.get(about.st_ino, 0), about.st_size)
                os.truncate(path, self.chance.randint(kept, about.st_size))
                if self.chance.random() < 0.3:
                    os.truncate(path, about.st_size)

    def _goes(self, base: str, name: str) -> bool:
        return name not in self._names.get(base, ()) and self.chance.random() < 0.5


class LoopDisk:
    """Stands in for `broker.stores.file.disk.Disk` in simulated time."""

    pause = 0.0

    def __init__(self, chance: random.Random, link: Link) -> None:
        self.wake: Callable[[], None] | None = None
        self._chance = chance
        self._link = link
        self._done: list[tuple[Callable[[Exception | None], None], Exception | None]] = []

    def run(self, job: Callable[[], None], conclusion: Callable[[Exception | None], None], **_: Any) -> None:
        asyncio.get_running_loop().call_later(self._chance.uniform(0, _SLOWEST), self._do, job, conclusion)

    def _do(self, job: Callable[[], None], conclusion: Callable[[Exception | None], None]) -> None:
        if self._link.dead:
            return
        problem = None
        try:
            job()
        except Exception as raised:
            problem = raised
        self._done.append((conclusion, problem))
        if self.wake is not None:
            self.wake()

    def sync_aside(self, descriptor: int, conclusion: Callable[[Exception | None], None]) -> bool:
        """No kernel syncs here."""
        return False

    def sync_files(self, paths: Iterable[Path], conclusion: Callable[[Exception | None], None]) -> None:
        def sync() -> None:
            for path in paths:
                with suppress(FileNotFoundError):
                    descriptor = os.open(path, os.O_RDONLY)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)

        self.run(sync, conclusion)

    def take_turns(self, begin: Callable[[], tuple[Callable[[], None], Callable[[Exception | None], None]]]) -> None:
        self.run(*begin())

    def conclude(self, patience: float | None = None) -> bool:
        done, self._done = self._done, []
        for conclusion, problem in done:
            conclusion(problem)
        return True

    def stop(self) -> None:
        """There are no threads."""


def on(chance: random.Random, link: Link, store: FileStore) -> FileStore:
    """Returns a store whose disk is in simulated time."""
    store._services.disk = LoopDisk(chance, link)  # type: ignore[assignment]
    return store
