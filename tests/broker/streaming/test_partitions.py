"""Several servers that share the channels: streaming-protocol.md section 25."""

from __future__ import annotations

from functools import partial

import pytest

from broker.streaming.partitions import PendingConnects, decode_list, encode_list
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from tests.broker.streaming.world import Bus, Time, Wishes, World


def server(time: Time, bus: Bus, *partitions: bytes) -> World:
    return World(time=time, bus=bus, partitioning=True, partitions=partitions)


@pytest.fixture
def worlds() -> tuple[World, World]:
    time = Time()
    bus = Bus(time)
    first = server(time, bus, b"foo", b"bar.*")
    first.advance(1.1)
    second = server(time, bus, b"baz.>")
    together(first, second, 1.1)
    assert first.started
    assert second.started
    return first, second


def together(first: World, second: World, seconds: float) -> None:
    """Lets time pass for both."""
    end = first.time.now + round(seconds * 10**9)
    while first.time.now < end:
        first.time.now += 5_000_000
        for _ in range(3):
            first.settle()
            second.settle()


def test_nothing_configured() -> None:
    assert World(partitioning=True).failure == "stan: no configured channel"


@pytest.mark.parametrize(
    ("entries", "conflict"), [((b"x", b"foo"), "foo"), ((b"*",), "*"), ((b"bar.x",), "bar.x"), ((b"bar.>",), "bar.>")]
)
def test_a_newcomer_with_the_same_channels_does_not_start(entries: tuple[bytes, ...], conflict: str) -> None:
    time = Time()
    bus = Bus(time)
    first = server(time, bus, b"foo", b"bar.*")
    first.advance(1.1)
    second = server(time, bus, *entries)
    together(first, second, 1.1)
    own = first.server.server_id
    assert second.failure == f'channel "{conflict}" causes conflict with channels on server "{own}"'
    assert first.failure is None


def test_only_owned_channels_are_listened_to(worlds: tuple[World, World]) -> None:
    first, _ = worlds
    subjects = first.bus.listened()
    assert b"_STAN.pub.test-cluster.>" not in subjects
    assert {b"_STAN.pub.test-cluster.foo", b"_STAN.pub.test-cluster.bar.*"} <= set(subjects)


def test_both_know_the_client(worlds: tuple[World, World]) -> None:
    first, second = worlds
    first.connect()
    second.settle()
    assert len(first.server.clients) == len(second.server.clients) == 1
    assert len(first.ping(b"me-conn")) == 2
    assert first.publish(b"foo", b"x") == [b""]
    request = first.request(b"foo").SerializeToString()
    assert len(first.ask(first.subjects.subscribe, request)) == 1, "only one of them answers"
    request = first.request(b"nobodys").SerializeToString()
    assert first.ask(first.subjects.subscribe, request) == []
    request = pb.UnsubscribeRequest(client_id=b"me", subject=b"nobodys", inbox=b"x").SerializeToString()
    assert first.ask(first.subjects.unsubscribe, request) == []


def test_requests_wait_for_their_client() -> None:
    time = Time()
    world = server(time, Bus(time), b"foo")
    world.advance(1.1)
    assert world.publish(b"foo", b"1", b"2", connection=b"me-conn") == []
    request = world.request(b"foo").SerializeToString()
    assert world.ask(world.subjects.subscribe, request) == []
    world.advance(0.5)
    world.bus.sent.clear()
    assert not world.connect().error
    assert world.channel(b"foo").messages.last == 2
    kinds = [sent.subject for sent in world.bus.sent]
    assert len([kind for kind in kinds if kind.startswith(b"_INBOX")]) == 6, "two acks, two answers, two messages"


def test_those_whose_client_does_not_come_are_refused() -> None:
    time = Time()
    world = server(time, Bus(time), b"foo")
    world.advance(1.1)
    reply = b"acks"
    subject = b"_STAN.pub.test-cluster.foo"
    message = world.message(b"foo", connection=b"x")
    world.bus.feed([(subject, message, reply)])
    world.advance(0.99)
    assert [sent for sent in world.bus.sent if sent.subject == reply] == []
    world.advance(0.02)
    refused = protocol.PubAck(guid=b"g", error=b"stan: invalid publish request").SerializeToString()
    assert [sent.payload for sent in world.bus.sent if sent.subject == reply] == [refused]
    assert world.ask(subject, message) == [refused], "and at once the next time"
    request = world.request(b"foo", client=b"nobody").SerializeToString()
    assert world.ask(world.subjects.subscribe, request) == []
    world.advance(1.01)
    (answer,) = world.ask(world.subjects.subscribe, request)
    assert protocol.SubscriptionResponse.FromString(answer).error == b"stan: invalid subscription request"
    world.connect(b"me", connection=b"x")
    assert world.publish(b"foo", b"x", connection=b"x") == [b""]


def test_servers_that_are_found_later() -> None:
    time = Time()
    bus, other_bus = Bus(time), Bus(time)
    first, second = server(time, bus, b"foo"), server(time, other_bus, b"foo")
    together(first, second, 1.1)
    assert first.started
    assert second.started
    # Now they are on one bus.
    bus.listeners |= {-number: each for number, each in other_bus.listeners.items()}
    other_bus.publish, other_bus.publish_block = bus.publish, bus.publish_block  # type: ignore[method-assign]
    first.server.servers_discovered()
    together(first, second, 0.6)
    assert first.driver.fatal_message is not None
    assert first.driver.fatal_message.startswith('Partitioning error: channel "foo" causes conflict')


def test_lists() -> None:
    entries = [b"foo", b"bar.*", b"x" * 300]
    (piece,) = encode_list(entries, 1000)
    assert decode_list(piece) == entries
    pieces = encode_list(entries, 310)
    assert len(pieces) == 2
    assert [entry for piece in pieces for entry in decode_list(piece)] == entries
    for size in range(len(piece)):
        if size in (0, 5, 12):
            assert decode_list(piece[:size]) == entries[: (0, 5, 12).index(size)]
        else:
            with pytest.raises(ValueError, match="unable to decode"):
                decode_list(piece[:size])
    with pytest.raises(ValueError, match=r"unable to decode size, pos=5 len=6"):
        decode_list(piece[:6])
    with pytest.raises(ValueError, match=r"unable to decode channel, pos=2 len=3 max=4 \(string=fo\)"):
        decode_list(piece[:4])


@pytest.mark.parametrize(("max_payload", "fits"), [(336, False), (337, True)])
def test_a_list_that_does_not_fit(max_payload: int, fits: bool) -> None:
    """Two bytes and the name, 26 bytes of a message with an id of 22, and nine to be on the safe side."""
    time = Time()
    bus = Bus(time)
    bus.max_payload = max_payload
    world = server(time, bus, b"foo", b"x" * 300)
    assert len(world.server.server_id) == 22
    world.advance(1.1)
    assert world.started == fits
    assert world.failure == (
        None if fits else "unable to send channels list: message payload too small to send channels list"
    )


def test_a_list_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """There is no answer, which would say that there is no conflict."""
    time = Time()
    bus = Bus(time)
    first = server(time, bus, b"foo")
    first.advance(1.1)
    for data, said in (
        (b"\3\0foo\1", "unable to decode size, pos=5 len=6"),
        (b"\3\0bar\4\0x", "unable to decode channel, pos=7 len=4 max=8 (string=x)"),
    ):
        caplog.clear()
        message = protocol.CtrlMsg(msg_type=protocol.CtrlMsg.PARTITIONING, server_id=b"other", data=data)
        assert first.ask(b"_STAN.part.test-cluster", message.SerializeToString()) == []
        assert [each.getMessage() for each in caplog.records] == [f"Error processing partitioning request: {said}"]
    caplog.clear()
    assert first.ask(b"_STAN.part.test-cluster", b"\xff") == []
    assert caplog.records[0].getMessage().startswith("Error processing partitioning request: ")


def test_an_answer_that_cannot_be_read() -> None:
    time = Time()
    bus = Bus(time)
    world = server(time, bus, b"foo")
    (asked,) = [sent for sent in bus.sent if sent.subject == b"_STAN.part.test-cluster"]
    bus.feed([(asked.reply, b"\xff", b"")])
    world.advance(1.1)
    assert not world.started
    assert world.failure is not None
    assert world.failure.startswith("unable to decode partitioning response: ")


def test_a_list_that_cannot_be_sent_now() -> None:
    """While the connection is lost, silence says nothing."""
    time = Time()
    bus = Bus(time)
    bus.connected = False
    world = server(time, bus, b"foo")
    world.advance(5)
    assert not world.started
    assert world.failure is None
    bus.connected = True
    world.advance(1.6)
    assert world.started


def test_what_waits_has_a_bound() -> None:
    world = World()
    waiting = PendingConnects(world.context)
    ended: list[str] = []
    calls = partial(ended.append, "resumed"), partial(ended.append, "refused")
    assert waiting.add(b"a", b"", 60 << 20, *calls)
    assert not waiting.add(b"b", b"", 8 << 20, *calls)
    assert waiting.add(b"b", b"", 1 << 20, *calls)
    world.advance(1.1)
    assert ended == ["refused", "refused"]
    assert not waiting.add(b"a", b"", 1, *calls)
    for i in range(300):
        assert waiting.add(b"%d" % i, b"", 1, *calls)
    world.advance(1.1)
    assert waiting.add(b"a", b"", 1, *calls), "no more than 256 are remembered"
    assert isinstance(world.driver, Wishes)
