"""Connections, heartbeats and pings: streaming-protocol.md sections 5 to 9, and traces 1, 2, 5, 6 of section 27."""

from __future__ import annotations

import logging

import pytest

from broker.stores.interface import StorageError
from broker.stores.memory import MemoryStore
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from tests.broker.streaming.world import Bus, Time, World


def test_what_a_client_is_told() -> None:
    response = World().connect(protocol=1, ping_interval=5, ping_max_out=88)
    assert response == protocol.ConnectResponse(
        pub_prefix=b"_STAN.pub.test-cluster",
        sub_requests=b"_STAN.sub.test-cluster",
        unsub_requests=b"_STAN.unsub.test-cluster",
        close_requests=b"_STAN.close.test-cluster",
        sub_close_requests=b"_STAN.subclose.test-cluster",
        ping_requests=b"_STAN.discover.test-cluster.pings",
        ping_interval=5,
        ping_max_out=88,
        protocol=1,
    )


def test_a_client_of_protocol_0_is_told_less() -> None:
    response = World().connect(ping_interval=5, ping_max_out=88)
    assert (response.ping_requests, response.ping_interval, response.ping_max_out) == (b"", 0, 0)
    assert response.protocol == 1


def test_the_server_listens_in_the_original_order() -> None:
    base = [b"discover", b"pub", b"sub", b"unsub", b"subclose", b"close"]
    subjects = [b"_STAN." + each + b".test-cluster" for each in base]
    subjects[1] += b".>"
    assert World().bus.listened() == [*subjects, b"_STAN.discover.test-cluster.pings"]


@pytest.mark.parametrize("client_id", [b"a.b", b"a b", b"", b"a/b", "é".encode(), b"a\n"])
def test_client_ids_that_are_refused(client_id: bytes) -> None:
    error = b"stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
    assert World().connect(client_id).error == error


def test_a_long_client_id_is_fine() -> None:
    assert not World().connect(b"a" * 300).error


@pytest.mark.parametrize("payload", [b"", b"\xff\xff", pb.ConnectRequest(client_id=b"me").SerializeToString()])
def test_connect_requests_that_are_refused(payload: bytes) -> None:
    world = World()
    (answer,) = world.ask(world.subjects.discovery, payload)
    assert protocol.ConnectResponse.FromString(answer) == protocol.ConnectResponse(
        error=b"stan: invalid connection request"
    )


def test_a_living_client_keeps_its_id() -> None:
    world = World()
    world.connect()
    assert world.connect(heartbeat_inbox=b"_HB.other").error == b"stan: clientID already registered"
    assert world.bus.requests[-1][1] == b"_HB.me", "the registered client is asked"
    assert world.publish(b"foo", b"x") == [b""]


def test_a_silent_client_is_replaced_after_half_a_second() -> None:
    world = World()
    world.connect(alive=None, connection=b"old")
    assert world.connect(heartbeat_inbox=b"_HB.new", connection=b"new").error == b"none"
    assert world.connect(heartbeat_inbox=b"_HB.x").error == b"stan: clientID already registered", "one probe at a time"
    at = len(world.bus.sent)
    world.advance(0.499)
    assert len(world.bus.sent) == at
    world.advance(0.001)
    assert not protocol.ConnectResponse.FromString(world.bus.sent[-1].payload).error
    assert world.publish(b"foo", b"x", connection=b"old") == [b"stan: invalid publish request"]
    assert world.publish(b"foo", b"x", connection=b"new") == [b""]
    assert world.ping(b"old") != [b""]
    assert world.ping(b"new") == [b""]


def test_a_client_that_is_gone_is_replaced_at_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.connect()
    subscriber = world.subscribe(b"foo")
    durable = world.subscribe(b"foo", durable_name=b"d")
    del world.bus.responders[b"_HB.me"]
    caplog.set_level(logging.DEBUG)
    assert not world.connect(heartbeat_inbox=b"_HB.new").error
    assert "[Client:me] Closed (Inbox=_HB.me)" in caplog.messages
    assert "[Client:me] Replaced old client (Inbox=_HB.new)" in caplog.messages
    world.publish(b"foo", b"x")
    assert subscriber.sequences() == durable.sequences() == []
    assert world.subscribe(b"foo", durable_name=b"d").sequences() == [1]


def test_heartbeats_of_a_silent_client() -> None:
    world = World(heartbeat_interval=10**9, heartbeat_timeout=5 * 10**8, heartbeat_fail_count=2)
    world.connect(alive=None)
    world.advance(4.499)
    assert [(time - world.began) / 10**9 for time, subject in world.bus.requests if subject == b"_HB.me"] == [1, 2.5, 4]
    assert len(world.server.clients) == 1
    world.advance(0.002)
    assert len(world.server.clients) == 0


def test_heartbeats_of_a_client_that_is_gone() -> None:
    world = World(heartbeat_interval=10**9, heartbeat_timeout=5 * 10**8, heartbeat_fail_count=2)
    world.connect()
    del world.bus.responders[b"_HB.me"]
    world.advance(2.9)
    assert len(world.server.clients) == 1
    world.advance(0.2)
    assert len(world.server.clients) == 0
    assert world.close() == b"stan: unknown clientID"


def test_an_answer_begins_the_count_again() -> None:
    world = World(heartbeat_interval=10**9, heartbeat_timeout=5 * 10**8, heartbeat_fail_count=2)
    world.connect(alive=None)
    world.advance(3.5)
    (client,) = world.server.clients
    assert client.failures == 2
    world.bus.responders[b"_HB.me"] = b"whatever"
    world.advance(1)
    assert client.failures == 0
    world.advance(100)
    assert len(world.server.clients) == 1


def test_a_ping_of_a_client_without_heartbeat_brings_the_next_one_forward() -> None:
    world = World(heartbeat_interval=10**9, heartbeat_timeout=5 * 10**8)
    world.connect(alive=None)
    world.advance(1.6)
    (client,) = world.server.clients
    assert client.failed_heartbeat
    world.bus.responders[b"_HB.me"] = b""
    assert world.ping(b"me-conn") == [b""]
    world.advance(0.002)
    assert not client.failed_heartbeat
    count = len(world.bus.requests)
    world.advance(0.9)
    assert len(world.bus.requests) == count, "and the interval starts over"


def test_pings() -> None:
    world = World()
    world.connect()
    assert world.ping(b"me-conn") == [b""]
    error = b"client has been replaced or is no longer registered"
    assert world.ping(b"other") == [protocol.PingResponse(error=error).SerializeToString()]
    assert world.ask(world.subjects.pings, b"") == []
    assert world.ask(world.subjects.pings, b"\xff") == []


def test_close() -> None:
    world = World()
    world.connect()
    assert world.ask(world.subjects.close, b"\xff") == [
        protocol.CloseResponse(error=b"stan: invalid close request").SerializeToString()
    ]
    assert world.close() == b""
    assert world.close() == b"stan: unknown clientID"


def test_what_was_published_before_a_close_is_stored() -> None:
    world = World(io_sleep_time=10**9)
    world.connect()
    world.bus.feed([(b"_STAN.pub.test-cluster.foo", world.message(b"foo", b"%d" % i), b"acks") for i in range(200)])
    world.ask(world.subjects.close, pb.CloseRequest(client_id=b"me").SerializeToString())
    assert world.channel(b"foo").messages.last == 200
    assert len([sent for sent in world.bus.sent if sent.subject == b"acks"]) == 200


def test_a_close_waits_for_the_barrier() -> None:
    world = World()
    world.connect()
    world.bus.barriers = []
    assert world.ask(world.subjects.close, pb.CloseRequest(client_id=b"me").SerializeToString()) == []
    assert world.publish(b"foo", b"x") == [b""]
    world.bus.barriers[0]()
    assert len(world.server.clients) == 0


def test_a_client_that_cannot_be_stored_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_client: pb.ClientInfo) -> None:
        raise StorageError("no space left on device")

    world = World()
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "add_client", fail)
        assert world.connect().error == b"no space left on device"
    assert len(world.server.clients) == 0
    assert not world.connect().error


def test_a_second_server_does_not_start() -> None:
    time = Time()
    bus = Bus(time)
    first = World(time=time, bus=bus)
    second = World(time=time, bus=bus, start=False)
    second.start()
    first.settle()
    second.settle()
    assert second.failure == 'discovered another streaming server with cluster ID "test-cluster"'
    assert len(first.server.clients) == 0, "the probe was closed again"


def test_another_server_is_found_even_if_it_refuses_the_probe() -> None:
    time = Time()
    bus = Bus(time)
    first = World(time=time, bus=bus, cluster_id=b"a.b")
    second = World(time=time, bus=bus, start=False, cluster_id=b"a.b")
    second.start()
    first.settle()
    second.settle()
    assert second.failure == 'discovered another streaming server with cluster ID "a.b"'


def test_an_answer_of_something_else_is_told(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    bus = Bus(time)
    bus.responders[b"_STAN.discover.test-cluster"] = b"\xff"
    world = World(time=time, bus=bus)
    assert world.failure is not None
    assert world.failure.startswith("unmarshall error while detecting another server instance: ")


def test_nobody_answers_in_time() -> None:
    time = Time()
    bus = Bus(time)
    bus.responders[b"_STAN.discover.test-cluster"] = None
    world = World(time=time, bus=bus)
    world.advance(0.249)
    assert not world.started
    world.advance(0.002)
    assert world.started


def test_an_empty_cluster_id() -> None:
    assert World(cluster_id=b"").failure == "nats: invalid subject"


def test_the_discover_prefix() -> None:
    world = World(discover_prefix=b"_my.prefix")
    assert world.subjects.discovery == b"_my.prefix.test-cluster"
    assert not world.connect().error


def test_stopping() -> None:
    store = MemoryStore()
    world = World(store=store)
    world.connect()
    at = len(world.bus.sent)
    world.server.stop()
    world.server.stop()
    world.advance(100)
    assert len(world.bus.sent) == at, "clients are not told"
