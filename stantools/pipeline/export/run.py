"""Exports a table with threads: into a directory of files, into one file, or into a stream.

Threads are enough: reading, encoding and compressing all release the interpreter lock. Into a directory each split is
written by one thread into files of its own. For a single file or a stream the threads read and encode ahead, a few
pieces each, and the pieces are written in the order of the table.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.pipeline.export import targets, text
from stantools.pipeline.export.files import File, compressed
from stantools.pipeline.export.model import Format, Layout, Result, Written, WrittenFile
from stantools.pipeline.export.parts import write_part
from stantools.pipeline.tables.counter import ReadCounter
from stantools.pipeline.tables.model import Split, Unreadable
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.read import read_split
from stantools.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from stantools.pipeline.tables.planning import Plan

#: Pieces that a thread prepares ahead of what is being written.
_AHEAD: Final = 4
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
    written = Written()
    stop = threading.Event()

    def write(number: int, directory: Path) -> Written:
        return write_part(_batches(plan.splits[number], options, stop, progress), directory, number, layout)

    with targets.new_export(target, overwrite=overwrite) as directory:
        for part in _all(workers, stop, [(write, number, directory) for number in range(len(plan.splits))]):
            written.add(part)
        if not written.files:
            written.files.append(_empty(directory, layout))
        written.files.sort(key=lambda file: file.path)
        result = Result(str(target), layout, written, list(plan.unreadable))
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
    written = Written()
    with targets.new_file(target, overwrite=overwrite) as path:
        if layout.format is Format.PARQUET:
            with File(path, layout) as file, closing(_ordered(plan.splits, options, workers, progress)) as batches:
                for batch in batches:
                    written.count(layout.table, batch)
                    file.write(batch.select(layout.file_columns))
                size = file.close()
        else:
            with targets.writer(path) as output:
                size = _write_text(plan, options, layout, output, written, workers, progress)
    written.files.append(WrittenFile(target.name, written.rows, size))
    return Result(str(target), layout, written, list(plan.unreadable))


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
    _write_text(plan, options, layout, write, written, workers, progress)
    return Result(None, layout, written, list(plan.unreadable))


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
        "unreadable": [as_json(each) for each in result.unreadable],
        "files": [{"path": file.path, "rows": file.rows, "bytes": file.size} for file in result.written.files],
    }


def as_json(unreadable: Unreadable) -> dict[str, Any]:
    """Returns what cannot be read with the names of the json contract."""
    return {
        "store": unreadable.root,
        "channel": unreadable.channel,
        "file": unreadable.file or None,
        "message": unreadable.message,
        "remedy": unreadable.remedy,
    }


def _empty(directory: Path, layout: Layout) -> WrittenFile:
    """Writes a file without rows, so that who reads the directory finds a schema."""
    layout = replace(layout, by=())
    file = File(directory / f"part-00000{layout.suffix}", layout)
    return WrittenFile(file.path.name, 0, file.close())


def _write_text(
    plan: Plan,
    options: TableOptions,
    layout: Layout,
    write: Callable[[Any], object],
    written: Written,
    workers: int,
    progress: Progress | None,
) -> int:
    def encoded(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        data = text.encode(batch.select(layout.file_columns), layout.format)
        return batch.select(counted), compressed(data, layout.compression)

    counted = [name for name in layout.read_columns if name in ("status", "severity", "problems")]
    size = 0
    if first := text.heading(layout.file_schema, layout.format):
        write(data := compressed(first, layout.compression))
        size += len(data)
    with closing(_ordered(plan.splits, options, workers, progress, encoded)) as pieces:
        for batch, data in pieces:
            written.count(layout.table, batch)
            write(data)
            size += len(data)
    return size


def _batches(
    split: Split, options: TableOptions, stop: threading.Event, progress: Progress | None
) -> Iterator[pa.RecordBatch]:
    """Reads a split, and tells about how far it is."""
    counter, told = ReadCounter(), 0
    for batch in read_split(split, options, counter):
        if stop.is_set():
            raise StoppedError
        yield batch
        read = min(counter.data_bytes + counter.index_bytes, split.cost)
        if progress and read > told:
            progress(read - told)
            told = read
    if progress and split.cost > told:
        progress(split.cost - told)


def _all(workers: int, stop: threading.Event, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """Makes calls in threads; the first that raises stops the others, and is raised here when they have ended."""
    with ThreadPoolExecutor(workers, thread_name_prefix="export") as pool:
        futures = [pool.submit(*call) for call in calls]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    errors = [future.exception() for future in futures if not future.cancelled()]
    for error in errors:
        if error is not None and not isinstance(error, StoppedError):
            raise error
    for future in futures:
        yield future.result()


def _identity(batch: pa.RecordBatch) -> Any:
    return batch


def _ordered(
    splits: Sequence[Split],
    options: TableOptions,
    workers: int,
    progress: Progress | None,
    prepared: Callable[[pa.RecordBatch], Any] = _identity,
) -> Generator[Any, None, None]:
    """Reads splits in threads and gives their batches in order, each with something done to it in the thread.

    Each thread is at most a few batches ahead of the one that is given out.
    """
    stop = threading.Event()
    queues: list[queue.Queue[Any]] = [queue.Queue(_AHEAD) for _ in splits]

    def put(number: int, item: Any) -> None:
        while not stop.is_set():
            try:
                return queues[number].put(item, timeout=_LOOK)
            except queue.Full:
                continue
        raise StoppedError

    def read(number: int) -> None:
        try:
            for batch in _batches(splits[number], options, stop, progress):
                put(number, (prepared(batch), None))
            put(number, None)
        except StoppedError:
            pass
        except BaseException as error:
            put(number, (None, error))

    with ThreadPoolExecutor(workers, thread_name_prefix="export") as pool:
        try:
            for number in range(len(splits)):
                pool.submit(read, number)
            for waiting in queues:
                while (item := waiting.get()) is not None:
                    value, error = item
                    if error is not None:
                        raise error
                    yield value
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
