"""Durations as flags and files write them (server-operations.md section 2): `1h30m`, `1.5s`, `-250ms`, `0`."""

from __future__ import annotations

import re
from typing import Final

from broker.config.values import ConfigurationError, quoted

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


def parse_duration(text: str) -> int:
    """Returns nanoseconds.

    Raises:
        ConfigurationError: It is no duration, has no unit or one that does not exist, or does not fit into 64 bits.
    """
    invalid = ConfigurationError(f"time: invalid duration {quoted(text)}")
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
            raise ConfigurationError(f"time: missing unit in duration {quoted(text)}")
        if unit not in UNITS:
            raise ConfigurationError(f"time: unknown unit {quoted(unit)} in duration {quoted(text)}")
        # What is below a nanosecond is dropped part by part.
        total += int(Fraction(f"{whole or '0'}.{fraction[1:] or '0'}") * UNITS[unit])
        if total > _MAX + negative:
            raise invalid
        rest = rest[part.end() :]
    return -int(total) if negative else int(total)
