"""Who has the event loop, and for how long: nobody so long that the others notice.

Whatever a client asks for is done in the read that brought it, as far as the time of a turn allows. The rest is *work*:
an iterator that does a little at each step. Work waits in a queue, gets turns one after the other, and between two of
them the loop reads what came from others. The same holds for what the clients in this process send each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

from broker.log import NATS

#: Seconds of a turn: alone, and where many want one.
_TURN: Final = 0.004
_SHORTEST: Final = 0.001


class Turns:
    """Shares the time of the event loop.

    Args:
        take_in: Called before a turn: what was read meanwhile comes first.
    """

    def __init__(self, take_in: Callable[[], None]) -> None:
        self.take_in: Final = take_in
        self._waiting: deque[Iterator[None]] = deque()
        self._timer: asyncio.Handle | None = None

    def deadline(self) -> float:
        """Returns when (`perf_counter`) a turn that begins now is over."""
        return perf_counter() + max(_TURN / (1 + len(self._waiting)), _SHORTEST)

    def begin(self, work: Iterator[None]) -> None:
        """Does some work at once, and what takes too long later."""
        if self._step(work, self.deadline()):
            self.add(work)

    def add(self, work: Iterator[None]) -> None:
        """Does some work later."""
        self._waiting.append(work)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._run)

    def stop(self) -> None:
        """Drops all work."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        self.take_in()
        end = perf_counter() + _TURN
        while self._waiting:
            work = self._waiting.popleft()
            if self._step(work, min(end, self.deadline())):
                self._waiting.append(work)
            if perf_counter() > end:
                break
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._run)

    @staticmethod
    def _step(work: Iterator[None], deadline: float) -> bool:
        """Goes on until the deadline. Returns whether there is more to do."""
        try:
            for _ in work:
                if perf_counter() > deadline:
                    return True
        except Exception as problem:
            # A mistake of ours must not cost more than this work.
            NATS.error("Internal error: %r", problem)
            NATS.debug("Details", exc_info=True)
        return False


class Mailbox:
    """What the clients in this process have sent each other, and what waits for it to be handed over.

    Requests that wait so (barriers) are served before the next message of the batch that brought them, and before the
    next batch: a client that ends a subscription and asks for it again in one write is served in that order.
    """

    def __init__(self, turns: Turns) -> None:
        self.waiting: Final[deque[Callable[[], None]]] = deque()
        self._turns = turns
        self._draining = False
        self._barriers = 0
        self._timer: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def put(self, action: Callable[[], None]) -> None:
        """Adds something to be done."""
        self.waiting.append(action)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._due)

    def barrier(self, done: Callable[[], None]) -> None:
        """Adds something that is done with all that was added before, however long that takes."""

        def reached() -> None:
            self._barriers -= 1
            done()

        self._barriers += 1
        self.put(reached)

    def _due(self) -> None:
        self._timer = None
        self._turns.take_in()
        self.drain()

    def drain(self) -> None:
        """Does what waits, including what comes up meanwhile, as long as a turn is, or up to the last barrier."""
        if self._draining or not self.waiting:
            return
        self._draining = True
        deadline = self._turns.deadline()
        try:
            while self.waiting:
                action = self.waiting.popleft()
                try:
                    action()
                except Exception as problem:
                    NATS.error("Error in a handler: %r", problem)
                    NATS.debug("Details", exc_info=True)
                if not self._barriers and perf_counter() > deadline:
                    break
        finally:
            self._draining = False
            if self.waiting and self._timer is None:
                self._timer = asyncio.get_running_loop().call_soon(self._due)
