"""One way to do work on many things: `Work.map`, by threads here (`Threads`) or on Spark (`pipeline.spark.tasks`).

Results come as they are made, each item once. Only a few items are ahead of the result that is wanted, so memory does
not depend on how many there are. Who stops early (Ctrl-C, an exception, a closed generator) drops what has not begun.
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

#: Cheap items are handed to a thread together, up to this cost or this many.
_GROUP_COST = 1 << 20
_GROUP_ITEMS = 64
#: Groups that are begun before the result of the first one is wanted, per thread.
_AHEAD = 4


@dataclass(frozen=True)
class Failure:
    """An item that could not be dealt with; the others were."""

    message: str  #: why
    remedy: str = ""  #: what to do
    exit_code: int = ExitCode.UNREACHABLE  #: as of the command line
    #: What was raised, where it was raised in this process.
    cause: StantoolsError | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, problem: StantoolsError | OSError) -> Failure:
        """Makes one of an exception."""
        if isinstance(problem, StantoolsError):
            return cls(problem.message, problem.remedy, int(problem.exit_code), problem)
        place = f"{problem.filename}: " if problem.filename else ""
        return cls(f"{place}{problem.strerror or problem}")

    def error(self) -> StantoolsError:
        """Returns an exception that says the same."""
        if self.cause is not None:
            return self.cause
        problem = StantoolsError(self.message, self.remedy)
        problem.exit_code = ExitCode(self.exit_code)
        return problem

    def __reduce__(self) -> tuple[type[Failure], tuple[str, str, int]]:
        return Failure, (self.message, self.remedy, int(self.exit_code))  # not every exception can be pickled


class GivenUpError(Exception):
    """Raised in threads whose results nobody wants any more."""


class Work(Protocol):
    """Runs a function over many items, somewhere."""

    @property
    def here(self) -> bool:
        """Returns whether the items are done in this process and in order; a function need not be picklable then."""

    def inside(self, progress: Progress | None) -> Progress | None:
        """Returns what an item reports while it is being done; None where that is elsewhere, and nobody would hear."""

    def limited(self, items: int | None) -> Self:
        """Returns the same work with at most so many items at a time; None leaves it as it is."""

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Generator[tuple[int, R | Failure], None, None]:
        """Runs a function for each item and yields the results as they come.

        Args:
            function: What to run.
            items: What to run it with.
            cost: About how much work an item is, in bytes; the same for all if None.

        Yields:
            The item's position, from 0, and what the function returned, or a `Failure` where it raised a
            StantoolsError or an OSError. Each item once.

        Raises:
            StantoolsError: The work could not be done at all.
        """


@dataclass(frozen=True)
class Task(Generic[R_co]):
    """A piece of work that brings its own function."""

    size: int  #: bytes that it reads, about
    work: Callable[[], R_co]  #: what is done


@dataclass(frozen=True)
class Threads:
    """Work in threads of this process."""

    workers: int  #: threads; with one, or fewer, the caller does the work itself when it wants a result
    _given_up: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    @property
    def here(self) -> bool:
        """Returns True."""
        return True

    def inside(self, progress: Progress | None) -> Progress | None:
        """Returns a progress function that ends what calls it once the work was given up: an item may take long."""

        def advance(count: int) -> None:
            if self._given_up.is_set():
                raise GivenUpError
            if progress:
                progress(count)

        return advance

    def limited(self, items: int | None) -> Self:
        """Returns work with as many threads."""
        return self if items is None else replace(self, workers=items)

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Generator[tuple[int, R | Failure], None, None]:
        """Runs a function for each item, as `Work.map`; results come in the order of the items."""

        def run(numbered: tuple[int, T]) -> tuple[int, R | Failure]:
            number, item = numbered
            return number, attempt(function, item)

        yield from self.in_order(run, enumerate(items), cost=(lambda numbered: cost(numbered[1])) if cost else None)

    def in_order(
        self, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
    ) -> Iterator[R]:
        """Yields the results in the order of the items; the first exception ends the work and is raised.

        Args:
            function: What to run.
            items: What to run it with; taken as threads become free.
            cost: Bytes that an item needs to be read, about: cheap ones go to a thread together. None: each alone.
        """
        if self.workers <= 1:
            yield from map(function, items)
            return
        groups = _groups(items, cost)
        first, second = next(groups, []), next(groups, None)
        if second is None:  # no thread is worth its start
            yield from map(function, first)
            return
        from concurrent.futures import ThreadPoolExecutor

        pending: deque[Future[list[R]]] = deque()
        pool = ThreadPoolExecutor(self.workers)
        try:
            for group in chain((first, second), groups):
                pending.append(pool.submit(_run, function, group))
                if len(pending) >= _AHEAD * self.workers:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        except BaseException:
            self._given_up.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def tasks(self, tasks: Iterable[Task[R]]) -> Iterator[R]:
        """Runs tasks, and yields their results in order."""
        return self.in_order(lambda task: task.work(), tasks, cost=lambda task: task.size)


def each(
    work: Work, function: Callable[[T], R], items: Iterable[T], *, cost: Callable[[T], int] | None = None
) -> Iterator[tuple[int, R]]:
    """Runs a function for each item, as `Work.map`, where the failure of one is the failure of all.

    Raises:
        StantoolsError: An item failed.
    """
    with closing(work.map(function, items, cost=cost)) as results:
        for number, result in results:
            if isinstance(result, Failure):
                raise result.error()
            yield number, result


def attempt(function: Callable[[T], R], item: T) -> R | Failure:
    """Runs a function; what it raises because of the item comes as a `Failure`."""
    try:
        return function(item)
    except (StantoolsError, OSError) as problem:
        return Failure.of(problem)


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
