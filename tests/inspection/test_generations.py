"""Records fall into one history, duplicates, restarts and superseded tails; none is forgotten."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.inspection.runs import ChannelHistory, RecordRun, arrange
from stantools.inspection.survey import survey_slice
from stantools.store.directory import list_channel

CRC = Crc(IEEE)
CHANNEL = b"orders"
DAY = 86_400 * 10**9

#: A record: sequence, timestamp. Equal pairs are the same record.
Records = list[tuple[int, int]]


def runs_of(directory: Path, slices: list[Records]) -> list[RecordRun]:
    channel = directory / CHANNEL.decode()
    channel.mkdir()
    for number, records in enumerate(slices, 1):
        sequences, timestamps = [s for s, _ in records], [t for _, t in records]
        payloads = [b"%d at %d" % pair for pair in records]
        data, _ = kernels.encode_messages(CHANNEL, sequences, timestamps, None, payloads, CRC)
        (channel / f"msgs.{number}.dat").write_bytes(b"\1\0\0\0" + data)
    found = list_channel(channel)
    return [run for one in found.slices for run in survey_slice(one, CHANNEL, CRC).runs]


def history(tmp_path: Path, *slices: Records) -> ChannelHistory:
    return arrange(runs_of(tmp_path, list(slices)), CRC)


def stretch(first: int, last: int, start: int = 0) -> Records:
    return [(n, start + n) for n in range(first, last + 1)]


def shapes(result: ChannelHistory) -> list[tuple[list[list[int]], bool]]:
    return [(g.sequences.as_json(), g.superseded) for g in result.generations]


def test_a_healthy_channel_is_one_generation(tmp_path: Path) -> None:
    result = history(tmp_path, stretch(5, 10), stretch(11, 20), stretch(25, 30))
    assert shapes(result) == [([[5, 20], [25, 30]], False)]
    assert not result.duplicates and not result.disordered


def test_clock_set_back_is_no_restart(tmp_path: Path) -> None:
    result = history(tmp_path, stretch(1, 10, DAY), stretch(11, 20, 0))
    assert shapes(result) == [([[1, 20]], False)]


def test_copied_slice(tmp_path: Path) -> None:
    result = history(tmp_path, stretch(1, 10), stretch(11, 20), stretch(1, 10))
    assert shapes(result) == [([[1, 20]], False)]
    assert [p.sequences.as_json() for p in result.duplicates] == [[[1, 10]]]
    assert result.duplicates[0].run.slice.number == 3


def test_swapped_slices(tmp_path: Path) -> None:
    result = history(tmp_path, stretch(11, 20), stretch(1, 10))
    assert shapes(result) == [([[1, 20]], False)]
    assert [p.sequences.as_json() for p in result.disordered] == [[[1, 10]]]


def test_restart_in_the_same_file(tmp_path: Path) -> None:
    result = history(tmp_path, stretch(1, 10) + stretch(1, 4, DAY))
    assert shapes(result) == [([[1, 10]], False), ([[1, 4]], False)]
    assert result.generations[-1].sequences.as_json() == [[1, 4]]


def test_restart_that_outlives_the_first_generation(tmp_path: Path) -> None:
    # The new server appends to slice 1, then to slice 2, which hold the old generation.
    result = history(tmp_path, stretch(1, 10) + stretch(1, 10, DAY), stretch(11, 15) + stretch(11, 30, DAY))
    assert shapes(result) == [([[1, 15]], False), ([[1, 30]], False)]


def test_restart_below_everything_that_limits_left(tmp_path: Path) -> None:
    result = history(tmp_path, stretch(500, 520) + stretch(1, 5, DAY))
    assert shapes(result) == [([[500, 520]], False), ([[1, 5]], False)]


def test_forgotten_tail_is_superseded(tmp_path: Path) -> None:
    result = history(tmp_path, stretch(1, 12) + stretch(11, 20, DAY), stretch(21, 25, DAY))
    assert shapes(result) == [([[11, 12]], True), ([[1, 25]], False)]
    taken = [p for p in result.generations[-1].pieces if 11 in p.sequences]
    assert [p.run.first_timestamp for p in taken] == [DAY + 11]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2).map(lambda d: d * DAY)), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_nothing_is_forgotten_and_no_sequence_is_twice(slices: list[Records]) -> None:
    with tempfile.TemporaryDirectory() as work:
        runs = runs_of(Path(work), slices)
        result = arrange(runs, CRC)
        kept: Counter[tuple[int, int]] = Counter()
        for generation in result.generations:
            in_order = [n for p in generation.ordered() for a, b in p.sequences for n in range(a, b + 1)]
            assert in_order == sorted(set(in_order))
            kept.update(in_order)
        for piece in result.duplicates:
            kept.update(n for a, b in piece.sequences for n in range(a, b + 1))
    assert kept == Counter(n for records in slices for n, _ in records)
