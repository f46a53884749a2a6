"""Waiting until something is so, however busy the machine is."""

from __future__ import annotations

import asyncio
import inspect
import select
import socket
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

#: How long something that has to come may take on a busy machine.
PATIENCE = 60.0


def until(condition: Callable[[], Found | None], what: str = "it came to that", seconds: float = PATIENCE) -> Found:
    """Waits until something is so, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)
    return found


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Waits until something is so, in an event loop; the condition may be awaitable."""
    deadline = time.monotonic() + seconds
    while not (await found if inspect.isawaitable(found := condition()) else found):
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.01)


def listens(port: int) -> bool:
    """Returns whether a server takes connections at a port of this machine."""
    with socket.socket() as client:
        return not client.connect_ex(("127.0.0.1", port))


def is_readable(descriptor: int, seconds: float) -> bool:
    """Returns whether a descriptor has bytes, or is at its end, within a time; `select` knows only the first 1024."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
