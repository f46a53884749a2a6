"""Subscriptions, delivery, acknowledgements and redelivery: streaming-protocol.md sections 12 to 17 and 20."""

from __future__ import annotations

from typing import Any

import pytest

from broker.stores.interface import StorageError
from broker.stores.memory import MemoryStore
from broker.streaming.commits import SHARE
from broker.streaming.ports import Role
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.broker.streaming.world import SECOND, Delivered, Subscriber, World


@pytest.fixture
def world() -> World:
    world = World()
    world.connect()
    return world


def limited(**limits: int) -> World:
    world = World(store=MemoryStore(StoreLimits(channel=ChannelLimits(**limits))))
    world.connect()
    return world


def number(world: World, channel: bytes, count: int) -> None:
    """Publishes messages that say their numbers."""
    world.publish(channel, *[b"%d" % i for i in range(1, count + 1)])


def shown(messages: list[Delivered]) -> list[tuple[int, int]]:
    return [(each.sequence, each.count) for each in messages]


class TestRequests:
    """Section 12: what is refused, and in which order."""

    @pytest.mark.parametrize(
        ("wishes", "error"),
        [
            ({"client_id": b""}, b"stan: clientID missing"),
            ({"client_id": b"", "ack_wait_in_secs": 0}, b"stan: clientID missing"),
            ({"ack_wait_in_secs": 0}, b"stan: invalid ack wait time, should be >= 1s"),
            ({"ack_wait_in_secs": -1, "max_in_flight": 0}, b"stan: invalid ack wait time, should be >= 1s"),
            ({"max_in_flight": 0}, b"stan: invalid MaxInflight, should be >= 1"),
            ({"start_position": 5}, b"stan: invalid start position"),
            ({"start_position": -1, "subject": b""}, b"stan: invalid start position"),
            ({"subject": b"foo.*"}, b"stan: invalid subject"),
            ({"subject": b"", "client_id": b"nobody"}, b"stan: invalid subject"),
            ({"client_id": b"nobody"}, b"stan: unknown clientID"),
            (
                {"q_group": b"g", "durable_name": b"a:b"},
                b"stan: durable name of a durable queue subscriber can't contain the character ':'",
            ),
        ],
    )
    def test_refused(self, world: World, wishes: dict[str, object], error: bytes) -> None:
        request = world.request(b"foo")
        for name, value in wishes.items():
            setattr(request, name, value)
        (answer,) = world.ask(world.subjects.subscribe, request.SerializeToString())
        assert protocol.SubscriptionResponse.FromString(answer) == protocol.SubscriptionResponse(error=error)

    def test_garbage(self, world: World) -> None:
        for subject, error in (
            (world.subjects.subscribe, b"stan: invalid subscription request"),
            (world.subjects.unsubscribe, b"stan: invalid unsubscribe request"),
            (world.subjects.sub_close, b"stan: invalid unsubscribe request"),
        ):
            (answer,) = world.ask(subject, b"\xff")
            assert protocol.SubscriptionResponse.FromString(answer).error == error

    def test_the_bound_of_subscriptions(self) -> None:
        world = limited(max_subs=2)
        assert not world.subscribe(b"foo", durable_name=b"d").close()
        assert not world.subscribe(b"foo").error
        assert world.subscribe(b"foo").error == b"too many subscriptions per channel"
        assert not world.subscribe(b"foo", durable_name=b"d").error, "resuming is no new one"
        assert not world.subscribe(b"bar").error

    def test_names_with_colons(self, world: World) -> None:
        assert not world.subscribe(b"foo", durable_name=b"a:b").error
        assert not world.subscribe(b"foo", q_group=b"a:b").error

    def test_an_inbox_may_be_empty(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", inbox=b"")
        assert not subscriber.error
        world.publish(b"foo", b"x")
        assert subscriber.sequences() == []

    def test_the_answer_comes_before_the_messages(self, world: World) -> None:
        number(world, b"foo", 3)
        world.bus.sent.clear()
        subscriber = world.subscribe(b"foo")
        assert [sent.subject == subscriber.request.inbox for sent in world.bus.sent] == [False, True, True, True]

    def test_nothing_comes_before_the_answer(self, world: World) -> None:
        number(world, b"foo", 3)
        world.bus.barriers = []
        request = world.request(b"foo")
        assert world.ask(world.subjects.subscribe, request.SerializeToString()) == []
        world.publish(b"foo", b"x")
        subscriber = Subscriber(world, request, b"", b"")
        assert subscriber.sequences() == []
        world.bus.barriers[0]()
        world.settle()
        assert subscriber.sequences() == [1, 2, 3, 4]

    def test_a_client_that_ends_while_it_subscribes(self, world: World) -> None:
        number(world, b"foo", 3)
        world.bus.barriers = []
        request = world.request(b"foo")
        world.ask(world.subjects.subscribe, request.SerializeToString())
        world.ask(world.subjects.close, pb.CloseRequest(client_id=b"me").SerializeToString())
        for barrier in reversed(world.bus.barriers):
            barrier()
        world.settle()
        assert Subscriber(world, request, b"", b"").sequences() == []


class TestEnding:
    """Section 20: unsubscribe and close."""

    def test_whose_it_is(self, world: World) -> None:
        world.connect(b"other")
        subscriber = world.subscribe(b"foo")
        assert subscriber.unsubscribe(client=b"other") == b"stan: unknown clientID"
        assert subscriber.unsubscribe(client=b"nobody") == b"stan: unknown clientID"
        assert subscriber.unsubscribe(inbox=subscriber.request.inbox) == b""
        assert subscriber.unsubscribe() == b"stan: invalid subscription"
        assert subscriber.close() == b"stan: invalid subscription"

    def test_unknown_channel(self, world: World) -> None:
        subscriber = world.subscribe(b"foo")
        subscriber.request.subject = b"bar"
        assert subscriber.close() == b"stan: unknown channel"

    def test_success_says_nothing(self, world: World) -> None:
        subscriber = world.subscribe(b"foo")
        request = pb.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=subscriber.ack_inbox)
        assert world.ask(world.subjects.unsubscribe, request.SerializeToString()) == [b""]

    def test_nothing_comes_any_more(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
        number(world, b"foo", 1)
        assert subscriber.sequences() == [1]
        assert subscriber.close() == b""
        number(world, b"foo", 1)
        world.advance(5)
        assert subscriber.sequences() == []
        assert subscriber.ack_inbox not in world.bus.listened()


class TestStartPositions:
    """Section 13."""

    @pytest.mark.parametrize(
        ("wishes", "expected"),
        [
            ({"start_position": pb.NEW_ONLY}, [6]),
            ({"start_position": pb.LAST_RECEIVED}, [5, 6]),
            ({"start_position": pb.FIRST}, [1, 2, 3, 4, 5, 6]),
            ({"start_position": pb.SEQUENCE_START}, [1, 2, 3, 4, 5, 6]),
            ({"start_position": pb.SEQUENCE_START, "start_sequence": 3}, [3, 4, 5, 6]),
            ({"start_position": pb.SEQUENCE_START, "start_sequence": 5}, [5, 6]),
            ({"start_position": pb.SEQUENCE_START, "start_sequence": 6}, [6]),
            ({"start_position": pb.SEQUENCE_START, "start_sequence": 100}, [6]),
            ({"start_position": pb.TIME_DELTA_START}, [6]),
            ({"start_position": pb.TIME_DELTA_START, "start_time_delta": -5 * SECOND}, [6]),
            ({"start_position": pb.TIME_DELTA_START, "start_time_delta": 1 * SECOND}, [5, 6]),
            ({"start_position": pb.TIME_DELTA_START, "start_time_delta": 2 * SECOND + 1}, [4, 5, 6]),
            ({"start_position": pb.TIME_DELTA_START, "start_time_delta": 2 * SECOND - 1}, [5, 6]),
            ({"start_position": pb.TIME_DELTA_START, "start_time_delta": 3600 * SECOND}, [1, 2, 3, 4, 5, 6]),
            ({"start_position": pb.TIME_DELTA_START, "start_time_delta": 2**63 - 1}, [1, 2, 3, 4, 5, 6]),
        ],
    )
    def test_with_messages(self, world: World, wishes: dict[str, int], expected: list[int]) -> None:
        for i in range(5):
            world.publish(b"foo", b"%d" % i)
            world.advance(1)
        subscriber = world.subscribe(b"foo", **wishes)
        world.publish(b"foo", b"new")
        assert subscriber.sequences() == expected

    @pytest.mark.parametrize("position", range(5))
    @pytest.mark.parametrize("sequence", [0, 1, 100])
    def test_empty(self, world: World, position: int, sequence: int) -> None:
        subscriber = world.subscribe(b"foo", start_position=position, start_sequence=sequence)
        world.publish(b"foo", b"new")
        assert subscriber.sequences() == [1]

    @pytest.mark.parametrize("position", range(5))
    @pytest.mark.parametrize("sequence", [0, 3, 4, 100])
    def test_everything_is_too_old(self, position: int, sequence: int) -> None:
        world = limited(max_age_ns=SECOND)
        number(world, b"foo", 3)
        world.advance(1.5)
        messages = world.channel(b"foo").messages
        assert (messages.first, messages.last, messages.count) == (4, 3, 0)
        subscriber = world.subscribe(
            b"foo", start_position=position, start_sequence=sequence, start_time_delta=3600 * SECOND
        )
        world.publish(b"foo", b"new")
        assert subscriber.sequences() == [4]


class TestFlow:
    """Section 14: as many as wanted, in order."""

    def test_no_more_than_wanted(self, world: World) -> None:
        number(world, b"foo", 10)
        subscriber = world.subscribe(b"foo", max_in_flight=2)
        assert subscriber.sequences() == [1, 2]
        subscriber.ack(1)
        assert subscriber.sequences() == [3], "one for one, without waiting for more"
        subscriber.ack(3, 2)
        assert subscriber.sequences() == [4, 5]
        world.publish(b"foo", b"x")
        assert subscriber.sequences() == []

    def test_many(self, world: World) -> None:
        for _ in range(5):
            number(world, b"foo", 1000)
        subscriber = world.subscribe(b"foo", max_in_flight=100_000)
        assert subscriber.sequences() == list(range(1, 5001))
        subscriber.ack(*range(1, 5001))
        assert not world.channel(b"foo").plain[1].pending

    def test_messages_that_are_gone_are_left_out(self) -> None:
        world = limited(max_msgs=5)
        subscriber = world.subscribe(b"foo", max_in_flight=1)
        for i in range(10):
            world.publish(b"foo", b"%d" % i)
        assert subscriber.sequences() == [1]
        subscriber.ack(1)
        assert subscriber.sequences() == [6]

    def test_messages_that_are_gone_at_once(self) -> None:
        world = limited(max_msgs=3)
        subscriber = world.subscribe(b"foo")
        number(world, b"foo", 10)
        assert subscriber.sequences() == [8, 9, 10]

    def test_the_newest_stays(self) -> None:
        world = limited(max_bytes=10)
        subscriber = world.subscribe(b"foo")
        world.publish(b"foo", b"x" * 100)
        world.publish(b"foo", b"y" * 100)
        assert subscriber.sequences() == [1, 2]
        assert world.channel(b"foo").messages.count == 1

    def test_while_nats_is_away(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
        world.bus.connected = False
        number(world, b"foo", 2)
        world.bus.connected = True
        assert subscriber.sequences() == []
        world.publish(b"foo", b"x")
        assert [(each.sequence, each.redelivered) for each in subscriber.new()] == [(1, False), (2, False), (3, False)]

    def test_what_is_not_flushed_is_not_delivered(self) -> None:
        world = World(io_sleep_time=SECOND)
        world.connect()
        subscriber = world.subscribe(b"foo", max_in_flight=2)
        number(world, b"foo", 3)
        world.advance(1.1)
        assert subscriber.sequences() == [1, 2]
        number(world, b"foo", 3)
        assert world.channel(b"foo").messages.last == 6
        subscriber.ack(1, 2)
        assert subscriber.sequences() == [3]
        world.advance(1.1)
        assert subscriber.sequences() == [4]

    def test_several_subscribers(self, world: World) -> None:
        first = world.subscribe(b"foo", max_in_flight=3)
        second = world.subscribe(b"foo")
        other = world.subscribe(b"bar")
        number(world, b"foo", 5)
        assert first.sequences() == [1, 2, 3]
        assert second.sequences() == [1, 2, 3, 4, 5]
        assert other.sequences() == []


class TestAcks:
    """Section 15."""

    def test_what_has_no_effect(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", max_in_flight=1)
        world.publish(b"bar", b"x")
        number(world, b"foo", 3)
        assert subscriber.sequences() == [1]
        subscriber.ack(2, 100, 0)
        subscriber.ack(1, channel=b"bar")
        subscriber.ack(1, channel=b"nowhere")
        world.bus.feed([(subscriber.ack_inbox, b"\xff", b""), (subscriber.ack_inbox, b"", b"")])
        world.settle()
        assert subscriber.sequences() == []
        subscriber.ack(1)
        assert subscriber.sequences() == [2]
        subscriber.ack(1)
        assert subscriber.sequences() == []

    def test_odd_ones_among_good_ones(self, world: World) -> None:
        subscriber = world.subscribe(b"foo")
        number(world, b"foo", 3)
        good = [protocol.Ack(subject=b"foo", sequence=i).SerializeToString() for i in (1, 2, 3)]
        # The second one has an unknown group at its end.
        payloads = [good[0], good[1] + bytes([15 << 3 | 3, 15 << 3 | 4]), b"\xff", good[2]]
        world.bus.feed([(subscriber.ack_inbox, payload, b"") for payload in payloads])
        assert not world.channel(b"foo").plain[1].pending

    def test_unknown_channel_is_logged(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        subscriber = world.subscribe(b"foo")
        subscriber.ack(7, channel=b"nowhere")
        assert "Unable to process ack seq=7, channel nowhere not found" in caplog.messages


class TestRedelivery:
    """Section 16, and traces 7, 8 and 11 of section 27."""

    def test_again_and_again(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", max_in_flight=2, ack_wait_in_secs=1)
        number(world, b"foo", 4)
        assert shown(subscriber.new()) == [(1, 0), (2, 0)]
        world.advance(0.98)
        assert subscriber.sequences() == []
        world.advance(0.05)
        assert shown(subscriber.new()) == [(1, 1), (2, 1)]
        world.advance(1)
        assert shown(subscriber.new()) == [(1, 2), (2, 2)]
        subscriber.ack(1)
        assert shown(subscriber.new()) == [(3, 0)]
        subscriber.ack(2, 3)
        assert shown(subscriber.new()) == [(4, 0)]
        subscriber.ack(4)
        world.advance(10)
        assert subscriber.sequences() == []

    def test_each_at_its_own_time(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
        for _ in range(4):
            world.publish(b"foo", b"x")
            world.advance(0.2)
        subscriber.new()
        times: list[tuple[float, int, int]] = []
        began = world.now - 0.8
        while world.now < began + 3:
            world.advance(0.01)
            times += [(round(world.now - began, 1), each.sequence, each.count) for each in subscriber.new()]
        assert times == [
            *[(1.0, 1, 1), (1.2, 2, 1), (1.4, 3, 1), (1.6, 4, 1)],
            *[(2.0, 1, 2), (2.2, 2, 2), (2.4, 3, 2), (2.6, 4, 2), (3.0, 1, 3)],
        ]

    def test_a_late_timer_does_not_move_the_others(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
        number(world, b"foo", 1)
        subscriber.new()
        world.time.now += SECOND + 3 * SECOND // 10
        world.settle()
        assert shown(subscriber.new()) == [(1, 1)]
        world.advance(0.65)
        assert subscriber.sequences() == []
        world.advance(0.1)
        assert shown(subscriber.new()) == [(1, 2)], "two seconds after the first delivery"
        world.time.now += 10 * SECOND
        world.settle()
        assert shown(subscriber.new()) == [(1, 3)]
        world.advance(0.9)
        assert subscriber.sequences() == []
        world.advance(0.2)
        assert shown(subscriber.new()) == [(1, 4)], "once per ackWait, however late it was"

    def test_the_stored_message_does_not_change(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
        world.publish(b"foo", b"x" * 300)
        world.advance(1.1)
        first, again = [sent.payload for sent in world.bus.sent if sent.subject == subscriber.request.inbox]
        assert world.channel(b"foo").messages.read(1, 1).payload(0) == first
        message = pb.MsgProto.FromString(first)
        message.redelivered = True
        message.redelivery_count = 1
        assert again == message.SerializeToString()

    def test_messages_that_are_gone_count_as_acknowledged(self) -> None:
        world = limited(max_msgs=5)
        subscriber = world.subscribe(b"foo", max_in_flight=1, ack_wait_in_secs=2)
        for i in range(10):
            world.publish(b"foo", b"%d" % i)
        assert subscriber.sequences() == [1]
        world.advance(2.1)
        assert shown(subscriber.new()) == [(6, 0)]

    def test_some_are_gone_and_some_are_not(self) -> None:
        world = limited(max_msgs=5)
        subscriber = world.subscribe(b"foo", max_in_flight=8, ack_wait_in_secs=2)
        for i in range(8):
            world.publish(b"foo", b"%d" % i)
        subscriber.ack(5)
        subscriber.new()
        world.advance(2.1)
        assert shown(subscriber.new()) == [(4, 1), (6, 1), (7, 1), (8, 1)]

    def test_a_client_without_heartbeat_is_skipped(self) -> None:
        world = World(heartbeat_interval=5 * 10**8, heartbeat_timeout=10**8)
        world.connect(alive=None)
        subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
        number(world, b"foo", 1)
        assert subscriber.sequences() == [1]
        world.advance(3.1)
        assert subscriber.sequences() == []
        number(world, b"foo", 1)
        assert subscriber.sequences() == [2], "new messages come all the same"
        world.bus.responders[b"_HB.me"] = b""
        world.advance(2)
        assert shown(subscriber.new())[:1] == [(1, 1)]

    def test_more_than_wanted_is_no_reason(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", durable_name=b"d", max_in_flight=5)
        number(world, b"foo", 7)
        assert subscriber.sequences() == [1, 2, 3, 4, 5]
        subscriber.close()
        again = world.subscribe(b"foo", durable_name=b"d", max_in_flight=2, ack_wait_in_secs=1)
        assert shown(again.new()) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
        world.advance(1.1)
        assert shown(again.new()) == [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)]

    def test_counts_begin_anew_after_an_ack(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
        number(world, b"foo", 1)
        world.advance(1.1)
        subscriber.ack(1)
        assert not world.channel(b"foo").plain[1].counts

    def test_many_at_once(self, world: World) -> None:
        subscriber = world.subscribe(b"foo", max_in_flight=100_000, ack_wait_in_secs=1)
        number(world, b"foo", 5000)
        assert len(subscriber.new()) == 5000
        subscriber.ack(*range(2, 5001, 7))
        world.advance(1.1)
        expected = [i for i in range(1, 5001) if i % 7 != 2]
        assert subscriber.sequences() == expected


class TestDurables:
    """Section 17, and trace 10 of section 27."""

    @pytest.mark.parametrize("group", [b"", b"g"])
    def test_a_resumption_that_cannot_be_stored_changes_nothing(
        self, world: World, group: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wishes = {"durable_name": b"d", "q_group": group}
        world.subscribe(b"foo", **wishes).close()
        (offline,) = world.channel(b"foo").subscriptions()
        before = offline.state.SerializeToString()

        def fail(_state: object) -> None:
            raise StorageError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(world.channel(b"foo").store, "update", fail)
            assert world.subscribe(b"foo", **wishes, max_in_flight=7).error == b"no space left on device"
        assert not offline.active and offline.state.SerializeToString() == before
        assert not world.subscribe(b"foo", **wishes).error and offline.active

    def test_resuming(self, world: World) -> None:
        number(world, b"foo", 8)
        first = world.subscribe(b"foo", durable_name=b"d", max_in_flight=5)
        first.ack(1)
        assert first.sequences() == [1, 2, 3, 4, 5, 6]
        assert first.close() == b""
        world.publish(b"foo", b"9")
        assert first.sequences() == []
        again = world.subscribe(b"foo", durable_name=b"d", max_in_flight=2, start_position=pb.NEW_ONLY)
        assert shown(again.new()) == [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
        assert again.ack_inbox != first.ack_inbox
        first.ack(2)
        again.ack(2, 3, 4)
        assert again.sequences() == []
        again.ack(5)
        assert again.sequences() == [7]
        again.ack(6)
        assert again.sequences() == [8]

    def test_counts_go_on(self, world: World) -> None:
        first = world.subscribe(b"foo", durable_name=b"d", ack_wait_in_secs=1)
        number(world, b"foo", 1)
        world.advance(2.1)
        assert shown(first.new()) == [(1, 0), (1, 1), (1, 2)]
        first.close()
        world.advance(10)
        assert shown(world.subscribe(b"foo", durable_name=b"d").new()) == [(1, 3)]

    def test_one_at_a_time(self, world: World) -> None:
        world.connect(b"other")
        world.subscribe(b"foo", durable_name=b"d")
        assert world.subscribe(b"foo", durable_name=b"d").error == b"stan: duplicate durable registration"
        assert not world.subscribe(b"foo", durable_name=b"e").error
        assert not world.subscribe(b"bar", durable_name=b"d").error
        assert not world.subscribe(b"foo", b"other", durable_name=b"d").error

    def test_different_ones_may_share_a_key(self, world: World) -> None:
        world.connect(b"a-k")
        world.connect(b"a")
        assert not world.subscribe(b"k", b"a-k", durable_name=b"d").error
        assert world.subscribe(b"k", b"a", durable_name=b"k-d").error == b"stan: duplicate durable registration"

    def test_unsubscribing_ends_it(self, world: World) -> None:
        number(world, b"foo", 3)
        world.subscribe(b"foo", durable_name=b"d").unsubscribe()
        again = world.subscribe(b"foo", durable_name=b"d")
        assert shown(again.new()) == [(1, 0), (2, 0), (3, 0)]

    def test_an_offline_one_cannot_be_unsubscribed(self, world: World) -> None:
        durable = world.subscribe(b"foo", durable_name=b"d")
        durable.close()
        assert durable.unsubscribe() == b"stan: invalid subscription"

    def test_it_survives_its_client(self, world: World) -> None:
        number(world, b"foo", 2)
        world.subscribe(b"foo", durable_name=b"d").ack(1)
        world.close()
        world.connect()
        assert shown(world.subscribe(b"foo", durable_name=b"d").new()) == [(2, 1)]

    def test_what_is_gone_meanwhile(self) -> None:
        world = limited(max_msgs=2)
        durable = world.subscribe(b"foo", durable_name=b"d", max_in_flight=2)
        world.publish(b"foo", b"1")
        world.publish(b"foo", b"2")
        durable.close()
        world.publish(b"foo", b"3")
        assert shown(world.subscribe(b"foo", durable_name=b"d", max_in_flight=2).new()) == [(2, 1), (3, 0)]

    def test_replacing(self) -> None:
        world = World(replace_durable=True)
        world.connect()
        number(world, b"foo", 1)
        first = world.subscribe(b"foo", durable_name=b"d")
        assert first.sequences() == [1]
        second = world.subscribe(b"foo", durable_name=b"d")
        assert shown(second.new()) == [(1, 1)]
        world.publish(b"foo", b"x")
        assert first.sequences() == []
        assert second.sequences() == [2]
        assert first.close() == b"stan: invalid subscription"

    def test_many_pending_come_before_new_ones(self, world: World) -> None:
        number(world, b"foo", 5000)
        durable = world.subscribe(b"foo", durable_name=b"d", max_in_flight=5000)
        durable.close()
        number(world, b"foo", 3)
        again = world.subscribe(b"foo", durable_name=b"d", max_in_flight=6000)
        got = again.new()
        assert [each.sequence for each in got] == list(range(1, 5004))
        assert [each.redelivered for each in got] == [True] * 5000 + [False] * 3


def test_those_who_lack_older_messages_do_not_keep_a_commit(world: World) -> None:
    """Messages cost 2 µs each. Who has the older ones gets what is new in the commit, and the others have turns."""
    now = world.subscribe(b"foo", start_position=pb.NEW_ONLY, max_in_flight=1 << 20)
    world.publish(b"foo", *[b"x"] * 10_000)
    now.new()
    publish, commit = world.bus.publish, world.server.commit
    sent: list[bytes] = []
    commits: list[int] = []

    def costly(role: Role, subject: bytes, *more: Any, **named: Any) -> bool:
        sent.append(subject)
        world.time.now += 2000
        return publish(role, subject, *more, **named)

    def counted() -> None:
        before = len(sent)
        commit()
        commits.append(len(sent) - before)

    late = [world.request(b"foo", max_in_flight=1 << 20) for _ in range(4)]
    world.bus.publish, world.server.commit = costly, counted  # type: ignore[method-assign]
    for request in late:
        world.bus.feed([(world.subjects.subscribe, request.SerializeToString(), world.inbox())])
    commit()
    for _ in range(3):
        world.publish(b"foo", b"new")
        assert now.sequences()
    world.settle()
    # The time of a commit and of the turns after it (ns), each with a block that is sent to the end.
    block = 4096
    assert max(commits) < (4_000_000 + SHARE) // 2000 + 2 * block
    counts = [sent.count(request.inbox) for request in late]
    assert counts == [10_003] * 4
    begun = max(sent.index(request.inbox) for request in late)
    assert max(sent[:begun].count(request.inbox) for request in late) < 10_000, "one is through before all have begun"
