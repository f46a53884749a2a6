"""Exports a table with threads: into a directory of files, into one file, or into a stream.

Threads are enough: reading, encoding and compressing all release the interpreter lock. Into a directory each split is
written by one thread into files of its own. For a single file or a stream the threads read and encode ahead, a few
pieces each, and the pieces are written in the order of the table.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.pipeline.export import targets, text
from stantools.pipeline.export.files import File, compressed
from stantools.pipeline.export.model import Format, Layout, Result, Written, WrittenFile
from stantools.pipeline.export.parts import write_part
from stantools.pipeline.tables.model import ReadCounter, Unreadable
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.read import read_split
from stantools.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from stantools.pipeline.tables.planning import Plan

#: Pieces that a thread prepares ahead of what is being written.
_AHEAD: Final = 2
#: So often a thread that has to wait looks whether there is still somebody to work for, in seconds.
_LOOK: Final = 0.2


class StoppedError(Exception):
    """Somebody else has failed; ends a thread."""


def reading(options: TableOptions, layout: Layout) -> TableOptions:
    """Returns how a table has to be read for an export."""
    return replace(options, table=layout.table, columns=layout.read_columns)


def export_to_directory(
    plan: Plan,
    options: TableOptions,
    layout: Layout,
    target: Path,
    *,
    workers: int = 2,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Writes a table into a directory, which appears when it is complete.

    Args:
        plan: What is read, planned with the same options.
        options: How it is read, see `reading`.
        layout: What is in the files.
        target: The directory.
        workers: Threads.
        overwrite: Replace an earlier export.
        progress: Told bytes of input as they are done.

    Raises:
        StoreUnreadableError: The mode is FAILFAST, and something is damaged or cannot be read.
        StoreUnwritableError: It cannot be written, or there is something already.
        RefusedError: What is to be replaced is no export, or another run is writing there.
    """
    targets.check_outside(target, plan)
    written = Written()
    run = _Run(plan, options, progress)

    def write(number: int, directory: Path) -> Written:
        return write_part(run.batches(number), directory, number, layout)

    with targets.new_export(target, overwrite=overwrite) as directory:
        for part in run.all(workers, write, directory):
            written.add(part)
        if not written.files:
            written.files.append(empty_file(directory, layout))
        written.files.sort(key=lambda file: file.path)
        result = Result(str(target), layout, written, run.unreadable())
        targets.finish(directory, manifest(result, options))
    return result


def export_to_file(
    plan: Plan,
    options: TableOptions,
    layout: Layout,
    target: Path,
    *,
    workers: int = 2,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Writes a table into one file, in its order; see `export_to_directory`."""
    targets.check_outside(target, plan)
    written = Written()
    run = _Run(plan, options, progress)
    with targets.new_file(target, overwrite=overwrite) as path:
        if layout.format is Format.PARQUET:
            with File(path, layout) as file, closing(run.ordered(workers)) as batches:
                for batch in batches:
                    written.count(layout.table, batch)
                    file.write(batch.select(layout.file_columns))
                size = file.close()
        else:
            with targets.writer(path) as output:
                size = _write_text(run, layout, output, written, workers)
    written.files.append(WrittenFile(target.name, written.rows, size))
    return Result(str(target), layout, written, run.unreadable())


def export_to_stream(
    plan: Plan,
    options: TableOptions,
    layout: Layout,
    write: Callable[[Any], object],
    *,
    workers: int = 2,
    progress: Progress | None = None,
) -> Result:
    """Writes a table as text into a stream, in its order; see `export_to_directory`.

    Args:
        plan: What is read.
        options: How it is read.
        layout: Its format is `NDJSON` or `CSV`.
        write: Takes bytes.
        workers: Threads.
        progress: Told bytes of input as they are done.
    """
    written = Written()
    run = _Run(plan, options, progress)
    _write_text(run, layout, write, written, workers)
    return Result(None, layout, written, run.unreadable())


def manifest(result: Result, options: TableOptions) -> dict[str, Any]:
    """Returns what the manifest of an export says."""
    layout, bounds = result.layout, options.bounds
    return {
        "stores": list(options.paths),
        "table": layout.table.value,
        "format": layout.format.value,
        "compression": layout.compression.value,
        "columns": list(layout.file_columns),
        "by": list(layout.by),
        "selection": {
            "channels": list(options.channels),
            "first": bounds.first,
            "last": bounds.last,
            "since": bounds.since,
            "until": bounds.until,
            "archived": options.archived,
            "mode": options.mode.value,
        },
        "rows": result.written.rows,
        "status": dict(sorted(result.written.tally.items())),
        "bytes": result.written.size,
        "failed": [as_json(each) for each in result.unreadable],
        "files": [{"path": file.path, "rows": file.rows, "bytes": file.size} for file in result.written.files],
    }


def as_json(unreadable: Unreadable) -> dict[str, str]:
    """Returns what cannot be read as the jobs over many stores have it under `failed`."""
    return {"path": unreadable.path, "message": unreadable.message, "remedy": unreadable.remedy}


def empty_file(directory: Path, layout: Layout) -> WrittenFile:
    """Writes a file without rows, so that who reads the directory finds a schema."""
    layout = replace(layout, by=())
    file = File(directory / f"part-00000{layout.suffix}", layout)
    return WrittenFile(file.path.name, 0, file.close())


def _write_text(run: _Run, layout: Layout, write: Callable[[Any], object], written: Written, workers: int) -> int:
    def encoded(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        data = text.encode(batch.select(layout.file_columns), layout.format)
        return batch.select(told), compressed(data, layout.compression)

    told = layout.health_columns
    size = 0
    if first := text.heading(layout.file_schema, layout.format):
        write(data := compressed(first, layout.compression))
        size += len(data)
    with closing(run.ordered(workers, encoded)) as pieces:
        for batch, data in pieces:
            written.count(layout.table, batch)
            write(data)
            size += len(data)
    return size


def _same(batch: pa.RecordBatch) -> Any:
    return batch


class _Run:
    """Reads the splits of a plan in threads.

    Args:
        plan: The plan.
        options: How it is read.
        progress: Told bytes of input as they are done.
    """

    def __init__(self, plan: Plan, options: TableOptions, progress: Progress | None) -> None:
        self._splits = plan.splits
        self._unreadable = plan.unreadable
        self._options = options
        self._progress = progress
        self._stop = threading.Event()

    def unreadable(self) -> list[Unreadable]:
        """Returns what could not be read, each once."""
        return list(dict.fromkeys(self._unreadable))

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Reads a split, and tells how far it is."""
        split, counter, told = self._splits[number], ReadCounter(), 0
        for batch in read_split(split, self._options, counter):
            if self._stop.is_set():
                raise StoppedError
            yield batch
            read = min(counter.data_bytes + counter.index_bytes, split.cost)
            if self._progress and read > told:
                self._progress(read - told)
                told = read
        if self._progress and split.cost > told:
            self._progress(split.cost - told)

    def all(self, workers: int, work: Callable[[int, Path], Written], directory: Path) -> list[Written]:
        """Does the work for every split; the first that raises stops the others and is raised when they have ended."""
        with ThreadPoolExecutor(workers, thread_name_prefix="export") as pool:
            futures = [pool.submit(work, number, directory) for number in range(len(self._splits))]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        for future in futures:
            error = None if future.cancelled() else future.exception()
            if error is not None and not isinstance(error, StoppedError):
                raise error
        return [future.result() for future in futures]

    def ordered(self, workers: int, prepared: Callable[[pa.RecordBatch], Any] = _same) -> Generator[Any, None, None]:
        """Gives the batches of all splits in order, each with something done to it in the thread that read it.

        Each thread is at most a few batches ahead of the one that is given out.
        """
        queues: list[queue.Queue[Any]] = [queue.Queue(_AHEAD) for _ in self._splits]

        def read(number: int) -> None:
            try:
                for batch in self.batches(number):
                    self._put(queues[number], (prepared(batch), None))
                self._put(queues[number], None)
            except StoppedError:
                pass
            except BaseException as error:
                with suppress(StoppedError):
                    self._put(queues[number], (None, error))

        with ThreadPoolExecutor(workers, thread_name_prefix="export") as pool:
            try:
                for number in range(len(self._splits)):
                    pool.submit(read, number)
                for waiting in queues:
                    while (item := waiting.get()) is not None:
                        value, error = item
                        if error is not None:
                            raise error
                        yield value
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def _put(self, waiting: queue.Queue[Any], item: Any) -> None:
        while not self._stop.is_set():
            try:
                return waiting.put(item, timeout=_LOOK)
            except queue.Full:
                continue
        raise StoppedError
