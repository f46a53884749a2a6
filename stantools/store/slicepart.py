"""Records of one batch that go into one slice: where they are, and where they will be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stantools.format.layout import RECORD_HEADER_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SlicePart:
    """Some records of a batch, all for the same slice.

    Args:
        source: Where the batch's records are.
        starts: Where they begin; None if they follow each other from the start of the source, which may then be
            referred to for as long as needed.
        sizes: Payload size of each.
        sequence: Sequence of each.
        timestamp: Timestamp of each.
        ends: Record lengths summed up.
        first: The first of the batch that belongs here.
        stop: The one behind the last.
    """

    def __init__(
        self,
        source: memoryview,
        starts: NDArray[np.int64] | None,
        sizes: NDArray[np.uint32],
        sequence: NDArray[np.uint64],
        timestamp: NDArray[np.int64],
        ends: NDArray[np.int64],
        first: int,
        stop: int,
    ) -> None:
        self._source = source
        self._starts = None if starts is None else starts[first:stop]
        self._ends = ends[first:stop]
        self._base = int(ends[first - 1]) if first else 0
        self.lasting = starts is None  #: the source may be referred to later
        self.sequence = sequence[first:stop]  #: sequence of each record
        self.timestamp = timestamp[first:stop]  #: timestamp of each
        self.sizes = sizes[first:stop]  #: payload size of each

    def place(self, at: int) -> tuple[int, NDArray[np.int64]]:
        """Returns the bytes of all records, and where each begins if they are written at an offset."""
        lengths = self.sizes + np.int64(RECORD_HEADER_SIZE)
        return int(self._ends[-1]) - self._base, self._ends - lengths + (at - self._base)

    def pieces(self) -> list[memoryview]:
        """Returns the records in as few pieces as possible."""
        starts, total = self._starts, int(self._ends[-1]) - self._base
        if starts is None:
            return [self._source[self._base : self._base + total]]
        stops = starts + self.sizes + np.int64(RECORD_HEADER_SIZE)
        cuts = np.flatnonzero(starts[1:] != stops[:-1])
        if not len(cuts):
            return [self._source[int(starts[0]) : int(stops[-1])]]
        begins = [int(starts[0]), *starts[cuts + 1].tolist()]
        return [
            self._source[begin:end] for begin, end in zip(begins, [*stops[cuts].tolist(), int(stops[-1])], strict=True)
        ]
