"""Sets of sequences as closed ranges: small as long as sequences are mostly contiguous.

A `Ranges` holds two sorted arrays, the first and last sequences of ranges that never touch or overlap. Sequences are
unsigned 64-bit.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Self, TypeAlias

from stantools.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

U64: TypeAlias = "NDArray[np.uint64]"
_EMPTY = array("Q")


@dataclass(frozen=True)
class Bounds:
    """A selection of messages; None is no bound."""

    first: int | None = None  #: lowest sequence; a negative one counts from the end, -1 is the last message
    last: int | None = None  #: highest sequence, included
    since: int | None = None  #: minimum timestamp, nanoseconds since 1970
    until: int | None = None  #: timestamps are below this

    @property
    def counts_from_end(self) -> bool:
        """The selection depends on the last sequence of the channel."""
        return (self.first or 0) < 0 or (self.last or 0) < 0

    def resolved(self, end: int) -> Self:
        """Returns the same selection with sequences counted from the end `end` made absolute."""
        first, last = (
            each if each is None or each >= 0 else max(end + 1 + each, 0) for each in (self.first, self.last)
        )
        return replace(self, first=first, last=last)


class Ranges:
    __slots__ = ("_first", "_last")

    def __init__(self, first: array[int] = _EMPTY, last: array[int] = _EMPTY) -> None:
        self._first = first
        self._last = last

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int] | list[int]]) -> Ranges:
        """Builds a set from closed ranges in any order, overlapping or not."""
        return cls._joined(sorted((int(a), int(b)) for a, b in pairs if a <= b))

    @classmethod
    def from_sequences(cls, sequences: U64) -> Ranges:
        """Builds a set from single sequences in any order, repeated or not."""
        if not len(sequences):
            return cls()
        if len(sequences) > 1 and bool((sequences[1:] <= sequences[:-1]).any()):
            sequences = np.unique(sequences)
        cuts = np.flatnonzero(sequences[1:] - sequences[:-1] != 1)
        starts = np.concatenate(([0], cuts + 1))
        ends = np.concatenate((cuts, [len(sequences) - 1]))
        return cls(array("Q", sequences[starts].tobytes()), array("Q", sequences[ends].tobytes()))

    @classmethod
    def union(cls, sets: Iterable[Ranges]) -> Ranges:
        parts = [each for each in sets if each]
        if len(parts) <= 1:
            return parts[0] if parts else cls()
        return cls._joined(sorted(chain.from_iterable(parts)))

    @classmethod
    def _joined(cls, pairs: Iterable[tuple[int, int]]) -> Ranges:
        """Merges ranges, sorted by their first sequences, that touch or overlap."""
        first, last, end = array("Q"), array("Q"), -2
        for low, high in pairs:
            if low > end + 1:
                first.append(low)
                last.append(high)
                end = high
            elif high > end:
                last[-1] = end = high
        return cls(first, last)

    def __bool__(self) -> bool:
        return len(self._first) > 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._first, self._last, strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self._first == other._first and self._last == other._last

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges.of({self.pairs()})"

    def __contains__(self, sequence: int) -> bool:
        return self.meets(sequence, sequence)

    def meets(self, first: int, last: int) -> bool:
        """Returns whether any sequence of a range is in the set."""
        at = bisect_right(self._first, last) - 1
        return at >= 0 and first <= self._last[at]

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges.union((self, other))

    def __sub__(self, other: Ranges) -> Ranges:
        return self & other.complement() if self and other else self

    def __and__(self, other: Ranges) -> Ranges:
        if not self or not other or self.first > other.last or other.first > self.last:
            return Ranges()
        pairs: list[tuple[int, int]] = []
        first, last = max(self.first, other.first), min(self.last, other.last)
        mine, theirs = self._part(first, last), other._part(first, last)
        i = j = 0
        while i < len(mine) and j < len(theirs):
            low, high = max(mine[i][0], theirs[j][0]), min(mine[i][1], theirs[j][1])
            if low <= high:
                pairs.append((low, high))
            if mine[i][1] < theirs[j][1]:
                i += 1
            else:
                j += 1
        return Ranges.of(pairs)

    def _part(self, first: int, last: int) -> list[tuple[int, int]]:
        """Returns the ranges that have a sequence between two bounds."""
        low, high = bisect_left(self._last, first), bisect_right(self._first, last)
        return list(zip(self._first[low:high], self._last[low:high], strict=True))

    def complement(self) -> Ranges:
        pairs, low = [], 0
        for first, last in self:
            if first > low:
                pairs.append((low, first - 1))
            low = last + 1
        if low < 2**64:
            pairs.append((low, 2**64 - 1))
        return Ranges.of(pairs)

    def holes(self) -> Ranges:
        """Returns the missing sequences between the first and the last one."""
        behind, before = (end + 1 for end in self._last[:-1]), (begin - 1 for begin in self._first[1:])
        return Ranges(array("Q", behind), array("Q", before))

    def select(self, sequences: U64) -> NDArray[np.bool_]:
        """Returns, for each sequence of an array, whether it is in the set."""
        if not self:
            return np.zeros(len(sequences), dtype=bool)
        at = np.searchsorted(np.asarray(self._first), sequences, side="right").astype(np.int64) - 1
        inside: NDArray[np.bool_] = (at >= 0) & (sequences <= np.asarray(self._last)[np.maximum(at, 0)])
        return inside

    @property
    def first(self) -> int:
        return self._first[0] if self else 0

    @property
    def last(self) -> int:
        return self._last[-1] if self else 0

    def count(self) -> int:
        return sum(last - first + 1 for first, last in self)

    def pairs(self) -> list[tuple[int, int]]:
        return list(self)

    def as_json(self) -> list[list[int]]:
        """Returns the ranges as `[[a, b], …]`, as in all json output."""
        return [[first, last] for first, last in self]
