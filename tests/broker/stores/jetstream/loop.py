"""An event loop whose time is simulated: it never waits, and what happens depends on nothing but the test."""

from __future__ import annotations

import asyncio
import functools
import heapq
import inspect
import itertools
import selectors
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
_ORIGIN = 1000.0


@dataclass(eq=False)
class Process:
    """What runs in a context of its own, as if it were a process: it can be stopped, has a clock, and tasks."""

    rate: float = 1.0  #: how fast its clock is
    stopped: bool = False
    context: Context = field(default_factory=copy_context)
    tasks: weakref.WeakSet[asyncio.Task[Any]] = field(default_factory=weakref.WeakSet)
    _later: list[asyncio.Handle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context.run(_PROCESS.set, self)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Begins something in it."""
        return asyncio.get_running_loop().create_task(work(), context=self.context)

    def call(self, action: Callable[..., object], *args: object) -> None:
        """Has something done in it, as soon as it runs."""
        asyncio.get_running_loop().call_soon(action, *args, context=self.context.copy())

    def resume(self) -> None:
        self.stopped = False
        loop = asyncio.get_running_loop()
        later, self._later = self._later, []
        for handle in later:
            loop._ready.append(handle)  # type: ignore[attr-defined]

    def suits(self, handle: asyncio.Handle) -> bool:
        """Returns whether a callback is to run now; one of a stopped process runs when it goes on."""
        if self.stopped:
            self._later.append(handle)
        return not self.stopped


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def _task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: Context | None = None
) -> asyncio.Task[T]:
    task = asyncio.Task(work, loop=loop, context=context)
    if (owner := _PROCESS.get() if context is None else context.get(_PROCESS)) is not None:
        owner.tasks.add(task)
    return task


def real_time() -> float:
    """Returns the simulated time, whatever the clock of a process says."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop.simulated.now


def number() -> int:
    """Returns a number that is used once; the same in each run of a play."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return next(loop.numbers)


def process() -> Process | None:
    """Returns the process that runs."""
    return _PROCESS.get()


class _Selector(selectors.BaseSelector):
    """Finds nothing ever; has the time."""

    def __init__(self) -> None:
        self.now = _ORIGIN

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[Any]:
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self) -> None:
        self.simulated = _Selector()
        super().__init__(self.simulated)
        self.problems: list[dict[str, Any]] = []
        self.numbers = itertools.count()
        self.set_task_factory(_task)
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def time(self) -> float:
        now, running = self.simulated.now, _PROCESS.get()
        return now if running is None else _ORIGIN + (now - _ORIGIN) * running.rate

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        if (running := _PROCESS.get()) is not None:
            when = _ORIGIN + (when - _ORIGIN) / running.rate
        return super().call_at(when, callback, *args, context=context)

    def _run_once(self) -> None:
        # As asyncio does it, but for processes that do not run.
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        clock = self.simulated
        if not ready:
            assert scheduled, "everybody waits for somebody else"
            clock.now = max(clock.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= clock.now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            owner = handle._context.get(_PROCESS)
            if not handle._cancelled and (owner is None or owner.suits(handle)):
                handle._run()


def run(play: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine to its end; what goes wrong in callbacks is raised, too."""
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(play())
        for context in loop.problems:
            raise AssertionError(context["message"]) from context.get("exception")
        return result
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        asyncio.set_event_loop(None)


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, in simulated time."""

    @functools.wraps(test)
    def played(**cases: Any) -> None:
        run(lambda: test(**cases))

    # pytest calls it as any other test.
    played.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return played
