"""Problems of a plan, found from the plan and its store, so that every edit of the file is checked again.

The state of the target (existing streams, limits of accounts) is checked on the server before applying.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.fields import CONSUMER_FIELDS
from stantools.migration.plan.migration_plan import (
    ChannelPart,
    ConsumerKind,
    ConsumerPlan,
    MigrationPlan,
    Remark,
    RemarkLevel,
    StreamPlan,
    TargetKind,
)
from stantools.migration.source import ChannelSource, StoreSource
from stantools.nats.stream_names import LONGEST, name_problem, reserved, subject_problem
from stantools.nats.subjects import SubjectOwners
from stantools.notation import counted, format_duration
from stantools.store.directory import subject_matches
from stantools.streamfiles.stream_config import unknown_options

_SHORTEST_AGE = 100_000_000
_MANY_STREAMS = 500


def find_problems(plan: MigrationPlan) -> list[Remark]:
    """Returns problems, with which a plan must not be applied, and warnings, in the order of the plan."""
    notes = [*_plan_notes(plan)]
    for stream in plan.streams:
        notes += _names_and_subjects(stream)
        notes += _settings(plan, stream)
        for consumer in stream.consumers:
            notes += _consumer(stream, consumer)
        names = [consumer.name for consumer in stream.consumers]
        notes += _duplicates(stream.name, "consumer", names)
        notes += _case_collisions(stream.name, "consumers", names)
    notes += _between_streams(plan)
    return notes


def _problem(about: str, text: str, remedy: str) -> Remark:
    return Remark(RemarkLevel.PROBLEM, about, text, remedy)


def _warning(about: str, text: str, remedy: str = "") -> Remark:
    return Remark(RemarkLevel.WARNING, about, text, remedy)


def _plan_notes(plan: MigrationPlan) -> Iterator[Remark]:
    kind = plan.target.kind
    if not plan.streams:
        yield _problem(
            "", "no channel is selected", "the store has none, or patterns and overrides exclude all of them"
        )
    if plan.way is LoadMethod.PUBLISH and kind is not TargetKind.SERVER:
        yield _problem("", f"publishing needs a running server, the target is a {kind}", "plan with `way: archive`")
    replicated = sum(stream.settings.get("num_replicas", 1) > 1 for stream in plan.streams)
    if replicated > _MANY_STREAMS:
        text = f"{replicated} streams with several replicas: each is a Raft group of its own in the cluster"
        yield _warning(
            "", text, "migrate with `replicas: 1` and raise it stream by stream, or combine channels in one stream"
        )


def _names_and_subjects(stream: StreamPlan) -> Iterator[Remark]:
    name = stream.name
    if problem := name_problem(name):
        yield _problem(name, f"{name!r} cannot be the name of a stream: {problem}", "choose another name")
    elif len(name.encode()) > LONGEST:
        text = f"the name has more than {LONGEST} bytes: some servers cannot delete such a stream completely"
        yield _warning(name, text, "choose a shorter name")
    if not stream.parts:
        yield _problem(name, "the stream has no channel", "remove the stream from the plan")
    if stream.renumbered != (len(stream.parts) > 1):
        yield _problem(name, "`renumbered` is for streams of several channels, and required there", "plan again")
    for subject in stream.subjects:
        if problem := subject_problem(subject, wildcards=True):
            yield _problem(name, problem, "correct the subject")
        elif system := reserved(subject):
            text = f"subject {subject!r} overlaps {system!r}, a subject of the system"
            yield _problem(name, text, "give the channel another subject, for example by a prefix such as `stan.`")
    yield from _duplicates(name, "subject", stream.subjects)
    own = SubjectOwners()
    for subject in dict.fromkeys(stream.subjects):
        for other, _ in own.add(subject, name):
            yield _problem(name, f"its subjects {other!r} and {subject!r} overlap", "remove one of them")
    yield from _duplicates(name, "channel", (part.channel for part in stream.parts))
    yield from _duplicates(name, "subject of a channel", (part.subject for part in stream.parts))
    for part in stream.parts:
        if problem := subject_problem(part.subject):
            yield _problem(name, problem, "correct the subject of the channel")
        elif not any(subject_matches(subject, part.subject) for subject in stream.subjects):
            text = f"subject {part.subject!r} of channel {part.channel!r} is not one of the stream's subjects"
            yield _problem(name, text, "add it to `subjects`, or remove `subjects`")


def _settings(plan: MigrationPlan, stream: StreamPlan) -> Iterator[Remark]:
    settings, name = stream.settings, stream.name
    if settings.get("storage") == "memory" and plan.way is LoadMethod.ARCHIVE:
        text = "an archive cannot be restored into memory: the server would make an empty stream and report success"
        yield _problem(name, text, "use `storage: file`, or `way: publish`")
    if plan.target.kind is TargetKind.STORE and settings.get("num_replicas", 1) > 1:
        text = "only a running cluster makes replicas; a store directory holds one"
        yield _problem(name, text, "use `replicas: 1` and raise it once the server runs")
    age, window = settings.get("max_age", 0), settings.get("duplicate_window", 0)
    if 0 < age < _SHORTEST_AGE:
        yield _problem(name, "max_age is below 100ms, which the server refuses", "raise it")
    elif 0 < age < window:
        text = f"duplicate_window {format_duration(window)} is longer than max_age {format_duration(age)}"
        yield _problem(name, text, "use at most max_age for duplicate_window")
    if 0 < settings.get("max_consumers", -1) < len(stream.consumers):
        planned = counted(len(stream.consumers), "consumer", "is/are")
        text = f"max_consumers is {settings['max_consumers']}, but the plan has {planned}"
        yield _problem(name, text, "raise max_consumers")
    if plan.way is LoadMethod.PUBLISH and not stream.origin_headers:
        text = "published messages get new timestamps, and the old ones are lost without headers"
        yield _warning(name, text, "set `origin_headers: yes`")
    if stream.renumbered and not stream.origin_headers:
        text = "messages are renumbered, and their channel sequences are lost without headers"
        yield _warning(name, text, "set `origin_headers: yes`")
    version = plan.target.version
    for setting, since in unknown_options(settings, version) if version else ():
        if setting != "metadata":
            text = f"{setting} needs server {since}, the target has {'.'.join(map(str, version or ()))}"
            yield _warning(name, text + ": the server ignores it", "take it out")


def _consumer(stream: StreamPlan, consumer: ConsumerPlan) -> Iterator[Remark]:
    about, settings, position = f"{stream.name}/{consumer.name}", consumer.settings, consumer.position
    if problem := name_problem(consumer.name):
        yield _problem(about, f"{consumer.name!r} cannot be the name of a consumer: {problem}", "choose another name")
    part = next((part for part in stream.parts if part.channel == consumer.channel), None)
    if part is None:
        text = f"its channel {consumer.channel!r} is not in this stream"
        yield _problem(about, text, "move the consumer to the stream of its channel")
        return
    wanted = settings.get("filter_subject")
    if wanted is None and len(stream.parts) > 1:
        yield _problem(about, "it would also get messages of other channels", f"add `filter_subject: {part.subject}`")
    elif wanted is not None and not subject_matches(wanted, part.subject):
        text = f"filter_subject {wanted!r} does not match {part.subject!r}, the subject of its channel"
        yield _problem(about, text, f"use `filter_subject: {part.subject}`")
    if position.delivered > part.last:
        text = f"delivered {position.delivered} is beyond the channel's last sequence {part.last}"
        yield _problem(about, text, f"use at most {part.last}")
    if position != type(position).of(position.delivered, position.pending):
        text = "its acknowledgement floor contradicts its pending sequences"
        yield _problem(about, text, "plan again")
    elif position.pending and position.pending[-1] > position.delivered:
        text = f"{position.pending[-1]} is pending, but `delivered` is only {position.delivered}"
        yield _problem(about, text, "remove it from `pending`, or raise `delivered`")
    limit = settings.get("max_ack_pending", -1)
    if 0 <= limit < len(position.pending):
        text = f"max_ack_pending is {limit}, but {counted(len(position.pending), 'message', 'is/are')} pending"
        yield _problem(about, text, f"use at least {len(position.pending)}; otherwise no new message is delivered")
    if settings.get("num_replicas", 0) > stream.settings.get("num_replicas", 1):
        yield _problem(about, "it has more replicas than its stream", "lower `replicas`, or remove the line")
    yield from _delivery(about, consumer)


def _delivery(about: str, consumer: ConsumerPlan) -> Iterator[Remark]:
    settings = consumer.settings
    if consumer.kind is ConsumerKind.PUSH:
        if "deliver_subject" not in settings:
            yield _problem(about, "a push consumer needs a subject to deliver to", "add `deliver_subject: …`")
        if settings.get("flow_control") and "deliver_group" in settings:
            yield _problem(about, "flow control does not work with a deliver group", "remove `flow_control`")
        if settings.get("flow_control") and not settings.get("idle_heartbeat"):
            yield _problem(about, "flow control needs a heartbeat", "add `idle_heartbeat: 5s`")
        if "max_waiting" in settings:
            yield _problem(about, "max_waiting is for pull consumers", "take it out")
        return
    wrong = [f.name for f in CONSUMER_FIELDS if f.key in settings and f.key in _PUSH_ONLY]
    if wrong:
        text = f"a pull consumer has no {', '.join(wrong)}"
        yield _problem(about, text, "remove them, or use `kind: push`")


_PUSH_ONLY = frozenset(("deliver_subject", "deliver_group", "idle_heartbeat", "flow_control"))


def _between_streams(plan: MigrationPlan) -> Iterator[Remark]:
    yield from _duplicates("", "stream", (stream.name for stream in plan.streams))
    yield from _case_collisions("", "streams", (stream.name for stream in plan.streams))
    for channel, streams in _owners((part.channel, stream.name) for stream in plan.streams for part in stream.parts):
        if len(set(streams)) > 1:
            text = f"channel {channel!r} is in several streams: {', '.join(sorted(set(streams)))}"
            yield _problem("", text, "keep it in one of them")
    subjects = [(subject, stream.name) for stream in plan.streams for subject in dict.fromkeys(stream.subjects)]
    taken = SubjectOwners()
    for subject, name in subjects:
        for other, owner in taken.add(subject, name):
            if owner != name:
                text = f"subjects {other!r} of stream {owner} and {subject!r} of stream {name} overlap"
                yield _problem(name, text, "a message can be stored in one stream only: change one of them")
    delivered = [
        (consumer.settings["deliver_subject"], f"{stream.name}/{consumer.name}")
        for stream in plan.streams
        for consumer in stream.consumers
        if "deliver_subject" in consumer.settings
    ]
    for subject, consumers in _owners(delivered):
        if len(consumers) > 1:
            text = f"consumers {', '.join(consumers)} deliver to the same subject {subject!r}"
            yield _problem("", text, "give each consumer its own")
    if delivered:
        wild = [pair for pair in subjects if _is_wild(pair[0])]
        literal = {subject: name for subject, name in subjects if not _is_wild(subject)}
        for subject, consumer in delivered:
            names = [literal[subject]] if subject in literal else [n for s, n in wild if subject_matches(s, subject)]
            for name in names:
                text = f"it delivers to {subject!r}, which stream {name} would store again"
                yield _problem(consumer, text, "choose a deliver_subject that no stream listens on")


def _is_wild(subject: str) -> bool:
    return "*" in subject or ">" in subject


def _owners(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    owners: dict[str, list[str]] = {}
    for thing, owner in pairs:
        owners.setdefault(thing, []).append(owner)
    return owners.items()


def _duplicates(about: str, noun: str, names: Iterable[str]) -> Iterator[Remark]:
    for name, all_of_them in _owners((name, name) for name in names):
        if len(all_of_them) > 1:
            yield _problem(about, f"{noun} {name!r} is used {len(all_of_them)} times", "give each its own name")


def _case_collisions(about: str, noun: str, names: Iterable[str]) -> Iterator[Remark]:
    for _, same in _owners((name.casefold(), name) for name in dict.fromkeys(names)):
        if len(same) > 1:
            text = f"{noun} {', '.join(same)} differ only in case: on some file systems they share one directory"
            yield _warning(about, text, "choose names that differ in more than case")


_DIGITS = 16


def channel_part(channel: ChannelSource, subject: str) -> ChannelPart:
    return ChannelPart(
        channel.name,
        subject,
        channel.count,
        channel.first,
        channel.last,
        channel.payload_bytes,
        channel.lost.count(),
        channel.first_timestamp,
        channel.last_timestamp,
        fingerprint(channel),
    )


def fingerprint(channel: ChannelSource) -> str:
    """Returns a digest of the channel's messages and, after a `-`, one of its subscriptions.

    The digest covers records, not payloads: a payload altered in place keeps the fingerprint.
    """
    messages = hashlib.sha256(os.fsencode(channel.name))
    facts = (channel.last, channel.first_timestamp, channel.last_timestamp, channel.payload_bytes)
    messages.update(repr((channel.sequences.pairs(), facts)).encode())
    subscribers = hashlib.sha256()
    for subscription in sorted(channel.subscriptions, key=lambda each: each.state.id):
        subscribers.update(subscription.state.SerializeToString(deterministic=True))
        subscribers.update(repr(sorted(subscription.pending)).encode())
    return f"{messages.hexdigest()[:_DIGITS]}-{subscribers.hexdigest()[:_DIGITS]}"


def find_changes(plan: MigrationPlan, source: StoreSource) -> list[Remark]:
    """Returns the differences between a store and the plan made of it.

    A difference in a planned channel is a problem; a channel that the plan does not name is information.
    """
    have = {channel.name: channel for channel in source.channels}
    known = set[str]()
    notes = []
    for stream in plan.streams:
        for part in stream.parts:
            known.add(part.channel)
            channel = have.get(part.channel)
            text = _difference(part, channel_part(channel, part.subject)) if channel else "it is no longer in the store"
            if text:
                notes.append(Remark(RemarkLevel.PROBLEM, part.channel, text, "plan again: the store has changed since"))
    known.update(left.channel for left in plan.left_out if left.what == "channel")
    for name in have:
        if name not in known:
            text = "the channel is in the store but not in the plan: it is not migrated"
            notes.append(Remark(RemarkLevel.INFO, name, text, "plan again to include it"))
    return notes


def find_encrypted(plan: MigrationPlan, source: StoreSource) -> list[Remark]:
    """Returns a problem for each channel whose payloads look encrypted while the plan has neither key nor consent."""
    if source.key.key is not None or source.key.keep_sealed:
        return []
    text = "its payloads may be encrypted, and there is no key: consumers could not read them"
    remedy = "give the server's key with --encryption-key-env or --encryption-key-file, or use --keep-encrypted"
    planned = {part.channel for stream in plan.streams for part in stream.parts}
    encrypted = (channel.name for channel in source.channels if channel.name in planned and channel.encrypted)
    return [_problem(name, text, remedy) for name in encrypted]


def _difference(then: ChannelPart, now: ChannelPart) -> str:
    if then == now:
        return ""
    parts = [
        f"{name} {getattr(then, name)} became {getattr(now, name)}"
        for name in ("messages", "first", "last", "bytes", "lost")
        if getattr(then, name) != getattr(now, name)
    ]
    was, _, subscribers = then.fingerprint.partition("-")
    if not parts and was != now.fingerprint.partition("-")[0]:
        parts.append("its messages are different")
    if subscribers != now.fingerprint.partition("-")[2]:
        parts.append("its subscriptions have changed")
    return "the channel has changed since the plan was made: " + ", ".join(parts or ["its times"])
