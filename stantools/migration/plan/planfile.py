"""The plan file: YAML for review and edit between planning and applying.

Settings that most streams share stand once, under `defaults`. Derived values (subjects of the channels, filters, the
acknowledgement floor) are not repeated, so that an edit is made in one place.

The reader refuses an impossible value with file and line. Values that are possible but contradict each other (two
streams with one subject) are found by `checks.find_problems`.
"""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools import __version__
from stantools.errors import StoreUnwritableError
from stantools.migration.plan.checks import find_problems
from stantools.migration.plan.document import PlanSection, load
from stantools.migration.plan.fields import (
    CONSUMER_DEFAULTS,
    CONSUMER_FIELDS,
    STREAM_FIELDS,
    WIDTH,
    about,
    lines,
    quoted,
    read_as,
    read_fields,
    read_record,
    visible,
    write_fields,
)
from stantools.migration.plan.migration_plan import (
    ChannelPart,
    ConsumerPlan,
    ConsumerProgress,
    MigrationPlan,
    OmittedPart,
    Remark,
    RemarkLevel,
    SourceRef,
    StreamPlan,
    TargetRef,
    created_at,
)
from stantools.migration.plan.remarks import summary
from stantools.notation import and_more, counted, format_time
from stantools.store.durable import replace_file

_WHAT = "a migration plan"
_REMEDY = "name the file that `stantools migrate plan STORE` wrote, FOLDER-STORE.migration.yaml"
_WAY, *_ABOUT = lines(MigrationPlan)
_STREAM = lines(StreamPlan)
_ORIGIN_HEADERS = next(field for field in _STREAM if field.key == "origin_headers")
_PART, _FOUND = lines(ChannelPart)[:2], lines(ChannelPart)[2:]
_CONSUMER = (*lines(ConsumerPlan), *lines(ConsumerProgress))


def read_plan(path: Path) -> MigrationPlan:
    document = load(path, _WHAT, _REMEDY)
    if "plan" not in document:
        raise document.fail(f"`plan: {FORM}` is missing: this is not {_WHAT}", "name the plan file")
    form = document.take("plan")
    if form.text() != str(FORM):
        raise form.wrong(f"{FORM}", "it was written by another version of stantools: plan again with this one")
    whole = read_fields(document, lines(MigrationPlan))
    source = read_as(SourceRef, document.take("source").section())
    target = _read_target(document.take("target").section())
    given = document.get("defaults")
    defaults = read_record(given.section(), (_ORIGIN_HEADERS, *STREAM_FIELDS)) if given else {}
    streams = tuple(_read_stream(each, defaults, whole["made_at"]) for each in document.take("streams").sections())
    left_out = tuple(read_as(OmittedPart, each) for each in _sections(document, "left_out"))
    notes = tuple(read_as(Remark, each) for each in _sections(document, "notes"))
    if "complete" not in document or not document.take("complete").flag():
        raise document.fail(
            "the plan ends early: its last line, `complete: yes`, is missing",
            "plan again, or take the file from a backup",
        )
    document.finish()
    return MigrationPlan(source, target, streams=streams, left_out=left_out, notes=notes, **whole)


def _sections(section: PlanSection, key: str) -> list[PlanSection]:
    value = section.get(key)
    return value.sections() if value is not None else []


def _read_target(section: PlanSection) -> TargetRef:
    target = read_as(TargetRef, section)
    if target != target.without_secrets():
        raise section.take("places").fail(
            "a plan holds no user, password or token of a server", "remove it, and give it when the plan is applied"
        )
    return target


def _read_stream(section: PlanSection, defaults: Mapping[str, Any], made_at: int) -> StreamPlan:
    settings = {**defaults, **read_fields(section, (*_STREAM, *STREAM_FIELDS))}
    name = settings.pop("name")
    channels = section.take("channels")
    parts = tuple(_read_part(part) for part in channels.sections())
    if not parts:
        raise channels.fail(f"stream {name} has no channel", "remove the whole stream from the plan")
    subjects = settings.pop("subjects", tuple(part.subject for part in parts))
    if not subjects:
        raise section.take("subjects").fail(f"stream {name} has no subjects", "list them, or remove the line")
    headers = settings.pop("origin_headers", False)
    born = settings.pop("created_ns", created_at(parts, made_at))
    consumers = tuple(_read_consumer(each, parts, subjects) for each in _sections(section, "consumers"))
    section.finish()
    return StreamPlan(name, subjects, parts, settings, len(parts) > 1, headers, consumers, born)


def _read_part(section: PlanSection) -> ChannelPart:
    found = read_record(section.take("found").section(), _FOUND)
    return ChannelPart(**read_record(section, _PART), **found)


def _read_consumer(section: PlanSection, parts: tuple[ChannelPart, ...], subjects: tuple[str, ...]) -> ConsumerPlan:
    facts = read_fields(section, _CONSUMER)
    if "channel" not in facts:
        facts["channel"] = parts[0].channel if len(parts) == 1 else section.take("channel").text()
    delivered, pending = facts.pop("delivered"), facts.pop("pending")
    if pending and pending[-1] > delivered:
        raise section.take("pending").fail(
            f"{pending[-1]} is pending, but `delivered` is only {delivered}",
            "remove it from `pending`, or raise `delivered`",
        )
    settings = read_record(section, CONSUMER_FIELDS)
    part = next((part for part in parts if part.channel == facts["channel"]), None)
    if "filter_subject" not in settings and part and (wanted := derived_filter(subjects, part.subject)):
        settings["filter_subject"] = wanted
    return ConsumerPlan(**facts, settings=settings, position=ConsumerProgress.of(delivered, pending))


def write_plan(path: Path, plan: MigrationPlan) -> None:
    """Writes a plan atomically, with the next steps as commands at its top."""
    if not path.parent.is_dir():
        raise StoreUnwritableError(f"{path}: the directory {path.parent} does not exist", "create the directory first")
    name = shlex.quote(str(path))
    next_commands = (f"stantools migrate apply {name}", f"stantools migrate verify {name}")
    replace_file(path, render_plan(plan, next_commands).encode())


#: version of the form; a reader refuses others
FORM = 1

_NOTES_ON_TOP = 20
_OWN = ("description", "metadata")

_ADVICE = (
    "What may be changed: names of streams and consumers, subjects, every setting; streams, consumers and channels may "
    "be removed, and channels moved to another stream. `found` and `source` record what the store held, so that "
    "a store that has changed since is noticed: leave them as they are.",
    "Durations are written as 30s, 72h or 1d12h, sizes as 4096, 64MB or 1GB in powers of 1024, and no limit as "
    "`unlimited`.",
    f"Settings of streams: {', '.join(field.name for field in STREAM_FIELDS)}.",
    f"Settings of consumers: {', '.join(f.name for f in CONSUMER_FIELDS if f.key not in CONSUMER_DEFAULTS)}.",
)


def render_plan(plan: MigrationPlan, next_commands: Sequence[str] = ()) -> str:
    """Returns the text of a plan file; `next_commands` are for the comment at its top."""
    defaults = _defaults(plan.streams)
    blocks = [
        _header(plan, next_commands),
        [f"plan: {FORM}", *write_fields(_ABOUT, vars(plan))],
        ["source:", *write_fields(lines(SourceRef), vars(plan.source), 2)],
        _target(plan),
    ]
    if defaults:
        usual = write_fields((*STREAM_FIELDS, _ORIGIN_HEADERS), defaults, 2)
        blocks.append(["# Settings of every stream, unless the stream sets them itself.", "defaults:", *usual])
    if plan.streams:
        blocks.append(["streams:"])
        blocks += [_stream(stream, defaults, plan.made_at) for stream in plan.streams]
    else:
        blocks.append(["streams: []"])
    omitted = "# Parts of the store that are not migrated, and why. For information only."
    blocks.append(_remarks("left_out", omitted, plan.left_out))
    blocks.append(_remarks("notes", "# Remarks of the planner. For information only.", plan.notes))
    blocks.append(["# The last line; without it the file is incomplete.", "complete: yes"])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _header(plan: MigrationPlan, next_commands: Sequence[str]) -> list[str]:
    made = f" on {format_time(plan.made_at)[:19]}Z" if plan.made_at else ""
    channels = sum(len(stream.parts) for stream in plan.streams)
    lines = [
        "Plan for the migration of a NATS Streaming file store to JetStream.",
        f"Made by stantools {__version__}{made}; nothing has been changed anywhere yet.",
        "",
        f"{counted(channels, 'channel')} into {counted(len(plan.streams), 'stream')}: "
        f"{counted(plan.messages, 'message')}, {about(plan.bytes)} of payload, {counted(plan.consumers, 'consumer')}.",
    ]
    if plan.lost:
        lines.append(f"ALREADY MISSING: {counted(plan.lost, 'message')}, damaged or lost in the store.")
    if plan.left_out:
        lines.append(f"Not migrated (see `left_out` at the end): {summary(plan.left_out)}.")
    found = find_problems(plan)
    lines += _listed("PROBLEMS that must be settled before it can be applied:", found, RemarkLevel.PROBLEM)
    lines += _listed("Warnings:", [*found, *plan.notes], RemarkLevel.WARNING)
    if hints := sum(note.level is RemarkLevel.INFO for note in plan.notes):
        lines.append(f"See also {counted(hints, 'remark')} under `notes` at the end.")
    if next_commands:
        lines += ["", "To go on:", *(f"    {command}" for command in next_commands)]
    lines += ["", *_ADVICE]
    return [f"# {line}".rstrip() for line in _wrap(lines)]


def _listed(title: str, notes: Iterable[Remark], level: RemarkLevel) -> Iterator[str]:
    chosen = [note for note in notes if note.level is level]
    if chosen:
        yield ""
        yield title
    for note in chosen[:_NOTES_ON_TOP]:
        remedy = f" ({note.remedy})" if note.remedy else ""
        yield f"  - {note.about + ': ' if note.about else ''}{note.text}{remedy}"
    if len(chosen) > _NOTES_ON_TOP:
        yield f"  {and_more(len(chosen) - _NOTES_ON_TOP)}"
    if chosen:
        yield ""


def _wrap(lines: Iterable[str]) -> Iterator[str]:
    """Breaks long lines; text after a `-` stays indented. Two empty lines become one."""
    before = ""
    for line in lines:
        if line or before:
            indent = " " * (len(line) - len(line.lstrip(" -")))
            yield from textwrap.wrap(visible(line), WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
        before = line


def _target(plan: MigrationPlan) -> list[str]:
    return [
        "target:",
        *write_fields(lines(TargetRef), vars(plan.target), 2),
        "",
        "# archive: the server restores stream archives; exact in sequences, times, gaps and consumers.",
        "# publish: messages are published again, for servers without restore; times are in headers only.",
        *write_fields((_WAY,), vars(plan)),
    ]


def _defaults(streams: Sequence[StreamPlan]) -> dict[str, Any]:
    """Returns the settings that most streams share, among the settings that all streams have."""
    if len(streams) < 2:
        return {}
    defaults: dict[str, Any] = {}
    headers = sum(stream.origin_headers for stream in streams)
    defaults[_ORIGIN_HEADERS.key] = headers * 2 > len(streams)
    for field in STREAM_FIELDS:
        if field.key in _OWN or not all(field.key in stream.settings for stream in streams):
            continue
        values = [stream.settings[field.key] for stream in streams]
        counts = Counter(field.codec.write(value) for value in values)
        (usual, count) = counts.most_common(1)[0]
        if count * 2 > len(streams):
            defaults[field.key] = next(value for value in values if field.codec.write(value) == usual)
    return defaults


def _stream(stream: StreamPlan, defaults: dict[str, Any], made_at: int) -> list[str]:
    usual = {
        **defaults,
        "subjects": tuple(part.subject for part in stream.parts),
        "created_ns": created_at(stream.parts, made_at),
    }
    first, *more = _STREAM
    lines = [*write_fields((first,), vars(stream), 2, item=True), f"  # {visible(_about(stream))}", "  channels:"]
    for part in stream.parts:
        lines += _part(part)
    lines += write_fields((*more, *STREAM_FIELDS), _different_values({**vars(stream), **stream.settings}, usual), 2)
    if stream.consumers:
        lines.append("  consumers:")
        for consumer in stream.consumers:
            lines += _consumer(stream, consumer)
    return lines


def _different_values(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in usual or usual[key] != value}


def _about(stream: StreamPlan) -> str:
    text = f"{counted(stream.messages, 'message')}, {about(stream.bytes)}"
    if stream.renumbered:
        text = f"{len(stream.parts)} channels, ordered by time and RENUMBERED from 1: {text}"
    elif stream.messages:
        missing = stream.last - stream.first + 1 - stream.messages
        gaps = f", {missing} missing" if missing else ""
        text += f", sequences {stream.first} to {stream.last}{gaps}"
    elif stream.last:
        text += f"; the next sequence is {stream.last + 1}"
    return text + (f"; {stream.lost} DAMAGED OR LOST" if stream.lost else "")


def _part(part: ChannelPart) -> Iterator[str]:
    binary = {"channel": repr(part.channel)} if quoted(part.channel).startswith("!!") else None
    yield from write_fields(_PART, vars(part), 4, binary, item=True)
    found = list(write_fields(_FOUND, vars(part)))
    indent = "\n            "
    yield f"    found: {{{', '.join(found[:5])},{indent}{', '.join(found[5:7])},{indent}{found[7]}}}"


def derived_filter(subjects: Sequence[str], subject: str) -> str | None:
    """Returns the default filter of a consumer: the channel's subject, if the stream has other subjects."""
    return None if tuple(subjects) == (subject,) else subject


def _consumer(stream: StreamPlan, consumer: ConsumerPlan) -> Iterator[str]:
    usual: dict[str, Any] = {}
    if len(stream.parts) == 1:
        usual["channel"] = stream.parts[0].channel
    part = next((part for part in stream.parts if part.channel == consumer.channel), None)
    if part and (wanted := derived_filter(stream.subjects, part.subject)):
        usual["filter_subject"] = wanted
    values = {**vars(consumer), **vars(consumer.position), **consumer.settings}
    comments = {"delivered": _lag(stream, consumer)}
    if consumer.members > 1:
        comments["group"] = f"{consumer.members} stored subscriptions"
    yield from write_fields((*_CONSUMER, *CONSUMER_FIELDS), _different_values(values, usual), 4, comments, item=True)


def _lag(stream: StreamPlan, consumer: ConsumerPlan) -> str:
    position = consumer.position
    last = next((part.last for part in stream.parts if part.channel == consumer.channel), 0)
    text = (
        f"of {last}; all up to {position.ack_floor} acknowledged" if position.delivered else f"nothing yet, of {last}"
    )
    return text + (f", {len(position.pending)} pending" if position.pending else "")


def _remarks(name: str, comment: str, items: Sequence[OmittedPart] | Sequence[Remark]) -> list[str]:
    if not items:
        return []
    kind: Any = type(items[0])
    written = (line for each in items for line in write_fields(lines(kind), vars(each), 2, item=True))
    return [comment, f"{name}:", *written]
