"""Pieces of different sizes in flat arrays: small ones many at a time with numpy, large ones as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: From this size on it is faster to copy a piece on its own.
_LARGE: Final = 256
#: Bytes whose places are worked out at once: eight bytes are needed for each.
_GROUP: Final = 1 << 18


def counts_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns 0, 1, … for each count: [2, 0, 3] gives [0, 1, 0, 1, 2]."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)


def copy_pieces(
    source: NDArray[np.uint8],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    target: NDArray[np.uint8],
    place: NDArray[np.int64],
) -> None:
    """Copies pieces of one array of bytes into another.

    Args:
        source: Where they are.
        start: Where each begins; of an empty one it does not matter.
        size: The size of each.
        target: Where they go.
        place: Where each goes to.
    """
    large = size >= _LARGE
    if large.any():
        read, write = source.data, target.data
        rows = (column[large].tolist() for column in (start, size, place))
        for origin, count, goal in zip(*rows, strict=True):
            write[goal : goal + count] = read[origin : origin + count]
        start, size, place = start[~large], size[~large], place[~large]
    ends = np.cumsum(size)
    begin = 0
    while begin < len(size):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _GROUP, "right")))
        part = slice(begin, end)
        counts = size[part]
        within = np.arange(int(ends[end - 1]) - done, dtype=np.int64)
        first = ends[part] - counts - done
        target[within + np.repeat(place[part] - first, counts)] = source[
            within + np.repeat(start[part] - first, counts)
        ]
        begin = end
