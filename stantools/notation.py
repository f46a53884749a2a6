"""Notations that users write: sequence ranges, points in time, durations, sizes, polynomials.

Pure functions, for options of the command line and of tables. They import nothing large.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

_SECOND = 1_000_000_000
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
    "d": 86400 * _SECOND,
    "w": 7 * 86400 * _SECOND,
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?\s*([Zz]|[+-]\d\d:?\d\d)?"
)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_RANGE = re.compile(r"(-?\d+)?(?:(:)(-?\d+)?)?")
_POLYNOMIALS = {"ieee": 0xEDB88320, "castagnoli": 0x82F63B78, "koopman": 0xEB31D82E}


def parse_duration(text: str) -> int:
    """Parses a duration such as `1d3h`, `90m` or `1.5s` to nanoseconds."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 1d3h, 90m or 1.5s")
    return sum(_scaled(number, _UNITS[unit]) for number, unit in _DURATION_PART.findall(text))


def format_duration(nanoseconds: int) -> str:
    """Formats a duration exactly, without empty units: `30s`, `1d12h`, `1s500ms`."""
    parts, rest = [], nanoseconds
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_go_duration(nanoseconds: int) -> str:
    """Formats a duration as Go and the servers do: `1h0m30s`, `1.5s`, `250ms`, `0s`."""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if rest < size * 1000:
            return f"{sign}{_decimal(rest, size)}{unit}"
    minutes, seconds = divmod(rest, 60 * _SECOND)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(seconds, _SECOND)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    digits = str(fraction).rjust(len(str(unit)) - 1, "0").rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)


def _scaled(number: str, unit: int) -> int:
    whole, _, fraction = number.partition(".")
    return int(whole) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def parse_time(text: str, now_ns: int | None = None) -> int:
    """Parses a point in time to nanoseconds since 1970: RFC 3339 (UTC without a zone), or a duration before now."""
    if _DURATION.fullmatch(text):
        return (time.time_ns() if now_ns is None else now_ns) - parse_duration(text)
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text!r} is neither a time such as 2026-11-21T03:00:00Z nor a duration such as 1d3h")
    return parse_moment(text)


def parse_moment(text: str) -> int:
    """Parses RFC 3339 (UTC without a zone) to nanoseconds since 1970."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a time such as 2020-09-13T12:26:40.123456789Z")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    moment = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC)
    seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    if zone and zone not in "Zz":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return int(seconds) * _SECOND + int((fraction or "").ljust(9, "0"))


def format_time(timestamp_ns: int) -> str:
    """Formats nanoseconds since 1970 as RFC 3339 in UTC, with all nine digits.

    A damaged timestamp outside the years 1 to 9999 is shown as a number.
    """
    seconds, fraction = divmod(timestamp_ns, _SECOND)
    if not -62135596800 <= seconds <= 253402300799:
        return f"{timestamp_ns}ns"
    return f"{_second(seconds)}.{fraction:09d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    broken = time.gmtime(seconds)
    return (
        f"{broken.tm_year:04d}-{broken.tm_mon:02d}-{broken.tm_mday:02d}"
        f"T{broken.tm_hour:02d}:{broken.tm_min:02d}:{broken.tm_sec:02d}"
    )


def format_moment(timestamp_ns: int) -> str:
    """Formats nanoseconds since 1970 as servers report them: `format_time` without trailing zeros."""
    text = format_time(timestamp_ns)
    return f"{text[:-1].rstrip('0').rstrip('.')}Z" if text[-1] == "Z" else text


def format_uptime(nanoseconds: int) -> str:
    """Formats a time span as monitoring shows it: `3s`, `2m5s`, `1h0m5s`, `2d1h0m5s` or `1y2d1h0m5s`."""
    minutes, seconds = divmod(max(nanoseconds, 0) // _SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    years, days = divmod(days, 365)
    parts = ((years, "y"), (days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"))
    first = next((i for i, (value, _) in enumerate(parts) if value), len(parts) - 1)
    return "".join(f"{value}{unit}" for value, unit in parts[first:])


def tick_text(time: int, step: int) -> str:
    """Formats a time below a plot, as precise as ticks `step` nanoseconds apart require."""
    text = format_time(time)
    if not text.endswith("Z"):
        return "?"
    if step >= _UNITS["d"] or (step >= _UNITS["m"] and time % _UNITS["d"] == 0):
        return text[:10]
    if step >= _UNITS["m"]:
        return text[11:16]
    if step >= _SECOND:
        return text[11:19]
    if step >= _UNITS["ms"]:
        return text[17:23]
    return text[19:26] if step >= _UNITS["us"] else text[19:29]


def span_text(start: int, stop: int, width: int) -> str:
    """Formats a span of time as precisely as its width requires, with one date if both ends share it."""
    digits = 19 if width >= _SECOND else 23 if width >= _UNITS["ms"] else 29
    low, high = (_exact(each, digits) for each in (start, stop))
    return f"{low} – {high[11:] if low[:10] == high[:10] and len(high) > 11 else high} UTC"


def _exact(timestamp: int, digits: int) -> str:
    text = format_time(timestamp)
    return text[:digits].replace("T", " ") if text.endswith("Z") else text


def parse_size(text: str) -> int:
    """Parses a number of bytes such as `4096`, `64k` or `1GB` (powers of 1024, as the server takes them)."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a number of bytes such as 4096, 64k or 1GB")
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def format_size(count: int) -> str:
    """Formats a number of bytes for people: `0 B`, `999 B`, `64.0 KiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def short_number(value: float) -> str:
    """Writes a number in at most five columns: `999`, `12.3k`, `4.5M`."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or unit == "T":
            shown = f"{value:.0f}" if not unit or abs(value) >= 99.95 else f"{value:.1f}"
            return shown + unit
        value /= 1000
    return ""


def format_left(seconds: float | None) -> str:
    """Formats the time left of some work, for the end of a line: `  0:07 left`, `  3:05:00 left`; "" if unknown."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"  {hours}:{minutes:02d}:{rest:02d} left" if hours else f"  {minutes}:{rest:02d} left"


def format_pace(amount: float, seconds: float, unit: str) -> str:
    """Formats a rate: `1.0 MiB/s` for the unit `bytes`, otherwise `1.5k messages/s`."""
    rate = amount / max(seconds, 1e-6)
    return f"{format_size(int(rate))}/s" if unit == "bytes" else f"{short_number(rate)} {unit}/s"


def parse_range(text: str) -> tuple[int | None, int | None]:
    """Parses a range of sequences: `A:B` with both ends included, `A:`, `:B`, or a single sequence.

    Negative numbers count from the last sequence, which is -1.

    Raises:
        ValueError: The text is not a range.
    """
    match = _RANGE.fullmatch(text)
    if not match or not text.strip():
        raise ValueError(f"{text!r} is not a range of sequences such as 10:20, 10:, :20, -5: or 7")
    first, colon, last = match.groups()
    if not colon:
        if first is None:
            raise ValueError(f"{text!r} is not a range of sequences such as 10:20")
        return int(first), int(first)
    begin, end = int(first) if first else None, int(last) if last else None
    if begin is not None and end is not None and end < begin and (begin < 0) == (end < 0):
        raise ValueError(f"{text!r} ends before it begins")
    return begin, end


def parse_polynomial(text: str) -> int | None:
    """Parses a CRC polynomial: `auto` (None), a name, or the number that the server's option takes."""
    lowered = text.lower()
    if lowered == "auto":
        return None
    if lowered in _POLYNOMIALS:
        return _POLYNOMIALS[lowered]
    try:
        number = int(lowered, 0)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 32:
        raise ValueError(f"{text!r} is not a polynomial: auto, {', '.join(_POLYNOMIALS)}, or 1 to {(1 << 32) - 1}")
    return number


def counted(count: int, noun: str, verb: str = "") -> str:
    """Returns a number with a noun, and with a verb if given: `1 stream`, `2 streams`, `1 stream is`.

    `noun` is singular; `verb` holds the forms for one and for more, such as `is/are`.
    """
    one, _, more = verb.partition("/")
    return f"{count} {noun} {one}".rstrip() if count == 1 else f"{count} {noun}s {more}".rstrip()


def and_more(count: int, noun: str = "", verb: str = "") -> str:
    """Returns the end of a shortened list: `… and 3 more`, `… and 1 more note`; see `counted`."""
    return f"… and {counted(count, f'more {noun}', verb)}" if noun else f"… and {count} more"


def cut(text: str, width: int) -> str:
    """Returns a text in at most `width` characters; an ellipsis marks its missing end."""
    if len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…" if width > 0 else ""


def some_of(names: Sequence[str], limit: int) -> str:
    """Lists the first names for people: `a, b, c and 4 more`."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def describe_ranges(ranges: Iterable[Sequence[int]], limit: int = 6) -> str:
    """Writes ranges of sequences for people: `1-5, 7, 9-12 and 3 more`."""
    pairs = [tuple(each) for each in ranges]
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in pairs[:limit]]
    if len(pairs) > limit:
        parts.append(and_more(len(pairs) - limit))
    return ", ".join(parts) or "none"


def describe_sequences(ranges: Iterable[Sequence[int]], limit: int = 6) -> str:
    """Writes sequences for people, with the noun: `sequence 7`, `sequences 1-5, 9`."""
    pairs = [tuple(each) for each in ranges]
    one = len(pairs) == 1 and pairs[0][0] == pairs[0][1]
    return f"{'sequence' if one else 'sequences'} {describe_ranges(pairs, limit)}"
