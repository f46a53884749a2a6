"""Fair use of the event loop: no client or work occupies it for long.

A request is handled within its read, up to the time of a turn. The rest is *work*: an iterator that does a little at
each step. Waiting work gets turns one after the other; between two turns the loop reads further input. Messages
between clients in this process follow the same rule.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

from broker.log import NATS

#: Seconds of a turn: maximum, and minimum if much work waits.
_TURN = 0.004
_MIN_TURN = 0.001


class FairScheduler:
    """Shares the time of the event loop; `apply_input` is called before each turn, to apply earlier input."""

    def __init__(self, apply_input: Callable[[], None]) -> None:
        self.apply_input: Final = apply_input
        self._waiting: deque[Iterator[None]] = deque()
        self._timer: asyncio.Handle | None = None

    def deadline(self) -> float:
        """Returns the end of a turn that begins now (`perf_counter`)."""
        return perf_counter() + max(_TURN / (1 + len(self._waiting)), _MIN_TURN)

    def begin(self, work: Iterator[None]) -> None:
        """Runs work up to the end of a turn, and the rest later."""
        if self._step(work, self.deadline()):
            self.add(work)

    def add(self, work: Iterator[None]) -> None:
        self._waiting.append(work)
        self._request_turn()

    def stop(self) -> None:
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        self.apply_input()
        end = perf_counter() + _TURN
        while self._waiting:
            work = self._waiting.popleft()
            if self._step(work, min(end, self.deadline())):
                self._waiting.append(work)
            if perf_counter() > end:
                break
        if self._waiting:
            self._request_turn()

    def _request_turn(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._run)

    @staticmethod
    def _step(work: Iterator[None], deadline: float) -> bool:
        """Runs work until the deadline. Returns whether some is left."""
        try:
            for _ in work:
                if perf_counter() > deadline:
                    return True
        except Exception as problem:
            # A bug costs this work only.
            NATS.error("Internal error: %r", problem)
            NATS.debug("Details", exc_info=True)
        return False


class Mailbox:
    """Messages between clients in this process, and requests that wait for their delivery (barriers).

    Barriers are reached before the next message of their batch and before the next batch: a client that unsubscribes
    and subscribes again in one write is served in that order.
    """

    def __init__(self, turns: FairScheduler) -> None:
        self.waiting: Final[deque[Callable[[], None]]] = deque()
        self._turns = turns
        self._draining = False
        self._barriers = 0
        self._timer: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def put(self, action: Callable[[], None]) -> None:
        self.waiting.append(action)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._on_timer)

    def barrier(self, done: Callable[[], None]) -> None:
        """Calls `done` after all earlier actions, however long they take."""

        def reached() -> None:
            self._barriers -= 1
            done()

        self._barriers += 1
        self.put(reached)

    def _on_timer(self) -> None:
        self._timer = None
        self._turns.apply_input()
        self.drain()

    def drain(self) -> None:
        """Runs waiting actions, including new ones, for the time of a turn, or up to the last barrier."""
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
                self._timer = asyncio.get_running_loop().call_soon(self._on_timer)
