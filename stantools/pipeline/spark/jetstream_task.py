"""What one task of the sink does, and what the driver does when all have done it. Neither needs Spark.

Tasks are repeated when they fail, and may run twice at the same time. Nothing has to be done about that here: every
message goes to its own sequence or nowhere, so that a second run finds what the first has done
(`stantools.migration.publish.appending`). All streams of a job look incomplete until the last task is done; then the
driver looks at every one and sets its configuration. Where a job fails, streams stay as they are, incomplete, and
the same job again continues.

A failure that would only come again (rows out of order, a limit of the server) is no failure of the task, which Spark
would repeat, but reported to the driver, which then does not commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from stantools.errors import ExitCode, RefusedError, StantoolsError, StoreUnwritableError, UsageError
from stantools.migration.publish.appending import Appended, UnfinishedError, append_part, check_part, finish_part
from stantools.migration.publish.loader import Publishing
from stantools.migration.tasks import in_parallel
from stantools.nats.connection import connect
from stantools.nats.errors import CannotConnectError
from stantools.nats.jetstream import JetStream
from stantools.pipeline.spark.jetstream_rows import ARRANGE, Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from stantools.nats.connection import Connection
    from stantools.pipeline.spark.jetstream_options import SinkOptions
    from stantools.pipeline.spark.jetstream_rows import Spool

_Result = TypeVar("_Result")

#: Streams that are looked at, and finished, at the same time.
_FINISHING = 16


def plainly(message: str, remedy: str, exit_code: int) -> StantoolsError:
    """Returns an exception that can be made again from its text, as it comes out of a task."""
    kinds = {ExitCode.USAGE: UsageError, ExitCode.REFUSED: RefusedError}
    return kinds.get(ExitCode(exit_code), StantoolsError)(message, remedy)


@dataclass(frozen=True)
class WrittenChannel:
    """What a task has written of one channel."""

    channel: str
    part: Appended


@dataclass(frozen=True)
class Written:
    """What a task reports to the driver."""

    channels: tuple[WrittenChannel, ...] = ()  #: what is in its streams
    left_out: dict[str, int] = field(default_factory=dict)  #: rows that were no messages, by their status
    problem: tuple[str, str, int] | None = None  #: message, remedy and exit code of what went wrong, if something did


def write_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    """Writes the rows of a task into their streams.

    Args:
        options: Where to, and how.
        batches: Rows, every channel in one piece and in rising order.

    Raises:
        StantoolsError: Something that may be otherwise at the next attempt: the server is gone, no room here.
    """
    rows = Rows(options)
    written: list[WrittenChannel] = []
    try:
        with contextlib.closing(rows.channels(batches)) as channels:
            _write_channels(options, channels, written)
    except StantoolsError as problem:
        if _may_pass(problem):
            raise plainly(problem.message, problem.remedy, problem.exit_code) from problem
        return Written(tuple(written), rows.left_out, (problem.message, problem.remedy, int(problem.exit_code)))
    return Written(tuple(written), rows.left_out)


def commit(options: SinkOptions, messages: Sequence[Written]) -> None:
    """Finishes all streams, if all tasks could do their work and every stream holds what they say.

    Raises:
        RefusedError: A stream is not as it was left.
        StantoolsError: A task could not do its work, or the server cannot be reached, or refuses.
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
    """Connects and asks for JetStream, so that what cannot work is reported before anything is done.

    Raises:
        StantoolsError: It cannot be used.
    """
    run_with(options, lambda js: js.account())


def run_with(options: SinkOptions, work: Callable[[JetStream], Awaitable[_Result]]) -> _Result:
    """Does something with a connection."""

    async def main() -> _Result:
        async with connect(options.connecting()) as connection:
            return await work(JetStream(connection))

    try:
        return asyncio.run(main())
    except StantoolsError as problem:
        raise plainly(problem.message, problem.remedy, problem.exit_code) from problem


async def _finish(js: JetStream, options: SinkOptions, channels: Sequence[WrittenChannel]) -> None:
    version = js.connection.version
    # None is finished before all were looked at: a job is there as a whole, or looks incomplete.
    await in_parallel(lambda each: check_part(js, each.part), channels, _FINISHING)
    await in_parallel(
        lambda each: finish_part(js, options.config(each.channel, version), each.part), channels, _FINISHING
    )


def _write_channels(options: SinkOptions, channels: Iterator[Spool], written: list[WrittenChannel]) -> None:
    """Publishes some channels at a time, while the rows of the next are put aside."""
    first = next(channels, None)
    if first is None:
        return  # Spark has many partitions without rows
    with first, _Publisher(options) as publisher:
        for spool in chain([first], channels):
            written.extend(publisher.submit(spool))
        written.extend(publisher.drain())


class _Publisher:
    """A connection in a thread of its own, so that the server is answered also while we wait for rows.

    A context manager. At its end everything that is under way is given up.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._under_way: deque[tuple[Future[WrittenChannel], Spool]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._room = asyncio.Semaphore(options.parallel)

    def __enter__(self) -> _Publisher:
        with contextlib.ExitStack() as stack:
            self._loop = stack.enter_context(_loop())
            opened = contextlib.AsyncExitStack()
            stack.callback(lambda: self._call(opened.aclose()).result())
            entering = opened.enter_async_context(connect(self._options.connecting()))
            self._connection = self._call(entering).result()
            stack.callback(self._give_up)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def submit(self, spool: Spool) -> Iterator[WrittenChannel]:
        """Begins to publish a channel; where too many are under way, waits for others and yields them."""
        self._under_way.append((self._call(self._write(spool)), spool))
        while len(self._under_way) > self._options.parallel:
            yield self._next()

    def drain(self) -> Iterator[WrittenChannel]:
        """Waits for all channels that are under way."""
        while self._under_way:
            yield self._next()

    def _next(self) -> WrittenChannel:
        result = self._under_way[0][0].result()
        self._under_way.popleft()[1].close()
        return result

    def _call(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _give_up(self) -> None:
        async def stop() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._call(stop()).result()
        for _, spool in self._under_way:
            spool.close()

    async def _write(self, spool: Spool) -> WrittenChannel:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        async with self._room:
            return await _write(self._connection, self._options, spool)


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Runs an event loop beside us: the server is answered also while we wait for rows."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="jetstream", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _write(connection: Connection, options: SinkOptions, spool: Spool) -> WrittenChannel:
    channel = spool.channel.decode("utf-8", "surrogateescape")
    js = JetStream(connection)
    name, _ = options.names(channel)
    try:
        part = await append_part(
            js,
            name,
            options.config(channel, connection.version),
            spool,
            options=Publishing(origin=options.origin, filler_limit=options.filler_limit, patience=options.patience),
        )
    except UnfinishedError as problem:
        remedy = f"{problem.remedy}; rows of one channel belong into one partition: {ARRANGE}"
        raise RefusedError(problem.message, remedy) from None
    return WrittenChannel(channel, part)


def _may_pass(problem: StantoolsError) -> bool:
    """Returns whether it may be otherwise when the task is run again, perhaps on another machine."""
    return problem.retriable or isinstance(problem, (CannotConnectError, StoreUnwritableError))
