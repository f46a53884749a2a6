"""`stantools.work.Work` on Spark: a function over many items, each exactly once, with results as they come.

Only what Spark Connect offers too is used: `mapInArrow` over numbers, the items travel with the function. Items are
packed into tasks by their cost, so that a thousand small ones are not a thousand tasks; tasks are run in a few waves,
of which two are under way at any time, so that neither the driver's memory nor the time until the first result depends
on how many items there are. An item that fails with one of our exceptions fails alone; a task whose worker dies is
repeated by Spark.

Workers do one task after the other: what one leaves behind the next does not have to bear (`begin_task`).

How many tasks there are, and whether the cluster has given us anything to run them on, is reported by `watching`.
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
from stantools.work import Failure, attempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


T = TypeVar("T")
R = TypeVar("R")

#: No task is given more than this cost on top of its first item, so that little is lost when it has to be repeated.
_MOST = 512 << 20
#: Below this cost a task of its own costs more than it saves.
_LEAST = 4 << 20
#: Tasks for each core in one wave.
_TASKS_A_CORE = 4
#: Cores that are counted on, whatever the cluster says before its executors are there.
_LEAST_CORES = 4
_RESULT = "item long, value binary"

#: Tasks that this process has begun.
begun = 0
#: Memory of its own from which on a process releases what it does not use; less is not worth asking for it again.
_MUCH = 128 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class _Task(Generic[T]):
    items: tuple[tuple[int, T], ...]


@dataclass(frozen=True)
class SparkWork:
    """Work in tasks on Spark."""

    spark: SparkSession  #: the session
    partitions: int | None = None  #: how many tasks to pack the items into; None decides by the cost and the cores

    @property
    def here(self) -> bool:
        """Returns False."""
        return False

    def inside(self, progress: Progress | None) -> None:
        """Returns None: tasks are elsewhere."""

    def limited(self, items: int | None) -> Self:
        """Returns work with as many tasks, which do their items one after the other."""
        return self if items is None else replace(self, partitions=items)

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Generator[tuple[int, R | Failure], None, None]:
        """Runs a function for each item, as `Work.map`. Results come in waves, in any order.

        The function and the items are pickled; a function of an installed module goes as its name.

        Raises:
            StantoolsError: A task could not be run at all, or failed for another reason (`failures.translated`).
        """
        waiting = list(items)
        costs = [max(cost(item), 1) if cost else 1 for item in waiting]
        cores = max(parallelism(self.spark), _LEAST_CORES)
        count = self.partitions or _task_count(costs, cores, weighed=cost is not None)
        tasks = [_Task(tuple((number, waiting[number]) for number in group)) for group in pack(costs, count)]
        wave = max(cores * _TASKS_A_CORE, 1)
        waves = [tasks[at : at + wave] for at in range(0, len(tasks), wave)]
        for number, value in _run_waves(self.spark, function, waves):
            yield number, pickle.loads(value)


def parallelism(spark: SparkSession) -> int:
    """Returns how many tasks the cluster runs at the same time, as far as it knows itself now."""
    from stantools.pipeline.spark.session import is_connect

    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql.functions import spark_partition_id

    try:
        return spark.range(1 << 12).select(spark_partition_id()).distinct().count()
    except Exception as problem:
        raise translated(problem) from problem


def pack(costs: Sequence[int], count: int) -> list[list[int]]:
    """Packs items into groups of about equal cost, the costly groups first.

    Args:
        costs: The cost of each item.
        count: How many groups, at most.

    Returns:
        Positions, rising in each group. No group is empty.
    """
    groups: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(max(min(count, len(costs)), 0))]
    for item in sorted(range(len(costs)), key=lambda each: -costs[each]):
        load, number, group = groups[0]
        group.append(item)
        heapq.heapreplace(groups, (load + costs[item], number, group))
    ordered = sorted(groups, key=lambda each: (-each[0], each[1]))
    return [sorted(group) for _, _, group in ordered if group]


def _task_count(costs: Sequence[int], cores: int, *, weighed: bool) -> int:
    wanted = cores * _TASKS_A_CORE
    if not weighed:
        return wanted
    total = sum(costs)
    return max(min(wanted, max(cores, total // _LEAST)), -(-total // _MOST))


def _run_waves(
    spark: SparkSession, function: Callable[[T], R], waves: list[list[_Task[T]]]
) -> Iterator[tuple[int, bytes]]:
    """Runs one Spark job a wave, two at a time, and yields the rows of each when it is done."""
    results: queue.Queue[list[tuple[int, bytes]] | BaseException] = queue.Queue()
    tag = f"stantools-{uuid.uuid4()}"
    stopped = threading.Event()
    room = threading.Semaphore(3)

    def run(wave: list[_Task[T]]) -> None:
        room.acquire()
        if stopped.is_set():
            return
        try:
            spark.addTag(tag)
            results.put(_collect(spark, function, wave))
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


def _collect(spark: SparkSession, function: Callable[[T], R], wave: list[_Task[T]]) -> list[tuple[int, bytes]]:
    frame = frame_of(spark, functools.partial(_run_task, function), wave, _RESULT)
    return [(int(row[0]), bytes(row[1])) for row in frame.collect()]


def _run_task(function: Callable[[T], R], task: _Task[T]) -> Iterator[pa.RecordBatch]:
    """In a worker: runs a function over the items of a task and yields one row an item."""
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
    """Returns a DataFrame of the rows that a function makes of items in tasks, one partition an item.

    Args:
        spark: The session.
        function: Called with each item.
        items: They travel with the function; each is unpacked where its task runs only.
        schema: Of the rows.
    """
    # Packed here, so that what cannot be pickled is reported before anything runs.
    from pyspark import cloudpickle

    dumps = cast("Callable[[Any], bytes]", cloudpickle.dumps)
    packed = [dumps(item) for item in items]
    run = dumps(function)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from stantools.pipeline.spark.tasks import rows_of

        return rows_of(run, [packed[number] for batch in batches for number in batch.column(0).to_pylist()])

    return spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(work, schema)


def rows_of(function: bytes, items: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """In a worker: runs a pickled function over pickled items."""
    begin_task()
    with telling():
        run = cast("Callable[[Any], Iterator[pa.RecordBatch]]", pickle.loads(function))
        for item in items:
            yield from run(pickle.loads(item))


def begin_task() -> None:
    """Makes a worker ready for a task of ours, to be called when the task begins. Outside of one nothing is done.

    What is loaded for good is spared from being looked through for garbage. Spark's daemon collects garbage after every
    task; with pyarrow and numpy loaded that takes some 50 ms, as long as it takes to read 200 MB of messages, and it
    finds nothing. So what the first task has loaded is taken out of it, by the second one: in between the daemon has
    collected what was garbage among it.

    Memory of Arrow's that a task before has used and freed is given back if it is much.
    """
    global begun
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    begun += 1
    if begun == 2:
        gc.freeze()
    if _private_bytes() > _MUCH:
        import pyarrow as pa

        pa.default_memory_pool().release_unused()


def _private_bytes() -> int:
    """Returns the memory that belongs to this process alone, 0 where that is not known."""
    try:
        _, resident, shared = map(int, _STATM.read_text(encoding="ascii").split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


#: Seconds between two looks at how far Spark is.
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
def watching(spark: SparkSession, show: Callable[[Tasks], object]) -> Iterator[None]:
    """Reports progress of the jobs that run meanwhile, a few times a second from another thread, and once at the end.

    Args:
        spark: The session.
        show: Called with the state each time.
    """
    watch = _Watch(show)
    if is_connect(spark):
        spark.registerProgressHandler(cast(Any, watch.on_progress))
        try:
            yield
        finally:
            spark.removeProgressHandler(cast(Any, watch.on_progress))
        return
    stopped = threading.Event()
    context = spark.sparkContext

    def look() -> None:
        while not stopped.wait(_EVERY):
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

    def on_progress(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
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
