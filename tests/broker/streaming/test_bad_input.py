"""Whatever comes on whatever subject: the server answers or not, and goes on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from tests.broker.streaming.world import World

SUBJECTS = ["discovery", "publish", "subscribe", "unsubscribe", "sub_close", "close", "pings"]

words = st.sampled_from([b"", b"me", b"foo", b"d", b"\xff", b"a.b", b"foo.", b"x" * 70_000, b"_INBOX.x"])
numbers = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 5])
wide = st.sampled_from([0, 1, 2**63, 2**64 - 1])
messages = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda **fields: protocol.PubMsg(**fields).SerializeToString(),
        client_id=words,
        guid=words,
        subject=words,
        reply=words,
        data=words,
        conn_id=words,
    ),
    st.builds(
        lambda **fields: pb.ConnectRequest(**fields).SerializeToString(),
        client_id=words,
        heartbeat_inbox=words,
        conn_id=words,
        protocol=numbers,
        ping_interval=numbers,
    ),
    st.builds(
        lambda **fields: pb.SubscriptionRequest(**fields).SerializeToString(),
        client_id=words,
        subject=words,
        q_group=words,
        inbox=words,
        durable_name=words,
        max_in_flight=numbers,
        ack_wait_in_secs=numbers,
        start_position=numbers,
        start_sequence=wide,
        start_time_delta=st.integers(-(2**63), 2**63 - 1),
    ),
    st.builds(
        lambda **fields: pb.UnsubscribeRequest(**fields).SerializeToString(),
        client_id=words,
        subject=words,
        inbox=words,
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(SUBJECTS), messages, st.sampled_from([b"", b"_INBOX.reply"])), max_size=20))
def test_anything_anywhere(steps: list[tuple[str, bytes, bytes]]) -> None:
    world = World()
    world.connect(b"good")
    subscriber = world.subscribe(b"good", b"good")
    for name, payload, reply in steps:
        subject = getattr(world.subjects, name) + (b".foo" if name == "publish" else b"")
        world.bus.feed([(subject, payload, reply)])
        world.settle()
    assert world.publish(b"good", b"x", client=b"good") == [b""]
    assert 1 in subscriber.sequences()
    world.advance(1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(messages, st.binary(max_size=20)), max_size=20))
def test_anything_as_an_ack(payloads: list[bytes]) -> None:
    world = World()
    world.connect()
    subscriber = world.subscribe(b"foo")
    world.publish(b"foo", b"x")
    world.bus.feed([(subscriber.ack_inbox, payload, b"") for payload in payloads])
    world.settle()
    assert subscriber.sequences() == [1]


@pytest.mark.parametrize("name", SUBJECTS)
def test_an_inbox_that_is_one_of_the_servers_own_subjects(name: str) -> None:
    world = World()
    world.connect()
    subject = getattr(world.subjects, name) + (b".foo" if name == "publish" else b"")
    world.subscribe(b"foo", inbox=subject, max_in_flight=5)
    assert world.publish(b"foo", *[b"x"] * 20) == [b""] * 20
    assert world.channel(b"foo").messages.last == 20
