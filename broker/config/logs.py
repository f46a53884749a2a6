"""Destinations and format of log lines (server-operations.md section 13).

A line is `[<pid>] YYYY/MM/DD HH:MM:SS.uuuuuu [LVL] text`; the text of streaming lines begins with `STREAM: `. Lines
go to the first configured one of: a file, a remote syslog, the local syslog, stderr. Errors while writing a line are
ignored: logging never stops the server. Lines that syslog does not accept at once wait in a bounded buffer (TCP) or
are lost: the server never waits for a log, except briefly for a local socket, whose queue is shorter than a start's
lines.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from broker.config.broker_options import LoggingOptions
from broker.config.values import ConfigurationError, reason
from broker.log import NATS, STREAMING, TRACE
from stantools.format.quoting import quote

#: lowest level, its label, its severity in syslog
_LEVELS: Final = (
    (logging.CRITICAL, "FTL", 2),
    (logging.ERROR, "ERR", 3),
    (logging.WARNING, "WRN", 4),
    (logging.INFO, "INF", 5),
    (logging.DEBUG, "DBG", 7),
    (logging.NOTSET, "TRC", 5),
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
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
#: name of this program in syslog
TAG: Final = "nats-streaming-server"

_DAEMON: Final = 3 << 3
_LOCAL: Final = ("/dev/log", "/var/run/syslog", "/var/run/log")
_NETWORKS: Final = ("tcp", "tcp4", "tcp6", "udp", "udp4", "udp6", "unix", "unixgram", "unixpacket")
_CONNECT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
_MOMENT_MS: Final = 50
_MAX_WAITING: Final = 1 << 20


def label(level: int) -> str:
    """Returns the three letters of a level."""
    return next(name for limit, name, _ in _LEVELS if level >= limit)


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

    def format(self, record: logging.LogRecord) -> str:
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
    """Writes to stderr; failed lines are lost."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


class _Levels:
    """A filter: tracing does not enable debug lines."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug

    def filter(self, record: logging.LogRecord) -> bool:
        return self._debug or record.levelno < logging.DEBUG or record.levelno >= logging.INFO


class LogFiles:
    """The log of a process. Raises ConfigurationError, with a text for stderr, if file or syslog are not available."""

    def __init__(self, options: LoggingOptions) -> None:
        self._filters: dict[logging.Logger, _Levels] = {}
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
    handler: logging.Handler
    if options.file:
        handler = LogFile(
            options.file, options.size_limit, LineFormatter(timestamps=options.timestamps, utc=options.utc)
        )
    elif options.remote_syslog or options.syslog:
        handler = SyslogHandler(options.remote_syslog)
        handler.setFormatter(_SyslogFormatter())
    else:
        handler = _StderrHandler()
        colours = sys.stderr.isatty()
        handler.setFormatter(LineFormatter(timestamps=options.timestamps, utc=options.utc, colours=colours))
    return handler


class LogFile(logging.Handler):
    """Writes lines to a file, which is rotated at `size_limit` bytes; 0 for never."""

    def __init__(self, path: str, size_limit: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._path = path
        self._limit = size_limit
        # grows if rotation fails
        self._next_limit = size_limit
        self._file = -1
        self._size = 0
        self._open()
        if self._limit and self._size > self._limit:
            self._write(self._line("Rotating logfile..."))
            self._rotate()

    def emit(self, record: logging.LogRecord) -> None:
        self._write(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        if self._limit and self._size > self._next_limit:
            self._rotate()

    def reopen(self) -> str:
        """Opens the file again; returns an error, "" for success. After an error the old file stays open."""
        before = self._file
        try:
            self._open()
        except ConfigurationError as problem:
            return problem.message
        os.close(before)
        return ""

    def close(self) -> None:
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
            # A full disk must not stop the server, and no other place for the error exists.
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


def priority(level: int) -> int:
    """Returns the syslog priority (facility daemon) of a level."""
    return next(_DAEMON | severity for limit, _, severity in _LEVELS if level >= limit)


class SyslogHandler(logging.Handler):
    """Sends lines to syslog: `udp://host:514`, `tcp://host:514` or `unix:///path`; empty for this machine's."""

    def __init__(self, url: str) -> None:
        # First of all: without a connection the handler must not be registered for closing.
        self._socket: socket.socket | None = _connect(url)
        super().__init__()
        self._url = url
        self._waiting = bytearray()
        self._retry_at = 0.0
        self._patient_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        line = self._line(record)
        if self._socket is None:
            self._reconnect()
        if self._socket is None:
            return
        try:
            if self._socket.type == socket.SOCK_STREAM:
                if len(self._waiting) + len(line) <= _MAX_WAITING:
                    self._waiting += line
                    del self._waiting[: self._socket.send(self._waiting)]
            else:
                self._send_datagram(self._socket, line)
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno not in (errno.ENOBUFS, errno.EMSGSIZE):
                self._drop()

    def close(self) -> None:
        self._drop()
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        when = datetime.fromtimestamp(record.created).astimezone()
        if self._url:
            head = f"{when.isoformat(timespec='seconds')} {socket.gethostname()}"
        else:
            head = f"{when:%b} {when.day:2d} {when:%H:%M:%S}"
        text = f"<{priority(record.levelno)}>{head} {TAG}[{os.getpid()}]: {self.format(record)}\n"
        return text.encode("utf-8", "backslashreplace")

    def _send_datagram(self, receiver: socket.socket, line: bytes) -> None:
        try:
            receiver.send(line)
        except BlockingIOError:
            now = time.monotonic()
            if now < self._patient_at:
                return
            poll = select.poll()
            poll.register(receiver, select.POLLOUT)
            if poll.poll(_MOMENT_MS):
                receiver.send(line)
            else:
                self._patient_at = now + _RETRY_SECONDS

    def _reconnect(self) -> None:
        now = time.monotonic()
        if now < self._retry_at:
            return
        self._retry_at = now + _RETRY_SECONDS
        with contextlib.suppress(ConfigurationError):
            self._socket = _connect(self._url, wait=False)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._waiting.clear()


def _connect(url: str, *, wait: bool = True) -> socket.socket:
    if not url:
        for path in _LOCAL:
            if Path(path).exists():
                with contextlib.suppress(ConfigurationError):
                    return _connect_unix(path, path)
        raise ConfigurationError(f"error connecting to syslog: {quote('Unix syslog delivery error')}")
    try:
        parts = urlsplit(url)
        network = parts.scheme
        if network not in _NETWORKS:
            raise ConfigurationError(f"error invalid network type: {quote(network)}")
        if network.startswith("unix"):
            return _connect_unix(parts.path, f"dial {network} {parts.path}")
        host, port = parts.hostname or "", parts.port
    except ValueError as problem:
        raise ConfigurationError(f"error connecting to syslog: {quote(str(problem))}") from None
    if port is None:
        problem_text = f"dial {network}: address {parts.netloc}: missing port in address"
        raise ConfigurationError(f"error connecting to syslog: {quote(problem_text)}")
    kind = socket.SOCK_DGRAM if network.startswith("udp") else socket.SOCK_STREAM
    family = {"4": socket.AF_INET, "6": socket.AF_INET6}.get(network[-1], socket.AF_UNSPEC)
    try:
        addresses = socket.getaddrinfo(host, port, family, kind)
    except (OSError, UnicodeError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise ConfigurationError(
            f"error connecting to syslog: {quote(f'dial {network}: lookup {host}: {said}')}"
        ) from None
    family, kind, protocol, _, address = addresses[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.settimeout(_CONNECT_SECONDS if wait else 0.0)
        with contextlib.suppress(BlockingIOError):
            found.connect(address)
    except OSError as problem:
        found.close()
        said = "i/o timeout" if isinstance(problem, TimeoutError) else f"connect: {reason(problem)}"
        problem_text = f"dial {network} {address[0]!s}:{port}: {said}"
        raise ConfigurationError(f"error connecting to syslog: {quote(problem_text)}") from None
    found.setblocking(False)
    return found


def _connect_unix(path: str, what: str) -> socket.socket:
    problem: OSError | None = None
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        found = socket.socket(socket.AF_UNIX, kind)
        try:
            found.connect(path)
        except OSError as error:
            found.close()
            problem = error
        else:
            found.setblocking(False)
            return found
    said = reason(problem) if problem is not None else ""
    raise ConfigurationError(f"error connecting to syslog: {quote(f'{what}: connect: {said}')}")
