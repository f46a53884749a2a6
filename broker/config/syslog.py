"""Logging to syslog, on this machine or another one (server-operations.md section 13).

Lines that cannot be sent at once wait in a bounded buffer (TCP) or are lost: the server never waits for a log, but
for a moment now and then, as a start has more lines than the queue of a local socket.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from broker.config.systemerrors import reason
from broker.config.values import ConfigurationError, quoted

#: What syslog calls this program.
TAG: Final = "nats-streaming-server"

_DAEMON: Final = 3 << 3
_CRITICAL, _ERROR, _WARNING, _NOTICE, _DEBUG = 2, 3, 4, 5, 7
_LOCAL: Final = ("/dev/log", "/var/run/syslog", "/var/run/log")
_NETWORKS: Final = ("tcp", "tcp4", "tcp6", "udp", "udp4", "udp6", "unix", "unixgram", "unixpacket")
_CONNECT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
_MOMENT_MS: Final = 50
_MAX_WAITING: Final = 1 << 20


def priority(level: int) -> int:
    """Returns the syslog priority (facility daemon) of a level."""
    for limit, severity in (
        (logging.CRITICAL, _CRITICAL),
        (logging.ERROR, _ERROR),
        (logging.WARNING, _WARNING),
        (logging.INFO, _NOTICE),
        (logging.DEBUG, _DEBUG),
    ):
        if level >= limit:
            return _DAEMON | severity
    return _DAEMON | _NOTICE


class SyslogHandler(logging.Handler):
    """Sends lines to syslog.

    Args:
        url: `udp://host:514`, `tcp://host:514` or `unix:///path`; empty for this machine's.

    Raises:
        ConfigurationError: The URL is wrong, or there is nobody.
    """

    def __init__(self, url: str) -> None:
        # First of all: what is not connected is not registered for closing either.
        self._socket: socket.socket | None = _connect(url)
        super().__init__()
        self._url = url
        self._waiting = bytearray()
        self._retry_at = 0.0
        self._patient_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a line, or loses it."""
        line = self._line(record)
        if self._socket is None:
            self._reconnect()
        if self._socket is None:
            return
        try:
            if self._socket.type == socket.SOCK_STREAM:
                self._send_stream(line)
            else:
                self._send_datagram(self._socket, line)
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno not in (errno.ENOBUFS, errno.EMSGSIZE):
                self._drop()

    def close(self) -> None:
        """Closes the connection."""
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

    def _send_stream(self, line: bytes) -> None:
        if self._socket is not None and len(self._waiting) + len(line) <= _MAX_WAITING:
            self._waiting += line
            del self._waiting[: self._socket.send(self._waiting)]

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
        return _connect_local()
    try:
        parts = urlsplit(url)
        network = parts.scheme
        if network not in _NETWORKS:
            raise ConfigurationError(f"error invalid network type: {quoted(network)}")
        if network.startswith("unix"):
            return _connect_unix(parts.path, f"dial {network} {parts.path}")
        host, port = parts.hostname or "", parts.port
    except ValueError as problem:
        raise ConfigurationError(f"error connecting to syslog: {quoted(str(problem))}") from None
    if port is None:
        problem_text = f"dial {network}: address {parts.netloc}: missing port in address"
        raise ConfigurationError(f"error connecting to syslog: {quoted(problem_text)}")
    kind = socket.SOCK_DGRAM if network.startswith("udp") else socket.SOCK_STREAM
    family = {"4": socket.AF_INET, "6": socket.AF_INET6}.get(network[-1], socket.AF_UNSPEC)
    try:
        addresses = socket.getaddrinfo(host, port, family, kind)
    except (OSError, UnicodeError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise ConfigurationError(
            f"error connecting to syslog: {quoted(f'dial {network}: lookup {host}: {said}')}"
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
        raise ConfigurationError(f"error connecting to syslog: {quoted(problem_text)}") from None
    found.setblocking(False)
    return found


def _connect_local() -> socket.socket:
    for path in _LOCAL:
        if Path(path).exists():
            with contextlib.suppress(ConfigurationError):
                return _connect_unix(path, path)
    raise ConfigurationError(f"error connecting to syslog: {quoted('Unix syslog delivery error')}")


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
    raise ConfigurationError(f"error connecting to syslog: {quoted(f'{what}: connect: {said}')}")
