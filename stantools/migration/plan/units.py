"""Durations, sizes, times and sets of sequences as people write them in a plan file, exact in both directions.

    90s, 1d12h, 1.5s     durations: nanoseconds; written by `notation.format_duration`
    4096, 64KB, 1GB      sizes: bytes, in powers of 1024 as the streaming server takes them
    2020-09-13T12:26:40.000000001Z
    1, 3, 5-7            sequences

Every function that reads raises ValueError with what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stantools import notation
from stantools.inspection.subscribers import as_ranges

_SIZES = {"TB": 1 << 40, "GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
_NUMBER = re.compile(r"\d{1,3}(?:_?\d{3}){0,6}|\d{1,20}", re.ASCII)
_SEQUENCES = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)

#: More sequences than this in one set are taken for a slip of the hand.
MOST_SEQUENCES = 4_000_000
_MAX_I64 = (1 << 63) - 1
_MAX_U64 = (1 << 64) - 1


def parse_duration(text: str) -> int:
    """Reads a duration in nanoseconds."""
    try:
        duration = notation.parse_duration(text)
    except ValueError:
        raise ValueError("a duration such as 30s, 72h or 1d12h") from None
    if duration > _MAX_I64:
        raise ValueError("a duration of at most 292 years")
    return duration


def format_size(count: int) -> str:
    """Formats a number of bytes exactly: `64MB`, `1000000KB`, `4097`."""
    for unit, size in _SIZES.items():
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def parse_size(text: str) -> int:
    """Reads a number of bytes."""
    try:
        count = notation.parse_size(text)
    except ValueError:
        raise ValueError("a number of bytes such as 4096, 64MB or 1GB") from None
    if count > _MAX_I64:
        raise ValueError("a number of bytes below 8388608TB")
    return count


def about(count: int) -> str:
    """Formats a number of bytes for people, rounded: `1.2 MB`."""
    for unit, size in _SIZES.items():
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def parse_number(text: str, most: int = _MAX_U64) -> int:
    """Reads a number that is not negative, in groups of three with `_` or without."""
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise ValueError(f"a number from 0 to {most}" if most < _MAX_I64 else "a number such as 1000000")
    return int(text)


def parse_time(text: str) -> int:
    """Reads RFC 3339, or a number of nanoseconds since 1970."""
    try:
        timestamp = int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else notation.parse_moment(text)
    except ValueError:
        timestamp = _MAX_I64 + 1
    if not -_MAX_I64 - 1 <= timestamp <= _MAX_I64:
        raise ValueError("a time such as 2026-11-21T03:00:00Z, between the years 1677 and 2262")
    return timestamp


def format_sequences(sequences: Iterable[int]) -> str:
    """Formats rising sequences: `1, 3, 5-7`, `none` if there are none."""
    ranges = as_ranges(list(sequences))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or "none"


def parse_sequences(text: str) -> tuple[int, ...]:
    """Reads sequences; they come back rising, each once."""
    if text in ("", "none"):
        return ()
    found: set[int] = set()
    for part in text.replace(",", " ").split():
        match = _SEQUENCES.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2]) if match and match[2] else first
        if not 0 < first <= last <= _MAX_U64:
            raise ValueError(f"sequences such as 1, 3, 5-7; {part!r} is none")
        if last - first + len(found) >= MOST_SEQUENCES:
            raise ValueError(f"at most {MOST_SEQUENCES} sequences")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
