"""Where in a channel a text means: a sequence, a share, a time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from stantools.browse.window import Note, Window, WindowMessage
from stantools.notation import format_time, parse_time

_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_NUMBER = re.compile(r"-?\d+")
_CLOCK = re.compile(r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?")
HINT = "a sequence; -1 the last; 50%; a time such as 2026-11-21T03:00:00Z, 03:00 or 1h (ago)"


@dataclass(frozen=True)
class Jump:
    """Where to go.

    Attributes:
        row: The row.
        remark: Why it is not exactly what was wanted, "" if it is.
    """

    row: int
    remark: str = ""


def find(text: str, window: Window, today: int) -> Jump | None:
    """Returns where a text leads, None if it is no place in a channel.

    Args:
        text: What the user typed.
        window: The rows of the channel.
        today: A time on the day that a time of day means, in nanoseconds since 1970.

    Raises:
        StoreUnreadableError: The channel's files cannot be read.
    """
    text = text.strip()
    if match := _SHARE.fullmatch(text):
        return Jump(window.row_of_share(float(match[1]) / 100))
    if _NUMBER.fullmatch(text):
        number = int(text)
        return Jump(window.row_from_end(-number)) if number < 0 else to_sequence(window, number)
    if _CLOCK.fullmatch(text):
        text = f"{format_time(today)[:10]}T{text}"
    try:
        return to_time(window, parse_time(text, time.time_ns()))
    except (ValueError, OverflowError):
        return None


def to_sequence(window: Window, sequence: int) -> Jump:
    """Returns where a sequence is, or would be.

    Raises:
        StoreUnreadableError: The channel's files cannot be read.
    """
    row = window.row_of_sequence(sequence)
    there = window.rows(row, row + 1)
    if not there:
        return Jump(0, "there are no messages")
    found = there[0]
    if isinstance(found, Note):
        return Jump(row, "" if found.first <= sequence <= found.last else f"sequence {sequence} is not there")
    if found.sequence == sequence:
        return Jump(row)
    return Jump(row, f"sequence {sequence} is not there; this is the nearest")


def to_time(window: Window, timestamp: int) -> Jump:
    """Returns where the first message is that is not older than a time.

    Raises:
        StoreUnreadableError: The channel's files cannot be read.
    """
    row = window.row_of_time(timestamp)
    there = window.rows(row, row + 1)
    if there and isinstance(there[0], WindowMessage) and there[0].timestamp < timestamp:
        return Jump(row, "all messages are older")
    return Jump(row)
