"""`stantools.work.Work` on Spark: a function over many items, each exactly once, with results as they arrive.

Only features of Spark Connect are used: `mapInArrow` over numbers; the items travel with the function. Items are
packed into tasks by their cost, so that a thousand small ones are not a thousand tasks; tasks run in a few waves,
two at any time, so that neither the driver's memory nor the time until the first result depends on the number of
items. An item that fails with one of our exceptions fails alone; Spark repeats a task whose worker dies.

A worker runs many tasks; `begin_task` cleans up after the one before.

`watching` reports the number of tasks, and whether the cluster has provided executors.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import heapq
import os
import pickle
import queue
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from stantools.pipeline.spark.failures import is_sparks, telling, translated
from stantools.pipeline.spark.session import is_connect
from stantools.progress import Progress
from stantools.work import WorkFailure, attempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


T = TypeVar("T")
R = TypeVar("R")

#: Maximum cost of a task after its first item, so that little is lost when it is repeated.
_MAX_TASK_COST = 512 << 20
#: Cost below which a separate task does not pay.
_MIN_TASK_COST = 4 << 20
#: tasks per core in one wave
_TASKS_A_CORE = 4
#: Least number of cores to assume: a cluster does not report its executors before they exist.
_MIN_CORES = 4
_RESULT = "item long, value binary"

#: number of tasks that this process began
begun = 0
#: Private bytes above which a process releases unused memory.
_RELEASE_BYTES = 128 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class _TaskItems(Generic[T]):
    items: tuple[tuple[int, T], ...]


@dataclass(frozen=True)
class SparkWork:
    spark: SparkSession
    partitions: int | None = None  #: number of tasks; None decides by the cost and the cores

    @property
    def here(self) -> bool:
        return False

    def inside(self, progress: Progress | None) -> None:
        """Returns None: tasks are in other processes."""

    def limited(self, items: int | None) -> Self:
        """Returns work with at most this number of tasks, which process their items one by one."""
        return self if items is None else replace(self, partitions=items)

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Generator[tuple[int, R | WorkFailure], None, None]:
        """Runs a function for each item, as `Work.map`. Results arrive in waves, in any order.

        The function and the items are pickled; a function of an installed module is pickled by name. Raises
        `StantoolsError` if a task could not run at all, or failed for another reason (`failures.translated`).
        """
        waiting = list(items)
        costs = [max(cost(item), 1) if cost else 1 for item in waiting]
        cores = max(parallelism(self.spark), _MIN_CORES)
        count = self.partitions or _task_count(costs, cores, has_costs=cost is not None)
        tasks = [_TaskItems(tuple((number, waiting[number]) for number in group)) for group in pack(costs, count)]
        wave = max(cores * _TASKS_A_CORE, 1)
        waves = [tasks[at : at + wave] for at in range(0, len(tasks), wave)]
        for number, value in _run_waves(self.spark, function, waves):
            yield number, pickle.loads(value)


def parallelism(spark: SparkSession) -> int:
    """Returns the number of tasks that the cluster runs at once, as far as known."""
    from stantools.pipeline.spark.session import is_connect

    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql.functions import spark_partition_id

    try:
        return spark.range(1 << 12).select(spark_partition_id()).distinct().count()
    except Exception as problem:
        raise translated(problem) from problem


def pack(costs: Sequence[int], count: int) -> list[list[int]]:
    """Packs items into at most `count` groups of about equal cost, the costly groups first.

    Returns rising positions in each group. No group is empty.
    """
    groups: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(max(min(count, len(costs)), 0))]
    for item in sorted(range(len(costs)), key=lambda each: -costs[each]):
        load, number, group = groups[0]
        group.append(item)
        heapq.heapreplace(groups, (load + costs[item], number, group))
    ordered = sorted(groups, key=lambda each: (-each[0], each[1]))
    return [sorted(group) for _, _, group in ordered if group]


def _task_count(costs: Sequence[int], cores: int, *, has_costs: bool) -> int:
    wanted = cores * _TASKS_A_CORE
    if not has_costs:
        return wanted
    total = sum(costs)
    return max(min(wanted, max(cores, total // _MIN_TASK_COST)), -(-total // _MAX_TASK_COST))


def _run_waves(
    spark: SparkSession, function: Callable[[T], R], waves: list[list[_TaskItems[T]]]
) -> Iterator[tuple[int, bytes]]:
    """Runs one Spark job per wave, two at a time; yields the rows of each at its end."""
    results: queue.Queue[list[tuple[int, bytes]] | BaseException] = queue.Queue()
    tag = f"stantools-{uuid.uuid4()}"
    stopped = threading.Event()
    room = threading.Semaphore(3)

    def run(wave: list[_TaskItems[T]]) -> None:
        room.acquire()
        if stopped.is_set():
            return
        try:
            spark.addTag(tag)
            frame = frame_of(spark, functools.partial(_run_task, function), wave, _RESULT)
            results.put([(int(row[0]), bytes(row[1])) for row in frame.collect()])
        except BaseException as problem:
            results.put(problem)

    with ThreadPoolExecutor(2, thread_name_prefix="spark-job") as pool:
        futures = [pool.submit(run, wave) for wave in waves]
        try:
            for _ in waves:
                rows = results.get()
                room.release()
                if isinstance(rows, BaseException):
                    if not is_sparks(rows):
                        raise rows
                    raise translated(rows) from rows
                yield from rows
        except BaseException:
            stopped.set()
            for future in futures:
                future.cancel()
            room.release(2)
            with contextlib.suppress(Exception):  # Spark may be gone; then there is nothing to cancel
                spark.interruptTag(tag)
            raise


def _run_task(function: Callable[[T], R], task: _TaskItems[T]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for number, item in task.items:
        value = pickle.dumps(attempt(function, item))
        yield pa.record_batch([pa.array([number], pa.int64()), pa.array([value], pa.binary())], ["item", "value"])


def frame_of(
    spark: SparkSession,
    function: Callable[[T], Iterator[pa.RecordBatch]],
    items: Sequence[T],
    schema: StructType | str,
) -> DataFrame:
    """Returns a DataFrame of the rows that a function makes of items in tasks, one partition per item.

    The items travel with the function; each is unpickled only in its task.
    """
    # Pickled here, so that a failure is reported before anything runs.
    from pyspark import cloudpickle

    dumps = cast("Callable[[Any], bytes]", cloudpickle.dumps)
    packed = [dumps(item) for item in items]
    run = dumps(function)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from stantools.pipeline.spark.tasks import rows_of

        return rows_of(run, [packed[number] for batch in batches for number in batch.column(0).to_pylist()])

    return spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(work, schema)


def rows_of(function: bytes, items: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    begin_task()
    with telling():
        run = cast("Callable[[Any], Iterator[pa.RecordBatch]]", pickle.loads(function))
        for item in items:
            yield from run(pickle.loads(item))


def begin_task() -> None:
    """Prepares a worker for a task of ours; outside of a task it does nothing.

    Permanently loaded objects are excluded from garbage collection. Spark's daemon collects garbage after every
    task; with pyarrow and numpy loaded that takes some 50 ms, as long as reading 200 MB of messages, and finds
    nothing. The second task excludes the objects that the first one loaded: the daemon has collected the garbage
    among them in between.

    Arrow's memory that an earlier task used and freed is returned to the system if it is large.
    """
    global begun
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    begun += 1
    if begun == 2:
        gc.freeze()
    if _private_bytes() > _RELEASE_BYTES:
        import pyarrow as pa

        pa.default_memory_pool().release_unused()


def _private_bytes() -> int:
    """Returns the private memory of this process in bytes; 0 if unknown."""
    try:
        _, resident, shared = map(int, _STATM.read_text(encoding="ascii").split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


#: seconds between two queries of Spark's progress
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Tasks:
    total: int = 0  #: known so far; later stages and jobs add to it
    done: int = 0
    idle: float = 0.0  #: seconds that tasks have waited while none was running


@contextlib.contextmanager
def watching(spark: SparkSession, show: Callable[[Tasks], object]) -> Iterator[None]:
    """Reports progress of the jobs within the block, a few times a second from another thread, and once at the end."""
    progress = _TaskCounts(show)
    if is_connect(spark):
        spark.registerProgressHandler(cast(Any, progress.on_progress))
        try:
            yield
        finally:
            spark.removeProgressHandler(cast(Any, progress.on_progress))
        return
    stopped = threading.Event()

    def look() -> None:
        while not stopped.wait(_POLL_SECONDS):
            progress.look(spark.sparkContext)

    thread = threading.Thread(target=look, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        progress.look(spark.sparkContext)


class _TaskCounts:
    """Adds up the tasks of all stages that were seen."""

    def __init__(self, show: Callable[[Tasks], object]) -> None:
        self._show = show
        self._stages: dict[int, tuple[int, int]] = {}  #: tasks and completed ones
        self._last_run = time.monotonic()

    def look(self, context: Any) -> None:
        """Queries a driver on this side. One that is ending does not answer; then nothing is reported."""
        with contextlib.suppress(Exception):
            tracker, running = context.statusTracker(), 0
            for number in {*self._stages, *tracker.getActiveStageIds()}:
                if (stage := tracker.getStageInfo(number)) is not None:
                    self._stages[number] = stage.numTasks, stage.numCompletedTasks
                    running += stage.numActiveTasks
            self._report(running)

    def on_progress(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        self._stages |= {stage.stage_id: (stage.num_tasks, stage.num_completed_tasks) for stage in stages or ()}
        self._report(inflight_tasks)

    def _report(self, running: int) -> None:
        total, done = (sum(each[at] for each in self._stages.values()) for at in range(2))
        now = time.monotonic()
        if running or done >= total:
            self._last_run = now
        self._show(Tasks(total, done, now - self._last_run))
