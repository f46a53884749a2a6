"""A store that is killed at any moment has every message that was flushed, and no broken one."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.stores.file import FileStore
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.store.directory import open_datastore
from stantools.store.limits import UNLIMITED, StoreLimits
from tests.broker.stores.crashing import NAME, never_acknowledged, options, payload
from tests.broker.stores.making import everything

ROOT = Path(__file__).parents[3]


def crash(directory: Path, seed: int, how: str) -> tuple[int, list[int]]:
    """Lets the process run for a moment and kills it; returns what it said last."""
    command = [sys.executable, "-m", "tests.broker.stores.crashing", str(directory), str(seed), how]
    last, pending = 0, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        word, *numbers = process.stdout.readline().split()
        assert word == "ready"
        last = int(numbers[0])
        time.sleep(random.Random(seed).uniform(0, 0.2))
        process.kill()
        for line in process.stdout.read().split("\n")[:-1]:
            _, *numbers = line.split()
            last, pending = int(numbers[0]), [int(each) for each in numbers[1:]]
    return last, pending


def rounds(directory: Path, seeds: range, how: str) -> None:
    for seed in seeds:
        promised, pending = crash(directory, seed, how)
        predicted = forecast(
            open_datastore(directory), ServerOptions(version="0.25.6", limits=StoreLimits(0, UNLIMITED)), lookups=False
        )
        assert predicted.starts
        store = FileStore(options(directory, sync=how == "sync"), StoreLimits(0, UNLIMITED))
        found = store.recover()
        assert found is not None
        channel, subscriptions = found.channels[NAME]
        seen = everything(channel.messages)
        assert [each.sequence for each in seen] == [*range(1, len(seen) + 1)]
        assert all(each.data == payload(each.sequence) for each in seen)
        assert len(seen) >= promised
        assert channel.messages.last == predicted.channels[NAME.decode()].last_seq == len(seen)
        (only,) = subscriptions
        # What nobody acknowledged is delivered in any case, again or for the first time.
        owed = {*only.pending, *range(only.state.last_sent + 1, len(seen) + 1)}
        assert owed >= {each for each in range(1, len(seen) + 1) if never_acknowledged(each)}
        if pending and how != "later":
            # Acknowledgements may have been lost or come after the last line, so no more than this can be said.
            assert only.state.last_sent >= promised
            assert {each for each in only.pending if each <= promised} <= {*pending}
        store.close()


WAYS = ["", "later", "sync"]


@pytest.mark.parametrize("how", WAYS)
def test_some_crashes(tmp_path, how):
    rounds(tmp_path / "store", range(2), how)


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_many_crashes(tmp_path, how):
    for part in range(10):
        rounds(tmp_path / f"store{part}", range(100 * part, 100 * part + 30), how)
