"""The same tests on clusters, and executors that are killed in the middle of a query: nothing is lost or read twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.format.crc import Crc
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.store.directory import open_datastore
from stantools.store.sample import SampleOptions, write_sample
from tests.pipeline.conftest import skip_without_spark
from tests.sparkcluster import connect_server, descendants, standalone

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
#: What is run again; those tests need nothing but the fixture `spark`.
SAME = ["test_source.py", "test_tasks.py", "test_jetstream.py"]


def _run(arguments: list[str], **environment: str) -> str:
    """Runs Python with a session of its own."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": _PATH, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


def _same_tests(**environment: str) -> None:
    said = _run(["-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / name) for name in SAME)], **environment)
    assert " passed" in said


@pytest.fixture(autouse=True)
def _needs_spark() -> None:
    skip_without_spark()


def test_the_same_tests_on_a_master_with_two_workers(tmp_path: Path) -> None:
    with standalone(tmp_path) as cluster:
        _same_tests(STANTOOLS_TEST_MASTER=cluster.url)


def test_the_same_tests_on_a_local_cluster() -> None:
    _same_tests(STANTOOLS_TEST_MASTER="local-cluster[2,1,1024]")


def test_the_same_tests_by_connect(tmp_path: Path) -> None:
    """Needs nothing but packages; pyspark's own generated code wants a newer protobuf than some of ours allow."""
    try:
        _run(["-c", "import grpc_status, google.rpc.status_pb2, pyspark.sql.connect.proto.base_pb2"])
    except AssertionError as problem:
        pytest.skip(f"pip install 'pyspark[connect]': {str(problem).strip().splitlines()[-1]}")
    with connect_server(tmp_path) as address:
        _same_tests(STANTOOLS_TEST_REMOTE=address)


#: Arguments: master, store, a file that tells that the tasks run. Prints what was read as json.
_COUNT = """
import json, sys
from stantools.pipeline.spark.read import read
from stantools.pipeline.spark.session import open_session

master, store, flag = sys.argv[1:]
conf = {"spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.executor.memory": "512m"}
spark = open_session(master, conf=conf)

def slowly(batches):
    import time
    from pathlib import Path
    for batch in batches:
        Path(flag).touch()
        time.sleep(0.05)
        yield batch

frame = read(spark, store, partition_bytes="2M", split_bytes="1M", batch_rows=1000, columns=["channel", "seq", "size"])
frame.mapInArrow(slowly, frame.schema).createTempView("slow")
rows = spark.sql("select channel, sum(seq), sum(size), count(*) as count from slow group by channel order by channel")
print(json.dumps([row.asDict() for row in rows.collect()]))
spark.stop()
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cluster") / "store"
    write_sample(root, SampleOptions(names=["a", "b"], messages=60_000, size=100, slice_msgs=20_000))
    return root


def _counted_while_killing(master: str, store: Path, flag: Path, kill: Callable[[int], bool]) -> None:
    """Counts a store in Spark, has something killed as soon as the tasks run, and compares with the local count."""
    command = [sys.executable, "-c", _COUNT, master, str(store), str(flag)]
    environment = {**os.environ, "PYTHONPATH": _PATH}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        end = time.monotonic() + 120
        while not flag.exists() and job.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        assert job.poll() is None, f"ended before anything could be killed: {job.communicate()[1][-4000:]}"
        killed = kill(job.pid)
        said, log = job.communicate(timeout=300)
    assert killed
    assert job.returncode == 0, log[-4000:]
    expected = []
    for channel in open_datastore(store).channels():
        messages = [m for m in MessageReader(channel, Crc()).read(Selection()) if isinstance(m, StoredMessage)]
        numbers = {"channel": channel.name, "sum(seq)": sum(m.sequence for m in messages)}
        expected.append({**numbers, "sum(size)": sum(len(m.data) for m in messages), "count": len(messages)})
    assert json.loads(said.splitlines()[-1]) == expected


def test_an_executor_that_is_killed_loses_nothing(large: Path, tmp_path: Path) -> None:
    with standalone(tmp_path, memory="600m") as cluster:
        _counted_while_killing(cluster.url, large, tmp_path / "flag", lambda _: cluster.kill_executor() > 0)


def test_a_python_worker_that_is_killed_loses_nothing(large: Path, tmp_path: Path) -> None:
    def kill(job: int) -> bool:
        daemons = [pid for pid in descendants(job) if "pyspark.daemon" in _command(pid)]
        workers = [pid for daemon in daemons for pid in descendants(daemon)]
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(workers)

    _counted_while_killing("local[2,4]", large, tmp_path / "flag", kill)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
