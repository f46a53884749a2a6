"""Spark's workers: what is loaded for good is not looked through for garbage after every task."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext

from stantools.pipeline.spark import workers


def test_only_in_tasks_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(workers, "_begun", 0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(workers._begun))
    for _ in range(3):
        workers.begin_task()
    assert frozen == []
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: object()))
    for _ in range(4):
        workers.begin_task()
    assert frozen == [2], "when the daemon has collected what the first task left"
