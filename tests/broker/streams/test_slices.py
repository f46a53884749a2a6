"""Requests that look at much: done a little at a time, while messages come, streams go, and others ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.stores.streams import contents
from broker.streams import consumer, purge, server, stream_limits, streaminfo
from broker.streams.api import changed_stream
from stantools.nats import subjecttree
from tests.broker.streams.test_transfers import snapshot
from tests.broker.streams.world import API, World

ASKED = b"_INBOX.asked"


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is a slice of its own."""
    monkeypatch.setattr(server, "_TIME_SLICE", 0.0)
    for module in (purge, stream_limits):
        monkeypatch.setattr(module, "STEP", 3)
    for module in (contents, consumer, streaminfo, subjecttree):
        monkeypatch.setattr(module, "STEP", 2)


def begin(world: World, call: str, body: Any = b"") -> None:
    """Sends a request whose answer is waited for later."""
    world.bus.present.add(ASKED)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    world.bus.send(f"{API}{call}".encode(), data, ASKED)


def steps(world: World) -> Iterator[int]:
    """Commits until nothing is to be done; yields the number of each commit, after it."""
    number = 0
    while world.wishes.commit:
        world.wishes.commit = False
        world.server.commit()
        number += 1
        yield number


def answers(world: World) -> list[Any]:
    """What the requests were answered."""
    found = [payload for to, _, payload, _, _ in world.bus.said if to == ASKED]
    return [json.loads(each) for each in found]


@pytest.fixture(params=("memory", "file"))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    world = World(tmp_path if request.param == "file" else None)
    world.create("S", subjects=["s.>"], storage=request.param, allow_direct=True, allow_rollup_hdrs=True)
    for number in range(60):
        world.publish(f"s.{number % 3}.{number}", b"%d" % number)
    world.bus.said.clear()
    return world


@pytest.mark.parametrize("body", [{"filter": "s.1.*"}, {"filter": "s.*.*", "seq": 31}, {"seq": 41}, {"keep": 7}])
def test_a_purge_takes_what_was_there_and_leaves_what_comes(world: World, body: dict[str, Any]) -> None:
    def goes(sequence: int) -> bool:
        return (
            (body.get("filter") != "s.1.*" or sequence % 3 == 2)
            and (not body.get("seq") or sequence < body["seq"])
            and (not body.get("keep") or sequence <= 53)
        )

    begin(world, "STREAM.PURGE.S", body)
    for number in steps(world):
        if number < 5:
            world.bus.send(b"s.1.new", b"x")
    [answer] = answers(world)
    left = {sequence for sequence in range(1, 61) if not goes(sequence)} | {61, 62, 63, 64}
    assert answer["purged"] == 60 - len(left) + 4
    assert {each for each in range(1, 65) if world.server.account.streams["S"].store.contents.locate(each)} == left


def test_changes_of_a_stream_come_one_after_the_other(world: World) -> None:
    """A request to delete the stream waits for the purge; a question does not, and learns that the stream is gone."""
    begin(world, "STREAM.PURGE.S", {"filter": "s.1.*"})
    begin(world, "STREAM.INFO.S", {"subjects_filter": "s.*.*"})
    begin(world, "STREAM.DELETE.S")
    for _ in steps(world):
        pass
    purged, *_ = found = answers(world)
    assert purged["purged"] == 20
    assert {each["type"].rpartition(".")[2] for each in found} == {
        "stream_purge_response", "stream_info_response", "stream_delete_response"
    }  # fmt: skip
    begin(world, "STREAM.INFO.S")
    list(steps(world))
    assert answers(world)[-1]["error"]["err_code"] == 10059


def test_a_question_whose_stream_goes_meanwhile_is_answered_that_there_is_none(world: World) -> None:
    world.bus.present.add(b"_OTHER.x")
    begin(world, "STREAM.INFO.S", {"subjects_filter": "s.*.*"})
    world.server.commit()
    world.bus.send(f"{API}STREAM.DELETE.S".encode(), b"", b"_OTHER.x")
    list(steps(world))
    assert [each["error"]["err_code"] for each in answers(world)] == [10059]


def test_a_question_whose_client_goes_is_given_up(world: World) -> None:
    begin(world, "STREAM.INFO.S", {"subjects_filter": "s.*.*"})
    world.bus.go(ASKED)
    count = len(list(steps(world)))
    assert not answers(world) and count < 5 and not world.server.requests.busy


@pytest.mark.parametrize("policy", ["all", "last", "new", "last_per_subject"])
def test_a_consumer_that_is_made_meanwhile_misses_nothing(world: World, policy: str) -> None:
    config = {"deliver_policy": policy, "ack_policy": "explicit", "durable_name": "c"}
    filters = ["s.0.*", "s.1.*", "s.x.*"]
    begin(world, "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {**config, "filter_subjects": filters}})
    for number in steps(world):
        if number < 8:
            world.bus.send(b"s.x.%d" % (number % 2), b"new%d" % number)
            world.bus.send(b"s.1.1", b"new%d" % number)
    [answer] = answers(world)
    assert "error" not in answer
    after = world.server.account.streams["S"].store.contents.last
    world.publish("s.x.9", b"last")
    got = [payload for _, payload, _ in world.pull("S", "c", {"batch": 200, "no_wait": True}) if payload]
    assert got[-1] == b"last" and len(got) == len(set(got)) if policy in ("last", "new") else b"last" in got
    if policy == "all":
        assert len(got) == 40 + after - 60 + 1
    if policy == "last_per_subject":
        # What came since is delivered, and of every other subject the last one.
        assert {b"%d" % number for number in range(60) if number % 3 < 2} - {b"1"} <= set(got)
        assert b"new7" in got


def test_a_roll_up_is_acknowledged_when_all_is_gone(world: World) -> None:
    for number in range(40):
        world.publish("s.a", b"%d" % number)
    world.publish("s.b", b"stays")
    world.bus.said.clear()
    world.bus.present.add(ASKED)
    world.bus.send(b"s.a", b"new", ASKED, b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n")
    seen = []
    for _ in steps(world):
        left = world.server.account.streams["S"].store.contents.subjects[b"s.a"].count
        seen.append((left, len(answers(world))))
    assert seen[-1] == (1, 1) and all(left == 1 for left, answered in seen if answered)
    assert len({left for left, _ in seen}) > 5
    assert answers(world)[0]["seq"] == 102
    assert world.state("S")["subjects"]["s.b"] == 1
    world.publish("s.a", b"again")
    assert world.publish("s.c", b"all", Nats_Rollup="all")["seq"] == 104
    assert world.state("S")["messages"] == 1


def test_lists_and_subjects_are_whole(world: World) -> None:
    expected = {f"s.{number % 3}.{number}": 1 for number in range(60)}
    assert world.state("S")["subjects"] == expected
    found = world.api("STREAM.INFO.S", {"subjects_filter": "s.2.*", "offset": 5})
    assert list(found["state"]["subjects"]) == sorted(name for name in expected if name.startswith("s.2."))[5:]
    for number in range(12):
        world.create(f"T{number}", subjects=[f"t{number}.>"], storage="memory")
        world.consumer("S", f"c{number}", ack_policy="explicit")
    assert len(world.api("STREAM.LIST")["streams"]) == 13
    assert len(world.api("CONSUMER.LIST.S")["consumers"]) == 12
    assert world.api("STREAM.NAMES", {"subject": "*.x"})["total"] == 13
    assert world.api("STREAM.NAMES", {"subject": "t7.x"})["streams"] == ["T7"]
    world.api("STREAM.DELETE.T7")
    assert world.api("STREAM.NAMES", {"subject": "t7.x"})["streams"] is None


def test_a_stream_that_is_made_meanwhile_takes_the_subjects_of_another(world: World) -> None:
    """Two clients make streams at the same time whose subjects overlap: one of them is refused."""
    world.bus.present.add(b"_OTHER.x")
    begin(world, "STREAM.CREATE.A", {"name": "A", "storage": "memory", "subjects": [f"a.{n}" for n in range(30)]})
    body = {"name": "B", "storage": "memory", "subjects": [f"*.{n}" for n in range(29, 60)]}
    world.bus.send(f"{API}STREAM.CREATE.B".encode(), json.dumps(body).encode(), b"_OTHER.x")
    list(steps(world))
    other = [json.loads(payload) for to, _, payload, _, _ in world.bus.said if to == b"_OTHER.x"]
    assert sorted("error" in each for each in (*answers(world), *other)) == [False, True]


@pytest.mark.parametrize(
    ("call", "stream_changed"),
    [
        (b"STREAM.CREATE.S", b"S"),
        (b"STREAM.MSG.DELETE.S", b"S"),
        (b"STREAM.MSG.GET.S", b""),
        (b"STREAM.INFO.S", b""),
        (b"STREAM.LIST", b""),
        (b"INFO", b""),
        (b"CONSUMER.CREATE.S", b"S"),
        (b"CONSUMER.CREATE.S.c.a.b", b"S"),
        (b"CONSUMER.DURABLE.CREATE.S.c", b"S"),
        (b"CONSUMER.DELETE.S.c", b"S"),
        (b"CONSUMER.LEADER.STEPDOWN.S.c", b"S"),
        (b"CONSUMER.INFO.S.c", b""),
        (b"CONSUMER.MSG.NEXT.S.c", b""),
        (b"DIRECT.GET.S.a", b""),
        (b"CONSUMER.CREATE", b""),
    ],
)
def test_which_stream_a_request_changes(call: bytes, stream_changed: bytes) -> None:
    assert changed_stream(call) == stream_changed


def test_lower_limits_take_out_messages_a_few_at_a_time(world: World) -> None:
    for number in range(60):
        world.publish(f"s.{number % 3}.{number}", b"again")
    world.bus.said.clear()
    config = world.api("STREAM.INFO.S")["config"]
    begin(world, "STREAM.UPDATE.S", {**config, "max_msgs_per_subject": 1})
    left = []
    for number in steps(world):
        left.append(world.server.account.streams["S"].store.contents.messages)
        if number < 5:
            world.bus.send(b"s.0.0", b"new")
    assert "error" not in answers(world)[0]
    assert left[-1] == 60 and len(set(left)) > 2
    begin(world, "STREAM.UPDATE.S", {**config, "max_msgs_per_subject": 1, "max_msgs": 7})
    list(steps(world))
    assert world.state("S")["messages"] == 7


def test_what_is_too_old_goes_a_few_at_a_time(world: World) -> None:
    """Also with lifetimes of messages: those that end in the same second are many."""
    storage = world.api("STREAM.INFO.S")["config"]["storage"]
    world.create("T", subjects=["t.>"], storage=storage, max_age=10**10, allow_msg_ttl=True)
    for number in range(30):
        world.publish(f"t.{number}", b"x", **({"Nats_TTL": "5s"} if number % 2 else {}))
    world.consumer("T", "c", ack_policy="explicit", durable_name="c")
    assert world.api("CONSUMER.INFO.T.c")["num_pending"] == 30
    world.pass_time(7 * 10**9)
    assert world.state("T")["messages"] == 15
    world.publish("t.new")
    world.pass_time(5 * 10**9)
    assert world.state("T")["messages"] == 1
    assert world.api("CONSUMER.INFO.T.c")["num_pending"] == 1
    assert world.server.requests.slices > 5


def test_a_source_that_is_added_to_a_large_stream_looks_for_its_copies_in_slices(world: World) -> None:
    """It was there before: what was copied then is not copied again."""
    storage = world.api("STREAM.INFO.S")["config"]["storage"]
    world.create("C", subjects=["c.>"], storage=storage, sources=[{"name": "S", "filter_subject": "s.*.7"}])
    world.settle()
    for number in range(500):
        world.bus.send(b"c.%d" % number, b"")
    config = world.api("STREAM.INFO.C")["config"]
    world.api("STREAM.UPDATE.C", {**config, "sources": []})
    before = world.server.requests.slices
    begin(world, "STREAM.UPDATE.C", config)
    for number in steps(world):
        if number < 5:
            world.bus.send(b"s.7.7", b"")  # what comes meanwhile is copied once
    assert "error" not in answers(world)[0] and world.server.requests.slices > before + 10
    world.settle()
    assert world.state("C")["messages"] == 1 + 500 + 4


def test_a_stream_with_a_filtered_source_begins_in_slices(world: World) -> None:
    before = world.server.requests.slices
    answer = world.create("C", storage="memory", sources=[{"name": "S", "filter_subject": "s.*.7"}])
    assert "error" not in answer
    world.settle()
    assert world.state("C")["messages"] == 1 and world.server.requests.slices > before + 10


@pytest.mark.parametrize("world", ["file"], indirect=True)
@pytest.mark.parametrize("taken", [False, True])
def test_a_restored_stream_loses_what_is_over_its_limits_a_few_at_a_time(world: World, taken: bool) -> None:
    """Nobody knows it before; if somebody has taken its subjects by then, it is refused, and nothing is left of it."""
    for number in range(60):
        world.publish(f"s.{number % 3}.{number}", b"again")
    archive = snapshot(world)
    assert world.api("STREAM.DELETE.S")["success"]
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "max_msgs_per_subject": 1}
    to = world.api("STREAM.RESTORE.S", {"config": config, "state": {}})["deliver_subject"]
    world.ask(to, archive)
    world.bus.present.add(ASKED)
    world.bus.send(to.encode(), b"", ASKED)
    account, slices = world.server.account, 0
    while not answers(world):
        while world.wishes.jobs:
            job, done = world.wishes.jobs.pop(0)
            done(job())
        world.wishes.commit = False
        world.server.commit()
        slices += world.server.requests.busy and not account.streams
        if taken and slices == 5:
            world.bus.send(f"{API}STREAM.CREATE.T".encode(), json.dumps({"name": "T", "subjects": ["s.1.*"]}).encode())
    assert slices > 10
    world.settle()
    if taken:
        assert "overlap" in answers(world)[0]["error"]["description"]
        assert [*account.streams] == ["T"]
        assert account.quota.used["file"] == account.streams["T"].counted_bytes
    else:
        assert "error" not in answers(world)[0]
        assert world.state("S")["messages"] == 60
        assert world.state("S")["first_seq"] == 61
