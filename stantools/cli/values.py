"""What users write on the command line: the click types around `stantools.notation`. Nothing here imports numpy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from stantools.notation import (
    format_size,
    format_time,
    parse_duration,
    parse_polynomial,
    parse_range,
    parse_size,
    parse_time,
)

__all__ = [
    "Duration",
    "Moment",
    "Polynomial",
    "SequenceRange",
    "Size",
    "format_size",
    "format_time",
    "parse_duration",
    "parse_polynomial",
    "parse_range",
    "parse_size",
    "parse_time",
]

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # generic in newer releases of click only
    _ParamType = click.ParamType


class _Parsed(_ParamType):
    """A click type around one of the functions above."""

    def read(self, text: str) -> Any:
        """Reads what the user wrote; ValueError if it makes no sense."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Turns the user's text into a value; wrong usage if it makes no sense."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


class Duration(_Parsed):
    """A duration in nanoseconds."""

    name = "duration"

    def read(self, text: str) -> int:
        """Reads a duration."""
        return parse_duration(text)


class Moment(_Parsed):
    """A point in time in nanoseconds since 1970."""

    name = "time"

    def read(self, text: str) -> int:
        """Reads a point in time."""
        return parse_time(text, time.time_ns())


class Size(_Parsed):
    """A number of bytes."""

    name = "size"

    def read(self, text: str) -> int:
        """Reads a size."""
        return parse_size(text)


class SequenceRange(_Parsed):
    """A range of sequences as a pair (first, last), either of them None or negative."""

    name = "A:B"

    def read(self, text: str) -> tuple[int | None, int | None]:
        """Reads a range."""
        return parse_range(text)


class Polynomial(_Parsed):
    """A CRC polynomial; None stands for `auto`."""

    name = "polynomial"

    def read(self, text: str) -> int | None:
        """Reads a polynomial."""
        return parse_polynomial(text)
