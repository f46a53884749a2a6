"""Limits that become lower, roll-ups, markers, and what a stream refuses: rules that random histories found wanting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.broker.streams.world import World

SECOND = 1_000_000_000
#: Lower limits, and which of four messages stay with `discard: new`, and with `old`.
LOWER: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "messages": ({"max_msgs": 2}, [1, 2, 3, 4], [3, 4]),
    "bytes": ({"max_bytes": 80}, [1, 2, 3, 4], [3, 4]),
    "subject": ({"max_msgs_per_subject": 1}, [3, 4], [3, 4]),
    "both": ({"max_msgs": 1, "max_msgs_per_subject": 1}, [3, 4], [4]),
}


def _sequences(world: World, name: str = "S") -> list[int]:
    contents = world.server.account.streams[name].store.contents
    return [each for each in range(1, contents.last + 1) if contents.locate(each) is not None]


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
@pytest.mark.parametrize("discard", ["new", "old"])
@pytest.mark.parametrize("limit", LOWER)
def test_lower_limits_take_nothing_from_a_stream_that_refuses_new_messages(
    tmp_path: Path, limit: str, discard: str, retention: str
) -> None:
    lower, with_new, with_old = LOWER[limit]
    world = World(tmp_path)
    base = {"subjects": ["s.*"], "discard": discard, "retention": retention}
    world.create("S", **base)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    for i in range(4):
        world.publish(f"s.{i % 2}", b"x")
    world.api("STREAM.UPDATE.S", {"name": "S", **base, **lower})
    expected = with_new if discard == "new" else with_old
    assert _sequences(world) == expected
    for again in (world.restart, world.crash):
        again()
        assert _sequences(world) == expected
    if discard == "new" and "max_msgs" in lower:
        assert world.publish("s.9", b"x")["error"]["err_code"] == 10077
    # One that is told to discard old ones does so.
    world.api("STREAM.UPDATE.S", {"name": "S", **base, **lower, "discard": "old"})
    assert _sequences(world) == with_old


def test_a_message_to_a_pattern_replaces_those_of_all_its_subjects() -> None:
    world = World()
    world.create("S", subjects=["s.>"], allow_rollup_hdrs=True)
    for subject in ("s.a", "s.b", "s.a.b", "s.a"):
        world.publish(subject, b"x")
    world.publish("s.*", b"", Nats_Rollup="sub")
    assert _sequences(world) == [3, 5]
    world.publish("s.>", b"", Nats_Rollup="sub")
    assert _sequences(world) == [6]


@pytest.mark.parametrize("refusing", [False, True], ids=["oldest goes", "refused"])
def test_in_a_full_stream_a_roll_up_needs_a_full_subject(refusing: bool) -> None:
    world = World()
    limits = {"max_msgs": 2, "max_msgs_per_subject": 1, "discard_new_per_subject": refusing}
    world.create("S", subjects=["s.*"], allow_rollup_hdrs=True, discard="new", **limits)
    world.publish("s.a", b"x")
    assert ("error" in world.publish("s.a", b"x")) == refusing
    first = world.publish("s.a", b"x", Nats_Rollup="sub")["seq"]
    assert world.publish("s.b", b"x")["seq"] == first + 1
    # The message that it replaces makes room for it, as for any other.
    assert world.publish("s.a", b"x", Nats_Rollup="sub")["seq"] == first + 2
    assert world.publish("s.c", b"x", Nats_Rollup="sub")["error"]["err_code"] == 10077
    assert world.publish("s.c", b"x", Nats_Rollup="all")["error"]["err_code"] == 10077
    assert _sequences(world) == [first + 1, first + 2]
    assert world.publish("s.b", b"x", Nats_Rollup="all")["seq"] == first + 3
    assert _sequences(world) == [first + 3]


def test_what_marks_the_end_of_a_subject_ends_without_a_mark(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], max_age=2 * SECOND, subject_delete_marker_ttl=30 * SECOND)
    world.publish("s.a", b"x")
    world.pass_time(3 * SECOND)
    assert _sequences(world) == [2]
    world.restart()
    world.pass_time(10 * SECOND)
    assert not _sequences(world) and world.state("S")["last_seq"] == 2


@pytest.mark.parametrize("plain", [1, 3])
def test_a_message_without_an_id_is_the_last_one_too(tmp_path: Path, plain: int) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    for again in (lambda: None, world.crash):
        assert world.publish("s", b"x", Nats_Msg_Id="a" * plain)["seq"]
        assert world.publish("s", b"x", Nats_Expected_Last_Msg_Id="a" * plain)["seq"]
        world.publish("s", b"x", Nats_Msg_Id="b" * plain)
        world.bus.send_together([(b"s", b"", b"", b"x")] * plain)
        world.settle()
        again()
        assert world.publish("s", b"x", Nats_Expected_Last_Msg_Id="b" * plain)["error"]["err_code"] == 10070
        world.pass_time(200 * SECOND)


@pytest.mark.parametrize("option", ["allow_atomic", "allow_batched", "allow_msg_counter", "allow_msg_schedules"])
def test_options_of_later_versions_are_refused_by_name(option: str) -> None:
    world = World()
    assert option in world.create("S", **{option: True})["error"]["description"]
    assert "error" not in world.create("S", **{option: False})
    error = world.api("STREAM.UPDATE.S", {"name": "S", option: True})["error"]
    assert error["err_code"] == 10052 and option in error["description"]
    assert "persist_mode" in world.create("P", persist_mode="async")["error"]["description"]
    assert "error" not in world.create("P", persist_mode="default")


def test_a_queue_checks_the_policies_of_a_new_consumer_only() -> None:
    world = World()
    world.create("S", subjects=["s.*"], retention="workqueue", max_consumers=1)
    wrong = [{"ack_policy": "all"}, {"ack_policy": "explicit", "deliver_policy": "new"}]

    def codes(name: str, action: str) -> list[int]:
        asked = ({"stream_name": "S", "action": action, "config": {"durable_name": name, **each}} for each in wrong)
        return [world.api(f"CONSUMER.CREATE.S.{name}", each)["error"]["err_code"] for each in asked]

    assert codes("c", "update") == [10149, 10149]
    assert codes("c", "") == codes("c", "create") == [10098, 10101]
    assert "error" not in world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    assert codes("c", "") == codes("c", "update") == [10012, 10012]
    assert codes("c", "create") == [10148, 10148]
    assert codes("d", "") == [10026, 10026]


def test_the_first_of_several_mistakes_is_answered() -> None:
    world = World()
    world.create("S", subjects=["s"], max_msg_size=150)
    mistakes: list[tuple[dict[str, str], int]] = [
        ({"Nats_Batch_Id": "1"}, 10174),
        ({"Nats_Incr": "1"}, 10168),
        ({"Nats_Expected_Stream": "x"}, 10060),
        ({"Nats_TTL": "10"}, 10166),
        ({"Nats_Expected_Last_Subject_Sequence": "9"}, 10071),
        ({"Nats_Schedule": "@at 2030-01-01T00:00:00Z"}, 10188),
        ({"Nats_Stream_Source": "a 1"}, 10227),
        ({"Nats_Expected_Last_Msg_Id": "z"}, 10070),
        ({"Nats_Rollup": "sub"}, 10111),
        ({"Nats_TTL": "x"}, 10165),
    ]
    for row, (first, number) in enumerate(mistakes):
        for other, _ in mistakes[row:]:
            assert world.publish("s", b"", **{**other, **first})["error"]["err_code"] == number
        assert world.publish("s", b"x" * 200, **first)["error"]["err_code"] == 10054


def test_a_request_that_has_expired_gets_that_answer() -> None:
    world = World()
    world.create("S", subjects=["s"])
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    world.publish("s", b"x")
    for expires in (-1, -(10**9), -(1 << 63)):
        for more in ({}, {"no_wait": True}):
            [(_, _, status)] = world.pull("S", "c", {"batch": 1, "expires": expires, **more})
            assert status == "408 Request Timeout"
    assert world.api("CONSUMER.INFO.S.c")["num_waiting"] == 0
    world.api("CONSUMER.PAUSE.S.c", {"pause_until": "2100-01-01T00:00:00Z"})
    [(_, _, status)] = world.pull("S", "c", {"batch": 1, "no_wait": True})
    assert status == "404 No Messages"


def test_what_a_limit_takes_with_its_subject_does_not_count_as_pending() -> None:
    world = World()
    world.create("S", subjects=["s.*"], max_msgs=1)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", filter_subjects=["s.a", "s.b"])
    for subject, pending in (("s.a", 1), ("s.c", 0), ("s.b", 1), ("s.a", 1), ("s.c", 0)):
        world.publish(subject, b"x")
        assert world.api("CONSUMER.INFO.S.c")["num_pending"] == pending


def test_after_a_purge_a_consumer_stands_behind_it_and_after_limits_it_does_not() -> None:
    world = World()
    world.create("S", subjects=["s.*"], max_msgs=5)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    world.consumer("S", "other", durable_name="other", ack_policy="explicit", filter_subject="t")
    for _ in range(30):
        world.publish("s.a", b"x")

    def positions(name: str) -> tuple[int, int]:
        info = world.api(f"CONSUMER.INFO.S.{name}")
        return info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]

    assert positions("c") == (0, 0)
    world.api("STREAM.PURGE.S", {"filter": "s.b"})
    assert positions("other") == (0, 0)
    world.api("STREAM.PURGE.S", {"seq": 28})
    assert positions("c") == (27, 27)
    assert [reply.split(".")[5] for reply, _, _ in world.pull("S", "c", {"batch": 5, "no_wait": True})[:3]] == [
        "28", "29", "30",
    ]  # fmt: skip


@pytest.mark.parametrize("again", [World.restart, World.crash])
def test_a_consumer_that_begins_beyond_the_end_still_does_after_a_start(tmp_path: Path, again: Any) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    world.consumer("S", "c", durable_name="c", deliver_policy="by_start_sequence", opt_start_seq=5)
    world.publish("s", b"1")
    world.pass_time(3 * SECOND)
    again(world)
    assert world.state("S")["last_seq"] == 1
    for sequence in range(2, 7):
        assert world.publish("s", b"x")["seq"] == sequence
    assert [each[0].split(".")[5] for each in world.pull("S", "c", b"2")] == ["5", "6"]


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_lower_limits_of_a_stream_come_before_those_of_its_subjects(tmp_path: Path, storage: str) -> None:
    world = World(tmp_path)
    config = {"subjects": ["s.*"], "storage": storage}
    world.create("S", **config)
    for each in "abccbbaccc":
        world.publish(f"s.{each}")
    world.api("STREAM.UPDATE.S", {"name": "S", **config, "max_msgs": 3, "max_msgs_per_subject": 1})
    assert _sequences(world) == [10]


def test_a_message_goes_for_the_limit_before_a_roll_up_makes_room(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], max_msgs=3, allow_rollup_hdrs=True)
    for each in "abb":
        world.publish(f"s.{each}")
    assert world.publish("s.b", Nats_Rollup="sub")["seq"] == 4
    assert _sequences(world) == [4]


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_the_oldest_message_of_a_full_subject_makes_room_for_one_that_is_no_larger(
    tmp_path: Path, storage: str
) -> None:
    world = World(tmp_path)
    config = {"subjects": ["s.*"], "storage": storage, "discard": "new", "max_msgs_per_subject": 1}
    world.create("S", **config)
    for subject in ("s.a", "s.b"):
        world.publish(subject, b"1234567890")
    world.api("STREAM.UPDATE.S", {"name": "S", **config, "max_bytes": world.state("S")["bytes"]})
    assert world.publish("s.a", b"12345678901")["error"]["description"] == "maximum bytes exceeded"
    assert world.publish("s.a", b"123456789")["seq"] == 3
    # That it makes room enough in all does not count.
    assert world.publish("s.a", b"1234567890")["error"]["err_code"] == 10077
    assert world.publish("s.b", b"1")["seq"] == 4


@pytest.mark.parametrize("discard", ["new", "old"])
@pytest.mark.parametrize("limits", [{"max_msgs": 1}, {"max_bytes": 60}, {"max_msgs_per_subject": 1}])
def test_what_no_consumer_wants_takes_no_room(tmp_path: Path, limits: dict[str, int], discard: str) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], retention="interest", discard=discard, allow_rollup_hdrs=True, **limits)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", filter_subject="s.a")
    assert world.publish("s.a", b"x")["seq"] == 1
    for sequence, headers in enumerate(({}, {"Nats_TTL": "x"}, {"Nats_TTL": "0"}, {"Nats_Msg_Id": "i"}), 2):
        assert world.publish("s.b", b"x", **headers)["seq"] == sequence
    assert _sequences(world) == [1]
    # All else is looked at, and replaces what it says.
    assert world.publish("s.b", b"x", Nats_TTL="60")["error"]["err_code"] == 10166
    assert world.publish("s.b", b"x", Nats_Msg_Id="i")["duplicate"]
    assert world.publish("s.b", b"x", Nats_Rollup="zork")["error"]["err_code"] == 10111
    assert world.publish("s.a", b"x", Nats_TTL="x")["error"]["err_code"] == 10165
    assert world.publish("s.b", b"x", Nats_Rollup="all")["seq"] == 6
    assert not _sequences(world)


def test_limits_of_consumers_are_for_those_without_acknowledgements_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"], consumer_limits={"max_ack_pending": 3})
    for policy in ("explicit", "none"):
        made = world.consumer("S", policy, durable_name=policy, ack_policy=policy)
        assert made["config"]["max_ack_pending"] == 3
    pushed = world.consumer("S", "p", durable_name="p", ack_policy="none", deliver_subject="to")
    assert pushed["error"]["err_code"] == 10082


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_a_consumer_that_has_all_there_is_says_so_even_if_it_may_have_no_more(batch: int) -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", max_ack_pending=1)
    world.publish("s", b"1")
    assert len(world.pull("S", "c", {"batch": 1, "no_wait": True})) == 1
    assert world.pull("S", "c", {"batch": batch, "no_wait": True}) == [("", b"", "404 No Messages")]
    world.publish("s", b"2")
    assert world.pull("S", "c", {"batch": batch, "no_wait": True}) == []


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize(
    ("others", "acknowledged", "left"),
    [
        ({}, 0, [1, 2, 3, 4]),
        ({"ack_policy": "explicit"}, 2, [3, 4]),
        ({"ack_policy": "explicit", "filter_subject": "s.b"}, 0, [1, 2, 3, 4]),
    ],
)
def test_what_was_for_a_consumer_in_memory_stays_after_a_start(
    tmp_path: Path, others: dict[str, Any], acknowledged: int, left: list[int], *, kill: bool
) -> None:
    """What another consumer was given and is done with goes."""
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], retention="interest")
    world.consumer("S", "m", durable_name="m", ack_policy="explicit", mem_storage=True)
    if others:
        world.consumer("S", "c", durable_name="c", **others)
    for _ in range(4):
        world.publish("s.a", b"x")
    for _ in range(acknowledged):
        [(reply, _, _)] = world.pull("S", "c", {"batch": 1, "no_wait": True})
        world.ask(reply, b"+ACK")
    world.pass_time(3_000_000_000)
    world.crash() if kill else world.restart()
    world.settle()
    assert _sequences(world) == left


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize(
    ("consumer", "acknowledged", "left"),
    [
        (None, [], []),
        ({"ack_policy": "explicit"}, [1, 3], [2, 4]),
        ({"ack_policy": "all"}, [2], [3, 4]),
        ({"ack_policy": "none"}, [], []),
        ({"ack_policy": "explicit", "deliver_policy": "new"}, [], []),
        ({"ack_policy": "explicit", "filter_subject": "s.b"}, [], [1, 2, 3, 4]),
    ],
)
def test_with_interest_from_now_on_all_goes_that_consumers_are_done_with(
    tmp_path: Path, storage: str, consumer: dict[str, Any] | None, acknowledged: list[int], left: list[int]
) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], storage=storage)
    for _ in range(4):
        world.publish("s.a", b"x")
    if consumer is not None:
        world.consumer("S", "c", durable_name="c", **consumer)
        replies = [reply for reply, _, status in world.pull("S", "c", {"batch": 4, "no_wait": True}) if not status]
        for sequence in acknowledged:
            world.ask(replies[sequence - 1], b"+ACK")
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.*"], "storage": storage, "retention": "interest"})
    assert _sequences(world) == left


def test_the_end_of_a_consumer_takes_nothing_below_its_floor(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], retention="interest")
    world.consumer("S", "m", durable_name="m", ack_policy="explicit", mem_storage=True)
    for _ in range(3):
        world.publish("s.a", b"x")
    world.restart()
    world.consumer("S", "new", durable_name="new", ack_policy="explicit", deliver_policy="new")
    world.consumer("S", "all", durable_name="all", ack_policy="explicit", filter_subject="s.b")
    world.api("CONSUMER.DELETE.S.new")
    assert _sequences(world) == [1, 2]
    world.api("CONSUMER.DELETE.S.all")
    assert not _sequences(world)


def test_with_interest_from_now_on_nothing_goes_that_is_still_to_be_copied(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"])
    world.create("C", sources=[{"name": "S"}], max_msgs=1, discard="new")
    for _ in range(4):
        world.publish("s.a", b"x")
    world.settle()
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.*"], "retention": "interest"})
    world.restart()
    assert _sequences(world)[-3:] == [2, 3, 4]
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    world.restart()
    assert _sequences(world)[-3:] == [2, 3, 4]
    world.api("STREAM.UPDATE.C", {"name": "C", "sources": [{"name": "S"}], "max_msgs": 9, "discard": "new"})
    world.settle()
    assert world.state("C")["messages"] == 4


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize("acknowledged", [(), (3,), (1, 3)])
def test_what_was_for_a_consumer_in_memory_stays_until_another_one_wants_less(
    tmp_path: Path, acknowledged: tuple[int, ...], *, kill: bool
) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], retention="interest")
    world.consumer("S", "m", durable_name="m", ack_policy="explicit", mem_storage=True)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", filter_subject="s.a")
    for subject in ("s.a", "s.b", "s.a", "s.b"):
        world.publish(subject, b"x")
    if acknowledged:
        replies = [reply for reply, _, status in world.pull("S", "c", {"batch": 2, "no_wait": True}) if not status]
        for sequence in acknowledged:
            world.ask(replies[sequence // 2], b"+ACK")
    world.pass_time(3 * SECOND)

    def again() -> list[int]:
        world.crash() if kill else world.restart()
        world.settle()
        return _sequences(world)

    # The consumer was given all up to 3, but 2 was not for it.
    left = [each for each in (1, 2, 3, 4) if each not in acknowledged]
    assert again() == left
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", filter_subject="s.a", description="x")
    assert _sequences(world) == left
    assert again() == left
    floor = world.api("CONSUMER.INFO.S.c")["ack_floor"]["stream_seq"]
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", filter_subject="s.c")
    assert _sequences(world) == [each for each in left if each < floor]


def test_with_interest_from_now_on_what_no_consumer_matches_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"])
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", filter_subject="s.b")
    for subject in ("s.a", "s.b", "s.a"):
        world.publish(subject, b"x")
    [(reply, _, _)] = world.pull("S", "c")
    world.ask(reply, b"+ACK")
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.*"], "retention": "interest"})
    assert _sequences(world) == [1, 3]
    world.restart()
    assert _sequences(world) == [1, 3]
