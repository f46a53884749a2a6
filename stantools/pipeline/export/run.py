"""Running an export: into a directory with threads or tasks, into one file or a stream with threads.

Threads suffice: reading, encoding and compressing all release the interpreter lock. In a directory each split has
files of its own. A task writes into a directory of its attempt; the driver moves the files to their place after the
task's success. A task that is repeated, or given to two workers, therefore counts once.

For a single file or a stream, threads read and encode a few pieces ahead; the pieces are written in the table's
order.
"""

from __future__ import annotations

import queue
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import StoreUnwritableError
from stantools.escaping import known
from stantools.pipeline.export import targets, text
from stantools.pipeline.export.export_layout import TEXTS, ExportedPart, ExportLayout, Result, WrittenFile
from stantools.pipeline.export.parts import write_part
from stantools.pipeline.export.request import Export
from stantools.pipeline.export.sinks import File, compressed
from stantools.pipeline.tables.model import ReadCounter, Split
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.table_options import TableOptions
from stantools.progress import Progress
from stantools.sqlstore.address import without_password
from stantools.store.durable import fsync_directory, fsync_file, writing
from stantools.work import GivenUpError, ThreadWork, Work, each

if TYPE_CHECKING:
    import pyarrow as pa

#: Directory of the tasks' attempts.
_ATTEMPTS: Final = "_attempts"
#: Pieces that a thread prepares ahead of the writer.
_QUEUE_LENGTH: Final = 2
#: Seconds between a waiting thread's checks for a stop.
_STOP_CHECK_SECONDS: Final = 0.2


@dataclass(frozen=True)
class ExportTask:
    number: int  #: the number of the split
    split: Split
    options: TableOptions
    layout: ExportLayout
    directory: Path  #: target directory of the files
    #: Where each attempt makes a directory of its own instead; None if there is only one attempt.
    attempts: Path | None = None


@dataclass(frozen=True)
class FinishedPart:
    """The files of a part and their directory."""

    directory: Path
    written: ExportedPart


def export_here(export: Export, workers: int, progress: Progress | None) -> Result:
    """Exports in this process, into a directory or a single file; see `export_to_directory`."""
    if export.export_options.single:
        return export_to_file(export, workers=workers, progress=progress)
    return export_to_directory(export, work=ThreadWork(workers), progress=progress)


def export_to_directory(export: Export, *, work: Work | None = None, progress: Progress | None = None) -> Result:
    """Writes a table into a directory, which must be visible under this path to all workers, and appears when complete.

    `progress` is called with the bytes of input done since the last call. Raises `StoreUnwritableError` for an
    existing target, `RefusedError` if the target to replace is not an export, or if another run is writing there.
    """
    work = work or ThreadWork(2)
    target = export.export_options.target
    layout, options = export.layout, export.options
    targets.check_outside(target, export.plan)
    written = ExportedPart()
    with targets.new_export(target, overwrite=export.export_options.overwrite) as directory:
        attempts = None if work.here else directory / _ATTEMPTS
        if attempts:
            attempts.mkdir()
        splits = enumerate(export.plan.splits)
        parts = [ExportTask(number, split, options, layout, directory, attempts) for number, split in splits]
        inside = work.inside(progress)
        write = write_split if inside is None else partial(write_split, progress=inside)
        # Local splits run one by one: a failure is reported before the next begins.
        cost = None if work.here else (lambda part: part.split.cost)
        for number, done in each(work, write, parts, cost=cost):
            if progress and not inside:
                progress(parts[number].split.cost)
            if attempts:
                take(done, directory)
            written.add(done.written)
        if attempts:
            with writing(directory):
                shutil.rmtree(attempts)
        return finished(directory, Result(str(target), layout, written, export.unreadable), options)


def write_split(part: ExportTask, *, progress: Progress | None = None) -> FinishedPart:
    """Writes a split; with attempts into a directory of its own, since it may be repeated or run twice."""
    rows = read_with_progress(part.split, part.options, progress)
    if part.attempts is None:
        return FinishedPart(part.directory, write_part(rows, part.directory, part.number, part.layout))
    if not part.attempts.is_dir():
        raise StoreUnwritableError(
            f"{part.attempts.parent}: does not exist on {socket.gethostname()}, where a task must write into it",
            "name a directory on a file system that the driver and all workers see under the same path, or a URL that "
            "Spark can write",
        )
    directory = part.attempts / f"{part.number:05d}-{uuid.uuid4().hex}"
    with writing(directory):
        directory.mkdir()
    try:
        written = write_part(rows, directory, part.number, part.layout)
        with writing(directory):
            # The driver may be on another machine, where its sync does not cover these files.
            for file in written.files:
                fsync_file(directory / file.path)
            fsync_directory(directory)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return FinishedPart(directory, written)


def take(done: FinishedPart, directory: Path) -> None:
    """Moves the files of the attempt that counts to their place."""
    with writing(directory):
        for file in done.written.files:
            place = directory / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            (done.directory / file.path).rename(place)


def finished(directory: Path, result: Result, options: TableOptions) -> Result:
    written = result.written
    if not written.files:
        written.files.append(empty_file(directory, result.layout))
    written.files.sort(key=lambda file: file.path)
    targets.finish(directory, manifest(result, options))
    return result


def export_to_file(export: Export, *, workers: int = 2, progress: Progress | None = None) -> Result:
    """Writes a table into one file, in its order; see `export_to_directory`."""
    return export_tables([export], workers=workers, progress=progress)[0]


def export_tables(exports: Sequence[Export], *, workers: int = 2, progress: Progress | None = None) -> list[Result]:
    """Writes tables, each with its own plan, into one file; several tables only into a database."""
    export_options = exports[0].export_options
    targets.check_outside(export_options.target, exports[0].plan)
    with targets.new_file(export_options.target, overwrite=export_options.overwrite) as path:
        return [_write_table(export, path, workers, progress) for export in exports]


def _write_table(export: Export, path: Path, workers: int, progress: Progress | None) -> Result:
    layout, written, run = export.layout, ExportedPart(), _SplitReader(export, progress)
    if layout.format not in TEXTS:
        with File(path, layout) as file, closing(run.ordered(workers)) as batches:
            for batch in batches:
                written.count(layout.table, batch)
                file.write(batch.select(layout.file_columns))
            size = file.close()
    else:
        with targets.writer(path) as output:
            size = _write_text(run, output, written, workers)
    target = export.export_options.target
    written.files.append(WrittenFile(target.name, written.rows, size))
    return Result(str(target), layout, written, export.unreadable)


def export_to_stream(
    export: Export, write: Callable[[Any], object], *, workers: int = 2, progress: Progress | None = None
) -> Result:
    """Writes a table as ndjson or csv into a stream, in its order; see `export_to_directory`."""
    written = ExportedPart()
    _write_text(_SplitReader(export, progress), write, written, workers)
    return Result(None, export.layout, written, export.unreadable)


def manifest(result: Result, options: TableOptions) -> dict[str, Any]:
    layout, bounds = result.layout, options.bounds
    return {
        "stores": [known(without_password(path)) for path in options.paths],
        **layout.as_json(),
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
        "failed": [each.as_json() for each in result.unreadable],
        "files": [{"path": file.path, "rows": file.rows, "bytes": file.size} for file in result.written.files],
    }


def empty_file(directory: Path, layout: ExportLayout) -> WrittenFile:
    """Writes a file without rows, so that readers of the directory find a schema."""
    layout = replace(layout, by=())
    file = File(directory / f"part-00000{layout.suffix}", layout)
    return WrittenFile(file.path.name, 0, file.close())


def _write_text(run: _SplitReader, write: Callable[[Any], object], written: ExportedPart, workers: int) -> int:
    def encoded(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        data = text.encode(batch.select(layout.file_columns), layout.format)
        return batch.select(told), compressed(data, layout.compression)

    layout, size = run.layout, 0
    told = layout.health_columns
    if first := text.heading(layout.file_columns, layout.format):
        write(data := compressed(first, layout.compression))
        size += len(data)
    with closing(run.ordered(workers, encoded)) as pieces:
        for batch, data in pieces:
            written.count(layout.table, batch)
            write(data)
            size += len(data)
    return size


def read_with_progress(split: Split, options: TableOptions, progress: Progress | None) -> Iterator[pa.RecordBatch]:
    """Reads a split; reports progress up to its cost in bytes."""
    counter, told = ReadCounter(), 0
    for batch in read_split(split, options, counter):
        read = min(counter.data_bytes + counter.index_bytes, split.cost)
        if progress:
            progress(max(read - told, 0))
            told = max(read, told)
        yield batch
    if progress and split.cost > told:
        progress(split.cost - told)


class _SplitReader:
    def __init__(self, export: Export, progress: Progress | None) -> None:
        self.layout = export.layout
        self._splits = export.plan.splits
        self._options = export.options
        self._progress = progress
        self._stop = threading.Event()

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        def advance(count: int) -> None:
            if self._stop.is_set():
                raise GivenUpError
            if self._progress:
                self._progress(count)

        return read_with_progress(self._splits[number], self._options, advance)

    def ordered(
        self, workers: int, prepared: Callable[[pa.RecordBatch], Any] = lambda batch: batch
    ) -> Generator[Any, None, None]:
        """Yields the batches of all splits in order, each prepared in its reader's thread.

        Each thread is at most a few batches ahead of the consumer.
        """
        queues: list[queue.Queue[Any]] = [queue.Queue(_QUEUE_LENGTH) for _ in self._splits]

        def read(number: int) -> None:
            try:
                for batch in self._batches(number):
                    self._put(queues[number], (prepared(batch), None))
                self._put(queues[number], None)
            except GivenUpError:
                pass
            except BaseException as error:
                with suppress(GivenUpError):
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
                return waiting.put(item, timeout=_STOP_CHECK_SECONDS)
            except queue.Full:
                continue
        raise GivenUpError
