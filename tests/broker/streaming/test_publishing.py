"""Publishes: streaming-protocol.md section 11, names of section 10, and traces 3 and 4 of section 27."""

from __future__ import annotations

import pytest

from broker.stores.interface import StorageError
from broker.stores.memory import MemoryStore
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import StoreLimits
from tests.broker.streaming.world import START, World

INVALID = b"stan: invalid publish request"


@pytest.fixture
def world() -> World:
    world = World()
    world.connect()
    return world


@pytest.mark.parametrize("name", [b"foo.", b".foo", b"foo..bar", b"foo.*", b"foo.>", b"foo>", b"foo/bar", b""])
def test_channel_names_that_are_refused(world: World, name: bytes) -> None:
    assert world.publish(name, b"x") == [INVALID]


@pytest.mark.parametrize("name", [b"foo bar", b"f\\oo", "é".encode(), b"\x01", b"\xff", b"a.b.c"])
def test_channel_names_that_are_fine(world: World, name: bytes) -> None:
    assert world.publish(name, b"x") == [b""]
    assert world.channel(name).messages.last == 1


def test_bad_payloads(world: World) -> None:
    assert world.publish_raw(b"") == [protocol.PubAck(error=INVALID)]
    assert world.publish_raw(b"\xff\xff\xff") == [protocol.PubAck(error=INVALID)]
    no_guid = world.message(b"foo", b"x", guid=b"")
    assert world.publish_raw(no_guid) == [protocol.PubAck(error=INVALID)]
    bad_name = world.message(b"foo.*", guid=b"my-guid")
    assert world.publish_raw(bad_name) == [protocol.PubAck(guid=b"my-guid", error=INVALID)]


def test_control_messages_are_dropped(world: World) -> None:
    control = protocol.CtrlMsg(msg_type=protocol.CtrlMsg.PARTITIONING, server_id=b"x", data=b"y")
    assert world.publish_raw(control.SerializeToString()) == []


def test_a_connection_id_alone_decides(world: World) -> None:
    assert world.publish(b"foo", b"x", client=b"nobody", connection=b"me-conn") == [b""]
    assert world.publish(b"foo", b"x", client=b"", connection=b"me-conn") == [b""]
    assert world.publish(b"foo", b"x", client=b"me", connection=b"wrong") == [INVALID]
    assert world.publish(b"foo", b"x", client=b"me") == [b""], "without one the client id does, for any protocol"
    assert world.publish(b"foo", b"x", client=b"nobody") == [INVALID]


@pytest.mark.parametrize("there", [False, True])
def test_the_message_and_its_subject_name_one_channel(
    world: World, caplog: pytest.LogCaptureFixture, there: bool
) -> None:
    """Else permissions for the subjects of channels could be got round."""
    if there:
        world.publish(b"real", b"x")
    for subject in (b"other", b"real.x", b"rea", b"Real"):
        caplog.clear()
        acks = world.publish_raw(world.message(b"real", b"x"), subject)
        assert acks == [protocol.PubAck(guid=b"g", error=INVALID)]
        assert [(each.levelname, each.message) for each in caplog.records] == [
            (
                "WARNING",
                "[Client:me] Refused a message for channel real that was published to subject "
                f"_STAN.pub.test-cluster.{subject.decode()}",
            )
        ]
        assert world.channel(subject) is None
    assert (world.channel(b"real") is not None) == there
    assert world.publish(b"real", b"x") == [b""]
    assert world.channel(b"real").messages.last == 1 + there


def test_as_in_the_original_the_message_says_which_channel() -> None:
    world = World(any_publish_subject=True)
    world.connect()
    acks = world.publish_raw(world.message(b"real", b"x"), b"other")
    assert acks == [protocol.PubAck(guid=b"g")]
    assert world.channel(b"other") is None
    assert world.channel(b"real").messages.last == 1


def test_an_odd_encoding_is_stored_in_the_usual_one(world: World) -> None:
    # An unknown group, which the kernels leave to the general decoder.
    payload = world.message(b"foo", b"hello") + bytes([15 << 3 | 3, 15 << 3 | 4])
    assert world.publish_raw(payload) == [protocol.PubAck(guid=b"g")]
    stored = pb.MsgProto.FromString(world.channel(b"foo").messages.read(1, 1).payload(0))
    assert (stored.sequence, stored.data) == (1, b"hello")
    assert world.server.statistics.in_bytes == len(payload)


def test_good_and_bad_ones_in_one_batch_keep_their_order(world: World) -> None:
    reply, prefix = b"acks", b"_STAN.pub.test-cluster."
    messages = []
    for i in range(10):
        channel = (b"foo", b"bad.", b"bar")[i % 3]
        messages.append((prefix + channel, world.message(channel, b"%d" % i, guid=b"%d" % i), reply))
    world.bus.feed(messages)
    world.settle()
    acks = [protocol.PubAck.FromString(sent.payload) for sent in world.bus.sent if sent.subject == reply]
    assert [ack.guid for ack in acks if ack.error] == [b"1", b"4", b"7"]
    assert [ack.guid for ack in acks if not ack.error] == [b"0", b"2", b"3", b"5", b"6", b"8", b"9"]
    foo = world.channel(b"foo").messages.read(1, 10)
    assert [pb.MsgProto.FromString(foo.payload(row)).data for row in range(len(foo))] == [b"0", b"3", b"6", b"9"]


def test_the_message_comes_before_the_ack(world: World) -> None:
    subscriber = world.subscribe(b"foo")
    world.bus.sent.clear()
    world.publish(b"foo", b"1", b"2", b"3")
    inbox = subscriber.request.inbox
    assert [sent.subject == inbox for sent in world.bus.sent] == [True] * 3 + [False] * 3


def test_acks_go_where_each_message_says(world: World) -> None:
    subject = b"_STAN.pub.test-cluster.foo"
    replies = [b"a", b"a", b"b", b"", b"a"]
    world.bus.sent.clear()
    world.bus.feed([(subject, world.message(b"foo", guid=b"%d" % i), reply) for i, reply in enumerate(replies)])
    world.settle()
    assert [(sent.subject, protocol.PubAck.FromString(sent.payload).guid) for sent in world.bus.sent] == [
        (b"a", b"0"),
        (b"a", b"1"),
        (b"b", b"2"),
        (b"a", b"4"),
    ]
    assert world.channel(b"foo").messages.last == 5


def test_the_same_guid_is_stored_twice(world: World) -> None:
    message = world.message(b"foo")
    world.publish_raw(message)
    world.publish_raw(message)
    assert world.channel(b"foo").messages.last == 2


def test_statistics(world: World) -> None:
    subscriber = world.subscribe(b"foo")
    message = world.message(b"foo", b"hello")
    world.publish_raw(message)
    world.publish_raw(world.message(b"foo", client=b"nobody"))
    statistics = world.server.statistics
    assert statistics.in_msgs == 2
    assert statistics.in_bytes == len(message) + len(world.message(b"foo", client=b"nobody"))
    (delivered,) = [sent for sent in world.bus.sent if sent.subject == subscriber.request.inbox]
    assert (statistics.out_msgs, statistics.out_bytes) == (1, len(delivered.payload))


def test_timestamps_never_go_back(world: World) -> None:
    world.publish(b"foo", b"1")
    world.time.now -= 10**9
    world.publish(b"foo", b"2")
    world.time.now += 5 * 10**9
    world.publish(b"foo", b"3")
    timestamps = world.channel(b"foo").messages.read(1, 3).timestamps.tolist()
    assert timestamps[0] == timestamps[1] == world.time.now - 4 * 10**9 + START
    assert timestamps[2] == timestamps[0] + 4 * 10**9


def test_waiting_for_more() -> None:
    world = World(io_sleep_time=200_000_000)
    world.connect()
    assert world.publish(b"foo", b"x") == []
    world.bus.sent.clear()
    world.advance(0.1)
    world.publish(b"foo", b"y")
    world.advance(0.09)
    assert world.bus.sent == []
    world.advance(0.02)
    assert len(world.bus.sent) == 2


@pytest.mark.parametrize("size", [-1, 0, 1, 3, 4, 1024])
def test_a_batch_has_a_bound(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(io_batch_size=size)
    world.connect()
    world.publish(b"foo", b"first")
    flushed = []
    messages = world.channel(b"foo").messages
    add = messages.add
    monkeypatch.setattr(messages, "flush", lambda: flushed.append(messages.last))
    monkeypatch.setattr(messages, "add", lambda record: add(record) and not flushed.append(messages.last))
    assert world.publish(b"foo", *[b"x"] * 10) == [b""] * 10
    expected = {3: [4, 7, 10, 11], 4: [5, 9, 11], 1024: [11]}.get(size, list(range(2, 12)))
    assert flushed == expected


def test_the_usual_batch_may_grow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.connect()
    world.publish(b"foo", b"first")
    flushed = []
    messages = world.channel(b"foo").messages
    monkeypatch.setattr(messages, "flush", lambda: flushed.append(messages.last))
    assert world.publish(b"foo", *[b"x"] * 5000) == [b""] * 5000
    assert flushed == [4097, 5001]


class TestGathering:
    """What many connections sent is staged as one, without anybody noticing."""

    def test_one_block_for_many_connections(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(2):
            world.publish(b"foo", b"0")
        messages = world.channel(b"foo").messages
        counts: list[int] = []
        append = messages.append
        monkeypatch.setattr(messages, "append", lambda records: (counts.append(len(records)), append(records)))
        subject = b"_STAN.pub.test-cluster.foo"
        subscriber = world.subscribe(b"foo")
        world.bus.feed(
            [(subject, world.message(b"foo", b"%d" % i, guid=b"%d" % i), b"acks.%d" % (i % 7)) for i in range(40)]
        )
        world.bus.feed([(subject, world.message(b"foo", b"x" * 300_000, guid=b"large"), b"acks.large")])
        world.bus.feed([(subject, world.message(b"foo", b"last", guid=b"last"), b"acks.large")])
        world.settle()
        assert counts == [40, 1, 1]
        assert [each.data[:5] for each in subscriber.new()] == [
            b"0", b"0", *(b"%d" % i for i in range(40)), b"xxxxx", b"last"
        ]  # fmt: skip
        acked = [sent for sent in world.bus.sent if sent.subject.startswith(b"acks.")]
        for reply, guids in {b"acks.3": range(3, 40, 7), b"acks.large": (b"large", b"last")}.items():
            assert [protocol.PubAck.FromString(each.payload).guid for each in acked if each.subject == reply] == [
                guid if isinstance(guid, bytes) else b"%d" % guid for guid in guids
            ]

    def test_more_than_fit(self, world: World) -> None:
        subject = b"_STAN.pub.test-cluster.foo"
        for i in range(3000):
            world.bus.feed([(subject, world.message(b"foo", b"%d" % i), b"")])
        world.settle()
        assert [each.data for each in world.subscribe(b"foo", max_in_flight=4000).new()] == [
            b"%d" % i for i in range(3000)
        ]

    def test_a_client_that_publishes_and_leaves(self, world: World) -> None:
        world.connect(b"other")
        subject = b"_STAN.pub.test-cluster.foo"
        world.bus.feed([(subject, world.message(b"foo", b"1", b"other"), b"ack")])
        world.bus.feed([(world.subjects.close, pb.CloseRequest(client_id=b"other").SerializeToString(), b"closed")])
        world.bus.feed([(subject, world.message(b"foo", b"2", b"other"), b"ack")])
        world.settle()
        answers = [sent for sent in world.bus.sent if sent.subject in (b"ack", b"closed")]
        assert [(each.subject, protocol.PubAck.FromString(each.payload).error) for each in answers] == [
            (b"ack", b""), (b"closed", b""), (b"ack", INVALID)
        ]  # fmt: skip
        assert world.channel(b"foo").messages.last == 1

    def test_a_subscription_from_now_on(self, world: World) -> None:
        world.publish(b"foo", b"1")
        world.bus.feed([(b"_STAN.pub.test-cluster.foo", world.message(b"foo", b"2"), b"")])
        request = world.request(b"foo", start_position=pb.NEW_ONLY)
        world.bus.feed([(world.subjects.subscribe, request.SerializeToString(), b"answer")])
        world.bus.feed([(b"_STAN.pub.test-cluster.foo", world.message(b"foo", b"3"), b"")])
        world.settle()
        got = [pb.MsgProto.FromString(sent.payload).data for sent in world.bus.sent if sent.subject == request.inbox]
        assert got == [b"3"]

    def test_a_publish_that_came_before_the_end(self, world: World) -> None:
        world.bus.feed([(b"_STAN.pub.test-cluster.foo", world.message(b"foo", b"1", guid=b"g"), b"ack")])
        world.server.stop()
        assert protocol.PubAck.FromString(world.bus.sent[-1].payload) == protocol.PubAck(guid=b"g")


class TestFailures:
    """A store that fails: publishers are told, nothing that was acknowledged is lost, and it goes on."""

    @staticmethod
    def failing_flush(monkeypatch: pytest.MonkeyPatch, world: World, channel: bytes) -> None:
        messages = world.channel(channel).messages
        last, first, count, size = messages.last, messages.first, messages.count, messages.bytes
        kept = messages.read(1, 1000)

        def fail() -> None:
            messages.__init__(channel, messages.limits)
            if len(kept):
                messages.append(kept)
            assert (messages.last, messages.first, messages.count, messages.bytes) == (last, first, count, size)
            raise StorageError("no space left on device")

        monkeypatch.setattr(messages, "flush", fail)

    def test_a_failing_flush(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.publish(b"foo", b"1")
        world.publish(b"bar", b"1")
        subscriber = world.subscribe(b"foo")
        assert subscriber.sequences() == [1]
        prefix = b"_STAN.pub.test-cluster."
        with monkeypatch.context() as patch:
            self.failing_flush(patch, world, b"foo")
            world.bus.feed(
                [
                    (prefix + name, world.message(name, guid=name + b"%d" % number), b"acks")
                    for number, name in enumerate([b"foo", b"bar", b"foo", b"bar"])
                ]
            )
            world.settle()
        acks = [protocol.PubAck.FromString(sent.payload) for sent in world.bus.sent if sent.subject == b"acks"]
        full = b"no space left on device"
        assert [(ack.guid, ack.error) for ack in acks] == [
            (b"foo0", full),
            (b"bar1", b""),
            (b"foo2", full),
            (b"bar3", b""),
        ]
        assert subscriber.sequences() == []
        assert world.publish(b"foo", b"again") == [b""]
        assert [(each.sequence, each.data) for each in subscriber.new()] == [(2, b"again")]

    def test_a_failing_append(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.publish(b"foo", b"1")
        world.publish(b"bar", b"1")

        def fail(_records: object) -> None:
            raise StorageError("disk quota exceeded")

        with monkeypatch.context() as patch:
            # Single messages are added by themselves only where that cannot fail.
            patch.setattr(world.channel(b"foo"), "single_store", None)
            patch.setattr(world.channel(b"foo").messages, "append", fail)
            assert world.publish(b"foo", b"2") == [b"disk quota exceeded"]
            assert world.publish(b"bar", b"2") == [b""]
        assert world.publish(b"foo", b"2") == [b""]
        assert world.channel(b"foo").messages.last == 2

    def test_a_failing_append_that_takes_more_with_it(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.publish(b"foo", b"1")
        world.channel(b"foo").single_store = None
        messages = world.channel(b"foo").messages
        kept = messages.read(1, 1)
        append = messages.append
        calls = []

        def second_fails(records: object) -> None:
            calls.append(records)
            if len(calls) == 2:
                messages.__init__(b"foo", messages.limits)
                append(kept)
                raise StorageError("broken")
            append(records)  # type: ignore[arg-type]

        subscriber = world.subscribe(b"foo")
        assert subscriber.sequences() == [1]
        with monkeypatch.context() as patch:
            patch.setattr(messages, "append", second_fails)
            subject = b"_STAN.pub.test-cluster.foo"
            for i in range(3):
                world.bus.feed([(subject, world.message(b"foo", b"%d" % i, guid=b"%d" % i), b"acks")])
                # With a request that comes behind it, each is appended by itself.
                world.bus.feed([(world.subjects.pings, b"", b"")])
            world.settle()
        acks = [protocol.PubAck.FromString(sent.payload) for sent in world.bus.sent if sent.subject == b"acks"]
        assert [(ack.guid, ack.error) for ack in acks] == [(b"0", b"broken"), (b"1", b"broken"), (b"2", b"")]
        assert [(each.sequence, each.data) for each in subscriber.new()] == [(2, b"2")]

    def test_a_failing_subscription_store_does_not_stop_delivery(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subscriber = world.subscribe(b"foo", max_in_flight=1)

        def fail(*_: object) -> None:
            raise StorageError("broken")

        store = world.channel(b"foo").store
        for name in ("sent", "acked", "flush"):
            monkeypatch.setattr(store, name, fail)
        assert world.publish(b"foo", b"1", b"2") == [b"", b""]
        assert subscriber.sequences() == [1]
        subscriber.ack(1)
        assert subscriber.sequences() == [2]


class TestChannels:
    """How many there may be, and how they are spelled."""

    def test_too_many(self) -> None:
        world = World(store=MemoryStore(StoreLimits(max_channels=1)))
        world.connect()
        assert world.publish(b"foo", b"x") == [b""]
        assert world.publish(b"bar", b"x") == [b"too many channels"]
        assert world.subscribe(b"bar").error == b"too many channels"
        assert world.publish(b"foo", b"x") == [b""]

    def test_names_differ_in_more_than_case(self, world: World) -> None:
        world.publish(b"foo", b"x")
        error = b'rejecting channel "FOO" because channel "foo" alreay exists (different cases not allowed)'
        assert world.publish(b"FOO", b"x") == [error]
        assert world.subscribe(b"FOO").error == error
        assert world.publish(b"foo", b"x") == [b""]


TOO_LARGE = (
    b"stan: message too large: %d bytes, and %d are the most in this channel (max_payload of the NATS server is 1000)"
)


def test_what_could_not_be_delivered_is_refused(world: World) -> None:
    """By itself, in a batch with others; the largest that is stored can be delivered, again as well."""
    world.bus.deliverable = world.bus.max_payload = 1000
    subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
    most = 1000 - 8 - 40 - len(b"foo")
    sizes = [10, 300, most, most + 1, 300, 2000]
    messages = [
        (
            b"_STAN.pub.test-cluster.foo",
            world.message(b"foo", bytes(size), guid=b"%d" % number),
            b"acks",
        )
        for number, size in enumerate(sizes)
    ]
    world.publish(b"foo", b"there")
    world.bus.feed(messages)
    world.settle()
    acks = [protocol.PubAck.FromString(sent.payload) for sent in world.bus.sent if sent.subject == b"acks"]
    assert [ack.error for ack in acks] == [
        *[b""] * 3,
        TOO_LARGE % (most + 1, most),
        b"",
        TOO_LARGE % (2000, most),
    ]
    assert subscriber.sequences() == [1, 2, 3, 4, 5]
    for _ in range(3):
        world.advance(1.1)
        assert subscriber.sequences() == [1, 2, 3, 4, 5]


def test_what_the_bus_does_not_carry_any_more(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It waits, and so does what is behind it; the log says why, once."""
    world.publish(b"foo", b"1", bytes(2000), b"3")
    world.bus.deliverable = world.bus.max_payload = 1000
    plain = world.subscribe(b"foo", start_position=pb.FIRST)
    member = world.subscribe(b"foo", start_position=pb.FIRST, q_group=b"q")
    world.publish(b"foo", b"4")
    assert plain.sequences() == member.sequences() == [1]
    said = [each.message for each in caplog.records if "cannot be delivered" in each.message]
    assert len(said) == 1
    assert 'Channel "foo": message 2 cannot be delivered' in said[0]
    assert "max_payload of the NATS server is 1000. Raise that to 20" in said[0]
    world.bus.deliverable = 3000
    world.publish(b"foo", b"5")
    assert plain.sequences() == member.sequences() == [2, 3, 4, 5]
