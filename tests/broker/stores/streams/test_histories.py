"""Whatever was done with a stream: closed, killed, or after a loss of power, it has what its model has."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from broker.stores.streams import file_stream
from broker.stores.streams.directory import StreamsDirectory
from broker.stores.streams.file_stream import FileStream
from tests.broker.stores.streams.histories import NAME, START, logged, play
from tests.broker.stores.streams.volume import Volume

#: Seeds of a test, by how each history ends.
SEEDS = {"close": 12, "kill": 16, "power": 8}
_MANY = 400


@pytest.mark.parametrize("end", SEEDS)
def test_a_stream_is_as_its_model(end: str, work: Path) -> None:
    play_all(range(SEEDS[end]), end, work)


def test_an_unfinished_state_does_not_come_back(work: Path) -> None:
    """Its file was there after one loss of power, and was written over before the next one."""
    play_all(range(7667, 7668), "power", work)


def test_an_emptied_block_before_one_with_old_tombstones_does_not_come_back(work: Path) -> None:
    """The block after it had no later sequence when all its messages were removed."""
    play_all(range(4419, 4420), "kill", work)


def test_an_emptied_block_before_skipped_sequences_does_not_come_back(work: Path) -> None:
    """It is removed at the next flush: sequences that are in no file need no sync."""
    play_all(range(558, 559), "kill", work)


@pytest.mark.parametrize("all_", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_removed_block_does_not_take_the_last_synced_sequence(tmp_path: Path, seed: int, all_: bool) -> None:
    """The synced part of the block after it has only tombstones of earlier messages, or there is no block after it."""
    root, left = tmp_path / "before", tmp_path / "after"
    root.mkdir()
    volume = Volume(root)
    with mock.patch.object(file_stream, "BLOCK_SIZE", 1000), volume.watched():
        place = StreamsDirectory(root)
        store = place.create(NAME, "file", 1)
        assert isinstance(store, FileStream)
        store.configure({"name": NAME, "subjects": ["a"]}, START)
        for _ in range(10):
            store.append(START, b"a", b"", bytes(60))
        for number in range(1, 8):
            store.remove(number)
        store.flush()
        store.sync()
        assert (root / "jetstream/$G/streams" / NAME / "msgs/2.blk").exists()
        store.append(START, b"a", b"", bytes(60))
        if all_:
            store.purge_all(12)
        else:
            store.purge_below(11)
        store.flush()
        place.close()
        volume.lose_power(random.Random(seed), left)
    with logged():
        place = StreamsDirectory(left)
        store = place.open(NAME)
        assert store.contents.last >= 10
        place.close()


@pytest.mark.parametrize("seed", range(5))
def test_what_a_killed_broker_wrote_is_synced_by_the_next_one(tmp_path: Path, seed: int) -> None:
    root, left = tmp_path / "before", tmp_path / "after"
    root.mkdir()
    volume = Volume(root)
    with volume.watched():
        place = StreamsDirectory(root)
        store = place.create(NAME, "file", 1)
        store.configure({"name": NAME, "subjects": ["a"]}, START)
        store.append(START, b"a", b"", bytes(60))
        store.flush()
        place.close()
        place = StreamsDirectory(root)
        place.open(NAME)
        place.sync()
        place.close()
        volume.lose_power(random.Random(seed), left)
    place = StreamsDirectory(left)
    assert place.open(NAME).contents.messages == 1
    place.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", SEEDS)
@pytest.mark.parametrize("first", range(0, 4000, _MANY))
def test_many_streams_are_as_their_models(end: str, first: int, work: Path) -> None:
    play_all(range(first, first + _MANY), end, work)


def play_all(seeds: range, end: str, work: Path) -> None:
    before = open_descriptors()
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            try:
                play(seed, Path(folder), end)
            except Exception as error:
                error.add_note(f"seed {seed}, {end}")
                raise
    assert open_descriptors() <= before, "descriptors of a history are open after its end"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
