"""Work in an event loop: it can be interrupted, on many things at a time, and again as long as what stops it may pass.

What passes by itself is a server that restarts, a cluster that elects a leader, and the like.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stantools.errors import StantoolsError
from stantools.nats.errors import NatsError

if TYPE_CHECKING:
    from stantools.nats.connection import Connection


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


class SetBackError(NatsError):
    """Something is not done any more, as if a server was killed before it wrote that down; it can be done again."""

    retriable = True


class OutOfStepError(NatsError):
    """Answers did not come in the order in which the messages were sent; what is stored has to be looked at."""

    retriable = True


_PAUSES: Final = (0.02, 0.1, 0.25, 0.5, 1.0)


class Retry:
    """Does work again as long as what stops it may pass, and it gets on.

    Args:
        connection: The connection that the work needs.
        seconds: How long it may fail without getting any further.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self.interruptions = 0  #: how often something had to be done again
        self.renew()

    async def repeat(self, step: Callable[[], Awaitable[_Result]], reached: Callable[[], int] = int) -> _Result:
        """Does a step, again and again as long as what stops it may pass.

        Args:
            step: What to do.
            reached: Returns how far it is; whenever that has grown, the time starts over.

        Raises:
            StantoolsError: It failed for good, or for too long.
        """
        self.renew()
        while True:
            before = reached()
            try:
                return await step()
            except StantoolsError as problem:
                if reached() > before:
                    self.renew()
                self.interruptions += 1
                await self.bear(problem)

    def renew(self) -> None:
        """Something got better."""
        self._since = time.monotonic()
        self._failures = 0

    async def bear(self, problem: StantoolsError) -> None:
        """Waits a little, and until there is a connection.

        Args:
            problem: What happened.

        Raises:
            StantoolsError: The problem itself, if it will not pass, or has not for too long.
        """
        left = self._since + self._seconds - time.monotonic()
        if not problem.retriable or left <= 0:
            raise problem
        await asyncio.sleep(min(left, _PAUSES[min(self._failures, len(_PAUSES) - 1)]))
        self._failures += 1
        await self._connection.wait_connected(max(left, 0.1))
