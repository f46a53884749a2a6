"""How far Spark is: tasks, and whether the cluster has given us anything to run them on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from stantools.pipeline.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY = 0.5


@dataclass(frozen=True)
class Tasks:
    """The tasks of all jobs since the watch began."""

    total: int = 0  #: as far as they are known; later stages and jobs add to it
    done: int = 0  #: completed
    active: int = 0  #: running now
    failed: int = 0  #: attempts that failed; Spark repeats them
    idle: float = 0.0  #: seconds that tasks have been waiting for without any that runs


@contextlib.contextmanager
def watching(spark: SparkSession, show: Callable[[Tasks], object], *, every: float = _EVERY) -> Iterator[None]:
    """Reports progress of the jobs that run meanwhile, a few times a second from another thread, and once at the end.

    Args:
        spark: The session.
        show: Told the state each time.
        every: Seconds between two looks.
    """
    watch = _Watch(show)
    if is_connect(spark):
        spark.registerProgressHandler(cast(Any, watch.told))
        try:
            yield
        finally:
            spark.removeProgressHandler(cast(Any, watch.told))
        return
    stopped = threading.Event()
    context = spark.sparkContext

    def look() -> None:
        while not stopped.wait(every):
            watch.look(context)

    thread = threading.Thread(target=look, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        watch.look(context)


class _Watch:
    """Adds up what stages say of themselves; a stage that has gone keeps what it said last."""

    def __init__(self, show: Callable[[Tasks], object]) -> None:
        self._show = show
        self._stages: dict[int, tuple[int, int, int, int]] = {}
        self._waiting_since: float | None = None

    def look(self, context: Any) -> None:
        """Asks a driver on this side. One that is just ending does not answer; then nothing is reported."""
        with contextlib.suppress(Exception):
            tracker = context.statusTracker()
            active = set(tracker.getActiveStageIds())
            for number in list(self._stages):  # those that ended since the last look
                if number not in active:
                    self._note(number, tracker.getStageInfo(number), ended=True)
            for job in tracker.getActiveJobsIds():
                info = tracker.getJobInfo(job)
                for number in info.stageIds if info else ():
                    self._note(number, tracker.getStageInfo(number), ended=number not in active)
            self._tell()

    def told(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        """Takes what a Spark Connect server says."""
        for stage in stages or ():
            self._stages[stage.stage_id] = (stage.num_tasks, stage.num_completed_tasks, 0, 0)
        self._tell(inflight_tasks)

    def _note(self, number: int, stage: Any, *, ended: bool) -> None:
        if stage is None:
            return
        running = 0 if ended else stage.numActiveTasks
        if ended and not stage.numCompletedTasks:  # it waits for others, or was not needed
            return
        self._stages[number] = (stage.numTasks, stage.numCompletedTasks, running, stage.numFailedTasks)

    def _tell(self, active: int | None = None) -> None:
        total, done, running, failed = (sum(each[at] for each in self._stages.values()) for at in range(4))
        running = running if active is None else active
        now = time.monotonic()
        if running or done >= total:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        idle = now - self._waiting_since if self._waiting_since is not None else 0.0
        self._show(Tasks(total, done, running, failed, idle))
