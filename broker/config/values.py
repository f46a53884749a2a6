"""Values of configuration files: trees with their places, read and printed as in the original.

Facts: server-operations.md sections 2 (durations), 5 (errors with their places) and 6 (numbers, sizes, dates).
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from stantools.errors import UsageError
from stantools.format.quoting import quote

#: characters of a value in error texts
MAX_SHOWN: Final = 500
MAX_PIECES: Final = 1000
MAX_SHOWN_DEPTH: Final = 20
UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_MAX: Final = (1 << 63) - 1
_MAX_LENGTH: Final = 200
_PART: Final = re.compile(r"([0-9]*)(\.[0-9]*)?([^0-9.]*)")


class ConfigurationError(UsageError):
    """A wrong file or option; the text is that for stderr."""


#: value in a file; arrays and maps hold nodes
ConfigValue: TypeAlias = "str | bool | int | float | datetime | list[ConfigNode] | dict[str, ConfigNode]"


@dataclass(slots=True, eq=False)
class ConfigNode:
    value: ConfigValue
    line: int = 1  #: line of the key, or of an array's element; from 1
    column: int = 0  #: column of its beginning, counted as in the original: from 0 in the first line, from 1 in others
    source: str = ""  #: path of the file as given, or empty
    used: bool = False  #: a variable refers to it, so that an unknown key is no mistake

    @property
    def place(self) -> str:
        """`<file>:<line>:<column>`."""
        return f"{self.source}:{self.line}:{self.column}"


def kind(value: object) -> str:
    """Returns the name of a value's type in errors (server-operations.md section 7)."""
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


def text(value: object) -> str:
    """Prints a value for error texts: `true`, `5`, `[a b]`, `map[a:1 b:2]`; long ones are cut."""
    shown = "".join(itertools.islice(_pieces(value, 0), MAX_PIECES))
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."


def _pieces(value: object, depth: int) -> Iterator[str]:
    # variables can make a tree much larger and deeper than its text
    match value:
        case ConfigNode():
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


def _float(value: float) -> str:
    """Prints a float in its shortest form, with an exponent from 1e21 on and below 1e-4."""
    if value == 0 or 1e-4 <= abs(value) < 1e21:
        shown = f"{value:.17f}".rstrip("0").rstrip(".") if "e" in repr(value) else repr(value)
        return shown.removesuffix(".0")
    return repr(value)


def seconds(value: object) -> float:
    """Reads a number of seconds, or a duration in Go's notation."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        return parse_go_duration(value) / 1e9
    raise ConfigurationError("wrong type")


def parse_go_duration(text: str) -> int:
    """Reads a duration in Go's notation, such as `1h30m` or `-1.5s`; returns nanoseconds."""
    invalid = ConfigurationError(f"time: invalid duration {quote(text)}")
    rest = text
    negative = rest[:1] == "-"
    if rest[:1] in ("-", "+"):
        rest = rest[1:]
    if rest == "0":
        return 0
    if not rest or len(rest) > _MAX_LENGTH:
        raise invalid
    from fractions import Fraction

    total = Fraction(0)
    while rest:
        part = _PART.match(rest)
        if not part:
            raise invalid
        whole, fraction, unit = part.group(1), part.group(2) or "", part.group(3)
        if not whole and fraction in ("", "."):
            raise invalid
        if not unit:
            raise ConfigurationError(f"time: missing unit in duration {quote(text)}")
        if unit not in UNITS:
            raise ConfigurationError(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
        # fractions of a nanosecond are dropped part by part
        total += int(Fraction(f"{whole or '0'}.{fraction[1:] or '0'}") * UNITS[unit])
        if total > _MAX + negative:
            raise invalid
        rest = rest[part.end() :]
    return -int(total) if negative else int(total)


def reason(problem: OSError | ValueError) -> str:
    """Returns the system's text in the original's style: `no such file or directory`."""
    if not isinstance(problem, OSError):
        return "invalid argument"
    if problem.errno is None:
        return str(problem)
    if problem.errno == errno.ENXIO:
        return "no such device or address"
    return os.strerror(problem.errno)[:1].lower() + os.strerror(problem.errno)[1:]
