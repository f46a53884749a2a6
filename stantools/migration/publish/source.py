"""What publishing needs of a source, and the gaps in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stantools.migration.batches import Batch


class Source(Protocol):
    """Messages with rising sequences, as they should be in the stream."""

    @property
    def count(self) -> int:
        """How many messages there are."""

    @property
    def first(self) -> int:
        """The sequence of the first message, 0 if there is none."""

    @property
    def last(self) -> int:
        """The last sequence that ever was, also where there is no message with it."""

    def read(self, *, after: int = 0) -> Iterator[Batch]:
        """Gives the messages with higher sequences, in rising order."""


def missing(source: Source) -> int:
    """Tells how many sequences have no message between others or at the end: so many fillers it takes."""
    return source.last + 1 - source.first - source.count if source.count else 0


def gaps(batches: Iterator[Batch], after: int, until: int) -> Iterator[tuple[int, int]]:
    """Gives the closed ranges of sequences in (after, until] that no message has.

    Args:
        batches: The messages after `after`.
        after: Where to begin.
        until: Where to end.
    """
    for batch in batches:
        sequences = batch.sequence[batch.sequence <= until]
        if len(sequences):
            before = np.concatenate((np.array([after], np.uint64), sequences[:-1]))
            for row in np.flatnonzero(sequences - before > 1).tolist():
                yield int(before[row]) + 1, int(sequences[row]) - 1
            after = int(sequences[-1])
        if len(sequences) < len(batch):
            break
    if after < until:
        yield after + 1, until


@dataclass
class Extent:
    """The part of a source up to a sequence.

    Attributes:
        messages: How many there are.
        gaps: Ranges of sequences without a message, the last ones.
    """

    messages: int = 0
    gaps: deque[tuple[int, int]] = field(default_factory=deque)


def extent(source: Source, until: int, kept: int) -> Extent:
    """Measures the part of a source up to a sequence.

    Args:
        source: The source.
        until: The last sequence of the part.
        kept: How many sequences of gaps to keep, the last ones.
    """
    found = Extent()
    excess = -kept

    def counted() -> Iterator[Batch]:
        for batch in source.read():
            found.messages += int(np.count_nonzero(batch.sequence <= until))
            yield batch
            if int(batch.sequence[-1]) >= until:
                return

    for first, last in gaps(counted(), source.first - 1, until) if source.count else ():
        found.gaps.append((first, last))
        excess += last - first + 1
        while excess > 0:
            first, last = found.gaps.popleft()
            if (size := last - first + 1) > excess:
                found.gaps.appendleft((first + excess, last))
            excess -= min(size, excess)
    return found
