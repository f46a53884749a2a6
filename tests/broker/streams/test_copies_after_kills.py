"""Streams that copy are killed between any two writes: each message of an origin is copied once, and in order."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

import pytest

from broker.stores.interface import StorageError
from broker.stores.streams.file_stream import FileStream
from broker.streams.mirroring import StreamCopies
from broker.streams.publish_headers import parse_nats_headers
from broker.streams.stream_source import HEADER, SourceOrigin
from stantools.nats.subjects import matches
from tests.broker.streams.world import World

FEW: Final = 15
MANY: Final = 4000
_KILLS: Final = 5
_STEPS: Final = 14
#: What the process writes with, and what it need not do to survive its own end.
_WRITES: Final = ((os, "pwrite"), (Path, "write_bytes"), (Path, "rename"), (Path, "replace"), (Path, "unlink"))
_SYNCS: Final = ("fsync", "fdatasync")


class KilledError(BaseException):
    """The process ends here."""


class History:
    """Two origins, a stream that has them as sources, and a mirror; what is done with them, from a seed.

    Attributes:
        stored: By stream and sequence: subject and origin of each message, also of one that is gone.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.world = Random(seed), World(folder)
        self.writes = 0  #: until the process is killed; 0 for none
        self.stored: dict[str, dict[int, tuple[str, bytes]]] = {"O": {}, "W": {}, "S": {}, "M": {}}
        self.sources = self._sources()
        self.consumed = False

    def _sources(self) -> list[dict[str, Any]]:
        mapped = [{"src": "o.a", "dest": "own.a"}, {"src": "o.b.*", "dest": "b.$1"}]
        choices: list[list[dict[str, Any]]] = [
            [{"name": "O"}],
            [{"name": "O", "filter_subject": "o.a"}, {"name": "O", "filter_subject": "o.b.>"}],
            [{"name": "O", "subject_transforms": mapped}, {"name": "O", "filter_subject": "o.c"}],
            [{"name": "O", "subject_transforms": mapped[:1], "opt_start_seq": 3}],
        ]
        return [*self.random.choice(choices), *self.random.choice(([], [{"name": "W"}]))]

    def create(self) -> None:
        """Makes the streams."""
        chance = self.random.choice
        self.world.create("O", subjects=["o.>"], retention=chance(("limits", "limits", "interest")))
        self.world.consumer("O", "all", durable_name="all", ack_policy="explicit")
        self.world.create("W", subjects=["w.>"], retention="workqueue")
        limits = {name: size for name in ("max_msgs", "max_msgs_per_subject") if (size := chance((0, 0, 1, 2, 5)))}
        retention = chance(("limits", "limits", "workqueue", "interest"))
        config = {"subjects": ["own.>"], "retention": retention, "allow_rollup_hdrs": True, **limits}
        if self.random.random() < 0.2:
            config["subject_transform"] = {"src": "o.a", "dest": "o.x"}
        # It has what it copies before it has consumers, of which each message is for one.
        self.world.create("S", **config)
        self.world.consumer("S", "c", durable_name="c", ack_policy="explicit")
        self.world.api("STREAM.UPDATE.S", {"name": "S", **config, "sources": self.sources})
        mirror = chance(({}, {"filter_subject": "o.a"}))
        self.world.create("M", mirror={"name": "O", **mirror}, **limits)
        self.mirrored = mirror.get("filter_subject", ">").encode()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts writes, and notes what is stored."""
        append = FileStream.append

        def note(store: FileStream, time: int, subject: bytes, header: bytes, payload: bytes) -> int:
            sequence = append(store, time, subject, header, payload)
            self.stored[store._name][sequence] = (subject.decode(), parse_nats_headers(header).get(HEADER, b""))
            return sequence

        patches = [mock.patch.object(owner, name, self._write(getattr(owner, name))) for owner, name in _WRITES]
        patches += [mock.patch.object(os, name) for name in _SYNCS]
        # All is noted as it is stored by itself.
        patches.append(mock.patch.object(FileStream, "append", note))
        patches.append(mock.patch("broker.streams.server._MIN_BATCH", 1 << 30))
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()

    def _write(self, real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            self.writes -= 1
            if not self.writes:
                raise KilledError
            return real(*arguments, **more)

        return call

    def play(self) -> None:
        """Does all that, and ends with a process that is not killed."""
        with self.counted():
            self.create()
            for _ in range(_KILLS):
                self.writes = self.random.choice((0, self.random.randrange(1, 30), self.random.randrange(1, 120)))
                try:
                    for _ in range(_STEPS):
                        self.step()
                except KilledError:
                    pass
                self.start_again()
            self.world.settle()

    def start_again(self) -> None:
        """Ends the process, which may be killed while it starts, too."""
        while True:
            self.world.place.close()
            try:
                self.world.begin()
                break
            except KilledError:
                continue
        self.writes = 0
        for name, stream in self.world.server.account.streams.items():
            last = stream.store.contents.last
            self.stored[name] = {each: value for each, value in self.stored[name].items() if each <= last}

    def step(self) -> None:
        """Does one thing."""
        world, random = self.world, self.random
        match random.choice(
            ("origin",) * 4 + ("work",) * 2 + ("own", "ack", "ack", "all", "delete", "purge", "settle")
        ):
            case "origin":
                for _ in range(random.choice((1, 1, 2, 9))):
                    world.bus.send(f"o.{random.choice(('a', 'b.x', 'b.y', 'c'))}".encode(), b"o")
            case "work":
                world.bus.send(b"w.a", b"w")
            case "own":
                rolls = {"Nats_Rollup": random.choice(("sub", "all"))} if random.random() < 0.3 else {}
                world.publish(f"own.{random.choice('ab')}", **rolls)
            case "ack" | "all" as what:
                stream, name = ("S", "c") if what == "ack" else ("O", "all")
                for reply, _, _ in world.pull(stream, name, {"batch": random.choice((1, 3, 30)), "no_wait": True}):
                    if reply:
                        world.bus.send(reply.encode(), b"+ACK")
            case "delete":
                name = random.choice("SSM")
                contents = world.server.account.streams[name].store.contents
                sequence = random.choice((contents.first, contents.last))
                world.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence, "no_erase": random.random() < 0.5})
            case "purge":
                body = random.choice(({}, {"keep": 1}, {"filter": "o.>"}, {"filter": "own.a"}))
                world.api(f"STREAM.PURGE.{random.choice('SSM')}", body)
            case "settle":
                world.settle()
        if random.random() < 0.5:
            world.settle()

    def check(self) -> None:
        """Each source has copied what it wants of its origin, once and in order, and so has the mirror."""
        for each in self.sources:
            origin = SourceOrigin(each, mirror=False)
            wanted = [
                sequence
                for sequence, (subject, _) in sorted(self.stored[origin.name].items())
                if sequence >= origin.start
                and (not origin.patterns or any(matches(pattern, subject.encode()) for pattern in origin.patterns))
            ]
            copied = [found for _, (_, mark) in sorted(self.stored["S"].items()) if (found := origin.marked(mark))]
            assert copied == wanted, (each, copied, wanted)
        mirrored = [each for each, (subject, _) in self.stored["O"].items() if matches(self.mirrored, subject.encode())]
        assert sorted(self.stored["M"]) == sorted(mirrored)


def play(seed: int) -> None:
    """Plays a history, and looks at what was copied."""
    with tempfile.TemporaryDirectory() as folder:
        history = History(seed, Path(folder))
        try:
            history.play()
            history.check()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            history.world.place.close()


def _copied(world: World, name: str = "S") -> list[tuple[int, str]]:
    """Sequences and payloads of a stream."""
    store = world.server.account.streams[name].store
    found = map(store.read, range(1, store.contents.last + 1))
    return [(each.sequence, each.payload.decode()) for each in found if each is not None]


def _cut(world: World, sequence: int) -> None:
    """Ends the process; the end of the stream, from a sequence on, is lost."""
    store = world.server.account.streams["S"].store
    world.server.stop()
    found = store.contents.locate(sequence)
    assert found is not None and world.folder is not None
    [path] = (world.folder / "jetstream/$G/streams/S/msgs").glob("*.blk")
    path.write_bytes(path.read_bytes()[: found[0].places[found[1]]])
    (path.parent / "index.db").unlink()


def test_a_copy_says_how_far_it_is_before_it_replaces_the_last_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("O", subjects=["o"])
    world.create("S", sources=[{"name": "O"}], max_msgs_per_subject=1)
    for i in range(3):
        world.publish("o", b"%d" % i)
    world.crash()
    world.settle()
    assert _copied(world) == [(3, "2")]
    assert not (tmp_path / "jetstream/$G/streams/S/sources.db").exists()


def test_what_was_copied_and_is_too_old_at_a_start_is_not_copied_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("O", subjects=["o"])
    world.create("S", sources=[{"name": "O"}], max_age=10_000_000_000, duplicate_window=1_000_000_000)
    world.publish("o", b"1")
    world.place.close()
    world.time.now += 20_000_000_000
    for _ in range(2):
        world.begin()
        world.settle()
        assert world.state("S")["last_seq"] == 1 and not _copied(world)
        world.place.close()


def test_messages_of_its_own_that_come_together_may_replace_the_last_copy(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("O", subjects=["o"])
    world.create(
        "S",
        subjects=["s"],
        sources=[{"name": "O", "subject_transforms": [{"src": "o", "dest": "s"}]}],
        max_msgs_per_subject=1,
    )
    world.publish("o", b"1")
    world.bus.send_together([(b"s", b"", b"", b"own")] * 5)
    world.settle()
    world.crash()
    world.settle()
    assert _copied(world) == [(6, "own")]


def test_of_two_sources_that_lose_their_end_each_continues_after_its_last_copy(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("O", subjects=["o.*"])
    world.create("S", subjects=["s"], sources=[{"name": "O", "filter_subject": f"o.{each}"} for each in "ab"])
    for subject in ("o.a", "o.b", "o.a", "o.a"):
        world.publish(subject, subject.encode())
    _cut(world, 3)
    world.begin()
    # What the file says must not be believed once other messages have the sequences of those that were lost.
    world.server.account.streams["S"].publish(b"s", b"", b"own", world.time.now)
    world.server.account.streams["S"].publish(b"s", b"", b"own", world.time.now)
    world.server.account.streams["S"].flush()
    world.crash()
    world.settle()
    assert [each[1] for each in _copied(world)] == ["o.a", "o.b", "own", "own", "o.a", "o.a"]


@pytest.mark.parametrize("kind", ["sources", "mirror"])
def test_what_was_moved_goes_from_a_work_queue_after_a_kill(tmp_path: Path, kind: str) -> None:
    world = World(tmp_path)
    world.create("W", subjects=["w"], retention="workqueue")
    origin: dict[str, Any] = {"name": "W"}
    world.create("S", **{kind: origin if kind == "mirror" else [origin]})
    with mock.patch.object(StreamCopies, "settle", return_value=[]):
        world.publish("w", b"1")
        world.publish("w", b"2")
    assert len(_copied(world)) == len(_copied(world, "W")) == 2
    world.crash()
    world.settle()
    assert len(_copied(world)) == 2 and not _copied(world, "W")
    # That is kept before something else happens.
    world.crash()
    assert not _copied(world, "W")
    # Messages of one that was made anew are no copies.
    world.api("STREAM.DELETE.W")
    world.time.now += 1
    world.create("W", subjects=["w"], retention="workqueue")
    world.publish("w", b"3")
    world.crash()
    world.settle()
    assert _copied(world, "W") == [(1, "3")]


def test_an_origin_that_comes_later_is_copied_from_a_time_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", sources=[{"name": "O", "opt_start_time": "2100-01-01T00:00:00Z"}])
    world.create("O", subjects=["o"])
    world.settle()
    world.api("STREAM.DELETE.O")
    with mock.patch.object(StreamCopies, "run", return_value=[]):
        world.create("O", subjects=["o"])
        world.publish("o", b"young")
        world.api("STREAM.DELETE.S")
        world.create("S", sources=[{"name": "O", "opt_start_time": "2100-01-01T00:00:00Z"}])
    world.settle()
    assert not _copied(world)


def test_a_file_that_power_left_empty_has_one_before_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("O", subjects=["o"])
    world.create("S", sources=[{"name": "O"}])
    for i in range(3):
        world.publish("o", b"%d" % i)
        world.api("STREAM.PURGE.S")
        world.restart()
        world.settle()
    path = tmp_path / "jetstream/$G/streams/S/sources.db"
    world.publish("o", b"3")
    world.api("STREAM.PURGE.S")
    world.place.close()
    path.write_bytes(b"")
    world.begin()
    world.settle()
    # The one that was not synced is lost, and with it where the last one was.
    assert [each[1] for each in _copied(world)] == ["3"]


def test_a_stream_that_cannot_be_written_copies_again_when_it_can(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("O", subjects=["o"])
    world.create("S", sources=[{"name": "O"}])
    append = FileStream.append

    def fail(store: FileStream, *message: Any) -> int:
        if store is world.server.account.streams["S"].store and store.contents.last == 1:
            raise StorageError("no space")
        return append(store, *message)

    with mock.patch.object(FileStream, "append", fail):
        for i in range(3):
            world.publish("o", b"%d" % i)
        assert len(_copied(world)) == 1
    world.pass_time(3_000_000_000)
    assert [each[1] for each in _copied(world)] == ["0", "1", "2"]


def test_each_message_is_copied_once() -> None:
    for seed in range(FEW):
        play(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_each_message_is_copied_once_many_times(part: int) -> None:
    for seed in range(FEW + part, MANY, 4):
        play(seed)
