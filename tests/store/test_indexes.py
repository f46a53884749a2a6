"""Indexes of any size and order are counted, gone through and looked up; what the answers are does not depend on it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.format.layout import FILE_HEADER, FILE_VERSION, ScanStop
from stantools.store import indexes
from stantools.store.indexes import IndexOrder, SliceIndex, scan_index
from stantools.store.mapping import mapped

CRC = Crc(IEEE)


def encode(offsets: list[int]) -> bytes:
    """An index; sequences count the records from 1, sizes are the sequence times 10."""
    sequence = np.arange(1, len(offsets) + 1, dtype=np.uint64)
    size = (sequence * 10).astype(np.uint32)
    records = kernels.encode_index(sequence, np.array(offsets, np.int64), sequence.astype(np.int64), size, CRC)
    return FILE_HEADER.pack(FILE_VERSION) + records


def records(offsets: list[int]) -> SliceIndex:
    return SliceIndex(memoryview(encode(offsets)), len(offsets))


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
        parts = [part.offset.tolist() for part in SliceIndex(buffer, count).parts()]
    assert [offset for part in parts for offset in part] == list(range(4, 4 + count))
    assert all(len(part) == 3 for part in parts[:-1])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("stop", [ScanStop.BAD_CRC, ScanStop.ZEROS, ScanStop.SHORT_HEADER])
def test_counting_stops_at_the_first_bad_record(stop: ScanStop) -> None:
    for at in range(7):
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
            assert scan_index(memoryview(bytes(data)), CRC.unchecked)[:2] == (7, ScanStop.END), at


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
        for place, position in enumerate(expected):
            found = order[place]
            assert (found.offset, found.sequence, found.size) == (offsets[position], position + 1, 10 * position + 10)
        for offset in wanted:
            assert order.place(offset) == sum(each < offset for each in offsets)
        matched = order.match(np.array(wanted, np.int64)).tolist()
        assert matched == [offsets.index(offset) if offset in offsets else -1 for offset in wanted]


@pytest.mark.parametrize("mapping", [True, False], ids=["mapped", "read in pieces"])
def test_rows_lead_to_places(tmp_path: Path, *, mapping: bool) -> None:
    path = tmp_path / "msgs.1.idx"
    path.write_bytes(encode([4, 22, 50]))
    with mapped(path) as buffer, path.open("rb") as file:

        def read(at: int, size: int) -> bytes:
            file.seek(at)
            return file.read(size)

        index = SliceIndex(buffer if mapping else read, 3)
        assert [(each.sequence, each.offset, each.end) for each in (index[0], index[1], index[-1])] == [
            (1, 4, 22),
            (2, 22, 50),
            (3, 50, 88),
        ]
        assert index.rows(1).offset.tolist() == index.rows(1, 3).offset.tolist() == [22, 50]
        assert [index.first("offset", offset) for offset in (0, 4, 5, 50, 51)] == [0, 0, 1, 2, 3]
        assert index.first("sequence", 1, 2) == 2
        assert index[0].proven(CRC)
        assert not index[0]._replace(size=11).proven(CRC)


@pytest.mark.parametrize(("offsets", "consecutive"), [([], True), ([4], True), ([4, 22, 50], True), ([4, 23], False)])
def test_records_are_consecutive_if_each_begins_where_the_one_before_ends(
    offsets: list[int], *, consecutive: bool
) -> None:
    assert records(offsets).rows().consecutive is consecutive


def test_records_with_wrong_crc_are_not_good_rows() -> None:
    data = bytearray(encode([4, 22, 50, 88]))
    data[4 + 2 * 32] ^= 1
    index = SliceIndex(memoryview(bytes(data)), 4)
    assert [index.good_rows(low, 4, CRC) for low in range(5)] == [2, 1, 0, 1, 0]


def test_an_index_that_became_shorter_is_an_error() -> None:
    content = encode([4, 22])[:-1]
    index = SliceIndex(lambda at, size: content[at : at + size], 2)
    assert index[0].offset == 4
    assert index.rows().offset.tolist() == [4]
    with pytest.raises(OSError, match="has become shorter"):
        index[1]
    with pytest.raises(ValueError, match="2 index records in 67 bytes"):
        SliceIndex(memoryview(content), 2)
    assert len(SliceIndex.whole(memoryview(content))) == 1
