"""The program and Spark as processes: spark-submit, interrupts, clusters that do not answer, executors that die."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stantools.cli.pipeline import submit_file
from stantools.errors import ExitCode
from stantools.inspection.verify import verify
from stantools.store.read_options import open_store
from stantools.store.sample import SampleOptions, write_sample
from tests.pipeline.conftest import skip_without_spark
from tests.sparkcluster import descendants, standalone
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-c", "from stantools.cli.main import main; main()"]
SMALL = ("--conf", "spark.driver.memory=1g", "--conf", "spark.executor.memory=512m")
NO_EXECUTOR = re.compile(r"stantools: warning: \d+ tasks? ha\w+ been waiting|  -> check the cluster's page")
WAITING = "stantools: starting Spark on {}, which takes ten seconds or more\n"


@pytest.fixture(autouse=True)
def _needed() -> None:
    skip_without_spark()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("processes") / "store"
    write_sample(root, SampleOptions(names=["a", "b"], messages=30_000, size=100, slice_msgs=5_000))
    damaged = root / "a" / "msgs.2.dat"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    return root


def expected(store: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(verify(open_store(store)).as_json()))
    return {key: value for key, value in found.items() if key != "seconds"}


def verdict(said: str) -> dict[str, Any]:
    (only,) = json.loads(said)["stores"]
    return {key: value for key, value in only.items() if key not in ("store", "seconds")}


def run(
    *words: object, program: list[str] = PROGRAM, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_by_itself_it_is_quiet_and_leaves_nothing(store: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = run(
        *("pipeline", "verify", "--master", "local[2]", *SMALL, "-o", "json", store),
        cwd=tmp_path,
        TMPDIR=str(temporary),
    )
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    assert verdict(done.stdout) == expected(store)
    assert done.stderr == WAITING.format("local[2]")
    assert list(tmp_path.iterdir()) == [temporary]
    assert not [path.name for path in temporary.iterdir() if path.name.startswith(("stantools", "blockmgr", "spark"))]


def test_spark_submit_gives_the_same_result_and_exit_code(store: Path, tmp_path: Path) -> None:
    import pyspark

    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]", str(submit_file())]
    done = run("verify", "-o", "json", store, program=submit, cwd=tmp_path, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    assert verdict(done.stdout) == expected(store)
    wrong = run("verify", tmp_path / "gone", program=submit, cwd=tmp_path, PYSPARK_PYTHON=sys.executable)
    assert wrong.returncode == ExitCode.UNREACHABLE
    assert "gone: no such file or directory" in wrong.stderr


def test_a_cluster_without_executors_is_told_and_ctrl_c_ends_the_waiting(store: Path, tmp_path: Path) -> None:
    with standalone(tmp_path, workers=0) as cluster:
        job = subprocess.Popen(
            [*PROGRAM, "pipeline", "verify", "--master", cluster.url, *SMALL, str(store)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert job.stderr is not None
        waiting, warning = job.stderr.readline(), job.stderr.readline()
        children = descendants(job.pid)
        job.send_signal(signal.SIGINT)
        begin = time.monotonic()
        said = job.communicate(timeout=60)[1]
        assert time.monotonic() - begin < 40
    assert waiting == WAITING.format(cluster.url)
    assert "tasks have been waiting for" in warning
    assert "no executor takes them" in warning
    assert job.returncode == ExitCode.INTERRUPTED
    assert "stantools: error: interrupted" in said
    assert "Traceback" not in said
    assert children
    until(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])  # Java and its children end as well


def test_something_that_listens_and_is_no_master_is_given_up(store: Path) -> None:
    code = (
        "import sys; from stantools.pipeline.spark.session import open_session\n"
        "from stantools.errors import StantoolsError\n"
        "try: open_session(sys.argv[1])\n"
        "except StantoolsError as problem: print(problem.message, problem.remedy); sys.exit(problem.exit_code)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"spark://127.0.0.1:{server.getsockname()[1]}"
        done = run(url, program=[sys.executable, "-c", code])
    assert done.returncode == ExitCode.UNREACHABLE, done.stderr
    assert f"Spark did not start on {url}" in done.stdout and "masters are unresponsive" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("conf", "message", "remedy"),
    [
        ("spark.driver.memory=lots", "Invalid maximum heap size", "spark.driver.memory=1g"),
        ("spark.pyspark.python=/nowhere/python", "the workers have no /nowhere/python", "PYSPARK_PYTHON"),
    ],
)
def test_what_does_not_start_is_explained(conf: str, message: str, remedy: str, store: Path) -> None:
    done = run("pipeline", "verify", "--master", "local[2]", "--conf", conf, store)
    assert done.returncode == ExitCode.UNREACHABLE, done.stderr
    assert message in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4


_SHIPPED = """
import sys
from stantools.pipeline.spark import session
from stantools.pipeline.spark.session import open_session
from stantools.pipeline.spark.tasks import SparkWork

session._on_this_machine = lambda master: False  # as if the workers were on other machines
conf = {"spark.driver.memory": "1g", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
spark = open_session(sys.argv[1], conf=conf)

def where(_):
    import stantools
    from stantools.format import kernels
    return stantools.__file__, kernels.__file__

print(dict(SparkWork(spark).map(where, [0]))[0])
spark.stop()
"""


def test_the_package_is_brought_to_workers_elsewhere(tmp_path: Path) -> None:
    with standalone(tmp_path, workers=1) as cluster:
        done = run(cluster.url, program=[sys.executable, "-c", _SHIPPED])
    assert done.returncode == 0, done.stderr
    assert "stantools-shipped/stantools/__init__.py" in done.stdout
    assert "stantools-shipped/stantools/format/kernels." in done.stdout, "compiled kernels come along"


def test_an_executor_that_dies_changes_nothing(store: Path, tmp_path: Path) -> None:
    with standalone(tmp_path, memory="600m") as cluster:
        job = subprocess.Popen(
            [*PROGRAM, *("pipeline", "verify", "--master", cluster.url, *SMALL, "--partitions", "40", "-o", "json")]
            + [str(store)] * 1,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + 120
        while not any(descendants(pid) for pid in cluster.executors()) and time.monotonic() < end:
            assert job.poll() is None, job.communicate()
            time.sleep(0.02)
        cluster.kill_executor()
        said, log = job.communicate(timeout=300)
    assert job.returncode == ExitCode.FINDINGS, log
    assert verdict(said) == expected(store)
    # A busy machine takes long for another executor, and is said to.
    lines = [line for line in log.splitlines(keepends=True) if not NO_EXECUTOR.match(line)]
    assert "".join(lines) == WAITING.format(cluster.url)
