"""The state of a stream as the API gives it, and whether it is the one that was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ns(text: str) -> int:
    """Reads a time as servers write it, RFC 3339 to the nanosecond.

    Returns:
        Nanoseconds since 1970.

    Raises:
        ValueError: It is none.
    """
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a time such as 2020-09-13T12:26:40.123456789Z")
    moment = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")) - _EPOCH
    seconds = moment.days * 86400 + moment.seconds
    return seconds * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))


def state_differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Compares two states of a stream.

    Args:
        expected: What the state should be; only members that it has are compared.
        found: What the server says.

    Returns:
        What differs, in words; empty if nothing does. In an empty stream only the last sequence tells anything:
        servers do not agree about what the first one is (jetstream-migration.md section 5.3).
    """
    names = ["messages", "last_seq", "consumer_count"]
    if expected.get("messages") or found.get("messages"):
        names += ["bytes", "last_ts"]
        if found.get("first_seq"):
            # Version 2.9 says 0 until the next message comes, where a skip record has a block of its own.
            names += ["first_seq", "first_ts"]
    return [
        f"{name} is {found.get(name)} instead of {expected[name]}"
        for name in names
        if name in expected and not _same(name, expected[name], found.get(name))
    ]


def _same(name: str, expected: Any, found: Any) -> bool:
    if not name.endswith("_ts"):
        return bool(expected == found)
    try:
        return time_ns(str(expected)) == time_ns(str(found))
    except ValueError:
        return False
