"""The engines of a job say and write the same; small work is done here, and that is said."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from stantools.cli import pipeline
from stantools.cli.main import cli
from stantools.errors import ExitCode, RefusedError
from stantools.pipeline.jobs.verify import plan_verify
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.sample import SampleOptions, write_sample
from tests.trees import tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

#: Job -> its options; OUT is where it writes.
JOBS = {
    "doctor": (),
    "verify": (),
    "diff": (),
    "stats": ("--to", "OUT/tables", "--report", "OUT/page.html"),
    "export": ("--to", "OUT/files", "--by", "channel", "--file-size", "20kB"),
    "salvage": ("--out", "OUT/new", "--cluster-id", "x"),
    "migrate": (
        *("--out", "OUT/backups", "--plans", "OUT/plans", "--yes", "--accept-loss"),
        *("--stream-prefix", "{store}-", "--subject-prefix", "{store}"),
    ),
}


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["pipeline", *map(str, words)])


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("engines")
    for folder in ("stores", "others"):
        (root / folder).mkdir()
        write_sample(root / folder / "whole", SampleOptions(channels=3, messages=300, gaps=True))
        damage = ["flipped-byte", "garbage-middle"] if folder == "stores" else []
        write_sample(root / folder / "damaged", SampleOptions(channels=2, messages=200, seed=2, damage=damage))
    return root


def plain(said: str) -> str:
    """What was said, without how long it took."""
    text = re.sub(r'"(\w*seconds)": [\d.e-]+', r'"\1": 0', said)
    return re.sub(r"(in|for) [\d.]+ s\b", r"\1 0 s", text)


def outcome(out: Path, job: str, stores: Path, engine: str, *words: str) -> tuple[Any, ...]:
    out.mkdir()
    places = [stores / "stores", stores / "others"] if job == "diff" else [stores / "stores", stores / "gone"]
    more = (each.replace("OUT", str(out)) for each in JOBS[job])
    result = run(job, *places, *more, "--engine", engine, "--progress", "none", *words)
    assert "Traceback" not in result.output and not isinstance(result.exception, AssertionError)
    written: Any = tree(out)
    if job == "migrate":  # backups say when they were made
        written = sorted(written)
    out.rename(out.with_name(f"{out.name}-{engine}{''.join(words)}"))
    return result.exit_code, plain(result.stdout), plain(result.stderr), written


@pytest.mark.parametrize(
    ("job", "output"),
    [
        *((job, "json") for job in JOBS),
        ("stats", "table"),
        *(pytest.param(job, "table", marks=pytest.mark.slow) for job in JOBS if job not in ("migrate", "stats")),
    ],
)
def test_both_engines_say_and_write_the_same(
    spark: SparkSession, stores: Path, tmp_path: Path, job: str, output: str
) -> None:
    local, spark_too = (outcome(tmp_path / "out", job, stores, engine, "-o", output) for engine in ("local", "spark"))
    assert local == spark_too
    code, said, _, written = local
    assert code in (ExitCode.FINDINGS, ExitCode.LOSS) and bool(written) == (job not in ("doctor", "verify", "diff"))
    if output == "json":
        assert json.loads(said)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is there, and none can be started."""

    @contextmanager
    def session(*_: object) -> Iterator[None]:
        raise RefusedError("Spark was to start")
        yield

    monkeypatch.setattr("stantools.pipeline.spark.session.active_session", lambda: None)
    monkeypatch.setattr(pipeline.Cluster, "session", session)


def test_little_is_done_here_and_more_on_spark(nobody: None, stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores / "stores" / "whole"
    size = plan_verify(TableOptions((str(store),))).bytes
    monkeypatch.setattr(pipeline, "SPARK_PAYS", size + 1)
    here = run("verify", store)
    assert here.exit_code == ExitCode.CLEAN
    assert here.stderr.startswith("stantools: running in this process: ") and "--engine spark" in here.stderr
    assert run("verify", store, "--engine", "local").stderr == ""
    for words in (("--engine", "spark"), ("--master", "local[2]"), ("--conf", "spark.x=1"), ("--remote", "sc://x")):
        assert "Spark was to start" in run("verify", store, *words).stderr
    monkeypatch.setattr(pipeline, "SPARK_PAYS", size)
    assert "Spark was to start" in run("verify", store).stderr
    assert run("verify", store, "--engine", "local").exit_code == ExitCode.CLEAN
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # as spark-submit sets it
    monkeypatch.setattr(pipeline, "SPARK_PAYS", size + 1)
    assert "Spark was to start" in run("verify", store).stderr


def test_here_it_needs_nothing_of_spark(nobody: None, stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    missing = {"pyspark", "pandas"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in missing else find(name, *more))
    for job in ("verify", "stats"):
        assert run(job, stores / "stores" / "whole").exit_code == ExitCode.CLEAN
        assert (
            "the Python packages pyspark, pandas are not installed"
            in run(job, stores / "stores", "--engine", "spark").stderr
        )
    missing.add("pyarrow")
    assert run("verify", stores / "stores" / "whole").exit_code == ExitCode.CLEAN
    stats = run("stats", stores / "stores" / "whole")
    assert stats.exit_code == ExitCode.UNREACHABLE
    assert "stats needs pyarrow, which is not installed" in stats.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "--engine", "local", "--master", "local[2]"), "--engine local contradicts the options for Spark"),
        (("verify", "--engine", "local", "--conf", "spark.x=1"), "--engine local contradicts the options for Spark"),
        (("export", "--to", "x", "--engine", "local", "--writer", "spark"), "URLs need --writer spark"),
        (("export", "--to", "s3a://x/y", "--engine", "local"), "URLs need --writer spark"),
        (("verify", "--engine", "flink"), "'flink' is not one of"),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], said: str, stores: Path) -> None:
    result = run(*words, stores / "stores" / "whole")
    assert result.exit_code == ExitCode.USAGE and said in result.stderr
