"""Work on many things: each once, in order, failures alone, a few ahead, nothing begun after giving up."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.work import GivenUpError, ThreadWork, WorkFailure, WorkItem, each


def _square(number: int) -> int:
    if number == 7:
        raise RefusedError("seven is refused", "take eight")
    if number == 11:
        raise FileNotFoundError(2, "No such file or directory", "/eleven")
    return number * number


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("cost", [1, 1 << 20])
def test_each_item_once_in_order_and_failures_alone(workers: int, cost: int) -> None:
    found = list(ThreadWork(workers).map(_square, range(200), cost=lambda _: cost))
    assert [number for number, _ in found] == list(range(200))
    results = dict(found)
    refused, gone = results.pop(7), results.pop(11)
    assert refused == WorkFailure("seven is refused", "take eight", ExitCode.REFUSED)
    assert gone == WorkFailure("/eleven: No such file or directory")
    assert results == {number: number * number for number in results}
    assert isinstance(refused, WorkFailure) and isinstance(refused.error(), RefusedError), "as it was raised"
    again = pickle.loads(pickle.dumps(refused))
    assert again == refused and type(again.error()) is StantoolsError and again.error().exit_code == ExitCode.REFUSED


@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_exception_in_order_ends_the_work(workers: int) -> None:
    results = ThreadWork(workers).in_order(_square, range(1 << 60))
    with pytest.raises(RefusedError):
        for number, result in enumerate(results):
            assert result == number * number


@pytest.mark.parametrize("workers", [1, 2])
def test_only_a_few_items_are_ahead(workers: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = ThreadWork(workers).map(lambda number: number, items())
    for _ in range(100):
        next(results)
    assert taken <= 100 + 4 * workers


def test_what_was_not_begun_is_dropped() -> None:
    begun: list[int] = []
    free = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number:
            assert free.wait(30)
        return number

    results = ThreadWork(2).in_order(work, range(100))
    assert next(results) == 0
    threading.Timer(0.05, free.set).start()
    results.close()
    assert len(begun) <= 4


def test_a_failure_is_that_of_all_and_ends_long_items() -> None:
    work, begun = ThreadWork(2), threading.Barrier(2, timeout=30)
    told: list[int] = []
    advance = work.inside(told.append)
    assert advance is not None

    def long(number: int) -> None:
        begun.wait()
        if number == 0:
            raise StantoolsError("no room", "make some")
        while True:  # ends because nobody wants it any more
            advance(1)

    with pytest.raises(StantoolsError, match="no room"):
        list(each(work, long, range(2)))
    with pytest.raises(GivenUpError):
        advance(1)
    assert set(told) <= {1}


def test_threads_work_at_the_same_time_and_cheap_tasks_together() -> None:
    meeting = threading.Barrier(2, timeout=30)
    assert len(list(ThreadWork(2).tasks(WorkItem(1 << 20, meeting.wait) for _ in range(2)))) == 2
    here = threading.current_thread().name
    names = list(ThreadWork(2).tasks(WorkItem(10, lambda: threading.current_thread().name) for _ in range(100)))
    assert here not in names and len(set(names[:64])) == 1
    assert set(ThreadWork(2).tasks(WorkItem(10, lambda: threading.current_thread().name) for _ in range(3))) == {here}


_INTERRUPTED = """
import sys, threading
from stantools.work import ThreadWork

def work(number):
    print(number, flush=True)
    return threading.Event().wait(0.2)

for _ in ThreadWork(2).map(work, range(1 << 60)):
    pass
"""


def test_an_interruption_ends_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGINT and b"KeyboardInterrupt" in err
    assert len(out.splitlines()) < 20
