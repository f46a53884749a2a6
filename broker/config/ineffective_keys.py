"""Keys of a configuration file that have no effect in their place: misspelled, or in a map of another level.

The original ignores them silently, so that a file store becomes one in memory. Here a start logs each with its place
and the probable meaning; `-t` reports them as errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from broker.config.catalogue import CHANNEL_LIMITS, KEYS
from stantools.format.quoting import quote
from stantools.server_options import ValueType

if TYPE_CHECKING:
    from broker.config.values import ConfigNode

STREAMING: Final = "streaming"
_NATS: Final = KEYS[""]
#: maps that may contain a key, in the order of search, with their description
_PLACES: Final = {
    STREAMING: "into `streaming { }`",
    "streaming.limits": "into `store_limits { }` of streaming",
    "streaming.file": "into `file_options { }` of streaming",
    "streaming.cluster": "into `cluster { }` of streaming",
    "streaming.tls": "into `tls { }` of streaming",
    "": "to the top level of the file, outside of `streaming { }`",
    "jetstream": "into `jetstream { }`",
    "cluster": "into `cluster { }` at the top level",
    "tls": "into `tls { }` at the top level",
    "authorization": "into `authorization { }`",
}
#: least similarity of names
_MIN_SIMILARITY: Final = 0.7
#: share of a map's keys that must belong to streaming for the map to be recognised under another name
_MIN_SHARE: Final = 0.5


def misplaced_keys(top: Mapping[str, ConfigNode], *, nats_file: str, streaming_file: str, path: str) -> Iterator[str]:
    """Yields a line for each key without effect, which begins with its place.

    `nats_file` and `streaming_file` configure the two servers, "" without one; `path` is the one being checked.
    """
    section = next((node for name, node in top.items() if name.lower() == STREAMING), None)
    flat = section is None and path == streaming_file
    for name, node in top.items():
        lower = name.lower()
        if node.used:
            continue
        if node is section or lower == STREAMING:
            if path != streaming_file:
                yield _line(node, name, f"streaming is configured by {streaming_file}")
        elif lower in _NATS:
            # Without a section, some keys belong to both servers; the NATS reader checks their values.
            if path != nats_file and not (flat and lower in KEYS[STREAMING]):
                yield _line(node, name, f"the NATS server is configured by {nats_file}")
        elif not flat or lower not in KEYS[STREAMING]:
            yield _line(node, name, _meaning(lower, node, "", flat=flat))
        else:
            yield from _inside(node, KEYS[STREAMING][lower].setting)
    if section is not None and path == streaming_file and isinstance(section.value, dict):
        yield from _in_map(section.value, STREAMING)


def _in_map(entries: Mapping[str, ConfigNode], where: str) -> Iterator[str]:
    for name, node in entries.items():
        lower = name.lower()
        if lower in KEYS[where]:
            yield from _inside(node, KEYS[where][lower].setting)
        elif not node.used:
            yield _line(node, name, _meaning(lower, node, where, flat=False))


def _inside(node: ConfigNode, to: str) -> Iterator[str]:
    if not isinstance(node.value, dict):
        return
    if to == "limits.channels":
        for limits in node.value.values():
            if isinstance(limits.value, dict):
                yield from _in_map(limits.value, CHANNEL_LIMITS.path)
    elif f"{STREAMING}.{to}" in KEYS:
        yield from _in_map(node.value, f"{STREAMING}.{to}")


def _line(node: ConfigNode, name: str, why: str) -> str:
    return f"{node.place}: {quote(name)} has no effect{': ' if why else ''}{why}"


def _meaning(name: str, node: ConfigNode, where: str, *, flat: bool) -> str:
    """Returns the probable meaning of an unknown key."""
    here = KEYS[where] | (KEYS[STREAMING] if flat else {}) if where else _NATS | (KEYS[STREAMING] if flat else {})
    if not where and not flat and name in KEYS[STREAMING]:
        return f"it belongs {_PLACES[STREAMING]}"
    if isinstance(node.value, dict) and node.value and not where:
        known = sum(each.lower() in KEYS[STREAMING] for each in node.value)
        if known >= _MIN_SHARE * len(node.value):
            return f"did you mean {quote(STREAMING)}?"
    # A map belongs to the place of a map with its name.
    elsewhere = [
        place
        for path, place in _PLACES.items()
        if path != where
        and name in KEYS[path]
        and (KEYS[path][name].option.value_type is ValueType.MAP) == isinstance(node.value, dict)
    ]
    if elsewhere:
        return f"it belongs {elsewhere[0]}"
    candidates = [*here, STREAMING] if not where else [*here]
    alike = difflib.get_close_matches(name, candidates, 1, _MIN_SIMILARITY)
    return f"did you mean {quote(alike[0])}?" if alike else "unknown key"
