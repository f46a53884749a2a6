"""Ctrl-C and SIGTERM as the normal end of work that has no other end."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Final, Self

#: A signal that comes again within this many seconds is the same one: a terminal and a wrapper both send it.
SAME_SIGNAL_SECONDS: Final = 0.5


class EndSignal:
    """Inside the block, the first signal only sets `asked`; the next one acts as it does outside.

    Signals that are ignored, and those of other threads than the main one, are left alone. SIGTERM arrives here because
    the program handles it as it handles SIGINT (`stantools.cli.main`).
    """

    def __init__(self) -> None:
        self.asked = False
        self._at = 0.0
        self._before = signal.getsignal(signal.SIGINT)
        self._replaces = callable(self._before) and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._replaces:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._replaces:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._at = True, time.monotonic()
        elif time.monotonic() - self._at > SAME_SIGNAL_SECONDS:
            assert callable(self._before)
            self._before(number, frame)

    def wait(self, seconds: float, step: float = 0.05) -> bool:
        """Waits unless the end is asked for; returns whether to continue."""
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, step))  # a signal does not shorten a sleep
        return not self.asked
