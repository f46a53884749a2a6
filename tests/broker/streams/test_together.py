"""Whether messages are stored and delivered together or one by one, others see the same."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.stores.interface import StorageError
from broker.stores.streams import file_stream
from broker.stores.streams.blocks import MessageBlock
from broker.stores.streams.memory import MemoryStream
from broker.streams import delivery, pubacks, server
from tests.broker.streams.world import API, World

SUBJECTS = (b"s.a", b"s.b", b"s.c.d")
SECOND = 1_000_000_000
#: More than there ever are at once.
NEVER = 1 << 30
TO = (b"_INBOX.me", b"_INBOX.you")

message = st.tuples(
    st.sampled_from(SUBJECTS),
    st.sampled_from((*TO, b"")),
    st.sampled_from((b"",) * 12 + (b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"))
    | st.integers(1, 30).map(lambda number: b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number),
    st.binary(max_size=60),
)
publishes = st.tuples(st.just("publish"), st.lists(message, min_size=1, max_size=12))
limits = st.fixed_dictionaries(
    {},
    optional={
        "max_msgs": st.integers(1, 20),
        "max_bytes": st.integers(100, 900),
        "max_msg_size": st.integers(10, 70),
        "max_msgs_per_subject": st.integers(1, 3),
        "discard_new_per_subject": st.booleans(),
        "discard": st.sampled_from(("old", "new")),
        "no_ack": st.booleans(),
        "duplicate_window": st.just(2 * SECOND),
        "allow_rollup_hdrs": st.just(True),
        "retention": st.sampled_from(("limits", "workqueue", "interest")),
        "subject_transform": st.just({"src": "s.a", "dest": "s.x"}),
        "republish": st.just({"src": "s.b", "dest": "again"}),
    },
)


def publish(world: World, messages: Any) -> None:
    world.bus.send_together(messages)
    world.settle()


THREES = [("publish", [(SUBJECTS[0], TO[0], b"", b"12345")] * 3)] * 3


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(("memory", "file")), limits, st.lists(publishes, max_size=8), st.booleans())
@example("memory", {"discard": "new", "max_msgs": 5}, THREES, False)
@example("memory", {"discard": "new", "max_bytes": 5 * MemoryStream.size_of(SUBJECTS[0], b"", b"12345")}, THREES, False)
@example("memory", {"discard": "new", "max_msgs_per_subject": 5, "discard_new_per_subject": True}, THREES, False)
def test_what_is_published_together(storage: str, config: dict[str, Any], todo: list[Any], crash: bool) -> None:
    said = []
    for few, answered in ((1, NEVER), (2, 1), (NEVER, NEVER)):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(file_stream, "BLOCK_SIZE", 400),
            mock.patch.object(server, "_MIN_BATCH", few),
            mock.patch.object(pubacks, "_FEW", answered),
        ):
            world = World(Path(folder) if storage == "file" else None)
            made = world.create("S", subjects=["s.>"], storage=storage, **config)
            world.bus.said.clear()
            for _, messages in todo:
                publish(world, messages)
                world.pass_time(SECOND)
            heard = list(world.bus.said)
            if crash and storage == "file":
                world.crash()
            kept = [] if "error" in made else [world.state("S")]
            for sequence in range(1, sum(len(each) for _, each in todo) + 1):
                kept.append(world.api("STREAM.MSG.GET.S", {"seq": sequence}))
            said.append((heard, kept))
            world.server.stop()
    assert said[0] == said[2]
    assert said[1] == said[2]


pulls = st.tuples(
    st.just("pull"),
    st.sampled_from(TO),
    st.fixed_dictionaries(
        {"batch": st.integers(1, 20), "expires": st.just(3 * SECOND)},
        optional={
            "no_wait": st.booleans(),
            "max_bytes": st.integers(60, 2000),
            "idle_heartbeat": st.just(SECOND),
        },
    ),
)
others = st.sampled_from(
    (("ack",), ("nak",), ("delete", 3), ("delete", 7), ("purge",), ("wait",), ("slow",), ("crash",), ("answer",))
)
consumers = st.fixed_dictionaries(
    {"ack_policy": st.sampled_from(("none", "explicit", "all"))},
    optional={
        "max_ack_pending": st.integers(1, 9),
        "filter_subject": st.sampled_from(("s.a", "s.*")),
        "deliver_policy": st.sampled_from(("all", "new", "last_per_subject")),
        "headers_only": st.booleans(),
        "max_deliver": st.integers(1, 3),
        "ack_wait": st.just(2 * SECOND),
        "replay_policy": st.sampled_from(("instant", "original")),
    },
)
pushed = st.fixed_dictionaries(
    {"deliver_subject": st.just(TO[0].decode())},
    optional={"flow_control": st.just(True), "idle_heartbeat": st.just(SECOND), "rate_limit_bps": st.just(4000)},
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(("memory", "file")),
    st.sampled_from(("limits", "workqueue")),
    consumers,
    st.none() | pushed,
    st.lists(st.one_of(publishes, pulls, pulls, others), max_size=14),
)
def test_what_is_delivered_together(
    storage: str, retention: str, config: dict[str, Any], push: dict[str, Any] | None, todo: list[Any]
) -> None:
    if push is not None and push.get("flow_control"):
        push = {**push, "idle_heartbeat": SECOND}
    if push is not None and config["ack_policy"] == "none":
        config = {name: value for name, value in config.items() if name != "max_ack_pending"}
    worlds = []
    for together in (True, False):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(file_stream, "BLOCK_SIZE", 700),
            mock.patch.object(delivery, "_FEW", 1),
            mock.patch("broker.streams.push_delivery._FIRST_WINDOW", 400),
            mock.patch("secrets.token_hex", lambda size: "0" * size),
        ):
            world = World(Path(folder) if storage == "file" else None)
            world.bus.together = together
            world.bus.present.update(TO)
            world.create("S", subjects=["s.>"], storage=storage, retention=retention)
            world.consumer("S", "c", durable_name="c", **config, **(push or {}))
            said: list[Any] = []
            for step in todo:
                world.bus.said.clear()
                play(world, step, storage, together)
                said.append((step, list(world.bus.said)))
                info = world.api("CONSUMER.INFO.S.c")
                said.append(
                    {name: info.get(name) for name in ("delivered", "ack_floor", "num_pending", "num_ack_pending")}
                )
            worlds.append(said)
            world.server.stop()
    assert worlds[0] == worlds[1]


def play(world: World, step: Any, storage: str, together: bool) -> None:
    match step:
        case "publish", messages:
            publish(world, messages)
        case "pull", to, body:
            world.bus.send(f"{API}CONSUMER.MSG.NEXT.S.c".encode(), json.dumps(body).encode(), to)
            world.settle()
        case (("ack" | "nak") as what,):
            for consumer in world.server.consumers.of(world.server.account.streams["S"]).values():
                for sequence, each in list(consumer.pending.items())[1::2]:
                    verb = b"-NAK" if what == "nak" else b""
                    world.bus.send(b"$JS.ACK.S.c.1.%d.%d.0.0" % (sequence, each.number), verb)
            world.settle()
        case "delete", sequence:
            world.api("STREAM.MSG.DELETE.S", {"seq": sequence})
        case ("purge",):
            world.api("STREAM.PURGE.S", {"keep": 3})
        case ("wait",):
            world.pass_time(SECOND)
        case ("slow",):
            world.bus.slow ^= {TO[0]}
        case ("crash",) if storage == "file":
            present, slow = world.bus.present, world.bus.slow
            world.crash()
            world.bus.present, world.bus.slow, world.bus.together = present, slow, together
            world.bus.come(TO[0])
            world.settle()
        case ("answer",):
            world.bus.send(b"$JS.FC.S.c.00", b"")
            world.settle()


def test_messages_that_are_delivered_together_are_read_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    world.bus.said.clear()
    publish(world, [(b"s", TO[0], b"", b"%d" % i) for i in range(600)])
    assert [json.loads(each[2])["seq"] for each in world.bus.said] == list(range(1, 601))
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    with mock.patch.object(MessageBlock, "read", side_effect=AssertionError("one by one")):
        found = world.pull("S", "c", {"batch": 600})
    assert [payload for _, payload, _ in found] == [b"%d" % i for i in range(600)]
    for row, (reply, _, _) in enumerate(found, 1):
        tokens = reply.split(".")
        assert tokens[:7] == ["$JS", "ACK", "S", "c", "1", str(row), str(row)] and tokens[8] == str(600 - row)


def test_a_damaged_message_is_skipped_among_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    publish(world, [(b"s", b"", b"", b"message %d" % i) for i in range(20)])
    block = next((tmp_path / "jetstream").rglob("1.blk"))
    data = block.read_bytes()
    block.write_bytes(data.replace(b"message 11", b"massage 11"))
    world.consumer("S", "c", durable_name="c", ack_policy="none")
    found = world.pull("S", "c", {"batch": 30, "no_wait": True})
    assert [payload for _, payload, said in found if not said] == [b"message %d" % i for i in range(20) if i != 11]


@pytest.mark.parametrize("count", [1, 9, 30])
@pytest.mark.parametrize("preview", [False, True])
def test_what_was_published_together_is_refused_together(tmp_path: Path, preview: bool, count: int) -> None:
    world = World(tmp_path, preview=preview)
    world.create("S", subjects=["s"])
    world.bus.said.clear()
    with mock.patch.object(MessageBlock, "flush", side_effect=StorageError("no space")):
        publish(world, [(b"s", TO[0], b"", b"%d" % i) for i in range(count)])
    errors = [json.loads(payload)["error"]["err_code"] for to, _, payload, _, _ in world.bus.said if to == TO[0]]
    assert errors == [10077] * count and not world.state("S")["messages"]
    world.bus.said.clear()
    publish(world, [(b"s", TO[0], b"", b"%d" % i) for i in range(9)])
    assert [json.loads(each[2])["seq"] for each in world.bus.said] == list(range(1, 10))


def test_the_only_message_of_a_full_block_is_deleted(tmp_path: Path) -> None:
    with mock.patch.object(file_stream, "BLOCK_SIZE", 60):
        world = World(tmp_path)
        world.create("S", subjects=["s"])
        assert world.publish("s", b"0123456789")["seq"] == 1
        # Its tombstone needs another block, so that the first one goes.
        assert world.api("STREAM.MSG.DELETE.S", {"seq": 1, "no_erase": True})["success"]
        assert world.publish("s", b"0123456789")["seq"] == 2
        world.crash()
        state = world.state("S")
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (1, 2, 2)
