"""What is stored at each step, and what a start makes of it: streaming-protocol.md sections 4, 22 and 23."""

from __future__ import annotations

import logging

import pytest

from broker.stores.interface import Recovered
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from tests.broker.streaming.journal import Journal
from tests.broker.streaming.world import Subscriber, World, everything


def test_records_of_each_step() -> None:
    """The trace of section 22."""
    store = Journal()
    world = World(store=store)
    world.connect()
    assert store.clients == [("add", b"me")]
    world.publish(b"foo", b"1")

    def records() -> list[str]:
        return store.records(b"foo")

    assert records() == []
    plain = world.subscribe(b"foo", ack_wait_in_secs=1)
    assert records() == ["new 1", "msg 1/1"]
    plain.ack(1)
    assert records() == ["ack 1/1"]
    plain.ack(1)
    assert records() == []
    world.publish(b"foo", b"2")
    world.advance(1.1)
    assert [each.count for each in plain.new()] == [0, 0, 1]
    assert records() == ["msg 1/2"]
    plain.unsubscribe()
    assert records() == ["del 1"]

    durable = world.subscribe(b"foo", durable_name=b"d")
    assert records() == ["new 2", "msg 2/1", "msg 2/2"]
    durable.ack(1)
    durable.close()
    assert records() == ["ack 2/1", "update 2"]
    state = store.subscriptions(b"foo").states[-1][1]
    assert (state.client_id, state.last_sent, state.is_closed, state.is_durable) == (b"me", 2, True, True)
    durable = world.subscribe(b"foo", durable_name=b"d", max_in_flight=7)
    assert records() == ["update 2"]
    state = store.subscriptions(b"foo").states[-1][1]
    assert (state.ack_inbox, state.max_in_flight, state.is_closed) == (durable.ack_inbox, 7, False)
    durable.unsubscribe()
    assert records() == ["del 2"]

    a = world.subscribe(b"foo", q_group=b"g")
    assert records() == ["new 3", "msg 3/1", "msg 3/2"]
    b = world.subscribe(b"foo", q_group=b"g")
    world.publish(b"foo", b"3")
    world.publish(b"foo", b"4")
    assert records() == ["new 4", "msg 4/3", "msg 4/4"]
    a.unsubscribe()
    assert records() == ["del 3", "msg 4/1", "msg 4/2"]
    b.unsubscribe()
    assert records() == ["del 4"]

    a = world.subscribe(b"foo", q_group=b"g", durable_name=b"d")
    state = store.subscriptions(b"foo").states[-5][1]
    assert (state.q_group, state.durable_name, state.is_durable) == (b"d:g", b"", True)
    b = world.subscribe(b"foo", q_group=b"g", durable_name=b"d")
    assert records() == ["new 5", "msg 5/1", "msg 5/2", "msg 5/3", "msg 5/4", "new 6"]
    a.close()
    assert records() == ["msg 6/1", "msg 6/2", "msg 6/3", "msg 6/4", "del 5"]
    b.close()
    assert records() == ["update 6"]
    state = store.subscriptions(b"foo").states[-1][1]
    assert (state.client_id, state.last_sent) == (b"", 4)
    c = world.subscribe(b"foo", q_group=b"g", durable_name=b"d")
    assert records() == ["update 6"]
    assert store.subscriptions(b"foo").states[-1][1].client_id == b"me"
    c.unsubscribe()
    assert records() == ["del 6"]


def test_records_of_a_moved_message() -> None:
    store = Journal()
    world = World(store=store)
    world.connect()
    world.publish(b"foo", b"1")
    world.subscribe(b"foo", q_group=b"g", ack_wait_in_secs=1)
    world.subscribe(b"foo", q_group=b"g", ack_wait_in_secs=1)
    store.records(b"foo")
    world.advance(1.05)
    assert store.records(b"foo") == ["msg 2/1", "ack 1/1"]


def test_the_position_of_a_group_outlives_the_member_that_had_it() -> None:
    store = Journal()
    world = World(store=store)
    world.connect()
    for i in range(3):
        world.publish(b"foo", b"%d" % i)
    a = world.subscribe(b"foo", q_group=b"g")
    a.ack(1, 2, 3)
    world.subscribe(b"foo", q_group=b"g")
    store.records(b"foo")
    a.close()
    assert store.records(b"foo") == ["del 1", "update 2"]
    assert store.subscriptions(b"foo").states[-1][1].last_sent == 3


def test_a_client_is_removed_before_its_subscriptions() -> None:
    store = Journal()
    world = World(store=store)
    world.connect()
    world.subscribe(b"foo")
    world.subscribe(b"foo", durable_name=b"d")
    world.close()
    assert store.clients == [("add", b"me"), ("del", b"me")]
    assert store.records(b"foo") == ["new 1", "new 2", "del 1", "update 2"]
    assert store.subscriptions(b"foo").flushed == 4


def test_what_is_flushed() -> None:
    store = Journal()
    world = World(store=store)
    world.connect()
    subscriptions = world.subscribe(b"foo", max_in_flight=1)
    journal = store.subscriptions(b"foo")
    assert journal.flushed == len(journal.records) == 1
    world.publish(b"foo", b"1", b"2")
    assert journal.flushed == len(journal.records) == 2
    subscriptions.ack(1)
    assert (journal.flushed, len(journal.records)) == (2, 4), "neither an ack nor what it leads to"
    subscriptions.unsubscribe()
    assert journal.flushed == len(journal.records) == 5


class Restarted:
    """A world whose server ends and starts again with the same store and the same clients."""

    def __init__(self, store: Journal | None = None, **options: object) -> None:
        self.store = store or Journal()
        self.options = options
        self.world = World(store=self.store, **options)

    def restart(self, *, crash: bool = False, later: float = 0.0) -> World:
        if crash:
            self.store.crash()
        else:
            self.world.server.stop()
        old = self.world
        for subject, _ in tuple(old.bus.listeners.values()):
            assert subject
        old.bus.listeners.clear()
        old.time.now += round(later * 10**9)
        self.world = World(store=self.store, time=old.time, bus=old.bus, **self.options)
        return self.world


def moved(subscriber: Subscriber, world: World) -> Subscriber:
    """The same subscription, in a world after a restart."""
    subscriber.world = world
    return subscriber


@pytest.mark.parametrize("crash", [False, True])
def test_clients_go_on_as_if_nothing_had_happened(crash: bool) -> None:
    """Section 23.2 and 23.6, trace 14."""
    place = Restarted()
    world = place.world
    world.connect(protocol=1)
    subscriber = world.subscribe(b"foo", max_in_flight=2)
    world.publish(b"foo", b"1", b"2", b"3")
    assert subscriber.sequences() == [1, 2]
    world = place.restart(crash=crash)
    assert len(world.server.clients) == 1
    assert world.publish(b"foo", b"4", connection=b"me-conn") == [b""]
    assert world.ping(b"me-conn") == [b""]
    moved(subscriber, world)
    assert subscriber.sequences() == []
    subscriber.ack(1)
    assert subscriber.sequences() == [3]
    assert world.channel(b"foo").messages.last == 4
    assert subscriber.unsubscribe() == b""


def test_the_first_heartbeat_goes_out_after_the_interval() -> None:
    place = Restarted(heartbeat_interval=10**9, heartbeat_fail_count=0)
    place.world.connect()
    world = place.restart()
    world.bus.requests.clear()
    world.advance(0.99)
    assert world.bus.requests == []
    world.advance(0.02)
    assert [subject for _, subject in world.bus.requests] == [b"_HB.me"]
    del world.bus.responders[b"_HB.me"]
    world.advance(1)
    assert len(world.server.clients) == 0


@pytest.mark.parametrize(("set_back", "left"), [(0, 1.5), (0.25, 1.75), (3600, 2)])
def test_deadlines_come_from_the_messages(set_back: float, left: float) -> None:
    """Section 23.5: redelivered ackWait after the publish, or after a clock set back; new messages come before."""
    place = Restarted()
    world = place.world
    world.connect()
    subscriber = world.subscribe(b"foo", ack_wait_in_secs=2)
    world.publish(b"foo", b"1")
    subscriber.new()
    world.advance(0.5)
    world.time.start -= round(set_back * 10**9)
    world = place.restart()
    moved(subscriber, world)
    world.publish(b"foo", b"2")
    assert subscriber.sequences() == [2]
    subscriber.ack(2)
    world.advance(left - 0.05)
    assert subscriber.sequences() == []
    world.advance(0.1)
    assert [(each.sequence, each.count) for each in subscriber.new()] == [(1, 1)]


def test_what_is_overdue_is_sent_at_once_and_then_once_per_ack_wait() -> None:
    place = Restarted()
    world = place.world
    world.connect()
    subscriber = world.subscribe(b"foo", ack_wait_in_secs=2)
    world.publish(b"foo", b"1", b"2")
    subscriber.new()
    world = place.restart(later=60)
    moved(subscriber, world)
    assert [(each.sequence, each.count) for each in subscriber.new()] == [(1, 1), (2, 1)]
    world.advance(1.9)
    assert subscriber.sequences() == []
    world.advance(0.2)
    assert [(each.sequence, each.count) for each in subscriber.new()] == [(1, 2), (2, 2)]


def test_queue_members_get_their_own_messages_first() -> None:
    place = Restarted()
    world = place.world
    world.connect()
    members = [world.subscribe(b"foo", q_group=b"g", ack_wait_in_secs=2) for _ in range(2)]
    for _ in range(4):
        world.publish(b"foo", b"x")
    assert [each.sequences() for each in members] == [[1, 3], [2, 4]]
    world = place.restart(later=60)
    for each in members:
        moved(each, world)
    assert [each.sequences() for each in members] == [[1, 3], [2, 4]]
    for _ in range(2):
        world.publish(b"foo", b"x")
    assert everything(members) == [5, 6], "the group's position is kept"


def test_durables() -> None:
    place = Restarted()
    world = place.world
    world.connect()
    online = world.subscribe(b"foo", durable_name=b"online")
    offline = world.subscribe(b"foo", durable_name=b"offline")
    group = world.subscribe(b"foo", durable_name=b"d", q_group=b"g")
    plain = world.subscribe(b"foo")
    world.publish(b"foo", b"1")
    for each in (online, offline, group, plain):
        assert each.sequences() == [1]
    offline.close()
    group.close()
    world = place.restart()
    world.publish(b"foo", b"2")
    for each in (online, offline, group, plain):
        moved(each, world)
    assert online.sequences() == plain.sequences() == [2]
    assert offline.sequences() == group.sequences() == []
    assert world.subscribe(b"foo", durable_name=b"online").error == b"stan: duplicate durable registration"
    again = world.subscribe(b"foo", durable_name=b"offline")
    assert [(each.sequence, each.count) for each in again.new()] == [(1, 1), (2, 0)]
    joined = world.subscribe(b"foo", durable_name=b"d", q_group=b"g")
    assert [(each.sequence, each.count) for each in joined.new()] == [(1, 1), (2, 0)]


def test_subscriptions_of_clients_that_are_not_there(caplog: pytest.LogCaptureFixture) -> None:
    store = Journal()
    place = Restarted(store)
    world = place.world
    world.connect()
    world.subscribe(b"foo")
    world.subscribe(b"foo", durable_name=b"d")
    world.subscribe(b"foo", q_group=b"g")
    ghost = world.subscribe(b"foo", durable_name=b"d", q_group=b"g")
    store.close()
    store.infos.clear()
    caplog.set_level(logging.DEBUG)
    world = place.restart(crash=True)
    assert (
        "Not recovering ghost durable queue subscriber: [me]:[d:g] subject=foo "
        f"inbox={ghost.request.inbox.decode()}" in caplog.messages
    )
    channel = world.channel(b"foo")
    assert (len(channel.by_ack_inbox), len(channel.durables), channel.groups) == (0, 1, {})
    assert store.records(b"foo")[-1] == "del 4"
    world.connect()
    assert not world.subscribe(b"foo", durable_name=b"d").error


def test_two_shadows(caplog: pytest.LogCaptureFixture) -> None:
    store = Journal()
    place = Restarted(store)
    world = place.world
    world.connect()
    world.publish(b"foo", *[b"x"] * 5)
    subscriptions = store.subscriptions(b"foo")
    for last in (3, 2):
        state = pb.SubState(q_group=b"d:g", is_durable=True, last_sent=last, max_in_flight=10, ack_wait_in_secs=30)
        subscriptions.create(state)
    world = place.restart()
    assert 'Duplicate shadow durable queue consumer (subid=2) for group "d:g"' in caplog.messages
    world.connect(b"new")
    joined = world.subscribe(b"foo", b"new", durable_name=b"d", q_group=b"g")
    assert joined.sequences() == [4, 5]


def test_subjects_are_those_that_are_stored() -> None:
    """Traces 17 and section 4.2: also the random ones of old releases; only the pings subject follows."""
    store = Journal()
    store.server = pb.ServerInfo(
        cluster_id=b"test-cluster",
        discovery=b"_STAN.discover.test-cluster",
        publish=b"_STAN.pub.Abc",
        subscribe=b"_STAN.sub.Def",
        unsubscribe=b"_STAN.unsub.Ghi",
        close=b"_STAN.close.Jkl",
    )
    world = World(store=store, discover_prefix=b"_other")
    response = world.connect(protocol=1)
    assert response == protocol.ConnectResponse(
        pub_prefix=b"_STAN.pub.Abc",
        sub_requests=b"_STAN.sub.Def",
        unsub_requests=b"_STAN.unsub.Ghi",
        close_requests=b"_STAN.close.Jkl",
        sub_close_requests=b"_STAN.subclose.test-cluster",
        ping_requests=b"_STAN.discover.test-cluster.pings",
        protocol=1,
    )
    assert store.server.sub_close == b"_STAN.subclose.test-cluster", "and is written"
    assert world.publish(b"foo", b"x") == [b""]


def test_another_cluster_id() -> None:
    store = Journal()
    World(store=store).server.stop()
    world = World(store=store, cluster_id=b"other")
    assert world.failure == 'cluster ID "other" does not match recovered value of "test-cluster"'


def test_channels_without_a_server_record(caplog: pytest.LogCaptureFixture) -> None:
    place = Restarted()
    world = place.world
    world.connect()
    world.publish(b"foo", b"x")
    found = place.store.recover()
    assert found is not None
    place.store.recover = lambda: Recovered(pb.ServerInfo(), [], found.channels)  # type: ignore[method-assign]
    place.store.server = None
    world = place.restart(crash=True)
    assert any(message.startswith("Server information was not recovered") for message in caplog.messages)
    assert place.store.server is not None
    assert world.channel(b"foo").messages.last == 1


def test_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place = Restarted()
    assert caplog.messages == ["Recovering the state...", "No recovered state"]
    place.world.connect()
    place.world.publish(b"foo", b"x")
    caplog.clear()
    place.restart()
    assert caplog.messages == ["Shutting down.", "Recovering the state...", "Recovered 1 channel(s)"]


def test_case_variants_that_are_there_are_kept() -> None:
    place = Restarted()
    place.world.connect()
    place.world.publish(b"foo", b"x")
    place.store.create_channel(b"FOO")
    world = place.restart()
    assert world.publish(b"FOO", b"x") == [b""]
    assert world.publish(b"foo", b"x") == [b""]
    assert world.publish(b"Foo", b"x")[0].startswith(b'rejecting channel "Foo" because channel "')


def test_many_pending_messages() -> None:
    place = Restarted()
    world = place.world
    world.connect()
    subscriber = world.subscribe(b"foo", max_in_flight=10_000, ack_wait_in_secs=2)
    for _ in range(5):
        world.publish(b"foo", *[b"x"] * 500)
    assert len(subscriber.new()) == 2500
    subscriber.ack(*range(2, 2501, 2))
    world = place.restart(later=10)
    moved(subscriber, world)
    assert subscriber.sequences() == list(range(1, 2501, 2))


def test_records_of_durables_of_other_programs() -> None:
    """A durable is one with a name; old servers did not write the mark."""
    store = Journal()
    world = World(store=store)
    world.connect()
    world.publish(b"foo", b"1")
    for name, mark in ((b"", True), (b"old", False)):
        state = pb.SubState(client_id=b"gone", ack_inbox=b"a", durable_name=name, is_durable=mark, max_in_flight=1)
        store.subscriptions(b"foo").create(state)
    again = World(store=store)
    assert again.started
    assert [each.state.durable_name for each in again.channel(b"foo").subscriptions()] == [b"old"]
    again.connect(b"gone")
    assert again.subscribe(b"foo", b"gone", durable_name=b"old").sequences() == [1]
