"""Copying parts of a file one behind the other: both kernels do the same and read nothing outside of the file."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.format.conftest import KERNELS

numbers = st.one_of(st.integers(0, 40), st.sampled_from([-1, -(2**63), 2**63 - 1, 2**31, 2**32 - 1]))


@pytest.mark.parametrize("kernels", KERNELS.each)
@settings(deadline=None)
@given(data=st.binary(max_size=30), parts=st.lists(st.tuples(numbers, numbers), max_size=6), excess=st.integers(-1, 1))
def test_gather(kernels: ModuleType, data: bytes, parts: list[tuple[int, int]], excess: int) -> None:
    sizes = [size % 2**32 for _, size in parts]
    starts = [start for start, _ in parts]
    inside = all(
        not size or (start >= 0 and start + size <= len(data)) for start, size in zip(starts, sizes, strict=True)
    )
    expected = [data[start : start + size] if size else b"" for start, size in zip(starts, sizes, strict=True)]
    total = sum(map(len, expected)) if inside else 7
    offsets = np.full(len(parts) + 1, -1, np.int32)
    target = np.zeros(max(total + excess, 0), np.uint8)
    arguments = (data, np.array(starts, np.int64), np.array(sizes, np.uint32), offsets, target)
    if inside and len(target) == total:
        kernels.gather(*arguments)
        assert target.tobytes() == b"".join(expected)
        assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
        return
    with pytest.raises(ValueError, match=r"outside of the buffer|room for|offsets"):
        kernels.gather(*arguments)


@pytest.mark.parametrize("kernels", KERNELS.each)
def test_as_many_offsets_and_sizes_as_parts(kernels: ModuleType) -> None:
    starts, sizes, target = np.zeros(2, np.int64), np.zeros(2, np.uint32), np.zeros(0, np.uint8)
    for wrong in (2, 4):
        with pytest.raises(ValueError, match="offsets"):
            kernels.gather(b"abc", starts, sizes, np.zeros(wrong, np.int32), target)
    with pytest.raises(ValueError, match="offsets"):
        kernels.gather(b"abc", starts, sizes[:1], np.zeros(3, np.int32), target)
