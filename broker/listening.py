"""Sockets that listen.

The command opens that of the clients before it loads the rest of the broker: whoever connects meanwhile waits a moment
instead of being refused. So nothing is imported here but what the command line needs as well.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import Final

#: Clients that may wait to be accepted.
BACKLOG: Final = 4096
MAX_PORT: Final = 65535


def unspecified(host: str) -> bool:
    """Returns whether a host stands for all addresses of the machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host or "::").is_unspecified
    return False


def address(host: str, port: int) -> str:
    """Returns host and port as they are written."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            return f"[{host}]:{port}"
    return f"{host}:{port}"


def reachable(host: str, port: int) -> str:
    """Returns host and port of a URL that leads to a socket that listens, from the same machine."""
    return address("127.0.0.1" if unspecified(host) else host, port)


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listens on all addresses that a host stands for.

    Args:
        host: Name or address; empty or unspecified for all of the machine, of both kinds unless `port` is 0.
        port: Port; 0 or less for a free one.

    Raises:
        OSError: One of the addresses is not available, or the name has none.
    """
    port = max(port, 0)
    if unspecified(host):
        # There are machines without IPv6.
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
