"""Destinations and format of log lines (server-operations.md section 13).

A line is `[<pid>] YYYY/MM/DD HH:MM:SS.uuuuuu [LVL] text`; the text of streaming lines begins with `STREAM: `. Lines
go to the first configured one of: a file, a remote syslog, the local syslog, stderr. Errors while writing a line are
ignored: logging never stops the server. A thread sends lines to syslog, from a bounded queue: the server never waits
for a log.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import logging.handlers
import os
import queue
import socket
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from broker.config.broker_options import LoggingOptions
from broker.config.values import ConfigurationError, reason
from broker.log import NATS, STREAMING, TRACE

#: lowest level, its label, its priority in syslog (facility daemon)
_LEVELS: Final = (
    (logging.CRITICAL, "FTL", 26),
    (logging.ERROR, "ERR", 27),
    (logging.WARNING, "WRN", 28),
    (logging.INFO, "INF", 29),
    (logging.DEBUG, "DBG", 31),
    (logging.NOTSET, "TRC", 29),
)
_COLOURS: Final = {"INF": "32", "DBG": "36", "WRN": "0;93", "ERR": "31", "FTL": "31", "TRC": "33"}
PREFIX: Final = "STREAM: "
#: replacements of characters that end lines, control terminals, or reverse the direction of text
_ESCAPED: Final = (
    {n: f"\\x{n:02x}" for n in (*range(9), *range(11, 32), *range(127, 160))}
    | {n: f"\\u{n:04x}" for n in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
    | {0x0A: "\\n", 0x0D: "\\r"}
)
#: limit of a line in characters; clients may send names of a megabyte
LONGEST: Final = 16384
_MODE: Final = 0o660
#: name of this program in syslog
TAG: Final = "nats-streaming-server"

_LOCAL: Final = ("/dev/log", "/var/run/syslog", "/var/run/log")
_NETWORKS: Final = ("tcp", "tcp4", "tcp6", "udp", "udp4", "udp6", "unix", "unixgram", "unixpacket")
_SYSLOG_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0
#: limit of lines that wait for syslog
_MAX_WAITING: Final = 10_000


@functools.cache
def level_of(level: int) -> tuple[str, int]:
    """Returns the three letters of a level, and its priority in syslog."""
    return next((label, priority) for limit, label, priority in _LEVELS if level >= limit)


def plain_text(record: logging.LogRecord) -> str:
    """Returns a record as one line, with the prefix of the streaming server."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError, KeyError):
        text = f"{record.msg} {record.args}"
    if record.name == STREAMING.name or record.name.startswith(f"{STREAMING.name}."):
        text = PREFIX + text
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"
    # Text from a client must neither look like a line of its own nor control a terminal.
    return text if text.isprintable() else text.translate(_ESCAPED)


class LineFormatter(logging.Formatter):
    def __init__(self, *, timestamps: bool = True, utc: bool = False, colours: bool = False) -> None:
        super().__init__()
        self._timestamps = timestamps
        self._zone = UTC if utc else None
        self._colours = colours
        self._second = -1
        self._second_text = ""

    def format(self, record: logging.LogRecord) -> str:
        level, _ = level_of(record.levelno)
        if self._colours:
            level = f"\x1b[{_COLOURS[level]}m{level}\x1b[0m"
        when = ""
        if self._timestamps:
            second, microsecond = divmod(round(record.created * 1_000_000), 1_000_000)
            if second != self._second:
                self._second = second
                self._second_text = datetime.fromtimestamp(second, self._zone).strftime("%Y/%m/%d %H:%M:%S")
            when = f"{self._second_text}.{microsecond:06d} "
        line = f"[{os.getpid()}] {when}[{level}] {plain_text(record)}"
        if record.exc_info:
            line += f"\n{self.formatException(record.exc_info)}"
        return line


def _is_no_debug_line(record: logging.LogRecord) -> bool:
    """A filter: tracing does not enable debug lines."""
    return not logging.DEBUG <= record.levelno < logging.INFO


class LogFiles:
    """The log of a process. Raises ConfigurationError, with a text for stderr, if file or syslog are not available."""

    def __init__(self, options: LoggingOptions) -> None:
        self._handler = _handler(options)
        self._options = options
        self._attach(options)

    def reopen(self) -> None:
        """Opens the log file again after a program has moved it."""
        if not isinstance(self._handler, LogFile):
            NATS.info("File log re-open ignored, not a file logger")
            return
        problem = self._handler.reopen()
        if problem:
            NATS.error("%s", problem)
        else:
            NATS.info("File log re-opened")

    def apply(self, options: LoggingOptions) -> None:
        """Applies other options at a reload; an error changes nothing."""
        if options == self._options:
            return
        handler = _handler(options)
        self.close()
        self._handler, self._options = handler, options
        self._attach(options)

    def close(self) -> None:
        for logger in (NATS, STREAMING):
            logger.removeHandler(self._handler)
            logger.removeFilter(_is_no_debug_line)
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
            if trace and not debug:
                logger.addFilter(_is_no_debug_line)
            logger.addHandler(self._handler)
            logger.propagate = False


@contextlib.contextmanager
def configured(options: LoggingOptions) -> Iterator[LogFiles]:
    """Logs by these options within the context; raises as `LogFiles`."""
    files = LogFiles(options)
    try:
        yield files
    finally:
        files.close()


def startup_problem(text: str) -> str:
    """Returns the line for stderr about a log that cannot be opened: with date and time, as in the original."""
    return f"{time.strftime('%Y/%m/%d %H:%M:%S')} {text}"


def _handler(options: LoggingOptions) -> logging.Handler:
    lines = LineFormatter(timestamps=options.timestamps, utc=options.utc)
    if options.file:
        return LogFile(options.file, options.size_limit, lines)
    if options.remote_syslog or options.syslog:
        return SyslogHandler(options.remote_syslog)
    handler = _StderrHandler(sys.stderr)
    colours = sys.stderr.isatty()
    handler.setFormatter(LineFormatter(timestamps=options.timestamps, utc=options.utc, colours=colours))
    return handler


class _LosesFailedLines(logging.Handler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk must not stop the server, and no other place for the error exists."""


class _StderrHandler(_LosesFailedLines, logging.StreamHandler):  # type: ignore[type-arg] # generic in the stubs only
    pass


class LogFile(_LosesFailedLines, logging.handlers.BaseRotatingHandler):
    """Writes lines to a file, which is rotated when it is larger than `size_limit` bytes; 0 for never."""

    def __init__(self, path: str, size_limit: int, formatter: logging.Formatter) -> None:
        self._path = path
        self._limit = self._next_limit = size_limit  # the next one grows if rotation fails
        try:
            super().__init__(path, "a", "utf-8", errors="backslashreplace")
        except (OSError, ValueError) as problem:
            raise ConfigurationError(f"error opening file: open {path}: {reason(problem)}") from None
        self.setFormatter(formatter)
        if self.shouldRollover():
            self._write("Rotating logfile...")
            self.doRollover()

    def reopen(self) -> str:
        """Opens the file again; returns an error, "" for success. After an error the old file stays open."""
        try:
            before = self.setStream(self._open())
        except OSError as problem:
            return f"error opening file: open {self._path}: {reason(problem)}"
        if before is not None:
            before.close()
        return ""

    def flush(self) -> None:
        """Every line is written at once."""

    def shouldRollover(self, record: logging.LogRecord | None = None) -> bool:  # noqa: N802
        return bool(self._limit) and self._size() > self._next_limit

    def doRollover(self) -> None:  # noqa: N802
        now = time.time_ns()
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now // 1_000_000_000))
        backup = f"{self._path}.{stamp}.{now % 1_000_000_000:09d}"
        try:
            self.rotate(self._path, backup)
            problem = self.reopen()
        except OSError as error:
            problem = f'Unable to rotate the logfile "{self._path}": {reason(error)}'
        if problem:
            self._next_limit = self._size() * 2
            self._write(problem, logging.ERROR)
        else:
            self._next_limit = self._limit
            self._write(f'Rotated log, backup saved as "{backup}"')

    def _size(self) -> int:
        return os.fstat(self.stream.fileno()).st_size if self.stream is not None else 0

    def _open(self) -> io.TextIOWrapper:
        # Without a buffer a line that a full disk refuses does not come back with the next one.
        file = open(self._path, "ab", 0, opener=lambda path, flags: os.open(path, flags, _MODE))  # noqa: SIM115
        return io.TextIOWrapper(file, self.encoding, self.errors, write_through=True)

    def _write(self, text: str, level: int = logging.INFO) -> None:
        logging.StreamHandler.emit(self, logging.LogRecord(NATS.name, level, "", 0, "%s", (text,), None))


class SyslogHandler(_LosesFailedLines, logging.handlers.QueueHandler):
    """Sends lines to syslog: `udp://host:514`, `tcp://host:514` or `unix:///path`; empty for this machine's."""

    def __init__(self, url: str) -> None:
        receiver = _SyslogConnection(url)
        waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        super().__init__(waiting)
        self._waiting = waiting
        self._sender = logging.handlers.QueueListener(waiting, receiver)
        self._sender.start()
        self._receiver = receiver

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        prepared = copy.copy(record)
        prepared.msg, prepared.args = plain_text(record), None
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() < _MAX_WAITING:
            self._waiting.put_nowait(record)

    def close(self) -> None:
        self._sender.stop()
        self._receiver.close()
        super().close()


class _SyslogConnection(_LosesFailedLines, logging.handlers.SocketHandler):
    """Connects again, at growing intervals, after a failure."""

    def __init__(self, url: str) -> None:
        # First of all: without a connection the handler must not be registered for closing.
        connected = _connect(url)
        super().__init__("", None)
        self._url = url
        self.sock = connected

    def makeSocket(self, timeout: float = _SYSLOG_SECONDS) -> socket.socket:  # noqa: N802
        try:
            return _connect(self._url)
        except ConfigurationError as problem:
            raise OSError(problem.message) from None

    def send(self, s: Any) -> None:
        super().send(s)
        if self.sock is None and self.retryTime is None:
            # Lines are lost meanwhile: a receiver that reads nothing must not hold up the end of the server.
            self.retryTime = time.time() + _RETRY_SECONDS

    def makePickle(self, record: logging.LogRecord) -> bytes:  # noqa: N802
        when = datetime.fromtimestamp(record.created).astimezone()
        if self._url:
            head = f"{when.isoformat(timespec='seconds')} {socket.gethostname()}"
        else:
            head = f"{when:%b} {when.day:2d} {when:%H:%M:%S}"
        _, priority = level_of(record.levelno)
        return f"<{priority}>{head} {TAG}[{os.getpid()}]: {record.msg}\n".encode("utf-8", "backslashreplace")


def _connect(url: str) -> socket.socket:
    if not url:
        for path in filter(os.path.exists, _LOCAL):
            with contextlib.suppress(OSError):
                return _connect_unix(path)
        raise ConfigurationError("error connecting to syslog: no local syslog answers")
    network = url.partition("://")[0] if "://" in url else ""
    if network not in _NETWORKS:
        raise ConfigurationError(f'error invalid network type: "{network}"')
    try:
        parts = urlsplit(url)
        if network.startswith("unix"):
            return _connect_unix(parts.path)
        if parts.port is None:
            raise ValueError("the port is missing")
        family = {"4": socket.AF_INET, "6": socket.AF_INET6}.get(network[-1], socket.AF_UNSPEC)
        kind = socket.SOCK_DGRAM if network.startswith("udp") else socket.SOCK_STREAM
        family, kind, protocol, _, address = socket.getaddrinfo(parts.hostname or "", parts.port, family, kind)[0]
        return _connected(socket.socket(family, kind, protocol), address)
    except (OSError, ValueError) as problem:
        # errors of names have numbers of their own
        unknown = isinstance(problem, ValueError | socket.gaierror)
        said = (getattr(problem, "strerror", None) or str(problem)) if unknown else reason(problem)
        raise ConfigurationError(f"error connecting to syslog: {url}: {said}") from None


def _connect_unix(path: str) -> socket.socket:
    try:
        return _connected(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), path)
    except OSError:
        return _connected(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)


def _connected(found: socket.socket, address: str | tuple[object, ...]) -> socket.socket:
    try:
        found.settimeout(_SYSLOG_SECONDS)
        found.connect(address)
    except OSError:
        found.close()
        raise
    return found
