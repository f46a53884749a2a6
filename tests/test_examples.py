"""All generated examples of all tests; an everyday run tries some of them (`tests/conftest.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ALL_EXAMPLES


@pytest.mark.slow
def test_all_examples() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "generated and not slow"]
    done = subprocess.run(
        [*command, "--ignore", __file__],
        cwd=Path(__file__).parents[1],
        env={**os.environ, ALL_EXAMPLES: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
