"""Messages that are published again, with other subjects, or copied to other streams: in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.stores.interface import StorageError
from broker.stores.streams import file_stream
from broker.stores.streams.blocks import MessageBlock
from broker.streams.purge import purge
from broker.streams.subject_mapping import MappingError, SubjectMapping
from stantools.nats.interest import finished
from tests.broker.streams.world import World


def test_what_is_stored_is_published_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("R", subjects=["r.>"], republish={"src": "r.*", "dest": "again.$1"})
    world.create("H", subjects=["h.>"], republish={"src": "", "dest": "again.>", "headers_only": True})
    heard: list[tuple[bytes, list[bytes], bytes]] = []

    def publish(subject: str, payload: bytes, **headers: str) -> None:
        world.publish(subject, payload, **headers)
        for _, to, data, _, header in world.bus.said:
            if to.startswith(b"again."):
                lines = [line for line in header.split(b"\r\n") if b"Time-Stamp" not in line and line]
                heard.append((to, lines, data))

    publish("r.a", b"one", X="y")
    publish("r.a", b"two")
    publish("r.a.b", b"not this one")
    publish("r.a", b"refused", Nats_Expected_Stream="other")
    publish("h.a", b"three")
    assert heard == [
        (b"again.a", [b"NATS/1.0", b"X: y", *_origin("R", "r.a", 1), b"Nats-Last-Sequence: 0"], b"one"),
        (b"again.a", [b"NATS/1.0", *_origin("R", "r.a", 2), b"Nats-Last-Sequence: 1"], b"two"),
        (
            b"again.h.a",
            [b"NATS/1.0", *_origin("H", "h.a", 1), b"Nats-Last-Sequence: 0", b"Nats-Msg-Size: 5"],
            b"",
        ),
    ]
    with mock.patch.object(MessageBlock, "flush", side_effect=StorageError("no space")):
        publish("r.b", b"lost")
    assert len(heard) == 3
    world.restart()
    publish("r.a", b"five")
    assert heard[3][1][-1] == b"Nats-Last-Sequence: 2"


def _origin(stream: str, subject: str, sequence: int) -> list[bytes]:
    return [f"Nats-{name}: {value}".encode() for name, value in
            (("Stream", stream), ("Subject", subject), ("Sequence", sequence))]  # fmt: skip


def test_a_subject_that_would_be_none_stays() -> None:
    split = SubjectMapping("s.*", "z.{{split(1,-)}}")
    assert split.of(b"s.a-b") == b"z.a.b" and split.of(b"s.---") == b"s.---" and split.of(b"t.a") is None
    with pytest.raises(MappingError, match="unknown function"):
        SubjectMapping("s.*", "z.{{split}}")


def test_mapped_subjects_outlive_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path)
    transform: dict[str, Any] = {"src": "s.*", "dest": "z.{{partition(3,1)}}.$1"}
    world.create("S", subjects=["s.>"], subject_transform=transform)
    world.publish("s.a")
    world.crash()
    world.publish("s.b")
    assert world.api("STREAM.INFO.S")["config"]["subject_transform"] == transform
    assert set(world.state("S")["subjects"]) == {"z.1.a", "z.1.b"}


def _fill(world: World) -> None:
    """A stream of six messages, of which the second is gone."""
    world.create("O", subjects=["o.>"], allow_direct=True)
    for i in range(6):
        headers = {"X": "y", "Nats_Msg_Id": "i", "Nats_Expected_Stream": "O"} if i == 3 else {}
        world.publish(f"o.{'ab'[i % 2]}", b"%d" % (i + 1), **headers)
    world.api("STREAM.MSG.DELETE.O", {"seq": 2})


def _messages(world: World, name: str) -> list[tuple[int, str, str]]:
    """Sequences, subjects and payloads of a stream."""
    found = (world.server.account.streams[name].store.read(each) for each in range(1, 30))
    return [(each.sequence, each.subject.decode(), each.payload.decode()) for each in found if each is not None]


def test_a_mirror_has_sequences_and_times_of_its_origin(tmp_path: Path) -> None:
    world = World(tmp_path)
    _fill(world)
    mapping = [{"src": "o.a", "dest": "n.a"}, {"src": "o.b", "dest": ""}]
    mirrors: dict[str, dict[str, Any]] = {
        "M": {},
        "Four": {"opt_start_seq": 4},
        "Late": {"opt_start_time": "2100-01-01T00:00:00Z"},
        "OnlyA": {"filter_subject": "o.a"},
        "Mapped": {"subject_transforms": mapping},
        "MappedA": {"subject_transforms": mapping[:1]},
    }
    for name, options in mirrors.items():
        world.create(name, mirror={"name": "O", **options})
    world.create("Memory", mirror={"name": "O"}, storage="memory", max_msgs=2)
    world.settle()
    rest = [(1, "o.a", "1"), (3, "o.a", "3"), (4, "o.b", "4"), (5, "o.a", "5"), (6, "o.b", "6")]
    only = [each for each in rest if each[1] == "o.a"]

    def check() -> None:
        assert _messages(world, "M") == rest and _messages(world, "Four") == rest[2:] and not _messages(world, "Late")
        assert _messages(world, "OnlyA") == only and _messages(world, "Memory") == rest[-2:]
        mapped = [(sequence, subject.replace("o.a", "n.a"), text) for sequence, subject, text in rest]
        assert _messages(world, "Mapped") == mapped
        assert _messages(world, "MappedA") == [each for each in mapped if each[1] == "n.a"]
        info = world.api("STREAM.INFO.M")
        assert info["state"].get("num_deleted", 0) == len(range(info["state"]["last_seq"])) - len(rest)
        assert info["mirror"]["lag"] == 0 and "error" not in info["mirror"]

    check()
    original, copy = (world.server.account.streams[name].store.read(4) for name in ("O", "M"))
    assert original is not None and copy is not None
    # What was expected of the origin stays behind.
    assert copy._replace(header=b"") == original._replace(header=b"")
    assert copy.header == b"NATS/1.0\r\nX: y\r\nNats-Msg-Id: i\r\n\r\n"
    for again in (world.crash, world.restart):
        again()
        world.create("Memory", mirror={"name": "O"}, storage="memory", max_msgs=2)
        world.settle()
        # Late has its time to wait for anew, as it has nothing.
        check()
        world.publish("o.a", b"more")
        world.settle()
        rest.append((rest[-1][0] + 1, "o.a", "more"))
        only.append(rest[-1])
        finished(purge(world.server.account.streams["Late"], (), 0, 0))
        check()
    # What goes from the origin stays in the mirror, and that is asked when the origin is gone.
    world.api("STREAM.PURGE.O")
    world.api("STREAM.DELETE.O")
    world.settle()
    assert _messages(world, "M") == rest
    assert world.api("STREAM.INFO.M")["mirror"]["error"]["err_code"] == 10059
    header, payload = world.api("DIRECT.GET.O", {"seq": 4})
    assert payload == b"4" and b"Nats-Stream: " in header and b"Nats-Stream: O" not in header


def test_a_mirror_waits_for_its_origin_and_can_become_a_stream_of_its_own() -> None:
    world = World()
    world.create("M", mirror={"name": "O"})
    world.settle()
    assert world.api("STREAM.INFO.M")["mirror"]["error"]["err_code"] == 10059
    world.create("O", subjects=["o"])
    world.publish("o", b"1")
    world.settle()
    assert _messages(world, "M") == [(1, "o", "1")] and world.ask("M", b"x") is None
    world.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m"]})
    world.publish("o", b"2")
    world.publish("m", b"own")
    world.settle()
    assert _messages(world, "M") == [(1, "o", "1"), (2, "m", "own")]


def test_sources_go_on_where_they_were(tmp_path: Path) -> None:
    world = World(tmp_path)
    _fill(world)
    world.create("P", subjects=["p"])
    world.publish("p", b"p1", Nats_Msg_Id="i")
    sources: list[dict[str, Any]] = [
        {"name": "O", "opt_start_seq": 3, "subject_transforms": [{"src": "o.a", "dest": "n.a"}]},
        {"name": "O", "filter_subject": "o.b"},
        {"name": "P"},
    ]
    world.create("S", subjects=["s"], sources=sources)
    world.settle()
    expected = {("n.a", "3"), ("n.a", "5"), ("o.b", "4"), ("o.b", "6"), ("p", "p1")}

    def check() -> None:
        found = _messages(world, "S")
        assert [each[0] for each in found] == list(range(1, len(found) + 1))
        assert {each[1:] for each in found} == expected and len(found) == len(expected)
        assert [each["lag"] for each in world.api("STREAM.INFO.S")["sources"]] == [0, 0, 0]

    check()
    marks = [
        next(
            line
            for line in world.server.account.streams["S"].store.read(each).header.split(b"\r\n")
            if b"Source" in line
        )
        for each in range(1, 6)
    ]
    assert sorted(marks) == [
        b"Nats-Stream-Source: " + text
        for text in (b"O 3 o.a n.a o.a", b"O 4 o.b > o.b", b"O 5 o.a n.a o.a", b"O 6 o.b > o.b", b"P 1 > > p")
    ]
    for i, again in enumerate((world.crash, world.restart, world.settle)):
        again()
        for subject, copied in (("o.a", "n.a"), ("o.b", "o.b"), ("p", "p"), ("s", "s")):
            world.publish(subject, b"%d" % (10 + i))
            expected.add((copied, str(10 + i)))
        world.settle()
        check()
    # A source that comes back knows what it has copied; one with another filter starts over.
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": sources[:1]})
    world.publish("p", b"later")
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": sources})
    world.settle()
    expected.add(("p", "later"))
    check()
    sources[2] = {"name": "P", "filter_subject": "p"}
    before = len(_messages(world, "S"))
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": sources})
    world.settle()
    assert len(_messages(world, "S")) == before + 5


def test_what_a_work_queue_has_moves_when_it_is_safe(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("W", subjects=["w"], retention="workqueue")
    world.publish("w", b"1")
    world.create("S", sources=[{"name": "W"}])
    world.settle()
    assert not _messages(world, "W") and [each[2] for each in _messages(world, "S")] == ["1"]
    flush = MessageBlock.flush

    def fail(block: MessageBlock) -> None:
        if "/S/" in str(block.path):
            raise StorageError("no space")
        flush(block)

    with mock.patch.object(MessageBlock, "flush", fail):
        world.publish("w", b"2")
        for _ in range(3):
            world.server.commit()
        assert [each[2] for each in _messages(world, "W")] == ["2"]
    world.pass_time(3_000_000_000)
    assert not _messages(world, "W") and [each[2] for each in _messages(world, "S")] == ["1", "2"]


@pytest.mark.parametrize("again", [World.crash, World.restart])
def test_work_of_a_new_stream_is_not_taken_for_what_was_copied_from_the_old_one(work: Path, again: Any) -> None:
    world = World(work)
    world.create("S", sources=[{"name": "O"}])
    for messages, left in ((3, 0), (2, 2)):
        world.create("O", subjects=["o"], retention="workqueue")
        for _ in range(messages):
            world.publish("o")
            world.settle()
        world.pass_time(5_000_000_000)
        assert world.state("O")["messages"] == left
        if not left:
            world.api("STREAM.DELETE.O")
    again(world)
    world.pass_time(5_000_000_000)
    assert (world.state("O")["messages"], world.state("S")["messages"]) == (2, 3)


def test_a_full_stream_copies_on_when_there_is_room() -> None:
    world = World()
    _fill(world)
    world.create("S", sources=[{"name": "O"}], discard="new", max_msgs=2)
    world.create("Small", sources=[{"name": "O"}], max_msg_size=3)
    world.settle()
    assert len(_messages(world, "S")) == 2 and world.api("STREAM.INFO.S")["sources"][0]["lag"] == 3
    # Its header is too large for each.
    assert not _messages(world, "Small") and world.api("STREAM.INFO.Small")["sources"][0]["lag"] == 0
    world.api("STREAM.PURGE.S")
    world.pass_time(1_500_000_000)
    assert [each[2] for each in _messages(world, "S")] == ["4", "5"]


def _all_gone(world: World) -> None:
    world.api("STREAM.PURGE.S")


def _purged_by_subject(world: World) -> None:
    world.api("STREAM.PURGE.S", {"filter": "o.*"})


def _erased(world: World) -> None:
    for each in reversed(_messages(world, "S")):
        world.api("STREAM.MSG.DELETE.S", {"seq": each[0]})


def _last_erased(world: World) -> None:
    world.api("STREAM.MSG.DELETE.S", {"seq": 5})


def _done(world: World) -> None:
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    for reply, _, _ in world.pull("S", "c", {"batch": 9, "no_wait": True})[:5]:
        world.ask(reply, b"+ACK")


def _too_old(world: World) -> None:
    world.pass_time(20_000_000_000)


def _rolled_up(world: World) -> None:
    world.publish("own", b"", Nats_Rollup="all")
    world.api("STREAM.MSG.DELETE.S", {"seq": 6})


def _made_room(world: World) -> None:
    for _ in range(3):
        world.publish("own")
    world.api("STREAM.PURGE.S")


def _nothing(world: World) -> None:
    """Nobody wants what is copied."""


@pytest.mark.parametrize("again", [World.crash, World.restart])
@pytest.mark.parametrize(
    ("lose", "config"),
    [
        (_all_gone, {}),
        (_purged_by_subject, {}),
        (_erased, {}),
        (_last_erased, {}),
        (_done, {"retention": "workqueue"}),
        (_done, {"retention": "interest", "consumed": True}),
        (_nothing, {"retention": "interest"}),
        (_too_old, {"max_age": 10_000_000_000, "duplicate_window": 1_000_000_000}),
        (_rolled_up, {"allow_rollup_hdrs": True}),
        (_made_room, {"max_msgs": 3}),
        (_made_room, {"max_msgs_per_subject": 1}),
    ],
)
def test_what_was_copied_and_is_gone_is_not_copied_again(work: Path, lose: Any, config: Any, again: Any) -> None:
    world = World(work)
    _fill(world)
    config = dict(config)
    consumed = config.pop("consumed", False)
    world.create("S", subjects=["own"], sources=[{"name": "Later"}], **config)
    if consumed:
        world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["own"], "sources": [{"name": "O"}], **config})
    world.settle()
    assert world.api("STREAM.INFO.S")["sources"][0]["lag"] == 0
    lose(world)
    before = _messages(world, "S"), world.state("S")["first_seq"], world.state("S")["last_seq"]
    again(world)
    world.settle()
    assert (_messages(world, "S"), world.state("S")["first_seq"], world.state("S")["last_seq"]) == before
    world.consumer("S", "d", durable_name="d", ack_policy="explicit")
    world.publish("o.a", b"new")
    world.settle()
    assert world.state("S")["last_seq"] == before[-1] + 1
    again(world)
    world.settle()
    assert world.state("S")["last_seq"] == before[-1] + 1


@pytest.mark.parametrize("again", [World.crash, World.restart])
def test_a_limit_of_subjects_forgets_no_copy_in_any_block(work: Path, again: Any) -> None:
    with mock.patch.object(file_stream, "BLOCK_SIZE", 100):
        world = World(work)
        world.create("O", subjects=["o"])
        sources = [{"name": "O", "subject_transforms": [{"src": "o", "dest": "own"}]}]
        world.create("S", subjects=["own"], sources=sources)
        for subject in ("o", "own"):
            for _ in range(3):
                world.publish(subject, bytes(60))
                world.settle()
        world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["own"], "sources": sources, "max_msgs_per_subject": 1})
        again(world)
        world.settle()
        assert (world.state("S")["first_seq"], world.state("S")["last_seq"]) == (6, 6)
        world.publish("o", b"new")
        world.settle()
        assert world.state("S")["last_seq"] == 7


def test_copies_that_are_lost_with_the_end_of_a_file_come_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    _fill(world)
    world.create("S", sources=[{"name": "O"}], max_msgs=2)
    world.settle()
    world.restart()
    store = world.server.account.streams["S"].store
    world.place.close()
    [block] = (tmp_path / "jetstream/$G/streams/S/msgs").glob("*.blk")
    found = store.contents.locate(5)
    assert found is not None
    block.write_bytes(block.read_bytes()[: found[0].places[found[1]]])
    for path in (tmp_path / "jetstream/$G/streams/S/msgs").glob("*.blk"):
        assert path == block
    world.begin()
    world.settle()
    assert [each[2] for each in _messages(world, "S")] == ["5", "6"]
    assert world.state("S")["last_seq"] == 5


def test_damage_to_what_is_known_of_sources_is_no_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    _fill(world)
    world.create("S", sources=[{"name": "O"}])
    world.settle()
    world.restart()
    path = tmp_path / "jetstream/$G/streams/S/sources.db"
    good = path.read_bytes()
    for data in (b"", good[:-3], b"\x02" + good[1:], good + b"x", bytes([255]) * len(good)):
        world.server.stop()
        path.write_bytes(data)
        world.begin()
        world.settle()
        assert len(_messages(world, "S")) == 5
