"""Ranges behave as sets of integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stantools.store.ranges import Ranges

small = st.sets(st.integers(0, 60))


def make(values: set[int]) -> Ranges:
    return Ranges.from_sequences(np.array(sorted(values, reverse=True), dtype=np.uint64))


def members(ranges: Ranges) -> set[int]:
    return {n for a, b in ranges for n in range(a, b + 1)}


@given(small, small)
def test_set_operations(a: set[int], b: set[int]) -> None:
    x, y = make(a), make(b)
    assert members(x) == a
    assert members(x | y) == a | b
    assert members(x & y) == a & b
    assert members(x - y) == a - b
    assert x.count() == len(a)
    assert members(x.holes()) == (set(range(min(a), max(a))) - a if a else set())
    assert (x == y) == (a == b)
    probe = np.arange(61, dtype=np.uint64)
    assert x.select(probe).tolist() == [n in a for n in range(61)]
    assert all((n in x) == (n in a) for n in range(61))


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=8))
def test_extreme_values(pairs: list[tuple[int, int]]) -> None:
    ranges = Ranges.of(pairs)
    flat = [n for pair in ranges for n in pair]
    assert flat == sorted(flat)
    assert (ranges | ranges.complement()).pairs() == [(0, 2**64 - 1)]
    assert not ranges & ranges.complement()
    for low, high in pairs:
        if low <= high:
            assert low in ranges and high in ranges


def test_adjacent_ranges_merge() -> None:
    assert Ranges.of([(4, 6), (1, 3), (8, 9)]).as_json() == [[1, 6], [8, 9]]
