"""Work in an event loop: interruptible, parallel, repeated while its failure may be temporary.

Temporary failures are a restarting server, a cluster that elects a leader, and the like.
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
    from stantools.nats.connection import NatsConnection


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: seconds between two calls of `check`
_CHECK_INTERVAL = 0.1
#: seconds for clean-up before work is cancelled again
_CLEANUP = 10.0


def run(work: Coroutine[Any, Any, _Result], check: Callable[[], None] | None = None) -> _Result:
    """Runs an event loop until the work is done; Ctrl-C, or an exception from `check`, cancels it, and it cleans up.

    `check` is called regularly. A cancellation is sometimes lost, by `asyncio.wait_for` of Python 3.11 when an
    answer comes at that moment. So work that continues is cancelled again, and KeyboardInterrupt is raised even if
    it ends meanwhile.
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
                # Raised here it would hit any code of the loop, and leave all other tasks as they are.
                interrupted = True
                loop.call_soon_threadsafe(this.cancel)

        with _interrupt_handler(on_signal, before):
            try:
                while not task.done():
                    if check:
                        check()
                    await asyncio.wait([task], timeout=_CHECK_INTERVAL if check else None)
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
def _interrupt_handler(handler: Callable[[int, FrameType | None], None], before: object) -> Iterator[None]:
    """Redirects Ctrl-C, in the main thread, unless it is ignored."""
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
    """Processes all items, `parallel` at a time; results are in the order of the items.

    On an interruption or an exception all others are cancelled, and have cleaned up before this function ends.
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
            # Already cancelled by an interruption; a second cancellation would end the clean-up.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SetBackError(NatsError):
    """Finished work is lost, as if a server was killed before it wrote it to disk; it can be repeated."""

    retriable = True


_PAUSES: Final = (0.02, 0.1, 0.25, 0.5, 1.0)


class Retry:
    """Repeats work while its failure may be temporary, for up to `seconds` without progress."""

    def __init__(self, connection: NatsConnection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self.interruptions = 0  #: number of repetitions
        self.renew()

    async def repeat(self, step: Callable[[], Awaitable[_Result]], position: Callable[[], int] = int) -> _Result:
        """Runs a step until it succeeds; growth of `reached()` restarts the time limit. Raises the final error."""
        self.renew()
        while True:
            before = position()
            try:
                return await step()
            except StantoolsError as problem:
                if position() > before:
                    self.renew()
                self.interruptions += 1
                await self.bear(problem)

    def renew(self) -> None:
        self._since = time.monotonic()
        self._failures = 0

    async def bear(self, problem: StantoolsError) -> None:
        """Waits briefly, and for a connection; raises the problem if it is permanent or has lasted too long."""
        left = self._since + self._seconds - time.monotonic()
        if not problem.retriable or left <= 0:
            raise problem
        await asyncio.sleep(min(left, _PAUSES[min(self._failures, len(_PAUSES) - 1)]))
        self._failures += 1
        await self._connection.wait_connected(max(left, 0.1))
