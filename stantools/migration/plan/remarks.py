"""Remarks for the review of a plan: gaps of the store, parts that are not migrated, messages that limits would remove.

    streaming            a stream of one channel    a stream of several channels
    max_msgs             max_msgs                   max_msgs_per_subject, the largest
    max_bytes            max_bytes                  max_bytes, the sum
    max_age              max_age                    max_age, the largest
    max_subs, max_inactivity, max_channels          no counterpart

Bytes are counted differently: a stream counts its records (subject, payload and 30 bytes each, slightly more with
headers), the streaming server the payload's record and 40 bytes each.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.fields import about, format_size
from stantools.migration.plan.migration_plan import UNLIMITED, OmittedPart, Remark, RemarkLevel, StreamPlan
from stantools.migration.plan.overrides import unused
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.source import ChannelSource, StoreSource
from stantools.nats.channel_streams import StreamNames
from stantools.notation import counted, describe_ranges, format_duration, format_time, some_of
from stantools.recovery.salvage.model import ChannelSalvage, DroppedData, DropReason, RecordCopy
from stantools.store.limits import ChannelLimits, StoreLimits
from stantools.store.ranges import Ranges

#: least size of a header block with the origin, in bytes
_ORIGIN_OVERHEAD = 118

#: default of the server, in nanoseconds
DUPLICATE_WINDOW = 120_000_000_000


def stream_limits(limits: Sequence[ChannelLimits]) -> dict[str, int]:
    settings = dict(UNLIMITED)
    if not limits:
        return settings
    if len(limits) == 1:
        settings["max_msgs"] = limits[0].max_msgs or -1
    elif all(each.max_msgs for each in limits):
        settings["max_msgs_per_subject"] = max(each.max_msgs for each in limits)
    if all(each.max_bytes for each in limits):
        settings["max_bytes"] = sum(each.max_bytes for each in limits)
    if all(each.max_age_ns for each in limits):
        settings["max_age"] = max(each.max_age_ns for each in limits)
    return settings


def left_out_limits(limits: StoreLimits, channels: Iterable[str]) -> list[OmittedPart]:
    left = []
    of_channels = [limits.limits_for(channel) for channel in channels]
    if limits.max_channels:
        left.append(
            OmittedPart("limit", "", f"max_channels {limits.max_channels}: an account limits its streams instead")
        )
    if subscribed := [each.max_subs for each in of_channels if each.max_subs]:
        text = f"max_subs ({_span(sorted({str(s) for s in subscribed}, key=int))}): see max_consumers of a stream"
        left.append(OmittedPart("limit", "", text, len(subscribed)))
    if inactive := sorted({each.max_inactivity_ns for each in of_channels if each.max_inactivity_ns}):
        count = sum(bool(each.max_inactivity_ns) for each in of_channels)
        text = f"max_inactivity ({_span([format_duration(i) for i in inactive])}): a stream stays until it is deleted"
        left.append(OmittedPart("limit", "", text, count))
    return left


def _span(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def limit_removals(stream: StreamPlan, channels: Sequence[ChannelSource], now_ns: int) -> Iterator[Remark]:
    """Returns a note for each limit that would remove messages as soon as it applies."""
    settings = stream.settings
    if (age := settings.get("max_age", 0)) > 0:
        old = sum(older_than(channel, now_ns - age) for channel in channels)
        if old:
            verb = "is" if old == 1 else "are"
            text = f"{old} of {counted(stream.messages, 'message')} {verb} older than max_age {format_duration(age)}"
            yield _removed(stream, text, "max_age")
    if 0 <= (most := settings.get("max_msgs", -1)) < stream.messages:
        yield _removed(stream, f"{counted(stream.messages - most, 'message')} more than max_msgs {most}", "max_msgs")
    if (most := settings.get("max_msgs_per_subject", -1)) >= 0:
        more = sum(max(part.messages - most, 0) for part in stream.parts)
        if more:
            yield _removed(
                stream, f"{counted(more, 'message')} more than max_msgs_per_subject {most}", "max_msgs_per_subject"
            )
    size = stream.bytes_stored(_ORIGIN_OVERHEAD if stream.origin_headers else 0)
    if 0 <= (most := settings.get("max_bytes", -1)) < size:
        text = f"the messages need about {about(size)} in the stream, max_bytes is {format_size(most)}"
        yield _removed(stream, text, "max_bytes")


def _removed(stream: StreamPlan, text: str, setting: str) -> Remark:
    remedy = f"raise {setting} or set it to `unlimited` to keep them"
    return Remark(
        RemarkLevel.WARNING,
        stream.name,
        f"{text}: the server removes the oldest messages as soon as the limit applies",
        remedy,
    )


def older_than(channel: ChannelSource, moment: int) -> int:
    """Counts the messages at the beginning of a channel that are older than a moment.

    Timestamps are found by binary search, so few messages are read; if times go back, the count is an estimate.
    """
    if not channel.count or channel.first_timestamp >= moment:
        return 0
    if channel.last_timestamp < moment:
        return channel.count
    # `low` and all before it are older, `high` and all after it are not.
    low, high = channel.first, channel.sequences.last
    while high - low > 1:
        middle = (low + high) // 2
        batch = next(channel.read(after=middle - 1, finish=False))
        sequence, timestamp = int(batch.stream_sequence[0]), int(batch.timestamp[0])
        if timestamp >= moment or sequence >= high:
            high = middle
        else:
            low = sequence
    return sum(min(last, low) - first + 1 for first, last in channel.sequences if first <= low)


_NAMES_SHOWN = 5


def channel_notes(channel: ChannelSource, kept: ChannelSalvage, *, decrypted: bool) -> Iterator[Remark]:
    name = channel.name
    if channel.origin:
        yield Remark(RemarkLevel.WARNING, name, f"it is {channel.origin}: the channel's sequences began again after it")
    if lost := channel.lost:
        text = f"{counted(lost.count(), 'message')} already missing, damaged or lost: {describe_ranges(lost)}"
        yield Remark(RemarkLevel.WARNING, name, text)
    if holes := channel.sequences.holes() - lost:
        missing = f"{counted(holes.count(), 'sequence')} already missing between others: {describe_ranges(holes)}"
        text = f"{missing}; the gaps are kept"
        yield Remark(RemarkLevel.WARNING, name, text, "run `stantools verify`: streaming itself leaves no gaps")
    if channel.last > channel.sequences.last:
        last = channel.sequences.last
        text = f"its last message is {last}, its last sequence {channel.last}: the stream continues there"
        yield Remark(RemarkLevel.INFO, name, text)
    if not decrypted and channel.encrypted:
        text = "its payloads may be encrypted, and are migrated as they are stored"
        yield Remark(RemarkLevel.WARNING, name, text, "give the encryption key, unless consumers decrypt them")
    if moment := _clock_reversal(kept):
        text = f"times go back near {format_time(moment)}: consumers that start by time are inexact there"
        yield Remark(RemarkLevel.INFO, name, text)


def _clock_reversal(plan: ChannelSalvage) -> int:
    """Returns a time after which the clock was set back, judged from the ends of runs; 0 if there is none."""
    before = None
    for step in plan.steps:
        if not isinstance(step, RecordCopy):
            continue
        for moment in (step.run.first_timestamp, step.run.last_timestamp):
            if before is not None and moment < before:
                return before
            before = moment
    return 0


def store_notes(source: StoreSource, options: PlanOptions, streams: Sequence[StreamPlan]) -> Iterator[Remark]:
    renumbered = [stream for stream in streams if stream.renumbered]
    for stream in renumbered:
        text = f"{len(stream.parts)} channels: messages are ordered by time and renumbered from 1"
        yield Remark(RemarkLevel.INFO, stream.name, text)
    if source.plan.server.node_id:
        text = "the store was written by a clustered server: its durables are in the Raft log, not in the store"
        remedy = "name the nodes of the cluster instead, with their Raft directories: stantools migrate NODE NODE NODE"
        yield Remark(RemarkLevel.WARNING, "", text, remedy)
    if options.way is LoadMethod.PUBLISH:
        text = "published messages get the time of publishing; the old times, sequences and channels are in headers"
        yield Remark(RemarkLevel.WARNING, "", text, "restore archives (`way: archive`) if the server allows it")
    if options.for_broker:
        subscriptions = sum(len(channel.subscriptions) for channel in source.channels)
        clients = counted(len(source.plan.clients), "client")
        text = (
            f"{clients} and {counted(subscriptions, 'subscription')} go into stream "
            f"{StreamNames(options.for_broker).state}, which is made last: no broker can use the others before"
        )
        yield Remark(RemarkLevel.INFO, "", text)
        if source.plan.server_note:
            yield Remark(RemarkLevel.WARNING, "", f"server.dat: {source.plan.server_note}")
    elif options.limits is None:
        text = "the limits of channels are not in the store: streams have no limits unless a plan or override sets them"
        yield Remark(RemarkLevel.INFO, "", text, "give the limits of the streaming server, such as --max-age 72h")
    if not options.subject_prefix and streams:
        text = "subjects equal channel names: from then on, core NATS messages on these subjects are stored as well"
        yield Remark(RemarkLevel.INFO, "", text, "a prefix separates them: --subject-prefix stan")
    for pattern in unused(options.overrides, (channel.name for channel in source.channels)):
        yield Remark(RemarkLevel.WARNING, "", f"the override for {pattern!r} matches no channel", "check its spelling")
    for change in source.plan.changes:
        yield Remark(RemarkLevel.INFO, "", change)


def unmigrated_parts(source: StoreSource, *, clients: bool) -> list[OmittedPart]:
    """Lists the parts of a store that are not migrated, equal ones together; clients only if asked."""
    left = []
    channels = {channel.name for channel in source.channels}
    pieces: dict[tuple[str, str, bool], list[DroppedData]] = {}
    for dropped in source.plan.dropped:
        if dropped.fate is DropReason.GAP:
            continue
        pieces.setdefault((dropped.file, dropped.reason, dropped.loss), []).append(dropped)
    for (file, reason, loss), group in pieces.items():
        sequences = Ranges.union(dropped.sequences for dropped in group)
        channel, _, rest = file.partition("/")
        is_channel = bool(rest) or file in channels
        detail = f"{file}: {reason}"
        if sequences:
            detail += f" ({describe_ranges(sequences)})"
        elif len(group) > 1:
            detail += f" ({counted(len(group), 'place')})"
        what = "subscription" if reason.startswith("subscription ") else "message" if sequences else "file"
        left.append(OmittedPart(what, channel if is_channel else "", detail, sequences.count() or len(group), loss))
    if clients and source.plan.clients:
        names = [os.fsdecode(client.id) for client in source.plan.clients]
        shown = some_of([repr(name) for name in sorted(names)], _NAMES_SHOWN)
        left.append(OmittedPart("client", "", f"JetStream keeps no list of client ids: {shown}", len(names)))
    return left


def summary(left_out: Sequence[OmittedPart]) -> str:
    """Counts the parts that are not migrated, by kind."""
    counts = Counter[str]()
    for each in left_out:
        counts[each.what] += each.count
    return ", ".join(counted(count, what) for what, count in sorted(counts.items()))
