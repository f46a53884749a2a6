"""Killed or without power at any point, the offline ways leave all or nothing of a stream; the next run finishes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.migration.offline.crashes import SCENARIOS

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and O_PATH")
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, marks=pytest.mark.slow if each == "replace-by-renames" else ()) for each in SCENARIOS],
)
def test_every_point(work: Path, scenario: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.migration.offline.crashes", scenario, str(work)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert report["points"] > 25
    assert {"kill: old", "kill: new", "strict: old", "strict: new", "names: old", "names: new"} == set(
        report["outcomes"]
    )
