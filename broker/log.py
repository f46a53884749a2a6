"""The loggers, the level below debug, and rate-limited messages. `broker.config.logs` formats the lines."""

from __future__ import annotations

import errno
import logging
import resource
import time
from collections.abc import Mapping
from typing import Any, Final

TRACE: Final = 5

_BLANK: Final = vars(logging.LogRecord("", 0, "", 0, "", (), None))


class ServerLogger(logging.Logger):
    """Makes records without the caller, its thread and its process: no line names them, and they cost half of it.

    Attributes:
        tracing: Messages of clients are logged one by one.
    """

    tracing = False

    def setLevel(self, level: int | str) -> None:  # noqa: N802
        super().setLevel(level)
        self.tracing = self.isEnabledFor(TRACE)

    def findCaller(self, stack_info: bool = False, stacklevel: int = 1) -> tuple[str, int, str, str | None]:  # noqa: N802
        return "", 0, "", None

    def makeRecord(  # noqa: N802
        self, name: str, level: int, fn: str, lno: int, msg: object, args: Any, exc_info: Any, *more: Any
    ) -> logging.LogRecord:
        if args and len(args) == 1 and isinstance(args[0], Mapping) and args[0]:
            args = args[0]  # for %(name)s
        now, record = time.time(), logging.LogRecord.__new__(logging.LogRecord)
        record.__dict__.update(
            _BLANK,
            name=name,
            levelno=level,
            levelname=logging.getLevelName(level),
            msg=msg,
            args=args,
            exc_info=exc_info,
            created=now,
            msecs=now % 1 * 1000,
        )
        return record


def _logger(name: str) -> ServerLogger:
    usual = logging.getLoggerClass()
    logging.setLoggerClass(ServerLogger)
    try:
        made = logging.getLogger(name)
        assert isinstance(made, ServerLogger)
        return made
    finally:
        logging.setLoggerClass(usual)


#: Logger of the NATS server; logger of the streaming server, whose lines start with `STREAM: `.
NATS: Final = _logger("broker.nats")
STREAMING: Final = _logger("broker.streaming")

_SECOND: Final = 1.0
_MINUTE: Final = 60.0
_last_report = float("-inf")


def out_of_files(problem: BaseException | None) -> bool:
    """Returns whether the problem is a lack of file descriptors; logs that at most once a minute."""
    global _last_report
    if not isinstance(problem, OSError) or problem.errno not in (errno.EMFILE, errno.ENFILE):
        return False
    now = time.monotonic()
    if now - _last_report >= _MINUTE:
        _last_report = now
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        whose = f"the limit of this process (ulimit -n) is {limit}" if problem.errno == errno.EMFILE else "system-wide"
        NATS.error("Out of file descriptors, new connections are refused: %s", whose)
    return True


class FailedLookups:
    """Logs unreadable messages, at most once a second per channel."""

    def __init__(self, channel: bytes) -> None:
        self._channel = channel.decode("utf-8", "replace")
        self._last_report = 0, float("-inf")

    def report(self, sequence: int, problem: Exception) -> None:
        now = time.monotonic()
        if self._last_report[0] != sequence or now - self._last_report[1] >= _SECOND:
            self._last_report = sequence, now
            STREAMING.error("Error looking up message %s:%d (%s)", self._channel, sequence, problem)
