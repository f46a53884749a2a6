"""Where Spark runs: what a master URL says, and whether anybody listens there, found out in seconds.

Spark itself tries an address that does not answer for one to fifteen minutes, with nothing said meanwhile.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from stantools.errors import StantoolsError, UsageError

#: Seconds that an address has time to accept a connection.
CONNECT_SECONDS = 5.0

_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:/,\[\]]+):(?P<port>\d{1,5})")

KINDS = "local, local[2], local[*], spark://HOST:PORT, yarn, k8s://HOST:PORT, or with --remote sc://HOST:PORT"


class MasterUnreachableError(StantoolsError):
    """Nobody listens where the cluster should be."""


@dataclass(frozen=True)
class Master:
    """A master URL, taken apart.

    Attributes:
        url: As it was given.
        kind: local, local-cluster, spark, yarn, k8s or sc.
        addresses: Host and port of those that may answer.
    """

    url: str
    kind: str
    addresses: tuple[tuple[str, int], ...] = ()

    @property
    def local(self) -> bool:
        """Everything runs on this machine, in processes that Spark starts for this session."""
        return self.kind in ("local", "local-cluster")

    @property
    def loopback(self) -> bool:
        """Nothing leaves this machine."""
        return self.local or (bool(self.addresses) and all(_is_loopback(host) for host, _ in self.addresses))


def parse_master(url: str) -> Master:
    """Takes a master URL apart.

    Raises:
        UsageError: It is none that Spark knows.
    """
    if _LOCAL.fullmatch(url):
        return Master(url, "local")
    if _LOCAL_CLUSTER.fullmatch(url):
        return Master(url, "local-cluster")
    if url == "yarn":
        return Master(url, "yarn")
    kind, separator, rest = url.partition("://")
    if separator and kind == "spark":
        return Master(url, kind, tuple(_address(url, each) for each in rest.split(",")))
    if separator and kind == "sc":
        return Master(url, kind, (_address(url, rest.split("/")[0].split(";")[0], 15002),))
    if separator and kind == "k8s":
        return Master(url, kind, (_kubernetes(url, rest),))
    close = difflib.get_close_matches(url, ("local", "local[2]", "local[*]", "yarn"), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"{url!r} is no Spark master", f"{hint}it is one of: {KINDS}")


def _address(url: str, text: str, default: int | None = None) -> tuple[str, int]:
    if default is not None and ":" not in text.rpartition("]")[2]:
        text = f"{text}:{default}"
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match["port"]) < 65536:
        raise UsageError(f"{url!r} names no HOST:PORT", f"a master is one of: {KINDS}")
    return match["host"].strip("[]"), int(match["port"])


def _kubernetes(url: str, rest: str) -> tuple[str, int]:
    try:
        parts = urlsplit(rest if "://" in rest else f"https://{rest}")
        port = parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        parts, port = urlsplit(""), 0
    if not parts.hostname:
        raise UsageError(f"{url!r} names no HOST:PORT of an API server", f"a master is one of: {KINDS}")
    return parts.hostname, port


def check_reachable(master: Master, *, seconds: float = CONNECT_SECONDS) -> None:
    """Connects to the master and closes the connection again.

    Args:
        master: One without an address (`local`, `yarn`) counts as reachable.
        seconds: Time that each address has.

    Raises:
        MasterUnreachableError: None of its addresses accepts a connection.
    """
    problems = []
    for host, port in master.addresses:
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as problem:
            problems.append(f"{host}:{port}: {problem.strerror or problem}")
        else:
            return
    if problems:
        raise MasterUnreachableError(
            f"no Spark answers at {master.url} ({'; '.join(problems)})", _remedy(master.kind, master.addresses)
        )


def _remedy(kind: str, addresses: Sequence[tuple[str, int]]) -> str:
    if kind == "sc":
        return "start Spark Connect there (sbin/start-connect-server.sh), or run here: --master local[*]"
    if kind == "k8s":
        return "check the address with `kubectl cluster-info`, or run here: --master local[*]"
    port = "" if any(port == 7077 for _, port in addresses) else "; its port is 7077 unless it was given another one"
    return f"start a master there (sbin/start-master.sh){port}, or run here: --master local[*]"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
