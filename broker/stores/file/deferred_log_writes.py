"""Delayed writing of subscription records for which no flush waits, of all channels together.

It applies only where flushes need not be durable. A kill may lose records of deliveries and acknowledgements: then
the messages are delivered again. Without a delay, a channel that gets messages one by one would cost a system call
per message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

#: nanoseconds for which records may wait
DELAY = 100_000_000
#: bytes of all waiting records; beyond that, each flush writes them
BOUND = 4 << 20
#: nanoseconds that one call of `write` takes, at most
_MAX_TIME: Final = 2_000_000


class DeferredWriter(Protocol):
    """An owner of records that may be written later."""

    def write_noted(self) -> None: ...


class DeferredLogWrites:
    """The owners of records that are written a little later.

    Attributes:
        size: Bytes of records since the first waiting owner registered.
        sooner: Schedules `write` at a time (monotonic nanoseconds). None if records may not wait.
    """

    def __init__(self) -> None:
        self.size = 0
        self.sooner: Callable[[int], None] | None = None
        self._waiting: dict[DeferredWriter, None] = {}
        self._due: dict[DeferredWriter, None] = {}
        self._since = 0  # when the first waiting owner registered

    def takes(self, owner: DeferredWriter) -> bool:
        """Registers an owner, whose `write_noted` is called soon. Returns False if its records may not wait."""
        if self.sooner is None:
            return False
        if not self._waiting:
            self.size, self._since = 0, time.monotonic_ns()
            if not self._due:
                self.sooner(self._since + DELAY)
        self._waiting[owner] = None
        return True

    def forget(self, owner: DeferredWriter) -> None:
        self._waiting.pop(owner, None)
        self._due.pop(owner, None)

    def write(self) -> int | None:
        """Lets owners write whose delay is over. Returns the time of the next call, None if no owner waits."""
        begin = time.monotonic_ns()
        if not self._due and self._waiting and begin >= self._since + DELAY:
            self._due, self._waiting = self._waiting, {}
        while self._due:
            if time.monotonic_ns() - begin > _MAX_TIME:
                return begin
            self._due.popitem()[0].write_noted()
        return self._since + DELAY if self._waiting else None
