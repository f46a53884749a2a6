"""Text for the screen: escaped, short, and with a role instead of a colour.

A role says what a text means; the style sheet chooses its colour. Symbols carry the same meaning on terminals
without colours.
"""

from __future__ import annotations

import os
from pathlib import Path

from stantools.escaping import escape, escape_line
from stantools.inspection.report import Role as Role

#: A cell of a table, or a part of a line.
Cell = str | tuple[str, Role]

#: State of a channel, slice or finding: its symbol, which needs no colour, and its role.
SYMBOLS: dict[str, tuple[str, Role]] = {
    "unknown": ("·", "dim"),
    "clean": ("✓", "good"),
    "info": ("i", "dim"),
    "warning": ("!", "warn"),
    "error": ("✗", "bad"),
}

_BARS = "▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"


def text_of(cell: Cell) -> str:
    """Returns a cell's text with control characters escaped."""
    text = cell if isinstance(cell, str) else cell[0]
    return text if text.isprintable() else escape_line(text)


def role_of(cell: Cell) -> Role:
    return "" if isinstance(cell, str) else cell[1]


def name_text(name: str | bytes | os.PathLike[str]) -> str:
    """Returns the name of a channel, client or file with every unprintable byte escaped."""
    return escape(os.fspath(name))


def store_name(path: Path) -> str:
    return name_text((path if path.name not in ("", "..") else path.resolve()).name) or "/"


def number(value: int) -> str:
    """Formats a number with thousands separators: `1,234,567`."""
    return f"{value:,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Formats a count with its noun: `1 channel`, `1,234 channels`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def time_text(timestamp_ns: int) -> str:
    """Formats a time in UTC to the millisecond: `2026-11-21 03:00:00.123`; a damaged timestamp as its number."""
    from stantools.notation import format_time

    text = format_time(timestamp_ns)
    return f"{text[:10]} {text[11:23]}" if text.endswith("Z") else text


def bar(share: float, width: int) -> str:
    """Returns a bar of at most `width` columns; any share above zero has at least the smallest mark."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0 and not eighths:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BARS[rest - 1] if rest else "")


def sparkline(values: list[float], width: int) -> str:
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _SPARKS[0] * len(shown)
    return "".join(_SPARKS[min(int(value / top * 7 + 0.5), 7)] for value in shown)
