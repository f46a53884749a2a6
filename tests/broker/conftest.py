from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops of a test: asyncio's, unless it asks for more (`tests.broker.nats.serving.both_loops`)."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if any("loop_factories" in mark.kwargs for mark in item.iter_markers("asyncio")):
        try:
            import uvloop
        except ImportError:
            return factories
        factories["uvloop"] = uvloop.new_event_loop
    return factories
