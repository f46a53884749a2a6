"""Streams and their channels: one each, or many in one.

One channel keeps its sequences. Many channels in one stream cannot: their messages are ordered by timestamp and
renumbered, from 1 without gaps. A channel's own messages never change their order, even if their timestamps go back;
equal timestamps follow the order of the channels. The order depends on nothing else, so that it is the same in every
run.

Sorting has rounds. In each, the channel whose batch ends first in time sets the bound: all messages up to there are
known, are sorted at once and returned in stretches of one channel. Reading can restart at places between rounds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stantools.errors import UsageError
from stantools.format.message_batch import MessageBatch
from stantools.migration.source import ChannelSource
from stantools.streamfiles.messages import Messages

_U64 = npt.NDArray[np.uint64]
_I64 = npt.NDArray[np.int64]

#: bytes of files and columns that all channels of a merge hold together
_BYTES = 32 << 20
_ROWS = 1 << 20
_MIN_BYTES, _MAX_BYTES = 1 << 14, 8 << 20
_MIN_ROWS, _MAX_ROWS = 256, 16384
#: messages between two places at which reading can restart
_SPACING = 1 << 20
#: before all times
_LOWEST = -(2**63)


class StreamSource(Messages, Protocol):
    """The messages of one stream with their sequences in it, and their channels."""

    @property
    def parts(self) -> Sequence[tuple[ChannelSource, bytes]]:
        """The channels with the subjects of their messages."""

    @property
    def renumbered(self) -> bool:
        """Sequences in the stream differ from those of the channel."""

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Maps sequences of a channel to sequences of the stream."""


def channel_of(source: StreamSource) -> str | None:
    """Returns the name of a stream's only channel; None if there are several, or none."""
    return source.parts[0][0].name if len(source.parts) == 1 else None


def stream_source(parts: Sequence[tuple[ChannelSource, bytes]]) -> StreamSource:
    """Returns the source of a stream of these channels, each with the subject of its messages.

    Raises UsageError without channels, or if one occurs twice.
    """
    return SingleSource(*parts[0]) if len(parts) == 1 else MergedSource(parts)


class SingleSource:
    """A stream of one channel, with the channel's sequences. The default subject is the channel's name."""

    renumbered = False

    def __init__(self, channel: ChannelSource, subject: bytes | None = None) -> None:
        self._channel = channel
        self._subject = channel.raw_name if subject is None else subject
        self.parts: Sequence[tuple[ChannelSource, bytes]] = ((channel, self._subject),)

    @property
    def count(self) -> int:
        return self._channel.count

    @property
    def first(self) -> int:
        """The first sequence, 0 without messages."""
        return self._channel.first

    @property
    def last(self) -> int:
        """The last sequence, even if its message is lost."""
        return self._channel.last

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        return self._channel.read(after=after, until=until, subject=self._subject)

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        return list(sequences)


@dataclass(frozen=True)
class _ReadPosition:
    """A place at which reading can restart."""

    count: int  #: messages before it
    sequences: _U64  #: for each channel, the last sequence before it, 0 if there is none


class _ChannelFeed:
    """One channel of a merge: a batch, and the number of returned rows."""

    def __init__(
        self, number: int, channel: ChannelSource, place: _ReadPosition, sizes: tuple[int, int], finish: bool
    ) -> None:
        self.number = number
        self.at = 0
        self.end = 0
        self.keys: _I64 = np.empty(0, np.int64)
        self.batch: MessageBatch
        after = int(place.sequences[number])
        self._batches = channel.read(after=after, batch_bytes=sizes[0], batch_rows=sizes[1], finish=finish)

    def load(self) -> bool:
        """Loads a batch if needed; returns False at the end of the channel."""
        while self.at == len(self.keys):
            batch = next(self._batches, None)
            if batch is None:
                return False
            self.batch = batch
            # If time goes back, a message is sorted as late as its predecessors. The batch suffices for that: earlier
            # batches are already returned, with all messages sorted before their last one.
            self.keys = np.maximum.accumulate(batch.timestamp)
            self.end = int(self.keys[-1])
            self.at = 0
        return True


@dataclass(frozen=True)
class _MergeRound:
    """Messages in their final order."""

    feeds: list[_ChannelFeed]  #: channels of the messages
    lows: list[int]  #: first row of each channel
    highs: list[int]  #: row after the last one of each channel
    order: npt.NDArray[np.intp]  #: for each message in order, the index of its channel in `feeds`


class MergedSource:
    """A stream of many channels, ordered by time and renumbered.

    The order of `parts`, channels with the subjects of their messages, decides between equal timestamps. Raises
    UsageError without channels, or if one occurs twice.
    """

    renumbered = True

    def __init__(self, parts: Sequence[tuple[ChannelSource, bytes]]) -> None:
        names = [channel.raw_name for channel, _ in parts]
        if not parts or len(set(names)) < len(names):
            raise UsageError("a stream is made of one or more different channels", "use every channel once")
        self.parts: Sequence[tuple[ChannelSource, bytes]] = tuple(parts)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._sizes = (
            min(max(_BYTES // len(parts), _MIN_BYTES), _MAX_BYTES),
            min(max(_ROWS // len(parts), _MIN_ROWS), _MAX_ROWS),
        )
        self._cached_lookup: tuple[int, list[tuple[_U64, _U64]]] | None = None

    @cached_property
    def count(self) -> int:
        return sum(channel.count for channel, _ in self.parts)

    @property
    def first(self) -> int:
        return 1 if self.count else 0

    @property
    def last(self) -> int:
        return self.count

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        """Yields the messages with stream sequences in (after, until], in rising order; a batch has one channel."""
        until = self.count if until is None else until
        place = self._places[bisect_right(self._counts, after) - 1] if after else self._start
        number = place.count
        for merged in self._rounds(place, finish=True):
            if number >= until:
                return
            total = len(merged.order)
            if number + total > after:
                yield from self._batches(merged, number, after, until)
            number += total

    def _batches(self, merged: _MergeRound, number: int, after: int, until: int) -> Iterator[MessageBatch]:
        order = merged.order
        bounds = [0, *(np.flatnonzero(order[1:] != order[:-1]) + 1).tolist(), len(order)]
        numbers = np.arange(number + 1, number + 1 + len(order), dtype=np.uint64)
        sources = order[bounds[:-1]].tolist()
        rows = list(merged.lows)
        low = 0
        for high, source in zip(bounds[1:], sources, strict=True):
            row = rows[source]
            rows[source] = row + high - low
            begin, end = max(low, after - number), min(high, until - number)
            if begin < end:
                feed = merged.feeds[source]
                channel, subject = self.parts[feed.number]
                part = feed.batch.part(row + begin - low, row + end - low)
                part.channel, part.subject, part.stream_sequence = channel.raw_name, subject, numbers[begin:end]
                yield part
            low = high

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Maps sequences of a channel, in any order, to sequences of the stream.

        A missing message maps to its predecessor, or to 0. The first call reads all timestamps.
        """
        number = self._numbers[channel]
        before = [int(place.sequences[number]) for place in self._places]
        known = [0] * len(sequences)
        for index in sorted(range(len(sequences)), key=lambda index: sequences[index]):
            sequence = sequences[index]
            firsts, lasts = self._ranges[number]
            at = bisect_right(firsts, sequence) - 1
            existing = min(sequence, lasts[at]) if at >= 0 else 0
            if existing:
                own, merged = self._lookup(bisect_left(before, existing) - 1)[number]
                known[index] = int(merged[np.searchsorted(own, np.uint64(existing))])
        return known

    @cached_property
    def _ranges(self) -> list[tuple[list[int], list[int]]]:
        """First and last sequences of the ranges of every channel."""
        pairs = [channel.sequences.pairs() for channel, _ in self.parts]
        return [([first for first, _ in each], [last for _, last in each]) for each in pairs]

    def _lookup(self, index: int) -> list[tuple[_U64, _U64]]:
        """Returns, for every channel, its sequences between two places and those in the stream."""
        if self._cached_lookup is None or self._cached_lookup[0] != index:
            place = self._places[index]
            end = self._counts[index + 1] if index + 1 < len(self._counts) else self.count
            own: list[list[_U64]] = [[] for _ in self.parts]
            numbers: list[list[_U64]] = [[] for _ in self.parts]
            number = place.count
            for merged in self._rounds(place, finish=False):
                for source, feed in enumerate(merged.feeds):
                    own[feed.number].append(feed.batch.sequence[merged.lows[source] : merged.highs[source]].copy())
                    numbers[feed.number].append((np.flatnonzero(merged.order == source) + number + 1).astype(np.uint64))
                number += len(merged.order)
                if number >= end:
                    break
            found = [
                (np.concatenate(mine), np.concatenate(there)) if mine else (np.empty(0, np.uint64),) * 2
                for mine, there in zip(own, numbers, strict=True)
            ]
            self._cached_lookup = index, found
        return self._cached_lookup[1]

    @cached_property
    def _start(self) -> _ReadPosition:
        return _ReadPosition(0, np.zeros(len(self.parts), np.uint64))

    @cached_property
    def _counts(self) -> list[int]:
        return [place.count for place in self._places]

    @cached_property
    def _places(self) -> list[_ReadPosition]:
        """Places at which reading can restart, found in one pass over all timestamps."""
        places, count = [self._start], 0
        sequences = self._start.sequences.copy()
        for merged in self._rounds(self._start, finish=False):
            for feed, high in zip(merged.feeds, merged.highs, strict=True):
                sequences[feed.number] = feed.batch.sequence[high - 1]
            count += len(merged.order)
            if count - places[-1].count >= _SPACING:
                places.append(_ReadPosition(count, sequences.copy()))
        return places

    def _rounds(self, place: _ReadPosition, *, finish: bool) -> Iterator[_MergeRound]:
        """Sorts the messages after a place."""
        waiting = self._unread_channels(place)
        active: dict[int, _ChannelFeed] = {}
        while waiting or active:
            bound = min((feed.end, number) for number, feed in active.items()) if active else None
            while waiting and (bound is None or waiting[-1][0] <= bound[0]):
                _, number = waiting.pop()
                feed = _ChannelFeed(number, self.parts[number][0], place, self._sizes, finish)
                if feed.load():
                    active[number] = feed
                    bound = min(bound, (feed.end, number)) if bound else (feed.end, number)
            if bound is None:
                continue
            yield _sort_round([active[number] for number in sorted(active)], *bound)
            for number in [number for number, feed in active.items() if not feed.load()]:
                del active[number]

    def _unread_channels(self, place: _ReadPosition) -> list[tuple[int, int]]:
        """Returns the channels with messages after a place, the earliest last, with the time of their first message."""
        waiting = []
        for number, (channel, _) in enumerate(self.parts):
            after = int(place.sequences[number])
            if after < channel.sequences.last:
                # a partly returned channel continues at once
                waiting.append((_LOWEST if after else channel.first_timestamp, number))
        return sorted(waiting, reverse=True)


def _sort_round(feeds: list[_ChannelFeed], key: int, number: int) -> _MergeRound:
    """Sorts all messages up to a bound and takes them from their feeds."""
    round_feeds: list[_ChannelFeed] = []
    lows: list[int] = []
    highs: list[int] = []
    for feed in feeds:
        high = int(np.searchsorted(feed.keys, key, "right" if feed.number <= number else "left"))
        if high > feed.at:
            round_feeds.append(feed)
            lows.append(feed.at)
            highs.append(high)
            feed.at = high
    keys = np.concatenate([f.keys[low:high] for f, low, high in zip(round_feeds, lows, highs, strict=True)])
    sizes = [high - low for low, high in zip(lows, highs, strict=True)]
    sources = np.repeat(np.arange(len(round_feeds)), sizes)
    return _MergeRound(round_feeds, lows, highs, sources[np.argsort(keys, kind="stable")])
