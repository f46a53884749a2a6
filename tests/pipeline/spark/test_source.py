"""The source `stan` in Spark: what arrives is what is read without it, whatever the query looks like."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.format.crc import CASTAGNOLI, Crc
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.pipeline.tables.model import STORE_TABLES, TableName
from stantools.pipeline.tables.table_options import TableOptions
from stantools.secret import Secret
from stantools.store.directory import open_datastore
from stantools.store.sample import SampleOptions, write_sample

pa = pytest.importorskip("pyarrow")
CaseInsensitiveDict = pytest.importorskip("pyspark.sql.datasource").CaseInsensitiveDict

from pyspark.sql.datasource import DataSource  # noqa: E402
from pyspark.sql.functions import spark_partition_id  # noqa: E402

from stantools.pipeline.spark.failures import clear_errors  # noqa: E402
from stantools.pipeline.spark.read import (  # noqa: E402
    StanDataSource,
    read,
    views,
)
from stantools.pipeline.spark.stream_options import source_options  # noqa: E402
from stantools.pipeline.tables.model import ReadCounter  # noqa: E402
from stantools.pipeline.tables.planning import plan  # noqa: E402
from stantools.pipeline.tables.read import read_split  # noqa: E402
from stantools.pipeline.tables.schema import schema_of  # noqa: E402
from tests.pipeline.conftest import TEST_CONF, skip_without_spark  # noqa: E402
from tests.sqlstore.cases import expected  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

CHANNELS, MESSAGES, SLICE = ["orders", "orders.eu", "jobs"], 600, 100


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "store"
    write_sample(root, SampleOptions(names=CHANNELS, messages=MESSAGES, size=100, slice_msgs=SLICE))
    return root


def local(options: TableOptions, counter: ReadCounter | None = None) -> Any:
    """The table as it is read in this process."""
    batches = [each for split in plan(options).splits for each in read_split(split, options, counter)]
    schema = schema_of(options.table)
    names = options.columns or tuple(schema.names)
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in names]))


def test_golden_stores_arrive_message_by_message(spark: SparkSession, golden: Path) -> None:
    """All stores at once, twice: whole, and in as many tasks and parts as can be; the order is that of the files."""
    pattern = f"{golden}/*/datastore"
    here = local(source_options({"path": pattern, "archived": "true"}))
    there = read(spark, pattern, archived=True).toArrow()
    assert there.schema.equals(here.schema)
    assert there.equals(here)
    columns = ["slice", "offset", "store", "status", "seq"]
    cut = read(spark, pattern, archived=True, split_bytes=700, partition_bytes=10 << 20, columns=columns)
    parts = cut.withColumn("part", spark_partition_id()).toArrow()
    assert len(set(parts["part"].to_pylist())) > 5
    assert parts.select(columns).to_pydict() == here.select(columns).to_pydict()

    rows: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for row in there.filter(pa.compute.is_in(there["status"], pa.array(["ok", "repaired"]))).to_pylist():
        place = rows.setdefault((row["store"], row["channel"]), [])
        assert row["size"] == len(row["data"]) and row["timestamp_ns"] // 1000 == row["timestamp"].timestamp() * 1e6
        place.append(
            tuple(row[name] for name in ("seq", "timestamp_ns", "subject", "reply", "data", "slice", "offset"))
        )
    assert rows == dict(stored(sorted({row["store"] for row in there.select(["store"]).to_pylist()})))


def stored(roots: list[str]) -> Iterator[tuple[tuple[str, str], list[tuple[Any, ...]]]]:
    """What `stantools messages` gives of each channel."""
    for root in roots:
        case = Path(root).parent.name
        for channel in open_datastore(root).channels():
            reader = MessageReader(channel, Crc(CASTAGNOLI) if case == "crc_castagnoli" else Crc(), archived=True)
            found = [_row(channel.name, each) for each in reader.read(Selection()) if isinstance(each, StoredMessage)]
            if found:
                yield (root, channel.name), found


def _row(channel: str, message: StoredMessage) -> tuple[Any, ...]:
    texts = (message.subject.decode(), message.reply.decode())
    return message.sequence, message.timestamp, *texts, message.data, f"{channel}/{message.file}", message.offset


def test_the_other_tables_arrive_as_they_are_read_here(spark: SparkSession, golden: Path) -> None:
    pattern = f"{golden}/d*/datastore"
    for table in STORE_TABLES:
        if table is not TableName.MESSAGES:
            here = local(source_options({"path": pattern, "table": table}))
            there = read(spark, pattern, table=table).toArrow()
            assert there.schema.equals(here.schema), table
            assert there.num_rows and there.to_pydict() == here.to_pydict(), table


def test_sql_over_views(spark: SparkSession, store: Path) -> None:
    made = views(spark, store)
    assert sorted(made) == sorted(f"stan_{table}" for table in STORE_TABLES)
    rows = spark.sql(
        """
        select m.channel, m.messages, s.subs, l.slices,
               (select count(*) from stan_messages where channel = 'jobs' and seq > 590) as few
        from (select channel, count(*) as messages from stan_messages where status = 'ok' group by channel) m
        left join (select channel, count(*) as subs from stan_subscriptions group by channel) s using (channel)
        left join (select channel, count(*) as slices from stan_slices group by channel) l using (channel)
        order by channel
        """
    ).collect()
    assert [row["channel"] for row in rows] == sorted(CHANNELS)
    for row in rows:
        assert (row["messages"], row["slices"], row["few"]) == (MESSAGES, MESSAGES // SLICE, 10)
    assert sum(row["subs"] or 0 for row in rows) == made["stan_subscriptions"].count() > 0
    assert made["stan_clients"].count() > 0


def test_damaged_logs_are_rows_of_subscriptions_and_clients(spark: SparkSession, tmp_path: Path) -> None:
    write_sample(tmp_path / "store", SampleOptions(names=["orders"], messages=20))
    for file in ("clients.dat", "orders/subs.dat"):
        path = tmp_path / "store" / file
        path.write_bytes(path.read_bytes()[:-3])
    views(spark, tmp_path / "store", prefix="torn_")
    for table, told in (
        ("subscriptions", {"damaged orders/subs.dat", "damaged clients.dat"}),
        ("clients", {"damaged clients.dat", "damaged orders/subs.dat"}),
    ):
        rows = spark.sql(f"select id, status, detail from torn_{table} where detail is not null").collect()
        names = {f"{row.status} {row.detail.partition(': ')[0]}" for row in rows}
        assert names == {each.replace(" ", f" {tmp_path}/store/") for each in told}
        assert {row.id for row in rows} == {None}
        assert spark.table(f"torn_{table}").where("id is not null").count() > 0


def test_tasks_are_larger_without_payloads(store: Path) -> None:
    def planned(columns: str, **options: str) -> TableOptions:
        source = StanDataSource({"path": str(store), "columns": columns, **options})
        return source.reader(source.schema()).options

    assert planned("seq,status").largest_partition > TableOptions(()).partition_bytes
    for options in (planned("seq,data"), planned(""), planned("seq", partitionBytes="1MB")):
        assert options.largest_partition == 0


def test_columns_come_from_the_option_or_the_schema(spark: SparkSession, store: Path) -> None:
    few = read(spark, store, columns=["seq", "channel"], channels="orders", seq="5:7")
    assert few.columns == ["seq", "channel"]
    assert few.collect() == [(5, "orders"), (6, "orders"), (7, "orders")]
    given = spark.read.format("stan").schema("CHANNEL string, Seq long").options(seq="600:").load(str(store))
    assert given.columns == ["CHANNEL", "Seq"]
    assert [tuple(row) for row in given.where("seq = 600").orderBy("channel").collect()] == [
        (channel, 600) for channel in sorted(CHANNELS)
    ]
    several = spark.read.format("stan").option("columns", "store").load([str(store), f"{store.parent}/st*"])
    assert several.count() == 3 * MESSAGES


def test_conditions_of_queries_that_share_a_table(spark: SparkSession, store: Path) -> None:
    frame = read(spark, store, columns="seq")
    both = frame.where("seq > 595").union(frame.where("seq > 590")).union(frame.where("seq is not null"))
    assert both.count() == 3 * (5 + 10 + MESSAGES)
    assert frame.count() == 3 * MESSAGES


def test_bounds_leave_slices_and_parts_of_slices_unread(store: Path) -> None:
    def cost(**options: str) -> tuple[int, int]:
        """Bytes of data that are planned, and that are read."""
        values = source_options({"path": str(store), **options})
        counter = ReadCounter()
        planned = sum(split.cost for split in plan(values).splits)
        local(values, counter)
        return planned, counter.data_bytes

    planned, read_bytes = cost()
    assert read_bytes >= planned * 0.99 > 300 * 3 * MESSAGES * 0.3
    assert cost(channels="jobs")[1] <= read_bytes / 2.9
    assert cost(channels="jobs", seq="201:300")[1] <= read_bytes / 16
    assert cost(checkCrc="false", columns="seq,timestamp")[1] <= read_bytes / 10


WRONG: list[tuple[dict[str, str], type[StantoolsError], list[str]]] = [
    ({"chanels": "a"}, UsageError, ["'chanels'", "did you mean channels"]),
    ({"schema": "seq int"}, UsageError, ["seq: is bigint, not int"]),
    ({"path": "/nowhere/at/all"}, StoreUnreadableError, ["/nowhere/at/all"]),
    ({"columns": "seq,sequence"}, UsageError, ["'sequence'", "its columns are: store, channel"]),
    ({"table": "message"}, UsageError, ["'message'", "messages"]),
    ({"mode": "STRICT"}, UsageError, ["STRICT", "PERMISSIVE"]),
    ({"startingOffsets": "latest"}, UsageError, ["startingOffsets", "readStream"]),
    ({"schema": "sequence long"}, UsageError, ["'sequence'", "its columns are"]),
]


@pytest.mark.parametrize(("options", "kind", "says"), WRONG, ids=[" ".join(each[0]) for each in WRONG])
def test_what_makes_no_sense_is_refused(
    store: Path, options: dict[str, str], kind: type[StantoolsError], says: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        _plan({"path": str(store), **options})
    for each in says:
        assert each in caught.value.message


def _plan(options: dict[str, str]) -> None:
    """Does what Spark does before the first task."""
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    types = {"int": IntegerType(), "long": LongType()}
    given = options.pop("schema", "").split()
    source = StanDataSource(CaseInsensitiveDict(options))
    schema = StructType([StructField(given[0], types[given[1]])]) if given else source.schema()
    source.reader(schema).partitions()


def test_what_makes_no_sense_is_said_in_one_line(spark: SparkSession, store: Path) -> None:
    for options, kind, says in WRONG[:3]:
        values = {"path": str(store), **options}
        reader = spark.read.format("stan")
        if schema := values.pop("schema", ""):
            reader = reader.schema(schema)
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
            reader.options(**values).load().count()
        text = str(caught.value)
        assert "Traceback" not in text and "\n  -> " in text
        with pytest.raises(kind) as ours, clear_errors():
            raise caught.value
        for each in says:
            assert each in f"{ours.value.message}; {ours.value.remedy}"


def test_read_itself_refuses_what_makes_no_sense(spark: SparkSession, store: Path) -> None:
    with pytest.raises(UsageError, match="unknown option 'chanels'"):
        read(spark, store, chanels=["a"])
    with pytest.raises(UsageError, match="no path"):
        read(spark)
    with pytest.raises(UsageError, match="the option columns cannot apply to all tables"):
        views(spark, store, columns="seq")


def test_damage_by_mode(spark: SparkSession, tmp_path: Path) -> None:
    write_sample(tmp_path / "a", SampleOptions(names=["x", "y"], messages=50, damage=["flipped-byte"]))
    write_sample(tmp_path / "b", SampleOptions(names=["z"], messages=10))
    (tmp_path / "b" / "z" / "msgs.1.dat").unlink()
    (tmp_path / "b" / "z" / "msgs.1.dat").mkdir()
    frame = read(spark, tmp_path, columns=["store", "channel", "seq", "slice", "offset", "status"])
    bad = [row for row in frame.collect() if row["status"] != "ok"]
    assert bad and bad[0]["offset"] is not None
    good = read(spark, tmp_path, mode="dropmalformed", columns="status").distinct().collect()
    assert [row[0] for row in good] == ["ok"]
    with pytest.raises(StoreUnreadableError) as caught, clear_errors():
        read(spark, tmp_path / "a", mode="FAILFAST", columns="seq").count()
    assert bad[0]["slice"] in caught.value.message and str(bad[0]["offset"]) in caught.value.message


def test_keys_polynomials_and_urls(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = SampleOptions(names=["x"], messages=40, encryption_key=Secret(b"s3cret"), polynomial=CASTAGNOLI)
    write_sample(tmp_path / "secret", secret)
    write_sample(tmp_path / "plain", SampleOptions(names=["x"], messages=40))
    key = tmp_path / "key"
    key.write_text("s3cret")
    here = local(source_options({"path": str(tmp_path / "plain"), "columns": "data"}))
    for options in ({"encryption_key": "s3cret"}, {"encryption_key_file": key}):
        there = read(spark, (tmp_path / "secret").as_uri(), columns=["data", "status"], **options).toArrow()
        assert there["data"].to_pylist() == here["data"].to_pylist()
    raw = read(spark, tmp_path / "secret", columns=["data", "status"]).toArrow()
    assert raw["data"].to_pylist() != here["data"].to_pylist() and set(raw["status"].to_pylist()) == {"ok"}
    with pytest.raises(StantoolsError, match="NO_SUCH_KEY"), clear_errors():
        read(spark, tmp_path / "secret", encryption_key_env="NO_SUCH_KEY").count()


def test_the_class_can_be_registered_as_users_do(spark: SparkSession, store: Path) -> None:
    spark.dataSource.register(StanDataSource)
    frame = spark.read.format("stan").option("paths", json.dumps([str(store)])).option("SEQ", "1:1").load()
    assert frame.select("status").collect() == [("ok",)] * 3
    spark.sql(f"create temporary view by_sql using stan options (path '{store}', seq '1:2', columns 'channel')")
    assert spark.sql("select count(*) from by_sql").collect()[0][0] == 6
    with pytest.raises(UsageError, match="Spark cannot write stores"), clear_errors():
        frame.write.format("stan").mode("append").save("/nowhere")


ROOT = Path(__file__).parents[3]
ENTRY = ROOT / "stantools" / "pipeline" / "spark" / "entry"


def test_packages_on_the_path_name_the_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark looks for classes of this name in packages that begin with `pyspark_`."""
    monkeypatch.syspath_prepend(str(ENTRY))
    found = {each.name: importlib.import_module(each.name) for each in pkgutil.iter_modules([str(ENTRY)])}
    assert all(name.startswith("pyspark_") for name in found)
    sources = [module.DefaultSource for module in found.values()]
    assert all(issubclass(each, DataSource) for each in sources)
    assert {each.name() for each in sources} == {"stan", "jetstream"}


@pytest.mark.slow
def test_spark_finds_the_formats_that_are_installed(store: Path) -> None:
    """In a process with nothing of ours but the packages on the path, as a wheel puts them there."""
    skip_without_spark()
    program = (
        "import sys\nfrom pyspark.sql import SparkSession\n"
        f"spark = SparkSession.builder.master('local[1]').config(map={TEST_CONF}).getOrCreate()\n"
        "print(spark.read.format('stan').option('path', sys.argv[1]).option('columns', 'seq').load().count())\n"
        "try: spark.range(1).write.format('jetstream').mode('append').save()\n"
        "except Exception as problem: print(problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, store],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": f"{ENTRY}:{ROOT}", "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    count, problem = done.stdout.split("\n", 1)
    assert count == str(len(CHANNELS) * MESSAGES), done.stderr
    assert "messages need the columns channel, seq, data" in problem  # the sink is there, and says what it lacks


def test_a_dump_of_a_sql_store_is_a_table(spark: SparkSession, golden_sql: Path) -> None:
    dump = str(golden_sql / "p_durables" / "dump.sql")
    facts = expected(golden_sql, "p_durables")["rows"]
    frame = read(spark, dump).where("status = 'ok'")
    counts = {row["channel"]: row["count"] for row in frame.groupBy("channel").count().collect()}
    names = {each["id"]: each["name"] for each in facts["Channels"]}
    assert counts == {
        names[each["id"]]: sum(last - first + 1 for first, last in each["intact"]) for each in facts["Messages"]
    }
    assert {row["store"] for row in frame.select("store").distinct().collect()} == {dump}
    with pytest.raises(UsageError, match="postgres://u@h/db: Spark would write the password"), clear_errors():
        spark.read.format("stan").load("postgres://u:secret@h/db")
