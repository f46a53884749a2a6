"""From paths to tasks: balanced, in order, nothing twice, nothing left out."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.format.crc import IEEE
from stantools.pipeline.tables.model import ReadCounter, SlicePiece, StorePart, StoreRef, TableName
from stantools.pipeline.tables.planning import ReadPlan, grouped, plan
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.ranges import Bounds
from stantools.store.sample import BASE_TIME, SampleOptions, write_sample
from tests.pipeline.tables.tablerows import table

CHANNELS = ["a", "b.c", "b.d"]
MESSAGES, SIZE = 3000, 500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three channels with three slices of 0.5 MB each."""
    root = tmp_path_factory.mktemp("planned") / "store"
    write_sample(root, SampleOptions(names=CHANNELS, messages=MESSAGES, size=SIZE, slice_msgs=1000))
    return root


def options(store: Path, **values: object) -> TableOptions:
    return TableOptions((str(store),), **values)  # type: ignore[arg-type]


def sequences(planned: ReadPlan, wanted: TableOptions, counter: ReadCounter | None = None) -> list[tuple[str, int]]:
    return [
        (row["channel"], row["seq"])
        for split in planned.splits
        for batch in read_split(split, wanted, counter)
        for row in batch.select(["channel", "seq"]).to_pylist()
    ]


ALL = [(channel, sequence) for channel in CHANNELS for sequence in range(1, MESSAGES + 1)]


@pytest.mark.parametrize(
    ("partition_bytes", "partitions", "split_bytes"),
    [(128 << 20, 0, 64 << 20), (600_000, 0, 64 << 20), (100_000, 0, 30_000), (128 << 20, 8, 64 << 20)],
)
def test_every_message_once_and_in_order(store: Path, partition_bytes: int, partitions: int, split_bytes: int) -> None:
    wanted = options(
        store,
        columns=("channel", "seq"),
        partition_bytes=partition_bytes,
        partitions=partitions,
        split_bytes=split_bytes,
    )
    planned = plan(wanted)
    assert sequences(planned, wanted) == ALL
    assert [ref.root for ref in planned.stores] == [str(store)]
    biggest = max(split.cost for split in planned.splits)
    assert biggest <= max(1.5 * partition_bytes, split_bytes)
    if partition_bytes == 128 << 20 and not partitions:
        assert len(planned.splits) == 1


def test_as_many_tasks_as_asked_for_if_there_is_work(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stantools.pipeline.tables.planning._MIN_TASK_BYTES", 1 << 17)
    for wanted in (2, 5, 8, 16):
        splits = plan(options(store, partitions=wanted)).splits
        assert len(splits) == wanted
        costs = np.array([split.cost + (len(split.parts) << 17) for split in splits])
        assert costs.max() < 1.7 * costs.mean()
    write_sample(tmp_path / "tiny", SampleOptions(names=["x"], messages=10))
    assert len(plan(options(tmp_path / "tiny", partitions=16)).splits) <= 4


def test_bounds_prune_slices_and_read_little(store: Path) -> None:
    whole = ReadCounter()
    everything = options(store)
    sequences(plan(everything), everything, whole)
    assert whole.data_bytes > 9 * 1000 * SIZE
    times = {
        (row["channel"], row["seq"]): row["timestamp_ns"] for row in table(store, columns="channel,seq,timestamp_ns")
    }
    since = BASE_TIME + 2990 * 1_000_000
    for bounds, expected in (
        (Bounds(first=1490, last=1500), [key for key in ALL if 1490 <= key[1] <= 1500]),
        (Bounds(since=since), [key for key in ALL if times[key] >= since]),
    ):
        counter = ReadCounter()
        wanted = options(store, columns=("channel", "seq", "timestamp_ns"), bounds=bounds)
        found = sequences(plan(wanted), wanted, counter)
        assert found == expected
        # 33 messages of 600 bytes, and the last one of each index that was looked at.
        assert counter.data_bytes < 100_000
    large = options(store, bounds=Bounds(first=2500, last=2500), split_bytes=100_000)
    # The driver leaves out what it looked at, which is what is large.
    assert {p.slice.number for split in plan(large).splits for p in split.parts if isinstance(p, SlicePiece)} == {3}


def test_only_some_channels(store: Path) -> None:
    rows = table(store, columns="channel,slice", channels="b.*")
    assert {row["channel"] for row in rows} == {"b.c", "b.d"}
    assert plan(options(store, channels=("nothing",))).splits == []


def test_parts_of_the_other_tables(store: Path) -> None:
    def parts(table: TableName, **values: object) -> list[tuple[str | None, str | None]]:
        work = [part for split in plan(options(store, table=table, **values)).splits for part in split.parts]
        return [(part.channel, part.file) for part in work if isinstance(part, StorePart)]

    assert parts(TableName.CLIENTS) == [(None, None)]
    assert parts(TableName.FINDINGS) == [(None, None), *((channel, None) for channel in CHANNELS)]
    assert parts(TableName.SUBSCRIPTIONS, channels=("b.>",)) == [("b.c", None), ("b.d", None), (None, None)]
    assert parts(TableName.SLICES, channels=("a",)) == [("a", f"a/msgs.{number}.dat") for number in (1, 2, 3)]
    assert parts(TableName.RECORDS, channels=("a",)) == [
        (None, "server.dat"),
        (None, "clients.dat"),
        ("a", "a/subs.dat"),
        *(("a", f"a/msgs.{number}.{kind}") for number in (1, 2, 3) for kind in ("dat", "idx")),
    ]


@given(
    weights=st.lists(st.integers(0, 50), max_size=60),
    partition_bytes=st.integers(1, 100),
    partitions=st.integers(0, 12),
)
def test_packing(weights: list[int], partition_bytes: int, partitions: int) -> None:
    parts = [StorePart(StoreRef("x", IEEE), None, str(number), weight) for number, weight in enumerate(weights)]
    how = TableOptions(("x",), partition_bytes=partition_bytes, partitions=partitions)
    groups = grouped(parts, weights, how)
    assert [part for group in groups for part in group] == parts
    assert all(groups)
    if weights:
        assert max(sum(part.cost for part in group) for group in groups) <= partition_bytes + 2 * max(weights)


def test_large_tasks_where_there_are_enough() -> None:
    def tasks(total: int, **values: int) -> int:
        how = TableOptions(("x",), partition_bytes=100, **values)  # type: ignore[arg-type]
        return len(grouped(range(1000), [total] * 1000, how))

    assert tasks(1) == 10
    assert tasks(1, partitions=2) == 10
    assert tasks(1, partitions=2, largest_partition=400) == 8, "four for each are enough"
    assert tasks(1, partitions=9, largest_partition=400) == 10
    assert tasks(4, partitions=2, largest_partition=400) == 10, "not larger than that"
    assert tasks(4, partitions=2, largest_partition=50) == 40


def test_thousands_of_channels_are_planned_quickly(store: Path, tmp_path: Path) -> None:
    """500 channels and 50 stores here; a second for 10,000 channels is the aim, without others on the machine."""
    write_sample(tmp_path / "one", SampleOptions(names=["x"], messages=4))
    many = tmp_path / "many"
    many.mkdir()
    for name in ("server.dat", "clients.dat"):
        shutil.copy(tmp_path / "one" / name, many / name)
    files = [(each.name, each.read_bytes()) for each in (tmp_path / "one" / "x").iterdir()]
    for number in range(500):
        channel = many / f"x.{number}"
        channel.mkdir()
        for name, content in files:
            (channel / name).write_bytes(content)
    for number in range(50):
        (tmp_path / "stores" / str(number) / "x").mkdir(parents=True)
        for name, content in (*files, ("../server.dat", (many / "server.dat").read_bytes())):
            (tmp_path / "stores" / str(number) / "x" / name).write_bytes(content)
    for root, slices in ((many, 2000), (tmp_path / "stores", 200)):
        begin = time.process_time()
        planned = plan(options(root))
        assert time.process_time() - begin < 0.5
        assert sum(len(split.parts) for split in planned.splits) == slices
        assert len(planned.splits) <= -(-slices * (1 << 18) // (128 << 20))
    wanted = options(tmp_path / "stores", columns=("store", "seq"))
    batches = [batch for split in plan(wanted).splits for batch in read_split(split, wanted)]
    assert len(batches) == 1
    assert batches[0].num_rows == 200
