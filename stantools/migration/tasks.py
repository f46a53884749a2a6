"""Work on many things at a time, a few of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


async def in_parallel(
    work: Callable[[_Item], Awaitable[_Result]], items: Sequence[_Item], parallel: int
) -> list[_Result]:
    """Does the work for every item and returns the results in the order of the items.

    When it is interrupted, or one raises, all others are cancelled and have cleaned up before it ends.

    Args:
        work: What to do.
        items: With what.
        parallel: How many at once.
    """
    slots = asyncio.Semaphore(parallel)

    async def one(item: _Item) -> _Result:
        async with slots:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            # An interruption has cancelled them already; a second time would end what they do to clean up.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
