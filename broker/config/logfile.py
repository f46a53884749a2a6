"""The log file: appended to, rotated by size, opened again on demand (server-operations.md section 13)."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final

from broker.config.systemerrors import reason
from broker.config.values import ConfigurationError
from broker.log import NATS

_MODE: Final = 0o660
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


class LogFile(logging.Handler):
    """Writes lines to a file.

    Args:
        path: The file.
        size_limit: Bytes after which it is renamed and a new one is begun; 0 for never.
        formatter: How lines look.

    Raises:
        ConfigurationError: It cannot be opened.
    """

    def __init__(self, path: str, size_limit: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._path = path
        self._limit = size_limit
        # A limit that grows while renaming does not work.
        self._next_limit = size_limit
        self._file = -1
        self._size = 0
        self._open()
        if self._limit and self._size > self._limit:
            self._write(self._line("Rotating logfile..."))
            self._rotate()

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line; what cannot be written is lost."""
        self._write(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        if self._limit and self._size > self._next_limit:
            self._rotate()

    def reopen(self) -> str:
        """Opens the file again. Returns what went wrong, or nothing; the old one is used on then."""
        before = self._file
        try:
            self._open()
        except ConfigurationError as problem:
            return problem.message
        os.close(before)
        return ""

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, _FLAGS, _MODE)
        except (OSError, ValueError) as problem:
            raise ConfigurationError(f"error opening file: open {self._path}: {reason(problem)}") from None
        self._size = os.fstat(self._file).st_size

    def _write(self, line: bytes) -> None:
        if self._file < 0:
            return
        try:
            self._size += os.write(self._file, line)
        except OSError:
            # A full disk must not stop the server, and there is nowhere left to say so.
            return

    def _rotate(self) -> None:
        now = time.time_ns()
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now // 1_000_000_000))
        backup = f"{self._path}.{stamp}.{now % 1_000_000_000:09d}"
        try:
            Path(self._path).rename(backup)
            problem = ""
        except OSError as error:
            problem = f'Unable to rotate the logfile "{self._path}": {reason(error)}'
        problem = problem or self.reopen()
        if problem:
            self._next_limit = self._size * 2
            self._write(self._line(problem, logging.ERROR))
            return
        self._next_limit = self._limit
        self._write(self._line(f'Rotated log, backup saved as "{backup}"'))

    def _line(self, text: str, level: int = logging.INFO) -> bytes:
        record = logging.LogRecord(NATS.name, level, "", 0, "%s", (text,), None)
        return f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
