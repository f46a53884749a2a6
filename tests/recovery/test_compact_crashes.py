"""Killed or without power at any point, a compaction leaves the old or the new store, and the next run finishes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recovery.crashes import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and O_PATH")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_point(tmp_path, scenario):
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.recovery.crashes", scenario, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    report = json.loads(outcome.stdout)
    assert report["points"] >= (8 if scenario == "log" else 40)
    ends = {end.partition(": ")[2] for end in report["outcomes"]}
    assert (
        ends
        == {
            "log": {"log"},
            "to-new-directory": {"old", "new"},
            "in-place": {"old", "new"},
            "in-place-by-renames": {"old", "between", "new"},
        }[scenario]
    )
