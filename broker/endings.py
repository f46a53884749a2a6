"""Signals to a process with an event loop, also while its loop is busy or blocked, and an end that comes in time.

A signal writes its number into a pipe (`signal.set_wakeup_fd`), whatever the process is doing. A thread reads the pipe
and hands the signal to the loop. A signal that is to end the process also starts a clock: if the process is still there
when the clock has run down, it ends on the spot. Nothing that was acknowledged is lost by that, as with `kill -9`:
acknowledgements follow what was written to files.
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

#: Seconds that an end in order may take, and that are left for a line in the log then.
PATIENCE: Final = 1.6
_LAST_LINE: Final = 0.2
#: Places that the line names.
_NAMED: Final = 3


class SignalThread:
    """Hands signals to an event loop, as a context.

    Args:
        codes: Signals that end the process, and its exit codes then.
        patience: Seconds that an end in order may take; may be changed.

    Attributes:
        unwritten: Returns what is still being written, for the line of an end that takes too long.
    """

    def __init__(self, codes: Mapping[int, int], patience: float = PATIENCE) -> None:
        self._codes, self.patience = codes, patience
        self.unwritten: Callable[[], list[str]] = list
        self._actions: Mapping[int, Callable[[], object]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, object] = {}
        self._ended = threading.Event()
        self._code: int | None = None
        self._read = self._write = -1

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        return self

    def attach(self, loop: asyncio.AbstractEventLoop, actions: Mapping[int, Callable[[], object]]) -> None:
        """Hands signals to a loop, which runs in the main thread: calls what belongs to each."""
        self._loop, self._actions = loop, actions
        for number in actions:
            # The handler of Python has nothing to do: the number in the pipe is enough.
            self._before[number] = signal.signal(number, _nothing)
            signal.siginterrupt(number, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._hear, name="signals", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._loop is not None:
            signal.set_wakeup_fd(-1)
            for number, handler in self._before.items():
                signal.signal(number, handler if callable(handler) else signal.SIG_DFL)
        # The thread ends, and closes the other side.
        os.close(self._write)

    def _hear(self) -> None:
        assert self._loop is not None
        while numbers := os.read(self._read, 256):
            for number in numbers:
                action = self._actions.get(number)
                if action is None:
                    continue
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(action)
                if number in self._codes and self._code is None:
                    self._code = self._codes[number]
                    threading.Thread(target=self._watch, name="end", daemon=True).start()
        os.close(self._read)

    def _watch(self) -> None:
        """Ends the process if it does not end by itself."""
        if self._ended.wait(self.patience):
            return
        assert self._code is not None
        # What is written to a log may be what everything waits for.
        line = threading.Thread(target=self._say, daemon=True)
        line.start()
        line.join(_LAST_LINE)
        os._exit(self._code)

    def _say(self) -> None:
        found: list[str] = []
        # The main thread may be changing what is looked at.
        with contextlib.suppress(Exception):
            found = self.unwritten()
        STREAMING.warning(
            "The end in order takes longer than %.1f s, so the process ends now; what was acknowledged is kept%s",
            self.patience,
            f". Still being written: {some_of(found, _NAMED)}" if found else "",
        )
        for handler in logging.getLogger().handlers:
            handler.flush()


def _nothing(number: int, frame: object) -> None:
    """The thread does all there is to do."""
