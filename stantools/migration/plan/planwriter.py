"""A plan as YAML that people review and edit; `planreader` reads it back.

What most streams have in common stands once, under `defaults`. What can be derived (subjects from those of the
channels, filters, the floor of what is acknowledged) is not repeated, so that an edit is made in one place.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stantools import __version__
from stantools.migration.plan.checks import find_problems
from stantools.migration.plan.consumers import CONSUMER_DEFAULTS
from stantools.migration.plan.document import quoted
from stantools.migration.plan.fields import CONSUMER_FIELDS, STREAM_FIELDS, write_list
from stantools.migration.plan.model import (
    ChannelPart,
    ConsumerPlan,
    LeftOut,
    Level,
    Note,
    Plan,
    StreamPlan,
    created_at,
)
from stantools.migration.plan.remarks import summary
from stantools.migration.plan.units import about, format_sequences
from stantools.notation import counted, format_time

#: The version of the form; a reader refuses others.
FORM = 1

#: The key that says whether messages carry their origin; also among the defaults.
HEADERS = "origin_headers"

_NOTES_ON_TOP = 20
_WIDTH = 110
_OWN = ("description", "metadata")

_ADVICE = (
    "What may be changed: names of streams and consumers, subjects, every setting; streams, consumers and channels may "
    "be taken out, and channels moved to another stream. What stands under `found` and `source` says what the store "
    "held, so that a store that has changed since is noticed: leave that as it is.",
    "Durations are written as 30s, 72h or 1d12h, sizes as 4096, 64MB or 1GB in powers of 1024, and no limit as "
    "`unlimited`.",
    f"Settings of streams: {', '.join(field.label for field in STREAM_FIELDS)}.",
    f"Settings of consumers: {', '.join(f.label for f in CONSUMER_FIELDS if f.key not in CONSUMER_DEFAULTS)}.",
)


def render_plan(plan: Plan, go_on: Sequence[str] = ()) -> str:
    """Returns a plan as the text of its file.

    Args:
        plan: The plan.
        go_on: Commands that are the next steps, for the comment at the top.
    """
    defaults = _defaults(plan.streams)
    blocks = [
        _header(plan, go_on),
        [f"plan: {FORM}", *([f"made_at: {_moment(plan.made_at)}"] if plan.made_at else [])],
        _source(plan),
        _target(plan),
    ]
    if defaults:
        blocks.append(["# What holds for each stream that says nothing else.", "defaults:", *_default_lines(defaults)])
    if plan.streams:
        blocks.append(["streams:"])
        blocks += [_stream(stream, defaults, plan.made_at) for stream in plan.streams]
    else:
        blocks.append(["streams: []"])
    blocks.append(_left_out(plan.left_out))
    blocks.append(_notes(plan.notes))
    blocks.append(["# The last line. Without it the file was cut short.", "complete: yes"])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _header(plan: Plan, go_on: Sequence[str]) -> list[str]:
    made = f" on {format_time(plan.made_at)[:19]}Z" if plan.made_at else ""
    channels = sum(len(stream.parts) for stream in plan.streams)
    lines = [
        "Plan for the migration of a NATS Streaming file store to JetStream.",
        f"Made by stantools {__version__}{made}; nothing has been changed anywhere yet.",
        "",
        f"{counted(channels, 'channel')} to {counted(len(plan.streams), 'stream')}: "
        f"{counted(plan.messages, 'message')}, {about(plan.bytes)} of payload, {counted(plan.consumers, 'consumer')}.",
    ]
    if plan.lost:
        lines.append(f"LOST in the store: {counted(plan.lost, 'message')}, damaged or gone.")
    if plan.left_out:
        lines.append(f"Not taken along (see `left_out` at the end): {summary(plan.left_out)}.")
    found = find_problems(plan)
    lines += _listed("PROBLEMS that must be settled before it can be applied:", found, Level.PROBLEM)
    lines += _listed("Warnings:", [*found, *plan.notes], Level.WARNING)
    if hints := sum(note.level is Level.INFO for note in plan.notes):
        lines.append(f"See also {counted(hints, 'remark')} under `notes` at the end.")
    if go_on:
        lines += ["", "To go on:", *(f"    {command}" for command in go_on)]
    lines += ["", *_ADVICE]
    return [f"# {line}".rstrip() for line in _wrapped(lines)]


def _listed(title: str, notes: Iterable[Note], level: Level) -> Iterator[str]:
    chosen = [note for note in notes if note.level is level]
    if chosen:
        yield ""
        yield title
    for note in chosen[:_NOTES_ON_TOP]:
        remedy = f" ({note.remedy})" if note.remedy else ""
        yield f"  - {note.about + ': ' if note.about else ''}{note.text}{remedy}"
    if len(chosen) > _NOTES_ON_TOP:
        yield f"  … and {len(chosen) - _NOTES_ON_TOP} more"
    if chosen:
        yield ""


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    """Breaks lines that are too long; what follows a `-` stays below it. Two empty lines become one."""
    before = ""
    for line in lines:
        if line or before:
            indent = " " * (len(line) - len(line.lstrip(" -")))
            visible = _visible(line)
            yield from textwrap.wrap(visible, _WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
        before = line


def _visible(text: str) -> str:
    """Returns a text without characters that could end a comment or hide something."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _comment(text: str) -> str:
    return f"  # {_visible(text)}"


def _moment(timestamp: int) -> str:
    return quoted(format_time(timestamp))


def _source(plan: Plan) -> list[str]:
    source = plan.source
    lines = ["source:", f"  store: {quoted(source.path)}"]
    if source.nodes:
        lines += ["  nodes:", *(f"    - {quoted(each)}" for each in source.nodes)]
    if source.patterns:
        lines.append(f"  channels: {write_list(source.patterns)}")
    lines.append(f"  generation: {quoted(source.generation)}")
    lines.append(f"  archived: {_yes(source.archived)}" + _comment("take messages from .bak slices too"))
    lines.append(f"  decrypted: {_yes(source.decrypted)}" + _comment("read with the encryption key, given each time"))
    if source.crc_poly is not None:
        lines.append(f"  crc_poly: {source.crc_poly}")
    return lines


def _target(plan: Plan) -> list[str]:
    target = plan.target
    lines = ["target:", f"  kind: {target.kind}"]
    if target.places:
        lines.append(f"  places: {write_list(target.places)}")
    if target.version:
        lines.append(f"  version: {'.'.join(map(str, target.version))}")
    return [
        *lines,
        "",
        "# archive: stream archives that the server restores; exact in sequences, times, gaps and consumers.",
        "# publish: messages are published anew, where restoring is not allowed; times are in headers only.",
        f"way: {plan.way}",
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _defaults(streams: Sequence[StreamPlan]) -> dict[str, Any]:
    """Returns the settings that most streams have, of those that all have."""
    if len(streams) < 2:
        return {}
    defaults: dict[str, Any] = {}
    headers = sum(stream.origin_headers for stream in streams)
    defaults[HEADERS] = headers * 2 > len(streams)
    for field in STREAM_FIELDS:
        if field.key in _OWN or not all(field.key in stream.settings for stream in streams):
            continue
        values = [stream.settings[field.key] for stream in streams]
        counts = Counter(field.write(value) for value in values)
        (usual, count) = counts.most_common(1)[0]
        if count * 2 > len(streams):
            defaults[field.key] = next(value for value in values if field.write(value) == usual)
    return defaults


def _default_lines(defaults: dict[str, Any]) -> list[str]:
    return [*_settings(defaults, 2), _headers(defaults[HEADERS], 2)]


def _settings(settings: dict[str, Any], indent: int) -> Iterator[str]:
    for field in STREAM_FIELDS:
        if field.key in settings:
            yield f"{' ' * indent}{field.label}: {field.write(settings[field.key])}"


def _headers(value: bool, indent: int) -> str:
    return f"{' ' * indent}{HEADERS}: {_yes(value)}" + _comment("channel, sequence and time of origin as headers")


def _stream(stream: StreamPlan, defaults: dict[str, Any], made_at: int) -> list[str]:
    lines = [f"- stream: {quoted(stream.name)}", f"  # {_visible(_about(stream))}"]
    lines.append("  channels:")
    for part in stream.parts:
        lines += _part(part)
    if stream.subjects != tuple(part.subject for part in stream.parts):
        lines.append(f"  subjects: {write_list(stream.subjects)}")
    if defaults.get(HEADERS) != stream.origin_headers:
        lines.append(_headers(stream.origin_headers, 2))
    if stream.created_ns != created_at(stream.parts, made_at):
        lines.append(f"  created: {_moment(stream.created_ns)}")
    own = {key: value for key, value in stream.settings.items() if key not in defaults or defaults[key] != value}
    lines += _settings(own, 2)
    if stream.consumers:
        lines.append("  consumers:")
        for consumer in stream.consumers:
            lines += _consumer(stream, consumer)
    return lines


def _about(stream: StreamPlan) -> str:
    text = f"{counted(stream.messages, 'message')}, {about(stream.bytes)}"
    if stream.renumbered:
        text = f"{len(stream.parts)} channels, ordered by time and NUMBERED ANEW from 1: {text}"
    elif stream.messages:
        missing = stream.last - stream.first + 1 - stream.messages
        gaps = f", {missing} of them missing" if missing else ""
        text += f", sequences {stream.first} to {stream.last}{gaps}"
    elif stream.last:
        text += f"; the next sequence is {stream.last + 1}"
    return text + (f"; {stream.lost} LOST" if stream.lost else "")


def _part(part: ChannelPart) -> Iterator[str]:
    shown = _comment(repr(part.channel)) if quoted(part.channel).startswith("!!") else ""
    yield f"  - channel: {quoted(part.channel)}{shown}"
    yield f"    subject: {quoted(part.subject)}"
    counts = ("messages", "first", "last", "bytes", "lost")
    found = ", ".join(f"{name}: {getattr(part, name)}" for name in counts)
    yield f"    found: {{{found},"
    yield f"            from: {_moment(part.first_timestamp)}, to: {_moment(part.last_timestamp)},"
    yield f'            fingerprint: "{part.fingerprint}"}}'


def derived_filter(subjects: Sequence[str], subject: str) -> str | None:
    """Returns the filter of a consumer where nothing is said: the channel's subject, if the stream has others too."""
    return None if tuple(subjects) == (subject,) else subject


def _consumer(stream: StreamPlan, consumer: ConsumerPlan) -> Iterator[str]:
    yield f"  - consumer: {quoted(consumer.name)}"
    if len(stream.parts) != 1 or consumer.channel != stream.parts[0].channel:
        yield f"    channel: {quoted(consumer.channel)}"
    yield f"    durable: {quoted(consumer.durable)}"
    if consumer.group:
        merged = _comment(f"{consumer.members} stored subscriptions") if consumer.members > 1 else ""
        yield f"    group: {quoted(consumer.group)}{merged}"
    if consumer.client:
        yield f"    client: {quoted(consumer.client)}"
    if consumer.members != 1:
        yield f"    members: {consumer.members}"
    yield f"    kind: {consumer.kind}"
    position = consumer.position
    yield f"    delivered: {position.delivered}" + _comment(_lag(stream, consumer))
    if position.pending:
        yield from _pending(position.pending)
    part = next((part for part in stream.parts if part.channel == consumer.channel), None)
    usual = dict(CONSUMER_DEFAULTS)
    if part and (wanted := derived_filter(stream.subjects, part.subject)):
        usual["filter_subject"] = wanted
    for field in CONSUMER_FIELDS:
        if field.key in consumer.settings and usual.get(field.key) != consumer.settings[field.key]:
            yield f"    {field.label}: {field.write(consumer.settings[field.key])}"


def _lag(stream: StreamPlan, consumer: ConsumerPlan) -> str:
    position = consumer.position
    last = next((part.last for part in stream.parts if part.channel == consumer.channel), 0)
    text = (
        f"of {last}; all up to {position.ack_floor} acknowledged" if position.delivered else f"nothing yet, of {last}"
    )
    return text + (f", {len(position.pending)} pending" if position.pending else "")


def _pending(pending: Sequence[int]) -> Iterator[str]:
    text = format_sequences(pending)
    if len(text) <= _WIDTH:
        yield f"    pending: {text}"
        return
    yield "    pending: >-"
    line = "     "
    for part in text.split(" "):
        if len(line) + len(part) > _WIDTH:
            yield line
            line = "     "
        line += f" {part}"
    yield line


def _left_out(left_out: Sequence[LeftOut]) -> list[str]:
    if not left_out:
        return []
    lines = ["# What does not go along, and why. For information only.", "left_out:"]
    for left in left_out:
        lines.append(f"- what: {quoted(left.what)}")
        if left.channel:
            lines.append(f"  channel: {quoted(left.channel)}")
        lines.append(f"  why: {quoted(left.detail)}")
        if left.count != 1:
            lines.append(f"  count: {left.count}")
        if left.loss:
            lines.append("  loss: yes")
    return lines


def _notes(notes: Sequence[Note]) -> list[str]:
    if not notes:
        return []
    lines = ["# What was noticed when the plan was made. For information only.", "notes:"]
    for note in notes:
        lines.append(f"- level: {note.level}")
        if note.about:
            lines.append(f"  about: {quoted(note.about)}")
        lines.append(f"  text: {quoted(note.text)}")
        if note.remedy:
            lines.append(f"  remedy: {quoted(note.remedy)}")
    return lines
