"""What publishing needs of a source, and the gaps in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stantools.migration.batches import Batch
from stantools.store.ranges import U64


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
        """Yields the messages with higher sequences, in rising order."""


def missing(source: Source) -> int:
    """Returns how many sequences have no message between others or at the end: so many fillers it takes."""
    return source.last + 1 - source.first - source.count if source.count else 0


def gaps(batches: Iterator[Batch], after: int, until: int) -> Iterator[tuple[int, int]]:
    """Yields the closed ranges of sequences in (after, until] that no message has.

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
        reach: The sequence behind which the last messages are.
    """

    messages: int = 0
    gaps: deque[tuple[int, int]] = field(default_factory=deque)
    reach: int = 0


def extent(source: Source, until: int, gaps_kept: int = 0, last: int = 0, last_bytes: int = 0) -> Extent:
    """Measures the part of a source up to a sequence.

    Args:
        source: The source.
        until: The last sequence of the part.
        gaps_kept: How many sequences of gaps to keep, the last ones.
        last: How many sequences are the last ones, gaps included.
        last_bytes: Payload bytes that the last messages have together, at most, if it is more than one.
    """
    found = Extent(reach=max(until - last, source.first - 1, 0))
    tail: deque[tuple[U64, U64]] = deque()

    def counted() -> Iterator[Batch]:
        for batch in source.read():
            rows = int(np.searchsorted(batch.sequence, until, "right"))
            found.messages += rows
            tail.append((batch.sequence[:rows].copy(), batch.columns.data_size[:rows].astype(np.uint64)))
            while len(tail) > 1 and int(tail[1][0][0] if len(tail[1][0]) else until) <= found.reach:
                tail.popleft()
            yield batch
            if rows < len(batch):
                return

    excess = -gaps_kept
    for first, end in gaps(counted(), source.first - 1, until) if source.count else ():
        found.gaps.append((first, end))
        excess += end - first + 1
        while excess > 0:
            first, end = found.gaps.popleft()
            if (size := end - first + 1) > excess:
                found.gaps.appendleft((first + excess, end))
            excess -= min(size, excess)
    if found.messages:
        sequences, sizes = (np.concatenate(part) for part in zip(*tail, strict=True))
        behind = np.cumsum(sizes[::-1])[::-1] > last_bytes
        behind[-1] = False
        if behind.any():
            found.reach = max(found.reach, int(sequences[np.flatnonzero(behind)[-1]]))
    return found
