"""Killed or without power at any point, what is written is the old or the new one, and the next run finishes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recovery.crashes import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and O_PATH")
@pytest.mark.parametrize("every", [24, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_points(work: Path, scenario: str, every: int) -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.recovery.crashes", scenario, str(work), str(every)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    report = json.loads(outcome.stdout)
    assert report["points"] >= {"log": 6, "merge": 25}.get(scenario, 40)
    ends = {end.partition(": ")[2] for end in report["outcomes"]}
    assert (
        ends
        == {
            "log": {"log"},
            "merge": {"old", "new"},
            "to-new-directory": {"old", "new"},
            "in-place": {"old", "new"},
            "in-place-by-renames": {"old", "between", "new"},
        }[scenario]
    )
