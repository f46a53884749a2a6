"""How often a server is asked, and pausing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: Seconds between two rounds that can be chosen.
STEPS: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_LOOK = 0.1


class Pace:
    """The time between two rounds. Changed by the user interface, kept to by the one who asks.

    Attributes:
        paused: Nothing is asked.
    """

    def __init__(self) -> None:
        self._step = STEPS.index(1.0)
        self._changed = threading.Event()
        self.paused = False

    @property
    def seconds(self) -> float:
        """Between two rounds."""
        return STEPS[self._step]

    def faster(self) -> None:
        """Takes the next shorter time."""
        self._step = max(self._step - 1, 0)
        self._changed.set()

    def slower(self) -> None:
        """Takes the next longer time."""
        self._step = min(self._step + 1, len(STEPS) - 1)
        self._changed.set()

    def toggle_pause(self) -> None:
        """Pauses, or goes on at once."""
        self.paused = not self.paused
        self._changed.set()

    def wait(self, check: Callable[[], None], *, at_least: float = 0.0) -> None:
        """Waits until the next round is due.

        Args:
            check: Called many times a second; raises when the work is to end.
            at_least: Seconds.
        """
        begun = time.monotonic()
        while self.left(time.monotonic() - begun, at_least) > 0:
            self._changed.wait(_LOOK)
            self._changed.clear()
            check()

    def left(self, waited: float, at_least: float = 0.0) -> float:
        """Returns how many seconds are left to wait."""
        return float("inf") if self.paused else max(self.seconds, at_least) - waited
