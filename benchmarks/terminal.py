"""A program in a terminal of its own: keys go in, what is drawn comes out, with the time of both."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Sequence
from pathlib import Path

_SIZE = (45, 140)
_MB = 1 << 20


class Terminal:
    """A running program.

    Args:
        command: The command line.

    Attributes:
        begun: When it was started, in seconds of `time.perf_counter`.
        drawn: Everything that was drawn so far.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.begun = time.perf_counter()
        self.drawn = bytearray()
        self.pid, self._descriptor = pty.fork()
        if not self.pid:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(command[0], list(command))
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))

    def read(self, seconds: float) -> bytes:
        """Returns what is drawn within a time; less if the program ends."""
        found = bytearray()
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self._descriptor], [], [], left)[0]:
                try:
                    found += os.read(self._descriptor, 1 << 16)
                except OSError:
                    break
        self.drawn += found
        return bytes(found)

    def until(self, text: bytes, seconds: float = 60.0) -> float:
        """Waits for a text to be drawn and returns when it was.

        Raises:
            TimeoutError: It was not.
        """
        found = b""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if not select.select([self._descriptor], [], [], left)[0]:
                break
            try:
                part = os.read(self._descriptor, 1 << 16)
            except OSError:
                break
            self.drawn += part
            found = found[-200:] + part
            if text in found:
                return time.perf_counter()
        raise TimeoutError(f"{text!r} was not drawn; the last was {found!r}")

    def press(self, keys: str, text: bytes) -> float:
        """Sends keys and returns how many seconds it takes until a text is drawn."""
        begin = time.perf_counter()
        os.write(self._descriptor, keys.encode())
        return self.until(text) - begin

    def send(self, keys: str) -> None:
        """Sends keys."""
        os.write(self._descriptor, keys.encode())

    def memory(self) -> tuple[float, float]:
        """Returns the most memory so far, and what of the present is not shared with files, in MiB."""
        values = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmHWM", "RssAnon"):
                values[name] = int(value.split()[0]) * 1024 / _MB
        return values["VmHWM"], values["RssAnon"]

    def close(self) -> None:
        """Ends the program."""
        os.kill(self.pid, signal.SIGTERM)
        self.read(0.5)
        os.close(self._descriptor)
        os.waitpid(self.pid, 0)
