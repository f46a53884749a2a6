"""Text for the screen: harmless, with a role instead of a color, in few columns.

A role says what a text means; the style sheet says how that looks. Where colors are missing, the symbols say the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from stantools.escaping import escape, escape_line

#: What a text means: plain, good, worth a look, bad, less important, emphasised, something that can be chosen.
Role = Literal["", "good", "warn", "bad", "dim", "strong", "accent"]
#: A cell of a table, or a part of a line.
Cell = str | tuple[str, Role]

#: State of a channel, slice or finding: a symbol that is recognised without its color.
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
    """Returns a cell's text, made harmless: nothing in it can move the cursor or break the line."""
    text = cell if isinstance(cell, str) else cell[0]
    return text if text.isprintable() else escape_line(text)


def role_of(cell: Cell) -> Role:
    """Returns what a cell means."""
    return "" if isinstance(cell, str) else cell[1]


def name_text(name: str | bytes | os.PathLike[str]) -> str:
    """Returns the name of a channel, client or file in a form that is harmless and shows every byte."""
    return escape(os.fspath(name))


def store_name(path: Path) -> str:
    """Returns what a store is called for short: the name of its directory, harmless."""
    return name_text((path if path.name not in ("", "..") else path.resolve()).name) or "/"


def number(value: int) -> str:
    """Writes a number for people: `1,234,567`."""
    return f"{value:,}"


def counted(count: int, what: str, many: str = "") -> str:
    """Writes a number with what it counts: `1 channel`, `1,234 channels`."""
    return f"{count:,} {what if count == 1 else many or what + 's'}"


def time_text(timestamp_ns: int) -> str:
    """Writes a time to the millisecond in UTC: `2026-11-21 03:00:00.123`. A damaged one is given as its number."""
    from stantools.notation import format_time

    text = format_time(timestamp_ns)
    return f"{text[:10]} {text[11:23]}" if text.endswith("Z") else text


def bar(share: float, width: int) -> str:
    """Draws a bar of at most `width` columns; what is more than nothing is never drawn as nothing."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0 and not eighths:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BARS[rest - 1] if rest else "")


def sparkline(values: list[float], width: int) -> str:
    """Draws the last values as a line of small columns, the largest one full."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _SPARKS[0] * len(shown)
    return "".join(_SPARKS[min(int(value / top * 7 + 0.5), 7)] for value in shown)


def cut(text: str, width: int) -> str:
    """Cuts a text to a number of characters, with a sign that there is more."""
    if len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…" if width > 0 else ""
