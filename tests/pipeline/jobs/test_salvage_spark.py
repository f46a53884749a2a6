"""`stantools pipeline salvage` on Spark: the stores and the words of `stantools salvage`, many at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import ExitCode
from stantools.inspection import survey_jobs
from tests.trees import tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

CASES = (
    "dmg_length_flip_noidx",
    "dmg_payload_flip_idx_intact",
    "dup_slice_after",
    "durables",
)


def run(*words: object, code: ExitCode) -> Any:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def pipeline(*words: object, code: ExitCode) -> Any:
    said = run("pipeline", "salvage", "--master", "local[2]", "-o", "json", "--cluster-id", "x", *words, code=code)
    return json.loads(said.stdout)


def test_many_stores(
    spark: SparkSession, golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_jobs, "CHANNEL_BYTES", 0)
    roots, out = [golden_copy(case) for case in CASES], tmp_path / "new"
    said = pipeline(*roots, tmp_path / "gone", "--out", out, "--progress", "json", code=ExitCode.FINDINGS)
    assert said["schema"] == 1 and said["clean"] is False
    assert [each["path"] for each in said["failed"]] == [str(tmp_path / "gone")]
    assert [each["store"] for each in said["stores"]] == [str(root) for root in roots]
    worst = ExitCode.CLEAN
    for root, got in zip(roots, said["stores"], strict=True):
        local = CliRunner().invoke(
            cli,
            [
                "salvage",
                str(root),
                "--out",
                str(tmp_path / "local"),
                "-o",
                "json",
                "--cluster-id",
                "x",
                "--engine",
                "local",
            ],
        )
        worst = max(worst, ExitCode(local.exit_code))
        wanted = json.loads(local.stdout)
        assert got.pop("name") == root.name and got.pop("kept") is False
        places = {
            "store": str(root),
            "out": str(out / root.name),
            "manifest": f"{out / root.name}/stantools-salvage.json",
        }
        assert got == {key: value for key, value in {**wanted, **places}.items() if key != "schema"}
        assert tree(out / root.name) == tree(tmp_path / "local")
        (tmp_path / "local").rename(tmp_path / f"local {root.name}")
    planned = pipeline(roots[0], "--dry-run", code=ExitCode.CLEAN)
    assert [each["summary"] for each in planned["stores"]] == [said["stores"][0]["summary"]]
    again = pipeline(*roots, "--out", out, code=worst)
    assert all(store["kept"] for store in again["stores"]) and again["failed"] == []

    table = run("pipeline", "salvage", "--master", "local[2]", *roots, "--out", out, "--cluster-id", "x", code=worst)
    assert "kept from before" in table.stdout and "; 1 missing before\n" in table.stdout
    assert "missing before: alpha: " in table.stdout
