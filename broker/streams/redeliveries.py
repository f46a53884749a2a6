"""How often messages of a consumer were delivered again."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: positions that the order may have more than twice the redeliveries
_SPARE: Final = 64


class Redeliveries(dict[int, int]):
    """Counts by stream sequence, in no order; the oldest ones are found without a look at the others."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        super().__init__(counts or {})
        #: a heap of all sequences, and of some that are forgotten
        self._oldest = sorted(self)

    def __setitem__(self, sequence: int, count: int) -> None:
        if sequence not in self:
            if len(self._oldest) > 2 * len(self) + _SPARE:
                self._oldest = sorted(self)
            heappush(self._oldest, sequence)
        super().__setitem__(sequence, count)

    def forget_below(self, end: int, exists: Callable[[int], bool]) -> None:
        """Forgets sequences below one that no longer exist."""
        kept = []
        while self._oldest and self._oldest[0] < end:
            sequence = heappop(self._oldest)
            if sequence in self:
                if exists(sequence):
                    kept.append(sequence)
                else:
                    del self[sequence]
        for sequence in kept:
            heappush(self._oldest, sequence)
