"""`spark.readStream.format("stan")`: a store that is written arrives in Parquet files exactly once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stantools.errors import StoreUnreadableError, UsageError

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql.streaming.datasource")

import pyarrow.parquet as pq
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from stantools.pipeline.spark.read import register
from stantools.pipeline.spark.stream import StanStreamReader
from stantools.pipeline.spark.stream_options import spark_schema, stream_options
from stantools.pipeline.tables.follow import Limit
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.limits import SliceLimits
from tests.pipeline.tables.followed import Server, cut_to_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

COLUMNS = ["channel", "seq", "data", "slice", "offset", "status"]


@pytest.fixture
def follow(spark: SparkSession, tmp_path: Path) -> Callable[..., Any]:
    """Starts a query that writes what a store gets into Parquet files, and goes on where one before it ended."""
    register(spark)

    def start(store: Path, **options: str) -> Any:
        now = options.pop("now", "")
        frame = spark.readStream.format("stan").options(**options).load(str(store)).select(COLUMNS)
        writing = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        if now:
            writing = writing.trigger(availableNow=True)
        return writing.start(str(tmp_path / "out"))

    return start


def test_into_parquet(follow: Callable[..., Any], tmp_path: Path) -> None:
    """The server is killed in the middle of a record, the query is stopped; slices are archived and removed."""
    server, other = Server(tmp_path / "store"), Server(tmp_path / "store", "other", seed=1)
    server.publish(20)
    query = follow(server.root, maxRowsPerTrigger="12")
    try:
        query.processAllAvailable()
        assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [12, 8]
        other.publish(3)
        server.publish(2)
        server.kill()
        server.leave(0, 30)
        query.processAllAvailable()
    finally:
        query.stop()
    cut_to_index(server.data_file())
    server.start()
    server.publish(40)
    server.remove_oldest()
    for _ in range(3):
        server.remove_oldest(archive=True)
    (server.directory / "msgs.3.dat.bak").unlink()
    query = follow(server.root, now="yes")
    assert query.awaitTermination(60)

    found = pq.read_table(tmp_path / "out").sort_by([("channel", "ascending"), ("seq", "ascending")]).to_pylist()
    good = [row for row in found if row["status"] == "ok"]
    numbers = {int(row["data"].split(b" ")[0]): row["seq"] for row in good if row["channel"] == "orders"}
    assert numbers == {number: seq for number, seq in server.stored.items() if seq not in (23, 24)}
    assert [row["seq"] for row in good if row["channel"] == "orders"] == [*range(1, 23), *range(25, 63)]
    assert [row["seq"] for row in good if row["channel"] == "other"] == [1, 2, 3]
    assert [(row["status"], row["seq"], row["slice"]) for row in found if row["status"] != "ok"] == [
        ("removed", 23, "orders/msgs.3.dat")
    ]


@pytest.mark.slow
def test_other_files_of_a_slice_number(follow: Callable[..., Any], tmp_path: Path) -> None:
    """They are named in a row, once, also over a restart; the batch source has their messages."""
    server = Server(tmp_path / "store")
    server.publish(10)
    data = server.directory / "msgs.1.dat"
    for name in ("msgs.001.dat", "msgs.1.dat.bak"):
        data.with_name(name).write_bytes(data.read_bytes())
    for _ in range(2):
        assert follow(server.root, now="yes", archived="true").awaitTermination(60)
        server.publish(1)
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["seq"] for row in found if row["status"] == "ok") == list(range(1, 12))
    assert sorted((row["status"], row["slice"], row["seq"]) for row in found if row["status"] != "ok") == [
        ("not-followed", "orders/msgs.001.dat", None),
        ("not-followed", "orders/msgs.1.dat.bak", None),
    ]


def reader(path: Path, options: dict[str, str] | None = None) -> StanStreamReader:
    return StanStreamReader({"path": str(path), **(options or {})}, spark_schema(TableOptions(())))


def test_options() -> None:
    values = {"startingOffsets": "latest", "MAXBYTESPERTRIGGER": "1MB", "maxRowsPerTrigger": "7"}
    options = stream_options(values)
    assert options.latest
    assert options.limit == Limit(1 << 20, 7, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "yesterday"}, "option startingOffsets: 'yesterday' is not known"),
        ({"maxRowsPerTrigger": "0"}, "is not 1 or more"),
        ({"maxBytesPerTrigger": "much"}, "option maxBytesPerTrigger: "),
        ({"table": "clients"}, "cannot be followed"),
        ({"path": "s3://bucket/store"}, "a local path"),
        ({"colour": "red"}, "unknown option 'colour'"),
    ],
)
def test_refused(tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        reader(tmp_path, options)
    assert said in f"{caught.value.message} {caught.value.remedy}"


def test_a_directory_of_slices_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    server.publish(1)
    with pytest.raises(UsageError, match="only stores can be followed"):
        reader(server.directory).initialOffset()


def batch(followed: StanStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Plans a batch; returns its end and its partitions."""
    end = followed.latestOffset(start, followed.getDefaultReadLimit())
    return end, list(followed.partitions(start, end))


def read(followed: StanStreamReader, partitions: list[Any]) -> list[dict[str, Any]]:
    # As in a task: a reader that knows nothing but the options.
    other = pickle.loads(pickle.dumps(followed))
    return [row for each in partitions for part in other.read(each) for row in part.to_pylist()]


def test_a_batch_without_spark(tmp_path: Path) -> None:
    server = Server(tmp_path / "store", limits=SliceLimits(1000, 0))
    server.publish(50)
    schema = spark_schema(TableOptions((), columns=("seq", "channel"))).add("Status", "string")
    options = {"path": str(server.root), "splitBytes": "3000", "partitionBytes": "200000", "seq": "11:"}
    followed = StanStreamReader(options, schema)
    start = followed.initialOffset()
    end, partitions = batch(pickle.loads(pickle.dumps(followed)), start)
    assert len(partitions) > 1
    rows = read(followed, partitions)
    assert list(rows[0]) == ["seq", "channel", "Status"]
    assert [row["seq"] for row in rows] == list(range(11, 51))
    assert followed.latestOffset(end, ReadAllAvailable()) == end
    assert followed.reportLatestOffset() == {"waitingBytes": 0, "waitingChannels": 0}


@pytest.mark.parametrize("archived", [True, False])
def test_slices_that_go_between_planning_and_reading(tmp_path: Path, archived: bool) -> None:
    server = Server(tmp_path / "store")
    followed = reader(server.root)
    start = followed.initialOffset()
    server.publish(20)
    _, partitions = batch(followed, start)
    server.remove_oldest(archive=archived)
    rows = read(followed, partitions)
    assert [row["seq"] for row in rows if row["status"] == "ok"] == list(range(1 if archived else 9, 21))
    gone = [(row["status"], row["slice"], row["offset"], row["seq"]) for row in rows if row["status"] != "ok"]
    assert gone == ([] if archived else [("removed", "orders/msgs.1.dat", 4, None)])
    if not archived:
        assert all(row["status"] == "ok" for row in read(reader(server.root, {"mode": "DROPMALFORMED"}), partitions))
        with pytest.raises(StoreUnreadableError, match="was removed before it was read"):
            read(reader(server.root, {"mode": "FAILFAST"}), partitions)


def test_what_is_gone_stops_a_query_that_wants_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    followed = reader(server.root, {"mode": "FAILFAST"})
    start = followed.initialOffset()
    server.publish(20)
    server.remove_oldest()
    with pytest.raises(StoreUnreadableError, match="messages 1 to 8 were removed") as caught:
        batch(followed, start)
    assert "mode to PERMISSIVE" in caught.value.message
    assert batch(reader(server.root, {"mode": "DROPMALFORMED"}), start)[1]


def test_a_file_that_is_not_followed_stops_a_query_that_wants_all(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    server.publish(5)
    data = server.directory / "msgs.1.dat"
    data.with_name("msgs.01.dat").write_bytes(data.read_bytes())
    for mode, rows in (("PERMISSIVE", 6), ("DROPMALFORMED", 5)):
        followed = reader(server.root, {"mode": mode})
        _, partitions = batch(followed, followed.initialOffset())
        assert len(read(followed, partitions)) == rows
    followed = reader(server.root, {"mode": "FAILFAST"})
    with pytest.raises(StoreUnreadableError, match=r"orders/msgs\.01\.dat: is not followed, because msgs\.1\.dat has"):
        batch(followed, followed.initialOffset())


def test_available_now(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    server.publish(20)
    followed = reader(server.root, {"maxFilesPerTrigger": "1"})
    followed.prepareForTriggerAvailableNow()
    assert followed.getDefaultReadLimit() == ReadMaxFiles(1)
    server.publish(20)
    at, seen = followed.initialOffset(), []
    while True:
        end, partitions = batch(followed, at)
        if end == at:
            break
        seen.append([row["seq"] for row in read(followed, partitions)])
        at = end
    assert seen == [[*range(1, 9)], [*range(9, 17)], [*range(17, 21)]]
