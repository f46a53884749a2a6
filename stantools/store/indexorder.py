"""Index records looked up by the offset that they name, for indexes of any size.

An index names offsets in rising order; then nothing is copied and nothing is kept in memory. Only one that is out of
order is sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE
from stantools.store.mapping import Window

#: Index records that are looked at together.
_ROWS = 131072


class IndexOrder:
    """The records of an index in the order of the offsets that they name; equal ones in the order of the file.

    Nothing is looked at before the first question.

    Args:
        records: Good records of the index (`format.index.view`).
    """

    def __init__(self, records: npt.NDArray[np.void]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def place(self, offset: int) -> int:
        """Returns the place of the first record, in this order, that names this offset or one behind it."""
        if self._sorted is None:
            return bisect_left(self._records["offset"], offset)
        return int(np.searchsorted(self._sorted[1], offset))

    def position(self, place: int) -> int:
        """Returns the number of the record in the file, from 0."""
        return place if self._sorted is None else int(self._sorted[0][place])

    def offset(self, place: int) -> int:
        """Returns the offset that the record at a place names."""
        return int(self._records["offset"][self.position(place)])

    def size(self, place: int) -> int:
        """Returns the payload size that the record at a place names."""
        return int(self._records["size"][self.position(place)])

    def sequence(self, place: int) -> int:
        """Returns the sequence that the record at a place names."""
        return int(self._records["sequence"][self.position(place)])

    def match(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Finds the first record for each of many offsets.

        Args:
            offsets: Rising offsets.

        Returns:
            The numbers of the records in the file; -1 for an offset that no record names.
        """
        if self._sorted is None:
            low, high = self.place(int(offsets[0])), self.place(int(offsets[-1]) + 1)
            order, named = None, self._records["offset"][low:high].copy()
        else:
            low, (order, named) = 0, self._sorted
        found = np.full(len(offsets), -1, np.int64)
        if len(named):
            at = np.searchsorted(named, offsets)
            at[at == len(named)] = 0
            known = named[at] == offsets
            found[known] = at[known] + low if order is None else order[at[known]]
        return found

    @cached_property
    def _sorted(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]] | None:
        """The numbers of the records by offset, and the offsets; None if they rise in the file."""
        if self._rises():
            return None
        order = np.argsort(self._records["offset"], kind="stable")
        return order, self._records["offset"][order]

    def _rises(self) -> bool:
        base: object = self._records.base  # the mapped file, if `format.index.view` made the array
        window = Window(base) if isinstance(base, memoryview) else None
        for first in range(0, len(self._records), _ROWS):
            if window:
                window.reach(FILE_HEADER_SIZE + first * INDEX_RECORD_SIZE)
            # One more than a part, so that the step to the next part is looked at as well.
            offsets = self._records["offset"][first : first + _ROWS + 1]
            if bool((offsets[1:] <= offsets[:-1]).any()):
                return False
        return True
