"""Durations, sizes, times and sets of sequences as people write them in a plan file, exact in both directions.

    90s, 1d12h, 1.5s     durations: nanoseconds
    4096, 64KB, 1GB      sizes: bytes, in powers of 1024 as the streaming server takes them
    2020-09-13T12:26:40.000000001Z
    1, 3, 5-7            sequences

Every function that reads raises ValueError with what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from stantools.inspection.subscribers import as_ranges

_SECOND = 1_000_000_000
_DURATIONS = {
    "d": 86400 * _SECOND,
    "h": 3600 * _SECOND,
    "m": 60 * _SECOND,
    "s": _SECOND,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_SIZES = {"TB": 1 << 40, "GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
_DURATION_PART = re.compile(r"(\d{1,20})(?:\.(\d{1,9}))?(d|h|ms|m|s|us|ns)", re.ASCII)
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+", re.ASCII)
_SIZE = re.compile(r"(\d{1,20})\s*(?:([kmgt])i?b?|b?)", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"\d{1,3}(?:_?\d{3}){0,6}|\d{1,20}", re.ASCII)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?[Zz]", re.ASCII)
_SEQUENCES = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)

#: More sequences than this in one set are taken for a slip of the hand.
MOST_SEQUENCES = 4_000_000
_MAX_I64 = (1 << 63) - 1
_MAX_U64 = (1 << 64) - 1


def format_duration(nanoseconds: int) -> str:
    """Formats a duration exactly, without empty units: `30s`, `1d12h`, `1s500ms`."""
    parts, rest = [], nanoseconds
    for unit, size in _DURATIONS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_duration(text: str) -> int:
    """Reads a duration in nanoseconds."""
    if not _DURATION.fullmatch(text):
        raise ValueError("a duration such as 30s, 72h or 1d12h")
    total = 0
    for whole, fraction, unit in _DURATION_PART.findall(text):
        total += int(whole) * _DURATIONS[unit] + int(fraction or 0) * _DURATIONS[unit] // 10 ** len(fraction)
    if total > _MAX_I64:
        raise ValueError("a duration of at most 292 years")
    return total


def format_size(count: int) -> str:
    """Formats a number of bytes exactly: `64MB`, `1000000KB`, `4097`."""
    for unit, size in _SIZES.items():
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def parse_size(text: str) -> int:
    """Reads a number of bytes."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError("a number of bytes such as 4096, 64MB or 1GB")
    count = int(match[1]) * (_SIZES[f"{match[2].upper()}B"] if match[2] else 1)
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
    """Reads RFC 3339 in UTC, or a number of nanoseconds since 1970."""
    timestamp = int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else _rfc3339(text)
    if timestamp is None or not -_MAX_I64 - 1 <= timestamp <= _MAX_I64:
        raise ValueError("a time such as 2026-11-21T03:00:00Z, between the years 1677 and 2262")
    return timestamp


def _rfc3339(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    if not match:
        return None
    day, clock, fraction = match.groups()
    try:
        since = datetime.fromisoformat(f"{day}T{clock}+00:00") - datetime(1970, 1, 1, tzinfo=UTC)
    except ValueError:  # there is no such day or hour
        return None
    return (since.days * 86400 + since.seconds) * _SECOND + int((fraction or "").ljust(9, "0"))


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
