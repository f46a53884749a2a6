"""Work in an event loop that can be interrupted, on many things at a time, a few of them at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Seconds between two looks whether to go on.
_LOOK = 0.1
#: Seconds that work has to clean up before it is cancelled again.
_CLEANUP = 10.0


def run(work: Coroutine[Any, Any, _Result], check: Callable[[], None] | None = None) -> _Result:
    """Runs an event loop until some work is done, or Ctrl-C interrupts it: then it is cancelled, and cleans up.

    A cancellation is lost now and then, by `asyncio.wait_for` of Python 3.11 when an answer comes at that moment. So it
    is cancelled again if it goes on, and an interruption stays one even if it does not go on for long enough to notice.

    Args:
        work: What to do.
        check: Called every moment. What it raises ends the work as an interruption does.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    before = signal.getsignal(signal.SIGINT)
    interrupted = False

    async def main() -> _Result:
        task, this, loop = asyncio.ensure_future(work), asyncio.current_task(), asyncio.get_running_loop()
        assert this

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            assert callable(before)
            try:
                before(number, frame)
            except KeyboardInterrupt:
                # Raised here it would hit whatever the loop is doing, and leave all else where it is.
                interrupted = True
                loop.call_soon_threadsafe(this.cancel)

        with _handled_by(on_signal, before):
            try:
                while not task.done():
                    if check:
                        check()
                    await asyncio.wait([task], timeout=_LOOK if check else None)
            except BaseException:
                while not task.done():
                    task.cancel()
                    await asyncio.wait([task], timeout=_CLEANUP)
                raise
        return task.result()

    try:
        result = asyncio.run(main())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    if interrupted:
        raise KeyboardInterrupt
    return result


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], before: object) -> Iterator[None]:
    """Hands Ctrl-C over, in the thread that gets it, and if it is not ignored."""
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    loops = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, loops)


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
