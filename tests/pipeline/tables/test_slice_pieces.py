"""Pieces of a slice give together what the slice gives in one go, whatever is in it; or reading them says that not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE
from stantools.pipeline.tables import slice_pieces
from stantools.pipeline.tables.message_rows import read_piece
from stantools.pipeline.tables.model import Mode, ReadCounter, SlicePiece, SliceRef, StoreRef
from stantools.pipeline.tables.slice_pieces import split_slice
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.indexes import SliceIndex
from stantools.store.ranges import Bounds
from tests.pipeline.tables.reading import batches_of, found_damages, rows_of

CRC = Crc(IEEE)
CHANNEL = "orders.eu"
HEADER = b"\1\0\0\0"
START = 1_700_000_000_000_000_000
STEP = 1_000_003
OPTIONS = TableOptions(("",))


def slice_content(payloads: list[bytes], first: int = 1, times: list[int] | None = None) -> tuple[bytes, bytes]:
    """Data file and index of messages."""
    numbers = np.arange(first, first + len(payloads), dtype=np.uint64)
    stamps = START + np.arange(len(payloads), dtype=np.int64) * STEP if times is None else np.array(times, np.int64)
    records, sizes = kernels.encode_messages(CHANNEL.encode(), numbers, stamps, None, payloads, CRC)
    lengths = sizes.astype(np.int64) + RECORD_HEADER_SIZE
    starts = FILE_HEADER_SIZE + np.cumsum(lengths) - lengths
    return HEADER + records, HEADER + kernels.encode_index(numbers, starts, stamps, sizes, CRC)


def write_slice(place: Path, data: bytes, index: bytes | None) -> SliceRef:
    """Puts a slice into a store."""
    directory = place / CHANNEL
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "msgs.1.dat").write_bytes(data)
    name = directory / "msgs.1.idx"
    if index is None:
        name.unlink(missing_ok=True)
    else:
        name.write_bytes(index)
    return SliceRef(
        StoreRef(str(place), IEEE),
        CHANNEL,
        1,
        False,
        str(directory / "msgs.1.dat"),
        None if index is None else str(name),
        len(data),
        0 if index is None else len(index),
    )


@st.composite
def contents(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A slice in any state; payloads may hold whole slices."""
    inner = st.integers(1, 6).map(lambda count: slice_content([b"inner %d" % i for i in range(count)], first=100)[0])
    payload = st.one_of(
        st.binary(max_size=40),
        st.just(bytes(64)),
        inner,
        st.builds(lambda a, b, c: a + b + c, st.binary(max_size=9), inner, st.binary(max_size=9)),
    )
    payloads = draw(st.lists(payload, min_size=1, max_size=24))
    whole, index = slice_content(payloads)
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(FILE_HEADER_SIZE, len(data) - 1))
        new = draw(st.one_of(st.binary(min_size=1, max_size=20), st.integers(1, 60).map(bytes)))[: len(data) - at]
        data[at : at + len(new)] = new
    if draw(st.booleans()):
        del data[draw(st.integers(FILE_HEADER_SIZE, len(data))) :]
    entries = bytearray(index)
    match draw(st.sampled_from(["good", "none", "short", "hurt"])):
        case "none":
            return bytes(data), None
        case "short":
            del entries[draw(st.integers(0, len(entries))) :]
        case "hurt":
            at = draw(st.integers(0, len(entries) - 1))
            entries[at] ^= draw(st.integers(1, 255))
    return bytes(data), bytes(entries)


def in_pieces(ref: SliceRef, options: TableOptions, size: int) -> list[dict[str, Any]]:
    rows = rows_of(ref, replace(options, split_bytes=size))
    assert all(part.slice == ref for part in split_slice(ref, replace(options, split_bytes=size)))
    return rows


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents(), size=st.integers(1, 900))
def test_pieces_are_the_whole(content: tuple[bytes, bytes | None], size: int, tmp_path: Path) -> None:
    ref = write_slice(tmp_path, *content)
    assert in_pieces(ref, OPTIONS, size) == rows_of(ref, OPTIONS)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents(), size=st.integers(1, 400), proof=st.integers(1, 150), check_crc=st.booleans())
def test_a_wrong_cut_is_noticed(
    content: tuple[bytes, bytes | None], size: int, proof: int, check_crc: bool, tmp_path: Path
) -> None:
    """With too little proof, places inside of payloads are cut at; without CRCs, damaged lengths lead astray."""
    ref = write_slice(tmp_path, *content)
    options = replace(OPTIONS, check_crc=check_crc)
    whole = rows_of(ref, options)
    with patch.object(slice_pieces, "_PROOF_BYTES", proof):
        try:
            rows = in_pieces(ref, options, size)
        except StoreUnreadableError as error:
            assert "was cut at offset" in error.message and "splitBytes" in error.remedy
        else:
            assert rows == whole


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=contents(),
    sizes=st.lists(st.integers(1, 700), min_size=2, max_size=2),
    bounds=st.builds(
        Bounds,
        st.one_of(st.none(), st.integers(0, 26)),
        st.one_of(st.none(), st.integers(0, 26)),
        st.one_of(st.none(), st.integers(0, 26).map(lambda n: START + n * STEP)),
        st.one_of(st.none(), st.integers(0, 26).map(lambda n: START + n * STEP)),
    ),
)
def test_bounds(content: tuple[bytes, bytes | None], sizes: list[int], bounds: Bounds, tmp_path: Path) -> None:
    ref = write_slice(tmp_path, *content)
    options = replace(OPTIONS, bounds=bounds)
    found = rows_of(ref, options)
    for size in sizes:
        assert in_pieces(ref, options, size) == found
    wanted = [
        row
        for row in rows_of(ref, OPTIONS)
        if row["timestamp_ns"] is not None
        and (bounds.first is None or row["seq"] >= bounds.first)
        and (bounds.last is None or row["seq"] <= bounds.last)
        and (bounds.since is None or row["timestamp_ns"] >= bounds.since)
        and (bounds.until is None or row["timestamp_ns"] < bounds.until)
    ]
    named = named_offsets(content[1])
    hidden = [row for row in wanted if row["offset"] not in named and row["offset"] < max(named, default=0)]
    # What is taken for a message within a damaged one is skipped with it where the index leads elsewhere.
    assert [row for row in wanted if row in found] == [row for row in found if row["timestamp_ns"] is not None]
    assert all(row in hidden for row in wanted if row not in found)


def named_offsets(index: bytes | None) -> set[int]:
    content = index or HEADER
    return set(SliceIndex.whole(memoryview(content)).rows().offset.tolist())


MANY = slice_content([b"payload %d" % number for number in range(5000)])


@pytest.fixture
def many(tmp_path: Path) -> SliceRef:
    return write_slice(tmp_path, *MANY)


def counted(ref: SliceRef, options: TableOptions) -> tuple[list[SlicePiece], int, ReadCounter]:
    counter = ReadCounter()
    parts = split_slice(ref, options, counter)
    rows = sum(batch.num_rows for part in parts for batch in read_piece(part, options, counter))
    return parts, rows, counter


def test_small_slices_are_not_looked_at(tmp_path: Path) -> None:
    ref = replace(write_slice(tmp_path, *MANY), data=str(tmp_path / "gone"), data_size=1000)
    assert split_slice(ref, OPTIONS) == [SlicePiece(ref, FILE_HEADER_SIZE, 1000)]


def test_pieces_are_about_as_big_as_asked_for(many: SliceRef) -> None:
    parts, rows, counter = counted(many, replace(OPTIONS, split_bytes=20_000))
    assert rows == 5000
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert len(parts) == -(-many.data_size // 20_000)
    assert all(19_000 < part.cost < 20_100 for part in parts)
    assert counter.index_bytes < 33 * INDEX_RECORD_SIZE * len(parts)
    assert counter.data_bytes < many.data_size + 100 * len(parts)


def test_without_an_index_places_are_searched_for(tmp_path: Path) -> None:
    ref = write_slice(tmp_path, MANY[0], None)
    with patch.object(slice_pieces, "_PROOF_BYTES", 1000):
        parts, rows, counter = counted(ref, replace(OPTIONS, split_bytes=20_000))
    assert rows == 5000 and len(parts) == -(-ref.data_size // 20_000)
    assert counter.data_bytes < ref.data_size + 50_000 * len(parts) and not counter.index_bytes


def test_no_cut_within_payloads_that_hold_slices(tmp_path: Path) -> None:
    """Neither inside of a whole file in a payload, nor inside of its parts after something that looks like damage."""
    inner = slice_content([b"inner %d" % number for number in range(300)], first=100)[0]
    payloads = [b"a", inner, b"b", inner[40:] + b"tail", inner * 3 + b"\0" * 100, b"c"] * 4
    data, index = slice_content(payloads)
    for entries in (None, index, index[: len(index) // 2], b"\1\0\0\0"):
        ref = write_slice(tmp_path, data, entries)
        whole = rows_of(ref, OPTIONS)
        assert len(whole) == 24
        for size in (1, 999, 20_000):
            assert in_pieces(ref, OPTIONS, size) == whole
            assert len(split_slice(ref, replace(OPTIONS, split_bytes=size))) > 2


def test_a_wrong_cut_names_the_remedy(many: SliceRef) -> None:
    """In every mode: rows of the next piece would be wrong."""
    for mode in Mode:
        with pytest.raises(StoreUnreadableError, match=r"was cut at offset 1001 .* ends at offset 1\d\d\d") as caught:
            list(read_piece(SlicePiece(many, FILE_HEADER_SIZE, 1001), replace(OPTIONS, mode=mode)))
        assert f"set splitBytes to {many.data_size} or more" in caught.value.remedy


def test_bounds_leave_out_slices_and_parts(many: SliceRef) -> None:
    size = many.data_size
    for bounds in (Bounds(first=6000), Bounds(last=0), Bounds(until=START), Bounds(since=START + 5000 * STEP)):
        assert split_slice(many, replace(OPTIONS, bounds=bounds)) == []
    for bounds, wanted in (
        (Bounds(first=4990), 11),
        (Bounds(last=7), 7),
        (Bounds(1000, 1009), 10),
        (Bounds(since=START + 4000 * STEP, until=START + 4005 * STEP), 5),
    ):
        parts, rows, counter = counted(many, replace(OPTIONS, bounds=bounds))
        assert rows == wanted
        assert sum(part.cost for part in parts) < size / 300
        assert counter.data_bytes < size / 200 and counter.index_bytes == len(MANY[1])


def test_bounds_that_exclude_everything_or_nothing(many: SliceRef) -> None:
    for bounds in (Bounds(last=-1), Bounds(first=1 << 64), Bounds(since=1 << 63), Bounds(until=-(1 << 63))):
        options = replace(OPTIONS, bounds=bounds)
        assert split_slice(many, options) == []
        assert list(read_piece(SlicePiece(many, FILE_HEADER_SIZE, many.data_size), options)) == []
    wide = Bounds(-5, 1 << 65, -(1 << 70), 1 << 70)
    assert len(rows_of(many, replace(OPTIONS, bounds=wide))) == 5000


def test_times_that_go_back(tmp_path: Path) -> None:
    times = [*range(100, 200), *range(50, 150), *range(300, 400)]
    ref = write_slice(tmp_path, *slice_content([b"x"] * 300, times=times))
    for since, until in ((120, 130), (50, 60), (140, 310), (399, 400), (200, 300)):
        options = replace(OPTIONS, bounds=Bounds(since=since, until=until))
        found = [row["timestamp_ns"] for row in rows_of(ref, options)]
        assert found == [time for time in times if since <= time < until]


def test_an_index_that_leaves_gaps_does_not_hide_messages(tmp_path: Path) -> None:
    data, index = slice_content([b"x" * 30] * 20)
    gap = index[: 4 + 5 * 32] + index[4 + 9 * 32 :]
    for entries in (gap, index[: 4 + 12 * 32], index[:4] + index[36:]):
        ref = write_slice(tmp_path, data, entries)
        for bounds in (Bounds(6, 8), Bounds(15, 16), Bounds(1, 1)):
            found = [row["seq"] for row in rows_of(ref, replace(OPTIONS, bounds=bounds))]
            assert found == list(range(bounds.first or 0, (bounds.last or 0) + 1))


def test_damage_that_cannot_concern_the_bounds_is_left_out(tmp_path: Path) -> None:
    data, index = slice_content([b"x" * 30] * 20)
    hurt = bytearray(data)
    at = data.index(b"\x08\x09\x12") + 20  # in the payload of message 9
    hurt[at] ^= 0xFF
    for entries in (index, None):
        ref = write_slice(tmp_path, bytes(hurt), entries)
        for bounds, shown in (
            (Bounds(8, 10), True),
            (Bounds(9, 9), True),
            (Bounds(first=10), False),
            (Bounds(last=8), False),
            (Bounds(since=START + 9 * STEP), entries is None),
            (Bounds(since=START + 10 * STEP), False),
            (Bounds(until=START + 7 * STEP), False),
        ):
            rows = rows_of(ref, replace(OPTIONS, bounds=bounds))
            assert bool(found_damages(rows)) is shown, (bounds, entries is None)


def test_without_crcs_the_index_alone_is_read(many: SliceRef) -> None:
    columns = ("seq", "timestamp", "timestamp_ns", "offset", "slice", "channel", "store", "status")
    options = replace(OPTIONS, columns=columns, check_crc=False)
    parts, rows, counter = counted(many, options)
    assert (len(parts), rows) == (1, 5000)
    assert counter.data_bytes < 100 and counter.index_bytes == len(MANY[1]) - 4
    assert rows_of(many, options) == rows_of(many, replace(options, check_crc=True))
    _, rows, counter = counted(many, replace(options, split_bytes=50_000, bounds=Bounds(100, 4900)))
    assert rows == 4801 and counter.data_bytes < 3000
    for wanted in ("size", "subject", "reply", "data"):
        _, _, counter = counted(many, replace(options, columns=(wanted,)))
        assert counter.data_bytes >= many.data_size - 4


def test_without_crcs_what_the_index_does_not_name_is_still_found(tmp_path: Path) -> None:
    data, index = MANY
    torn = bytearray(index)
    torn[4 + 3000 * 32] ^= 1
    options = replace(OPTIONS, columns=("seq", "offset"), check_crc=False)
    for entries in (index[: 4 + 2000 * 32], index[: 4 + 2000 * 32 + 7], bytes(torn), b"\1\0\0\0", b"", None):
        for size in (1 << 20, 30_000):
            ref = write_slice(tmp_path, data, entries)
            assert [row["seq"] for row in rows_of(ref, replace(options, split_bytes=size))] == list(range(1, 5001))
    ref = write_slice(tmp_path, data[:-5], index)
    rows = rows_of(ref, options)
    assert len(rows) == 5000 and rows[-1]["seq"] == 5000  # torn: known by the bytes only
    assert rows_of(ref, replace(options, columns=("seq", "status")))[-1] == {"seq": 5000, "status": "torn"}


def test_a_file_that_grows_or_shrinks_between_planning_and_reading(many: SliceRef) -> None:
    parts = split_slice(many, replace(OPTIONS, split_bytes=30_000))
    path = Path(many.data)
    with path.open("ab") as file:
        file.write(slice_content([b"later"], first=5001)[0][4:])
    rows = [row for part in parts for batch in read_piece(part, OPTIONS) for row in batch.to_pylist()]
    assert [row["seq"] for row in rows] == list(range(1, 5001))
    path.write_bytes(MANY[0][: parts[2].start])
    for mode, statuses in ((Mode.PERMISSIVE, ["unreadable"]), (Mode.DROPMALFORMED, [])):
        options = replace(OPTIONS, mode=mode)
        rows = [row for batch in read_piece(parts[2], options) for row in batch.to_pylist()]
        assert [row["status"] for row in rows] == statuses
    with pytest.raises(StoreUnreadableError, match="when it was listed"):
        list(read_piece(parts[2], replace(OPTIONS, mode=Mode.FAILFAST)))


def test_a_record_that_was_torn_at_planning_is_read_whole(tmp_path: Path) -> None:
    data, index = slice_content([b"x" * 50] * 3)
    ref = write_slice(tmp_path, data[:-20], index)
    parts = split_slice(ref, OPTIONS)
    assert found_damages(rows_of(ref, OPTIONS))[0][2] == "torn"
    Path(ref.data).write_bytes(data)
    rows = [row for part in parts for batch in read_piece(part, OPTIONS) for row in batch.to_pylist()]
    assert [(row["seq"], row["status"]) for row in rows] == [(1, "ok"), (2, "ok"), (3, "ok")]


def test_batches_stay_within_their_limits(tmp_path: Path) -> None:
    ref = write_slice(tmp_path, *slice_content([b"x" * (number % 700) for number in range(800)] + [b"y" * 9000]))
    for rows, size in ((16384, 8 << 20), (100, 8 << 20), (16384, 5000), (7, 3000), (1, 1)):
        options = replace(OPTIONS, batch_rows=rows, batch_bytes=size)
        batches = batches_of(ref, options)
        payloads = [[len(data) for data in batch["data"].to_pylist()] for batch in batches]
        assert sum(map(len, payloads)) == 801
        assert all(len(each) <= rows and (sum(each) <= size or len(each) == 1) for each in payloads)
        assert len(batches) < 2.1 * (801 / rows + sum(map(sum, payloads)) / size) + 3
