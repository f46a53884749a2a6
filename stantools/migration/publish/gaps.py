"""The sequences that have no message, which publishing has to fill, and how far messages go up to a sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stantools.errors import RefusedError
from stantools.store.ranges import U64
from stantools.streamfiles.batch import Batch, Messages


def missing(source: Messages) -> int:
    """Returns how many sequences have no message between others or at the end: so many fillers it takes."""
    return source.last + 1 - source.first - source.count if source.count else 0


def check_fillers(name: str, lacking: int, limit: int) -> None:
    """Checks that not too many sequences of a stream have to be filled and emptied again.

    Raises:
        RefusedError: There are too many.
    """
    if lacking > limit:
        raise RefusedError(
            f"stream {name}: {lacking} sequences have no message, and publishing leaves a gap only by filling and "
            f"emptying it; the limit is {limit}",
            "restore an archive, which can have gaps of any size, or allow more fillers",
        )


def gaps(batches: Iterator[Batch], after: int, until: int) -> Iterator[tuple[int, int]]:
    """Yields the closed ranges of sequences in (after, until] that no message has.

    Args:
        batches: The messages in (after, until].
        after: Where to begin.
        until: Where to end.
    """
    for batch in batches:
        sequences = batch.sequence
        before = np.concatenate((np.array([after], np.uint64), sequences[:-1]))
        for row in np.flatnonzero(sequences - before > 1).tolist():
            yield int(before[row]) + 1, int(sequences[row]) - 1
        after = int(sequences[-1])
    if after < until:
        yield after + 1, until


@dataclass
class Extent:
    """The part of a source up to a sequence."""

    messages: int = 0  #: how many there are
    gaps: deque[tuple[int, int]] = field(default_factory=deque)  #: ranges of sequences without a message, the last ones
    reach: int = 0  #: the sequence behind which the last messages are


def extent(source: Messages, until: int, gaps_kept: int = 0, last: int = 0, last_bytes: int = 0) -> Extent:
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
        for batch in source.read(until=until):
            found.messages += len(batch)
            tail.append((batch.sequence.copy(), batch.columns.data_size.astype(np.uint64)))
            while len(tail) > 1 and int(tail[1][0][0]) <= found.reach:
                tail.popleft()
            yield batch

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
