"""Where log lines go and how they look (server-operations.md section 13).

A line is `[<pid>] YYYY/MM/DD HH:MM:SS.uuuuuu [LVL] text`; the text of streaming lines begins with `STREAM: `. Lines go
to a file, a remote syslog, the local one, or stderr: the first of these that is configured. Whatever goes wrong while
a line is written is swallowed: logging never stops the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from broker.config.logfile import LogFile
from broker.config.options import LoggingOptions
from broker.log import NATS, STREAMING, TRACE

_LABELS: Final = ((logging.CRITICAL, "FTL"), (logging.ERROR, "ERR"), (logging.WARNING, "WRN"), (logging.INFO, "INF"))
_COLOURS: Final = {"INF": "32", "DBG": "36", "WRN": "0;93", "ERR": "31", "FTL": "31", "TRC": "33"}
PREFIX: Final = "STREAM: "
#: What stands for characters that end lines, steer terminals, or turn the direction of what follows them.
_ESCAPED: Final = (
    {n: f"\\x{n:02x}" for n in (*range(9), *range(11, 32), *range(127, 160))}
    | {n: f"\\u{n:04x}" for n in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
    | {0x0A: "\\n", 0x0D: "\\r"}
)
#: Characters of a line; clients may send names of a megabyte.
LONGEST: Final = 16384


def label(level: int) -> str:
    """Returns the three letters of a level."""
    for limit, name in _LABELS:
        if level >= limit:
            return name
    return "DBG" if level >= logging.DEBUG else "TRC"


def plain_text(record: logging.LogRecord) -> str:
    """Returns the text of a record as one line, with the prefix of the streaming server."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError, KeyError):
        text = f"{record.msg} {record.args}"
    if record.name == STREAMING.name or record.name.startswith(f"{STREAMING.name}."):
        text = PREFIX + text
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"
    # Nothing that a client sends may look like a line of its own, or steer a terminal.
    return text if text.isprintable() else text.translate(_ESCAPED)


class LineFormatter(logging.Formatter):
    """Formats lines for files and terminals.

    Args:
        timestamps: With date and time.
        utc: In UTC instead of local time.
        colours: With colours for a terminal.
    """

    def __init__(self, *, timestamps: bool = True, utc: bool = False, colours: bool = False) -> None:
        super().__init__()
        self._timestamps = timestamps
        self._zone = UTC if utc else None
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, without an end."""
        level = label(record.levelno)
        if self._colours:
            level = f"\x1b[{_COLOURS[level]}m{level}\x1b[0m"
        when = ""
        if self._timestamps:
            when = datetime.fromtimestamp(record.created, self._zone).strftime("%Y/%m/%d %H:%M:%S.%f ")
        line = f"[{os.getpid()}] {when}[{level}] {plain_text(record)}"
        if record.exc_info:
            line += f"\n{self.formatException(record.exc_info)}"
        return line


class _SyslogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return plain_text(record)


class _StderrHandler(logging.Handler):
    """Writes to stderr; what cannot be written is lost."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


class _Levels:
    """A filter: tracing does not switch debug lines on."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug

    def filter(self, record: logging.LogRecord) -> bool:
        """Tells whether a line is wanted."""
        return self._debug or record.levelno < logging.DEBUG or record.levelno >= logging.INFO


class LogFiles:
    """The log of a process.

    Args:
        options: What is logged, and where to.

    Raises:
        ConfigurationError: The file cannot be opened, or syslog not be reached; the text is for stderr.
    """

    def __init__(self, options: LoggingOptions) -> None:
        self._filters: dict[logging.Logger, _Levels] = {}
        self._handler = _handler(options)
        self._options = options
        self._attach(options)

    @property
    def file(self) -> str:
        """The log file; empty if there is none."""
        return self._options.file

    def reopen(self) -> None:
        """Opens the log file again, for a program that has moved it away."""
        if not isinstance(self._handler, LogFile):
            NATS.info("File log re-open ignored, not a file logger")
            return
        problem = self._handler.reopen()
        if problem:
            NATS.error("%s", problem)
        else:
            NATS.info("File log re-opened")

    def apply(self, options: LoggingOptions) -> None:
        """Takes over other options, at a reload.

        Raises:
            ConfigurationError: As when it was opened; nothing has changed.
        """
        if options == self._options:
            return
        handler = _handler(options)
        self.close()
        self._handler, self._options = handler, options
        self._attach(options)

    def close(self) -> None:
        """Logs nothing any more."""
        for logger in (NATS, STREAMING):
            logger.removeHandler(self._handler)
            if (levels := self._filters.pop(logger, None)) is not None:
                logger.removeFilter(levels.filter)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
        self._handler.close()

    def _attach(self, options: LoggingOptions) -> None:
        logging.addLevelName(TRACE, "TRACE")
        wanted = (
            (NATS, options.nats_debug, options.nats_trace),
            (STREAMING, options.streaming_debug, options.streaming_trace),
        )
        for logger, debug, trace in wanted:
            logger.setLevel(TRACE if trace else logging.DEBUG if debug else logging.INFO)
            self._filters[logger] = _Levels(debug=debug)
            logger.addFilter(self._filters[logger].filter)
            logger.addHandler(self._handler)
            logger.propagate = False


@contextlib.contextmanager
def configured(options: LoggingOptions) -> Iterator[LogFiles]:
    """Logs as configured, as long as the context lasts.

    Raises:
        ConfigurationError: The file cannot be opened, or syslog not be reached; the text is for stderr.
    """
    files = LogFiles(options)
    try:
        yield files
    finally:
        files.close()


def startup_problem(text: str) -> str:
    """Returns the line for stderr about a log that cannot be opened: with date and time, as the original's."""
    return f"{time.strftime('%Y/%m/%d %H:%M:%S')} {text}"


def _handler(options: LoggingOptions) -> logging.Handler:
    handler: logging.Handler
    if options.file:
        handler = LogFile(
            options.file, options.size_limit, LineFormatter(timestamps=options.timestamps, utc=options.utc)
        )
    elif options.remote_syslog or options.syslog:
        from broker.config.syslog import SyslogHandler

        handler = SyslogHandler(options.remote_syslog)
        handler.setFormatter(_SyslogFormatter())
    else:
        handler = _StderrHandler()
        colours = sys.stderr.isatty()
        handler.setFormatter(LineFormatter(timestamps=options.timestamps, utc=options.utc, colours=colours))
    return handler
