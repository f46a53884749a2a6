"""The Java process that a session of our own runs in: started quietly, and gone when the session is closed.

What it writes to stderr is read all the time and only the end of it is kept, to say why it died if it does.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from stantools.errors import StantoolsError

if TYPE_CHECKING:
    from pyspark import SparkConf


class SparkStartError(StantoolsError):
    """Spark did not start."""


_KEPT_LINES = 60
_EMPTY_WORDS = ("Error: Could not create the Java", "Error: A fatal exception", "WARNING: Using incubator", "\tat ")
_TELLING = re.compile(r"Error|Invalid|Unrecognized|Exception|Too small|Initial heap|[\w.]+(Error|Exception):")
_STOP_SECONDS = 15


class Jvm:
    """The process.

    Args:
        conf: Spark's settings; those that concern the process itself count from here on.
        environment: Variables for it and for what it starts.
        quiet: Keep what it says to ourselves.

    Attributes:
        gateway: What pyspark talks to it with.
    """

    def __init__(self, conf: SparkConf, environment: Mapping[str, str], *, quiet: bool) -> None:
        from pyspark.java_gateway import launch_gateway

        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._quiet = quiet
        read, write = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(open(read, errors="replace"),), daemon=True)  # noqa: PTH123, SIM115
        self._reader.start()
        started: list[subprocess.Popen[bytes]] = []
        try:
            with _variables(environment), _noticed(started):
                self.gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"stdout": write, "stderr": write}
                )
        except Exception as problem:
            os.close(write)
            self._reader.join(1)
            raise _why(problem, self.last_words) from problem
        except BaseException:
            # Before it is ready it does not end with its stdin, and the place where it tells its port is gone.
            for process in started:
                process.kill()
                process.wait()
            os.close(write)
            raise
        os.close(write)

    @property
    def last_words(self) -> list[str]:
        """The last lines that it wrote."""
        return list(self._tail)

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._tail.append(line.rstrip("\n"))
                if not self._quiet:
                    sys.stderr.write(line)

    def kill(self) -> None:
        """Ends it at once; whoever waits for an answer gets an error."""
        process: subprocess.Popen[bytes] | None = self.gateway.proc
        if process:
            process.kill()

    def close(self) -> None:
        """Lets it end, and waits for it."""
        from pyspark import SparkContext

        process: subprocess.Popen[bytes] | None = self.gateway.proc
        with contextlib.suppress(Exception):  # it may be dead already
            self.gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
        if process is None:
            return
        if process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()  # it ends when this pipe does
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join(1)


def _why(problem: Exception, said: list[str]) -> SparkStartError:
    """Makes the error of what it said before it ended; the lines of Java that tell nothing are passed over."""
    lines = [line.strip() for line in said if line.strip() and not line.startswith(_EMPTY_WORDS)]
    reason = next((line for line in lines if _TELLING.match(line)), lines[-1] if lines else str(problem))
    remedy = "run the command again with -v to see everything that Java says"
    if "heap size" in reason or "memory" in reason:
        remedy = "give it an amount of memory that there is: --conf spark.driver.memory=1g"
    elif "option" in reason:
        remedy = "check the Java options among --conf, in spark-defaults.conf and in JAVA_TOOL_OPTIONS"
    return SparkStartError(f"Spark's Java process ended before it was ready: {reason}", remedy)


@contextlib.contextmanager
def _noticed(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Notes the process that pyspark starts: it gives it away only when that is ready."""
    java_gateway: Any = importlib.import_module("pyspark.java_gateway")
    launch = java_gateway.Popen

    def noticing(*args: Any, **values: Any) -> subprocess.Popen[bytes]:
        started.append(launch(*args, **values))
        return started[-1]

    java_gateway.Popen = noticing
    try:
        yield
    finally:
        java_gateway.Popen = launch


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
