"""The plan file: what stands between planning and applying, for people to review and edit.

`planwriter` renders it; here it is written, and read back with whatever people made of it. A value that cannot be is
refused with file and line. What is possible by itself and wrong in the whole (two streams with one subject) is told by
`checks.find_problems`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stantools.errors import StoreUnwritableError
from stantools.migration.plan.consumers import CONSUMER_DEFAULTS
from stantools.migration.plan.document import Section, Value, load
from stantools.migration.plan.document import parse as parse_document
from stantools.migration.plan.fields import CONSUMER_FIELDS, STREAM_FIELDS, read_settings
from stantools.migration.plan.model import (
    ChannelPart,
    ConsumerKind,
    ConsumerPlan,
    LeftOut,
    Level,
    Note,
    Plan,
    Position,
    SourceRef,
    StreamPlan,
    TargetKind,
    TargetRef,
    Way,
    created_at,
)
from stantools.migration.plan.names import name_problem, subject_problem
from stantools.migration.plan.planwriter import FORM, HEADERS, derived_filter, render_plan
from stantools.migration.plan.units import parse_number, parse_sequences, parse_time
from stantools.store.durable import replace_file

_WHAT = "a migration plan"


def read_plan(path: Path) -> Plan:
    """Reads a plan file.

    Raises:
        StoreUnreadableError: It cannot be read.
        UsageError: It is wrong; says in which line, and what was expected.
    """
    return _plan(load(path, _WHAT))


def parse_plan(text: str, path: Path) -> Plan:
    """Reads a plan from the text of its file; see `read_plan`."""
    return _plan(parse_document(text.encode("utf-8", "surrogateescape"), path, _WHAT))


def _plan(document: Section) -> Plan:
    if "plan" not in document:
        raise document.fail(f"`plan: {FORM}` is missing: this is not {_WHAT}", "name the plan file")
    form = document.take("plan")
    if form.text() != str(FORM):
        raise form.wrong(f"{FORM}", "it was written by another version of stantools: plan again with this one")
    made_at = document.read(parse_time, "made_at", 0)
    source = _source(document.take("source").section())
    target = _target(document.take("target").section())
    way = Way(document.take("way").choice(*Way))
    given = document.get("defaults")
    defaults: dict[str, Any] = {}
    headers = False
    if given is not None:
        section = given.section()
        defaults = read_settings(section, STREAM_FIELDS)
        headers = _flag(section, HEADERS)
        section.finish()
    streams = tuple(_stream(section, defaults, headers, made_at) for section in document.take("streams").sections())
    left_out = tuple(_left_out(section) for section in _sections(document, "left_out"))
    notes = tuple(_note(section) for section in _sections(document, "notes"))
    if "complete" not in document or not _flag(document, "complete"):
        raise document.fail(
            "the plan ends early: its last line, `complete: yes`, is missing",
            "plan again, or take the file from a backup",
        )
    document.finish()
    return Plan(source, target, way, streams, left_out, notes, made_at)


def _sections(section: Section, key: str) -> list[Section]:
    value = section.get(key)
    return value.sections() if value is not None else []


def _text(section: Section, key: str) -> str:
    value = section.get(key)
    return value.text() if value is not None else ""


def _flag(section: Section, key: str) -> bool:
    value = section.get(key)
    return value.flag() if value is not None else False


def _texts(value: Value | None) -> tuple[str, ...]:
    return tuple(item.text() for item in value.items()) if value is not None else ()


def _source(section: Section) -> SourceRef:
    store = section.take("store")
    path = store.text()
    if "\0" in path:
        raise store.wrong("the path of a store")
    source = SourceRef(
        path,
        section.read(lambda text: parse_number(text, 0xFFFFFFFF), "crc_poly", None),
        _texts(section.get("channels")),
        _text(section, "generation") or SourceRef.generation,
        _flag(section, "archived"),
        _flag(section, "decrypted"),
        _texts(section.get("nodes")),
    )
    section.finish()
    return source


def _target(section: Section) -> TargetRef:
    kind = TargetKind(section.take("kind").choice(*TargetKind))
    places = section.get("places")
    target = TargetRef(kind, _texts(places), section.read(_version, "version", None))
    if places is not None and target != target.without_secrets():
        raise places.fail(
            "a plan holds no user, password or token of a server", "take it out, and give it when the plan is applied"
        )
    section.finish()
    return target


def _version(text: str) -> tuple[int, int, int]:
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise ValueError("a version such as 2.10.26")
    major, minor, patch = map(int, parts)
    return major, minor, patch


def _name(section: Section, key: str) -> str:
    value = section.take(key)
    name = value.text()
    if problem := name_problem(name):
        raise value.fail(f"{name!r} cannot be the name of a {key}: {problem}")
    return name


def _stream(section: Section, defaults: dict[str, Any], origin_headers: bool, made_at: int) -> StreamPlan:
    name = _name(section, "stream")
    channels = section.take("channels")
    parts = tuple(_part(part) for part in channels.sections())
    if not parts:
        raise channels.fail(f"no channel goes into stream {name}", "take the whole stream out of the plan")
    listed = section.get("subjects")
    subjects = tuple(part.subject for part in parts)
    if listed is not None:
        subjects = tuple(_subject(item, wildcards=True) for item in listed.items())
        if not subjects:
            raise listed.fail(f"stream {name} has no subjects", "list them, or take the line out")
    headers = section.get(HEADERS)
    if headers is not None:
        origin_headers = headers.flag()
    born = section.read(parse_time, "created", created_at(parts, made_at))
    settings = defaults | read_settings(section, STREAM_FIELDS)
    consumers = tuple(_consumer(each, parts, subjects) for each in _sections(section, "consumers"))
    section.finish()
    return StreamPlan(name, subjects, parts, settings, len(parts) > 1, origin_headers, consumers, born)


def _subject(value: Value, *, wildcards: bool = False) -> str:
    subject = value.text()
    if problem := subject_problem(subject, wildcards=wildcards):
        raise value.fail(problem)
    return subject


def _part(section: Section) -> ChannelPart:
    channel = section.take("channel").text()
    subject = section.take("subject")
    found = section.take("found").section()
    section.finish()
    numbers = {key: found.read(parse_number, key) for key in ("messages", "first", "last", "bytes", "lost")}
    part = ChannelPart(
        channel,
        _subject(subject),
        first_timestamp=found.read(parse_time, "from"),
        last_timestamp=found.read(parse_time, "to"),
        fingerprint=found.take("fingerprint").text(),
        **numbers,
    )
    found.finish()
    return part


def _consumer(section: Section, parts: tuple[ChannelPart, ...], subjects: tuple[str, ...]) -> ConsumerPlan:
    name = _name(section, "consumer")
    given = section.get("channel") if len(parts) == 1 else section.take("channel")
    channel = given.text() if given is not None else parts[0].channel
    kind = ConsumerKind(section.take("kind").choice(*ConsumerKind))
    delivered = section.read(parse_number, "delivered")
    pending = section.get("pending")
    waiting = pending.read(parse_sequences) if pending is not None else ()
    if pending is not None and waiting and waiting[-1] > delivered:
        raise pending.fail(
            f"{waiting[-1]} is pending, but only {delivered} was delivered",
            "take it out of `pending`, or raise `delivered`",
        )
    settings = CONSUMER_DEFAULTS | read_settings(section, CONSUMER_FIELDS)
    part = next((part for part in parts if part.channel == channel), None)
    if "filter_subject" not in settings and part and (wanted := derived_filter(subjects, part.subject)):
        settings["filter_subject"] = wanted
    consumer = ConsumerPlan(
        name,
        kind,
        channel,
        _text(section, "durable"),
        _text(section, "client"),
        _text(section, "group"),
        settings,
        Position.of(delivered, waiting),
        section.read(parse_number, "members", 1),
    )
    section.finish()
    return consumer


def _left_out(section: Section) -> LeftOut:
    left = LeftOut(
        section.take("what").text(),
        _text(section, "channel"),
        section.take("why").text(),
        section.read(parse_number, "count", 1),
        _flag(section, "loss"),
    )
    section.finish()
    return left


def _note(section: Section) -> Note:
    note = Note(
        Level(section.take("level").choice(*Level)),
        _text(section, "about"),
        section.take("text").text(),
        _text(section, "remedy"),
    )
    section.finish()
    return note


def write_plan(path: Path, plan: Plan, go_on: Sequence[str] | None = None) -> None:
    """Writes a plan; the file has the old or the new content, never a part.

    Args:
        path: The file.
        plan: The plan.
        go_on: Commands that are the next steps, for the comment at the top; by default the usual ones.

    Raises:
        StoreUnwritableError: It cannot be written; an old file is as it was.
    """
    if not path.parent.is_dir():
        raise StoreUnwritableError(
            f"{path}: there is no directory {path.parent}", "create the directory that is to hold it first"
        )
    if go_on is None:
        name = shlex.quote(str(path))
        go_on = (f"stantools migrate apply {name}", f"stantools migrate verify {name}")
    replace_file(path, render_plan(plan, go_on).encode())
