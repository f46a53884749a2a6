"""Values of configuration files: trees with their places, read and printed as in the original.

Facts: server-operations.md sections 2 (durations), 5 (errors with their places) and 6 (numbers, sizes, dates).
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stantools.errors import UsageError
from stantools.format.quoting import quote

#: characters of a value in error texts
MAX_SHOWN: Final = 500
MAX_PIECES: Final = 1000
MAX_SHOWN_DEPTH: Final = 20
_DIGITS: Final = frozenset("0123456789")
_PLACES: Final = re.compile(r"[0-9]*")
_SUFFIX: Final = re.compile(r"([kmgtpe])(b|ib?)?", re.IGNORECASE | re.ASCII)
_POWERS: Final = {letter: power for power, letter in enumerate("kmgtpe", 1)}
_ADDRESS: Final = re.compile(r"[0-9.:-]*")
_DATE: Final = "dddd-dd-ddTdd:dd:ddZ"
_BEHIND_INTEGER: Final = " \t\r\n,;}"
_BEHIND_SIZE: Final = "\t\n\v\f\r \x85\xa0,;}])"
_MAX_DIGITS: Final = 20
_LONGEST_NUMBER: Final = 40
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
    """A wrong file or option; the text is the original's for stderr, without a prefix."""


@dataclass(slots=True, eq=False)
class ConfigNode:
    value: str | bool | int | float | datetime | list[ConfigNode] | dict[str, ConfigNode]  #: arrays and maps hold nodes
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


class NumberError(Exception):
    def __init__(self, position: int, text: str) -> None:
        super().__init__(text)
        self.position = position
        self.text = text  #: error text of the grammar


def shown(character: str) -> str:
    """Shows a character in an error text; the end of the text as a blank."""
    return "'\\n'" if character == "\n" else f"'{character or ' '}'"


def scan_number(text: str, begin: int) -> tuple[int | float | str | datetime | None, int]:
    """Reads a value that begins with a digit or with `-`, at `begin`.

    Returns the value and the position after it; None for a word, which continues at that position. Raises
    NumberError for a syntax error, ConfigurationError for an impossible number or date.
    """
    negative = text[begin] == "-"
    if negative and text[begin + 1 : begin + 2] not in _DIGITS:
        raise NumberError(begin + 2, f"Expected a digit but got {shown(text[begin + 1 : begin + 2])}.")
    position = _match_end(_PLACES, text, begin + negative)
    character = text[position : position + 1]
    if character == ".":
        return _scan_float(text, begin, position)
    if character == "-" and not negative:
        if position - begin != 4:
            raise NumberError(position + 1, "All ISO8601 dates must be in full Zulu form.")
        return _date(text, begin)
    suffix = _SUFFIX.match(text, position)
    if suffix:
        following = text[suffix.end() : suffix.end() + 1]
        if following in _BEHIND_SIZE:
            base = 1024 if suffix.group(2) else 1000
            factor = base ** _POWERS[suffix.group(1).lower()]
            return _integer(text[begin : suffix.end()], text[begin:position], factor), suffix.end()
        return None, suffix.end() + 1
    if character in _BEHIND_INTEGER or negative:
        written = text[begin:position]
        return _integer(written, written, 1), position
    return None, position + 1


def _match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _integer(written: str, digits: str, factor: int) -> int:
    significant = digits.lstrip("-0")
    number = int(significant or "0") * factor if len(significant) <= _MAX_DIGITS else 1 << 64
    if digits.startswith("-"):
        number = -number
    if not -(1 << 63) <= number < 1 << 63:
        raise ConfigurationError(f"integer '{_shorten(written)}' is out of the range")
    return number


def _scan_float(text: str, begin: int, point: int) -> tuple[float | str, int]:
    position = point + 1
    if text[position : position + 1] not in _DIGITS:
        found = shown(text[position : position + 1])
        raise NumberError(position, f"Floats must have a digit after the '.', but got {found} instead.")
    position = _match_end(_PLACES, text, position)
    if text[position : position + 1] == ".":
        end = _match_end(_ADDRESS, text, position)
        return text[begin:end], end
    written = text[begin:position]
    number = float(written)
    if math.isinf(number):
        raise ConfigurationError(f"float '{_shorten(written)}' is out of the range")
    return number, position


def _date(text: str, begin: int) -> tuple[datetime, int]:
    for offset, expected in enumerate(_DATE[4:], begin + 4):
        character = text[offset : offset + 1]
        wrong = character not in _DIGITS if expected == "d" else character != expected
        if wrong:
            wanted = "digit" if expected == "d" else f"'{expected}'"
            found = f"Expected {wanted} in ISO8601 datetime, but found {shown(character)} instead."
            raise NumberError(offset + 1, found)
    end = begin + len(_DATE)
    try:
        return datetime.fromisoformat(text[begin:end]), end
    except ValueError:
        raise ConfigurationError(f"expected Zulu formatted DateTime, but got '{text[begin:end]}'") from None


def _shorten(written: str) -> str:
    return written if len(written) <= _LONGEST_NUMBER else f"{written[:_LONGEST_NUMBER]}..."


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
