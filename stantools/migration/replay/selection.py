"""What is replayed: of each channel which messages, and under which subject."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stantools.errors import RefusedError, UsageError
from stantools.migration.replay.state import Position
from stantools.migration.replay.subjects import SubjectRules, channel_problem, replay_problem, shown
from stantools.migration.source import ChannelSource, StoreSource
from stantools.migration.stream_source import stream_source
from stantools.store.ranges import Bounds, Ranges
from stantools.streamfiles.batch import Batch

_MAX_SEQUENCE = 2**64 - 1
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Chosen(Bounds):
    """Which messages are wanted; negative sequences count from the channel's end."""

    #: Channel -> the last sequence that negative ones count from; the channel's last one if not given.
    ends: Mapping[str, int] = field(default_factory=dict)

    def fixed(self, channels: Iterable[ChannelSource]) -> Chosen:
        """Returns what means the same messages when channels have grown."""
        ends = {shown(each.raw_name): each.sequences.last for each in channels} if self.counts_from_end else {}
        return replace(self, ends=ends)

    def as_json(self) -> dict[str, Any]:
        """Returns it for a state file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Chosen:
        """Reads what `as_json` gave.

        Raises:
            ValueError: It is something else.
        """
        numbers = first, last, since, until = tuple(values.get(name) for name in ("first", "last", "since", "until"))
        ends = values.get("ends", {})
        if not isinstance(ends, dict) or not all(isinstance(each, int) for each in ends.values()):
            raise ValueError("the ends of channels are not numbers")
        if not all(each is None or isinstance(each, int) for each in numbers):
            raise ValueError("sequences and times are not numbers")
        return cls(first, last, since, until, ends)

    def of(self, channel: ChannelSource) -> ChannelSource:
        """Returns a channel with only the messages that are wanted. With times, it reads all timestamps."""
        end = self.ends.get(shown(channel.raw_name), channel.sequences.last)
        if self.first is not None or self.last is not None:
            wanted = self.resolved(end)
            first, last = min(wanted.first or 0, _MAX_SEQUENCE), _MAX_SEQUENCE if wanted.last is None else wanted.last
            channel = channel.narrowed(Ranges.of([(first, min(last, _MAX_SEQUENCE))]))
        if self.since is not None or self.until is not None:
            channel = channel.narrowed(self._in_time(channel))
        return channel

    def _in_time(self, channel: ChannelSource) -> Ranges:
        found = []
        for batch in channel.read(finish=False):
            wanted = np.ones(len(batch), bool)
            if self.since is not None:
                wanted &= batch.columns.timestamp >= min(max(self.since, _LOWEST), _HIGHEST)
            if self.until is not None:
                wanted &= batch.columns.timestamp < min(max(self.until, _LOWEST), _HIGHEST)
            found.append(Ranges.from_sequences(batch.sequence[wanted].copy()))
        return Ranges.union(found)


@dataclass(frozen=True)
class ReplayChannel:
    """One channel of a replay."""

    source: ChannelSource  #: its messages, those that are wanted
    subject: bytes  #: where they go; for a streaming server the channel there


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay is going to do."""

    channels: tuple[ReplayChannel, ...]  #: those that have anything to replay, by name

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return sum(channel.source.count for channel in self.channels)

    @property
    def payload(self) -> int:
        """Bytes of payload, about."""
        return sum(channel.source.payload_bytes for channel in self.channels)

    @property
    def span(self) -> int:
        """Nanoseconds between the first and the last message, by their timestamps."""
        if not self.channels:
            return 0
        first = min(channel.source.first_timestamp for channel in self.channels)
        return max(0, max(channel.source.last_timestamp for channel in self.channels) - first)

    @property
    def routes(self) -> dict[bytes, bytes]:
        """Channel -> where it goes."""
        return {channel.source.raw_name: channel.subject for channel in self.channels}

    def position(self, channel: bytes, sequence: int) -> Position | None:
        """Returns the position of a channel at one of its sequences; None for 0."""
        for each in self.channels:
            if each.source.raw_name == channel and sequence:
                message = each.source.narrowed(Ranges.of([(sequence, sequence)]))
                return Position(sequence, message.first_timestamp)
        return None

    def after(self, positions: Mapping[bytes, Position]) -> ReplayPlan:
        """Returns what is left behind some positions."""
        left = []
        for channel in self.channels:
            position = positions.get(channel.source.raw_name)
            source = channel.source
            if position is not None:
                source = source.narrowed(Ranges.of([(position.sequence + 1, _MAX_SEQUENCE)]))
            if source.count:
                left.append(ReplayChannel(source, channel.subject))
        return ReplayPlan(tuple(left))

    def read(self) -> Iterator[Batch]:
        """Yields all messages: channels together in the order of time, each channel in the order of its sequences.

        Raises:
            StoreUnreadableError: As from `ChannelSource.read`.
            DecryptError: As from `ChannelSource.read`.
        """
        parts = [(channel.source, channel.subject) for channel in self.channels]
        return stream_source(parts).read() if parts else iter(())

    def check_positions(self, source: StoreSource, positions: Mapping[bytes, Position]) -> None:
        """Makes sure that a store is the one that positions are of.

        Raises:
            RefusedError: It is another one, or has been started over.
        """
        known = {channel.raw_name: channel for channel in source.channels}
        for name, position in positions.items():
            channel = known.get(name)
            what = ""
            if channel is None:
                what = "there is no such channel any more"
            elif position.sequence > channel.last:
                what = f"it was replayed up to sequence {position.sequence}, its last one is now {channel.last}"
            elif position.sequence in channel.sequences:
                message = channel.narrowed(Ranges.of([(position.sequence, position.sequence)]))
                if message.first_timestamp != position.timestamp:
                    what = f"its message {position.sequence} is another one now"
            if what:
                raise RefusedError(
                    f"the store is not the one that was replayed: channel {shown(name)}: {what}",
                    "give the right store, or start over without --resume",
                )


def plan_replay(source: StoreSource, rules: SubjectRules, chosen: Chosen, *, streaming: bool) -> ReplayPlan:
    """Plans a replay of all channels of a source.

    Args:
        source: The channels.
        rules: Where they go.
        chosen: Which of their messages.
        streaming: They go to a streaming server, as channels.

    Raises:
        UsageError: A subject is none that can be published to.
    """
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
                "give it another one with --subject 'CHANNEL=SUBJECT', or choose others with --channel",
            )
        channels.append(ReplayChannel(wanted, subject))
    return ReplayPlan(tuple(channels))
