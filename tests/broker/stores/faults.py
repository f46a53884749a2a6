"""Storage that fails: calls of the system that write, sync, open or cut, made to fail on demand."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

CALLS = ("write", "writev", "fsync", "ftruncate", "open")


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
            elif name == "write":
                self._real["write"](arguments[0], bytes(arguments[1])[:7])
            raise OSError(errno.EIO if name == "fsync" else errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real[name](*arguments, **more)


@contextmanager
def faults() -> Iterator[Faults]:
    found = Faults()
    with patch.multiple(os, **{name: (lambda *a, _name=name, **k: found.call(_name, *a, **k)) for name in CALLS}):
        yield found
