"""Values of options as Spark users write them: texts, which each option reads in its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from stantools.errors import UsageError

_Value = TypeVar("_Value")


def read_value(
    given: Mapping[str, str], name: str, read: Callable[[str], _Value], default: _Value, names: Mapping[str, str]
) -> _Value:
    """Returns the value of an option.

    Args:
        given: The options that are there.
        name: The option.
        read: Reads its text; raises ValueError saying what is wrong with it.
        default: Its value if it is not there.
        names: What each option is, for the message.

    Raises:
        UsageError: It cannot be read.
    """
    if name not in given:
        return default
    try:
        return read(given[name].strip())
    except ValueError as problem:
        raise UsageError(f"option {name}: {problem}", f"{name} is {names[name]}") from problem


def truth(text: str) -> bool:
    """Reads true or false.

    Raises:
        ValueError: It is neither.
    """
    lowered = text.lower()
    if lowered in ("true", "yes", "on", "1"):
        return True
    if lowered in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def count(text: str) -> int:
    """Reads a number of 0 or more.

    Raises:
        ValueError: It is none.
    """
    # Only digits: int() would take signs, blanks and underscores as well.
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number of 0 or more")
    return int(text)
