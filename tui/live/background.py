"""Asynchronous work as the work of a job: it ends cleanly, connections closed, when the job is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from tui.jobs import Cancelled, Job

_T = TypeVar("_T")
_LOOK = 0.1


def run_async(job: Job[_T], work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in this thread until it ends, or the job is cancelled.

    Raises:
        Cancelled: The job was cancelled; the coroutine has ended by then.
    """
    # What libraries would log belongs to nobody: every problem comes to us as an exception, and the screen is taken.
    for name in ("asyncio", "nats"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    async def run() -> _T:
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not job.cancelling:
                await asyncio.wait({task}, timeout=_LOOK)
            # Once: what it takes back on its way out must not be interrupted.
            task.cancel()
            return await task
        except asyncio.CancelledError:
            raise Cancelled from None

    return asyncio.run(run())
