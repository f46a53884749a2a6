"""Whatever was done with a stream: closed, killed, or after a loss of power, it has what its model has."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.broker.stores.streams.histories import play

#: Seeds of a test, by how each history ends.
SEEDS = {"close": 90, "kill": 90, "power": 40}
_MANY = 400


@pytest.mark.parametrize("end", SEEDS)
def test_a_stream_is_as_its_model(end: str) -> None:
    play_all(range(SEEDS[end]), end)


def test_an_unfinished_state_does_not_come_back() -> None:
    """Its file was there after one loss of power, and was written over before the next one."""
    play_all(range(7667, 7668), "power")


@pytest.mark.slow
@pytest.mark.parametrize("end", SEEDS)
@pytest.mark.parametrize("first", range(1000, 5000, _MANY))
def test_many_streams_are_as_their_models(end: str, first: int) -> None:
    play_all(range(first, first + _MANY), end)


def play_all(seeds: range, end: str) -> None:
    before = open_descriptors()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                play(seed, Path(folder), end)
            except Exception as error:
                error.add_note(f"seed {seed}, {end}")
                raise
    assert open_descriptors() <= before, "descriptors of a history are open after its end"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
