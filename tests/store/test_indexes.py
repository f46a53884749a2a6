"""Indexes of any size and order are counted, gone through and looked up; what the answers are does not depend on it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format import index, kernels
from stantools.format.crc import IEEE, Crc
from stantools.format.layout import FILE_HEADER, FILE_VERSION, ScanStop
from stantools.store import indexes
from stantools.store.indexes import IndexOrder, IndexView, index_parts, scan_index
from stantools.store.mapping import mapped

CRC = Crc(IEEE)


def encode(offsets: list[int]) -> bytes:
    """An index; sequences count the records from 1, sizes are the sequence times 10."""
    sequence = np.arange(1, len(offsets) + 1, dtype=np.uint64)
    size = (sequence * 10).astype(np.uint32)
    records = kernels.encode_index(sequence, np.array(offsets, np.int64), sequence.astype(np.int64), size, CRC)
    return FILE_HEADER.pack(FILE_VERSION) + records


def records(offsets: list[int]) -> IndexView:
    return index.view(memoryview(encode(offsets)), len(offsets))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of three records, so that a few records are several parts."""
    monkeypatch.setattr(indexes, "INDEX_ROWS", 3)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_whole_records_are_counted_up_to_the_end(tmp_path: Path, count: int) -> None:
    path = tmp_path / "msgs.1.idx"
    path.write_bytes(encode(list(range(4, 4 + count))))
    with mapped(path) as buffer:
        assert scan_index(buffer, CRC)[:2] == (count, ScanStop.END)
        parts = [part["offset"].tolist() for part in index_parts(index.view(buffer, count))]
    assert [offset for part in parts for offset in part] == list(range(4, 4 + count))
    assert all(len(part) == 3 for part in parts[:-1])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("stop", [ScanStop.BAD_CRC, ScanStop.ZEROS, ScanStop.SHORT_HEADER])
def test_counting_stops_at_the_first_bad_record(at: int, stop: ScanStop) -> None:
    data = bytearray(encode(list(range(4, 11))))
    begin = 4 + 32 * at
    if stop is ScanStop.BAD_CRC:
        data[begin] ^= 1
    elif stop is ScanStop.ZEROS:
        data[begin : begin + 32] = bytes(32)
    else:
        del data[begin + 5 :]
    assert scan_index(memoryview(bytes(data)), CRC)[:2] == (at, stop)
    if stop is ScanStop.BAD_CRC:
        assert scan_index(memoryview(bytes(data)), CRC.unchecked)[:2] == (7, ScanStop.END)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("sequences", [[], [5], [*range(1, 9)], [1, 2, 3, 3, 4], [0, 4, 6, 2, 9, 10], [9, 8]])
def test_sizes_are_summed_and_sequences_compared_from_part_to_part(sequences: list[int]) -> None:
    sizes = [10 * each for each in sequences]
    data = FILE_HEADER.pack(FILE_VERSION) + kernels.encode_index(sequences, sequences, sequences, sizes, CRC)
    rises = all(one < two for one, two in pairwise(sequences))
    assert scan_index(memoryview(data), CRC) == (len(sequences), ScanStop.END, sum(sizes), rises)


@settings(max_examples=200, deadline=None)
@given(
    offsets=st.one_of(
        st.lists(st.integers(-5, 40), max_size=20),
        st.lists(st.integers(-5, 40), max_size=20, unique=True).map(sorted),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8),
    ),
    wanted=st.lists(st.integers(-8, 45), min_size=1, max_size=20, unique=True).map(sorted),
    rows=st.integers(1, 8),
)
def test_records_are_found_by_offset_in_any_order(offsets: list[int], wanted: list[int], rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexes, "INDEX_ROWS", rows)
        order = IndexOrder(records(offsets))
        expected = sorted(range(len(offsets)), key=lambda position: offsets[position])
        assert len(order) == len(offsets)
        assert [order.position(place) for place in range(len(order))] == expected
        for place, position in enumerate(expected):
            assert order.offset(place) == offsets[position]
            assert (order.sequence(place), order.size(place)) == (position + 1, 10 * position + 10)
        for offset in wanted:
            assert order.place(offset) == sum(each < offset for each in offsets)
        found = order.match(np.array(wanted, np.int64)).tolist()
        assert found == [offsets.index(offset) if offset in offsets else -1 for offset in wanted]
