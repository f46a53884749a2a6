"""The beginning of a source: what an earlier migration of the same channel can have moved already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from stantools.migration.batches import Batch
from stantools.migration.merge import StreamSource
from stantools.migration.source import ChannelSource


class Beginning:
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
        """Gives the messages; see `ChannelSource.read`."""
        return self._source.read(after=after, until=self.last if until is None else min(until, self.last))

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Returns sequences in the stream for sequences of a channel."""
        return self._source.position(channel, sequences)
