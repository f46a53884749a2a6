"""What whoever reviews a plan must know about the store: what is missing, what is odd, what stays behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from stantools.migration.plan.model import LeftOut, Level, Note, StreamPlan, Way
from stantools.migration.plan.options import PlanOptions
from stantools.migration.plan.units import format_time
from stantools.migration.source import ChannelSource, StoreSource
from stantools.notation import counted
from stantools.recovery.salvage.model import ChannelPlan, Copy, Dropped
from stantools.store.ranges import Ranges

_RANGES_SHOWN = 5


def channel_notes(channel: ChannelSource, kept: ChannelPlan, *, decrypted: bool) -> Iterator[Note]:
    """Tells what is odd about a channel.

    Args:
        channel: The channel.
        kept: What of it is taken.
        decrypted: It is read with its encryption key.

    Raises:
        StoreUnreadableError: The store cannot be read any more.
    """
    name = channel.name
    if channel.origin:
        yield Note(Level.WARNING, name, f"it is {channel.origin}: the channel's sequences began again after it")
    if lost := channel.lost:
        yield Note(Level.WARNING, name, f"{counted(lost.count(), 'message')} damaged or gone: {_shown(lost)}")
    if holes := channel.sequences.holes() - lost:
        text = f"{counted(holes.count(), 'sequence')} in between not in the store: {_shown(holes)}; the gaps are kept"
        yield Note(Level.WARNING, name, text, "see what `stantools verify` says: streaming itself leaves no gaps")
    if channel.last > channel.sequences.last:
        text = (
            f"its last message is {channel.sequences.last}, its last sequence {channel.last}: the stream goes on there"
        )
        yield Note(Level.INFO, name, text)
    if not decrypted and channel.encrypted:
        text = "its payloads look encrypted, and go along as they are stored"
        yield Note(Level.WARNING, name, text, "give the encryption key, unless consumers decrypt them")
    if moment := _goes_back(kept):
        text = f"times go back near {format_time(moment)}: to start consumers by time is inexact there"
        yield Note(Level.INFO, name, text)


def _shown(ranges: Ranges) -> str:
    pairs = ranges.pairs()
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in pairs[:_RANGES_SHOWN]]
    return ", ".join(texts) + (
        f" and {counted(len(pairs) - _RANGES_SHOWN, 'more range')}" if len(pairs) > _RANGES_SHOWN else ""
    )


def _goes_back(plan: ChannelPlan) -> int:
    """Returns a time after which the clock was set back, as far as the ends of runs show it; 0 if there is none."""
    before = None
    for step in plan.steps:
        if not isinstance(step, Copy):
            continue
        for moment in (step.run.first_timestamp, step.run.last_timestamp):
            if before is not None and moment < before:
                return before
            before = moment
    return 0


def store_notes(source: StoreSource, options: PlanOptions, streams: Sequence[StreamPlan]) -> Iterator[Note]:
    """Tells what holds for the whole migration."""
    renumbered = [stream for stream in streams if stream.renumbered]
    for stream in renumbered:
        text = f"{len(stream.parts)} channels go in: messages are ordered by time and numbered anew from 1"
        yield Note(Level.INFO, stream.name, text)
    if source.plan.server.node_id:
        text = "the store was written by a clustered server: its durables are in the raft log and not in the store"
        remedy = "note the position of each durable from the running cluster, and make its consumer by hand"
        yield Note(Level.WARNING, "", text, remedy)
    if options.way is Way.PUBLISH:
        text = "published messages get the time of publishing; the old times, sequences and channels are in headers"
        yield Note(Level.WARNING, "", text, "restore archives (`way: archive`) wherever the server allows it")
    if options.limits is None:
        text = "the limits of channels are not in the store: streams have none unless a plan or override sets them"
        yield Note(Level.INFO, "", text, "give those of the streaming server, such as --max-age 72h")
    if not options.subject_prefix and streams:
        text = "subjects are names of channels: what is published there to core NATS is stored from then on too"
        yield Note(Level.INFO, "", text, "a prefix keeps the two apart: --subject-prefix stan")
    for pattern in options.unused(channel.name for channel in source.channels):
        yield Note(Level.WARNING, "", f"the override for {pattern!r} matches no channel", "check its spelling")
    for change in source.changes:
        yield Note(Level.INFO, "", change)


def left_behind(source: StoreSource) -> list[LeftOut]:
    """Lists what a store holds and a migration does not take, equal things together."""
    left = []
    channels = {channel.name for channel in source.channels}
    pieces: dict[tuple[str, str, bool], list[Dropped]] = {}
    for dropped in source.dropped:
        pieces.setdefault((dropped.file, dropped.reason, dropped.loss), []).append(dropped)
    for (file, reason, loss), group in pieces.items():
        sequences = Ranges.union(dropped.sequences for dropped in group)
        channel, _, rest = file.partition("/")
        is_channel = bool(rest) or file in channels
        detail = f"{file}: {reason}"
        if sequences:
            detail += f" ({_shown(sequences)})"
        elif len(group) > 1:
            detail += f" ({counted(len(group), 'place')})"
        what = "subscription" if reason.startswith("subscription ") else "message" if sequences else "file"
        left.append(LeftOut(what, channel if is_channel else "", detail, sequences.count() or len(group), loss))
    if source.clients:
        names = [os.fsdecode(client.id) for client in source.clients]
        shown = ", ".join(repr(name) for name in sorted(names)[:_RANGES_SHOWN])
        more = f" and {len(names) - _RANGES_SHOWN} more" if len(names) > _RANGES_SHOWN else ""
        left.append(LeftOut("client", "", f"JetStream keeps no list of client ids: {shown}{more}", len(names)))
    return left


def summary(left_out: Sequence[LeftOut]) -> str:
    """Counts what is left out, by kind."""
    counts = Counter[str]()
    for each in left_out:
        counts[each.what] += each.count
    return ", ".join(counted(count, what) for what, count in sorted(counts.items()))
