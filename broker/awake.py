"""An event loop that is kept awake: to be woken takes longer than most answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter


def _nothing() -> None:
    """There is nothing to do."""


class Awake:
    """Has the running loop look again and again for what is readable, instead of going to sleep.

    Args:
        over: Called when the time is over.
    """

    def __init__(self, over: Callable[[], None] = _nothing) -> None:
        self._over = over
        self._end = 0.0
        self._looking = False

    def keep(self, seconds: float) -> None:
        """Keeps it awake for so long, counted from now."""
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
