"""Reads configuration files by the declarations of their keys (server-operations.md sections 5, 7 and 8).

All errors of a file are collected, each with its place. Unknown keys are errors inside of the NATS server's maps only;
`ineffective_keys` names the others. Maps with rules of their own have readers, by setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.config.catalogue import CHANNEL_LIMITS, KEYS, Setting
from broker.config.settings import FileContent
from broker.config.values import ConfigNode, ConfigurationError, kind, parse_go_duration, seconds, text
from stantools.format.quoting import quote
from stantools.notation import parse_size
from stantools.server_options import ServerOption, Support, ValueType
from stantools.store.limits import PatternLimits, is_channel_name

#: the host and the port that an address sets
_ADDRESSES: Final = {
    "nats.listen": ("nats.host", "nats.port"),
    "monitoring.http": ("monitoring.host", "monitoring.http_port"),
    "monitoring.https": ("monitoring.host", "monitoring.https_port"),
    "routes.listen": ("routes.host", "routes.port"),
}
#: durations that may be seconds, with a warning
_SECONDS_ALLOWED: Final = frozenset(("nats.ping_interval", "nats.write_deadline"))
#: types of durations, sizes and words in a file
_WRITTEN: Final = {
    ValueType.DURATION: ValueType.STRING, ValueType.SIZE: ValueType.INT, ValueType.WORDS: ValueType.LIST,
}  # fmt: skip
_SECOND: Final = 1_000_000_000
_DISABLED: Final = ("disabled", "disable", "false")
_MAX_PORT_DIGITS: Final = 18


#: reader of a map with rules of its own: returns settings, none after an error
MapReader = Callable[["FileReader", ConfigNode], dict[str, Any]]


class FileReader:
    def __init__(self, maps: Mapping[str, MapReader], *, nats: bool = False) -> None:
        """With `nats`, the types and the support of keys are those of the NATS server."""
        self._maps = maps
        self._nats = nats
        self.errors: list[str] = []  #: texts with their place
        self.warnings: list[str] = []  #: texts with their place; the server starts nevertheless
        self.unavailable: list[str] = []  #: features that the server lacks

    def content(self, settings: dict[str, Setting], top: Mapping[str, ConfigNode]) -> FileContent:
        """Returns the content of a file; the error has one line per problem, warnings first."""
        if self.errors:
            raise ConfigurationError("\n".join((*self.warnings, *self.errors)))
        return FileContent(settings, top, self.unavailable, self.warnings)

    def entries(
        self, entries: Mapping[str, ConfigNode], path: str, owner: str = "", *, strict: bool = True
    ) -> dict[str, Setting]:
        """Returns the settings of a map; with `strict` an unknown key is an error. `owner` follows keys in texts."""
        found: dict[str, Setting] = {}
        for name, node in entries.items():
            known = KEYS[path].get(name.lower())
            if known is None:
                if strict and not node.used:
                    self.error(node, f"unknown field {quote(name)}")
                continue
            setting, option = known
            if self._nats and option.support is Support.UNAVAILABLE:
                if _requests_feature(setting, node):
                    self.unavailable.append(f"{node.place}: {name.lower()}{owner}")
                continue
            found |= self._entry(name, node, path, setting, option)
            if self._nats and option.support is not Support.WORKS:
                needed = "in this server" if option.support is Support.WARNED else "here, and is not needed"
                self.warn(node, f"{name.lower()}{owner} has no effect {needed}")
        return found

    def record(self, node: ConfigNode, path: str, owner: str = "") -> dict[str, Any]:
        """Returns the fields of the object that a map describes, by name; the sections of objects have no prefix."""
        found = self.entries(self.map(node), path, owner)
        options = dict(KEYS[path].values())
        return {
            name: options[name].of(value) for name, value in found.items() if options[name].support is Support.WORKS
        }

    def map(self, node: ConfigNode) -> dict[str, ConfigNode]:
        """Returns a map; empty, with an error, for another type."""
        if isinstance(node.value, dict):
            return node.value
        self.error(node, f"expected a map, got {text(node)}")
        return {}

    def error(self, node: ConfigNode, problem: str) -> None:
        self.errors.append(f"{node.place}: {problem}")

    def warn(self, node: ConfigNode, problem: str) -> None:
        self.warnings.append(f"{node.place}: {problem}")

    def _entry(self, name: str, node: ConfigNode, path: str, setting: str, option: ServerOption) -> dict[str, Setting]:
        if (read := self._maps.get(setting)) is not None:
            return read(self, node)
        inner = f"{path}.{setting}"
        if option.value_type is ValueType.MAP:
            return self.entries(self.map(node), inner, strict=False) if inner in KEYS else {}
        if option.value_type is ValueType.ANY:
            return {}
        try:
            if option.value_type is ValueType.ADDRESS:
                host_setting, port_setting = _ADDRESSES[setting]
                host, port = parse_address(node.value)
                return {port_setting: port} if host is None else {host_setting: host, port_setting: port}
            value = self._plain(name, node, setting, option)
            if self._nats and (problem := option.check(value)):
                raise ConfigurationError(problem)
        except ConfigurationError as problem:
            self.error(node, problem.message)
            return {}
        return {setting: value}

    def _plain(self, name: str, node: ConfigNode, setting: str, option: ServerOption) -> Setting:
        value, wanted = node.value, option.value_type
        match wanted:
            case ValueType.SECONDS:
                try:
                    return seconds(value)
                except ConfigurationError as problem:
                    raise ConfigurationError(f"{name}: {problem.message}") from None
            case ValueType.WORDS if isinstance(value, str):
                return (value,)
            case ValueType.SIZE if self._nats and isinstance(value, str):
                try:
                    return parse_size(value or "0")
                except ValueError:
                    raise ConfigurationError(f"{name} should be a size such as 10G, got {quote(value)}") from None
            case ValueType.DURATION if setting in _SECONDS_ALLOWED and kind(value) == ValueType.INT:
                self.warn(node, f"invalid use of field {quote(name)}: {name} should be converted to a duration")
                return int(str(value)) * _SECOND
        expected = _WRITTEN.get(wanted, wanted)
        if kind(value) != expected:
            raise _wrong_type(name, expected, value)
        if isinstance(value, list):
            for each in value:
                if not isinstance(each.value, str):
                    raise _wrong_type(name, f"{expected} of string", each.value)
            return tuple(str(each.value) for each in value)
        if wanted is ValueType.DURATION:
            try:
                return parse_go_duration(str(value))
            except ConfigurationError as problem:
                raise ConfigurationError(f"error parsing {name}: {problem.message}") from None
        if option.choices and str(value).upper() not in option.choices:
            raise ConfigurationError(f"{name} is one of {', '.join(option.choices)}, not {value}")
        return value


def _wrong_type(name: str, expected: str, value: object) -> ConfigurationError:
    return ConfigurationError(f"parameter {quote(name)} value is expected to be {expected}, got {kind(value)}")


def _requests_feature(setting: str, node: ConfigNode) -> bool:
    """Returns whether an entry would enable a feature that this server lacks."""
    if setting == "tls.min_version" and node.value == "1.2":
        return False
    if isinstance(node.value, dict | list | str):
        return bool(node.value) and str(text(node)).lower() not in _DISABLED
    return node.value is not False


def parse_address(value: object) -> tuple[str | None, int]:
    """Splits `host:port`; the host is None if there is only a port."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None, value
    if not isinstance(value, str):
        raise ConfigurationError(f"expected port or host:port, got {kind(value)}")
    host, separator, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        separator = ""
    if not separator:
        raise ConfigurationError(f"could not parse address string {quote(value)}")
    digits = port[1:] if port[:1] in ("+", "-") else port
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_PORT_DIGITS):
        raise ConfigurationError(f"could not parse port {quote(port)}")
    return host, int(port)


def read_streaming(top: Mapping[str, ConfigNode]) -> FileContent:
    """Reads the streaming keys of a file: those of the section `streaming` (in any case) if there is one."""
    reader = FileReader({"limits.channels": _channels, "cluster": _cluster})
    sections = [node for name, node in top.items() if name.lower() == "streaming"]
    entries = reader.map(sections[-1]) if sections else top
    return reader.content(reader.entries(entries, "streaming", strict=False), top)


def _cluster(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    return {"cluster.clustered": True, **reader.entries(reader.map(node), "streaming.cluster", strict=False)}


def _channels(reader: FileReader, node: ConfigNode) -> dict[str, Any]:
    found = {}
    for channel, limits in reader.map(node).items():
        if not is_channel_name(channel, wildcards=True):
            reader.error(limits, f"invalid channel name {quote(channel)}")
        found[channel] = PatternLimits(**reader.entries(reader.map(limits), CHANNEL_LIMITS.path, strict=False))
    return {"limits.channels": found}
