"""Running a function over many items: each once, failures alone, lost workers repeated."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.errors import ExitCode, RefusedError, StoreUnwritableError
from stantools.pipeline.spark import tasks
from stantools.pipeline.spark.failures import SparkFailedError
from stantools.pipeline.spark.tasks import SparkWork, pack
from stantools.work import WorkFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@given(st.lists(st.integers(1, 1 << 40), max_size=60), st.integers(1, 20))
def test_every_item_is_in_one_group_and_no_group_is_much_heavier(costs: list[int], count: int) -> None:
    groups = pack(costs, count)
    assert sorted(each for group in groups for each in group) == list(range(len(costs)))
    assert len(groups) == min(count, len(costs))
    assert all(group == sorted(group) for group in groups)
    loads = [sum(costs[each] for each in group) for group in groups]
    assert loads == sorted(loads, reverse=True)
    if costs:
        assert loads[0] <= sum(costs) / len(groups) + max(costs), "no more than one item above the mean"


def _square(number: int) -> int:
    if number == 7:
        raise RefusedError("seven is refused", "take eight")
    if number == 11:
        raise FileNotFoundError(2, "No such file or directory", "/eleven")
    return number * number


def test_each_item_once_and_failures_alone(spark: SparkSession) -> None:
    results = list(SparkWork(spark).map(_square, range(40), cost=lambda n: n + 1))
    assert sorted(number for number, _ in results) == list(range(40))
    by_number = dict(results)
    assert by_number.pop(7) == WorkFailure("seven is refused", "take eight", ExitCode.REFUSED)
    assert by_number.pop(11) == WorkFailure("/eleven: No such file or directory", "", ExitCode.UNREACHABLE)
    assert by_number == {number: number * number for number in by_number}
    assert list(SparkWork(spark).map(_square, [])) == []


def _broken(_: int) -> int:
    raise ZeroDivisionError("nobody expected this")


def _dead(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _full(_: int) -> int:
    raise StoreUnwritableError("/there: no space left", "make room")


def _elsewhere(_: int) -> int:
    import a_package_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401

    return 0


def test_what_spark_raises_is_said_in_our_words(spark: SparkSession) -> None:
    with pytest.raises(SparkFailedError, match="Spark failed: ZeroDivisionError: nobody expected this"):
        list(SparkWork(spark).map(_broken, [1]))
    with pytest.raises(SparkFailedError, match="a worker died while it ran a task"):
        list(SparkWork(spark).map(_dead, [1]))
    with pytest.raises(SparkFailedError, match="the workers have no a_package_that_is_not_there"):
        list(SparkWork(spark).map(_elsewhere, [1]))
    assert dict(SparkWork(spark).map(_full, [1])) == {0: WorkFailure("/there: no space left", "make room")}
    assert dict(SparkWork(spark).map(_square, [3])) == {0: 9}, "the session goes on"


def test_giving_up_ends_the_jobs_that_run(spark: SparkSession, tmp_path: Path) -> None:
    results = SparkWork(spark, 100).map(_slow, [(str(tmp_path), number) for number in range(200)])
    next(results)
    results.close()
    assert len(list(tmp_path.iterdir())) < 200


def _slow(item: tuple[str, int]) -> int:
    import time

    folder, number = item
    time.sleep(0.02)
    (Path(folder) / str(number)).touch()
    return number


def test_only_in_tasks_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded for good is not looked through for garbage after every task."""
    context = pytest.importorskip("pyspark").TaskContext
    frozen: list[int] = []
    monkeypatch.setattr(tasks, "begun", 0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(tasks.begun))
    for _ in range(3):
        tasks.begin_task()
    assert frozen == []
    monkeypatch.setattr(context, "get", classmethod(lambda _: object()))
    for _ in range(4):
        tasks.begin_task()
    assert frozen == [2], "when the daemon has collected what the first task left"
