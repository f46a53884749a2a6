"""Failures of Spark, converted into our exceptions.

An exception in a Python worker reaches the driver as text: one of ours is made again from it. Of the others, the common
ones (a lost worker, memory, a missing package) become a sentence and a remedy; the rest is Spark's own line. Spark's
full text stays the cause, for `-v`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Final

from stantools.errors import StantoolsError

_ARROW = "\n  -> "
#: The last line of a traceback with an exception of ours; the remedy has a line of its own.
_OURS = re.compile(r"^(?P<class>stantools(?:\.\w+)+): (?P<message>.*?)(?:\n  -> (?P<remedy>.*?))?\s*\Z", re.M | re.S)
_FROM_PYTHON = re.compile(r"^\[PYTHON_(?:EXCEPTION|DATA_SOURCE_ERROR)\][^:]*: ", re.M)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*\Z")

#: common failures: pattern of Spark's text, sentence (its groups are those of the pattern), remedy
_COMMON: Final = (
    (
        r"ModuleNotFoundError: No module named '([^'.]+)|Cannot run program \"([^\"]+)\"",
        r"the workers have no \1\2",
        "install Python with pyspark, pyarrow and pandas on all workers, and let PYSPARK_PYTHON name it",
    ),
    (
        r"OutOfMemoryError|Java heap space",
        "Spark's Java process ran out of memory",
        "give it more (--conf spark.driver.memory=4g), or make tasks smaller (partitionBytes)",
    ),
    (
        r"Python worker (?:exited unexpectedly|failed)|ExecutorLostFailure",
        "a worker died while it ran a task: killed, or out of memory",
        "see the system's log for the cause; spark.executor.memoryOverhead gives Python more memory",
    ),
    (
        r"SparkContext was shut down|stopped SparkContext|Answer from Java side|An error occurred while calling \S+\Z",
        "Spark ended during the work",
        "see its log; run again with -v",
    ),
)


class SparkFailedError(StantoolsError):
    """A task failed in every attempt, workers died, or Spark ended."""


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
    if type(problem).__name__ == "Py4JNetworkError" or isinstance(problem, ConnectionError):
        text = "SparkContext was shut down"
    for pattern, sentence, remedy in _COMMON:
        if match := re.search(pattern, text):
            return SparkFailedError(match.expand(sentence), remedy)
    java = getattr(problem, "java_exception", None)
    with contextlib.suppress(Exception):
        text = str(java.getMessage()) if java is not None and java.getMessage() else text
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(problem).__name__]
    # The last line of a traceback names the exception; Spark's own text begins with the reason.
    line = lines[-1] if "Traceback (most recent call last)" in text else lines[0]
    return SparkFailedError(f"Spark failed: {line}", "run again with -v for the full error")


def _text(problem: BaseException) -> str:
    with contextlib.suppress(Exception):
        said = problem.getMessageParameters() or {}  # type: ignore[attr-defined]
        if trace := said.get("traceback") or said.get("msg"):  # of a task, or of a data source beside the driver
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
