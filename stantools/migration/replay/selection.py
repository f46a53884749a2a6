"""Messages of a replay, by channel, with their subjects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stantools.errors import RefusedError, UsageError
from stantools.format.message_batch import MessageBatch
from stantools.migration.replay.state import ReplayPosition
from stantools.migration.replay.subjects import SubjectRules, channel_problem, replay_problem, shown
from stantools.migration.source import ChannelSource, StoreSource
from stantools.migration.stream_source import stream_source
from stantools.store.ranges import Bounds, Ranges

_MAX_SEQUENCE = 2**64 - 1
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class ReplaySelection(Bounds):
    """Selected messages; negative sequences count from the channel's end."""

    #: channel -> last sequence that negative ones count from; default: the channel's last one
    ends: Mapping[str, int] = field(default_factory=dict)

    def fixed(self, channels: Iterable[ChannelSource]) -> ReplaySelection:
        """Returns a selection of the same messages for channels that have grown."""
        ends = {shown(each.raw_name): each.sequences.last for each in channels} if self.counts_from_end else {}
        return replace(self, ends=ends)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ReplaySelection:
        """Reads the result of `as_json`; raises ValueError for anything else."""
        numbers = first, last, since, until = tuple(values.get(name) for name in ("first", "last", "since", "until"))
        ends = values.get("ends", {})
        if not isinstance(ends, dict) or not all(isinstance(each, int) for each in ends.values()):
            raise ValueError("the ends of channels are not numbers")
        if not all(each is None or isinstance(each, int) for each in numbers):
            raise ValueError("sequences and times are not numbers")
        return cls(first, last, since, until, ends)

    def of(self, channel: ChannelSource) -> ChannelSource:
        """Returns a channel with the selected messages only. A selection by time reads all timestamps."""
        end = self.ends.get(shown(channel.raw_name), channel.sequences.last)
        if self.first is not None or self.last is not None:
            wanted = self.resolved(end)
            first, last = min(wanted.first or 0, _MAX_SEQUENCE), _MAX_SEQUENCE if wanted.last is None else wanted.last
            channel = channel.narrowed(Ranges.of([(first, min(last, _MAX_SEQUENCE))]))
        if self.since is not None or self.until is not None:
            channel = channel.narrowed(self._sequences_in_time(channel))
        return channel

    def _sequences_in_time(self, channel: ChannelSource) -> Ranges:
        found = []
        for batch in channel.read(finish=False):
            wanted = np.ones(len(batch), bool)
            if self.since is not None:
                wanted &= batch.timestamp >= min(max(self.since, _LOWEST), _HIGHEST)
            if self.until is not None:
                wanted &= batch.timestamp < min(max(self.until, _LOWEST), _HIGHEST)
            found.append(Ranges.from_sequences(batch.stream_sequence[wanted].copy()))
        return Ranges.union(found)


@dataclass(frozen=True)
class ReplayChannel:
    source: ChannelSource  #: selected messages
    subject: bytes  #: destination; for a streaming server, its channel


@dataclass(frozen=True)
class ReplayPlan:
    channels: tuple[ReplayChannel, ...]  #: channels with messages to replay, by name

    @property
    def messages(self) -> int:
        return sum(channel.source.count for channel in self.channels)

    @property
    def payload(self) -> int:
        """Approximate bytes of payload."""
        return sum(channel.source.payload_bytes for channel in self.channels)

    @property
    def span(self) -> int:
        """Nanoseconds between the timestamps of the first and the last message."""
        if not self.channels:
            return 0
        first = min(channel.source.first_timestamp for channel in self.channels)
        return max(0, max(channel.source.last_timestamp for channel in self.channels) - first)

    @property
    def routes(self) -> dict[bytes, bytes]:
        """Channel -> destination."""
        return {channel.source.raw_name: channel.subject for channel in self.channels}

    def position(self, channel: bytes, sequence: int) -> ReplayPosition | None:
        """Returns the position of a channel at one of its sequences; None for 0."""
        for each in self.channels:
            if each.source.raw_name == channel and sequence:
                message = each.source.narrowed(Ranges.of([(sequence, sequence)]))
                return ReplayPosition(sequence, message.first_timestamp)
        return None

    def after(self, positions: Mapping[bytes, ReplayPosition]) -> ReplayPlan:
        """Returns the messages after these positions."""
        left = []
        for channel in self.channels:
            position = positions.get(channel.source.raw_name)
            source = channel.source
            if position is not None:
                source = source.narrowed(Ranges.of([(position.sequence + 1, _MAX_SEQUENCE)]))
            if source.count:
                left.append(ReplayChannel(source, channel.subject))
        return ReplayPlan(tuple(left))

    def read(self) -> Iterator[MessageBatch]:
        """Yields all messages, channels merged by time, each in the order of its sequences."""
        parts = [(channel.source, channel.subject) for channel in self.channels]
        return stream_source(parts).read() if parts else iter(())

    def check_positions(self, source: StoreSource, positions: Mapping[bytes, ReplayPosition]) -> None:
        """Raises RefusedError unless the positions belong to this store."""
        known = {channel.raw_name: channel for channel in source.channels}
        for name, position in positions.items():
            channel = known.get(name)
            what = ""
            if channel is None:
                what = "the channel no longer exists"
            elif position.sequence > channel.last:
                what = f"it was replayed up to sequence {position.sequence}, its last one is now {channel.last}"
            elif position.sequence in channel.sequences:
                message = channel.narrowed(Ranges.of([(position.sequence, position.sequence)]))
                if message.first_timestamp != position.timestamp:
                    what = f"its message {position.sequence} is different now"
            if what:
                raise RefusedError(
                    f"this is not the replayed store: channel {shown(name)}: {what}",
                    "name the right store, or start over without --resume",
                )


def plan_replay(source: StoreSource, rules: SubjectRules, chosen: ReplaySelection, *, streaming: bool) -> ReplayPlan:
    """Plans a replay of all channels of a source; `streaming`: the destinations are channels of a streaming server."""
    channels = []
    for channel in source.channels:
        wanted = chosen.of(channel)
        if not wanted.count:
            continue
        subject = rules.subject(channel.raw_name)
        problem = (channel_problem if streaming else replay_problem)(subject)
        if problem:
            kind = "channel" if streaming else "subject"
            raise UsageError(
                f"channel {shown(channel.raw_name)!r} cannot be replayed: the {kind} {shown(subject)!r} {problem}",
                "give it another one with --subject 'CHANNEL=SUBJECT', or choose other channels with --channel",
            )
        channels.append(ReplayChannel(wanted, subject))
    return ReplayPlan(tuple(channels))
