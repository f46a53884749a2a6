"""Work on many items in one interface: `Work.map`, in threads here (`ThreadWork`) or on Spark (`pipeline.spark.tasks`).

Each item yields one result, as soon as it is ready. Only a few items run ahead of the consumer, so memory does not
depend on their number. A consumer that stops early (Ctrl-C, an exception, a closed generator) discards the items
that have not begun.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from stantools.errors import ExitCode, StantoolsError
from stantools.progress import Progress

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: Cheap items go to a thread in groups, limited by their total cost and by their number.
_GROUP_COST = 1 << 20
_GROUP_ITEMS = 64
#: groups per thread that start before the result of the first one is consumed
_GROUPS_AHEAD = 4


@dataclass(frozen=True)
class WorkFailure:
    """An item that failed; the other items are not affected."""

    message: str
    remedy: str = ""
    exit_code: int = ExitCode.UNREACHABLE
    #: the exception, in the process that raised it
    cause: StantoolsError | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, problem: StantoolsError | OSError) -> WorkFailure:
        if isinstance(problem, StantoolsError):
            return cls(problem.message, problem.remedy, int(problem.exit_code), problem)
        place = f"{problem.filename}: " if problem.filename else ""
        return cls(f"{place}{problem.strerror or problem}")

    def error(self) -> StantoolsError:
        """Returns an exception with the same message, remedy and exit code."""
        if self.cause is not None:
            return self.cause
        problem = StantoolsError(self.message, self.remedy)
        problem.exit_code = ExitCode(self.exit_code)
        return problem

    def __reduce__(self) -> tuple[type[WorkFailure], tuple[str, str, int]]:
        return WorkFailure, (self.message, self.remedy, int(self.exit_code))  # not every exception can be pickled


class GivenUpError(Exception):
    """Ends threads whose results are no longer wanted."""


class Work(Protocol):
    """Runs a function over many items, in threads or on a cluster."""

    @property
    def here(self) -> bool:
        """Whether items run in this process and in order; the function need not be picklable then."""

    def inside(self, progress: Progress | None) -> Progress | None:
        """Returns the progress function for use inside an item; None if items run in other processes."""

    def limited(self, items: int | None) -> Self:
        """Returns the same work with at most `items` items at a time; None changes nothing."""

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Generator[tuple[int, R | WorkFailure], None, None]:
        """Runs a function for each item and yields the results as they come.

        `cost` estimates the bytes of work of an item; without it all items count the same. Yields each item's
        position, from 0, with the function's result, or with a `WorkFailure` if it raised a StantoolsError or an
        OSError. Raises a StantoolsError if the work could not run at all.
        """


@dataclass(frozen=True)
class WorkItem(Generic[R_co]):
    size: int  #: estimate of the bytes that it reads
    work: Callable[[], R_co]


@dataclass(frozen=True)
class ThreadWork:
    workers: int  #: number of threads; up to 1, the caller's thread does the work on demand
    _cancelled: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    @property
    def here(self) -> bool:
        return True

    def inside(self, progress: Progress | None) -> Progress | None:
        """Returns a progress function that raises `GivenUpError` once the work is cancelled, for long items."""

        def advance(count: int) -> None:
            if self._cancelled.is_set():
                raise GivenUpError
            if progress:
                progress(count)

        return advance

    def limited(self, items: int | None) -> Self:
        return self if items is None else replace(self, workers=items)

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Generator[tuple[int, R | WorkFailure], None, None]:
        """Runs a function for each item, as `Work.map`; results keep the order of the items."""

        def run(numbered: tuple[int, T]) -> tuple[int, R | WorkFailure]:
            number, item = numbered
            return number, attempt(function, item)

        yield from self.in_order(run, enumerate(items), cost=(lambda numbered: cost(numbered[1])) if cost else None)

    def in_order(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Iterator[R]:
        """Yields the results in the order of the items; the first exception ends the work and is raised.

        Items are drawn as threads become free. `cost` estimates the bytes that an item reads: cheap items go to a
        thread together; without it each goes alone.
        """
        if self.workers <= 1:
            yield from map(function, items)
            return
        groups = _groups(items, cost)
        first, second = next(groups, []), next(groups, None)
        if second is None:  # one group: not worth a thread
            yield from map(function, first)
            return
        from concurrent.futures import ThreadPoolExecutor

        pending: deque[Future[list[R]]] = deque()
        pool = ThreadPoolExecutor(self.workers)
        try:
            for group in chain((first, second), groups):
                pending.append(pool.submit(_run, function, group))
                if len(pending) >= _GROUPS_AHEAD * self.workers:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        except BaseException:
            self._cancelled.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def tasks(self, tasks: Iterable[WorkItem[R]]) -> Iterator[R]:
        return self.in_order(lambda task: task.work(), tasks, cost=lambda task: task.size)


def each(
    work: Work, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
) -> Iterator[tuple[int, R]]:
    """Runs a function for each item, as `Work.map`; the first failure is raised as an exception."""
    with closing(work.map(function, items, cost=cost)) as results:
        for number, result in results:
            if isinstance(result, WorkFailure):
                raise result.error()
            yield number, result


def attempt(function: Callable[[T], R], item: T) -> R | WorkFailure:
    """Runs a function; a StantoolsError or OSError becomes a `WorkFailure`."""
    try:
        return function(item)
    except (StantoolsError, OSError) as problem:
        return WorkFailure.of(problem)


def _run(function: Callable[[T], R], group: list[T]) -> list[R]:
    return [function(item) for item in group]


def _groups(items: Iterable[T], cost: Callable[[T], int] | None) -> Iterator[list[T]]:
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += _GROUP_COST if cost is None else cost(item)
        if total >= _GROUP_COST or len(group) >= _GROUP_ITEMS:
            yield group
            group, total = [], 0
    if group:
        yield group
