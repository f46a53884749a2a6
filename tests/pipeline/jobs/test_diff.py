"""Diff on Spark says of every pair of stores what the local diff says."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stantools.errors import ExitCode
from stantools.inspection import survey_jobs
from stantools.migration.proof.stores import compare_stores
from stantools.pipeline.jobs import diff
from stantools.pipeline.jobs.diff import Pair, plan_diff, run_diff
from stantools.pipeline.spark.tasks import SparkWork
from stantools.pipeline.tables.model import StoreRef
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.read_options import open_store
from tests.conftest import KINDS_OF_STORES, golden_cases
from tests.pipeline.jobs.jobcommand import run, sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

LOCAL = "local[2]"


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(sorted(KINDS_OF_STORES)[::2], id="kinds"),
        pytest.param(golden_cases()[::3], marks=pytest.mark.slow, id="more"),
    ],
)
def test_golden_stores_are_compared_as_by_the_local_diff(
    spark: SparkSession, golden: Path, monkeypatch: pytest.MonkeyPatch, cases: list[str]
) -> None:
    monkeypatch.setattr(survey_jobs, "CHANNEL_BYTES", 0)
    monkeypatch.setattr(diff, "RANGE_BYTES", 500)
    stores = [golden / case / "datastore" for case in cases]
    paths = [(one, other) for one, other in pairwise(stores) if one.is_dir() and other.is_dir()]
    sides = {store: open_store(store) for store in stores if store.is_dir()}
    refs = {store: StoreRef(str(store), each.crc.polynomial) for store, each in sides.items()}
    plan = plan_diff([Pair(refs[one], refs[other]) for one, other in paths], [], TableOptions(()))
    result = run_diff(SparkWork(spark), plan)
    assert not result.failed
    assert len(result.stores) == len(paths) > len(cases) * 3 // 4
    for (one, other), got in zip(paths, result.stores, strict=True):
        assert got.found == compare_stores(sides[one], sides[other]), (one, other)


def test_directories_of_stores_are_matched_by_path(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    sample(old / "a" / "same")
    sample(old / "b" / "damaged", "--seed", 2)
    sample(old / "c" / "other", "--seed", 3)
    shutil.copytree(old, new)
    shutil.rmtree(new / "b" / "damaged")
    sample(new / "b" / "damaged", "--seed", 2, "--damage", "flipped-byte")
    sample(old / "d" / "alone", "--messages", 3)
    monkeypatch.setattr(diff, "RANGE_BYTES", 4000)

    result = run("pipeline", "diff", "--master", LOCAL, "-o", "json", old, new, code=ExitCode.FINDINGS)
    document = json.loads(result.stdout)
    assert [Path(each["store"]).name for each in document["stores"]] == ["same", "damaged", "other"]
    assert [each["clean"] for each in document["stores"]] == [True, False, True]
    assert [Path(each["path"]).name for each in document["failed"]] == ["alone"]
    assert "has no counterpart d/alone below" in result.stderr
    assert "is damaged; only its intact data was compared" in result.stderr
    for each in document["stores"]:
        words = ("diff", each.pop("store"), each.pop("other"), "-o", "json")
        code = ExitCode.CLEAN if each.pop("clean") else ExitCode.FINDINGS
        assert {"schema": 1, **each} == json.loads(run(*words, code=code).stdout)

    table = run("pipeline", "diff", "--master", LOCAL, old / "a", new / "a", "--channel", "*", code=ExitCode.CLEAN)
    assert table.stdout.startswith("no difference: ")
    nothing = run("pipeline", "diff", old, new, "--channel", "nobody", code=ExitCode.USAGE)
    assert "no channel of any store matches nobody" in nothing.stderr


def test_a_wrong_path_or_a_stream_is_told_without_starting_spark(tmp_path: Path) -> None:
    store = sample(tmp_path / "store")
    missing = run(
        "pipeline", "diff", "--master", "spark://nowhere:1", store, tmp_path / "no", code=ExitCode.UNREACHABLE
    )
    assert "no such file or directory" in missing.stderr
    stream = run("pipeline", "diff", store, "nats://localhost#ORDERS", code=ExitCode.USAGE)
    assert "compare it with: stantools diff" in stream.stderr
