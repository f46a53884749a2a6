"""The lines of a plan, declared once: name, reader, check, writer and default of each.

`planfile` reads and writes a plan by these tables, in their order; overrides and the advice at the head of a plan
use them as well. Two kinds of stream settings are left out on purpose: those that change the messages (mirrors,
sources, transforms, republishing, per-message lifetimes), and the start of a consumer, which its position defines.

Values are written for people and exact in both directions. A reader raises ValueError with the expected form.

    90s, 1d12h, 1.5s     durations: nanoseconds; written by `notation.format_duration`
    4096, 64KB, 1GB      sizes: bytes, in powers of 1024 as in the streaming server
    2020-09-13T12:26:40.000000001Z
    1, 3, 5-7            sequences
"""

from __future__ import annotations

import enum
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stantools import notation
from stantools.inspection.subscribers import as_ranges
from stantools.migration.plan.document import PlanSection, Value, quoted
from stantools.migration.plan.migration_plan import ConsumerKind, LoadMethod, RemarkLevel, SourceRef, TargetKind
from stantools.nats.stream_names import name_problem, subject_problem
from stantools.notation import format_duration, format_time

_SIZES = {"TB": 1 << 40, "GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
_NUMBER = re.compile(r"\d{1,3}(?:_?\d{3}){0,6}|\d{1,20}", re.ASCII)
_SEQUENCES = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)

#: limit of sequences in one set; more are taken for a typing mistake
SEQUENCE_LIMIT = 4_000_000
_MAX_I64 = (1 << 63) - 1
_MAX_U64 = (1 << 64) - 1


def read_duration(text: str) -> int:
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


def read_size(text: str) -> int:
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


def parse_number(text: str, maximum: int = _MAX_U64) -> int:
    """Reads a number >= 0, with or without `_` between groups of three digits."""
    if not _NUMBER.fullmatch(text) or int(text) > maximum:
        raise ValueError(f"a number from 0 to {maximum}" if maximum < _MAX_I64 else "a number such as 1000000")
    return int(text)


def parse_time(text: str) -> int:
    """Reads RFC 3339, or nanoseconds since 1970."""
    try:
        timestamp = int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else notation.parse_moment(text)
    except ValueError:
        timestamp = _MAX_I64 + 1
    if not -_MAX_I64 - 1 <= timestamp <= _MAX_I64:
        raise ValueError("a time such as 2026-11-21T03:00:00Z, between the years 1677 and 2262")
    return timestamp


def format_sequences(sequences: Iterable[int]) -> str:
    """Formats rising sequences: `1, 3, 5-7`; `none` if there are none."""
    ranges = as_ranges(list(sequences))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or "none"


def parse_sequences(text: str) -> tuple[int, ...]:
    """Returns the sequences rising, without duplicates."""
    if text in ("", "none"):
        return ()
    found: set[int] = set()
    for part in text.replace(",", " ").split():
        match = _SEQUENCES.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2]) if match and match[2] else first
        if not 0 < first <= last <= _MAX_U64:
            raise ValueError(f"sequences such as 1, 3, 5-7, not {part!r}")
        if last - first + len(found) >= SEQUENCE_LIMIT:
            raise ValueError(f"at most {SEQUENCE_LIMIT} sequences")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


NO_LIMIT = "unlimited"
WIDTH = 110
_MAX_I32 = (1 << 31) - 1
_SECOND = 1_000_000_000
_UNSET: Any = object()
_REQUIRED: Any = object()


@dataclass(frozen=True)
class PlanField:
    key: str  #: attribute, or name in the JetStream configuration
    read: Callable[[Value], Any] = Value.text  #: value from YAML; raises UsageError
    write: Callable[[Any], str] = quoted  #: YAML of a value
    name: str = ""  #: name in a plan, if it differs from `key`
    since: tuple[int, int] = (2, 2)  #: first server version with the setting
    default: Any = _UNSET  #: value of a missing line; a default is not written
    shown: bool = False  #: the default is written as well
    comment: str = ""  #: comment at the end of the line

    @property
    def label(self) -> str:
        return self.name or self.key


def _number(value: Value, minimum: int = 0, maximum: int = _MAX_I64) -> int:
    number = value.read(parse_number)
    if not minimum <= number <= maximum:
        raise value.wrong(f"a number from {minimum} to {maximum}")
    return number


def _read_limit(value: Value, parse: Callable[[str], int], none: int) -> int:
    """Reads a limit; 0 and -1 also mean "no limit", as in streaming and in JetStream."""
    text = value.text()
    return none if text in (NO_LIMIT, "none", "-1") else value.read(parse) or none


def _size(text: str, maximum: int) -> int:
    size = read_size(text)
    if size > maximum:
        raise ValueError(f"at most {maximum} bytes")
    return size


def _limit(
    key: str, parse: Callable[[str], int], write: Callable[[int], str], none: int = -1, default: Any = _UNSET
) -> PlanField:
    def shown(limit: int) -> str:
        return NO_LIMIT if limit == none else write(limit)

    return PlanField(key, lambda value: _read_limit(value, parse, none), shown, default=default)


def _flag(key: str, **more: Any) -> PlanField:
    return PlanField(key, Value.flag, lambda v: "yes" if v else "no", **more)


def _choice(key: str, *possible: str, **more: Any) -> PlanField:
    return PlanField(key, lambda value: value.choice(*possible), str, **more)


def _member(key: str, kind: type[enum.StrEnum]) -> PlanField:
    return PlanField(key, lambda value: kind(value.choice(*kind)), str, default=_REQUIRED)


def _count(key: str, default: Any = _REQUIRED, maximum: int = _MAX_U64) -> PlanField:
    return PlanField(key, lambda value: value.read(partial(parse_number, maximum=maximum)), str, default=default)


def _time(key: str, name: str, default: Any = _REQUIRED) -> PlanField:
    return PlanField(key, lambda value: value.read(parse_time), lambda v: quoted(format_time(v)), name, default=default)


def _duration(value: Value, minimum: int = 0) -> int:
    duration = value.read(read_duration)
    if duration < minimum:
        raise value.wrong(f"at least {format_duration(minimum)}")
    return duration


def _description(value: Value) -> str:
    text = value.text()
    if len(text.encode("utf-8", "surrogateescape")) > 4096:
        raise value.fail("a description must not be longer than 4096 bytes")
    return text


def _path(value: Value) -> str:
    text = value.text()
    if "\0" in text:
        raise value.wrong("the path of a store")
    return text


def _subject(value: Value, *, wildcards: bool = False) -> str:
    text = value.text()
    if problem := subject_problem(text, wildcards=wildcards):
        raise value.fail(problem)
    return text


def _name(value: Value, noun: str) -> str:
    text = value.text()
    if problem := name_problem(text):
        raise value.fail(f"{text!r} cannot be the name of a {noun}: {problem}")
    return text


def _listed(value: Value, read: Callable[[Value], str] = Value.text) -> tuple[str, ...]:
    return tuple(read(item) for item in value.items())


def _write_long_list(texts: Iterable[str]) -> str:
    return "".join(f"\n    - {quoted(text)}" for text in texts)


def _version(value: Value) -> tuple[int, int, int]:
    parts = value.text().split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise value.wrong("a version such as 2.10.26")
    major, minor, patch = map(int, parts)
    return major, minor, patch


def _write_sequences(sequences: Sequence[int]) -> str:
    text = format_sequences(sequences)
    if len(text) <= WIDTH:
        return text
    lines = textwrap.wrap(text, WIDTH - 5, break_long_words=False, break_on_hyphens=False)
    return ">-" + "".join(f"\n      {line}" for line in lines)


def _retention(value: Value) -> str:
    if value.text() in ("interest", "workqueue"):
        raise value.fail(
            f"retention {value.text()!r} would remove messages while they are migrated",
            "use `limits`, and a stream with another retention that sources this one afterwards",
        )
    return value.choice("limits")


def _texts(value: Value) -> dict[str, str]:
    return {key: member.text() for key, member in value.section().rest()}


def _write_texts(texts: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{quoted(key)}: {quoted(text)}" for key, text in texts.items()) + "}"


def _placement(value: Value) -> dict[str, Any]:
    section = value.section()
    placement: dict[str, Any] = {}
    if cluster := section.get("cluster"):
        placement["cluster"] = cluster.text()
    if tags := section.get("tags"):
        placement["tags"] = [tag.text() for tag in tags.items()]
    section.finish()
    return placement


def _write_placement(placement: Mapping[str, Any]) -> str:
    ways: dict[str, Callable[[Any], str]] = {"cluster": quoted, "tags": _write_list}
    return "{" + ", ".join(f"{key}: {write(placement[key])}" for key, write in ways.items() if key in placement) + "}"


def _write_list(texts: Iterable[str]) -> str:
    return "[" + ", ".join(quoted(text) for text in texts) + "]"


SOURCE: tuple[PlanField, ...] = (
    PlanField("path", _path, name="store", default=_REQUIRED),
    PlanField("nodes", _listed, _write_long_list, default=()),
    PlanField("patterns", _listed, _write_list, "channels", default=()),
    PlanField("generation", default=SourceRef.generation, shown=True),
    _flag("archived", default=False, shown=True, comment="also take messages from .bak slices"),
    _flag("decrypted", default=False, shown=True, comment="read with the encryption key, which is given each time"),
    _count("crc_poly", None, 0xFFFFFFFF),
)

TARGET: tuple[PlanField, ...] = (
    _member("kind", TargetKind),
    PlanField("places", _listed, _write_list, default=()),
    PlanField("version", _version, lambda version: ".".join(map(str, version)), default=None),
)

WAY = _member("way", LoadMethod)
MADE_AT = _time("made_at", "", 0)
#: cluster id of the broker that takes over the streams
BROKER = PlanField("broker", default="")

ORIGIN_HEADERS = _flag("origin_headers", comment="channel, sequence and time of origin as headers")

#: members of a `StreamPlan` except settings, channels and consumers
STREAM: tuple[PlanField, ...] = (
    PlanField("name", partial(_name, noun="stream"), name="stream", default=_REQUIRED),
    PlanField("subjects", partial(_listed, read=partial(_subject, wildcards=True)), _write_list),
    ORIGIN_HEADERS,
    _time("created_ns", "created", _UNSET),
)

#: members of a `ChannelPart` except `FOUND`
PART: tuple[PlanField, ...] = (
    PlanField("channel", default=_REQUIRED),
    PlanField("subject", _subject, default=_REQUIRED),
)

#: what a `ChannelPart` records of the store; the first five are counts and sequences of its channel
FOUND: tuple[PlanField, ...] = (
    *map(_count, ("messages", "first", "last", "bytes", "lost")),
    _time("first_timestamp", "from"),
    _time("last_timestamp", "to"),
    PlanField("fingerprint", write=lambda text: f'"{text}"', default=_REQUIRED),
)

#: members of a `ConsumerPlan` and its `Position` except settings
CONSUMER: tuple[PlanField, ...] = (
    PlanField("name", partial(_name, noun="consumer"), name="consumer", default=_REQUIRED),
    PlanField("channel"),
    PlanField("durable", default="", shown=True),
    PlanField("group", default=""),
    PlanField("client", default=""),
    _count("members", 1),
    _member("kind", ConsumerKind),
    _count("delivered"),
    PlanField("pending", lambda value: value.read(parse_sequences), _write_sequences, default=()),
)

LEFT_OUT: tuple[PlanField, ...] = (
    PlanField("what", default=_REQUIRED),
    PlanField("channel", default=""),
    PlanField("detail", name="why", default=_REQUIRED),
    _count("count", 1),
    _flag("loss", default=False),
)

NOTE: tuple[PlanField, ...] = (
    _member("level", RemarkLevel),
    PlanField("about", default=""),
    PlanField("text", default=_REQUIRED),
    PlanField("remedy", default=""),
)

#: stream settings, in the order of the file
STREAM_FIELDS: tuple[PlanField, ...] = (
    PlanField("description", _description),
    _choice("storage", "file", "memory"),
    PlanField("num_replicas", partial(_number, minimum=1, maximum=5), str, "replicas"),
    PlanField("placement", _placement, _write_placement),
    PlanField("retention", _retention, str),
    _choice("discard", "old", "new"),
    _limit("max_age", read_duration, format_duration, 0),
    _limit("max_msgs", partial(parse_number, maximum=_MAX_I64), str),
    _limit("max_bytes", read_size, format_size),
    _limit("max_msgs_per_subject", partial(parse_number, maximum=_MAX_I64), str),
    _limit("max_msg_size", partial(_size, maximum=_MAX_I32), format_size),
    _limit("max_consumers", partial(parse_number, maximum=_MAX_I32), str),
    PlanField("duplicate_window", partial(_duration, minimum=_SECOND // 10), format_duration),
    _choice("compression", "none", "s2", since=(2, 10)),
    _flag("allow_direct"),
    _flag("allow_rollup_hdrs"),
    _flag("deny_delete"),
    _flag("deny_purge"),
    PlanField("metadata", _texts, _write_texts, since=(2, 10)),
)

#: consumer settings, in the order of the file
CONSUMER_FIELDS: tuple[PlanField, ...] = (
    PlanField("description", _description),
    PlanField("filter_subject", partial(_subject, wildcards=True)),
    PlanField("deliver_subject", _subject),
    PlanField("deliver_group", partial(_name, noun="group")),
    PlanField("ack_wait", partial(_duration, minimum=1), format_duration),
    _limit("max_ack_pending", partial(parse_number, maximum=_MAX_I32), str),
    _limit("max_deliver", partial(parse_number, maximum=_MAX_I32), str, default=-1),
    _choice("deliver_policy", "all", default="all"),
    _choice("ack_policy", "explicit", default="explicit"),
    _choice("replay_policy", "instant", "original", default="instant"),
    PlanField("max_waiting", partial(_number, minimum=1, maximum=_MAX_I32), str),
    PlanField("num_replicas", partial(_number, maximum=5), str, "replicas"),
    PlanField("inactive_threshold", _duration, format_duration),
    PlanField("idle_heartbeat", _duration, format_duration),
    _flag("flow_control"),
    _flag("headers_only"),
)

CONSUMER_DEFAULTS: Mapping[str, Any] = {f.key: f.default for f in CONSUMER_FIELDS if f.default is not _UNSET}


def read_fields(section: PlanSection, fields: Iterable[PlanField]) -> dict[str, Any]:
    """Takes the fields from a section; a missing line has its default."""
    values = {}
    for field in fields:
        value = section.take(field.label) if field.default is _REQUIRED else section.get(field.label)
        if value is not None:
            values[field.key] = field.read(value)
        elif field.default is not _UNSET:
            values[field.key] = field.default
    return values


def read_record(section: PlanSection, fields: Iterable[PlanField]) -> dict[str, Any]:
    """Reads a whole section; an unknown line is an error."""
    values = read_fields(section, fields)
    section.finish()
    return values


def visible(text: str) -> str:
    """Returns a text without characters that could end a comment or hide text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def write_fields(
    fields: Iterable[PlanField],
    values: Mapping[str, Any],
    indent: int = 0,
    comments: Mapping[str, str] | None = None,
    *,
    item: bool = False,
) -> Iterator[str]:
    """Yields the lines of all values that differ from their default, in the order of `fields`.

    `comments` replaces the usual comments, by key. With `item` the lines are an item of a list: the first begins
    with `- `.
    """
    for field in fields:
        if field.key not in values or (values[field.key] == field.default and not field.shown):
            continue
        text = field.write(values[field.key])
        comment = (comments or {}).get(field.key, field.comment)
        start = " " * (indent - 2) + "- " if item else " " * indent
        item = False
        gap = "" if text.startswith("\n") else " "
        yield f"{start}{field.label}:{gap}{text}" + (f"  # {visible(comment)}" if comment else "")
