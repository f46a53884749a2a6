"""The NATS part of a configuration file (server-operations.md sections 5 and 8).

All errors of a file are collected; each begins with the place in the file. Unknown keys are errors inside of blocks
only. What the embedded server cannot do yet ends up in `NatsFile.unavailable`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from broker.config.catalogue import NATS_BLOCK_KEYS, NATS_TOP_KEYS, Key, Kind, State
from broker.config.durations import parse_duration
from broker.config.natsauth import read_authorization
from broker.config.natstls import read_tls
from broker.config.problems import Problems
from broker.config.settings import NatsFile
from broker.config.values import ConfigurationError, Node, go_type, quoted, text
from stantools.store.limits import format_duration

_SECOND: Final = 1_000_000_000
_TOP: Final = {name: key for key in NATS_TOP_KEYS for name in key.names}
_BLOCKS: Final = {name: key for key in NATS_BLOCK_KEYS for name in key.names}
_ADDRESSES: Final = {
    "nats.listen": ("nats.host", "nats.port"),
    "nats.http": ("nats.http_host", "nats.http_port"),
    "nats.https": ("nats.http_host", "nats.https_port"),
}
#: Durations that may be given as seconds, with a warning.
_SECONDS_TOO: Final = frozenset(("nats.ping_interval", "nats.write_deadline"))
_MAX_INT32: Final = (1 << 31) - 1
_INT32: Final = frozenset(("nats.max_payload", "nats.max_control_line"))
_SHORTEST_LAME_DUCK: Final = 30 * _SECOND
_PORT: Final = re.compile(r"[+-]?[0-9]{1,18}")
_CLUSTER_KEYS: Final = frozenset(
    (
        "name", "listen", "port", "host", "net", "authorization", "routes", "tls", "cluster_advertise", "advertise",
        "no_advertise", "connect_retries", "permissions", "ping_interval", "ping_max", "compression", "pool_size",
        "accounts",
    )
)  # fmt: skip


def read_nats(top: Mapping[str, Node]) -> NatsFile:
    """Reads the NATS keys of a file.

    Raises:
        ConfigurationError: Everything that is wrong, one a line, warnings first.
    """
    found, problems = NatsFile(), Problems()
    for name, node in top.items():
        lower = name.lower()
        if (key := _TOP.get(lower)) is not None:
            _plain(found, problems, lower, node, key)
        elif (key := _BLOCKS.get(lower)) is not None:
            _block(found, problems, lower, node, key)
    if problems.errors:
        raise ConfigurationError("\n".join((*problems.warnings, *problems.errors)))
    found.warnings += problems.warnings
    found.unavailable += problems.unavailable
    return found


def parse_address(value: str | bool | int | float | object) -> tuple[str | None, int]:
    """Splits `host:port`; the host is None if there is only a port.

    Raises:
        ConfigurationError: It is neither an address nor a port.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return None, value
    if not isinstance(value, str):
        raise ConfigurationError(f"expected port or host:port, got {go_type(value)}")
    host, separator, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        separator = ""
    if not separator:
        raise ConfigurationError(f"could not parse address string {quoted(value)}")
    if not _PORT.fullmatch(port):
        raise ConfigurationError(f"could not parse port {quoted(port)}")
    return host, int(port)


def _plain(found: NatsFile, problems: Problems, name: str, node: Node, key: Key) -> None:
    if key.kind is Kind.ADDRESS:
        host_setting, port_setting = _ADDRESSES[key.to]
        try:
            host, found.settings[port_setting] = parse_address(node.value)
        except ConfigurationError as problem:
            problems.error(node, problem.message)
            return
        if host is not None:
            found.settings[host_setting] = host
    elif key.kind is Kind.DURATION:
        duration = _duration(problems, name, node, seconds_too=key.to in _SECONDS_TOO)
        if duration is not None:
            found.settings[key.to] = duration
    elif key.kind is Kind.LIST:
        problems.words(node)
    elif (value := problems.value(node, key.kind)) is not None:
        if key.to in _INT32 and isinstance(value, int) and value > _MAX_INT32:
            problems.error(node, f"{name} value is too big")
        found.settings[key.to] = value
    if key.state is State.WARNED:
        problems.warnings.append(f"{node.place}: {name} has no effect in this server")
    elif key.state is State.UNAVAILABLE and node.value is True:
        problems.unavailable.append(f"{node.place}: {name}")


def _duration(problems: Problems, name: str, node: Node, *, seconds_too: bool) -> int | None:
    if isinstance(node.value, str):
        try:
            duration = parse_duration(node.value)
        except ConfigurationError as problem:
            problems.error(node, f"error parsing {name}: {problem.message}")
            return None
    elif not seconds_too:
        problems.value(node, Kind.STRING)
        return None
    else:
        problems.warn(node, f"invalid use of field {quoted(name)}: {name} should be converted to a duration")
        value = problems.value(node, Kind.INT)
        if not isinstance(value, int):
            return None
        duration = value * _SECOND
    if name == "lame_duck_duration" and duration < _SHORTEST_LAME_DUCK:
        problems.error(node, f"invalid lame_duck_duration of {format_duration(duration)}, minimum is 30 seconds")
    if name == "lame_duck_grace_period" and duration < 0:
        problems.error(node, "invalid lame_duck_grace_period, needs to be positive")
    return duration


def _block(found: NatsFile, problems: Problems, name: str, node: Node, key: Key) -> None:
    if key.to == "authorization":
        found.authorization = read_authorization(problems, node)
    elif key.to == "tls":
        found.tls = read_tls(problems, node)
    elif key.to == "cluster":
        _cluster(problems, node)
    elif key.to == "default_js_domain":
        pass
    elif _asks_for_something(node):
        problems.unavailable.append(f"{node.place}: {name}")


def _cluster(problems: Problems, node: Node) -> None:
    if not isinstance(node.value, dict):
        problems.error(node, f"Expected map to define cluster, got {go_type(node.value)}")
        return
    for name, entry in problems.known(node, _CLUSTER_KEYS):
        if name in ("listen", "port", "routes"):
            problems.unavailable.append(f"{entry.place}: {name} of cluster")
        if name == "port":
            problems.value(entry, Kind.INT)


def _asks_for_something(node: Node) -> bool:
    """Tells whether a block of a part that is not there would switch it on."""
    if isinstance(node.value, dict | list | str):
        return bool(node.value) and str(text(node)).lower() not in ("disabled", "disable", "false")
    return node.value is not False
