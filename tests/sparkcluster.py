"""A standalone Spark master with workers, on the loopback interface, for as long as a test needs them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.reaper import ServerProcess

#: Seconds until a process of Spark has to say that it is up; the machine may be busy with other tests.
_START = 90.0

#: What Spark's own start scripts open of Java for Spark.
_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
        *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
        "sun.security.action",
    )
]


@dataclass
class Cluster:
    """A master and its workers.

    Attributes:
        url: What `--master` takes.
        workers: Process ids of the workers; the executors that they start are their children.
    """

    url: str
    workers: list[int]

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        return [pid for worker in self.workers for pid in _children(worker)]

    def kill_executor(self) -> int:
        """Kills one executor as the kernel would, silently; its worker starts another. Returns its process id."""
        victim = self.executors()[0]
        os.kill(victim, signal.SIGKILL)
        return victim


@contextlib.contextmanager
def standalone(directory: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """Starts a master and workers and stops them in the end.

    Args:
        directory: For logs and what Spark writes.
        workers: How many.
        cores: Of each worker.
        memory: Of each worker.
    """
    with contextlib.ExitStack() as stack:
        deploy = "org.apache.spark.deploy"
        log = directory / "master.log"
        command = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        stack.enter_context(_process(command, directory, log))
        url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        pids = []
        for number in range(workers):
            work = directory / f"worker{number}"
            work.mkdir()
            command = [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            command += ["--cores", str(cores), "--memory", memory, "--work-dir", str(work), url]
            pids.append(stack.enter_context(_process(command, directory, work / "log")).pid)
        for number in range(workers):
            _wait_for(directory / f"worker{number}" / "log", r"(Successfully registered) with master")
        yield Cluster(url, pids)


@contextlib.contextmanager
def connect_server(directory: Path, master: str = "local[2]") -> Iterator[str]:
    """Starts a Spark Connect server; gives its address.

    Args:
        directory: For its log and what Spark writes.
        master: Where it runs its jobs.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    command = ["org.apache.spark.deploy.SparkSubmit", "--master", master]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = directory / "connect.log"
    with _process(command, directory, log, "1g"):
        _wait_for(log, r"(Spark Connect server started)")
        yield f"sc://127.0.0.1:{port}"


@contextlib.contextmanager
def _process(command: list[str], directory: Path, log: Path, heap: str = "256m") -> Iterator[subprocess.Popen[bytes]]:
    import pyspark

    from stantools.pipeline.spark.session import find_java

    home = Path(pyspark.__file__).parent
    java = find_java() / "bin" / "java"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
    }
    full = [str(java), "-cp", f"{home}/jars/*", f"-Xmx{heap}", *_OPENS, *command]
    with log.open("wb") as out:
        process = ServerProcess(
            full,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Its executors and their Python processes are in the same group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _wait_for(log: Path, pattern: str) -> str:
    end = time.monotonic() + _START
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log}: no {pattern!r} within {_START} s:\n{log.read_text(errors='replace')[-2000:]}")


def descendants(parent: int) -> list[int]:
    """Process ids of the children of a process, their children and so on."""
    found = _children(parent)
    return found + [pid for child in found for pid in descendants(child)]


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(stat.parent.name))
    return found
