"""Options as Spark users write them: texts under names in camel case.

An option is declared beside its field:

    batch_rows: int = spark_option(16384, batchRows=SIZE.like(help="maximum rows of an Arrow batch"))

Names are case-insensitive, as in Spark. Nothing is guessed: an unknown name or an invalid value is refused with the
expected form.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from stantools.errors import UsageError
from stantools.notation import parse_size
from stantools.options import Option
from stantools.secret import Secret

#: Value of an option in Python: numbers and truth values become text, several values are joined with commas.
Value = str | int | float | bool | os.PathLike[str] | list[str] | tuple[str, ...]


def spark_option(default: Any = dataclasses.MISSING, **options: Option) -> Any:
    return dataclasses.field(default=default, metadata={spark_option: options})


def names_of(*takers: type) -> dict[str, Option]:
    """Returns the options of dataclasses by name, in order."""
    return {name: each for taker in takers for _, options in _fields(taker) for name, each in options.items()}


def _fields(taker: type) -> Iterable[tuple[str, Mapping[str, Option]]]:
    fields = dataclasses.fields(taker)
    return ((each.name, each.metadata[spark_option]) for each in fields if spark_option in each.metadata)


class GivenOptions:
    """The given options by name, in any case; `ignored_names` are lower-case names that belong to other parties."""

    def __init__(self, values: Mapping[str, str], options: Mapping[str, Option], ignored_names: Container[str] = ()):
        self._options = options
        self._texts: dict[str, str] = {}
        by_case = {name.lower(): name for name in options}
        for name, text in values.items():
            if name.lower() in ignored_names:
                continue
            if name.lower() not in by_case:
                raise UsageError(f"unknown option {name!r}", instead(name, list(options), "the options are"))
            self._texts[by_case[name.lower()]] = str(text)

    def text(self, name: str) -> str | None:
        """Returns the raw text of an option; None if not given."""
        return self._texts.get(name)

    def value(self, name: str, default: Any = None) -> Any:
        """Returns the value of an option; the default if not given."""
        if name not in self._texts:
            return default
        option, text = self._options[name], self._texts[name]
        if option.choices:
            words = [str(each) for each in option.choices]
            text = text.strip().upper() if words[0].isupper() else text.strip().lower()
            if text not in words:
                raise UsageError(f"option {name}: {text!r} is not known", instead(text, words, "it takes one of"))
            return option.choices(text) if isinstance(option.choices, type) else text
        read = _number_reader(option) if option.kind is int else option.read
        if read is None:
            return option.kind(text)
        try:
            return read(text.strip())
        except ValueError as problem:
            raise UsageError(f"option {name}: {problem}", f"{name} is {option.help}") from problem

    def fields(self, taker: type) -> dict[str, Any]:
        """Returns the fields of a dataclass whose options were given."""
        alone = ((field, *options) for field, options in _fields(taker) if len(options) == 1)
        return {field: self.value(name) for field, name in alone if name in self._texts}

    def secret(self, name: str) -> Secret:
        """Returns the secret of an option, or the place that it names: `name`, `nameEnv` or `nameFile`."""
        names = [each for each in (name, f"{name}Env", f"{name}File") if each in self._texts]
        if len(names) > 1:
            raise UsageError(f"the options {' and '.join(names)} exclude each other", "give one of them")
        value, variable, file = (self._texts.get(each) for each in (name, f"{name}Env", f"{name}File"))
        return Secret(
            None if value is None else value.encode("utf-8", "surrogateescape"),
            variable,
            None if file is None else Path(file),
        )


def instead(name: str, have: list[str], words: str) -> str:
    """Returns a hint for an unknown name: similar names, else all."""
    by_case = {each.lower(): each for each in have}
    close = [by_case[each] for each in difflib.get_close_matches(name.lower(), by_case, n=3)]
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{guess}{words}: {', '.join(have)}"


def listed(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


def spark_name(name: str) -> str:
    """Returns the option's name in Spark: crc_poly is crcPoly."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def spark_text(value: Value) -> str:
    """Returns the text of an option's value for Spark."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _read_size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError(f"{text!r} is not 1 or more")
    return size


def _read_truth(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "yes", "on", "1"):
        return True
    if lowered in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _number_reader(option: Option) -> Callable[[str], int]:
    least, most = option.least or 0, option.most
    expected = f"of {least} or more" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        # Digits only: int() would accept signs, blanks and underscores as well.
        if text.isdecimal() and least <= int(text) and (most is None or int(text) <= most):
            return int(text)
        raise ValueError(f"{text!r} is not a number {expected}")

    return read


def _read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise ValueError(f"{text!r} is not a number of seconds")
    return seconds


#: Kinds of values; `like` gives them a help text.
TRUTH = Option(help="", read=_read_truth)
NUMBER = Option(help="", kind=int)
SIZE = Option(help="", read=_read_size)
SECONDS = Option(help="", read=_read_seconds)
