"""When the loop commits and calls a store, and what the process of a broker asks of the C library."""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from broker.driver import LoopDriver, LoopRounds, StoreTimer

ROOT = Path(__file__).parents[2]

#: How many new pages it takes to have blocks come and go, as those do that are read from files for a subscriber.
BLOCKS = """
import resource
from broker.driver import keep_freed_memory
keep_freed_memory()
def come_and_go():
    held = []
    for _ in range(400):
        held.append(b"x" * (640 << 10))
        del held[:-4]
        b"y" * (700 << 10)
come_and_go()
begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
come_and_go()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library cannot be asked")
def test_blocks_that_come_and_go_are_in_the_same_pages():
    done = subprocess.run([sys.executable, "-c", BLOCKS], cwd=ROOT, capture_output=True, text=True, check=True)
    # Without it there are some sixty for each block.
    assert int(done.stdout) < 400


class Maintained:
    """A store that wants to be called again."""

    def __init__(self, again: int | None) -> None:
        self.again = again
        self.calls: list[float] = []
        self.sooner: Callable[[int], None] | None = None

    def postpone(self, sooner: Callable[[int], None] | None) -> None:
        self.sooner = sooner

    def maintain(self) -> int | None:
        self.calls.append(time.monotonic())
        return None if self.again is None else time.monotonic_ns() + self.again


@pytest.mark.parametrize("again", [None, 3_600_000_000_000])
async def test_a_store_is_called_sooner_than_it_said(again):
    store = Maintained(again)
    upkeep = StoreTimer(asyncio.get_running_loop(), store)
    upkeep.start()
    assert len(store.calls) == 1 and store.sooner is not None
    begin = time.monotonic()
    store.sooner(time.monotonic_ns() + 50_000_000)
    store.sooner(time.monotonic_ns() + 3_600_000_000_000)
    while len(store.calls) < 2:
        await asyncio.sleep(0.005)
    assert store.calls[1] - begin >= 0.045
    # It can be asked for again, but not after the end.
    store.sooner(0)
    while len(store.calls) < 3:
        await asyncio.sleep(0.005)
    store.sooner(time.monotonic_ns() + 1_000_000)
    upkeep.stop()
    assert store.sooner is None
    await asyncio.sleep(0.05)
    assert len(store.calls) == 3


class Rules:
    """Rules that take note of when they are called."""

    slow = False

    def __init__(self) -> None:
        self.commits: list[int] = []

    def commit(self) -> None:
        self.commits.append(time.monotonic_ns())

    def run_timers(self) -> None:
        """There are none."""


@pytest.mark.parametrize("slow", [True, False])
async def test_nothing_else_waits_for_a_slow_commit(slow):
    rounds = LoopRounds(asyncio.get_running_loop())
    driver = LoopDriver(asyncio.get_running_loop(), pytest.fail, rounds)
    done = []
    rounds.hold_back, rounds.let_go = partial(done.append, "held"), partial(done.append, "written")
    rounds.apply_input = partial(done.append, "read")
    driver.server = rules = Rules()
    rules.slow, rules.commit = slow, partial(done.append, "committed")
    driver.commit_soon()
    await asyncio.sleep(0.01)
    assert done == ["held", "read", *(["written", "held"] if slow else []), "committed", "written"]
    done.clear()
    rounds.soon()
    await asyncio.sleep(0.01)
    assert done == ["held", "read", "written"]


async def test_the_end_of_a_job_follows_what_was_read_before():
    rounds = LoopRounds(asyncio.get_running_loop())
    driver = LoopDriver(asyncio.get_running_loop(), pytest.fail, rounds)
    done, over = [], asyncio.Event()

    def finish(result):
        done.append(result)
        over.set()

    rounds.apply_input = partial(done.append, "read")
    driver.aside(lambda: "result", finish)
    await asyncio.wait_for(over.wait(), 60)
    assert done == ["read", "result"]


@pytest.mark.parametrize("more", [False, True])
async def test_a_commit_that_waits_for_more(more):
    driver = LoopDriver(asyncio.get_running_loop(), pytest.fail)
    driver.server = rules = Rules()
    by = time.monotonic_ns() + (500_000_000 if more else 2_000_000)
    driver.commit_by(by - 1_000_000)
    driver.commit_by(by)
    await asyncio.sleep(0)
    assert not rules.commits
    if more:
        driver.commit_soon()
    await asyncio.sleep(0.02)
    # Once, then or at that time, whichever comes first.
    (commit,) = rules.commits
    assert (commit < by) is more
    driver.commit_by(0)
    driver.stop()
    await asyncio.sleep(0.01)
    assert len(rules.commits) == 1
