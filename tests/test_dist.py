"""The wheel, built and installed as a user would: in an environment that holds nothing else."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


def run(*command: object, cwd: Path) -> str:
    """Runs a command that must succeed; returns what it printed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    source = tmp_path / "source"  # as it would be cloned, so that nothing built here before can help
    run("git", "clone", "-q", "--no-hardlinks", PROJECT, source, cwd=tmp_path)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", source, cwd=tmp_path)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    binaries = tmp_path / "empty" / "bin"
    run(binaries / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=tmp_path)

    question = "from stantools import format, nats; import stantools.format.kernels, stantools.nats.kernels; "
    question += "print(format.kernels.NAME, nats.kernels.NAME)"
    assert run(binaries / "python", "-c", question, cwd=tmp_path) == "native native\n"
    run(binaries / "stantools", "sample", "store", "--damage", "flipped-length", cwd=tmp_path)
    found = subprocess.run([binaries / "stantools", "verify", "store"], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, "slice-bad-length" in found.stdout) == (1, True)
    run(binaries / "stantools", "salvage", "store", "--out", "rescued", cwd=tmp_path)
    run(binaries / "stantools", "verify", "rescued", cwd=tmp_path)
    assert "-st" in run(binaries / "stan-broker", "-h", cwd=tmp_path)
