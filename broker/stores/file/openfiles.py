"""Not too many open files: those that were not used for the longest time are closed, and opened again when needed."""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Protocol

#: What is left for clients, of the files that the system allows, when nothing is configured: half of them.
_SHARE = 2
_LEAST = 64


class Releasable(Protocol):
    """Something with open files."""

    files: int

    def release(self) -> bool:
        """Closes them, if nothing speaks against it. Returns whether they are closed."""


class OpenFiles:
    """Counts open files.

    Args:
        limit: How many may be open; 0 goes by what the system allows the process.
    """

    def __init__(self, limit: int = 0) -> None:
        if limit <= 0:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            limit = (1 << 62) if soft == resource.RLIM_INFINITY else max(soft // _SHARE, _LEAST)
        self._limit = limit
        self._open: OrderedDict[Releasable, int] = OrderedDict()
        self.count = 0

    def touch(self, owner: Releasable) -> None:
        """Takes note that an owner uses its files now, and closes those of others if that is too much."""
        held = self._open
        self.count += owner.files - held.get(owner, 0)
        held[owner] = owner.files
        held.move_to_end(owner)
        if self.count > self._limit:
            self._close_some(owner)

    def leave(self, owner: Releasable) -> None:
        """Takes note that an owner has closed its files."""
        self.count -= self._open.pop(owner, 0)

    def _close_some(self, user: Releasable) -> None:
        for other in list(self._open):
            if other is not user and other.release():
                self.leave(other)
                if self.count <= self._limit:
                    return
