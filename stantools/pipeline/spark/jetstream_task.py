"""One task of the sink, and the driver's commit after all tasks. Neither needs Spark.

Tasks are repeated after a failure, and may run twice at the same time. That is harmless: every message is stored at
its own sequence or nowhere, so that a second run finds the messages of the first
(`stantools.migration.publish.stream_append`). All streams of a job look incomplete until the last task ends; then the
driver checks each and sets its configuration. Streams of a failed job stay incomplete, and the same job continues
them.

A failure that every attempt would have (rows out of order, a limit of the server) does not fail the task, which
Spark would repeat; it is reported to the driver, which then does not commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from stantools.errors import ExitCode, RefusedError, StantoolsError, StoreUnwritableError, UsageError
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.stream_append import (
    AppendResult,
    UnfinishedError,
    append_part,
    check_part,
    finish_part,
)
from stantools.migration.tasks import in_parallel
from stantools.nats.connection import connect
from stantools.nats.errors import CannotConnectError
from stantools.nats.jetstream import JetStream
from stantools.pipeline.spark.jetstream_rows import ARRANGE, SpoolRows

if TYPE_CHECKING:
    import pyarrow as pa

    from stantools.pipeline.spark.jetstream_options import SinkOptions
    from stantools.pipeline.spark.jetstream_rows import Spool

_Result = TypeVar("_Result")

#: Streams to check and finish at the same time.
_FINISH_PARALLEL = 16


def plainly(message: str, remedy: str, exit_code: int) -> StantoolsError:
    """Returns an exception that can be restored from its text, as it leaves a task."""
    kinds = {ExitCode.USAGE: UsageError, ExitCode.REFUSED: RefusedError}
    return kinds.get(ExitCode(exit_code), StantoolsError)(message, remedy)


@dataclass(frozen=True)
class WrittenChannel:
    channel: str
    part: AppendResult


@dataclass(frozen=True)
class TaskReport:
    channels: tuple[WrittenChannel, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)  #: rows left out because they are not messages, by status
    problem: tuple[str, str, int] | None = None  #: message, remedy and exit code of a failure


def write_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Writes the rows of a task into their streams; every channel must be contiguous and in rising order.

    Raises only failures that another attempt may not have: the server is gone, the disk is full.
    """
    rows = SpoolRows(options)
    written: list[WrittenChannel] = []
    try:
        with contextlib.closing(rows.channels(batches)) as channels:
            _write_channels(options, channels, written)
    except StantoolsError as problem:
        if problem.retriable or isinstance(problem, (CannotConnectError, StoreUnwritableError)):
            raise plainly(problem.message, problem.remedy, problem.exit_code) from problem
        return TaskReport(tuple(written), rows.left_out, (problem.message, problem.remedy, int(problem.exit_code)))
    return TaskReport(tuple(written), rows.left_out)


def commit(options: SinkOptions, messages: Sequence[TaskReport]) -> None:
    """Finishes all streams, if all tasks succeeded and every stream holds the reported messages.

    Raises `RefusedError` if a stream was changed since, `StantoolsError` for a failed task or server.
    """
    problems = [message.problem for message in messages if message.problem]
    if problems:
        more = f" (and {len(problems) - 1} more tasks failed)" if len(problems) > 1 else ""
        text, remedy, code = problems[0]
        raise plainly(f"{text}{more}", remedy, code)
    channels = [each for message in messages for each in message.channels]
    streams: dict[str, str] = {}
    for each in channels:
        other = streams.setdefault(each.part.stream, each.channel)
        if other != each.channel:
            raise RefusedError(f"channels {other} and {each.channel} both go into stream {each.part.stream}", ARRANGE)
    if len(streams) < len(channels):
        names = [each.channel for each in channels]
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedError(f"channel {twice}: its rows are in several partitions", ARRANGE)
    if channels:
        run_with(options, lambda js: _finish(js, options, channels))


def check_server(options: SinkOptions) -> None:
    """Connects and asks for JetStream, so that a failure is reported before anything is done."""
    run_with(options, lambda js: js.account())


def run_with(options: SinkOptions, work: Callable[[JetStream], Awaitable[_Result]]) -> _Result:
    try:
        return _run(options, work)
    except StantoolsError as problem:
        raise plainly(problem.message, problem.remedy, problem.exit_code) from problem


def _run(options: SinkOptions, work: Callable[[JetStream], Awaitable[_Result]]) -> _Result:
    async def main() -> _Result:
        async with connect(options.connect_options()) as connection:
            return await work(JetStream(connection))

    return asyncio.run(main())


async def _finish(js: JetStream, options: SinkOptions, channels: Sequence[WrittenChannel]) -> None:
    version = js.connection.version
    # All are checked before any is finished: a job is complete as a whole, or looks incomplete.
    await in_parallel(lambda each: check_part(js, each.part), channels, _FINISH_PARALLEL)
    await in_parallel(
        lambda each: finish_part(js, options.config(each.channel, version), each.part), channels, _FINISH_PARALLEL
    )


def _write_channels(options: SinkOptions, channels: Iterator[Spool], written: list[WrittenChannel]) -> None:
    first = next(channels, None)
    if first is None:
        return  # Spark has many partitions without rows
    with first:
        _run(options, lambda js: _publish(js, options, chain([first], channels), written))


async def _publish(js: JetStream, options: SinkOptions, spools: Iterator[Spool], written: list[WrittenChannel]) -> None:
    """Publishes a few channels at a time, while a thread spools the rows of the next."""
    spooling, slots = asyncio.Lock(), asyncio.Semaphore(options.parallel)

    async def publish_in_turn(_: int) -> None:
        while True:
            async with spooling:
                spool = await _next_spool(spools)
            if spool is None:
                return
            with spool:
                async with slots:
                    written.append(await _write(js, options, spool))

    workers = options.parallel + 1
    await in_parallel(publish_in_turn, range(workers), workers)


async def _next_spool(spools: Iterator[Spool]) -> Spool | None:
    reading = asyncio.ensure_future(asyncio.to_thread(next, spools, None))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        # The thread cannot be interrupted.
        if (spool := await reading) is not None:
            spool.close()
        raise


async def _write(js: JetStream, options: SinkOptions, spool: Spool) -> WrittenChannel:
    channel = spool.channel.decode("utf-8", "surrogateescape")
    name, _ = options.names(channel)
    try:
        part = await append_part(
            js,
            name,
            options.config(channel, js.connection.version),
            spool,
            options=PublishOptions(origin=options.origin, filler_limit=options.filler_limit, patience=options.patience),
        )
    except UnfinishedError as problem:
        remedy = f"{problem.remedy}; rows of one channel belong into one partition: {ARRANGE}"
        raise RefusedError(problem.message, remedy) from None
    return WrittenChannel(channel, part)
