"""`df.write.format("jetstream")` and `writeStream`, through Spark, into a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stantools.errors import RefusedError, StantoolsError, UsageError
from stantools.migration.plan.choices import OriginHeaders
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import prepare
from stantools.migration.source import open_source
from stantools.migration.targets.server_destination import prove
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.schema import schema_of
from stantools.store.directory import open_datastore
from tests.natsclient import with_jetstream
from tests.pipeline.spark.sinking import description, expected, info, kill_clients, rows, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

CHANNELS = {
    name: rows(name, range(first, 400, step)) for name, first, step in (("a", 1, 1), ("b.x", 3, 7), ("c", 90, 3))
}
ROWS = [row for listed in CHANNELS.values() for row in listed]


def frame(spark: SparkSession, listed: list[dict[str, Any]]) -> Any:
    """Rows in an order that nobody would choose, in several partitions."""
    table = pa.Table.from_pylist(
        sorted(listed, key=lambda row: row["seq"] * 7919 % 101), schema=schema_of(TableName.MESSAGES)
    )
    return spark.createDataFrame(table).repartition(3)


def test_write(spark: SparkSession, start_server: Callable[..., Any]) -> None:
    from stantools.pipeline.spark import jetstream

    server = start_server()
    half = frame(spark, [row for row in ROWS if row["seq"] < 200])
    everything = frame(spark, ROWS)
    jetstream.write(half, servers=server.url, max_age="9000h")
    jetstream.write(everything, servers=[server.url], max_age="9000h")
    for channel, listed in CHANNELS.items():
        name = channel.replace(".", "_")
        assert stored(server, name) == expected(listed)
        assert description(server, name) == f"NATS Streaming channel {channel}"
    # Who arranges the rows in another way is told.
    jetstream.register(spark)
    with pytest.raises(Exception, match=r"comes after message|not contiguous|several partitions|are being written"):
        everything.write.format("jetstream").option("servers", server.url).option("streamPrefix", "x").mode(
            "append"
        ).save()
    ordered = everything.coalesce(1).sortWithinPartitions("channel", "seq")
    ordered.write.format("jetstream").option("servers", server.url).option("streamPrefix", "y").option(
        "subjectPrefix", "y"
    ).mode("append").save()
    assert [each.data for each in stored(server, "yc")] == [row["data"] for row in CHANNELS["c"]]
    # What makes no sense, or would lose something.
    with pytest.raises(Exception, match="UsageError: streams cannot be overwritten"):
        ordered.write.format("jetstream").option("servers", server.url).mode("overwrite").save()
    with pytest.raises(UsageError, match="unknown option 'serverz'"):
        jetstream.write(everything, serverz=server.url)
    with pytest.raises(UsageError, match="messages need the columns seq, data, timestamp_ns; there are channel, id"):
        jetstream.write(spark.createDataFrame([("a", 1)], "channel string, id long"), servers=server.url)
    with pytest.raises(StantoolsError, match=r"cannot connect to nats://127.0.0.1:1"):
        jetstream.write(everything, servers="nats://127.0.0.1:1")
    with pytest.raises(RefusedError, match="two messages with sequence 5") as raised:
        jetstream.write(frame(spark, [*CHANNELS["a"], CHANNELS["a"][4]]), servers=server.url, stream_prefix="z")
    assert "dropDuplicates" in raised.value.remedy
    assert info(server, "za") is None


@pytest.mark.slow
def test_a_worker_is_killed(spark: SparkSession, start_server: Callable[..., Any]) -> None:
    """A cluster repeats the task; on this machine the job fails, and the same job again goes on."""
    from stantools.pipeline.spark import jetstream
    from stantools.pipeline.spark.session import is_connect

    server = start_server()
    many = spark.range(30_000).selectExpr(
        "'a' AS channel",
        "id + 1 AS seq",
        "id AS timestamp_ns",
        "cast(repeat(cast(id AS string), 50) AS binary) AS data",
    )
    repeats = not is_connect(spark) and not spark.sparkContext.master.startswith("local[")
    killed: list[int] = []
    killer = threading.Thread(target=lambda: killed.extend(kill_clients(server, "a", 4000)))
    killer.start()
    if repeats:
        jetstream.write(many, servers=server.url)
    else:
        with pytest.raises(StantoolsError, match="worker died"):
            jetstream.write(many, servers=server.url)
        assert description(server, "a").startswith("stantools: not complete")
        found = info(server, "a")
        assert found and 4000 <= found["state"]["messages"] < 30_000
        jetstream.write(many, servers=server.url)
    killer.join()
    assert killed
    assert [(each.sequence, each.data) for each in stored(server, "a")] == [
        (number + 1, str(number).encode() * 50) for number in range(30_000)
    ]
    assert description(server, "a") == "NATS Streaming channel a"


@pytest.mark.slow
def test_a_limit_of_the_server(spark: SparkSession, start_server: Callable[..., Any], tmp_path: Path) -> None:
    from stantools.pipeline.spark import jetstream

    server = start_server(
        config={"jetstream": {"store_dir": str(tmp_path / "js"), "max_mem": 1 << 20, "max_file": 1 << 20}}
    )
    large = spark.range(300).selectExpr(
        "'a' AS channel", "id + 1 AS seq", "id AS timestamp_ns", "cast(repeat('x', 10000) AS binary) AS data"
    )
    with pytest.raises(StantoolsError, match="stream a is filled up to sequence") as raised:
        jetstream.write(large, servers=server.url)
    assert "raise its JetStream limits; the same command continues from there" in raised.value.remedy
    assert description(server, "a").startswith("stantools: not complete")


@pytest.mark.slow
def test_from_a_store(spark: SparkSession, start_server: Callable[..., Any], golden: Path) -> None:
    from stantools.pipeline.spark import jetstream
    from stantools.pipeline.spark.read import read

    server = start_server(config={"max_payload": 8 << 20})
    store = golden / "basic" / "datastore"
    jetstream.write(read(spark, store, mode="DROPMALFORMED"), servers=server.url, subject_prefix="old")
    source = open_source(open_datastore(store))
    options = PlanOptions(subject_prefix="old.", origin_headers=OriginHeaders.ON)
    plan = make_plan(source, options, (2, 15, 1))
    proven = 0
    for stream in prepare(plan, source):
        # A channel that lost its last messages to limits, or has none, is known to its index only.
        if stream.source.count and stream.source.last == stream.source.parts[0][0].sequences.last:
            proof = with_jetstream(server.url, lambda js, stream=stream: prove(js, stream, published=True))
            assert {each.code for each in proof.findings} <= {"consumer-missing"}
            proven += proof.messages
    assert proven > 50


def test_write_stream(spark: SparkSession, start_server: Callable[..., Any], tmp_path: Path) -> None:
    from stantools.pipeline.spark import jetstream

    server = start_server()
    folder = tmp_path / "in"
    folder.mkdir()
    columns = [name for name in schema_of(TableName.MESSAGES).names if name not in ("timestamp", "size")]

    def arrives(name: str, listed: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(listed, schema=schema_of(TableName.MESSAGES)).select(columns)
        pq.write_table(table, tmp_path / name)
        (tmp_path / name).rename(folder / f"{name}.parquet")

    def go() -> None:
        schema = spark.createDataFrame(
            pa.Table.from_pylist(ROWS[:1], schema=schema_of(TableName.MESSAGES)).select(columns)
        ).schema
        incoming = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
        writer = jetstream.write_stream(incoming, servers=server.url, max_msgs=300)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(300), "the query goes on and on"
        assert query.exception() is None

    for number in range(2):
        arrives(f"{number}", [row for row in ROWS if number * 100 <= row["seq"] < (number + 1) * 100])
    go()
    arrives("2", [row for row in ROWS if row["seq"] >= 200])
    go()
    for channel, listed in CHANNELS.items():
        assert stored(server, channel.replace(".", "_")) == expected(listed)[-300:]
