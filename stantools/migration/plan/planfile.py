"""The plan file: what stands between planning and applying, for people to review and edit.

`planwriter` renders it; here it is written, and read back with whatever people made of it. A value that cannot be is
refused with file and line. What is possible by itself and wrong in the whole (two streams with one subject) is told by
`checks.find_problems`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import StoreUnwritableError
from stantools.migration.plan.document import Section, load
from stantools.migration.plan.document import parse as parse_document
from stantools.migration.plan.fields import (
    BROKER,
    CONSUMER,
    CONSUMER_FIELDS,
    FOUND,
    LEFT_OUT,
    MADE_AT,
    NOTE,
    ORIGIN_HEADERS,
    PART,
    SOURCE,
    STREAM,
    STREAM_FIELDS,
    TARGET,
    WAY,
    read_fields,
    read_record,
)
from stantools.migration.plan.model import (
    ChannelPart,
    ConsumerPlan,
    LeftOut,
    Note,
    Plan,
    Position,
    SourceRef,
    StreamPlan,
    TargetRef,
    created_at,
)
from stantools.migration.plan.planwriter import FORM, derived_filter, render_plan
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
    whole = read_fields(document, (MADE_AT, BROKER, WAY))
    source = SourceRef(**read_record(document.take("source").section(), SOURCE))
    target = _target(document.take("target").section())
    given = document.get("defaults")
    defaults = read_record(given.section(), (ORIGIN_HEADERS, *STREAM_FIELDS)) if given else {}
    streams = tuple(_stream(each, defaults, whole["made_at"]) for each in document.take("streams").sections())
    left_out = tuple(LeftOut(**read_record(each, LEFT_OUT)) for each in _sections(document, "left_out"))
    notes = tuple(Note(**read_record(each, NOTE)) for each in _sections(document, "notes"))
    if "complete" not in document or not document.take("complete").flag():
        raise document.fail(
            "the plan ends early: its last line, `complete: yes`, is missing",
            "plan again, or take the file from a backup",
        )
    document.finish()
    return Plan(source, target, streams=streams, left_out=left_out, notes=notes, **whole)


def _sections(section: Section, key: str) -> list[Section]:
    value = section.get(key)
    return value.sections() if value is not None else []


def _target(section: Section) -> TargetRef:
    target = TargetRef(**read_record(section, TARGET))
    if target != target.without_secrets():
        raise section.take("places").fail(
            "a plan holds no user, password or token of a server", "take it out, and give it when the plan is applied"
        )
    return target


def _stream(section: Section, defaults: Mapping[str, Any], made_at: int) -> StreamPlan:
    settings = {**defaults, **read_fields(section, (*STREAM, *STREAM_FIELDS))}
    name = settings.pop("name")
    channels = section.take("channels")
    parts = tuple(_part(part) for part in channels.sections())
    if not parts:
        raise channels.fail(f"no channel goes into stream {name}", "take the whole stream out of the plan")
    subjects = settings.pop("subjects", tuple(part.subject for part in parts))
    if not subjects:
        raise section.take("subjects").fail(f"stream {name} has no subjects", "list them, or take the line out")
    headers = settings.pop("origin_headers", False)
    born = settings.pop("created_ns", created_at(parts, made_at))
    consumers = tuple(_consumer(each, parts, subjects) for each in _sections(section, "consumers"))
    section.finish()
    return StreamPlan(name, subjects, parts, settings, len(parts) > 1, headers, consumers, born)


def _part(section: Section) -> ChannelPart:
    found = read_record(section.take("found").section(), FOUND)
    return ChannelPart(**read_record(section, PART), **found)


def _consumer(section: Section, parts: tuple[ChannelPart, ...], subjects: tuple[str, ...]) -> ConsumerPlan:
    facts = read_fields(section, CONSUMER)
    if "channel" not in facts:
        facts["channel"] = parts[0].channel if len(parts) == 1 else section.take("channel").text()
    delivered, pending = facts.pop("delivered"), facts.pop("pending")
    if pending and pending[-1] > delivered:
        raise section.take("pending").fail(
            f"{pending[-1]} is pending, but only {delivered} was delivered",
            "take it out of `pending`, or raise `delivered`",
        )
    settings = read_record(section, CONSUMER_FIELDS)
    part = next((part for part in parts if part.channel == facts["channel"]), None)
    if "filter_subject" not in settings and part and (wanted := derived_filter(subjects, part.subject)):
        settings["filter_subject"] = wanted
    return ConsumerPlan(**facts, settings=settings, position=Position.of(delivered, pending))


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
