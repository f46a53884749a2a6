"""Statistics: exact where they say so, the same however the work is cut, and shown harmlessly."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.errors import StoreUnwritableError
from stantools.format.crc import IEEE, Crc
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.pipeline.jobs.stats.files import page, write_tables
from stantools.pipeline.jobs.stats.stats_report import stats_report
from stantools.pipeline.jobs.stats.summary import ChannelStats, Stats, summarise
from stantools.pipeline.jobs.stats.sums import HOUR, bounds_of, bucket_of, percentile, sums_of
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import open_datastore
from tests.htmlpages import Tags
from tests.inspection.timedstores import NOW, SECOND, YEAR, write_channel


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_a_number_lies_in_its_bucket_and_buckets_are_narrow(numbers: list[int]) -> None:
    buckets = bucket_of(np.array(numbers, np.int64)).tolist()
    for number, bucket in zip(numbers, buckets, strict=True):
        low, high = bounds_of(bucket)
        assert low <= number <= high
        assert high - low <= low / 16
    order = sorted(range(len(numbers)), key=lambda each: numbers[each])
    assert [buckets[each] for each in order] == sorted(buckets)


@given(st.lists(st.integers(0, 10**12), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_percentiles_are_exact_to_a_sixteenth(numbers: list[int], share: float) -> None:
    histogram = Counter(bucket_of(np.array(numbers, np.int64)).tolist())
    exact = sorted(numbers)[max(int(np.ceil(share * len(numbers))) - 1, 0)]
    assert abs(percentile(histogram, share) - exact) <= exact / 16
    assert percentile({}, share) == 0


def stats_of(*paths: Path, **values: Any) -> Stats:
    options = TableOptions(tuple(map(str, paths)), **values)
    rows = (row for split in plan(options).splits for batch in sums_of(split, options) for row in batch.to_pylist())
    return summarise(rows)


def counted(messages: list[StoredMessage]) -> dict[str, Any]:
    """What statistics have to say, from single messages."""
    rising = [(a, b) for a, b in itertools.pairwise(messages) if b.sequence > a.sequence]
    hours: dict[int, tuple[int, int]] = {}
    times = [message.timestamp for message in messages]
    for message in messages:
        count, size = hours.get(message.timestamp // HOUR, (0, 0))
        hours[message.timestamp // HOUR] = count + 1, size + len(message.data)
    return {
        "messages": len(messages),
        "bytes": sum(len(message.data) for message in messages),
        "missing": sum(b.sequence - a.sequence - 1 for a, b in rising),
        "gaps": sum(b.sequence - a.sequence > 1 for a, b in rising),
        "first_seq": messages[0].sequence if messages else None,
        "last_seq": messages[-1].sequence if messages else None,
        "first_ns": messages[0].timestamp if messages else None,
        "last_ns": messages[-1].timestamp if messages else None,
        "largest": max((len(message.data) for message in messages), default=0),
        "silence": max((b.timestamp - a.timestamp for a, b in rising if b.timestamp > a.timestamp), default=0),
        "hours": hours,
        "span": (min(times), max(times)) if times else None,
    }


def facts(channel: ChannelStats) -> dict[str, Any]:
    known = {name: getattr(channel, name) for name in counted([]) if name != "hours"}
    return known | {"hours": channel.hours()}


CASES = ("basic", "gap_filled", "gap_truncated_slice", "slices_count", "dmg_garbage_dat_noidx", "dup_slice_after")


@pytest.mark.parametrize("case", CASES)
def test_golden_stores(golden: Path, case: str) -> None:
    store = golden / case / "datastore"
    found = {each.channel: each for each in stats_of(store).channels}
    opened = open_datastore(store)
    for files in opened.channels():
        items = list(MessageReader(files, Crc(IEEE)).read(Selection()))
        messages = [item for item in items if isinstance(item, StoredMessage)]
        if files.slices:
            assert facts(found[files.name]) == counted(messages)


@pytest.mark.parametrize("pieces", [{"partition_bytes": 512}, {"partition_bytes": 2048, "split_bytes": 300}])
def test_however_the_work_is_cut(golden: Path, pieces: Mapping[str, int]) -> None:
    stores = [golden / case / "datastore" for case in CASES]
    whole, cut = stats_of(*stores), stats_of(*stores, **pieces)
    assert len(plan(TableOptions(tuple(map(str, stores)), **pieces)).splits) > 20
    assert cut.channels == whole.channels


def test_damage_and_what_cannot_be_read(golden: Path) -> None:
    stats = stats_of(golden / "dmg_garbage_dat_noidx" / "datastore", golden / "not-there" / "datastore")
    assert not stats.clean
    assert sum(each.damaged for each in stats.channels)
    assert [each.path for each in stats.failed] == [str(golden / "not-there" / "datastore")]
    assert stats_of(golden / "basic" / "datastore").clean


def sample(name: str = "orders", messages: int = 10) -> ChannelStats:
    times = np.arange(messages) * 500 * SECOND
    return ChannelStats(
        "/data/store",
        name,
        messages,
        messages * 100,
        first_seq=1,
        last_seq=messages,
        first_ns=0,
        last_ns=int(times[-1]),
        largest=100,
        silence=500 * SECOND,
        span=(0, int(times[-1])),
        width=10 * SECOND,
        times={place: (count, count * 100) for place, count in Counter((times // (10 * SECOND)).tolist()).items()},
        sizes={int(bucket_of(np.array([100]))[0]): messages},
        intervals={int(bucket_of(np.array([500 * SECOND]))[0]): messages - 1},
    )


def test_rates_and_json() -> None:
    fact = sample().as_json()
    assert fact["rate"] == 1 / 500
    assert (fact["peak_hour_ns"], fact["peak_hour_messages"]) == (0, 8)
    assert fact["size"] == {"mean": 100, "p50": 101, "p95": 101, "p99": 101, "max": 100} | dict.fromkeys(
        ("p50", "p95", "p99"), 100
    )
    assert fact["interval_ns"]["p50"] == pytest.approx(500 * SECOND, rel=1 / 16)
    assert ChannelStats("s", "empty").as_json()["rate"] is None


def test_the_page_needs_nothing_and_shows_hostile_names_harmlessly() -> None:
    hostile = "<script>alert(1)</script>&\\x1b[31m"
    text = page(Stats([sample(), sample(hostile), ChannelStats("/data/store", "empty")]))
    tags = Tags.of(text)
    assert tags.seen["script"] == 1 and text.count("alert(1)") == text.count("&lt;script&gt;alert(1)")
    assert "&lt;script&gt;alert(1)" in text
    assert tags.alone
    # A plot of all channels; in the table, over time, of sizes and of intervals; those over time in two widths.
    assert tags.seen["svg"] == 2 + 2 * (1 + 2 + 1 + 1)
    assert tags.seen["tr"] == 1 + 3
    assert page(Stats([sample()])) == page(Stats([sample()]))


def test_times_far_away_do_not_harm_the_page() -> None:
    odd = sample()
    odd.width, odd.times = HOUR, {-5: (1, 1), (2**63 - 1) // HOUR: (1, 1), 3: (1, 1)}
    odd.first_ns, odd.last_ns = odd.span = -(2**63), 2**63 - 1
    assert "<svg" in page(Stats([odd]))
    assert "<h1>" in page(Stats([]))


def bars_of(text: str, role: str = "blue") -> list[int]:
    """How many bars each plot of a page has, on a broad screen."""
    text = re.sub(r'<svg class="plot narrow".*?</svg>', "", text)
    return [path.count("M") for path in re.findall(rf'<path class="{role}" d="([^"]*)"', text)]


def test_the_axis_of_time_fits_the_data(tmp_path: Path) -> None:
    """A burst of 200 seconds is no single bar, and one in a year of silence is found where it is."""
    times = [NOW + each * SECOND for each in range(200)]
    write_channel(tmp_path / "store", times, channel="burst")
    write_channel(tmp_path / "store", [NOW - YEAR, *times], channel="year")
    burst, year = stats_of(tmp_path / "store").channels
    assert (burst.width, year.width) == (SECOND, HOUR)
    text = page(Stats([burst]))
    assert bars_of(text)[:2] == [200, 200]
    assert "messages per 1 s" in text
    of_all, of_year, _, _, of_burst, *_ = bars_of(page(Stats([burst, year])))
    assert (of_all, of_year, of_burst) == (2, 2, 200)


def test_every_channel_has_its_plots() -> None:
    channels = [sample(f"channel {number}", 500 - number) for number in range(40)]
    text = page(Stats(channels))
    links = re.findall(r'href="#(c\d+)">(channel \d+)', text)
    assert len(links) == 40
    for anchor, name in links:
        assert re.search(rf'<details class="card" id="{anchor}"[^>]*>\s*<summary><h2>{name} ', text)
    assert text.count("<details") == 40 and text.count('" open>') == 12


def test_damaged_channels_come_first() -> None:
    """On the page and in the table, however few messages they have: a long table is cut at its end."""
    channels = [sample(f"whole {number}", 500) for number in range(3)]
    short, hurt = sample("incomplete", 20), sample("damaged", 10)
    short.missing, short.gaps, hurt.damaged = 7, 1, 1
    stats = Stats([*channels, short, hurt])
    assert [row[0] for row in stats_report(stats).tables[0].rows][:2] == ["damaged", "incomplete"]
    assert re.findall(r'href="#c\d+">([a-z]+)', page(stats))[:2] == ["damaged", "incomplete"]


def test_the_store_is_named_in_each_row_only_if_there_are_several() -> None:
    one, other = sample(), sample("jobs")
    table = stats_report(Stats([one, other])).tables[0]
    assert [each.title for each in table.columns][:2] == ["channel", "messages"]
    assert [row[0] for row in table.rows] == ["jobs", "orders"]
    other.store = "/data/second"
    table = stats_report(Stats([one, other])).tables[0]
    assert [each.title for each in table.columns][:2] == ["store", "channel"]
    assert [row[0] for row in table.rows] == ["/data/second", "/data/store"]


def test_tables_appear_whole_and_never_over_something(tmp_path: Path) -> None:
    stats = Stats([sample(), sample("other", 3)])
    write_tables(stats, tmp_path / "tables")
    tables = {path.stem: pq.read_table(path).to_pylist() for path in (tmp_path / "tables").iterdir()}
    assert set(tables) == {"channels", "hours", "sizes", "intervals"}
    assert [row["messages"] for row in tables["channels"]] == [10, 3]
    assert sum(row["messages"] for row in tables["hours"]) == 13
    assert sum(row["messages"] for row in tables["sizes"]) == 13
    assert tables["sizes"][0]["low"] <= 100 <= tables["sizes"][0]["high"]
    with pytest.raises(StoreUnwritableError):
        write_tables(stats, tmp_path / "tables")
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
