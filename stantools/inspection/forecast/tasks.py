"""Work in threads with results in order: big pieces one by one, small ones many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

#: Pieces are handed to a thread together up to this many bytes, or this many pieces.
_GROUP_BYTES = 1 << 20
_GROUP_PIECES = 64
#: Groups that are begun before the result of the first one is wanted, per thread.
_AHEAD = 4


@dataclass(frozen=True)
class Task(Generic[T_co]):
    """A piece of work.

    Attributes:
        size: Bytes that it reads, about.
        work: What is done.
    """

    size: int
    work: Callable[[], T_co]


def in_order(tasks: Iterable[Task[T_co]], workers: int) -> Iterator[T_co]:
    """Runs tasks in threads and gives their results in the order of the tasks.

    When the results are no longer wanted, what was not begun is dropped.
    """
    pending: deque[Future[list[T_co]]] = deque()
    with ThreadPoolExecutor(max(workers, 1)) as executor:
        try:
            for group in _groups(tasks):
                pending.append(executor.submit(_run, group))
                if len(pending) >= _AHEAD * max(workers, 1):
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _run(group: list[Task[T_co]]) -> list[T_co]:
    return [task.work() for task in group]


def _groups(tasks: Iterable[Task[T_co]]) -> Iterator[list[Task[T_co]]]:
    group: list[Task[T_co]] = []
    size = 0
    for task in tasks:
        group.append(task)
        size += task.size
        if size >= _GROUP_BYTES or len(group) >= _GROUP_PIECES:
            yield group
            group, size = [], 0
    if group:
        yield group
