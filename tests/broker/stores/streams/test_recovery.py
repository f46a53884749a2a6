"""Directories with damage: all that is intact is served, no sequence is given twice, and nothing is deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.stores.interface import StorageError
from broker.stores.streams import file_stream
from broker.stores.streams.contents import Contents
from broker.stores.streams.directory import StreamsDirectory
from broker.stores.streams.file_stream import FileStream
from stantools.streamfiles.meta import ConsumerState
from tests.broker.stores.streams.histories import NAME, START, logged

COUNT = 43

DEAD = (3, 7, 25)
Damage = Callable[[Path], None]


@pytest.fixture(autouse=True)
def blocks() -> Iterator[None]:
    """About ten messages in a block."""
    with mock.patch.object(file_stream, "BLOCK_SIZE", 1000):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store directory with a stream: some messages are removed, a consumer has read some."""
    place, store = made(tmp_path)
    for number in DEAD:
        store.remove(number)
    store.keep_consumer("reader", {"durable_name": "reader", "ack_policy": "explicit"}, START)
    store.keep_state("reader", ConsumerState((9, 9), (12, 12), {10: (10, START), 12: (12, START)}))
    store.close()
    place.close()
    return tmp_path


def payload(number: int) -> bytes:
    return b"%02d|" % number * 20


def made(folder: Path) -> tuple[StreamsDirectory, FileStream]:
    place = StreamsDirectory(folder)
    store = place.create(NAME, "file", 1)
    assert isinstance(store, FileStream)
    store.configure({"name": NAME, "subjects": ["s.>"]}, START)
    for number in range(1, COUNT + 1):
        store.append(START + number, b"s.%d" % (number % 3), b"", payload(number))
    store.flush()
    return place, store


def stream(folder: Path) -> Path:
    return folder / "jetstream" / "$G" / "streams" / NAME


def block(folder: Path, number: int) -> Path:
    return stream(folder) / "msgs" / f"{number}.blk"


def flip(path: Path, offset: int, bit: int = 4) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


class Found:
    """What is served of a directory."""

    def __init__(self, folder: Path) -> None:
        with logged() as self.lines:
            place = StreamsDirectory(folder)
            assert [config["name"] for config, _ in place.streams()] == [NAME]
            store = place.open(NAME)
            assert isinstance(store, FileStream)
            self.states = {config["name"]: state for config, _, state in store.consumers()}
            self.kept = store.kept_state("reader", {})
        contents = store.contents
        numbers = [number for segment, rows in contents.rows(None) for number in (rows + segment.first).tolist()]
        self.messages = {number: message.payload for number in numbers if (message := store.read(number))}
        self.next = store.append(START, b"s.0", b"", b"new")
        store.flush()
        # What is there stays, and is told once.
        place.close()
        with logged() as again:
            place = StreamsDirectory(folder)
            other = place.open(NAME)
        assert [each for each in again if "reader" not in each] == []
        assert other.contents.messages == len(self.messages) + 1
        assert other.contents.last == self.next
        place.close()

    def lacks(self, *numbers: int) -> None:
        """All other messages are there."""
        there = set(range(1, COUNT + 1)) - {*DEAD, *numbers}
        assert self.messages == {number: payload(number) for number in there}

    def tells(self, *words: str) -> None:
        assert any(all(word in line for word in words) for line in self.lines), self.lines


def place_of(folder: Path, number: int) -> tuple[Path, int]:
    """Returns the file of a message, and where its payload begins."""
    for path in sorted((stream(folder) / "msgs").glob("*.blk")):
        at = path.read_bytes().find(payload(number))
        if at >= 0:
            return path, at
    raise AssertionError(number)


def kept(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((stream(folder) / "damaged").rglob("*")) if path.is_file()]


def test_healthy(folder: Path) -> None:
    found = Found(folder)
    found.lacks()
    assert (found.lines, found.next) == ([], COUNT + 1)
    assert found.states["reader"] == found.kept != None  # noqa: E711
    assert not (stream(folder) / "damaged").exists()


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("number", [1, 9, 17, 24, COUNT])
def test_a_flipped_bit_costs_one_message(folder: Path, number: int, index: bool) -> None:
    path, at = place_of(folder, number)
    flip(path, at + 11)
    damaged = path.read_bytes()
    if not index:
        (path.parent / "index.db").unlink()
    found = Found(folder)
    found.lacks(number)
    found.tells(path.name, f"message {number}" if number < COUNT else f"after message {number - 1}", "lost")
    assert found.next == COUNT + 1
    assert damaged in kept(folder)


def test_every_bit_of_a_block(folder: Path, tmp_path: Path) -> None:
    """No flipped bit takes more than the record that it is in."""
    path = block(folder, 2)
    size = path.stat().st_size
    for offset in range(0, size, 13):
        copy = tmp_path / "copy"
        shutil.copytree(folder / "jetstream", copy / "jetstream")
        flip(block(copy, 2), offset, offset % 8)
        with logged():
            found = Found(copy)
        other = {number for number in range(1, COUNT + 1) if number not in DEAD} - found.messages.keys()
        changed = [each for each, data in found.messages.items() if data != payload(each)]
        assert len(other) + len(changed) <= 1, offset
        assert not found.messages.keys() & set(DEAD)
        assert found.next == COUNT + 1
        shutil.rmtree(copy)


def last_block(folder: Path) -> Path:
    return max((stream(folder) / "msgs").glob("*.blk"), key=lambda path: int(path.stem))


TAILS: dict[str, Damage] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
}


@pytest.mark.parametrize("how", TAILS)
def test_the_newest_block_is_damaged(folder: Path, how: str) -> None:
    path = last_block(folder)
    first = min(number for number in range(1, COUNT + 1) if number not in DEAD and place_of(folder, number)[0] == path)
    TAILS[how](path)
    found = Found(folder)
    assert found.next == COUNT + 1
    # The index still knows what was removed.
    assert not found.messages.keys() & set(DEAD)
    assert found.messages.keys() >= set(range(1, first)) - set(DEAD)
    found.tells(path.name, "lost")


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_without_an_index_consumers_tell_how_far_it_was(folder: Path, how: str) -> None:
    place = StreamsDirectory(folder)
    store = place.open(NAME)
    store.keep_state("reader", ConsumerState((COUNT, COUNT), (COUNT, COUNT)))
    store.flush()
    place.close()
    TAILS[how](last_block(folder))
    found = Found(folder)
    found.tells("reader", str(COUNT))
    assert found.next == COUNT + 1


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_block_is_told(folder: Path, number: int) -> None:
    lost = [each for each in range(1, COUNT) if each not in DEAD and place_of(folder, each)[0] == block(folder, number)]
    block(folder, number).unlink()
    found = Found(folder)
    found.lacks(*lost)
    found.tells(f"{number}.blk is missing", f"{len(lost)} messages", "lost")


@pytest.mark.parametrize("index", [True, False])
def test_a_new_block_without_a_record_has_lost_nothing(folder: Path, index: bool) -> None:
    """A broker that is killed between making the file of a block and the first write leaves this."""
    newest = last_block(folder)
    newest.with_name(f"{int(newest.stem) + 1}.blk").touch()
    if not index:
        (newest.parent / "index.db").unlink()
    found = Found(folder)
    found.lacks()
    assert (found.lines, found.next) == ([], COUNT + 1)


@pytest.mark.parametrize("suffix", ["blk.tmp", "new"])
@pytest.mark.parametrize("old", ["whole", "damaged", "empty", "missing"])
def test_a_block_that_was_being_rewritten(folder: Path, old: str, suffix: str) -> None:
    path = block(folder, 2)
    new = path.with_name(f"2.{suffix}")
    new.write_bytes(path.read_bytes()[: -5 if old == "whole" else None])
    if old == "damaged":
        flip(path, 40)
    elif old == "empty":
        path.write_bytes(b"")
    elif old == "missing":
        path.unlink()
    Found(folder).lacks()
    assert not new.exists()


@pytest.mark.parametrize("index", [True, False])
def test_an_empty_block_that_had_messages_is_told(folder: Path, index: bool) -> None:
    path = block(folder, 2)
    path.write_bytes(b"")
    if not index:
        (path.parent / "index.db").unlink()
    with logged() as lines:
        place = StreamsDirectory(folder)
        place.open(NAME)
    place.close()
    assert any(line.endswith("2.blk is empty: its messages are lost") for line in lines), lines


class CountedList(list[Any]):
    passes = 0

    def __iter__(self) -> Iterator[Any]:
        CountedList.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("index", [True, False])
def test_empty_blocks_are_counted_in_one_pass(tmp_path: Path, index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments are not searched anew for each block of a stream, whether it is empty, in the index, or both."""
    begin = Contents.__init__

    def counted(contents: Contents, *arguments: Any) -> None:
        begin(contents, *arguments)
        contents.segments = CountedList()

    monkeypatch.setattr(file_stream, "BLOCK_SIZE", 100)
    place, store = made(tmp_path)
    store.close()
    place.close()
    monkeypatch.setattr(Contents, "__init__", counted)
    paths = sorted((stream(tmp_path) / "msgs").glob("*.blk"), key=lambda path: int(path.stem))
    assert len(paths) > 20
    if not index:
        (paths[0].parent / "index.db").unlink()
    passes = []
    for emptied in ([], paths[2:4], paths[6:-2:2]):
        for path in emptied:
            path.write_bytes(b"")
        CountedList.passes = 0
        with logged() as lines:
            place = StreamsDirectory(tmp_path)
            place.open(NAME)
        passes.append(CountedList.passes)
        place.close()
        assert {line.split(" is empty")[0].rsplit("/", 1)[-1] for line in lines if "is empty" in line} >= {
            path.name for path in emptied
        }
    assert max(passes) - min(passes) < 5, passes


def test_garbage_at_the_end(folder: Path) -> None:
    path = last_block(folder)
    path.write_bytes(path.read_bytes() + bytes(range(200)))
    found = Found(folder)
    found.lacks()
    assert found.next == COUNT + 1


def test_exchanged_and_copied_blocks(folder: Path) -> None:
    one, two, copy = block(folder, 1), block(folder, 2), block(folder, 77)
    shutil.copy(block(folder, 3), copy)
    one.rename(folder / "x")
    two.rename(one)
    (folder / "x").rename(two)
    found = Found(folder)
    found.lacks()
    found.tells("1.blk", "renamed")
    found.tells("77.blk", "block 3")
    assert found.next == COUNT + 1


def test_an_index_that_is_damaged_is_kept(folder: Path) -> None:
    path = block(folder, 1).with_name("index.db")
    flip(path, 9)
    data = path.read_bytes()
    found = Found(folder)
    found.lacks()
    found.tells("index.db", "hash")
    assert data in kept(folder)


@pytest.mark.parametrize("how", ["cut", "gone", "empty"])
def test_a_consumer_whose_configuration_is_damaged_is_where_it_was(folder: Path, how: str) -> None:
    path = stream(folder) / "obs" / "reader" / "meta.inf"
    {
        "cut": lambda: path.write_bytes(path.read_bytes()[:30]),
        "gone": path.unlink,
        "empty": lambda: path.write_bytes(b""),
    }[how]()
    found = Found(folder)
    assert "reader" not in found.states
    found.tells("reader", "not served")
    assert found.kept is not None
    assert found.kept.delivered == (12, 12)


def test_a_state_that_is_damaged_is_kept(folder: Path) -> None:
    path = stream(folder) / "obs" / "reader" / "o.dat"
    path.write_bytes(path.read_bytes()[:7])
    data = path.read_bytes()
    found = Found(folder)
    assert found.states == {"reader": None}
    found.tells("o.dat", "damaged")
    assert data in kept(folder)


def test_a_consumer_far_beyond_the_stream_goes_on_at_its_end(folder: Path) -> None:
    place = StreamsDirectory(folder)
    store = place.open(NAME)
    store.keep_state("reader", ConsumerState((9, 9), (1 << 50, 1 << 50)))
    store.close()
    place.close()
    found = Found(folder)
    assert found.states["reader"] is not None
    assert found.states["reader"].delivered[1] == COUNT
    assert found.next == COUNT + 1


def test_a_configuration_that_was_being_changed(folder: Path) -> None:
    """Two files cannot be replaced at once: the change is ended at the next start."""
    old, path = stream(folder) / "meta.inf", stream(folder)
    before = old.read_bytes()
    place = StreamsDirectory(folder)
    with mock.patch("broker.stores.streams.metafiles._put_meta", side_effect=OSError), pytest.raises(StorageError):
        place.open(NAME).configure({"name": NAME, "subjects": ["other"]}, START)
    place.close()
    old.write_bytes(b"{}")  # it had begun
    place = StreamsDirectory(folder)
    [(config, _)] = place.streams()
    assert config["subjects"] == ["other"]
    place.close()
    assert old.read_bytes() != before
    assert not (path / ".meta.next").exists()


def test_the_folder_that_is_given(folder: Path) -> None:
    place = StreamsDirectory(folder / "jetstream")
    assert len(list(place.streams())) == 1
    assert not (folder / "jetstream" / "jetstream").exists()
    place.close()
    for wrong in (folder / "jetstream" / "$G", stream(folder)):
        with pytest.raises(StorageError) as caught:
            StreamsDirectory(wrong)
        assert str(folder) in f"{caught.value} {caught.value.remedy}"
    (folder / "above" / "jetstream").mkdir(parents=True)
    (folder / "jetstream").rename(folder / "above" / "jetstream" / "jetstream")
    with pytest.raises(StorageError, match="has no streams"):
        StreamsDirectory(folder / "above")
