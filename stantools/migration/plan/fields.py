"""The settings of streams and consumers that a plan may hold: how each is called there, read, and written.

Left out on purpose is what would change what arrives (mirrors, sources, transforms, republishing, per-message
lifetimes) or where a consumer begins: its position says that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stantools.migration.plan.document import Section, Value, quoted
from stantools.migration.plan.names import name_problem, subject_problem
from stantools.migration.plan.units import (
    format_size,
    parse_duration,
    parse_number,
    parse_size,
)
from stantools.notation import format_duration

NO_LIMIT = "unlimited"
_MAX_I64 = (1 << 63) - 1
_MAX_I32 = (1 << 31) - 1
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Field:
    """One setting.

    Attributes:
        key: Its name in the JetStream configuration.
        read: Makes a configuration value of what stands in a file; raises UsageError.
        write: Makes YAML of a configuration value.
        name: Its name in a plan, where that is another one.
        since: The first server version that knows it.
    """

    key: str
    read: Callable[[Value], Any]
    write: Callable[[Any], str]
    name: str = ""
    since: tuple[int, int] = (2, 2)

    @property
    def label(self) -> str:
        """Its name in a plan."""
        return self.name or self.key


def _number(value: Value, least: int = 0, most: int = _MAX_I64) -> int:
    number = value.read(parse_number)
    if not least <= number <= most:
        raise value.wrong(f"a number from {least} to {most}")
    return number


def _limited(value: Value, parse: Callable[[str], int], none: int) -> int:
    """Reads a limit; 0 and -1 mean none too, as in streaming and in JetStream."""
    text = value.text()
    return none if text in (NO_LIMIT, "none", "-1") else value.read(parse) or none


def _size(text: str, most: int) -> int:
    size = parse_size(text)
    if size > most:
        raise ValueError(f"at most {most} bytes")
    return size


def _limit(key: str, parse: Callable[[str], int], write: Callable[[int], str], none: int = -1) -> Field:
    return Field(key, lambda value: _limited(value, parse, none), lambda v: NO_LIMIT if v == none else write(v))


def _flag(key: str) -> Field:
    return Field(key, Value.flag, lambda v: "yes" if v else "no")


def _choice(key: str, *possible: str, since: tuple[int, int] = (2, 2)) -> Field:
    return Field(key, lambda value: value.choice(*possible), str, since=since)


def _duration(value: Value, least: int = 0) -> int:
    duration = value.read(parse_duration)
    if duration < least:
        raise value.wrong(f"at least {format_duration(least)}")
    return duration


def _description(value: Value) -> str:
    text = value.text()
    if len(text.encode("utf-8", "surrogateescape")) > 4096:
        raise value.fail("a description must not be longer than 4096 bytes")
    return text


def _subject(value: Value, *, wildcards: bool = False) -> str:
    text = value.text()
    if problem := subject_problem(text, wildcards=wildcards):
        raise value.fail(problem)
    return text


def _name(value: Value) -> str:
    text = value.text()
    if problem := name_problem(text):
        raise value.fail(f"{text!r}: {problem}")
    return text


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
    parts = []
    if "cluster" in placement:
        parts.append(f"cluster: {quoted(placement['cluster'])}")
    if "tags" in placement:
        parts.append(f"tags: {write_list(placement['tags'])}")
    return "{" + ", ".join(parts) + "}"


def write_list(texts: list[str] | tuple[str, ...]) -> str:
    """Writes texts as a YAML list on one line."""
    return "[" + ", ".join(quoted(text) for text in texts) + "]"


#: What a plan may set for a stream, in the order of the file.
STREAM_FIELDS: tuple[Field, ...] = (
    Field("description", _description, quoted),
    _choice("storage", "file", "memory"),
    Field("num_replicas", partial(_number, least=1, most=5), str, "replicas"),
    Field("placement", _placement, _write_placement),
    Field("retention", _retention, str),
    _choice("discard", "old", "new"),
    _limit("max_age", parse_duration, format_duration, 0),
    _limit("max_msgs", partial(parse_number, most=_MAX_I64), str),
    _limit("max_bytes", parse_size, format_size),
    _limit("max_msgs_per_subject", partial(parse_number, most=_MAX_I64), str),
    _limit("max_msg_size", partial(_size, most=_MAX_I32), format_size),
    _limit("max_consumers", partial(parse_number, most=_MAX_I32), str),
    Field("duplicate_window", partial(_duration, least=_SECOND // 10), format_duration),
    _choice("compression", "none", "s2", since=(2, 10)),
    _flag("allow_direct"),
    _flag("allow_rollup_hdrs"),
    _flag("deny_delete"),
    _flag("deny_purge"),
    Field("metadata", _texts, _write_texts, since=(2, 10)),
)

#: What a plan may set for a consumer.
CONSUMER_FIELDS: tuple[Field, ...] = (
    Field("description", _description, quoted),
    Field("filter_subject", partial(_subject, wildcards=True), quoted),
    Field("deliver_subject", _subject, quoted),
    Field("deliver_group", _name, quoted),
    Field("ack_wait", partial(_duration, least=1), format_duration),
    _limit("max_ack_pending", partial(parse_number, most=_MAX_I32), str),
    _limit("max_deliver", partial(parse_number, most=_MAX_I32), str),
    _choice("deliver_policy", "all"),
    _choice("ack_policy", "explicit"),
    _choice("replay_policy", "instant", "original"),
    Field("max_waiting", partial(_number, least=1, most=_MAX_I32), str),
    Field("num_replicas", partial(_number, most=5), str, "replicas"),
    Field("inactive_threshold", _duration, format_duration),
    Field("idle_heartbeat", _duration, format_duration),
    _flag("flow_control"),
    _flag("headers_only"),
)


def read_settings(section: Section, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Takes the settings that stand in a section.

    Raises:
        UsageError: One has no value that it can have.
    """
    settings = {}
    for field in fields:
        value = section.get(field.label)
        if value is not None:
            settings[field.key] = field.read(value)
    return settings
