"""Failures of Spark, converted into our exceptions.

An exception in a Python worker reaches the driver as text, a lost executor as a Java stack trace. Both become a
message and a remedy; Spark's full text stays the cause, for `-v`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator

from stantools.errors import StantoolsError, StoreUnwritableError

_ARROW = "\n  -> "
#: The last line of a traceback with an exception of ours; the remedy has a line of its own.
_OURS = re.compile(r"^(?P<class>stantools(?:\.\w+)+): (?P<message>.*?)(?:\n  -> (?P<remedy>.*?))?\s*\Z", re.M | re.S)
_LAST_LINE = re.compile(r"^(?P<class>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?\s*\Z", re.M)
_FROM_PYTHON = re.compile(r"^\[PYTHON_(?:EXCEPTION|DATA_SOURCE_ERROR)\][^:]*: ", re.M)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*\Z")
_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_PROGRAM = re.compile(r"""Cannot run program "([^"]+)\"""")
_NO_SPACE = re.compile(r"No space left on device(?:: '([^']+)')?")
_TIMES = re.compile(r"failed (\d+) times")
#: py4j's message, without a Java exception, for a missing answer.
_UNANSWERED = re.compile(r"An error occurred while calling \S+\Z")
_VERSIONS = re.compile(r"different version[^:]*: ?([\d.]+)|PYTHON_VERSION_MISMATCH", re.I)


class TaskFailedError(StantoolsError):
    """A task failed in every attempt, or its result was lost."""


class WorkersUnfitError(StantoolsError):
    """The Python on the workers lacks a package or has the wrong version."""


class WorkerLostError(StantoolsError):
    """Workers died more often than Spark repeats a task."""


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """In a worker: adds the remedy to the text of an exception of ours; only the text reaches the driver."""
    try:
        yield
    except StantoolsError as problem:
        if not problem.remedy or _ARROW in problem.message:
            raise
        simple = _constructible_class(type(problem))(f"{problem.message}{_ARROW}{problem.remedy}")
        simple.exit_code = problem.exit_code
        raise simple from None


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Shows an error of ours to the user as one line and a remedy, without a traceback.

    The process ends with the error, so the environment variable, which Spark's worker reads, affects nothing else.
    """
    try:
        with telling():
            yield
    except StantoolsError:
        if "pyspark.worker_util" in sys.modules:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """In the driver: converts exceptions of Spark into ours; others pass."""
    try:
        yield
    except StantoolsError:
        raise
    except Exception as problem:
        if not is_sparks(problem):
            raise
        raise translated(problem) from problem


def is_sparks(problem: BaseException) -> bool:
    modules = {type(each).__module__.split(".")[0] for each in (problem, problem.__cause__) if each is not None}
    return bool(modules & {"pyspark", "py4j", "grpc"}) or _is_lost_connection(problem)


def _is_lost_connection(problem: BaseException) -> bool:
    """Returns whether py4j lost its connection, which it reports as an exception of the system."""
    frames = (frame for frame, _ in traceback.walk_tb(problem.__traceback__))
    return isinstance(problem, ConnectionError) and any(
        frame.f_globals.get("__name__", "").split(".")[0] == "py4j" for frame in frames
    )


def translated(problem: BaseException) -> StantoolsError:
    """Returns the meaning of an exception of Spark, with a remedy."""
    if isinstance(problem, StantoolsError):
        return problem
    text = _text(problem)
    if (ours := _OURS.search(text)) and (known := _class(ours["class"])):
        return known(ours["message"], ours["remedy"] or "")
    return _worker_deficiency(text) or _lost_process(problem, text) or _task(problem, text)


def _text(problem: BaseException) -> str:
    parameters = getattr(problem, "getMessageParameters", None)
    if parameters is not None:
        with contextlib.suppress(Exception):
            said = parameters() or {}
            trace = said.get("traceback") or said.get("msg")  # of a task, or of a data source beside the driver
            if trace:
                return str(trace)
    # Spark Connect has no parameters: the worker's text is between Spark's own text and the Java stack.
    text = str(problem).partition("\n\nJVM stacktrace:")[0]
    return _SQLSTATE.sub("", _FROM_PYTHON.sub("", text))


def _class(name: str) -> type[StantoolsError] | None:
    module, _, attribute = name.rpartition(".")
    with contextlib.suppress(ImportError, ValueError):
        found = getattr(importlib.import_module(module), attribute, None)
        if isinstance(found, type) and issubclass(found, StantoolsError):
            return _constructible_class(found)
    return None


def _constructible_class(kind: type[StantoolsError]) -> type[StantoolsError]:
    """Returns the exception class, or its first base that is made of a message and a remedy."""
    own = any("__init__" in vars(each) for each in kind.__mro__[: kind.__mro__.index(StantoolsError)])
    return StantoolsError if own else kind


def _worker_deficiency(text: str) -> StantoolsError | None:
    if match := _MODULE.search(text):
        package = match[1].split(".")[0]
        return WorkersUnfitError(
            f"the Python of the workers has no package {package}",
            "install pyspark, pyarrow and pandas on all workers, or let PYSPARK_PYTHON name a Python there that has it",
        )
    if match := _PROGRAM.search(text):
        return WorkersUnfitError(f"the workers have no {match[1]}", "set PYSPARK_PYTHON to a Python that exists there")
    if _VERSIONS.search(text):
        return WorkersUnfitError(
            "the workers run another version of Python than this program",
            "set PYSPARK_PYTHON to a Python of the same version on the workers",
        )
    return None


def _lost_process(problem: BaseException, text: str) -> StantoolsError | None:
    if match := _NO_SPACE.search(text):
        where = f"{match[1]}: " if match[1] else ""
        return StoreUnwritableError(
            f"{where}no space left on device",
            "free some space; Spark's own files are in spark.local.dir (by default /tmp)",
        )
    if "OutOfMemoryError" in text or "Java heap space" in text:
        return WorkerLostError(
            "Spark's Java process ran out of memory",
            "give it more (--conf spark.driver.memory=4g), or make tasks smaller (partitionBytes)",
        )
    if "Python worker exited unexpectedly" in text or "ExecutorLostFailure" in text or "Python worker failed" in text:
        times = _TIMES.search(text)
        count = int(times[1]) if times else 1
        return WorkerLostError(
            f"a worker died while it ran a task{f', {count} times in a row' if count > 1 else ''}: "
            "killed, or out of memory",
            "see the system's log for the cause; spark.executor.memoryOverhead gives Python more memory, "
            "and local[N,4] repeats a lost task on this machine",
        )
    if ("cancelled" in text and "Job" in text) or "OPERATION_CANCELED" in text:
        return TaskFailedError("the job was cancelled", "run the command again")
    gone = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
    stopped = "SparkContext was shut down" in text or "stopped SparkContext" in text or "Answer from Java side" in text
    if type(problem).__name__ in gone or stopped or _UNANSWERED.match(text):
        return WorkerLostError("Spark ended during the work", "see its log; run again with -v")
    return None


def _task(problem: BaseException, text: str) -> StantoolsError:
    """Converts the rest: an unexpected exception in a worker, or an error of Spark in its own words."""
    if "Traceback (most recent call last)" in text and (last := _LAST_LINE.search(text)):
        return TaskFailedError(
            f"unexpected {last['class']} in a task: {last['message'] or ''}".rstrip(": "),
            "this is a bug in stantools: please report it, with the output of the same command and -v",
        )
    java = getattr(problem, "java_exception", None)
    with contextlib.suppress(Exception):
        text = str(java.getMessage()) if java is not None and java.getMessage() else text
    first = next((line for line in text.splitlines() if line.strip()), type(problem).__name__)
    return TaskFailedError(f"Spark failed: {first.strip()}", "run again with -v for the full error")
