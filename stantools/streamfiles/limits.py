"""Messages that the limits of a stream had removed before a server was killed: only a lost index would tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from stantools.store.ranges import Ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NONE: Final = 1 << 62


class BlockMessages(NamedTuple):
    """Messages of a block, in its order."""

    sequence: NDArray[np.uint64]
    length: NDArray[np.int64]  #: bytes of the record
    subject: NDArray[np.uint64]  #: hash of the subject


@dataclass(frozen=True, slots=True)
class StreamLimits:
    per_subject: int
    messages: int
    size: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        names = ("max_msgs_per_subject", "max_msgs", "max_bytes")
        return cls(*(limit if isinstance(limit := config.get(name), int) and limit > 0 else _NONE for name in names))

    def allow(self, messages: int, size: int) -> bool:
        """Returns whether a stream of that many messages and bytes is certainly within the limits."""
        return messages <= self.messages and size <= self.size and self.per_subject == _NONE

    def beyond(self, newest_first: Iterable[BlockMessages]) -> Ranges:
        """Returns the messages beyond the limits; `newest_first` are the blocks, the last one first."""
        counts: dict[int, int] = {}
        kept = kept_size = 0
        lowest = 1 << 63
        beyond: list[Ranges] = []
        full = False
        for each in newest_first:
            sequence, length, subject = each.sequence[::-1], each.length[::-1], each.subject[::-1]
            floors = np.concatenate((np.array([lowest], np.uint64), np.minimum.accumulate(sequence)))[:-1]
            fresh = sequence < np.minimum(floors, np.uint64(lowest))
            sequence, length, subject = sequence[fresh], length[fresh], subject[fresh]
            if not len(sequence):
                continue
            lowest = int(sequence[-1])
            if full:
                beyond.append(Ranges.from_sequences(sequence[::-1]))
                continue
            within = _ranks(subject, counts) < self.per_subject
            numbers, sizes = kept + np.cumsum(within), kept_size + np.cumsum(np.where(within, length, 0))
            over = np.flatnonzero(within & ((numbers > self.messages) | (sizes > self.size)))
            if len(over):
                within[over[0] :], full = False, True
            kept, kept_size = int(numbers[-1]), int(sizes[-1])
            beyond.append(Ranges.from_sequences(sequence[~within][::-1]))
        return Ranges.union(beyond)


def _ranks(subjects: NDArray[np.uint64], counts: dict[int, int]) -> NDArray[np.int64]:
    """Returns how many messages of the same subject precede each one, and adds them to the counts."""
    unique, places, sizes = np.unique(subjects, return_inverse=True, return_counts=True)
    places = places.reshape(-1)
    order = np.argsort(places, kind="stable")
    starts = np.cumsum(sizes) - sizes
    ranks = np.empty(len(subjects), np.int64)
    ranks[order] = np.arange(len(subjects)) - np.repeat(starts, sizes)
    before = np.array([counts.get(each, 0) for each in unique.tolist()], np.int64)
    counts.update(zip(unique.tolist(), (before + sizes).tolist(), strict=True))
    found: NDArray[np.int64] = ranks + before[places]
    return found
