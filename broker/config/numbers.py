"""Numbers, sizes, dates and unquoted addresses in configuration files (server-operations.md section 6)."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Final

from broker.config.values import ConfigurationError

_DIGITS: Final = frozenset("0123456789")
_PLACES: Final = re.compile(r"[0-9]*")
_SUFFIX: Final = re.compile(r"([kmgtpe])(b|ib?)?", re.IGNORECASE | re.ASCII)
_POWERS: Final = {letter: power for power, letter in enumerate("kmgtpe", 1)}
_ADDRESS: Final = re.compile(r"[0-9.:-]*")
_DATE: Final = "dddd-dd-ddTdd:dd:ddZ"
_BEHIND_INTEGER: Final = " \t\r\n,;}"
_BEHIND_SIZE: Final = "\t\n\v\f\r \x85\xa0,;}])0123456789"
_MAX_DIGITS: Final = 20
_MAX_SHOWN: Final = 40


class NumberError(Exception):
    """A number is wrong.

    Attributes:
        position: Where.
        text: What, for an error about the grammar.
    """

    def __init__(self, position: int, text: str) -> None:
        super().__init__(text)
        self.position = position
        self.text = text


def shown(character: str) -> str:
    """Shows a character in an error text; the end of the text as a blank."""
    return "'\\n'" if character == "\n" else f"'{character or ' '}'"


def scan_number(text: str, begin: int) -> tuple[int | float | str | datetime | None, int]:
    """Reads what begins with a digit or with `-`.

    Args:
        text: The text.
        begin: Where it begins.

    Returns:
        The value and the position behind it; None for a word, which goes on from that position.

    Raises:
        NumberError: The grammar does not allow it.
        ConfigurationError: It does, but there is no such number or date.
    """
    negative = text[begin] == "-"
    if negative and text[begin + 1 : begin + 2] not in _DIGITS:
        raise NumberError(begin + 2, f"Expected a digit but got {shown(text[begin + 1 : begin + 2])}.")
    position = _behind(_PLACES, text, begin + negative)
    character = text[position : position + 1]
    if character == ".":
        return _float(text, begin, position)
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


def _behind(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _integer(written: str, digits: str, factor: int) -> int:
    significant = digits.lstrip("-0")
    number = int(significant or "0") * factor if len(significant) <= _MAX_DIGITS else 1 << 64
    if digits.startswith("-"):
        number = -number
    if not -(1 << 63) <= number < 1 << 63:
        raise ConfigurationError(f"integer '{_cut(written)}' is out of the range")
    return number


def _float(text: str, begin: int, point: int) -> tuple[float | str, int]:
    position = point + 1
    if text[position : position + 1] not in _DIGITS:
        found = shown(text[position : position + 1])
        raise NumberError(position, f"Floats must have a digit after the '.', but got {found} instead.")
    position = _behind(_PLACES, text, position)
    if text[position : position + 1] == ".":
        end = _behind(_ADDRESS, text, position)
        return text[begin:end], end
    written = text[begin:position]
    number = float(written)
    if math.isinf(number):
        raise ConfigurationError(f"float '{_cut(written)}' is out of the range")
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


def _cut(written: str) -> str:
    return written if len(written) <= _MAX_SHOWN else f"{written[:_MAX_SHOWN]}..."
