"""What Spark raises, in our words: told from its text, because nothing else of a worker's exception arrives."""

from __future__ import annotations

from typing import Any

import pytest

from stantools.errors import ExitCode, RefusedError, StoreUnreadableError
from stantools.pipeline.spark.failures import SparkFailedError, clear_errors, is_sparks, telling, translated

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 8, in g\n    raise y\n'
LOST = "Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: "


class PythonError(Exception):
    """Looks like the exception that pyspark raises for one in a worker."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"An exception was thrown from the Python worker:\n{trace}")
        self._trace = trace

    def getMessageParameters(self) -> dict[str, str]:
        return {"traceback": self._trace}


PythonError.__module__ = "pyspark.errors.exceptions.captured"


def test_an_exception_of_ours_comes_through_with_its_remedy() -> None:
    with pytest.raises(StoreUnreadableError) as told, telling():
        raise StoreUnreadableError("/a/msgs.1.dat: at 77: a record was expected", "see: stantools verify /a")
    text = f"{TRACE}stantools.errors.StoreUnreadableError: {told.value}\n"
    again = translated(PythonError(text))
    assert type(again) is StoreUnreadableError
    assert again.message == "/a/msgs.1.dat: at 77: a record was expected"
    assert again.remedy == "see: stantools verify /a"

    plain = translated(PythonError(f"{TRACE}stantools.errors.RefusedError: no\nand no again\n"))
    assert (type(plain), plain.message, plain.remedy) == (RefusedError, "no\nand no again", "")
    assert plain.exit_code == ExitCode.REFUSED


def test_common_failures_have_a_sentence_and_others_are_sparks_line() -> None:
    rows: list[tuple[str, str, str]] = [
        (f"{TRACE}ZeroDivisionError: by zero\n", "Spark failed: ZeroDivisionError: by zero", "-v"),
        (f"{TRACE}ModuleNotFoundError: No module named 'numpy.x'\n", "the workers have no numpy", "PYSPARK_"),
        (f"{TRACE}OSError: [Errno 28] No space left on device: '/o/f'\n", "No space left on device: '/o/f'", "-v"),
        ('java.io.IOException: Cannot run program "py3": error=2', "have no py3", "PYSPARK_"),
        (f"{LOST}Lost task: Python worker exited unexpectedly (crashed)", "a worker died", "memory"),
        (f"{LOST}ExecutorLostFailure (executor 1 exited)", "a worker died", "memory"),
        ("java.lang.OutOfMemoryError: Java heap space", "ran out of memory", "driver.memory"),
        ("SparkContext was shut down", "Spark ended", "-v"),
        ("[SOMETHING] is odd\nwith more", "Spark failed: [SOMETHING] is odd", "-v"),
    ]
    for text, message, remedy in rows:
        problem = translated(PythonError(text) if text.startswith("Traceback") else RuntimeError(text))
        assert type(problem) is SparkFailedError and problem.exit_code == ExitCode.UNREACHABLE, (text, message, remedy)
        assert message in problem.message, (text, message, remedy)
        assert "\n" not in problem.message, (text, message, remedy)
        assert remedy in problem.remedy, (text, message, remedy)


def test_only_what_spark_raises_is_turned() -> None:
    with pytest.raises(SparkFailedError) as turned, clear_errors():
        raise PythonError(f"{TRACE}ValueError: x\n")
    assert isinstance(turned.value.__cause__, PythonError), "for -v"
    with pytest.raises(ZeroDivisionError), clear_errors():
        raise ZeroDivisionError
    with pytest.raises(RefusedError), clear_errors():
        raise RefusedError("no")
    assert not is_sparks(ValueError())


def test_a_connection_that_has_gone_is_a_worker_that_died() -> None:
    """py4j raises the system's exceptions; those of a file or of another connection pass."""
    refused: dict[str, Any] = {"__name__": "py4j.clientserver"}
    exec("def connect(): raise ConnectionRefusedError(111, 'Connection refused')", refused)
    with pytest.raises(SparkFailedError, match="Spark ended"), clear_errors():
        refused["connect"]()
    with pytest.raises(ConnectionRefusedError), clear_errors():
        raise ConnectionRefusedError(111, "Connection refused")
    assert isinstance(translated(PythonError("An error occurred while calling o12.getResult")), SparkFailedError)
