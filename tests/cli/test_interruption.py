"""Ctrl-C and SIGTERM, wherever the program is when they come."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.errors import ExitCode

#: The verb `info`, which says when it is there and where it loses KeyboardInterrupt, and then goes on for ever.
_LOSING = """
import sys, time, weakref
from stantools.cli import main, pipeline

class Thing:
    pass

def there():
    print("there", flush=True)
    time.sleep(60)
    print("not interrupted", flush=True)

def in_a_finalizer():
    Thing.__del__ = lambda self: there()
    Thing()

def in_a_callback():
    thing = Thing()
    reference = weakref.ref(thing, lambda _: there())
    del thing

def in_a_generator():
    def generator():
        try:
            yield
        finally:
            there()
    for _ in generator():
        break

def in_an_except():
    try:
        there()
    except:
        pass

def in_c_code_that_clears_errors():
    import ctypes
    class Odd:
        def __eq__(self, other):
            there()
        def __hash__(self):
            return 1
    get = ctypes.pythonapi.PyDict_GetItem
    get.argtypes = [ctypes.py_object, ctypes.py_object]
    get.restype = ctypes.c_void_p
    get({Odd(): 1}, Odd())

def work(*_, **__):
    LOSE()
    while True:
        time.sleep(0.01)

pipeline.named_sources = work
sys.argv = ["stantools", "info", "."]
main.main()
"""


def started(source: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout
    assert process.stdout.readline() == "there\n"
    return process


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("in_a_finalizer", signal.SIGINT),
        ("in_a_callback", signal.SIGINT),
        ("in_a_generator", signal.SIGINT),
        ("in_an_except", signal.SIGTERM),
        ("in_c_code_that_clears_errors", signal.SIGINT),
    ],
)
def test_an_interruption_that_gets_lost_is_made_again(where: str, number: signal.Signals) -> None:
    process = started(_LOSING.replace("LOSE", where))
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED, errors
    assert errors.endswith("stantools: error: interrupted\n")
    assert "not interrupted" not in output


_CLEANING = """
import sys, time
from stantools.cli import main, pipeline

def work(*_, **__):
    try:
        print("there", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep(SECONDS)
        print("clean", flush=True)

pipeline.named_sources = work
sys.argv = ["stantools", "info", "."]
main.main()
"""


def test_cleaning_up_is_not_interrupted_by_the_same_interruption() -> None:
    """Not by the signal that comes twice, and not because it takes longer than the second until it is made again."""
    process = started(_CLEANING.replace("SECONDS", "2.5"))
    process.send_signal(signal.SIGINT)
    assert process.stdout and process.stdout.readline() == "cleaning\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (ExitCode.INTERRUPTED, "clean\n")
    assert errors == "stantools: error: interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_the_second_one_ends_at_once(number: signal.Signals) -> None:
    process = started(_CLEANING.replace("SECONDS", "60"))
    process.send_signal(number)
    assert process.stdout and process.stdout.readline() == "cleaning\n"
    time.sleep(0.6)  # what comes earlier counts as the same
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (-number, "", "")


_TOO_LATE = """
import sys, time
from stantools.cli import main, pipeline

def work(*_, **__):
    try:
        print("there", flush=True)
        time.sleep(60)
    except BaseException:
        pass
    return pipeline.known

pipeline.known = pipeline.named_sources
pipeline.named_sources = lambda *words, **options: work()(*words, **options)
sys.argv = ["stantools", "info", STORE]
main.main()
"""


def test_an_interruption_without_effect_is_in_the_exit_code(golden_copy: Callable[[str], Path]) -> None:
    process = started(_TOO_LATE.replace("STORE", repr(str(golden_copy("basic") / ""))))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    assert errors.endswith("stantools: error: interrupted\n")


def test_an_ignored_sigint_stays_ignored_and_sigterm_works() -> None:
    """As a shell starts a job with `&`."""
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    process = started(ignoring + _CLEANING.replace("SECONDS", "0"))
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (ExitCode.INTERRUPTED, "cleaning\nclean\n")
