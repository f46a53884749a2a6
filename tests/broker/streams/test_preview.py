"""The preview of JetStream: clients that know no headers, clients of today beside them, the rules in simulated time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.streams import acks
from tests import natsclient
from tests.broker.streams.world import INBOX, World
from tests.brokers import Broker
from tests.interop.talker import Got, NobodyAnsweredError, Talker

SECOND = 1_000_000_000
NEVER = "0001-01-01T00:00:00Z"
#: A request: subject, body, and what the answer is: a text, or some of what its JSON has.
Step = tuple[str, Any, Any]


def observable(**config: Any) -> tuple[str, Any]:
    return "$JS.OBSERVABLE.CREATE", {"msg_set_name": "wc", "config": config}


def consumer(name: str, **config: Any) -> tuple[str, Any]:
    named = f"CONSUMER.{name}" if name else "EPHEMERAL.CONSUMER"
    return f"$JS.STREAM.S.{named}.CREATE", {"stream_name": "S", "config": config}


PULL = {"deliver_all": True, "ack_policy": "explicit", "start_time": NEVER, "ack_wait": 30 * SECOND}
MESSAGE_SETS: list[Step] = [
    ("$JS.ENABLED", "", "+OK"),
    ("$JS.ENABLED", ".", "+OK"),
    ("$JS.INFO", ".", {"memory": 0, "storage": 0, "msg_sets": 0}),
    ("$JS.MSGSETS", "", None),
    ("$JS.MSGSET.CREATE", {"name": "wc", "subjects": ["foo.*"], "retention": "stream_limits", "storage": "file",
                           "max_msgs": 0, "max_age": 0, "max_observables": 3, "num_replicas": 1}, "+OK"),
    ("$JS.MSGSET.CREATE", {"name": "wc", "subjects": ["foo.*"]}, "-ERR message set name already in use"),
    ("$JS.MSGSET.CREATE", {"name": "b", "subjects": ["foo.x"]}, "-ERR subjects overlap with an existing message set"),
    ("$JS.MSGSET.CREATE", {"subjects": ["x"]}, "-ERR bad request"),
    ("$JS.MSGSET.CREATE", {"name": "a.b"}, "-ERR bad request"),
    ("$JS.MSGSET.CREATE", "{", "-ERR bad request"),
    ("$JS.MSGSETS", "", ["wc"]),
    *((f"foo.{i}", f"{i}", "+OK") for i in range(1, 7)),
    ("$JS.MSGSET.INFO", "wc", {"Msgs": 6, "FirstSeq": 1, "LastSeq": 6}),
    ("$JS.MSGSET.INFO", "none", "-ERR msgset not found"),
    ("$JS.MSGSET.INFO", "", "-ERR bad request"),
    ("$JS.BYSEQ.wc", "2", {"subject": "foo.2", "seq": 2, "data": "Mg=="}),
    ("$JS.BYSEQ.wc", "", {"subject": "foo.6", "seq": 6}),
    ("$JS.BYSEQ.wc", "99", "-ERR could not load message from storage"),
    ("$JS.BYSEQ.wc", "0", "-ERR could not load message from storage"),
    ("$JS.BYSEQ.wc", "x", "-ERR bad sequence argument"),
    ("$JS.MSGSET.MSG.DELETE", "wc 3", "+OK"),
    ("$JS.MSGSET.MSG.DELETE", "wc 3", "-ERR sequence [3] not found"),
    ("$JS.MSGSET.MSG.DELETE", "wc", "-ERR bad request"),
    ("$JS.MSGSET.MSG.DELETE", "none 3", "-ERR msgset not found"),
    ("$JS.OBSERVABLES", "wc", None),
    (*observable(durable_name="p1", **PULL), "+OK"),
    ("$JS.OBSERVABLES", "wc", ["p1"]),
    ("$JS.OBSERVABLE.INFO", "wc p1", {"Delivered": {"ObsSeq": 1, "SetSeq": 1}, "AckFloor": {"ObsSeq": 0, "SetSeq": 0},
                                      "Pending": None, "Redelivery": None}),
    ("$JS.OBSERVABLE.INFO", "wc p2", "-ERR observable not found"),
    ("$JS.OBSERVABLE.INFO", "wc", "-ERR bad request"),
    (*observable(durable_name="x"), "-ERR observable in pull mode requires explicit ack policy"),
    (*observable(durable_name="x", delivery_subject="a.*"), "-ERR observable delivery subject has wildcards"),
    (*observable(durable_name="x", delivery_subject="foo.x"), "-ERR observable delivery subject forms a cycle"),
    (*observable(durable_name="x", msg_set_seq=2, **PULL), "-ERR observable starting position conflict"),
    (*observable(delivery_subject="nobody"), "-ERR observable requires interest for delivery subject when ephemeral"),
    ("$JS.OBSERVABLE.CREATE", {"config": PULL}, "-ERR msgset not found"),
    ("$JS.RN.wc.p2", "", "-ERR observable not found"),
    ("$JS.MSGSET.CREATE", {"name": "work", "subjects": ["w"], "retention": "work_queue", "max_msg_size": 3}, "+OK"),
    ("w", "1234", "-ERR message size exceeds maximum allowed"),
    ("$JS.OBSERVABLE.CREATE", {"msg_set_name": "work", "config": {"durable_name": "d", "ack_policy": "explicit"}},
     "-ERR observable must be deliver all on workqueue message set"),
    ("$JS.MSGSET.PURGE", "work", "+OK"),
    ("$JS.MSGSET.DELETE", "work", "+OK"),
    ("$JS.MSGSET.DELETE", "work", "-ERR msgset not found"),
    ("$JS.MSGSET.PURGE", "a.b", "-ERR msgset not found"),
]  # fmt: skip
STREAMS: list[Step] = [
    ("$JS.ENABLED", "", "+OK"),
    ("$JS.STREAM.LIST", "", None),
    ("$JS.STREAM.LIST", "x", "-ERR 'bad request'"),
    ("$JS.STREAM.S.CREATE", {"name": "S", "subjects": ["s.*"], "retention": "limits", "storage": "file"}, "+OK"),
    ("$JS.STREAM.S.CREATE", {"name": "S", "subjects": ["s.*"]}, "-ERR 'stream name already in use'"),
    ("$JS.STREAM.T.CREATE", {"name": "S"}, "-ERR 'stream name in subject does not match request'"),
    ("$JS.STREAM.LIST", "", ["S"]),
    *((f"s.{i}", f"{i}", "+OK") for i in range(1, 7)),
    ("$JS.STREAM.S.INFO", "", {"state": {"messages": 6, "bytes": 204, "first_seq": 1, "last_seq": 6,
                                         "consumer_count": 0}}),
    ("$JS.STREAM.S.INFO", "x", "-ERR 'bad request'"),
    ("$JS.STREAM.T.INFO", "", "-ERR 'stream not found'"),
    ("$JS.STREAM.S.UPDATE", {"name": "S", "subjects": ["s.*"], "max_age": 60 * SECOND, "max_msg_size": 5}, "+OK"),
    ("s.1", "123456", "-ERR 'message size exceeds maximum allowed'"),
    ("$JS.STREAM.S.INFO", "", {"config": {"name": "S", "subjects": ["s.*"], "retention": "limits", "max_msgs": -1,
                                          "max_bytes": -1, "max_age": 60 * SECOND, "max_msg_size": 5, "storage": "file",
                                          "num_replicas": 1, "max_consumers": -1}}),
    ("$JS.STREAM.S.MSG.BYSEQ", "2", {"subject": "s.2", "seq": 2, "data": "Mg=="}),
    ("$JS.STREAM.S.MSG.BYSEQ", "x", "-ERR 'bad sequence argument'"),
    ("$JS.STREAM.S.MSG.DELETE", "3", "+OK"),
    ("$JS.STREAM.S.MSG.DELETE", "3", "-ERR 'sequence [3] not found'"),
    ("$JS.STREAM.S.MSG.BYSEQ", "3", "-ERR 'could not load message from storage'"),
    (*consumer("p1", durable_name="p1", filter_subject="s.*", **PULL), "+OK"),
    (*consumer("p2", durable_name="p1", **PULL),
     "-ERR 'consumer name in subject does not match durable name in request'"),
    (*consumer("p2", ack_policy="explicit"), "-ERR 'consumer in pull mode requires a durable name'"),
    (*consumer("", delivery_subject="nobody"), "-ERR 'consumer requires interest for delivery subject when ephemeral'"),
    ("$JS.STREAM.S.CONSUMERS", "", ["p1"]),
    ("$JS.STREAM.S.CONSUMER.p1.INFO", "", {
        "name": "p1",
        "config": {"durable_name": "p1", "deliver_all": True, "ack_policy": "explicit", "ack_wait": 30 * SECOND,
                   "max_deliver": -1, "filter_subject": "s.*", "replay_policy": "instant"},
        "state": {"delivered": {"consumer_seq": 0, "stream_seq": 0}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
                  "pending": None, "redelivered": None}}),
    ("$JS.STREAM.S.CONSUMER.p2.INFO", "", "-ERR 'consumer not found'"),
    ("$JS.STREAM.S.CONSUMER.p2.NEXT", "", "-ERR 'consumer not found'"),
]  # fmt: skip


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, "-js", "-sd", tmp_path / "store", "-preview_api") as started:
        yield started
        assert "Traceback" not in started.said()


def talker(broker: Broker) -> Talker:
    """A client of those years: it knows no headers."""
    return Talker(broker.port, headers=False, no_responders=False)


def play(old: Talker, steps: Iterable[Step]) -> None:
    for subject, body, wanted in steps:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        answer = old.request(subject.encode(), data).decode()
        if isinstance(wanted, str):
            assert answer == wanted, subject
            continue
        found = json.loads(answer)
        assert answer == json.dumps(found, indent=2)
        shown = {name: found.get(name) for name in wanted} if isinstance(wanted, dict) else found
        assert shown == wanted, subject


def come(got: Iterable[Got]) -> list[tuple[bytes, bytes, bytes]]:
    return [(each.subject, each.reply, each.data) for each in got]


@pytest.mark.parametrize(
    ("steps", "ask", "prefix", "subject", "info"),
    [
        (MESSAGE_SETS, b"$JS.RN.wc.p1", b"$JS.A.wc.p1.", b"foo.", (b"$JS.OBSERVABLE.INFO", b"wc p1")),
        (STREAMS, b"$JS.STREAM.S.CONSUMER.p1.NEXT", b"$JS.ACK.S.p1.", b"s.", (b"$JS.STREAM.S.CONSUMER.p1.INFO", b"")),
    ],
    ids=["P0", "P2"],
)
def test_a_client_of_the_preview_is_served(
    broker: Broker, steps: list[Step], ask: bytes, prefix: bytes, subject: bytes, info: tuple[bytes, bytes]
) -> None:
    with talker(broker) as old:
        play(old, steps)
        box = old.listen(b"in")

        def message(number: int, deliveries: int, at: int) -> tuple[bytes, bytes, bytes]:
            return subject + b"%d" % number, prefix + b"%d.%d.%d" % (deliveries, number, at), b"%d" % number

        old.publish(ask, b"2", b"in")
        first, second = box.wait(2)
        assert come((first, second)) == [message(1, 1, 1), message(2, 1, 2)]
        old.publish(first.reply, b"+NXT", b"in")
        assert come(box.wait(3)[2:]) == [message(4, 1, 3)]
        old.publish(second.reply, b"-NAK")
        old.publish(ask, b"zork", b"in")
        assert come(box.wait(4)[3:]) == [message(2, 2, 4)]
        said = json.loads(old.request(*info))
        if prefix.startswith(b"$JS.A."):
            assert said["Delivered"] == {"ObsSeq": 5, "SetSeq": 5} and said["AckFloor"] == {"ObsSeq": 1, "SetSeq": 1}
            assert list(said["Pending"]) == ["2", "4"] and said["Redelivery"] == {"2": 1}
        else:
            assert said["state"]["delivered"] == {"consumer_seq": 4, "stream_seq": 4}
            assert list(said["state"]["pending"]) == ["2", "4"] and said["state"]["redelivered"] == {"2": 1}
        # Acknowledgements are not answered, and a request that is not filled waits in silence.
        for each in box.got[2:]:
            old.publish(each.reply, b"+OK", b"in")
        old.publish(ask, b"3", b"in")
        assert come(box.wait(6)[4:]) == [message(5, 1, 5), message(6, 1, 6)]
        assert old.request(subject + b"7", b"7") == b"+OK"
        assert come(box.wait(7)[6:]) == [message(7, 1, 7)]
        old.publish(ask, b"", b"in")
        name = b"$JS.OBSERVABLE.DELETE" if info[1] else info[0].replace(b"INFO", b"DELETE")
        assert old.request(name, info[1]) == b"+OK"
        old.flush()
        assert len(box) == 7


def test_messages_are_pushed_in_the_dialect_of_the_consumer(broker: Broker) -> None:
    with talker(broker) as old:
        play(old, [("$JS.MSGSET.CREATE", {"name": "wc", "subjects": ["foo.*"]}, "+OK"), ("foo.1", "1", "+OK")])
        sets, streams = old.listen(b"to.sets"), old.listen(b"to.streams")
        play(old, [(*observable(delivery_subject="to.sets", msg_set_seq=1), "+OK")])
        body = {"stream_name": "wc", "config": {"delivery_subject": "to.streams", "ack_policy": "all"}}
        answer = old.request(b"$JS.STREAM.wc.EPHEMERAL.CONSUMER.CREATE", json.dumps(body).encode()).decode()
        ok, name = answer.split()
        assert ok == "+OK" and name in json.loads(old.request(b"$JS.OBSERVABLES", b"wc"))
        old.request(b"foo.2", b"2")
        (first, _), (second,) = sets.wait(2), streams.wait(1)
        assert first.subject == b"foo.1" and first.reply.startswith(b"$JS.A.wc.") and first.reply.endswith(b".1.1.1")
        assert (second.subject, second.reply) == (b"foo.2", f"$JS.ACK.wc.{name}.1.2.1".encode())


async def test_a_client_of_today_and_one_of_the_preview_share_a_stream(broker: Broker) -> None:
    with talker(broker) as old:
        async with natsclient.connected(broker.url) as client:
            js = client.jetstream()
            await js.add_stream(name="S", subjects=["s.*"])
            await js.publish("s.1", b"one", headers={"X": "y"})
            ask = asyncio.to_thread
            # What a publisher is told goes by who has made the stream.
            assert json.loads(await ask(old.request, b"s.2", b"two")) == {"stream": "S", "seq": 2}
            await ask(play, old, [(*consumer("d", durable_name="d", **PULL), "+OK")])
            box = old.listen(b"in")
            old.publish(b"$JS.STREAM.S.CONSUMER.d.NEXT", b"", b"in")
            [first] = await ask(box.wait, 1)
            assert (first.reply, first.data) == (b"$JS.ACK.S.d.1.1.1", b"one")
            old.publish(first.reply)
            await ask(old.flush)
            subscription = await js.pull_subscribe_bind(durable="d", stream="S")
            [second] = await subscription.fetch(1, timeout=60)
            assert second.data == b"two" and second.metadata.sequence.stream == 2
            await second.ack_sync()
            floor = (await subscription.consumer_info()).ack_floor
            assert (floor.consumer_seq, floor.stream_seq) == (2, 2)
            await ask(play, old, [("$JS.MSGSET.CREATE", {"name": "wc", "subjects": ["foo"], "storage": "file"}, "+OK")])
            answer = await client.request("foo", b"1")
            assert answer.data == b"+OK"
            assert (await js.stream_info("wc")).config.metadata["preview_api"] == "P0"
            await js.update_stream(name="wc", subjects=["foo"])
            assert (await js.publish("foo", b"2")).seq == 2


def test_nothing_of_it_is_there_by_default(tmp_path: Path) -> None:
    with Broker(tmp_path, "-js", "-sd", tmp_path / "store") as broker, Talker(broker.port) as client:
        for subject in ("ENABLED", "MSGSET.CREATE", "STREAM.S.CREATE", "RN.S.c", "A.S.c.1.1.1", "ACK.S.c.1.1.1"):
            with pytest.raises(NobodyAnsweredError):
                client.request(f"$JS.{subject}".encode())
    assert acks.place(b"$JS.ACK.S.c.1.2.3") is None
    assert acks.place(b"$JS.ACK.S.c.1.2.3", preview=True) == acks.AckTarget("S", "c", 2, 3, b"$JS.ACK")


# In simulated time


def said(world: World, subject: str, body: Any = b"") -> bytes | None:
    """What answers a request; None for nothing."""
    world.bus.said.clear()
    world.bus.send(subject.encode(), body if isinstance(body, bytes) else json.dumps(body).encode(), INBOX)
    world.settle()
    return next((payload for to, _, payload, _, _ in world.bus.said if to == INBOX), None)


def replies(world: World, to: bytes = INBOX) -> list[bytes]:
    """Acknowledgement subjects of what came to a subject, and headers that should not be there."""
    return [header or reply for there, _, _, reply, header in world.bus.said if there == to]


def test_the_dialect_survives_a_restart_and_ends_with_the_option(tmp_path: Path) -> None:
    world = World(tmp_path, preview=True)
    world.bus.come(b"to")
    assert said(world, "$JS.MSGSET.CREATE", {"name": "wc", "subjects": ["a"], "storage": "file"}) == b"+OK"
    pushed = {"durable_name": "d", "delivery_subject": "to", "ack_policy": "explicit"}
    assert said(world, *observable(**pushed)) == b"+OK"
    assert said(world, "a", b"1") == b"+OK" and replies(world, b"to") == [b"$JS.A.wc.d.1.1.1"]
    world.bus.send(b"$JS.A.wc.d.1.1.1", b"")
    world.settle()
    world.restart()
    world.bus.come(b"to")
    assert said(world, "a", b"2") == b"+OK" and replies(world, b"to") == [b"$JS.A.wc.d.1.2.2"]
    world.preview = False
    world.restart()
    world.bus.come(b"to")
    assert json.loads(said(world, "a", b"3") or b"") == {"stream": "wc", "seq": 3}
    assert [len(each.split(b".")) for each in replies(world, b"to")] == [9]
    assert world.bus.send(b"$JS.MSGSET.INFO", b"wc", INBOX) == 0


def test_a_request_waits_until_it_is_filled_or_nobody_listens(tmp_path: Path) -> None:
    world = World(tmp_path, preview=True)
    said(world, "$JS.MSGSET.CREATE", {"name": "wc", "subjects": ["a"]})
    said(world, *observable(durable_name="d", **{**PULL, "ack_wait": 10 * SECOND}))
    assert said(world, "$JS.RN.wc.d", b"3") is None
    world.pass_time(3600 * SECOND)
    assert replies(world) == []
    said(world, "a", b"1")
    assert replies(world) == [b"", b"$JS.A.wc.d.1.1.1"]
    world.pass_time(11 * SECOND)
    assert replies(world)[2:] == [b"$JS.A.wc.d.2.1.2"]
    world.bus.go(INBOX)
    world.pass_time(11 * SECOND)
    assert replies(world)[3:] == [] and world.api("CONSUMER.INFO.wc.d")["num_waiting"] == 0


def test_only_so_many_requests_wait(tmp_path: Path) -> None:
    world = World(tmp_path, preview=True)
    said(world, "$JS.MSGSET.CREATE", {"name": "wc", "subjects": ["a"]})
    said(world, *observable(durable_name="d", **PULL))
    assert {said(world, "$JS.RN.wc.d", b"1") for _ in range(600)} == {None}
    assert world.api("CONSUMER.INFO.wc.d")["num_waiting"] == 512


SUBJECTS = (
    *("ENABLED", "INFO", "MSGSETS", "MSGSET.CREATE", "MSGSET.INFO", "MSGSET.DELETE", "MSGSET.PURGE", "BYSEQ.S"),
    *("BYSEQ.N", "MSGSET.MSG.DELETE", "RN.S.c", "RN.S.p"),
    *("OBSERVABLES", "OBSERVABLE.CREATE", "OBSERVABLE.INFO", "OBSERVABLE.DELETE"),
    *("STREAM.LIST", *(f"STREAM.{name}.{call}" for name in "SN" for call in ("CREATE", "UPDATE", "INFO", "CONSUMERS"))),
    *(f"STREAM.S.{call}" for call in ("PURGE", "MSG.DELETE", "MSG.BYSEQ", "EPHEMERAL.CONSUMER.CREATE")),
    *(f"STREAM.S.CONSUMER.{name}.{call}" for name in "cn" for call in ("CREATE", "INFO", "NEXT")),
)
MEMBERS = (
    *("name", "subjects", "retention", "max_msgs", "max_age", "max_observables", "storage", "num_replicas", "no_ack"),
    *("delivery_subject", "durable_name", "msg_set_seq", "stream_seq", "start_time", "deliver_all", "deliver_last"),
    *("ack_policy", "ack_wait", "max_deliver", "filter_subject", "subject", "sample_freq", "replay_policy"),
)
values = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(0, 5), st.text(max_size=5)),
        st.sampled_from(("S", "c", "S.c", "a.*", "explicit", "all", "work_queue", "interest_based", NEVER, "to")),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=3),
    max_leaves=6,
)
configs = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=5)
bodies = st.one_of(
    *(st.binary(max_size=20), values.map(lambda each: json.dumps(each).encode())),
    configs.map(lambda each: json.dumps({"name": "S", **each}).encode()),
    st.builds(lambda each, name: json.dumps({"stream_name": "S", "msg_set_name": name, "config": each}).encode(),
              configs | values, values | st.just("S")),
    st.lists(st.sampled_from((b"S", b"N", b"c", b"p", b"1", b"2", b"S.c", b"*", b"\xff")), max_size=4).map(b" ".join),
    st.sampled_from((b"[" * 100_000, b'{"name":"\\ud800"}', b"9" * 5000, b"NaN")),
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(SUBJECTS), bodies), min_size=1, max_size=8))
def test_whatever_is_asked_is_answered(todo: list[tuple[str, bytes]]) -> None:
    world = World(preview=True)
    world.bus.present.add(b"to")
    said(world, "$JS.MSGSET.CREATE", {"name": "S", "subjects": ["a.*"]})
    said(world, *consumer("c", durable_name="c", **PULL))
    said(world, *consumer("p", durable_name="p", delivery_subject="to"))
    said(world, "a.b", b"1")
    for call, body in todo:
        answer = said(world, f"$JS.{call}", body)
        if call.startswith("RN.") or call.endswith(".NEXT"):
            # It waits for messages, gets some, or an error.
            assert not any(header for *_, header in world.bus.said)
            continue
        assert answer is not None, call
        if not answer.startswith((b"+OK", b"-ERR ")):
            assert answer.decode() == json.dumps(json.loads(answer), indent=2, ensure_ascii=False)
