"""Export on Spark: the files of the local export, and those of Spark's writer; nothing half written, nothing twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import StoreUnwritableError
from stantools.pipeline.export import run as export
from stantools.pipeline.export.export_layout import ExportedPart, ExportLayout
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import golden_cases
from tests.pipeline.conftest import skip_without_spark
from tests.sparkcluster import standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

LOCAL = ("--master", "local[2]")
#: Names that need care in the names of directories.
NAMES = ["orders.new", "a=b", "x:y", "p%q", 'q"r', "ü[{^}]", "b#c", "1"]


def run(*words: object, code: int) -> Any:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("named") / "store"
    write_sample(root, SampleOptions(names=NAMES, messages=60, damage=["flipped-length", "flipped-byte"]))
    return root


def files(directory: Path) -> dict[str, pa.Table]:
    return {str(p.relative_to(directory)): pq.read_table(p) for p in sorted(directory.rglob("*.parquet"))}


def test_tasks_write_what_the_local_export_writes(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    stores = [golden / case / "datastore" for case in golden_cases()[::3]]
    same = ("--archived", "--by", "channel,date", "--file-size", "4MB", "-o", "json")
    run("export", *stores, "--to", tmp_path / "local", *same, code=1)
    result = run("pipeline", "export", *LOCAL, "--partitions", 3, *stores, "--to", tmp_path / "spark", *same, code=1)
    here, there = (json.loads((tmp_path / name / "_stantools-export.json").read_text()) for name in ("local", "spark"))
    # The same splits, but for how many there are: each has files of its own.
    for manifest in (here, there):
        manifest.pop("files"), manifest.pop("bytes")
    assert there == here and there["rows"] > 1_000
    said = json.loads(result.stdout)
    assert (said["schema"], said["written"], said["clean"], said["status"]) == (1, True, False, here["status"])
    names = {path.parent for path in map(Path, files(tmp_path / "local"))}
    assert {path.parent for path in map(Path, files(tmp_path / "spark"))} == names
    for name in names:
        local, other = (
            pa.concat_tables(pq.read_table(p) for p in sorted((tmp_path / d / name).glob("*.parquet")))
            for d in ("local", "spark")
        )
        assert other.equals(local), name
    assert sorted(path.name for path in (tmp_path / "spark").glob("_*")) == ["_SUCCESS", "_stantools-export.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local", "spark"]


def test_sparks_writer(spark: SparkSession, named: Path, tmp_path: Path) -> None:
    by = ("--by", "channel,date")
    run("export", named, "--to", tmp_path / "local", *by, code=1)
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    command = ("pipeline", "export", *LOCAL, named, *by, "--writer", "spark", "-o", "json")
    said = json.loads(run(*command, "--to", tmp_path / "spark", code=1).stdout)
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before
    assert said["rows"] == 480 and said["status"] == {"ok": 478, "payload": 1, "repaired": 1}
    local, other = files(tmp_path / "local"), files(tmp_path / "spark")
    assert [each["rows"] for each in said["files"]] == [table.num_rows for table in other.values()]
    assert {Path(name).parent for name in other} == {Path(name).parent for name in local}
    wanted = {Path(name).parent: table for name, table in local.items()}
    for name, table in other.items():
        mine = wanted[Path(name).parent]
        assert table.column_names == mine.column_names
        assert table.cast(mine.schema).equals(mine), f"{name}: rows in their order"
        group = pq.ParquetFile(tmp_path / "spark" / name).metadata.row_group(0)
        pruning = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        assert pruning["seq"].is_stats_set and pruning["timestamp"].is_stats_set
    # Read back by Spark, the names are what they were, and a condition reads one directory.
    frame = spark.read.option("basePath", str(tmp_path / "spark")).parquet(str(tmp_path / "spark"))
    assert {row.channel for row in frame.select("channel").distinct().collect()} == set(NAMES)
    assert len(frame.where("channel = 'a=b'").inputFiles()) >= 1
    assert frame.where("channel = 'x:y'").count() == 60
    # And what the local export wrote, Spark reads as well.
    again = spark.read.parquet(str(tmp_path / "local"))
    assert Counter(map(tuple, again.select(*frame.columns).collect())) == Counter(map(tuple, frame.collect()))
    url = (tmp_path / "url").as_uri()
    assert json.loads(run(*command, "--to", url, code=1).stdout)["rows"] == 480
    assert (tmp_path / "url" / "_SUCCESS").exists()
    assert "already exists" in run(*command, "--to", url, code=3).stderr


def test_a_failure_leaves_nothing(spark: SparkSession, named: Path, tmp_path: Path) -> None:
    command = ("pipeline", "export", *LOCAL, named, "--to", tmp_path / "out", "--mode", "FAILFAST")
    for writer in ("tasks", "spark"):
        said = run(*command, "--writer", writer, code=3).stderr
        assert "expected" in said or "offset" in said
        assert "  -> " in said
        assert list(tmp_path.iterdir()) == []


def test_every_table(spark: SparkSession, named: Path, tmp_path: Path) -> None:
    for table, code in (("subscriptions", 0), ("findings", 1)):
        words = (named, "--table", table, "--format", "ndjson")
        run("export", *words, "--to", tmp_path / f"{table}.ndjson", code=code)
        run("pipeline", "export", *LOCAL, *words, "--to", tmp_path / table, code=code)
        written = b"".join(path.read_bytes() for path in sorted((tmp_path / table).glob("*.ndjson")))
        assert written == (tmp_path / f"{table}.ndjson").read_bytes() and written


def test_a_damaged_log_is_a_row_and_a_finding(spark: SparkSession, tmp_path: Path) -> None:
    write_sample(tmp_path / "store", SampleOptions(names=["orders"], messages=20))
    path = tmp_path / "store" / "clients.dat"
    path.write_bytes(path.read_bytes()[:-3])
    words = (tmp_path / "store", "--table", "clients", "-o", "json", "--to")
    for number, verb in enumerate(
        (("export",), ("pipeline", "export", *LOCAL), ("pipeline", "export", *LOCAL, "--writer", "spark"))
    ):
        said = json.loads(run(*verb, *words, tmp_path / str(number), code=1).stdout)
        assert (said["clean"], said["status"]) == (False, {"ok": said["rows"] - 1, "damaged": 1})


@pytest.mark.slow
def test_an_executor_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    skip_without_spark()
    write_sample(tmp_path / "store", SampleOptions(names=["a", "b"], messages=60_000, size=200, slice_msgs=20_000))
    logs = tmp_path / "logs"
    logs.mkdir()
    words = [str(tmp_path / "store"), "--file-size", "500kB"]
    with standalone(logs, memory="600m") as cluster:
        command = [sys.executable, "-m", "stantools", "pipeline", "export", "--master", cluster.url, *words]
        command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=1g", "--to"]
        with subprocess.Popen([*command, str(tmp_path / "out")], stderr=subprocess.PIPE, text=True) as job:
            attempts = tmp_path / ".out.stantools-partial" / "content" / "_attempts"
            while job.poll() is None and not (attempts.is_dir() and any(attempts.iterdir())):
                time.sleep(0.02)
            assert job.poll() is None, job.communicate()[1]
            cluster.kill_executor()
            _, said = job.communicate(timeout=300)
        assert job.returncode == 0, said
    run("export", *words, "--to", tmp_path / "local", code=0)
    ours = pq.ParquetDataset(tmp_path / "local").read().sort_by([("channel", "ascending"), ("seq", "ascending")])
    theirs = pq.ParquetDataset(tmp_path / "out").read().sort_by([("channel", "ascending"), ("seq", "ascending")])
    same = ours.equals(theirs)
    assert same and ours.num_rows == 120_000


# Without Spark


def test_a_task_that_is_repeated_counts_once(named: Path, tmp_path: Path) -> None:
    layout = ExportLayout(by=("channel",))
    options = TableOptions((str(named),), columns=layout.read_columns)
    planned = plan(options)
    attempts = tmp_path / "_attempts"
    attempts.mkdir()
    part = export.ExportTask(0, planned.splits[0], options, layout, tmp_path, attempts)
    done = [export.write_split(part) for _ in range(2)]
    assert done[0].directory != done[1].directory
    export.take(done[1], tmp_path)
    written = ExportedPart()
    written.add(done[1].written)
    found = [p for p in ds.dataset(tmp_path, format="parquet").files if "_attempts" not in p]
    assert sum(pq.read_metadata(p).num_rows for p in found) == written.rows > 0


def test_a_task_that_fails_takes_its_files_away(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = TableOptions((str(named),), columns=ExportLayout().read_columns)
    part = export.ExportTask(0, plan(options).splits[0], options, ExportLayout(), tmp_path, tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "fsync_file", full)
    with pytest.raises(StoreUnwritableError, match="No space left"):
        export.write_split(part)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreUnwritableError, match="does not exist on") as caught:
        export.write_split(replace(part, attempts=tmp_path / "elsewhere" / "_attempts"))
    assert "file system that the driver and all workers see" in caught.value.remedy


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--to", "-"], 2, "or leave out the options for Spark"),
        (["--to", "-", "--engine", "spark"], 2, "Spark cannot write to stdout"),
        (["--to", "s3a://x/y", "--writer", "tasks"], 2, "not to URLs"),
        (["--to", "mine"], 3, "not empty"),
        (["--to", "mine", "--overwrite"], 4, "is not an export"),
        (["--to", "missing/out"], 3, "there is no directory"),
        (["--to", "out", "--channel", "nobody"], 2, "no channel of any store matches"),
        (["--to", "out", "--master", "locl[2]"], 2, "locl"),
    ],
)
def test_refused_before_spark_is_started(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    assert said in run("pipeline", "export", named, *words, code=code).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_dry_run_needs_no_spark(named: Path, tmp_path: Path) -> None:
    said = run("pipeline", "export", named, "--to", tmp_path / "x.parquet", "--dry-run", code=0).stdout
    assert said.startswith("would write the table messages of 1 store to ")
    assert list(tmp_path.iterdir()) == []
