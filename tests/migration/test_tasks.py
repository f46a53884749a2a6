"""Work on several things at once: what is interrupted cleans up, all of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from stantools.migration.tasks import in_parallel, run
from stantools.nats.inbox import Inbox


async def test_results_are_in_order() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0.01 * (3 - number))
        return number

    assert await in_parallel(work, [0, 1, 2, 3], 2) == [0, 1, 2, 3]


@pytest.mark.parametrize("fails", [False, True], ids=["interrupted", "one fails"])
async def test_whoever_is_cancelled_has_time_to_clean_up(fails: bool) -> None:
    """Also while others end at once, as those do that were not even begun."""
    began: list[int] = []
    cleaned: list[int] = []

    async def work(number: int) -> None:
        began.append(number)
        if fails and number == 1:
            await asyncio.sleep(0.02)
            raise ValueError
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(5):
                await asyncio.sleep(0.005 * (1 + number))
            cleaned.append(number)

    working = asyncio.ensure_future(in_parallel(work, list(range(10)), 3))
    await asyncio.sleep(0.01)
    if not fails:
        working.cancel()
    with pytest.raises(ValueError if fails else asyncio.CancelledError):
        await working
    assert sorted(cleaned) == [number for number in sorted(began) if not (fails and number == 1)]
    assert len(began) >= 3


_SWALLOWING = """
import asyncio, signal, sys
from stantools.migration import tasks
from stantools.migration.tasks import run

tasks._CLEANUP = 0.2
GOES_ON = {goes_on}

async def work():
    try:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        pass
    try:
        await asyncio.sleep(60 if GOES_ON else 0)
    finally:
        print("clean", flush=True)

try:
    run(work())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_interruption_that_is_swallowed_is_one_all_the_same(goes_on: bool) -> None:
    """As `asyncio.wait_for` of Python 3.11 does when the answer comes at that moment."""
    done = subprocess.run(
        [sys.executable, "-c", _SWALLOWING.format(goes_on=goes_on)], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "clean\n", "")


def test_what_a_check_raises_ends_the_work_and_lets_it_clean_up() -> None:
    cleaned: list[int] = []
    begun = asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    def check() -> None:
        if begun.is_set():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(work(), check)
    assert cleaned == [1]


async def test_an_inbox_that_gets_something_at_that_moment_does_not_lose_a_cancellation() -> None:
    with pytest.raises(asyncio.CancelledError):
        inbox = Inbox(b"somewhere")
        receiving = asyncio.ensure_future(inbox.receive(60))
        for _ in range(3):  # until it waits
            await asyncio.sleep(0)
        inbox.interrupt()
        receiving.cancel()
        await receiving
