"""The lines of a plan: how each is read and written.

A record of `migration_plan` is its own declaration: `lines` derives a line from every field whose type has a codec,
with the field's name and default; `Annotated` adds what differs. The settings of streams and consumers are tables of
the same lines, in the order of the file. Two kinds of stream settings are left out on purpose: those that change the
messages (mirrors, sources, transforms, republishing, per-message lifetimes), and the start of a consumer, which its
position defines.

Values are written for people and exact in both directions. A parser raises ValueError with the expected form.

    90s, 1d12h, 1.5s     durations: nanoseconds; written by `notation.format_duration`
    4096, 64KB, 1GB      sizes: bytes, in powers of 1024 as in the streaming server
    2020-09-13T12:26:40.000000001Z
    1, 3, 5-7            sequences

Nothing here imports YAML: the help of a verb loads the records.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints

from stantools import notation
from stantools.nats.stream_names import name_problem, subject_problem
from stantools.notation import describe_ranges, format_duration, format_time
from stantools.streamfiles.stream_config import (
    BOOL,
    BYTES,
    CONSUMER_MEMBERS,
    MAP,
    NANOSECONDS,
    STREAM_MEMBERS,
    ConfigMember,
)

if TYPE_CHECKING:
    from stantools.migration.plan.document import PlanSection, Value

_Record = TypeVar("_Record")

_SIZES = {"TB": 1 << 40, "GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
_NUMBER = re.compile(r"\d{1,3}(?:_?\d{3}){0,6}|\d{1,20}", re.ASCII)
_SEQUENCES = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)

#: limit of sequences in one set; more are taken for a typing mistake
SEQUENCE_LIMIT = 4_000_000
NO_LIMIT = "unlimited"
WIDTH = 110
_MAX_I64 = (1 << 63) - 1
_MAX_U64 = (1 << 64) - 1


# Values as text.


def read_duration(text: str, minimum: int = 0) -> int:
    try:
        duration = notation.parse_duration(text)
    except ValueError:
        raise ValueError("a duration such as 30s, 72h or 1d12h") from None
    if duration < minimum:
        raise ValueError(f"at least {format_duration(minimum)}")
    if duration > _MAX_I64:
        raise ValueError("a duration of at most 292 years")
    return duration


def format_size(count: int) -> str:
    """Formats a number of bytes exactly: `64MB`, `1000000KB`, `4097`."""
    for unit, size in _SIZES.items():
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def read_size(text: str, maximum: int = _MAX_I64) -> int:
    try:
        count = notation.parse_size(text)
    except ValueError:
        raise ValueError("a number of bytes such as 4096, 64MB or 1GB") from None
    if count > maximum:
        raise ValueError(f"at most {maximum} bytes")
    return count


def about(count: int) -> str:
    """Formats a number of bytes for people, rounded: `1.2 MB`."""
    for unit, size in _SIZES.items():
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def parse_number(text: str, minimum: int = 0, maximum: int = _MAX_U64) -> int:
    """Reads a number, with or without `_` between groups of three digits."""
    if not _NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
        bounds = f"a number from {minimum} to {maximum}"
        raise ValueError(bounds if minimum or maximum < _MAX_I64 else "a number such as 1000000")
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
    from stantools.inspection.subscribers import as_ranges

    return describe_ranges(as_ranges(list(sequences)), sys.maxsize)


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


def _parse_version(text: str) -> tuple[int, ...]:
    if not (match := _VERSION.fullmatch(text)):
        raise ValueError("a version such as 2.10.26")
    return tuple(map(int, match.groups()))


_WORDS = frozenset(("~", "null", "y", "n", "none", "true", "false", "yes", "no", "on", "off"))
_PLAIN_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/$")
_PLAIN = _PLAIN_START | frozenset("0123456789.-+=()")


def quoted(text: str) -> str:
    """Returns a text as YAML: plain if it cannot be misread, else in double quotes.

    Text that is not UTF-8 (surrogate escapes, as in file names) becomes base64.
    """
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return f"!!binary {base64.b64encode(os.fsencode(text)).decode()}"
    if text and text[0] in _PLAIN_START and _PLAIN.issuperset(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _write_list(texts: Iterable[str]) -> str:
    return "[" + ", ".join(map(quoted, texts)) + "]"


def _write_long_list(texts: Iterable[str]) -> str:
    return "".join(f"\n    - {quoted(text)}" for text in texts)


def _write_texts(texts: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{quoted(key)}: {quoted(text)}" for key, text in texts.items()) + "}"


def _write_sequences(sequences: Sequence[int]) -> str:
    text = format_sequences(sequences)
    if len(text) <= WIDTH:
        return text
    parts = textwrap.wrap(text, WIDTH - 5, break_long_words=False, break_on_hyphens=False)
    return ">-" + "".join(f"\n      {part}" for part in parts)


# Codecs.


class Codec(NamedTuple):
    read: Callable[[Value], Any]  #: value from YAML; raises UsageError
    write: Callable[[Any], str] = quoted  #: YAML of a value


def _parsed(parse: Callable[[str], Any], write: Callable[[Any], str] = str) -> Codec:
    return Codec(lambda value: value.read(parse), write)


def _checked(problem: Callable[[str], str]) -> Codec:
    """A text; `problem` returns the reason why it is not allowed, else ""."""

    def read(value: Value) -> str:
        text = value.text()
        if reason := problem(text):
            raise value.fail(reason)
        return text

    return Codec(read)


def _listed(item: Codec, write: Callable[[Any], str] = _write_list) -> Codec:
    return Codec(lambda value: tuple(item.read(each) for each in value.items()), write)


def number(minimum: int, maximum: int) -> Codec:
    return _parsed(partial(parse_number, minimum=minimum, maximum=maximum))


def choice(*possible: str) -> Codec:
    return Codec(lambda value: value.choice(*possible), str)


def name(noun: str) -> Codec:
    def problem(text: str) -> str:
        reason = name_problem(text)
        return reason and f"{text!r} cannot be the name of a {noun}: {reason}"

    return _checked(problem)


def _limit(parse: Callable[[str], int], write: Callable[[int], str] = str, none: int = -1) -> Codec:
    """A limit; 0 and -1 also mean "no limit", as in streaming and in JetStream."""

    def read(value: Value) -> int:
        return none if value.text() in (NO_LIMIT, "none", "-1") else value.read(parse) or none

    return Codec(read, lambda limit: NO_LIMIT if limit == none else write(limit))


def _inline(fields: Sequence[PlanField]) -> Codec:
    return Codec(
        lambda value: read_record(value.section(), fields),
        lambda values: "{" + ", ".join(write_fields(fields, values)) + "}",
    )


def _retention(value: Value) -> str:
    if value.text() in ("interest", "workqueue"):
        raise value.fail(
            f"retention {value.text()!r} would remove messages while they are migrated",
            "use `limits`, and a stream with another retention that sources this one afterwards",
        )
    return value.choice("limits")


TEXT = Codec(lambda value: value.text())
FLAG = Codec(lambda value: value.flag(), lambda flag: "yes" if flag else "no")
TIME = _parsed(parse_time, lambda timestamp: quoted(format_time(timestamp)))
PATH = _checked(lambda text: "the path of a store holds no zero byte" if "\0" in text else "")
SUBJECT = _checked(subject_problem)
PATTERN = _checked(partial(subject_problem, wildcards=True))
PATTERNS = _listed(PATTERN)
LONG_LIST = _listed(TEXT, _write_long_list)
CRC_POLYNOMIAL = number(0, (1 << 32) - 1)
#: text that is never plain
IN_QUOTES = Codec(TEXT.read, lambda text: f'"{text}"')
_DESCRIPTION = _checked(
    lambda text: (
        "a description must not be longer than 4096 bytes"
        if len(text.encode("utf-8", "surrogateescape")) > 4096
        else ""
    )
)
_TAGS = Codec(lambda value: [each.text() for each in value.items()], _write_list)
_TEXTS = Codec(lambda value: {key: each.text() for key, each in value.section().rest()}, _write_texts)

#: codecs by the type of a record's field
_BY_TYPE: Mapping[Any, Codec] = {
    str: TEXT,
    bool: FLAG,
    int: _parsed(parse_number),
    tuple[str, ...]: _listed(TEXT),
    tuple[int, ...]: _parsed(parse_sequences, _write_sequences),
    tuple[int, int, int]: _parsed(_parse_version, lambda version: ".".join(map(str, version))),
}


# Lines.


class NoDefault(enum.Enum):
    UNSET = enum.auto()  #: in a record, that of the class, or REQUIRED; else ABSENT
    REQUIRED = enum.auto()  #: a missing line is an error
    ABSENT = enum.auto()  #: a missing line has no value


@dataclass(frozen=True)
class PlanField:
    """A line. In the `Annotated` type of a record's field, only what name, type and default do not say."""

    name: str = ""  #: name in a plan
    codec: Codec = TEXT
    key: str = ""  #: attribute, or name in the JetStream configuration, if it differs from `name`
    default: Any = NoDefault.UNSET  #: value of a missing line; a default is not written
    shown: bool = False  #: the default is written as well
    comment: str = ""  #: comment at the end of the line

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.name)


REQUIRED = PlanField(default=NoDefault.REQUIRED)
#: a field that follows from others, and has no line
DERIVED = PlanField("derived")


@cache
def lines(record: Any) -> tuple[PlanField, ...]:
    """Returns the lines of a record's class: its fields whose type has a codec, in their order."""
    found, hints = [], get_type_hints(record, include_extras=True)
    for each in dataclasses.fields(record):
        kind, mark = hints[each.name], PlanField()
        if hasattr(kind, "__metadata__"):
            kind, mark = get_args(kind)
        codec = _codec_of(kind)
        if mark is DERIVED or codec is None:
            continue
        codec, default = codec if mark.codec is TEXT else mark.codec, mark.default
        if default is NoDefault.UNSET:
            default = NoDefault.REQUIRED if each.default is dataclasses.MISSING else each.default
        found.append(replace(mark, name=mark.name or each.name, key=each.name, codec=codec, default=default))
    return tuple(found)


def _codec_of(kind: Any) -> Codec | None:
    if isinstance(kind, UnionType):  # with None
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return Codec(lambda value: kind(value.choice(*kind)), str)
    return _BY_TYPE.get(kind)


def _member_codec(member: ConfigMember) -> Codec:
    if member.choices:
        return choice(*member.choices)
    if member.json_type == BOOL:
        return FLAG
    if member.json_type == MAP:
        return _TEXTS
    least, most = int(member.least or 0), int(member.most or _MAX_I64)
    read: Callable[[str], int] = partial(parse_number, minimum=least, maximum=most)
    write: Callable[[int], str] = str
    if member.unit == NANOSECONDS:
        read, write = partial(read_duration, minimum=least), format_duration
    elif member.unit == BYTES:
        read, write = partial(read_size, maximum=most), format_size
    return _parsed(read, write) if member.unlimited is None else _limit(read, write, member.unlimited)


def _settings(members: Mapping[str, ConfigMember], *chosen: str | PlanField) -> tuple[PlanField, ...]:
    """Returns the lines of members of a configuration, by name; a whole line differs from its member on purpose."""
    return tuple(
        PlanField(each.removeprefix("num_"), _member_codec(members[each]), each) if isinstance(each, str) else each
        for each in chosen
    )


#: stream settings, in the order of the file
STREAM_FIELDS = _settings(
    STREAM_MEMBERS,
    PlanField("description", _DESCRIPTION),
    "storage",
    "num_replicas",
    PlanField("placement", _inline((PlanField("cluster"), PlanField("tags", _TAGS)))),
    PlanField("retention", Codec(_retention, str)),
    "discard",
    "max_age",
    "max_msgs",
    "max_bytes",
    "max_msgs_per_subject",
    "max_msg_size",
    "max_consumers",
    "duplicate_window",
    "compression",
    "allow_direct",
    "allow_rollup_hdrs",
    "deny_delete",
    "deny_purge",
    "metadata",
)

#: consumer settings, in the order of the file
CONSUMER_FIELDS = _settings(
    CONSUMER_MEMBERS,
    PlanField("description", _DESCRIPTION),
    PlanField("filter_subject", PATTERN),
    PlanField("deliver_subject", SUBJECT),
    PlanField("deliver_group", name("group")),
    "ack_wait",
    "max_ack_pending",
    PlanField("max_deliver", _member_codec(CONSUMER_MEMBERS["max_deliver"]), default=-1),
    PlanField("deliver_policy", choice("all"), default="all"),
    PlanField("ack_policy", choice("explicit"), default="explicit"),
    PlanField("replay_policy", _member_codec(CONSUMER_MEMBERS["replay_policy"]), default="instant"),
    "max_waiting",
    "num_replicas",
    "inactive_threshold",
    "idle_heartbeat",
    "flow_control",
    "headers_only",
)

CONSUMER_DEFAULTS: Mapping[str, Any] = {
    field.key: field.default for field in CONSUMER_FIELDS if not isinstance(field.default, NoDefault)
}


def read_fields(section: PlanSection, fields: Iterable[PlanField]) -> dict[str, Any]:
    """Takes the fields from a section; a missing line has its default."""
    values = {}
    for field in fields:
        value = section.take(field.name) if field.default is NoDefault.REQUIRED else section.get(field.name)
        if value is not None:
            values[field.key] = field.codec.read(value)
        elif not isinstance(field.default, NoDefault):
            values[field.key] = field.default
    return values


def read_record(section: PlanSection, fields: Iterable[PlanField]) -> dict[str, Any]:
    """Reads a whole section; an unknown line is an error."""
    values = read_fields(section, fields)
    section.finish()
    return values


def read_as(record: Callable[..., _Record], section: PlanSection) -> _Record:
    return record(**read_record(section, lines(record)))


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
        text = field.codec.write(values[field.key])
        comment = (comments or {}).get(field.key, field.comment)
        start = " " * (indent - 2) + "- " if item else " " * indent
        item = False
        gap = "" if text.startswith("\n") else " "
        yield f"{start}{field.name}:{gap}{text}" + (f"  # {visible(comment)}" if comment else "")
