"""Makes the plan of a migration: which stream each channel goes into, with which settings and consumers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stantools.errors import UsageError
from stantools.escaping import known
from stantools.migration.plan.checks import channel_part
from stantools.migration.plan.choices import DurablesChoice, LoadMethod, OriginHeaders
from stantools.migration.plan.consumers import ChannelDurables, Durable, plan_consumers, sort_subscriptions
from stantools.migration.plan.migration_plan import (
    DESCRIPTION,
    METADATA_CHANNEL,
    UNLIMITED,
    ChannelPart,
    ConsumerKind,
    MigrationPlan,
    OmittedPart,
    Remark,
    SourceRef,
    StreamPlan,
    TargetRef,
    created_at,
)
from stantools.migration.plan.overrides import Override, override_for
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.remarks import (
    DUPLICATE_WINDOW,
    channel_notes,
    left_out_limits,
    limit_removals,
    store_notes,
    stream_limits,
    unmigrated_parts,
)
from stantools.migration.source import ChannelSource, StoreSource
from stantools.nats.channel_streams import StreamNames
from stantools.nats.stream_names import apart, reserved, stream_name, subject_name
from stantools.nats.subjects import overlap
from stantools.notation import counted
from stantools.store.limits import UNLIMITED as NO_LIMITS

#: metadata key with the number of channels of a stream
METADATA_CHANNELS = "stantools.channels"


@dataclass
class _PlannedChannel:
    """A channel with its subject and overrides."""

    channel: ChannelSource
    part: ChannelPart
    override: Override
    origin: str
    durables: ChannelDurables


@dataclass
class _Draft:
    name: str
    members: list[_PlannedChannel] = field(default_factory=list)

    @property
    def parts(self) -> tuple[ChannelPart, ...]:
        return tuple(member.part for member in self.members)


def make_plan(
    source: StoreSource,
    options: PlanOptions | None = None,
    target_version: tuple[int, int, int] | None = None,
    *,
    now_ns: int | None = None,
) -> MigrationPlan:
    """Plans a migration; nothing is changed anywhere. `checks.find_problems` finds what prevents the plan.

    `target_version` is None without a server; `now_ns` is the time in nanoseconds since 1970, by default the
    clock's.
    """
    options = options or PlanOptions()
    now = time.time_ns() if now_ns is None else now_ns
    target = replace(options.target.without_secrets(), version=target_version or options.target.version)
    planner = _Planner(source, options, target, now)
    streams = planner.streams()
    return MigrationPlan(
        _source_ref(source, options),
        target,
        options.way,
        tuple(streams),
        tuple(planner.left_out),
        tuple(planner.notes),
        now,
        options.for_broker,
    )


def _source_ref(source: StoreSource, options: PlanOptions) -> SourceRef:
    salvage = source.plan
    return SourceRef(
        path=str(Path(known(str(salvage.source.absolute()))).absolute()),
        nodes=tuple(str(each) for each in source.nodes),
        patterns=tuple(salvage.options.patterns),
        generation=salvage.options.generation,
        archived=salvage.options.archived,
        decrypted=options.decrypted,
        crc_poly=salvage.crc.polynomial,
    )


class _Planner:
    def __init__(self, source: StoreSource, options: PlanOptions, target: TargetRef, now_ns: int) -> None:
        self._source = source
        self._options = options
        self._target = target
        self._now = now_ns
        self._kept = {plan.name: plan for plan in source.plan.channels}
        self.notes: list[Remark] = []
        self.left_out: list[OmittedPart] = []

    def streams(self) -> list[StreamPlan]:
        drafts = self._drafts()
        subjects = self._subjects(drafts)
        streams = [self._stream(draft, subjects[draft.name]) for draft in drafts]
        for stream, draft in zip(streams, drafts, strict=True):
            self.notes += limit_removals(stream, [member.channel for member in draft.members], self._now)
        channels = [member.channel.name for draft in drafts for member in draft.members]
        self.notes += store_notes(self._source, self._options, streams)
        self.left_out += unmigrated_parts(self._source, clients=not self._options.for_broker)
        if self._options.limits is not None:
            self.left_out += left_out_limits(self._options.limits, channels)
        return streams

    def _drafts(self) -> list[_Draft]:
        named: dict[str, _Draft] = {}
        alone: list[_PlannedChannel] = []
        for channel in self._source.channels:
            override, origin = override_for(self._options.overrides, channel.name)
            if override.skip:
                kept = f"{counted(channel.count, 'message')} and {counted(len(channel.subscriptions), 'subscription')}"
                text = f"excluded by option, with {kept}"
                self.left_out.append(OmittedPart("channel", channel.name, text))
                continue
            member = self._member(channel, override, origin)
            if override.stream is None:
                alone.append(member)
            else:
                named.setdefault(override.stream, _Draft(override.stream)).members.append(member)
        channels = [member.channel.name for member in alone]
        wanted = [stream_name(channel, self._options.stream_prefix) for channel in channels]
        # A broker uses its own names.
        names = wanted if self._options.for_broker else apart(wanted, channels, taken=named)
        drafts = [*named.values(), *(_Draft(name, [member]) for name, member in zip(names, alone, strict=True))]
        for draft in drafts:
            draft.members.sort(key=lambda member: member.channel.raw_name)
        return sorted(drafts, key=lambda draft: draft.name)

    def _member(self, channel: ChannelSource, override: Override, origin: str) -> _PlannedChannel:
        subject = override.subject or subject_name(channel.name, self._options.subject_prefix)
        part = channel_part(channel, subject)
        durables = ChannelDurables()
        if not self._options.for_broker:
            durables = sort_subscriptions(channel.name, channel.subscriptions, channel.sequences, channel.last)
        self.notes += channel_notes(channel, self._kept[channel.raw_name], decrypted=self._options.decrypted)
        self.notes += durables.notes
        self.left_out += durables.left_out
        return _PlannedChannel(channel, part, override, origin, durables)

    def _subjects(self, drafts: Sequence[_Draft]) -> dict[str, tuple[str, ...]]:
        """Returns the subjects of each stream: those of its channels.

        A pattern with wildcards that selects the channels is the subject itself, so that new channels enter the
        stream as in streaming, unless it overlaps subjects of another stream.
        """
        subjects = {draft.name: tuple(part.subject for part in draft.parts) for draft in drafts}
        wild = {draft.name: self._wildcard(draft) for draft in drafts}
        for name, pattern in wild.items():
            if not pattern:
                continue
            others = (s for other, all_of_it in subjects.items() if other != name for s in all_of_it)
            patterns = (p for other, p in wild.items() if other != name and p)
            if not any(overlap(pattern, other) for other in (*others, *patterns)):
                subjects[name] = (pattern,)
        return subjects

    def _wildcard(self, draft: _Draft) -> str:
        origins = {member.origin for member in draft.members}
        (origin, *more) = origins
        pattern = self._options.subject_prefix + origin
        renamed = any(m.part.subject != self._options.subject_prefix + m.channel.name for m in draft.members)
        if more or renamed or not ("*" in origin or ">" in origin) or reserved(pattern):
            return ""
        return pattern

    def _stream(self, draft: _Draft, subjects: tuple[str, ...]) -> StreamPlan:
        renumbered = len(draft.members) > 1
        wanted = {member.override.origin_headers or self._options.origin_headers for member in draft.members}
        recommended = renumbered or self._options.way is LoadMethod.PUBLISH
        return StreamPlan(
            draft.name,
            subjects,
            draft.parts,
            self._settings(draft),
            renumbered,
            OriginHeaders.ON in wanted or (OriginHeaders.AUTO in wanted and recommended),
            tuple(self._consumers(draft, subjects)),
            created_at(draft.parts, self._now),
        )

    def _settings(self, draft: _Draft) -> dict[str, Any]:
        asked = _override_settings(draft)
        limits = self._options.limits
        known = [limits.limits_for(member.channel.name) for member in draft.members] if limits else []
        if self._options.for_broker:
            scheme = StreamNames(self._options.for_broker, self._options.replicas)
            config = scheme.channel_config(draft.members[0].channel.raw_name, known[0] if known else NO_LIMITS)
            return {name: value for name, value in config.items() if name not in ("name", "subjects")}
        # Any name is valid text for json.
        names = [m.channel.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for m in draft.members]
        single = len(names) == 1
        several = f"{len(names)} NATS Streaming channels, renumbered"
        settings: dict[str, Any] = {
            "description": f"{DESCRIPTION}{names[0]}"[:1000] if single else several,
            "storage": self._options.storage,
            "num_replicas": self._options.replicas,
            "retention": "limits",
            "discard": "old",
            **UNLIMITED,
            "max_msg_size": -1,
            "max_consumers": -1,
            **stream_limits(known),
            **asked,
        }
        age = settings["max_age"]
        settings.setdefault("duplicate_window", min(DUPLICATE_WINDOW, age) if age else DUPLICATE_WINDOW)
        if self._target.version is None or self._target.version >= (2, 10, 0):
            metadata = {METADATA_CHANNEL: names[0]} if single else {METADATA_CHANNELS: str(len(names))}
            settings["metadata"] = metadata | settings.get("metadata", {})
        return settings

    def _consumers(self, draft: _Draft, subjects: tuple[str, ...]) -> list[Any]:
        chosen: list[tuple[Durable, ConsumerKind]] = []
        filters: list[str] = []
        for member in draft.members:
            kind = member.override.consumers or self._options.consumers
            for durable in member.durables.durables:
                if kind is DurablesChoice.NONE:
                    text = f"{durable}: no consumers by option"
                    self.left_out.append(OmittedPart("durable", member.channel.name, text, durable.members))
                else:
                    chosen.append((durable, ConsumerKind(kind.value)))
                    filters.append("" if subjects == (member.part.subject,) else member.part.subject)
        return plan_consumers(chosen, draft.name, filters, self._options.push_prefix)


def _override_settings(draft: _Draft) -> dict[str, Any]:
    """Returns the settings of overrides; all channels of a stream must agree."""
    asked: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for member in draft.members:
        for key, value in member.override.settings.items():
            if key in asked and asked[key] != value:
                raise UsageError(
                    f"channels {said_by[key]!r} and {member.channel.name!r} share stream {draft.name}, but the "
                    f"overrides set {key} to {asked[key]} for one and to {value} for the other",
                    "give both the same value, or use two streams",
                )
            asked[key] = value
            said_by[key] = member.channel.name
    return asked
