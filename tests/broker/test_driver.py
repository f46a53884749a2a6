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

from broker.driver import LoopDriver, StoreTimer
from broker.rounds import LoopRounds, RoundStep, nothing

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

    def __init__(self) -> None:
        self.commits: list[int] = []

    def commit(self) -> None:
        self.commits.append(time.monotonic_ns())

    def run_timers(self) -> None:
        """There are none."""


@pytest.mark.parametrize("held", [True, False])
async def test_the_steps_of_a_round(held):
    done: list[str] = []

    def write() -> None:
        before = rounds.enter(RoundStep.WRITE)
        done.append("written")
        rounds.step = before

    rounds = LoopRounds(partial(done.append, "read"), write, partial(done.append, "held") if held else None)
    driver = LoopDriver(asyncio.get_running_loop(), pytest.fail, rounds)

    def commit() -> None:
        assert rounds.step is RoundStep.COMMIT
        # Nothing else waits for a disk.
        driver.write_now()
        done.append("committed")

    driver.server = rules = Rules()
    rules.commit = commit
    driver.commit_soon()
    await asyncio.sleep(0.01)
    wanted = ["held", "read", "written", "held", "committed", "written"]
    assert done == [each for each in wanted if held or each != "held"]
    done.clear()
    rounds.soon()
    await asyncio.sleep(0.01)
    assert done == (["held", "read", "written"] if held else ["read", "written"])


async def test_a_commit_that_fails():
    rounds = LoopRounds(nothing, nothing)
    problems = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(str(context["exception"])))
    first, second = (LoopDriver(asyncio.get_running_loop(), pytest.fail, rounds) for _ in range(2))
    first.server, second.server = Rules(), Rules()
    first.server.commit = lambda: [][0]
    first.commit_soon()
    second.commit_soon()
    await asyncio.sleep(0.01)
    assert problems == ["list index out of range"] and len(second.server.commits) == 1
    assert rounds.step is RoundStep.READ


@pytest.mark.parametrize(
    ("before", "step"),
    [
        (RoundStep.APPLY, RoundStep.APPLY),
        (RoundStep.APPLY, RoundStep.COMMIT),
        (RoundStep.COMMIT, RoundStep.APPLY),
        (RoundStep.COMMIT, RoundStep.COMMIT),
        (RoundStep.WRITE, RoundStep.WRITE),
    ],
)
def test_no_step_calls_back_into_an_earlier_one(before, step):
    rounds = LoopRounds(nothing, nothing)
    rounds.enter(before)
    with pytest.raises(AssertionError, match="in the middle of"):
        rounds.enter(step)


async def test_the_end_of_a_job_follows_what_was_read_before():
    done, over = [], asyncio.Event()
    rounds = LoopRounds(partial(done.append, "read"), nothing)
    driver = LoopDriver(asyncio.get_running_loop(), pytest.fail, rounds)

    def finish(result):
        done.append(result)
        over.set()

    driver.aside(lambda: "result", finish)
    await asyncio.wait_for(over.wait(), 60)
    assert done == ["read", "result"]


@pytest.mark.parametrize("more", [False, True])
async def test_a_commit_that_waits_for_more(more):
    driver = LoopDriver(asyncio.get_running_loop(), pytest.fail, LoopRounds(nothing, nothing))
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
