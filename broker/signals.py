"""Signals to a process with an event loop, even while the loop is busy or blocked, and a deadline for its end.

A signal writes its number into a pipe (`signal.set_wakeup_fd`) at any time. A thread reads the pipe and passes the
signal to the loop. A signal that ends the process also starts a timer; if the process still runs when the timer
expires, it ends at once. As with `kill -9`, no acknowledged message is lost, because acknowledgements follow the
write to files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

from broker.log import STREAMING
from stantools.notation import some_of

#: Seconds for an orderly end, and then for the last line of the log.
PATIENCE: Final = 1.6
_LOG_TIMEOUT: Final = 0.2
#: Maximum number of places named in that line.
_MAX_PLACES: Final = 3


class SignalThread:
    """Passes signals to an event loop, as a context manager.

    Args:
        codes: Signals that end the process -> exit codes.
        patience: Seconds for an orderly end; may be changed.

    Attributes:
        unwritten: Returns the places of unfinished writes, for the line of an end that takes too long.
    """

    def __init__(self, codes: Mapping[int, int], patience: float = PATIENCE) -> None:
        self._codes, self.patience = codes, patience
        self.unwritten: Callable[[], list[str]] = list
        self._actions: Mapping[int, Callable[[], object]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._old_handlers: dict[int, object] = {}
        self._ended = threading.Event()
        self._code: int | None = None
        self._reader = self._writer = -1

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        return self

    def attach(self, loop: asyncio.AbstractEventLoop, actions: Mapping[int, Callable[[], object]]) -> None:
        """Calls the action of each signal on the loop, which runs in the main thread."""
        self._loop, self._actions = loop, actions
        for number in actions:
            # Python's handler does nothing: the number in the pipe is enough.
            self._old_handlers[number] = signal.signal(number, lambda *_: None)
            signal.siginterrupt(number, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._read_signals, name="signals", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._loop is not None:
            signal.set_wakeup_fd(-1)
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler if callable(handler) else signal.SIG_DFL)
        # The thread sees the end of the pipe and closes the other side.
        os.close(self._writer)

    def _read_signals(self) -> None:
        assert self._loop is not None
        while numbers := os.read(self._reader, 256):
            for number in numbers:
                action = self._actions.get(number)
                if action is None:
                    continue
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(action)
                if number in self._codes and self._code is None:
                    self._code = self._codes[number]
                    threading.Thread(target=self._enforce_deadline, name="end", daemon=True).start()
        os.close(self._reader)

    def _enforce_deadline(self) -> None:
        if self._ended.wait(self.patience):
            return
        assert self._code is not None
        # In a thread, because the log file may be the blocked device.
        line = threading.Thread(target=self._log_timeout, daemon=True)
        line.start()
        line.join(_LOG_TIMEOUT)
        os._exit(self._code)

    def _log_timeout(self) -> None:
        found: list[str] = []
        # The main thread may change the collections meanwhile.
        with contextlib.suppress(Exception):
            found = self.unwritten()
        STREAMING.warning(
            "The end in order takes longer than %.1f s, so the process ends now; what was acknowledged is kept%s",
            self.patience,
            f". Still being written: {some_of(found, _MAX_PLACES)}" if found else "",
        )
        for handler in logging.getLogger().handlers:
            handler.flush()
