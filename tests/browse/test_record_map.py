"""Slices as bars, and where the records of a file lie: against a plain reading of the same files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.browse.record_fields import PartRole
from stantools.browse.record_map import RecordMap, SingleRecord, map_of_survey, map_records
from stantools.browse.record_reader import RecordReader, part_at
from stantools.browse.slice_map import ByteSegment, BytesState, cells, index_state, segments
from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.inspection.records import FileKind, kind_of, read_records
from stantools.inspection.survey import SliceSurvey, survey_slice
from stantools.inspection.survey_jobs import survey_channels
from stantools.store.directory import list_channel
from stantools.store.mapping import mapped
from stantools.store.read_options import open_store
from tests.conftest import cases_by_kind
from tests.inspection.timedstores import CRC, NOW, SECOND, write_channel

BAD_ROLES = (PartRole.WRONG, PartRole.UNKNOWN, PartRole.ZEROS)


def surveys(path: Path, channel: str = "alpha") -> list[SliceSurvey]:
    store = open_store(path)
    found = next(iter(survey_channels(store, [channel])))
    return [*found.slices, *found.lone_indexes]


def bars(path: Path, width: int = 10, channel: str = "alpha") -> list[str]:
    letters = {
        BytesState.GOOD: "g",
        BytesState.BAD: "b",
        BytesState.ZERO: "0",
        BytesState.ORPHAN: "o",
        BytesState.INDEX_ONLY: "i",
        BytesState.UNREADABLE: "u",
        BytesState.FOREIGN: "f",
        BytesState.EMPTY: " ",
    }
    return [
        "".join(letters[state] for state in cells(segments(each), each.files.data_size, width))
        for each in surveys(path, channel)
    ]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("damage_base", ["gggggggggg", "gggggggggg", "gggggggggg"]),
        ("dmg_crc_flip_noidx", ["gggggggggg", "gggbbggggg", "gggggggggg"]),
        ("dmg_zero_tail_dat_noidx", ["gggggggggg", "gggggggggg", "gggg000000"]),
        ("dmg_idx_shorter_early", ["ggggggggoo", "gggggggggg", "gggggggggg"]),
        ("dmg_dat_missing_idx_there", ["gggggggggg", "gggggggggg", "iiiiiiiiii"]),
        ("dmg_version_2_dat", ["gggggggggg", "bggggggggg", "gggggggggg"]),
    ],
)
def test_bars(case: str, expected: list[str], golden: Path) -> None:
    assert bars(golden / case / "datastore") == expected


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**6), st.sampled_from(BytesState)), max_size=20),
    st.integers(1, 2 * 10**7),
    st.integers(1, 200),
)
def test_nothing_bad_is_invisible(ranges: list[tuple[int, int, BytesState]], size: int, width: int) -> None:
    found = [ByteSegment(0, size, BytesState.GOOD)]
    found += [ByteSegment(start, start + length, state) for start, length, state in ranges if start < size]
    bar = cells(found, size, width)
    assert len(bar) == width
    assert max(bar) == max(each.state for each in found)
    for each in found[1:]:
        assert bar[min(each.start * width // size, width - 1)] >= each.state


def test_a_file_without_bytes() -> None:
    assert cells([], 0, 5) == [BytesState.EMPTY] * 5
    assert cells(segments(None), 100, 3) == [BytesState.UNKNOWN] * 3
    assert cells(segments(None), 100, 0) == []


def test_an_unreadable_file(tmp_path: Path) -> None:
    store = write_channel(tmp_path, [NOW])
    files = list_channel(store / "c").slices[0]
    assert files.data is not None
    files.data.unlink()
    files.data.mkdir()
    survey = survey_slice(files, b"c", CRC)
    assert cells(segments(survey), files.data_size, 4) == [BytesState.UNREADABLE] * 4


@pytest.mark.parametrize(
    ("case", "number", "level", "short"),
    [
        ("damage_base", 0, "clean", "agrees"),
        ("dmg_idx_missing_one", 1, "warning", "missing"),
        ("dmg_idx_shorter_early", 0, "warning", "4 unnamed"),
        ("dmg_idx_bad_crc", 1, "warning", "bad #3"),
        ("dmg_garbage_idx", 2, "warning", "bad #11"),
        ("dmg_version_2_idx", 1, "error", "version"),
        ("dmg_crc_flip_idx_intact", 1, "error", "1 dangling"),
        ("dmg_dat_missing_idx_there", 2, "warning", "no data"),
    ],
)
def test_index_states(case: str, number: int, level: str, short: str, golden: Path) -> None:
    state = index_state(surveys(golden / case / "datastore")[number])
    assert (state.level, state.short) == (level, short)


# Record maps


def golden_files(path: Path) -> Iterator[tuple[Path, FileKind, Crc, bytes]]:
    store = open_store(path)
    crc = store.crc
    for file in sorted(path.rglob("*")):
        kind = kind_of(file.name)
        if kind is not None and file.is_file() and os.access(file, os.R_OK):
            yield file, kind, crc, os.fsencode(file.parent.name)


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden_files(case: str, golden_copy: Any) -> None:
    """A map has the records that a plain reading finds, and of each every byte is told."""
    for file, kind, crc, channel in golden_files(golden_copy(case)):
        with mapped(file) as buffer:
            known = map_records(buffer, kind, crc, channel=channel)
            expected = [each for each in read_records(buffer, kind, crc, channel=channel) if each.length]
        reader = RecordReader(file, kind, crc, channel)
        reader.map = known
        rows = reader.rows(0, known.rows)
        if kind is not FileKind.INDEX:  # there, records with a wrong CRC that follow each other are one range
            shown = [(row.offset, row.length, row.type, row.ok) for row in rows]
            assert shown == [(each.offset, each.length, each.type, each.ok) for each in expected]
            assert [row.sequence for row in rows] == [each.sequence for each in expected]
        crcs = {(each.offset, each.length, each.crc) for each in expected if each.ok}
        assert {(row.offset, row.length, row.crc) for row in rows if row.ok} == crcs
        assert sum(row.length for row in rows) == file.stat().st_size
        for number, row in enumerate(rows):
            parts = reader.parts(row)
            assert parts[0].start == row.offset and parts[-1].end == row.offset + row.length
            assert row.ok != any(part.role in BAD_ROLES for part in parts)
            assert reader.row_at(row.offset) == reader.row_at(row.offset + row.length - 1) == number
            assert part_at(parts, row.offset) == 0 and part_at(parts, row.offset + row.length) == -1
        reader.close()


@pytest.mark.parametrize("case", cases_by_kind())
def test_the_map_of_a_survey_is_that_of_the_file(case: str, golden_copy: Any) -> None:
    path = golden_copy(case)
    store = open_store(path)
    crc = store.crc
    for channel in survey_channels(store, store.channel_names):
        for survey in channel.slices:
            if survey.error or survey.files.data is None:
                continue
            with mapped(survey.files.data) as buffer:
                direct = map_records(buffer, FileKind.MESSAGES, crc, channel=channel.files.raw_name)
            check_same(map_of_survey(survey), direct)


def check_same(one: RecordMap, other: RecordMap) -> None:
    """Both name the same ranges; a survey has looked into the index and may know a sequence more."""
    assert (one.rows, one.size) == (other.rows, other.size)
    flaws, others = ([(f.row, f.start, f.end, f.type, f.detail) for f in each.flaws] for each in (one, other))
    assert flaws == others


def test_many_records(tmp_path: Path) -> None:
    """More than fit a batch, with holes in the sequences, and damage in the middle."""
    count = 40_000
    sequences = [n + n // 1000 * 5 for n in range(1, count + 1)]
    store = write_channel(tmp_path, [NOW + n for n in range(count)], sequences)
    file = store / "c" / "msgs.1.dat"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x55
    file.write_bytes(data)
    survey = survey_slice(list_channel(store / "c").slices[0], b"c", CRC)
    with mapped(file) as buffer:
        direct = map_records(buffer, FileKind.MESSAGES, CRC, channel=b"c")
        plain = list(read_records(buffer, FileKind.MESSAGES, CRC, channel=b"c"))
    known = map_of_survey(survey)
    check_same(known, direct)
    assert known.rows == len(plain)
    reader = RecordReader(file, FileKind.MESSAGES, CRC, b"c")
    for each in (known, direct):
        reader.map = each
        for row in (0, 1, 16384, 16385, count // 2, count - 1, count):
            shown = reader.row(row)
            assert shown is not None and shown.offset == plain[row].offset
            assert reader.row_at(plain[row].offset + 3) == row
        assert reader.row_of_sequence(sequences[-1]) == count
        assert reader.row_of_sequence(10**9) is None
        flaw = each.next_flaw(0)
        assert flaw is not None and flaw.row == each.flaws[0].row
        assert each.next_flaw(flaw.row) is None and each.flaw_before(flaw.row) is None
        assert each.flaw_before(flaw.row + 1) == flaw
        assert each.next_good(flaw) == plain[flaw.row + 1].offset
    reader.close()


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    store = write_channel(tmp_path, [NOW + n * SECOND for n in range(100)])
    file = store / "c" / "msgs.1.dat"
    reader = RecordReader(file, FileKind.MESSAGES, CRC, b"c")
    with mapped(file) as buffer:
        reader.map = map_records(buffer, FileKind.MESSAGES, CRC, channel=b"c")
    os.truncate(file, 400)
    rows = reader.rows(0, 101)
    assert len(rows) == 101
    assert rows[-1].type == "changed" and not rows[-1].ok
    reader.parts(rows[-1])
    reader.close()
    assert reader.read(0, 10) == b"" and reader.size == 0


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreadableError, match="cannot be read"):
        RecordReader(tmp_path / "msgs.1.dat", FileKind.MESSAGES, CRC)
    with pytest.raises(StoreUnreadableError, match="is not a regular file"):
        RecordReader(tmp_path, FileKind.MESSAGES, CRC)


# the browser does not open blocks of streams
@given(
    st.binary(max_size=400), st.sampled_from([each for each in FileKind if each is not FileKind.BLOCK]), st.booleans()
)
@settings(max_examples=150)
def test_any_file(tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: FileKind, version: bool) -> None:
    data = b"\1\0\0\0" + data if version else data
    file = tmp_path_factory.getbasetemp() / "any.dat"
    file.write_bytes(data)
    with mapped(file) as buffer:
        known = map_records(buffer, kind, CRC, channel=b"c")
    reader = RecordReader(file, kind, CRC, b"c")
    reader.map = known
    rows = reader.rows(0, known.rows)
    assert len(rows) == known.rows and sum(row.length for row in rows) == len(data)
    at = 0
    for row in rows:
        assert row.offset == at
        reader.parts(row)
        at += row.length
    reader.close()


def test_index_damage_is_one_range(tmp_path: Path) -> None:
    store = write_channel(tmp_path, [NOW + n for n in range(20)])
    file = store / "c" / "msgs.1.idx"
    data = bytearray(file.read_bytes())
    data[4 + 5 * 32 : 4 + 8 * 32] = b"\xab" * 96
    data[4 + 10 * 32] ^= 1
    file.write_bytes(bytes(data) + bytes(70))
    with mapped(file) as buffer:
        known = map_records(buffer, FileKind.INDEX, CRC)
    shown = [(flaw.start, flaw.end, flaw.type) for flaw in known.flaws]
    size = len(data)
    assert shown == [
        (164, 260, "garbage"),
        (324, 356, "payload"),
        (size, size + 64, "zeros"),
        (size + 64, size + 70, "torn"),
    ]
    assert isinstance(known.at_row(0), SingleRecord)
    with pytest.raises(IndexError):
        known.at_row(known.rows)
