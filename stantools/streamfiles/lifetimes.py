"""Lifetimes of single messages and due times of schedules: in headers, and in a server's indexes of them.

Facts: jetstream-store.md section 7.

    thw.db    | 1, u64le count, u64le sequence after the last one that it covers; for each: s due time, u sequence
    sched.db  | 1, u64le count, u64le sequence …; for each: u16le length, subject, s due time, u sequence
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from stantools.notation import parse_duration, parse_moment
from stantools.streamfiles.headers import END_LINE
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.varints import VarintReader

LIFETIMES_FILE: Final = "thw.db"
SCHEDULES_FILE: Final = "sched.db"
#: lifetime of a message that no age limit removes
FOREVER: Final = -1
_SECOND: Final = 1_000_000_000
_HEAD: Final = struct.Struct("<BQQ")
_LIFETIME: Final = re.compile(rb"\r\nNats-TTL:[ \t]*([^\r\n]*)", re.IGNORECASE)
_SCHEDULE: Final = re.compile(rb"\r\nNats-Schedule:[ \t]*@(at|every)[ \t]+([^\r\n]*)", re.IGNORECASE)
_TARGET: Final = re.compile(rb"\r\nNats-Schedule-Target:[ \t]*([^\r\n]*)", re.IGNORECASE)
_END: Final = re.compile(rb"\r\n(?:Nats-Marker-Reason:[ \t]*[^ \t\r\n]|KV-Operation:[ \t]*PURGE[ \t]*\r\n)")
_PLANNED_LIFETIME: Final = re.compile(rb"\r\nNats-Schedule-TTL:[ \t]*([^\r\n]*)", re.IGNORECASE)
#: headers of a schedule that its messages do not have
_OWN_HEADERS: Final = re.compile(
    rb"\r\nNats-(?:Schedule[^:\r\n]*|Expected-[^:\r\n]*|Msg-Id|TTL|Rollup):[^\r\n]*", re.IGNORECASE
)


class DueTime(NamedTuple):
    time: int  #: nanoseconds since 1970
    sequence: int


class TimerIndex(NamedTuple):
    end: int  #: the sequence after the last one that it covers
    entries: list[DueTime]
    rest: int  #: bytes after the last entry, which servers ignore


class Schedule(NamedTuple):
    due: int | None  #: time of its first message in nanoseconds since 1970; None if it is not known
    once: bool  #: it ends with its first message
    target: bytes  #: subject of its messages


def read_timers(data: bytes, *, with_subjects: bool) -> TimerIndex:
    """Reads an index of times; ArchiveError if it is damaged in a way that a server notices."""
    if len(data) < _HEAD.size or data[0] != 1:
        raise ArchiveError("it does not begin with version 1")
    _, count, end = _HEAD.unpack_from(data)
    numbers = VarintReader(data, _HEAD.size)
    entries = []
    for _ in range(numbers.bounded(count, 4 if with_subjects else 2)):
        if with_subjects:
            numbers.raw(int.from_bytes(numbers.raw(2), "little"))
        entries.append(DueTime(numbers.signed(), numbers.take()))
    return TimerIndex(end, entries, len(data) - numbers.position)


def lifetime_of(headers: bytes) -> int:
    """Returns the lifetime in a header block, in nanoseconds; 0 without one, FOREVER for none that ends."""
    found = _LIFETIME.search(headers)
    return _duration(found[1]) if found else 0


def ends_subject(headers: bytes) -> bool:
    """Returns whether a message is a delete marker or the purge of a key: no marker follows when it goes."""
    return _END.search(headers) is not None


def _duration(value: bytes) -> int:
    text = value.strip().decode("ascii", "replace")
    if text == "never":
        return FOREVER
    try:
        seconds = int(text) if text.isdecimal() and len(text) < 10 else parse_duration(text) // _SECOND
    except (ValueError, OverflowError):
        return 0
    return seconds * _SECOND


def schedule_of(headers: bytes, stored: int) -> Schedule | None:
    """Returns the schedule in the header block of a message of a time; None if it is none."""
    target = _TARGET.search(headers)
    if b"\r\nnats-schedule:" not in headers.lower() or target is None:
        return None
    due, once = None, False
    if found := _SCHEDULE.search(headers):
        once = found[1].lower() == b"at"
        if once:
            try:
                due = parse_moment(found[2].decode("ascii", "replace"))
            except ValueError:
                due = None
        else:
            due = stored + (_duration(found[2]) or 0)
    return Schedule(due, once, target[1])


def scheduled_headers(headers: bytes, subject: bytes, following: bytes) -> bytes:
    """Returns the headers of a message that a schedule on a subject stores; `following`: its next time, or `purge`."""
    kept = _OWN_HEADERS.sub(b"", headers.removesuffix(2 * END_LINE))
    lines = b"\r\nNats-Scheduler: %b\r\nNats-Schedule-Next: %b" % (subject, following)
    if found := _PLANNED_LIFETIME.search(headers):
        lines += b"\r\nNats-TTL: %b" % found[1]
    return kept + lines + 2 * END_LINE
