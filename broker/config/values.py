"""Values of configuration files, as trees that know where they were written; how the original names and prints them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stantools.errors import UsageError


class ConfigurationError(UsageError):
    """A file or an option is wrong. The text is for stderr, as the original has it, without a prefix."""


MAX_SHOWN: Final = 500
MAX_PIECES: Final = 1000
MAX_SHOWN_DEPTH: Final = 20

#: A value without positions.
Plain = str | bool | int | float | datetime | list["Plain"] | dict[str, "Plain"]


@dataclass(slots=True, eq=False)
class Node:
    """A value and its place.

    Attributes:
        value: The value; arrays and maps hold nodes.
        line: Line of the key, for elements of arrays of the value; from 1.
        column: Where it begins in its line, as the original counts: from 0 in the first line, from 1 in others.
        source: Path of the file as given; empty for text from elsewhere.
        used: A variable refers to it, so that it is no mistake if nobody knows the key.
    """

    value: str | bool | int | float | datetime | list[Node] | dict[str, Node]
    line: int = 1
    column: int = 0
    source: str = ""
    used: bool = False

    @property
    def place(self) -> str:
        """`<file>:<line>:<column>`."""
        return f"{self.source}:{self.line}:{self.column}"

    def plain(self) -> Plain:
        """Returns the value without positions."""
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        if isinstance(self.value, dict):
            return {key: each.plain() for key, each in self.value.items()}
        return self.value


def kind(value: object) -> str:
    """Returns the name of a value's type as errors about streaming keys have it (server-operations.md section 7)."""
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int():
            return "int64"
        case float():
            return "float64"
        case list():
            return "slice"
        case dict():
            return "map"
        case _:
            return "struct"


def go_type(value: object) -> str:
    """Returns the name of a value's type as errors about NATS keys have it (server-operations.md section 8)."""
    names = {"slice": "[]interface {}", "map": "map[string]interface {}", "struct": "time.Time"}
    name = kind(value)
    return names.get(name, name)


def text(value: object) -> str:
    """Prints a value as it appears in error texts: `true`, `5`, `[a b]`, `map[a:1 b:2]`; cut if it is long."""
    shown = "".join(itertools.islice(_pieces(value, 0), MAX_PIECES))
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."


def _pieces(value: object, depth: int) -> Iterator[str]:
    # Variables can make a tree that is much larger and deeper than its text.
    match value:
        case Node():
            yield from _pieces(value.value, depth)
        case list() | dict() if depth > MAX_SHOWN_DEPTH:
            yield "..."
        case bool():
            yield "true" if value else "false"
        case float():
            yield _float(value)
        case list():
            yield "["
            for number, each in enumerate(value):
                yield " " if number else ""
                yield from _pieces(each, depth + 1)
            yield "]"
        case dict():
            yield "map["
            for number, key in enumerate(sorted(value)):
                yield f"{' ' if number else ''}{key}:"
                yield from _pieces(value[key], depth + 1)
            yield "]"
        case datetime():
            yield value.strftime("%Y-%m-%d %H:%M:%S +0000 UTC")
        case _:
            yield str(value)


def quoted(value: str) -> str:
    """Puts a text into double quotes; what cannot be printed is escaped."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    parts = []
    for character in value:
        if character in escapes:
            parts.append(escapes[character])
        elif 0xDC80 <= ord(character) <= 0xDCFF:
            parts.append(f"\\x{ord(character) - 0xDC00:02x}")
        elif character.isprintable():
            parts.append(character)
        elif ord(character) < 0x80:
            parts.append(f"\\x{ord(character):02x}")
        else:
            parts.append(f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}")
    return f'"{"".join(parts)}"'


def _float(value: float) -> str:
    """Prints a float in its shortest form, with an exponent from 1e21 on and below 1e-4."""
    if value == 0 or 1e-4 <= abs(value) < 1e21:
        shown = f"{value:.17f}".rstrip("0").rstrip(".") if "e" in repr(value) else repr(value)
        return shown.removesuffix(".0")
    return repr(value)
