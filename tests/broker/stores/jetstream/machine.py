"""Disks in simulated time."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.stores.file import FileStore
from tests.broker.stores.jetstream.model import Link

_SLOWEST = 0.02


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

    def queue_job(self, begin: Callable[[], tuple[Callable[[], None], Callable[[Exception | None], None]]]) -> None:
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
