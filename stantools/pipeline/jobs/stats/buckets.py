"""Histograms of whole numbers over many orders of magnitude: buckets whose width is a sixteenth of their size.

Two histograms of the same kind can be added, wherever they were made. A percentile taken from one is off by at most a
sixteenth (6.25 %); numbers below 32 are exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

#: Buckets for each power of two.
_PARTS = 16
_BITS = 4


def bucket_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the bucket of each number.

    Args:
        values: Numbers from 0 on.
    """
    _, exponent = np.frexp(values.astype(np.float64))
    shift = np.maximum(exponent.astype(np.int64) - 1 - _BITS, 0)
    # Rounding up to a float may have reached the next power of two.
    shift = np.where((values >> shift) < _PARTS, np.maximum(shift - 1, 0), shift)
    return (shift << _BITS) + (values >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    """Returns the lowest and the highest number of a bucket."""
    shift = max((bucket >> _BITS) - 1, 0)
    mantissa = bucket - (shift << _BITS)
    return mantissa << shift, ((mantissa + 1) << shift) - 1


def percentile(histogram: Mapping[int, int], share: float) -> int:
    """Returns the number that a share of all numbers does not exceed: the middle of its bucket.

    Args:
        histogram: Bucket -> how many.
        share: Between 0 and 1.
    """
    total = sum(histogram.values())
    if not total:
        return 0
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= share * total:
            break
    low, high = bounds_of(bucket)
    return (low + high) // 2
