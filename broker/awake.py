"""Busy polling of the event loop: waking a sleeping loop takes longer than most answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter


def _nothing() -> None: ...


class Awake:
    """Lets the running loop poll for readable sockets instead of sleeping; calls `over` at the end."""

    def __init__(self, over: Callable[[], None] = _nothing) -> None:
        self._over = over
        self._end = 0.0
        self._looking = False

    def keep(self, seconds: float) -> None:
        """Polls for `seconds` from now; extends a running period."""
        self._end = perf_counter() + seconds
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = perf_counter() < self._end
        if self._looking:
            asyncio.get_running_loop().call_soon(self._look)
        else:
            self._over()
