"""Streams and the channels that they are made of: one each, or many into one.

One channel keeps its sequences. Many channels in one stream cannot: their messages are put into the order of their
timestamps and renumbered, from 1 without gaps. A channel's own messages never change their order, even where their
timestamps go back; equal timestamps go by the order of the channels. The order depends on nothing else, so that it is
the same in every run.

Sorting goes in rounds. In each, the channel whose batch ends first in time sets the bound: everything up to there is
known, is sorted at once and given out in stretches of one channel. Between rounds lie the places from which reading
can begin again.
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
from stantools.migration.source import ChannelSource
from stantools.streamfiles.batch import Batch, Messages

_U64 = npt.NDArray[np.uint64]
_I64 = npt.NDArray[np.int64]

#: What all channels of a merge together hold of their files, and of columns, at a time.
_BYTES = 32 << 20
_ROWS = 1 << 20
_MIN_BYTES, _MAX_BYTES = 1 << 14, 8 << 20
_MIN_ROWS, _MAX_ROWS = 256, 16384
#: Messages between two places from which reading can begin.
_SPACING = 1 << 20
#: Before all times.
_LOWEST = -(2**63)


class StreamSource(Messages, Protocol):
    """The messages that go into one stream, with the sequences that they have there, and the channels they are from."""

    @property
    def parts(self) -> Sequence[tuple[ChannelSource, bytes]]:
        """The channels with the subjects that their messages get."""

    @property
    def renumbered(self) -> bool:
        """Whether sequences in the stream are not those of the channel."""

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Returns sequences in the stream for sequences of a channel."""


def channel_of(source: StreamSource) -> str | None:
    """Returns the name of the only channel that a stream is made of; None if there are several, or none."""
    return source.parts[0][0].name if len(source.parts) == 1 else None


def stream_source(parts: Sequence[tuple[ChannelSource, bytes]]) -> StreamSource:
    """Returns the source of a stream that is made of channels with the subjects that their messages get.

    Raises:
        UsageError: There is none, or one is there twice.
    """
    return SingleSource(*parts[0]) if len(parts) == 1 else MergedSource(parts)


class SingleSource:
    """A stream that is one channel, with the sequences that it has there.

    Args:
        subject: The subject that its messages get; its name if not given.
    """

    renumbered = False

    def __init__(self, channel: ChannelSource, subject: bytes | None = None) -> None:
        self._channel = channel
        self._subject = channel.raw_name if subject is None else subject
        self.parts: Sequence[tuple[ChannelSource, bytes]] = ((channel, self._subject),)

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self._channel.count

    @property
    def first(self) -> int:
        """The sequence of the first message, 0 if there is none."""
        return self._channel.first

    @property
    def last(self) -> int:
        """The last sequence, also where its message is lost."""
        return self._channel.last

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Batch]:
        """Yields the messages; see `ChannelSource.read`."""
        return self._channel.read(after=after, until=until, subject=self._subject)

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Returns the sequences as they are: the stream has those of the channel."""
        return list(sequences)


@dataclass(frozen=True)
class _Place:
    """Where reading can begin."""

    count: int  #: messages before it
    sequences: _U64  #: of each channel, the last sequence before it, 0 if there is none


class _Feed:
    """One channel on its way into a merge: a batch of it, and how far that is given out."""

    def __init__(
        self, number: int, channel: ChannelSource, place: _Place, sizes: tuple[int, int], finish: bool
    ) -> None:
        self.number = number
        self.at = 0
        self.end = 0
        self.keys: _I64 = np.empty(0, np.int64)
        self.batch: Batch
        after = int(place.sequences[number])
        self._batches = channel.read(after=after, batch_bytes=sizes[0], batch_rows=sizes[1], finish=finish)

    def load(self) -> bool:
        """Makes sure that there is a message in the batch; False if there is none left."""
        while self.at == len(self.keys):
            batch = next(self._batches, None)
            if batch is None:
                return False
            self.batch = batch
            # Where time goes back, a message is sorted as if it were as late as those before it. In the batch: those of
            # the batch before are given out, and with them all that comes before what is sorted like the last of them.
            self.keys = np.maximum.accumulate(batch.columns.timestamp)
            self.end = int(self.keys[-1])
            self.at = 0
        return True


@dataclass(frozen=True)
class _Round:
    """Messages whose order is known."""

    feeds: list[_Feed]  #: the channels that they are from, by number
    lows: list[int]  #: of each of these, the first row
    highs: list[int]  #: of each of these, the row behind the last
    order: npt.NDArray[np.intp]  #: for each message in order, the index of its feed in `feeds`


class MergedSource:
    """A stream that many channels go into, in the order of time; the messages are renumbered.

    Args:
        parts: The channels with the subjects that their messages get. Their order decides between equal timestamps.

    Raises:
        UsageError: There is no channel, or one is there twice.
    """

    renumbered = True

    def __init__(self, parts: Sequence[tuple[ChannelSource, bytes]]) -> None:
        names = [channel.raw_name for channel, _ in parts]
        if not parts or len(set(names)) < len(names):
            raise UsageError("a stream is made of one or more different channels", "name every channel once")
        self.parts: Sequence[tuple[ChannelSource, bytes]] = tuple(parts)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._sizes = (
            min(max(_BYTES // len(parts), _MIN_BYTES), _MAX_BYTES),
            min(max(_ROWS // len(parts), _MIN_ROWS), _MAX_ROWS),
        )
        self._looked_up: tuple[int, list[tuple[_U64, _U64]]] | None = None

    @cached_property
    def count(self) -> int:
        """How many messages there are."""
        return sum(channel.count for channel, _ in self.parts)

    @property
    def first(self) -> int:
        """The sequence of the first message: 1, or 0 if there is none."""
        return 1 if self.count else 0

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return self.count

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Batch]:
        """Yields the messages with sequences in the stream above `after`, up to `until`, in rising order.

        Yields:
            Messages of one channel that follow each other in the stream.

        Raises:
            StoreUnreadableError: As from `ChannelSource.read`.
            DecryptError: As from `ChannelSource.read`.
        """
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

    def _batches(self, merged: _Round, number: int, after: int, until: int) -> Iterator[Batch]:
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
                columns = feed.batch.columns.part(row + begin - low, row + end - low)
                yield Batch(channel.raw_name, subject, feed.batch.buffer, columns, numbers[begin:end])
            low = high

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Returns, for sequences of a channel, where in the stream the message or the last one before it is.

        The first call reads all timestamps.

        Args:
            channel: The channel's name.
            sequences: Sequences in the channel, in any order.

        Returns:
            Sequences in the stream, 0 where the channel has no message up to there.

        Raises:
            StoreUnreadableError: As from `ChannelSource.read`.
        """
        number = self._numbers[channel]
        before = [int(place.sequences[number]) for place in self._places]
        known = [0] * len(sequences)
        for index in sorted(range(len(sequences)), key=lambda index: sequences[index]):
            existing = self._existing(number, sequences[index])
            if existing:
                own, merged = self._lookup(bisect_left(before, existing) - 1)[number]
                known[index] = int(merged[np.searchsorted(own, np.uint64(existing))])
        return known

    def _existing(self, number: int, sequence: int) -> int:
        """Returns the greatest sequence of a channel that is not above another."""
        firsts, lasts = self._ranges[number]
        at = bisect_right(firsts, sequence) - 1
        return min(sequence, lasts[at]) if at >= 0 else 0

    @cached_property
    def _ranges(self) -> list[tuple[list[int], list[int]]]:
        """First and last sequences of the ranges of every channel."""
        pairs = [channel.sequences.pairs() for channel, _ in self.parts]
        return [([first for first, _ in each], [last for _, last in each]) for each in pairs]

    def _lookup(self, index: int) -> list[tuple[_U64, _U64]]:
        """Returns, for every channel, its sequences between two places and those that they have in the stream."""
        if self._looked_up is None or self._looked_up[0] != index:
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
            self._looked_up = index, found
        return self._looked_up[1]

    @cached_property
    def _start(self) -> _Place:
        return _Place(0, np.zeros(len(self.parts), np.uint64))

    @cached_property
    def _counts(self) -> list[int]:
        return [place.count for place in self._places]

    @cached_property
    def _places(self) -> list[_Place]:
        """The places from which reading can begin, found by going through all timestamps once."""
        places, count = [self._start], 0
        sequences = self._start.sequences.copy()
        for merged in self._rounds(self._start, finish=False):
            for feed, high in zip(merged.feeds, merged.highs, strict=True):
                sequences[feed.number] = feed.batch.sequence[high - 1]
            count += len(merged.order)
            if count - places[-1].count >= _SPACING:
                places.append(_Place(count, sequences.copy()))
        return places

    def _rounds(self, place: _Place, *, finish: bool) -> Iterator[_Round]:
        """Sorts the messages behind a place."""
        waiting = self._waiting(place)
        active: dict[int, _Feed] = {}
        while waiting or active:
            bound = min((feed.end, number) for number, feed in active.items()) if active else None
            while waiting and (bound is None or waiting[-1][0] <= bound[0]):
                _, number = waiting.pop()
                feed = _Feed(number, self.parts[number][0], place, self._sizes, finish)
                if feed.load():
                    active[number] = feed
                    bound = min(bound, (feed.end, number)) if bound else (feed.end, number)
            if bound is None:
                continue
            yield _sorted([active[number] for number in sorted(active)], *bound)
            for number in [number for number, feed in active.items() if not feed.load()]:
                del active[number]

    def _waiting(self, place: _Place) -> list[tuple[int, int]]:
        """Returns the channels that have messages behind a place, the earliest last, with the time of the first one."""
        waiting = []
        for number, (channel, _) in enumerate(self.parts):
            after = int(place.sequences[number])
            if after < channel.sequences.last:
                # One that is given out in part goes on at once.
                waiting.append((_LOWEST if after else channel.first_timestamp, number))
        return sorted(waiting, reverse=True)


def _sorted(feeds: list[_Feed], key: int, number: int) -> _Round:
    """Puts all messages up to a bound into order, and takes them from their feeds."""
    round_feeds: list[_Feed] = []
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
    return _Round(round_feeds, lows, highs, sources[np.argsort(keys, kind="stable")])


class Prefix:
    """A source up to a sequence of the stream; itself a `StreamSource`.

    Args:
        source: The whole.
        last: The sequence.
    """

    def __init__(self, source: StreamSource, last: int) -> None:
        self._source = source
        self.last = last

    @property
    def parts(self) -> Sequence[tuple[ChannelSource, bytes]]:
        """The channels with the subjects that their messages get."""
        return self._source.parts

    @property
    def renumbered(self) -> bool:
        """Whether sequences in the stream are not those of the channel."""
        return self._source.renumbered

    @cached_property
    def count(self) -> int:
        """How many messages there are."""
        return sum(len(batch) for batch in self.read())

    @property
    def first(self) -> int:
        """The sequence of the first message, 0 if there is none."""
        return self._source.first if self.count else 0

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Batch]:
        """Yields the messages; see `ChannelSource.read`."""
        return self._source.read(after=after, until=self.last if until is None else min(until, self.last))

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Returns sequences in the stream for sequences of a channel."""
        return self._source.position(channel, sequences)
