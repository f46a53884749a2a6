"""After a restart clients see of a stream what it had: what was removed stays so, damage costs as little as it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.broker.streams.world import World

SECOND = 1_000_000_000


def again(world: World, how: str) -> None:
    world.crash() if how == "kill" else world.restart()


def payloads(world: World, stream: str, last: int) -> dict[int, str]:
    found = {number: world.api(f"STREAM.MSG.GET.{stream}", {"seq": number}) for number in range(1, last + 1)}
    return {number: answer["message"].get("data", "") for number, answer in found.items() if "message" in answer}


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        ({"max_msgs_per_subject": 1}, 2),
        ({"max_msgs": 3}, 5),
        ({"max_bytes": 200}, 5),
        ({"max_age": 60 * SECOND, "duplicate_window": SECOND}, 5),
    ],
)
def test_what_a_limit_took_stays_away(tmp_path: Path, how: str, limits: dict[str, Any], removed: int) -> None:
    """Also when a later removal, or a wider limit, makes room for it."""
    world = World(tmp_path)
    world.create("S", subjects=["s.*"], **limits)
    for number in range(removed):
        world.publish("s.a", b"%d" % number * 30)
        world.pass_time(SECOND)
    if "max_age" in limits:
        world.pass_time(61 * SECOND)
    world.publish("s.b", b"stays")
    last = world.state("S")["last_seq"]
    for number in payloads(world, "S", last - 1):
        world.api("STREAM.MSG.DELETE.S", {"seq": number, "no_erase": True})
    expected = world.state("S")
    again(world, how)
    world.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.*"]})
    again(world, how)
    assert world.state("S") == expected
    assert list(payloads(world, "S", last)) == [last]
    world.server.stop()


@pytest.mark.parametrize("erase", [True, False])
def test_the_times_of_messages_are_found_when_the_last_one_was_deleted(tmp_path: Path, erase: bool) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"], max_age=60 * SECOND)
    world.publish("s", b"old")
    world.pass_time(40 * SECOND)
    for number in range(3):
        world.publish("s", b"young", Nats_Msg_Id=str(number))
    world.api("STREAM.MSG.DELETE.S", {"seq": 4, "no_erase": not erase})
    world.restart()
    assert world.publish("s", b"young", Nats_Msg_Id="1")["duplicate"]
    assert world.publish("s", b"more")["seq"] == 5
    world.pass_time(30 * SECOND)
    assert list(payloads(world, "S", 5)) == [2, 3, 5]
    world.server.stop()


def test_a_stream_that_cannot_be_opened_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("ONE", "TWO"):
        world.create(name, subjects=[name])
        world.publish(name, b"x")
    messages = tmp_path / "jetstream" / "$G" / "streams" / "ONE" / "msgs"
    world.server.stop()
    (messages / "1.key").write_bytes(b"a key")
    world.begin()
    assert world.state("TWO")["messages"] == 1
    assert "error" in world.api("STREAM.INFO.ONE")
    # Nor is it overwritten.
    assert "error" in world.create("ONE", subjects=["ONE"])
    world.server.stop()
    (messages / "1.key").unlink()
    world.begin()
    assert world.state("ONE")["messages"] == 1
    world.server.stop()


def with_a_damaged_consumer(place: Path) -> tuple[World, Path]:
    """A consumer with three of five messages acknowledged, whose file was cut between two runs; and that file."""
    world = World(place)
    world.create("S", subjects=["s"])
    for _ in range(5):
        world.publish("s", b"x")
    world.consumer("S", "reader", durable_name="reader", ack_policy="explicit")
    for acknowledgement, _, _ in world.pull("S", "reader", {"batch": 3}):
        world.ask(acknowledgement, b"+ACK")
    world.server.stop()
    meta = place / "jetstream" / "$G" / "streams" / "S" / "obs" / "reader" / "meta.inf"
    meta.write_bytes(meta.read_bytes()[:40])
    world.begin()
    return world, meta


def test_a_consumer_that_is_made_again_is_where_it_was(tmp_path: Path) -> None:
    world, _ = with_a_damaged_consumer(tmp_path)
    assert world.api("CONSUMER.NAMES.S")["consumers"] in ([], None)
    made = world.consumer("S", "reader", durable_name="reader", ack_policy="explicit")
    assert made["delivered"]["stream_seq"] == made["ack_floor"]["stream_seq"] == 3
    assert made["num_pending"] == 2
    world.restart()
    assert world.api("CONSUMER.INFO.S.reader")["num_pending"] == 2
    world.server.stop()


def test_a_consumer_that_cannot_be_made_again_keeps_its_place(tmp_path: Path) -> None:
    world, meta = with_a_damaged_consumer(tmp_path)
    # Nothing can take the place of a directory.
    blocked = meta.with_name(".meta.next")
    blocked.mkdir()
    refused = world.consumer("S", "reader", durable_name="reader", ack_policy="explicit")
    assert refused["error"]["code"] == 503
    assert world.api("CONSUMER.INFO.S.reader")["error"]["err_code"] == 10014
    blocked.rmdir()
    made = world.consumer("S", "reader", durable_name="reader", ack_policy="explicit")
    assert made["ack_floor"]["stream_seq"] == 3
    assert made["num_pending"] == 2
    world.server.stop()


@pytest.mark.parametrize(
    ("begins", "position"),
    [
        ({"deliver_policy": "new"}, 3),
        ({"deliver_policy": "last"}, 2),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 6}, 5),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 6, "filter_subject": "s.b"}, 5),
    ],
)
@pytest.mark.parametrize("ends", [["kill"], ["stop"], ["stop", "kill", "stop"]], ids=str)
def test_a_consumer_that_was_just_made_begins_where_it_was_made_for(
    tmp_path: Path, ends: list[str], begins: dict[str, Any], position: int
) -> None:
    """Not where it would begin if it was made after the restart; also where that is beyond the end of the stream."""
    world = World(tmp_path)
    world.create("S", subjects=["s.*"])
    for _ in range(3):
        world.publish("s.b")
    made = world.consumer("S", "reader", durable_name="reader", ack_policy="explicit", **begins)
    assert made["delivered"]["stream_seq"] == position
    for how in ends:
        assert world.publish("s.b")["seq"] <= 6
        again(world, how)
        assert world.api("CONSUMER.INFO.S.reader")["delivered"] == made["delivered"]
    last = world.state("S")["last_seq"]
    for number in range(last, 8):
        world.publish("s.b", b"%d" % (number + 1))
    came = [
        int(reply.split(".")[5]) for reply, _, _ in world.pull("S", "reader", {"batch": 20, "no_wait": True}) if reply
    ]
    assert came == list(range(position + 1, 9))
    world.server.stop()


@pytest.mark.parametrize(
    "config",
    [
        {
            "ack_policy": "explicit", "backoff": [SECOND, 2 * SECOND], "max_deliver": 3, "filter_subjects": ["s.a"],
            "priority_policy": "pinned_client", "priority_groups": ["A"], "priority_timeout": 7 * SECOND,
            "metadata": {"a": "b"}, "inactive_threshold": 60 * SECOND, "sample_freq": "50%", "max_batch": 4,
            "max_expires": 5 * SECOND, "max_bytes": 900, "max_waiting": 5, "description": "d", "headers_only": True,
        },
        {
            "deliver_subject": "d", "deliver_group": "g", "flow_control": True, "idle_heartbeat": SECOND,
            "rate_limit_bps": 9999, "deliver_policy": "by_start_sequence", "opt_start_seq": 2, "filter_subject": "s.b",
            "pause_until": "2100-01-01T00:00:00Z", "replay_policy": "original", "num_replicas": 1,
        },
    ],
    ids=["pull", "push"],
)  # fmt: skip
def test_a_consumer_keeps_its_whole_configuration(tmp_path: Path, config: dict[str, Any]) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.*"])
    request = {"stream_name": "S", "config": {"durable_name": "c", **config}}
    before = world.api("CONSUMER.CREATE.S.c", request)["config"]
    assert all(before[name] == value for name, value in config.items() if name != "metadata")
    world.restart()
    assert world.api("CONSUMER.INFO.S.c")["config"] == before
    world.server.stop()


def test_the_last_message_id_outlives_its_window(tmp_path: Path) -> None:
    """As in nats-server 2.15.1: after a restart it is that of the last stored message, if that has one."""
    world = World(tmp_path)
    world.create("S", subjects=["s"], duplicate_window=SECOND)
    header = {"Nats-Msg-Id": "one"}
    world.publish("s", **header)
    world.pass_time(2 * SECOND)
    world.restart()
    assert "wrong last msg ID: one" in str(world.publish("s", **{"Nats-Expected-Last-Msg-Id": "other"}))
    assert world.publish("s", **header, **{"Nats-Expected-Last-Msg-Id": "one"})["seq"] == 2
    assert world.publish("s")["seq"] == 3
    world.pass_time(2 * SECOND)
    world.restart()
    assert "error" in world.publish("s", **{"Nats-Expected-Last-Msg-Id": "one"})


def test_a_delete_marker_is_the_last_message_and_has_no_id(tmp_path: Path) -> None:
    """As in nats-server 2.15.1."""
    world = World(tmp_path)
    marked = {"max_age": 2 * SECOND, "allow_msg_ttl": True, "subject_delete_marker_ttl": 10 * SECOND}
    world.create("S", subjects=["s"], **marked)
    world.publish("s", **{"Nats-Msg-Id": "one"})
    world.pass_time(4 * SECOND)
    assert world.state("S")["last_seq"] == 2
    assert "error" in world.publish("s", **{"Nats-Expected-Last-Msg-Id": "one"})
