"""Storage that fails: calls of the system that write, sync, open or cut, made to fail on demand."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from broker.stores.file import disk

CALLS = ("write", "pwrite", "writev", "fsync", "ftruncate", "open")


class Faults:
    """Lets a call fail after some more have been good; a failing write may have written a part.

    Attributes:
        after: Calls that still work; None for all.
        lasting: Every call fails from then on.
        happened: How many have failed.
    """

    def __init__(self) -> None:
        self.after: int | None = None
        self.lasting = False
        self.happened = 0
        self._real = {name: getattr(os, name) for name in CALLS}

    def _fails(self) -> bool:
        if self.after is None:
            return False
        self.after -= 1
        if self.after >= 0:
            return False
        self.happened += 1
        self.after = 0 if self.lasting else None
        return True

    def call(self, name: str, *arguments: Any, **more: Any) -> Any:
        if self._fails():
            if name == "writev":
                self._real["write"](arguments[0], bytes(arguments[1][0])[:5])
            elif name in ("write", "pwrite"):
                self._real[name](arguments[0], bytes(arguments[1])[:7], *arguments[2:])
            raise OSError(errno.EIO if name == "fsync" else errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real[name](*arguments, **more)


class CalledSyncs:
    """Stands in for `broker.stores.file.disk.KernelSyncs`, by calls of `os.fsync`, which may fail or hang."""

    MANY = math.inf

    def __init__(self) -> None:
        self.possible = True
        self.started = self.completed = 0
        self._ended: list[tuple[Callable[[Exception | None], None], OSError | None, int]] = []
        self._change = threading.Condition()

    @property
    def under_way(self) -> int:
        return self.started - self.completed

    def start(self, wanted: Sequence[tuple[Sequence[int], Callable[[Exception | None], None]]]) -> int:
        for descriptors, conclusion in wanted:
            with self._change:
                self.started += len(descriptors)
            own = [os.dup(each) for each in descriptors]
            threading.Thread(target=self._sync, args=(own, conclusion), daemon=True).start()
        return len(wanted)

    def _sync(self, descriptors: list[int], conclusion: Callable[[Exception | None], None]) -> None:
        problem = None
        for each in descriptors:
            try:
                os.fsync(each)
            except OSError as error:
                problem = error
            os.close(each)
        with self._change:
            self._ended.append((conclusion, problem, len(descriptors)))
            self._change.notify()

    def wait(
        self, seconds: float, least: int = 1000
    ) -> list[tuple[Callable[[Exception | None], None], OSError | None]]:
        end = time.monotonic() + seconds
        with self._change:
            while sum(count for *_, count in self._ended) < min(least, self.under_way):
                if not self._change.wait(max(end - time.monotonic(), 0)):
                    break
            ended, self._ended = self._ended, []
            self.completed += sum(count for *_, count in ended)
        return [(conclusion, problem) for conclusion, problem, _ in ended]

    def close(self) -> None:
        """There is nothing to give back."""


@contextmanager
def faults() -> Iterator[Faults]:
    """Lets calls fail. Stores that are made meanwhile have no syncs but such calls."""
    found = Faults()
    called = {name: (lambda *a, _name=name, **k: found.call(_name, *a, **k)) for name in CALLS}
    with patch.multiple(os, **called), patch.object(disk, "KernelSyncs", CalledSyncs):
        yield found
