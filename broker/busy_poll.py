"""Busy polling of the event loop: waking a sleeping loop takes longer than most answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter


class BusyPoll:
    """Lets the running loop poll for readable sockets instead of sleeping; calls `over` at the end."""

    def __init__(self, over: Callable[[], None] = lambda: None) -> None:
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
