"""Workers that are killed while they write a salvaged store: Spark repeats their tasks, the store is the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stantools.errors import ExitCode
from stantools.store.sample import SampleOptions, write_sample
from tests.pipeline.conftest import skip_without_spark
from tests.pipeline.jobs.salvaging import salvage_here
from tests.sparkcluster import descendants
from tests.trees import tree

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).parents[3]
IEEE = 0xEDB88320


def test_workers_are_killed_while_they_write(tmp_path: Path) -> None:
    skip_without_spark()
    store, out = tmp_path / "store", tmp_path / "new"
    write_sample(store, SampleOptions(names=["a", "b"], messages=60_000, size=1024, damage=("flipped-byte",)))
    salvage_here(store, tmp_path / "local", IEEE)
    words = ["pipeline", "salvage", "--master", "local[2,4]", "--conf", "spark.driver.memory=1g", "-o", "json"]
    job = subprocess.Popen(
        [sys.executable, "-c", "from stantools.cli.main import main; main()", *words, store, "--out", out],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    killed = 0
    try:
        while job.poll() is None and killed < 2:
            if list(out.glob(".*/work-*/*/*/msgs.*.dat")):
                killed += _kill_workers(job.pid)
                time.sleep(0.5)
            time.sleep(0.02)
        said, _ = job.communicate(timeout=240)
    finally:
        job.kill()
    assert killed and job.returncode == ExitCode.LOSS
    assert json.loads(said)["failed"] == []
    assert tree(out / "store") == tree(tmp_path / "local")
    assert sorted(path.name for path in out.iterdir()) == [".stantools-salvage", "store"]


def _kill_workers(top: int) -> bool:
    """Kills the Python processes that tasks run in, which are children of Spark's daemon."""
    processes = descendants(top)
    workers = [each for each in processes if b"pyspark" in _command(each) and not descendants(each)]
    for each in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return bool(workers)


def _command(process: int) -> bytes:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
    return b"" if b"java" in command.split(b"\0")[0] else command
