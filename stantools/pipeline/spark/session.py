"""Sessions: an existing one is used as it is, else Spark is started, quietly and with the needed settings.

Settings of a session of our own, unless the user sets them: nothing is written to the working directory (no
`spark-warehouse`, no Derby), local masters listen on the loopback interface only, Python workers use this Python and
find this package, times are UTC, Arrow is used.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stantools.errors import StantoolsError, UsageError
from stantools.install_hints import install_command
from stantools.pipeline.spark.launch import Jvm, Master, SparkStartError, check_reachable, find_java, parse_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: All cores; a task whose Python worker dies is repeated up to four times, but with `local[*]` not at all.
DEFAULT_MASTER = "local[*,4]"

#: Seconds for a cluster to accept the application. A start on this machine takes 5 to 10.
START_SECONDS = 180.0

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
_PACKAGES = ("pyspark", "pyarrow", "pandas")

#: State of the session started here; a process has at most one.
_own: dict[str, Any] = {}


class PysparkMissingError(StantoolsError):
    """The Python package pyspark, or one of its requirements, is not installed."""


def open_session(
    master: str | None = None,
    *,
    name: str = "stantools",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    quiet: bool = True,
    start_seconds: float = START_SECONDS,
) -> SparkSession:
    """Returns the existing session, or starts one.

    Args:
        master: A Spark master. None is `local[*,4]`, all cores here, or the master of `spark-submit`.
        name: Name of the application.
        conf: Spark's settings; they override ours.
        remote: Address of a Spark Connect server, `sc://HOST:PORT`, instead of a master.
        quiet: Print only important messages; False passes on all output of Spark.
        start_seconds: Seconds for the master to accept the application.

    Raises:
        PysparkMissingError: pyspark is not installed, or is too old.
        JavaMissingError: No suitable Java was found.
        UsageError: The master is invalid, or master and remote are given.
        MasterUnreachableError: No address of the master accepts connections.
        SparkStartError: Spark does not start, or not in time.
    """
    _check_pyspark()
    there = active_session()
    if there is not None:
        if remote or master:
            _check_same(there, remote or master or "")
        for key, value in (conf or {}).items():
            with contextlib.suppress(Exception):  # some cannot be changed in a running session; it is used as it is
                there.conf.set(key, value)
        return there
    if remote:
        if master:
            raise UsageError("--remote and --master exclude each other", "give one of them")
        return _connect(remote, name, conf or {})
    _clean_up()  # remains of a session that was stopped and not closed
    # pyspark keeps the Java process of a stopped session.
    context = sys.modules.get("pyspark.core.context")
    if submitted() or (context is not None and context.SparkContext._gateway is not None):
        return _start_in_existing_java(master, name, conf or {}, quiet)
    return _start(parse_master(master or DEFAULT_MASTER), name, dict(conf or {}), quiet, start_seconds)


@contextlib.contextmanager
def session(*args: Any, **values: Any) -> Iterator[SparkSession]:
    """Opens a session as `open_session` does and closes it, unless it existed before."""
    was_there = bool(importlib.util.find_spec("pyspark")) and active_session() is not None
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
    _clean_up()


def active_session() -> SparkSession | None:
    """Returns the session of this process, if there is one."""
    if "pyspark" not in sys.modules:
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
    """Checks that the Python packages are installed, without loading them.

    Raises:
        PysparkMissingError: One is not.
    """
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if not importlib.util.find_spec(name)]
    if missing:
        named = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
        verb = "package {} is" if len(missing) == 1 else "packages {} are"
        raise PysparkMissingError(f"the Python {verb.format(named)} not installed", install_command(*_PACKAGES))


def _check_pyspark() -> None:
    check_packages()
    from pyspark import __version__

    if tuple(int(part) for part in __version__.split(".")[:2]) < (4, 1):
        raise PysparkMissingError(
            f"pyspark {__version__} is too old: 4.1 or later is needed", install_command(*_PACKAGES)
        )


def _check_same(session: SparkSession, wanted: str) -> None:
    if is_connect(session):
        return
    have = session.sparkContext.master
    if have != wanted:
        raise UsageError(
            f"a Spark session is running already, on {have} instead of {wanted}",
            "leave out --master, or stop that session first",
        )


def _connect(remote: str, name: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    master = parse_master(remote)
    if master.kind != "sc":
        raise UsageError(f"{remote!r} is not an address of Spark Connect", "expected sc://HOST:15002")
    check_reachable(master)
    try:
        builder = SparkSession.builder.remote(remote).appName(name)
        for key, value in conf.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    except ImportError as problem:  # pyspark raises this for missing packages as well
        first = str(problem).splitlines()[0]
        raise PysparkMissingError(
            f"Spark Connect cannot be used: {first}", install_command("pyspark[connect]")
        ) from problem
    except PySparkException as problem:
        raise SparkStartError(f"Spark Connect at {remote} refused the session: {problem}") from problem


def _start_in_existing_java(master: str | None, name: str, conf: Mapping[str, str], quiet: bool) -> SparkSession:
    """Starts a session in an existing Java process."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config("spark.app.name", name)
    if master:
        builder = builder.master(master)
    for key, value in {**_tidy(), **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if quiet:
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def _tidy() -> dict[str, str]:
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }


def _start(master: Master, name: str, conf: dict[str, str], quiet: bool, seconds: float) -> SparkSession:
    from pyspark import SparkConf

    if master.kind == "sc":
        raise UsageError(f"{master.url} is an address of Spark Connect, not a master", f"use --remote {master.url}")
    java = find_java()
    check_reachable(master)
    directory = Path(tempfile.mkdtemp(prefix="stantools-spark-"))
    _own["directory"] = directory
    atexit.register(_clean_up)
    try:
        settings = _settings(master, name, conf, directory, quiet)
        environment = _environment(master, conf, str(java.home))
        jvm = Jvm(SparkConf(loadDefaults=False).setAll(list(settings.items())), environment, quiet=quiet)
        _own["jvm"] = jvm
        if quiet:
            logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
            logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
        return _first_session(master, jvm, settings, environment["PYSPARK_PYTHON"], seconds)
    except BaseException:
        _clean_up()
        raise


def _first_session(master: Master, jvm: Jvm, settings: Mapping[str, str], python: str, seconds: float) -> SparkSession:
    """Starts the application; a master that accepts connections but never answers ends in an error."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    late = threading.Event()

    def give_up() -> None:
        late.set()
        jvm.kill()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        _own["signal"] = signal.getsignal(signal.SIGINT)
        # Passed by the context, because Spark warns about each setting of the session otherwise.
        context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())), gateway=jvm.gateway)
        context.pythonExec = python
        return SparkSession.builder.config("spark.api.mode", "classic").getOrCreate()
    except Exception as problem:
        raise _start_error(master, problem, late.is_set(), seconds, jvm.last_words) from problem
    finally:
        timer.cancel()


def _start_error(
    master: Master, problem: Exception, timed_out: bool, seconds: float, output_lines: list[str]
) -> SparkStartError:
    if timed_out:
        text = f"{master.url} did not accept the application within {seconds:.0f} s"
        return SparkStartError(text, "see the master's page or log for the reason, or run here: --master local[*]")
    java = getattr(problem, "java_exception", None)
    reason = str(java.toString() if java is not None else problem).splitlines()[0] if str(problem) else ""
    everything = "\n".join([reason, str(problem), *output_lines])
    if "unresponsive" in everything or "Failed to connect to master" in everything:
        text = f"no Spark master answers at {master.url}, though the port accepts connections"
        return SparkStartError(text, "compare version and address with the master's log")
    if "HADOOP_CONF_DIR" in everything:
        return SparkStartError(
            "yarn: no configuration of the cluster was found", "set HADOOP_CONF_DIR to its configuration"
        )
    reason = reason.removeprefix("java.lang.").removeprefix("org.apache.spark.")
    return SparkStartError(f"Spark did not start on {master.url}: {reason}", "run again with -v to see its log")


def _settings(master: Master, name: str, conf: dict[str, str], directory: Path, quiet: bool) -> dict[str, str]:
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        **_tidy(),
    }
    if master.local:
        settings["spark.ui.enabled"] = "false"
        settings["spark.driver.memory"] = "2g"
        settings["spark.sql.shuffle.partitions"] = "8"
        if not os.environ.get("SPARK_LOCAL_DIRS"):
            settings["spark.local.dir"] = str(directory)
    if master.loopback:
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.executorEnv.PYTHONPATH"] = _python_path()
    if master.kind == "yarn":  # otherwise it tries for a quarter of an hour
        settings["spark.hadoop.yarn.resourcemanager.connect.max-wait.ms"] = "30000"
        settings["spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms"] = "3000"
        settings["spark.hadoop.ipc.client.connect.max.retries"] = "3"
    settings = {key: value for key, value in settings.items() if key not in _site_settings()}
    settings |= {"spark.app.name": name, "spark.master": master.url, **conf}
    if not master.loopback:
        settings |= shipping(settings, directory)
    if quiet:
        options = settings.get("spark.driver.extraJavaOptions", "")
        if "log4j" not in options:
            ours = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
            settings["spark.driver.extraJavaOptions"] = f"{ours} {options}".strip()
    return settings


def _site_settings() -> set[str]:
    """Returns the settings of the installation's spark-defaults.conf; ours do not replace them."""
    home = os.environ.get("SPARK_CONF_DIR") or (
        os.environ["SPARK_HOME"] + "/conf" if "SPARK_HOME" in os.environ else ""
    )
    try:
        lines = (Path(home) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines() if home else []
    except OSError:
        return set()
    return {
        line.replace("=", " ", 1).split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")
    }


def _environment(master: Master, conf: Mapping[str, str], java_home: str) -> dict[str, str]:
    """Returns the variables of the Java process; Python workers on this machine inherit them."""
    given = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if master.loopback or (not given and master.kind == "spark"):
        given = conf.get("spark.pyspark.python") or sys.executable
    values = {
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": given or "python3",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(),
        # Linear algebra is not used; numpy's threads for it only cost time.
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
    }
    if master.loopback:
        values["SPARK_LOCAL_IP"] = "127.0.0.1"
    return values


def _python_path() -> str:
    before = os.environ.get("PYTHONPATH", "")
    parts = [_PACKAGE_PARENT, *(part for part in before.split(os.pathsep) if part and part != _PACKAGE_PARENT)]
    return os.pathsep.join(parts)


def _clean_up() -> None:
    atexit.unregister(_clean_up)
    before = _own.pop("signal", None)  # Spark's own handler needs a driver
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)
    jvm: Jvm | None = _own.pop("jvm", None)
    if jvm:
        _stop_context(jvm)
        jvm.close()
    directory: Path | None = _own.pop("directory", None)
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


def _stop_context(jvm: Jvm) -> None:
    """Stops a context that still runs: a program that just ends would otherwise show errors of Spark's threads."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and context._gateway is jvm.gateway:
        with contextlib.suppress(Exception):
            context.stop()


#: Directory of the unpacked archive in the working directory of an executor.
UNPACKED = "stantools-shipped"

_PACKAGE = Path(__file__).resolve().parents[2]
#: Sources of compiled modules, and files that only the command line needs.
_LEFT_OUT = {".pyx", ".pxd", ".c", ".pyc", ".html"}


def package_archive(directory: Path) -> Path:
    """Writes the package into an archive.

    Args:
        directory: Where it is written.

    Returns:
        The archive, to be used in `spark.archives` with `#` and `UNPACKED`.
    """
    path = directory / "stantools.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for each in sorted(_PACKAGE.rglob("*")):
            if each.is_file() and each.suffix not in _LEFT_OUT and "__pycache__" not in each.parts:
                archive.write(each, Path(_PACKAGE.name) / each.relative_to(_PACKAGE))
    return path


def shipping(settings: dict[str, str], directory: Path) -> dict[str, str]:
    """Returns the settings that bring the package to the workers.

    Args:
        settings: The present settings. If they hold archives or a path, the user ships the package.
        directory: Directory of the archive; it must exist as long as the application runs.
    """
    if "spark.executorEnv.PYTHONPATH" in settings or "spark.archives" in settings:
        return {}
    archive = package_archive(directory)
    return {
        "spark.archives": f"{archive.as_uri()}#{UNPACKED}",
        "spark.executorEnv.PYTHONPATH": UNPACKED,
    }
