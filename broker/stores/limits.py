"""Log lines about limits: a table when a server starts, a line when a channel reaches its limits."""

from __future__ import annotations

from typing import Final

from stantools.format.quoting import quote
from stantools.notation import format_go_duration
from stantools.store.directory import subject_matches
from stantools.store.limits import (
    DEFAULT_MAX_CHANNELS,
    ChannelLimits,
    StoreLimits,
)

_UNITS: Final = "KMGTPE"
_SMALLEST_WIDTH: Final = 34
_VALUE: Final = 13
_TITLE: Final = " List of Channels "
_LIST_LABEL: Final = 14
#: label and field of each limit
_LIMITS: Final = (
    ("Subscriptions", "max_subs"),
    ("Messages", "max_msgs"),
    ("Bytes", "max_bytes"),
    ("Age", "max_age_ns"),
    ("Inactivity", "max_inactivity_ns"),
)


def limits_table(limits: StoreLimits) -> tuple[str, ...]:
    """Returns the lines of the table (server-operations.md section 11)."""
    max_channels, channel = limits.max_channels, limits.channel
    lines = ["---------- Store Limits ----------"]
    lines.append(_global_line("Channels:        ", _shown("", max_channels), max_channels == DEFAULT_MAX_CHANNELS))
    lines.append("--------- Channels Limits --------")
    for label, name in _LIMITS:
        value, default = getattr(channel, name), getattr(ChannelLimits(), name)
        lines.append(_global_line(f"  {label:<13}: ", _shown(name, value), value == default))
    listed = _channel_lines(limits)
    width = max(_SMALLEST_WIDTH, *(len(line) for line in listed)) if listed else _SMALLEST_WIDTH
    if listed:
        left = (width - len(_TITLE)) // 2
        lines.append(f"{'-' * left}{_TITLE}{'-' * (width - left - len(_TITLE))}")
    return (*lines, *listed, "-" * width)


def limits_reached(name: bytes, count: int, size: int, limits: ChannelLimits) -> tuple[str, ...]:
    """Returns format and arguments of the line for the first removal of messages (filestore.md section 5.4)."""
    return (
        "Reached limits for store %s (msgs=%s/%s bytes=%s/%s), dropping old messages to make room for new ones",
        quote(name),
        str(count),
        str(limits.max_msgs),
        friendly_bytes(size),
        friendly_bytes(limits.max_bytes),
    )


def friendly_bytes(size: int) -> str:
    """Returns a number of bytes as the original prints it: `1000 B`, `5.06 KB`."""
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), -1
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_UNITS[unit]}B"


def _global_line(label: str, value: str, is_default: bool) -> str:
    return f"{label}{value:>{_VALUE}}{' *' if is_default else ''}"


def _shown(name: str, value: int) -> str:
    if value == 0:
        return "unlimited"
    if name == "max_bytes":
        return friendly_bytes(value)
    return format_go_duration(value) if name.endswith("_ns") else str(value)


def _channel_lines(limits: StoreLimits) -> list[str]:
    names = sorted(limits.per_channel, key=_pattern_order)
    if not names:
        return []
    deepest = max(name.count(".") + 1 for name in names)
    lines = []
    for name, wider in _tree(names):
        indent = " " * len(wider)
        own = limits.limits_for(name)
        parent = limits.limits_for(wider[-1]) if wider else limits.channel
        lines.append(f"{indent}{name}")
        for label, field in _LIMITS:
            value = getattr(own, field)
            if value != getattr(parent, field):
                blanks = " " * (deepest - len(wider))
                lines.append(f"{indent} |-> {label:<{_LIST_LABEL}}{blanks}{_shown(field, value):>{_VALUE}}")
    return lines


def _tree(names: list[str]) -> list[tuple[str, list[str]]]:
    """Returns each name with its broader patterns, broadest first; names follow their closest broader one."""
    patterns: list[str] = []
    broader: dict[str, list[str]] = {}
    narrower: dict[str, list[str]] = {}
    for name in names:
        # Only earlier names can be broader: `*` would match a `>`.
        broader[name] = [pattern for pattern in patterns if subject_matches(pattern, name)]
        narrower.setdefault(broader[name][-1] if broader[name] else "", []).append(name)
        if "*" in name or ">" in name:
            patterns.append(name)
    found = []
    waiting = narrower.get("", [])[::-1]
    while waiting:
        name = waiting.pop()
        found.append((name, broader[name]))
        waiting += narrower.get(name, [])[::-1]
    return found


def _pattern_order(name: str) -> list[tuple[int, str]]:
    """Sort key: `>` before `*` before literals at each token; literals by their text."""
    ranks = {">": 0, "*": 1}
    return [(ranks.get(token, 2), "" if token in ranks else token) for token in name.split(".")]
