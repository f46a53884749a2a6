"""Consumers in simulated time: against a simple model, and the rules that need a clock."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.streams import consumerconfig
from broker.streams.api_errors import RequestError
from stantools.notation import format_time
from stantools.streamfiles.stream_config import CONSUMER_MEMBERS
from tests.broker.streams.world import World

SECOND = 1_000_000_000
SUBJECTS = ("s.a", "s.b", "s.c")
PLACES = ("delivered", "ack_floor", "num_ack_pending", "num_pending", "num_redelivered")


class Model:
    """A consumer with explicit acknowledgements, and its stream, as sets."""

    def __init__(self, filters: tuple[str, ...], most: int) -> None:
        self.filters, self.most = filters, most
        self.messages: dict[int, str] = {}
        self.last = self.number = self.reached = 0
        #: By stream sequence: consumer sequence of the first delivery, deliveries.
        self.pending: dict[int, tuple[int, int]] = {}
        self.again: list[int] = []
        #: Stream sequence up to which all is acknowledged, as of the last acknowledgement of a first message.
        self.floor = 0

    def matching(self, above: int) -> list[int]:
        return [
            number
            for number, subject in sorted(self.messages.items())
            if number > above and (not self.filters or subject in self.filters)
        ]

    def deliver(self, count: int) -> list[tuple[int, int, int]]:
        """Stream sequence, consumer sequence, deliveries of what comes."""
        sent = []
        while len(sent) < count:
            if self.again:
                sequence = self.again.pop(0)
                first, deliveries = self.pending[sequence]
                self.pending[sequence] = (first, deliveries + 1)
            elif len(self.pending) < self.most and (found := self.matching(self.reached)):
                sequence = self.reached = found[0]
                self.pending[sequence] = (self.number + 1, 1)
            else:
                break
            self.number += 1
            sent.append((sequence, self.number, self.pending[sequence][1]))
        return sent

    def done(self, sequence: int) -> None:
        first = min(self.pending, default=0)
        self.pending.pop(sequence, None)
        if sequence == first:
            self.floor = min(self.pending, default=self.reached + 1) - 1
        if sequence in self.again:
            self.again.remove(sequence)

    def info(self) -> dict[str, Any]:
        lowest = min(self.pending, default=0)
        return {
            "delivered": self.number,
            "num_ack_pending": len(self.pending),
            "num_pending": len(self.matching(self.reached)),
            "num_redelivered": sum(1 for _, deliveries in self.pending.values() if deliveries > 1),
            "floor": (self.pending[lowest][0] - 1 if lowest else self.number, self.floor),
        }


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(SUBJECTS)),
        st.tuples(st.just("publish"), st.sampled_from(SUBJECTS)),
        st.tuples(st.just("pull"), st.integers(1, 4)),
        st.tuples(st.sampled_from(("ack", "nak", "term")), st.integers(-5, 20)),
        st.tuples(st.just("delete"), st.integers(1, 20)),
        st.tuples(st.just("purge"), st.integers(1, 20)),
        st.tuples(st.just("restart")),
    ),
    max_size=50,
)


FIVE = [("publish", f"s.{each}") for each in "abaca"]


@settings(max_examples=300)
@given(
    st.sampled_from(("memory", "file")),
    st.sampled_from(((), ("s.a",), ("s.a", "s.c"))),
    st.integers(1, 6),
    steps,
)
@example(
    "file", (), 6, [*FIVE, ("pull", 4), ("ack", 2), ("ack", 1), ("term", 4), ("restart",), ("delete", 3), ("pull", 4)]
)
@example("memory", ("s.a",), 6, [*FIVE, ("pull", 4), ("ack", 3), ("ack", 1), ("ack", 5)])
def test_a_consumer_is_as_its_model(storage: str, filters: tuple[str, ...], most: int, todo: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.create("S", subjects=["s.>"], storage=storage)
        config = {"filter_subjects": list(filters)} if filters else {}
        world.consumer("S", "c", durable_name="c", ack_policy="explicit", max_ack_pending=most, **config)
        model = Model(filters, most)
        for step in todo:
            play(world, model, step, storage)
            said = world.api("CONSUMER.INFO.S.c")
            found = {name: said[name] for name in ("num_ack_pending", "num_pending", "num_redelivered")}
            floor = tuple(said["ack_floor"][name] for name in ("consumer_seq", "stream_seq"))
            found |= {"delivered": said["delivered"]["consumer_seq"], "floor": floor}
            assert found == model.info(), step
        world.server.stop()


def play(world: World, model: Model, step: Any, storage: str) -> None:
    match step:
        case "publish", subject:
            model.last = world.publish(subject)["seq"]
            model.messages[model.last] = subject
        case "pull", count:
            came = [reply.split(".") for reply, _, status in world.pull("S", "c", {"batch": count, "no_wait": True})
                    if not status]  # fmt: skip
            assert [(int(each[5]), int(each[6]), int(each[4])) for each in came] == model.deliver(count)
            if len(came) < count and len(model.pending) >= model.most:
                # Such a request waits for acknowledgements, also after some of its messages; here it is withdrawn.
                world.bus.go(b"_INBOX.me")
                world.api("CONSUMER.INFO.S.c")
                world.bus.come(b"_INBOX.me")
        case ("ack" | "nak" | "term") as verb, number:
            # A message by its number, or one of those that are pending.
            sequence = (
                number if number > 0 else sorted(model.pending)[number % len(model.pending)] if model.pending else 1
            )
            body = {"ack": b"+ACK", "nak": b"-NAK", "term": b"+TERM"}[verb]
            world.ask(f"$JS.ACK.S.c.1.{sequence}.1.0.0", body)
            if verb != "nak":
                model.done(sequence)
            elif sequence in model.pending and sequence not in model.again:
                model.again.append(sequence)
        case "delete", sequence:
            world.api("STREAM.MSG.DELETE.S", {"seq": sequence})
            model.messages.pop(sequence, None)
            model.done(sequence)
        case "purge", sequence:
            world.api("STREAM.PURGE.S", {"seq": sequence})
            for each in [each for each in (*model.messages, *model.pending) if each < sequence]:
                model.messages.pop(each, None)
                model.done(each)
            model.last = max(model.last, sequence - 1)
            begin = min(model.messages, default=model.last + 1) - 1
            model.reached = max(model.reached, begin)
            model.floor = max(model.floor, begin) if model.pending else model.reached
        case ("restart",) if storage == "file":
            world.restart()
            # What was to come at once comes after its wait, which runs on.
            model.again.clear()


@pytest.mark.parametrize("policy", ["explicit", "all"])
def test_an_acknowledgement_with_a_wrong_number_moves_no_floor_beyond_what_was_delivered(policy: str) -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "c", durable_name="c", ack_policy=policy)
    for _ in range(4):
        world.publish("s")
    assert len(world.pull("S", "c", {"batch": 2, "no_wait": True})) == 2
    floors = []
    for sequence in (1, 2, 3):
        world.ask(f"$JS.ACK.S.c.1.{sequence}.9.0.0", b"+ACK")
        floor = world.api("CONSUMER.INFO.S.c")["ack_floor"]
        floors.append((floor["consumer_seq"], floor["stream_seq"]))
    assert floors == ([(1, 1), (2, 2), (2, 2)] if policy == "explicit" else [(2, 1), (2, 2), (2, 2)])


def test_what_is_not_acknowledged_comes_again_and_at_last_no_more() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", backoff=[SECOND, 3 * SECOND], max_deliver=3)
    world.bus.come(b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c")
    world.publish("s", b"x")
    assert [payload for _, payload, _ in world.pull("S", "c", {"batch": 9, "expires": 60 * SECOND})] == [b"x"]
    for wait in (SECOND, 3 * SECOND):
        world.bus.said.clear()
        world.pass_time(wait - 100_000_000)
        assert world.came() == []
        world.pass_time(110_000_000)
        assert [payload for _, payload, _ in world.came()] == [b"x"]
    world.bus.said.clear()
    world.pass_time(10 * SECOND)
    assert world.came() == []
    assert world.came(b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c") != []
    assert world.api("CONSUMER.INFO.S.c")["num_ack_pending"] == 0


@pytest.mark.parametrize("meanwhile", ["nothing", "paused", "unsubscribed", "restarted", "limit lowered"])
def test_a_message_is_given_up_although_nobody_asks(tmp_path: Path, meanwhile: str) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    limit = {"max_deliver": 2 if meanwhile == "limit lowered" else 1, "max_ack_pending": 2}
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 2 * SECOND, **limit}
    if meanwhile == "unsubscribed":
        config["deliver_subject"] = "to"
    world.consumer("S", "c", **config)
    for _ in range(3):
        world.publish("s")
    if meanwhile == "unsubscribed":
        world.bus.come(b"to")
        world.settle()
        assert len(world.came(b"to")) == 2
        world.bus.go(b"to")
    else:
        assert len(world.pull("S", "c", {"batch": 2})) == 2
    advisories = b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c"
    world.bus.come(advisories)
    if meanwhile == "paused":
        world.api("CONSUMER.PAUSE.S.c", {"pause_until": "2100-01-01T00:00:00Z"})
    elif meanwhile == "restarted":
        world.restart()
        world.bus.come(advisories)
    elif meanwhile == "limit lowered":
        world.consumer("S", "c", **config | {"max_deliver": 1})
    # After a restart the wait began with the second in which the messages were sent.
    world.pass_time(900_000_000)
    assert world.api("CONSUMER.INFO.S.c")["num_ack_pending"] == 2
    world.pass_time(1_200_000_000)
    assert len(world.came(advisories)) == 2
    found = world.api("CONSUMER.INFO.S.c")
    assert (found["num_ack_pending"], found["num_redelivered"], found["num_pending"]) == (0, 0, 1)


def test_work_that_was_given_up_and_went_by_a_limit_holds_nothing_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"], retention="interest", max_msgs=2)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=SECOND, max_deliver=1)
    for _ in range(2):
        world.publish("s")
    assert len(world.pull("S", "c", {"batch": 2, "no_wait": True})) == 2
    world.pass_time(2 * SECOND)
    for _ in range(2):
        world.publish("s")
    assert len(world.pull("S", "c", {"batch": 2, "no_wait": True})) == 2
    for sequence in (3, 4):
        world.ask(f"$JS.ACK.S.c.1.{sequence}.{sequence}.0.0", b"+ACK")
    world.restart()
    assert world.api("CONSUMER.INFO.S.c")["ack_floor"]["stream_seq"] == 4


def give_up(world: World, retention: str, messages: int, deliveries: int) -> None:
    """Has a consumer give up the first two messages, and delivers it the third one."""
    world.create("S", subjects=["s"], retention=retention)
    config = {"ack_policy": "explicit", "ack_wait": SECOND}
    world.consumer("S", "c", durable_name="c", max_deliver=deliveries, **config)
    if retention == "interest":
        world.consumer("S", "other", durable_name="other", **config)
    for _ in range(messages):
        world.publish("s")
    for _ in range(deliveries):
        assert len(world.pull("S", "c", {"batch": 2, "no_wait": True})) == 2
        world.pass_time(2 * SECOND)
    assert len(world.pull("S", "c", {"batch": 1, "no_wait": True})) == 1


def acknowledge_all(world: World, messages: int) -> None:
    """Has the other consumer of the stream acknowledge all messages."""
    assert len(world.pull("S", "other", {"batch": messages, "no_wait": True})) == messages
    for sequence in range(1, messages + 1):
        world.ask(f"$JS.ACK.S.other.1.{sequence}.{sequence}.0.0", b"+ACK")


@pytest.mark.parametrize("deliveries", [1, 2])
def test_work_that_was_given_up_stays_when_the_floor_passes_it(tmp_path: Path, deliveries: int) -> None:
    """As in nats-server: others acknowledge it, and its consumer what came after it."""
    world = World(tmp_path)
    give_up(world, "interest", 3, deliveries)
    world.ask(f"$JS.ACK.S.c.1.3.{2 * deliveries + 1}.0.0", b"+ACK")
    assert world.api("CONSUMER.INFO.S.c")["ack_floor"]["stream_seq"] == 3
    acknowledge_all(world, 3)
    assert world.state("S")["messages"] == 2
    world.restart()
    assert world.state("S")["messages"] == 2
    for sequence in (1, 2):
        world.ask(f"$JS.ACK.S.c.1.{sequence}.{sequence}.0.0", b"+ACK")
    assert world.state("S")["messages"] == 0


def test_a_message_that_was_given_up_is_forgotten_when_it_goes(tmp_path: Path) -> None:
    """As in nats-server 2.15.1: it is counted as redelivered as long as the stream has it."""
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], max_msgs_per_subject=1)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=SECOND, max_deliver=2)
    world.publish("s.a")
    world.publish("s.b")
    for _ in range(2):
        assert len(world.pull("S", "c", {"batch": 2, "no_wait": True})) == 2
        world.pass_time(2 * SECOND)
    world.pull("S", "c", {"batch": 2, "no_wait": True})
    assert world.api("CONSUMER.INFO.S.c")["num_redelivered"] == 2
    world.publish("s.a")
    assert world.api("CONSUMER.INFO.S.c")["num_redelivered"] == 1
    assert len(world.pull("S", "c", {"batch": 1, "no_wait": True})) == 1
    world.api("STREAM.PURGE.S", {"keep": 1})
    found = world.api("CONSUMER.INFO.S.c")
    assert (found["num_redelivered"], found["num_ack_pending"]) == (0, 1)


@pytest.mark.parametrize("again", [False, True])
def test_a_longer_wait_does_not_take_back_what_is_due(tmp_path: Path, again: bool) -> None:
    """As in nats-server 2.10.26, 2.12.8 and 2.15.1 (jetstream-server.md section 10)."""
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    config = {"durable_name": "c", "ack_policy": "explicit"}
    world.consumer("S", "c", **config, ack_wait=SECOND)
    world.publish("s", b"1")
    world.publish("s", b"2")
    assert len(world.pull("S", "c", {"batch": 1, "no_wait": True})) == 1
    world.pass_time(2 * SECOND)
    assert len(world.pull("S", "c", {"batch": 2, "no_wait": True})) == 2
    world.pass_time(2 * SECOND)
    if again:
        world.restart()
    world.consumer("S", "c", **config, ack_wait=600 * SECOND)
    assert [payload for _, payload, _ in world.pull("S", "c", {"batch": 9, "no_wait": True})][:2] == [b"1", b"2"]
    world.pass_time(2 * SECOND)
    world.consumer("S", "c", **config, ack_wait=900 * SECOND)
    assert not [payload for _, payload, _ in world.pull("S", "c", {"batch": 9, "no_wait": True}) if payload]


@pytest.mark.parametrize("body", [{"keep": 1}, {"seq": 2}, {"filter": "none"}, {"keep": 9}])
def test_a_purge_moves_the_floor_over_messages_that_were_given_up(tmp_path: Path, body: dict[str, Any]) -> None:
    """As in nats-server 2.12.8 and 2.15.1 (jetstream-server.md section 14)."""
    world = World(tmp_path)
    give_up(world, "limits", 3, 2)
    world.api("STREAM.PURGE.S", body)
    pending = world.api("CONSUMER.INFO.S.c")
    assert (pending["ack_floor"], pending["num_ack_pending"]) == ({"consumer_seq": 4, "stream_seq": 2}, 1)
    world.ask("$JS.ACK.S.c.1.3.5.0.0", b"+ACK")
    world.publish("s")
    world.api("STREAM.PURGE.S", {"keep": 9})
    for _ in range(2):
        found = world.api("CONSUMER.INFO.S.c")
        assert (found["ack_floor"]["consumer_seq"], found["ack_floor"]["stream_seq"]) == (5, 3)
        assert (found["num_redelivered"], found["num_pending"]) == (0, 1)
        world.restart()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_numbers_of_redeliveries_are_there_after_a_restart(tmp_path: Path, retention: str) -> None:
    """Consumer sequences are greater than those of the stream."""
    world = World(tmp_path)
    world.create("S", subjects=["s"], retention=retention)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=SECOND)
    world.publish("s")
    for _ in range(3):
        assert len(world.pull("S", "c", {"batch": 1, "no_wait": True})) == 1
        world.pass_time(2 * SECOND)
    world.ask("$JS.ACK.S.c.1.1.3.0.0", b"+ACK")
    before = world.api("CONSUMER.INFO.S.c")["ack_floor"]
    assert (before["consumer_seq"], before["stream_seq"]) == (3, 1)
    world.restart()
    after = world.api("CONSUMER.INFO.S.c")["ack_floor"]
    assert (after["consumer_seq"], after["stream_seq"]) == (3, 1)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("deliveries", [1, 2])
@pytest.mark.parametrize("word", [b"+ACK", b"+TERM", b"+NXT"])
def test_work_that_is_done_late_is_done(tmp_path: Path, retention: str, deliveries: int, word: bytes) -> None:
    """A message that was given up stays, also when others need it no more, until it is acknowledged."""
    world = World(tmp_path)
    give_up(world, retention, 5, deliveries)
    if retention == "interest":
        acknowledge_all(world, 5)
    world.restart()
    assert world.state("S")["messages"] == 5
    world.ask(f"$JS.ACK.S.c.{deliveries}.2.{2 * deliveries}.0.0", word)
    assert world.api("STREAM.INFO.S", {"deleted_details": True})["state"]["deleted"] == [2]
    world.ask("$JS.ACK.S.c.1.5.9.0.0", b"+ACK")  # not delivered yet
    assert world.state("S")["messages"] == 4


@pytest.mark.parametrize("policy", ["explicit", "all"])
@pytest.mark.parametrize("sequence", [3, 4, 1000])
def test_an_acknowledgement_of_a_message_that_was_not_delivered_has_no_effect(policy: str, sequence: int) -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "c", durable_name="c", ack_policy=policy)
    for number in range(1, 5):
        world.publish("s", b"%d" % number)
    assert [payload for _, payload, _ in world.pull("S", "c", {"batch": 2, "no_wait": True})] == [b"1", b"2"]
    before = world.api("CONSUMER.INFO.S.c")
    world.ask(f"$JS.ACK.S.c.1.{sequence}.{sequence}.0.0", b"+ACK")
    after = world.api("CONSUMER.INFO.S.c")
    assert [after[each] for each in PLACES] == [before[each] for each in PLACES]
    assert [payload for _, payload, _ in world.pull("S", "c", {"batch": 2, "no_wait": True})] == [b"3", b"4"]


@pytest.mark.parametrize("step", ["purge", "purge up to a sequence", "purge but one", "roll-up"])
def test_pending_messages_of_other_filters_outlive_a_purge_of_one(step: str) -> None:
    world = World()
    world.create("S", subjects=["s.>"], storage="memory", allow_rollup_hdrs=True)
    filters = {"filter_subjects": ["s.a", "s.b.>"]}
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=2 * SECOND, **filters)
    for subject in ("s.b.1", "s.a", "s.b.2", "s.a"):
        world.publish(subject, subject.encode())
    world.pull("S", "c", {"batch": 9, "no_wait": True})
    match step:
        case "purge":
            world.api("STREAM.PURGE.S", {"filter": "s.a"})
            left = 2
        case "purge up to a sequence":
            world.api("STREAM.PURGE.S", {"filter": "s.a", "seq": 4})
            left = 3
        case "purge but one":
            world.api("STREAM.PURGE.S", {"filter": "s.a", "keep": 1})
            left = 3
        case _:
            world.publish("s.a", b"new", Nats_Rollup="sub")
            left = 2
    info = world.api("CONSUMER.INFO.S.c")
    assert (info["num_ack_pending"], info["ack_floor"]["consumer_seq"]) == (left, 0)
    world.pass_time(3 * SECOND)
    again = {payload for _, payload, status in world.pull("S", "c", {"batch": 9, "no_wait": True}) if not status}
    assert {b"s.b.1", b"s.b.2"} <= again


def test_a_delayed_refusal_and_a_sign_of_progress() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=2 * SECOND)
    world.publish("s", b"1")
    world.publish("s", b"2")
    world.pull("S", "c", {"batch": 9, "expires": 60 * SECOND})
    world.ask("$JS.ACK.S.c.1.1.1.0.0", b'-NAK {"delay": 5000000000}')
    world.bus.said.clear()
    world.pass_time(SECOND)
    world.ask("$JS.ACK.S.c.1.2.2.0.0", b"+WPI")
    world.pass_time(SECOND + SECOND // 2)
    assert [payload for _, payload, _ in world.came() if payload] == []
    world.pass_time(SECOND)
    assert [payload for _, payload, _ in world.came() if payload] == [b"2"]
    world.ask("$JS.ACK.S.c.2.2.3.0.0", b"+ACK")
    world.bus.said.clear()
    world.pass_time(2 * SECOND)
    assert [payload for _, payload, _ in world.came() if payload] == [b"1"]


_NAK, _LATER, _PROGRESS = b"-NAK", b'-NAK {"delay": 3000000000}', b"+WPI"


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        ({}, {}, [1, 2, 3]),
        ({1: _LATER}, {}, [2, 3, 1]),
        ({1: _PROGRESS}, {}, [2, 3, 1]),
        ({3: _NAK}, {}, [3, 1, 2]),
        ({3: _NAK}, {2: _NAK}, [3, 1, 2]),
        # They are queued for their next delivery by then.
        ({}, {2: _NAK, 1: _NAK}, [1, 2, 3]),
        ({}, {1: _PROGRESS}, [1, 2, 3]),
        ({}, {1: _LATER}, [2, 3, 4]),
    ],
)
@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
def test_messages_come_again_in_the_order_in_which_they_became_due(
    tmp_path: Path, early: dict[int, bytes], late: dict[int, bytes], expected: list[int], restart: bool
) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=2 * SECOND)
    for _ in range(4):
        world.publish("s", b"x")
    for _ in range(3):
        world.pull("S", "c")
    world.pass_time(SECOND)
    for sequence, word in early.items():
        world.ask(f"$JS.ACK.S.c.1.{sequence}.{sequence}.0.0", word)
    if restart:
        # Nothing is known of the order in which they became due.
        world.restart()
        expected = [1, 2, 3] if early else expected
    # No client asks for them meanwhile.
    world.pass_time(4 * SECOND)
    for sequence, word in late.items():
        world.ask(f"$JS.ACK.S.c.1.{sequence}.{sequence}.0.0", word)
    found = [world.pull("S", "c") for _ in range(3)]
    assert [int(reply.split(".")[5]) for [(reply, _, _)] in found] == expected


def test_messages_go_to_those_who_ask_in_turns_and_only_to_those_who_are_there() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "c", durable_name="c", ack_policy="none", max_waiting=2)
    for inbox in (b"_INBOX.a", b"_INBOX.b"):
        world.bus.come(inbox)
        world.bus.send(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"3", inbox)
    assert world.pull("S", "c", b"1")[0][2] == "409 Exceeded MaxWaiting"
    world.bus.said.clear()
    for i in range(6):
        world.publish("s", b"%d" % i)
        assert world.api("CONSUMER.INFO.S.c")["num_waiting"] == 2 - (i > 3) - (i > 4)
    world.bus.go(b"_INBOX.a")
    world.bus.go(b"_INBOX.b")
    for inbox in (b"_INBOX.a", b"_INBOX.b"):
        world.bus.send(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"3", inbox)
    assert world.api("CONSUMER.INFO.S.c")["num_waiting"] == 0
    world.publish("s", b"kept")
    assert [payload for _, payload, _ in world.pull("S", "c", b"1")] == [b"kept"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_consumer_that_nobody_uses_goes_unless_it_is_durable(durable: bool) -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "c", **({"durable_name": "c"} if durable else {}))
    world.consumer("S", "p", deliver_subject="to", **({"durable_name": "p"} if durable else {}))
    world.bus.come(b"to")
    world.pass_time(8 * SECOND)
    assert world.api("CONSUMER.NAMES.S")["consumers"] == (["c", "p"] if durable else ["p"])
    world.bus.go(b"to")
    world.pass_time(8 * SECOND)
    assert world.api("CONSUMER.NAMES.S")["consumers"] == (["c", "p"] if durable else [])


@pytest.mark.parametrize("cost", range(0, 200_000_000, 5_000_000))
def test_timers_on_a_busy_machine(cost: int) -> None:
    """What falls due while something else is done is done as well, with nothing else to wake the server."""
    world = World()
    world.create("S", subjects=["s"])
    world.publish("s")
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=SECOND // 3, max_deliver=1)
    assert world.pull("S", "c")[0][2] == ""
    asked = {"batch": 1, "idle_heartbeat": SECOND // 2, "expires": SECOND}
    assert not world.pull("S", "c", asked)
    world.time.cost = cost
    world.pass_time(3 * SECOND)
    world.time.cost = 0
    assert [said for _, _, said in world.came()] == ["100 Idle Heartbeat", "408 Request Timeout"]
    assert world.api("CONSUMER.INFO.S.c")["num_ack_pending"] == 0


def test_push_with_heartbeats_and_flow_control() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "p", deliver_subject="to", flow_control=True, idle_heartbeat=5 * SECOND)
    for _ in range(60):
        world.publish("s", bytes(60_000))
    world.bus.said.clear()
    world.bus.come(b"to")
    world.settle()
    came = world.came(b"to")
    # As a real server: the request after the 18th, the stop after the 35th.
    kinds = ["flow" if status.startswith("100") else "message" for _, _, status in came]
    assert kinds.index("flow") == 18 and kinds.count("message") == 35
    question = next(reply for reply, _, status in came if status.startswith("100 FlowControl"))
    world.bus.said.clear()
    world.pass_time(6 * SECOND)
    assert [status for _, _, status in world.came(b"to")] == ["100 Idle Heartbeat"]
    assert b"Nats-Consumer-Stalled: " + question.encode() in world.bus.said[0][4]
    world.bus.said.clear()
    world.bus.send(question.encode(), b"")
    world.settle()
    assert len([payload for _, payload, _ in world.came(b"to") if payload]) == 25
    world.bus.said.clear()
    world.bus.go(b"to")
    world.settle()
    world.publish("s", b"x")
    world.pass_time(3 * SECOND)
    assert world.came(b"to") == []


def test_a_slow_subscriber_is_sent_nothing_more_until_it_keeps_up() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    world.consumer("S", "p", deliver_subject="to")
    world.bus.slow.add(b"to")
    world.bus.come(b"to")
    world.publish("s", b"x")
    world.pass_time(SECOND)
    assert world.came(b"to") == []
    world.bus.slow.clear()
    world.pass_time(SECOND)
    assert [payload for _, payload, _ in world.came(b"to")] == [b"x"]


def test_original_pace_and_a_limited_rate() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    for _ in range(3):
        world.publish("s", bytes(1000))
        world.pass_time(10 * SECOND)
    for name, config in (("p", {"replay_policy": "original"}), ("r", {"rate_limit_bps": 1000})):
        to = name.encode()
        world.consumer("S", name, deliver_subject=name, **config)
        world.bus.said.clear()
        world.bus.come(to)
        world.settle()
        assert len(world.came(to)) == 1
        world.pass_time(9 * SECOND)
        assert len(world.came(to)) == (1 if name == "p" else 2)
        world.pass_time(20 * SECOND)
        assert len(world.came(to)) == 3


def test_what_cannot_be_read_is_passed_over_and_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    for i in range(3):
        world.publish("s", b"message %d" % i)
    path = next(tmp_path.rglob("1.blk"))
    path.write_bytes(path.read_bytes().replace(b"message 1", b"message X"))
    came = world.pull("S", "c", {"batch": 9, "no_wait": True})
    assert [payload for _, payload, status in came if not status] == [b"message 0", b"message 2"]
    assert came[1][0].split(".")[5:7] == ["3", "2"]
    assert world.api("CONSUMER.INFO.S.c")["num_pending"] == 0
    assert world.state("S")["messages"] == 3
    assert world.api("STREAM.MSG.GET.S", {"seq": 2})["error"]["err_code"] == 10077


def test_a_pause_ends_by_itself_and_outlives_the_server(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s"])
    world.publish("s", b"1")
    until = format_time(world.time.wall() + 10 * SECOND)
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", ack_wait=2 * SECOND)
    assert [payload for _, payload, _ in world.pull("S", "c")] == [b"1"]
    assert world.api("CONSUMER.PAUSE.S.c", {"pause_until": until})["paused"]
    world.restart()
    # Neither a new message nor one that is due again comes before the time.
    world.publish("s", b"2")
    assert world.pull("S", "c", {"batch": 2}) == []
    assert world.api("CONSUMER.INFO.S.c")["num_waiting"] == 1
    world.bus.said.clear()
    world.pass_time(9 * SECOND)
    assert world.came() == []
    world.pass_time(2 * SECOND)
    assert sorted(payload for _, payload, _ in world.came()) == [b"1", b"2"]
    assert "paused" not in world.api("CONSUMER.INFO.S.c")


def test_one_client_is_pinned_until_it_does_not_ask_or_is_unpinned() -> None:
    world = World()
    world.create("S", subjects=["s"], storage="memory")
    policy = {"priority_policy": "pinned_client", "priority_groups": ["A"], "priority_timeout": 2 * SECOND}
    world.consumer("S", "c", durable_name="c", ack_policy="explicit", **policy)
    one, two = b"one", b"two"
    events = [b"$JS.EVENT.ADVISORY.CONSUMER.%bPINNED.S.c" % how for how in (b"", b"UN")]
    world.bus.present.update((one, two, *events))

    def told() -> list[tuple[str, str]]:
        """What was said of pins since the last request: the kind of event, and who or why."""
        found = [json.loads(payload) for to, _, payload, _, _ in world.bus.said if to in events]
        return [(each["type"].rpartition("_")[2], each.get("reason") or each["pinned_id"]) for each in found]

    def pinned() -> str:
        [group] = world.api("CONSUMER.INFO.S.c")["priority_groups"]
        return str(group.get("pinned_client_id", ""))

    def ask(who: bytes, **more: Any) -> list[tuple[bytes, str]]:
        return [said[1:] for said in world.pull("S", "c", {"batch": 2, "group": "A", **more}, who)]

    def published(*texts: bytes) -> tuple[list[bytes], list[bytes]]:
        came: dict[bytes, list[bytes]] = {one: [], two: []}
        for text in texts:
            world.publish("s", text)
            for who, payloads in came.items():
                payloads += [payload or status.encode() for _, payload, status in world.came(who)]
        return came[one], came[two]

    # Whoever has asked first gets everything, whatever others ask for.
    assert (ask(one), ask(two), pinned()) == ([], [], "")
    assert published(b"1", b"2", b"3") == ([b"1", b"2"], [])
    first = pinned()
    assert len(first) == 22 and ask(two, id="another") == [(b"", "423 Nats-Pin-Id mismatch")]
    assert ask(one, id=first, batch=1) == [(b"3", "")]
    # What is waited for does not count as asking.
    ask(one, id=first)
    world.pass_time(SECOND)
    assert published(b"4") == ([b"4"], [])
    world.pass_time(SECOND)
    assert told() == [("unpinned", "timeout")] and not pinned()
    # The requests of the one that was pinned end when a message finds them.
    assert published(b"5", b"6") == ([b"423 Nats-Wrong-Pin-Id"], [b"5", b"6"])
    second = pinned()
    assert second not in ("", first) and ask(two, id=second) == []
    world.api("CONSUMER.UNPIN.S.c", {"group": "A"})
    assert told() == [("unpinned", "admin")] and not pinned()
    assert ask(one) == []
    assert published(b"7") == ([b"7"], [b"423 Nats-Wrong-Pin-Id"])
    [header] = [said[4] for said in world.bus.said if said[2] == b"7" and said[0] == one]
    assert header == b"NATS/1.0\r\nNats-Pin-Id: %b\r\n\r\n" % pinned().encode()
    # Without the policy everybody gets messages again, as they are.
    world.consumer("S", "c", durable_name="c", ack_policy="explicit")
    ask(two)
    assert published(b"8", b"9", b"10") == ([b"8"], [b"9", b"10"])
    assert not any(b"Nats-Pin-Id" in said[4] for said in world.bus.said)


def test_the_first_fixed_member_that_an_update_changes_is_named() -> None:
    assert set(consumerconfig._FIXED) == {name for name, each in CONSUMER_MEMBERS.items() if each.fixed}
    old = consumerconfig.ConsumerConfig()
    changes: dict[str, Any] = {
        "ack_policy": "all", "mem_storage": True, "replay_policy": "original", "deliver_policy": "new",
    }  # fmt: skip
    for name in ("deliver_policy", "mem_storage", "ack_policy", "replay_policy"):
        with pytest.raises(RequestError, match=f"^{CONSUMER_MEMBERS[name].fixed} can not be updated$"):
            old.check_change(replace(old, **changes))
        del changes[name]
