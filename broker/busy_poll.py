"""Busy polling of the event loop: waking a sleeping loop takes longer than most answers."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from time import perf_counter
from typing import Final

#: Seconds of polling for the next request of a client.
_POLL_TIME: Final = 150e-6
#: Seconds between two polls above which another process had the processor.
_PREEMPTED: Final = 100e-6
#: Maximum number of answers without polling, after polling in vain or at the cost of another process.
_MAX_PAUSE: Final = 256
#: Number of successes after which the next pause is half as long.
_SUCCESSES: Final = 8


class BusyPoll:
    """Lets the running loop poll for readable sockets instead of sleeping; calls `over` at the end."""

    def __init__(self, over: Callable[[], None]) -> None:
        self._on_end = over
        self._end = 0.0
        self._polling = False

    def keep(self, seconds: float) -> None:
        """Polls for `seconds` from now; extends a running period."""
        self._end = perf_counter() + seconds
        if not self._polling:
            self._polling = True
            asyncio.get_running_loop().call_soon(self._poll)

    def _poll(self) -> None:
        self._polling = perf_counter() < self._end
        if self._polling:
            asyncio.get_running_loop().call_soon(self._poll)
        else:
            self._on_end()


class PollState(enum.Enum):
    #: no polling
    IDLE = enum.auto()
    #: an answer is about to be written
    ANSWERING = enum.auto()
    #: polling for the next request
    POLLING = enum.auto()


class RequestPoll:
    """Polls for a moment after the answer to a client, as long as that pays.

    Polling pays if the next request comes meanwhile. If it does not come, or another process had the processor (maybe
    the client needed it), a number of answers go without polling, twice as many after each failure.
    """

    def __init__(self) -> None:
        self.state = PollState.IDLE
        self._scheduled = False
        self._end = self._last = 0.0
        self._left = 0  # answers without polling
        self._pause = 1
        self._successes = 0

    def applied(self, again: bool) -> None:
        """Records applied input; with `again`, polls after its answer, unless that did not pay lately."""
        if self.state is PollState.POLLING:
            self._successes += 1
            if self._successes >= _SUCCESSES:
                self._successes, self._pause = 0, max(self._pause // 2, 1)
        self.state = PollState.IDLE
        if not again:
            return
        if self._left:
            self._left -= 1
            return
        self.state = PollState.ANSWERING
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._poll)

    def _poll(self) -> None:
        now = perf_counter()
        if self.state is PollState.ANSWERING:
            self.state, self._end = PollState.POLLING, now + _POLL_TIME
        elif self.state is PollState.POLLING:
            if now - self._last > _PREEMPTED:
                self._fail(_MAX_PAUSE)
            elif now > self._end:
                self._fail(2 * self._pause)
        if self.state is PollState.IDLE:
            self._scheduled = False
            return
        self._last = now
        asyncio.get_running_loop().call_soon(self._poll)

    def _fail(self, pause: int) -> None:
        self.state = PollState.IDLE
        self._left = self._pause = min(pause, _MAX_PAUSE)
        self._successes = 0
