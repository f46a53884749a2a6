"""HighwayHash-64: the vectors of the migration spec, and all implementations alike."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.streamfiles import highwayhash
from tests.oracles import highway as oracle_highway
from tests.oracles import streamfiles as oracle
from tests.streamfiles.conftest import KERNELS

KEY = bytes(range(32))
#: Section 16: data 00, 01, 02, …
VECTORS = {
    0: "536ec222de567a90",
    1: "78ddcdc7aa43ab7e",
    3: "803d468aabef6b5c",
    4: "da7e009368a405f2",
    8: "71315fe5085120e1",
    15: "3bf349a4863f7940",
    16: "32b87ef98934abcf",
    17: "e2c0c5c8d267fe19",
    31: "685a03cf7c00c79f",
    32: "fc80d5ecd964c9a0",
    33: "fc8131a03cf7902c",
    63: "a03921bfe9eb8eab",
    64: "ffa6d24c5d2c5475",
}


def test_vectors(kernel: ModuleType) -> None:
    for size in VECTORS:
        assert kernel.hash64(bytes(range(size)), KEY).to_bytes(8, "little").hex() == VECTORS[size], size


@pytest.mark.parametrize("size", VECTORS)
def test_vectors_without_avx2(compiled: ModuleType, size: int) -> None:
    assert compiled.hash64(bytes(range(size)), KEY, True).to_bytes(8, "little").hex() == VECTORS[size]


def test_vectors_side_by_side() -> None:
    sizes = np.array(list(VECTORS), np.int64)
    rows = -(-sizes // 32)
    starts = np.cumsum(rows) - rows
    packets = np.zeros((int(rows.sum()), 32), np.uint8)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        packets.reshape(-1)[32 * start : 32 * start + size] = np.arange(size)
    found = oracle_highway.hash_padded(packets.view("<u8"), starts, sizes, KEY)
    assert [int(value).to_bytes(8, "little").hex() for value in found] == list(VECTORS.values())


def test_more_texts_than_are_hashed_side_by_side() -> None:
    sizes = np.arange(2 * oracle_highway.SIDE_BY_SIDE + 100) % 70
    rows = -(-sizes // 32)
    starts = np.cumsum(rows) - rows
    flat = np.zeros(32 * int(rows.sum()), np.uint8)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        flat[32 * start : 32 * start + size] = np.arange(size)
    found = oracle_highway.hash_padded(flat.view("<u8").reshape(-1, 4), starts, sizes, KEY)
    alone = {size: oracle.hash64(bytes(range(size)), KEY) for size in range(70)}
    assert found.tolist() == [alone[size] for size in sizes.tolist()]


def test_keys() -> None:
    assert highwayhash.stream_key("ORDERS").hex() == "d0d6efb188ea82c3cd3bc1b51990653384d7611ec990f74abce48a766fc10e37"
    assert (
        highwayhash.block_key("ORDERS", 1).hex() == "4743479c7497e0043c0ddff713dbd9f23b738a1f0b31f9c2443404cde6418e8c"
    )
    found = highwayhash.consumer_key("ORDERS", "dur1").hex()
    assert found == "fb9374a05730e587428a97e0a23c2f91e294c83296f872b38554974fd1447036"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_size_is_wrong_use(kernel: ModuleType, size: int) -> None:
    with pytest.raises(ValueError, match="key"):
        kernel.hash64(b"text", bytes(size))


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(data=st.binary(max_size=200), key=st.binary(min_size=32, max_size=32), cuts=st.lists(st.integers(0, 200)))
def test_all_agree(data: bytes, key: bytes, cuts: list[int]) -> None:
    compiled = KERNELS.compiled
    expected = oracle.hash64(data, key)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts[:15]), len(data)]
    parts = [data[begin:end] for begin, end in pairwise(places)]
    for portable in (False, True):
        assert compiled.hash64(data, key, portable) == expected
        assert compiled.hash_parts(parts, key, portable) == expected
