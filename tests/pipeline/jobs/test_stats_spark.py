"""Statistics on Spark are those that are made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.pipeline.jobs.stats.summary import run_stats, summarise
from stantools.pipeline.jobs.stats.sums import sums_of
from stantools.pipeline.spark.tasks import SparkWork
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.table_options import TableOptions
from stantools.work import ThreadWork

pytestmark = pytest.mark.xdist_group("spark")


def test_golden_stores_on_spark(spark: Any, golden: Path, tmp_path: Path) -> None:
    cases = ["basic", "slices_count", "dmg_garbage_dat_noidx", "gap_truncated_slice"]
    paths = tuple(str(golden / case / "datastore") for case in cases)
    options = TableOptions((*paths, str(golden / "not-there")), partition_bytes=4096)
    planned = plan(options)
    assert len(planned.splits) > 2
    here = summarise(row for split in planned.splits for b in sums_of(split, options) for row in b.to_pylist())
    for work in (SparkWork(spark), ThreadWork(2)):
        told: list[int] = []
        assert run_stats(work, planned, options, progress=told.append) == here
        assert sum(told) == sum(split.cost for split in planned.splits)

    report, tables = tmp_path / "page.html", tmp_path / "tables"
    arguments = ["pipeline", "stats", *paths, "-o", "json", "--report", str(report), "--to", str(tables)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1, result.output  # one of them is damaged
    told = json.loads(result.stdout)
    assert [store["store"] for store in told["stores"]] == sorted(paths)
    assert {c["name"]: c["messages"] for s in told["stores"] for c in s["channels"] if s["store"] == paths[0]} == {
        c.channel: c.messages for c in here.channels if c.store == paths[0]
    }
    assert "<svg" in report.read_text()
    assert sorted(path.stem for path in tables.iterdir()) == ["channels", "hours", "intervals", "sizes"]

    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 3
    assert "already exists" in again.stderr or "tables" in again.stderr
