"""When messages were stored: buckets, ranges that damaged times do not break, holes; on real stores and made ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.browse.histogram import (
    PLAUSIBLE,
    WIDTHS,
    Counter,
    Histogram,
    Samples,
    bucket_width,
    narrower,
    wider,
    width_text,
)
from stantools.browse.timeline import Timeline, read_timeline
from stantools.inspection.slicesummary import summarise
from stantools.inspection.survey_jobs import survey_channels
from stantools.store.ranges import Ranges
from stantools.store.read_options import open_store
from tests.conftest import cases_by_kind
from tests.inspection.timedstores import DAY, NOW, SECOND, YEAR, write_channel

#: What a server stores for a time that was never set: year 1 does not fit into nanoseconds.
ZERO_TIME = -6795364578871345152


def timelines(path: Path, *, scan: bool = True) -> dict[str, Timeline]:
    store = open_store(path)
    crc = store.crc
    return {
        survey.files.name: read_timeline(survey.files, crc, survey=survey if scan else None)
        for survey in survey_channels(store, store.channel_names)
    }


@pytest.fixture(params=[True, False], ids=["index", "scan"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Timeline]:
    """Makes the timeline of a channel whose messages have some times, by its index or by its data."""

    def make(times: list[int], sequences: list[int] | None = None, **options: Any) -> Timeline:
        store = write_channel(tmp_path / "store", times, sequences, index=request.param, **options)
        return timelines(store)["c"]

    return make


def test_widths_divide_each_other() -> None:
    for narrow, wide in pairwise(WIDTHS):
        assert wide % narrow == 0
        assert narrower(wide) == narrow and wider(narrow) == wide
    assert wider(WIDTHS[-1]) == WIDTHS[-1] and narrower(1) == 1
    assert [width_text(each) for each in (1, 5000, 10**6, 30 * SECOND, 600 * SECOND, DAY)] == [
        "1 ns",
        "5 µs",
        "1 ms",
        "30 s",
        "10 min",
        "1 d",
    ]


@given(st.integers(0, 2**62), st.integers(3, 300), st.integers(-(2**63), 2**63))
def test_a_span_fits(span: int, most: int, start: int) -> None:
    width = bucket_width(span, most)
    assert (start + span) // width - start // width + 1 <= most


def regroup_slowly(histogram: Histogram, start: int, width: int, buckets: int) -> list[int]:
    counts = [0] * buckets
    for place, count in enumerate(histogram.count.tolist()):
        at = (histogram.start + place * histogram.width - start) // width
        if 0 <= at < buckets:
            counts[at] += count
    return counts


TIMES = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)


@given(TIMES, st.integers(-(2**63), 2**63 - 1), st.sampled_from(WIDTHS), st.integers(1, 50))
def test_histogram_counts_what_lies_in_its_bins(times: list[int], start: int, width: int, bins: int) -> None:
    start = start // width * width
    histogram = Histogram(start, width, bins)
    sequences = np.arange(1, len(times) + 1, dtype=np.uint64)
    histogram.add(sequences, np.array(times, np.int64), np.full(len(times), 3, np.uint32))
    expected = [0] * bins
    for time in times:
        if start <= time < start + width * bins:
            expected[(time - start) // width] += 1
    assert histogram.count.tolist() == expected
    assert histogram.bytes.tolist() == [3 * count for count in expected]
    assert histogram.strays == len(times) - sum(expected)
    for place in range(bins):
        bucket = histogram.bucket(place)
        inside = [n + 1 for n, time in enumerate(times) if bucket.start <= time < bucket.stop]
        assert (bucket.first_seq, bucket.last_seq) == ((min(inside), max(inside)) if inside else (0, 0))
        assert bucket.largest == (3 if inside else 0)


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=60), st.integers(-100, 400), st.sampled_from([1, 5, 10, 50]))
def test_regrouping_is_counting_again(times: list[int], first: int, width: int) -> None:
    histogram = Histogram(0, 1, 2001)
    histogram.add(
        np.arange(1, len(times) + 1, dtype=np.uint64), np.array(times, np.int64), np.ones(len(times), np.uint32)
    )
    start = first * width
    grouped = histogram.regroup(start, width, 30)
    assert grouped.count.tolist() == regroup_slowly(histogram, start, width, 30)
    assert int(grouped.count.sum()) <= len(times)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8), st.integers(0, 70), st.integers(0, 70))
def test_counter(pairs: list[tuple[int, int]], one: int, two: int) -> None:
    ranges = Ranges.of(pairs)
    low, high = min(one, two), max(one, two)
    counted = Counter(ranges).count(np.array([low], np.uint64), np.array([high], np.uint64))
    assert counted.tolist() == [sum(each in ranges for each in range(low, high + 1))]


def test_counter_at_the_end_of_all_numbers() -> None:
    counter = Counter(Ranges.of([(2**64 - 3, 2**64 - 1), (0, 0)]))
    assert counter.count(np.array([0], np.uint64), np.array([2**64 - 1], np.uint64)).tolist() == [4]


def test_a_few_damaged_times_do_not_count() -> None:
    rows: list[int] = [1, 2, 100, 5000, 70_000]
    for size in rows:
        times = np.int64(NOW) + np.arange(size, dtype=np.int64) * SECOND
        bad = times.copy()
        for place, value in ((0, ZERO_TIME), (size // 2, 2**63 - 1), (size * 2 // 3, NOW + 30 * YEAR)):
            if size >= 100:
                bad[place] = value
        samples = Samples()
        for low in range(0, size, 16384):
            samples.add(bad[low : low + 16384])
        usual = samples.usual()
        assert usual is not None, size
        assert usual[0] <= int(times[0]) and int(times[-1]) <= usual[1], size
        assert usual[1] - usual[0] <= 3 * max(size * SECOND, DAY), size


def test_an_old_message_and_years_of_silence_are_no_damage() -> None:
    samples = Samples()
    samples.add(np.array([NOW - 9 * YEAR, *range(NOW, NOW + 50)], np.int64))
    usual = samples.usual()
    assert usual is not None and usual[0] <= NOW - 9 * YEAR


def test_a_clock_that_was_wrong_for_half_of_the_messages() -> None:
    samples = Samples()
    samples.add(np.array([*range(NOW + 5 * YEAR, NOW + 5 * YEAR + 40), *range(NOW, NOW + 50)], np.int64))
    assert samples.usual() == (PLAUSIBLE[0], PLAUSIBLE[1] - 1)


def test_times_that_no_clock_shows_are_taken_as_they_are() -> None:
    samples = Samples()
    samples.add(np.arange(1, 20, dtype=np.int64))
    assert samples.usual() is None


@given(TIMES)
@settings(max_examples=60)
def test_any_times(times: list[int]) -> None:
    samples = Samples()
    samples.add(np.array(times, np.int64))
    usual = samples.usual()
    assert usual is None or usual[0] <= usual[1]


# Channels that are made


def test_no_messages(made: Callable[..., Timeline]) -> None:
    timeline = made([])
    assert (timeline.count, timeline.missing, timeline.damaged, len(timeline.whole)) == (0, 0, 0, 0)
    assert timeline.time_of(1) is None


def test_one_message(made: Callable[..., Timeline]) -> None:
    timeline = made([NOW])
    assert (timeline.count, timeline.first, timeline.last) == (1, NOW, NOW)
    assert timeline.whole.width == 1 and timeline.whole.count.tolist() == [1]


def test_all_at_the_same_nanosecond(made: Callable[..., Timeline]) -> None:
    timeline = made([NOW] * 300)
    assert timeline.whole.count.tolist() == [300]
    assert timeline.disorder == timeline.strays == 0


def test_ten_years(made: Callable[..., Timeline]) -> None:
    timeline = made([NOW - 10 * YEAR + n * YEAR // 10 for n in range(101)])
    assert int(timeline.whole.count.sum()) == 101 and timeline.strays == 0
    assert timeline.last - timeline.first == 10 * YEAR


def test_damaged_times(made: Callable[..., Timeline]) -> None:
    times = [NOW + n * SECOND for n in range(200)]
    times[50], times[120], times[150] = ZERO_TIME, 2**63 - 1, times[149] - 5
    timeline = made(times)
    assert timeline.strays == 2
    assert (timeline.first, timeline.last) == (NOW, NOW + 199 * SECOND)
    assert timeline.disorder == 3
    assert (timeline.earliest, timeline.latest) == (ZERO_TIME, 2**63 - 1)
    # They can still be looked at.
    start = timeline.latest // DAY * DAY
    assert int(timeline.detail(start, start + DAY, DAY).count.sum()) == 1


def test_holes_are_counted_where_they_end(made: Callable[..., Timeline]) -> None:
    timeline = made([NOW, NOW + 100, NOW + 200], [5, 6, 16])
    whole = timeline.whole
    assert int(whole.missing.sum()) == 9 and timeline.missing == 9
    bucket = whole.bucket(int(whole.missing.argmax()))
    assert bucket.start <= NOW + 200 < bucket.stop
    between = timeline.detail(NOW + 120, NOW + 180, 10)
    assert between.gap.all() and not between.count.any()


def test_time_of(made: Callable[..., Timeline]) -> None:
    timeline = made([NOW, NOW + 100, NOW + 200], [5, 6, 16])
    assert [timeline.time_of(seq) for seq in (4, 5, 6, 10, 16, 99)] == [
        None,
        NOW,
        NOW + 100,
        NOW + 100,
        NOW + 200,
        NOW + 200,
    ]


def test_detail_is_a_part_of_the_whole(made: Callable[..., Timeline]) -> None:
    times = [NOW + (n * n) % 9973 * 1000 for n in range(2000)]
    timeline = made(sorted(times), each=300)
    whole = timeline.whole
    start = whole.start + 100 * whole.width
    part = timeline.detail(start, start + 50 * whole.width, whole.width)
    assert part.count.tolist() == whole.count[100:150].tolist()
    assert part.last_seq.tolist() == whole.last_seq[100:150].tolist()


# Golden stores


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden_counts(case: str, golden_copy: Any) -> None:
    path = golden_copy(case)
    store = open_store(path)
    crc = store.crc
    for name, timeline in timelines(path, scan=False).items():
        assert int(timeline.whole.count.sum()) + timeline.strays == timeline.count
        slices = [summarise(each, os.fsencode(name), crc) for each in store.channel(name).slices]
        if not any(each.problems for each in slices):
            assert timeline.count == sum(each.count for each in slices)
    for timeline in timelines(path).values():
        if timeline.count and not timeline.strays:
            assert int(timeline.whole.damaged.sum()) == timeline.damaged
            assert int(timeline.whole.missing.sum()) == timeline.missing


def test_damage_is_dated_by_the_index(golden: Path) -> None:
    timeline = timelines(golden / "dmg_crc_flip_idx_intact" / "datastore")["alpha"]
    assert timeline.damaged == 1
    place = int(timeline.whole.damaged.argmax())
    assert not timeline.whole.gap.any() and timeline.whole.bucket(place).count == 0


def test_a_missing_slice_is_a_gap(golden: Path) -> None:
    for scan in (False, True):
        timeline = timelines(golden / "dmg_middle_slice_missing" / "datastore", scan=scan)["alpha"]
        assert int(timeline.whole.missing.sum()) == 15
        assert int(timeline.whole.gap.sum()) > 100
