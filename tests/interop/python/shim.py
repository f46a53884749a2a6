"""What asyncio-nats-streaming 0.4.0 needs to run on a present-day Python: asyncio took `loop=` arguments then.

The library itself stays as it was published. To be imported before it.
"""

import asyncio
import functools


def _without_loop(function):
    @functools.wraps(function)
    def call(*args, loop=None, **keywords):
        return function(*args, **keywords)

    return call


class _Queue(asyncio.Queue):
    def __init__(self, maxsize=0, *, loop=None):
        super().__init__(maxsize)


asyncio.Queue = _Queue
asyncio.sleep = _without_loop(asyncio.sleep)
asyncio.wait_for = _without_loop(asyncio.wait_for)
asyncio.open_connection = _without_loop(asyncio.open_connection)
