"""Listening sockets.

The command opens the sockets for clients before it loads the rest of the broker, so that clients wait a moment
instead of being refused. Hence the few imports here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import Final

#: Clients that may wait to be accepted.
BACKLOG: Final = 4096
MAX_PORT: Final = 65535


class ListenError(OSError):
    """The server cannot listen; the text is the original's log line."""


def unspecified(host: str) -> bool:
    """Returns whether a host stands for all addresses of the machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host or "::").is_unspecified
    return False


def address(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around IPv6 addresses."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            return f"[{host}]:{port}"
    return f"{host}:{port}"


def reachable(host: str, port: int) -> str:
    """Returns `host:port` for a URL that reaches a listening socket from the same machine."""
    return address("127.0.0.1" if unspecified(host) else host, port)


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listens on all addresses of a host.

    An empty or unspecified host stands for all addresses of the machine, IPv4 and IPv6 unless `port` is 0. A port of
    0 or less stands for a free one. Raises `OSError` if an address is not available, or the name has none.
    """
    port = max(port, 0)
    if unspecified(host):
        # Some machines have no IPv6.
        if port:
            with contextlib.suppress(OSError):
                return _bound(None, port)
        host = "0.0.0.0"
    return _bound(host, port)


def _bound(host: str | None, port: int) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        sockets = []
        # As bytes: for text, Python would load its tables of international names.
        name = host.encode() if host is not None and host.isascii() else host
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            sockets.append(listener)
        stack.pop_all()
        return sockets
