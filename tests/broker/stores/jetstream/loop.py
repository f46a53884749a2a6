"""An event loop whose time is simulated: it never waits, and what happens depends on nothing but the test."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.BaseSelector):
    """Finds nothing ever; waiting is what moves the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits for somebody else"
        self.now += max(timeout, 0)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)
        self.problems: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def time(self) -> float:
        return self._simulated.now


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
