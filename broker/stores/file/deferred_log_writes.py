"""What is noted of subscriptions, and nobody waits for, is written a little later: of all channels together.

Only where flushes need not be durable. What was sent and acknowledged may be forgotten when the process is killed: then
it is delivered again. Where each turn of the loop wrote it, that would cost a call of the system for each message of a
channel that gets them one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

#: Nanoseconds for which it may wait.
DELAY: Final = 100_000_000
#: Bytes of all that may wait; what comes beyond is written at each flush.
BOUND: Final = 4 << 20
#: Nanoseconds that are spent on writing it, before others have their turn.
_SHARE: Final = 2_000_000


class DeferredWriter(Protocol):
    """Something that has noted what is to be written."""

    def write_noted(self) -> None:
        """Writes it."""


class DeferredLogWrites:
    """Those who have something that is to be written a little later.

    Attributes:
        size: Bytes that were noted since the first of those came who wait.
        sooner: Has `write` called at a time (monotonic nanoseconds). None where nobody does: then nothing may wait.
    """

    def __init__(self) -> None:
        self.size = 0
        self.sooner: Callable[[int], None] | None = None
        self._waiting: dict[DeferredWriter, None] = {}
        self._due: dict[DeferredWriter, None] = {}
        self._since = 0  # when the first of those who wait came

    def takes(self, owner: DeferredWriter) -> bool:
        """Has `write_noted` of an owner called before long. Returns whether that is so."""
        if self.sooner is None:
            return False
        if not self._waiting:
            self.size, self._since = 0, time.monotonic_ns()
            if not self._due:
                self.sooner(self._since + DELAY)
        self._waiting[owner] = None
        return True

    def forget(self, owner: DeferredWriter) -> None:
        """Takes note that an owner has nothing more to write."""
        self._waiting.pop(owner, None)
        self._due.pop(owner, None)

    def write(self) -> int | None:
        """Has those write who have waited long enough.

        Returns:
            When it wants to be called again, monotonic nanoseconds; None if nobody waits.
        """
        begin = time.monotonic_ns()
        if not self._due and self._waiting and begin >= self._since + DELAY:
            self._due, self._waiting = self._waiting, {}
        while self._due:
            if time.monotonic_ns() - begin > _SHARE:
                return begin
            self._due.popitem()[0].write_noted()
        return self._since + DELAY if self._waiting else None
