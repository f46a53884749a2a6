"""Messages that were published and not acknowledged yet: who wants to know, and until when one waits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from stantools.streaming.errors import AckTimeoutError, StreamingError

#: Is told what became of a message: None if it was stored, otherwise why not, or why nobody knows.
Acked = Callable[[StreamingError | None], None]


class Outstanding:
    """The messages that are on their way.

    Args:
        most: How many there may be.
        timeout: Seconds until an ack counts as lost.
    """

    def __init__(self, most: int, timeout: float) -> None:
        self._most = most
        self._timeout = timeout
        # All wait equally long, so the first one is the next whose time is over.
        self._waiting: dict[int, tuple[float, Acked]] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._none = asyncio.Event()
        self._none.set()
        self._next = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def room(self) -> None:
        """Waits until one more may be sent."""
        while len(self._waiting) >= self._most:
            self._room.clear()
            await self._room.wait()

    async def none(self) -> None:
        """Waits until none is on its way."""
        while self._waiting:
            self._none.clear()
            await self._none.wait()

    def add(self, now: float, acked: Acked) -> int:
        """Takes note of one. Returns its number.

        Args:
            now: Seconds of the clock that `expire` is given.
            acked: Called once.
        """
        self._next += 1
        self._waiting[self._next] = (now + self._timeout, acked)
        return self._next

    def settle(self, number: int, problem: StreamingError | None) -> None:
        """Says what became of one; nothing happens if that was said before."""
        found = self._waiting.pop(number, None)
        if found is None:
            return
        if len(self._waiting) < self._most:
            self._room.set()
        if not self._waiting:
            self._none.set()
        found[1](problem)

    def forget(self, number: int) -> None:
        """Takes back one that could not be sent; nobody is told."""
        if number in self._waiting:
            self._waiting[number] = (0.0, lambda _: None)
            self.settle(number, None)

    def expire(self, now: float) -> None:
        """Gives up those whose time is over."""
        late = itertools.takewhile(lambda item: item[1][0] <= now, self._waiting.items())
        for number in [number for number, _ in late]:
            self.settle(number, AckTimeoutError(f"no ack came within {self._timeout:g} s; the message may be stored"))

    def fail(self, problem: StreamingError) -> None:
        """Gives up all of them."""
        for number in list(self._waiting):
            self.settle(number, problem)
