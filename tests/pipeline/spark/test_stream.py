"""`spark.readStream.format("stan")`: a store that is written arrives in Parquet files exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stantools.errors import UsageError

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql.streaming.datasource")

from stantools.pipeline.spark.source import register, spark_schema
from stantools.pipeline.spark.stream import StanStreamReader, stream_options
from stantools.pipeline.tables.follow import Limit
from stantools.pipeline.tables.options import TableOptions
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


def test_into_parquet(spark: SparkSession, follow: Callable[..., Any], tmp_path: Path) -> None:
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

    found = spark.read.parquet(str(tmp_path / "out")).orderBy("channel", "seq").collect()
    good = [row for row in found if row.status == "ok"]
    numbers = {int(bytes(row.data).split(b" ")[0]): row.seq for row in good if row.channel == "orders"}
    assert numbers == {number: seq for number, seq in server.stored.items() if seq not in (23, 24)}
    assert [row.seq for row in good if row.channel == "orders"] == [*range(1, 23), *range(25, 63)]
    assert [row.seq for row in good if row.channel == "other"] == [1, 2, 3]
    assert [(row.status, row.seq, row.slice) for row in found if row.status != "ok"] == [
        ("removed", 23, "orders/msgs.3.dat")
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
        ({"startingOffsets": "yesterday"}, "option startingOffsets: 'yesterday' is none"),
        ({"maxRowsPerTrigger": "0"}, "is not 1 or more"),
        ({"maxBytesPerTrigger": "much"}, "option maxBytesPerTrigger: "),
        ({"table": "clients"}, "cannot be followed"),
        ({"path": "s3://bucket/store"}, "a local path"),
        ({"colour": "red"}, "there is no option 'colour'"),
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
