"""Indexes that are written say what is read from them."""

from __future__ import annotations

import random
import struct
from array import array
from types import ModuleType

import numpy as np
import pytest

from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash
from stantools.streamfiles.indexes import BlockEntry, StreamEntry, encode_index, read_index
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.records import tombstone

KEY = highwayhash.stream_key("S")
TIME = 1_700_000_000_000_000_000


def index(deleted: list[int]) -> bytes:
    stream = StreamEntry(9, 900, 10, TIME, 200_000, TIME + 5)
    blocks = [
        BlockEntry(2, 800, 10, TIME, 100_000, TIME + 1, np.array(deleted, np.int64), 0),
        BlockEntry(7, 100, 100_001, TIME + 2, 200_000, TIME + 5, np.zeros(0, np.int64), 3),
    ]
    return encode_index(stream, [(b"a.b", 8, 2, 2), (b"c", 1, 7, 7)], blocks, b"lasthash", KEY)


@pytest.mark.parametrize("count", [0, 1, 5, 3000])
def test_it_says_what_was_written(count: int) -> None:
    deleted = sorted(random.Random(count).sample(range(11, 100_000), count))
    known = read_index(index(deleted), KEY)
    assert (known.first, known.last, known.last_time) == (10, 200_000, TIME + 5)
    assert (known.messages, known.size, known.first_time, known.subjects) == (9, 900, TIME, 2)
    assert (known.subject_text, known.subject_sizes.tolist()) == (b"a.bc", [3, 1])
    assert (known.last_block, known.last_hash) == (7, b"lasthash")
    assert [(number, each.first, each.last) for number, each in known.blocks.items()] == [
        (2, 10, 100_000),
        (7, 100_001, 200_000),
    ]
    assert known.blocks[2].deleted.tolist() == deleted
    assert known.blocks[2].messages == 100_000 - 10 + 1 - count
    known.first = 50
    assert known.listed() == Ranges.of([(50, 200_000)]) - Ranges.of((each, each) for each in deleted)
    if count:
        # For servers: a balanced tree, parents first, after its numbers of nodes and sequences.
        stored = known.blocks[2].deleted_map
        nodes = [struct.unpack("<Q256xH", stored[at : at + 266]) for at in range(10, len(stored), 266)]
        assert struct.unpack("<II", stored[2:10]) == (len(nodes), count)
        assert sorted(base for base, _ in nodes) == sorted({each // 2048 * 2048 for each in deleted})
        assert_balanced(nodes)


def assert_balanced(nodes: list[tuple[int, int]]) -> int:
    """Returns the height of a tree of nodes with bases and heights."""
    if not nodes:
        return 0
    (base, height), *rest = nodes
    parts = [each for each in rest if each[0] < base], [each for each in rest if each[0] > base]
    assert rest == [*parts[0], *parts[1]]
    below = [assert_balanced(part) for part in parts]
    assert height == max(below) + 1 and abs(below[0] - below[1]) <= 1
    return height


def test_no_flipped_bit_is_believed() -> None:
    data = index([20, 30])
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(ArchiveError):
            read_index(bytes(damaged), KEY)


def test_tombstones(kernel: ModuleType) -> None:
    numbers, times = array("Q", [1, 5, 1 << 60]), array("q", [TIME, -1, 0])
    one_by_one = b"".join(tombstone(number, time, KEY) for number, time in zip(numbers, times, strict=True))
    encode = kernel.encode_tombstones
    assert encode(np.array(numbers, np.uint64), np.array(times, np.int64), KEY) == one_by_one
    with pytest.raises(ValueError, match="times"):
        encode(np.array(numbers, np.uint64), np.array(times[:2], np.int64), KEY)
