"""The streaming part of a configuration file (server-operations.md sections 5, 7 and 12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from broker.config.catalogue import CHANNEL_KEYS, STREAMING_KEYS, Key, Kind
from broker.config.durations import parse_duration
from broker.config.settings import StreamingFile
from broker.config.values import ConfigurationError, Node, kind, quoted, text
from stantools.store.limits import PatternLimits, is_channel_name

Setting = bool | int | str | tuple[str, ...]

_SECTIONS: Final = {
    section.path: {name: key for key in section.entries if isinstance(key, Key) for name in key.names}
    for section in STREAMING_KEYS
}
_CHANNEL_KEYS: Final = {name: key for key in CHANNEL_KEYS for name in key.names}
_EXPECTED: Final = {
    "tls": "TLS",
    "limits": "store limits",
    "file": "file options",
    "sql": "SQL options",
    "cluster": "cluster",
}


def read_streaming(top: Mapping[str, Node]) -> StreamingFile:
    """Reads the streaming keys of a file.

    Args:
        top: Its top-level map. If it has a key `streaming` (in any case) only that counts.

    Raises:
        ConfigurationError: The first value that is wrong; unknown keys are not.
    """
    entries = top
    for name, node in top.items():
        if name.lower() == "streaming":
            if not isinstance(node.value, dict):
                raise ConfigurationError(f"expected streaming section to be a map/struct, got {text(node)}")
            entries = node.value
    found = StreamingFile()
    _read(found, "streaming", entries)
    return found


def _read(found: StreamingFile, path: str, entries: Mapping[str, Node]) -> None:
    for name, node, key in _known(entries, _SECTIONS[path]):
        if key.kind is not Kind.MAP:
            found.settings[key.to] = _value(name, node, key)
        elif key.to == "limits.channels":
            _read_channels(found, node)
        else:
            if not isinstance(node.value, dict):
                raise ConfigurationError(f"expected {_EXPECTED[key.to]} to be a map/struct, got {text(node)}")
            if key.to == "cluster":
                found.settings["cluster.clustered"] = True
            _read(found, f"streaming.{key.to}", node.value)


def _read_channels(found: StreamingFile, node: Node) -> None:
    if not isinstance(node.value, dict):
        raise ConfigurationError(f"expected per channel limits to be a map/struct, got {text(node)}")
    for channel, limits in node.value.items():
        if not is_channel_name(channel, wildcards=True):
            raise ConfigurationError(f"invalid channel name {quoted(channel)}")
        if not isinstance(limits.value, dict):
            raise ConfigurationError(f"expected channel limits to be a map/struct, got {text(limits)}")
        values = {key.to: _value(name, each, key) for name, each, key in _known(limits.value, _CHANNEL_KEYS)}
        found.channels[channel] = PatternLimits(
            max_msgs=_whole(values.get("max_msgs")),
            max_bytes=_whole(values.get("max_bytes")),
            max_age_ns=_whole(values.get("max_age")),
            max_subs=_whole(values.get("max_subs")),
            max_inactivity_ns=_whole(values.get("max_inactivity")),
        )


def _known(entries: Mapping[str, Node], keys: Mapping[str, Key]) -> Iterator[tuple[str, Node, Key]]:
    for name, node in entries.items():
        if (key := keys.get(name.lower())) is not None:
            yield name, node, key


def _whole(value: Setting | None) -> int | None:
    return value if isinstance(value, int) else None


def _value(name: str, node: Node, key: Key) -> Setting:
    value = node.value
    expected = "string" if key.kind is Kind.DURATION else key.kind.value
    if kind(value) != expected:
        raise _wrong_type(name, expected, value)
    if isinstance(value, list):
        for each in value:
            # The original crashes here.
            if not isinstance(each.value, str):
                raise ConfigurationError(
                    f"parameter {quoted(name)} value is expected to be slice of string, got {kind(each.value)}"
                )
        return tuple(str(each.value) for each in value)
    if key.to == "store":
        store = str(value).upper()
        if store not in ("MEMORY", "FILE", "SQL"):
            raise ConfigurationError(f"unknown store type: {value}")
        return store
    if key.kind is Kind.DURATION:
        return parse_duration(str(value))
    if isinstance(value, bool | int | str):
        return value
    raise _wrong_type(name, expected, value)


def _wrong_type(name: str, expected: str, value: object) -> ConfigurationError:
    return ConfigurationError(f"parameter {quoted(name)} value is expected to be {expected}, got {kind(value)}")
