"""Channels that nobody uses, messages that are too old: streaming-protocol.md sections 10 and 21, traces 12 and 13."""

from __future__ import annotations

import logging

import pytest

from broker.stores.interface import ChannelLog, StorageError
from broker.stores.memory import MemoryStore
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.broker.streaming.journal import Journal
from tests.broker.streaming.world import SECOND, World


def world_with(**limits: int) -> World:
    world = World(store=MemoryStore(StoreLimits(channel=ChannelLimits(**limits))))
    world.connect()
    return world


@pytest.fixture
def world() -> World:
    return world_with(max_inactivity_ns=SECOND)


def test_a_channel_is_deleted_a_while_after_the_last_message(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world.publish(b"foo", b"1")
    world.advance(0.6)
    world.publish(b"foo", b"2")
    world.advance(0.95)
    assert world.channel(b"foo") is not None
    world.advance(0.1)
    assert world.channel(b"foo") is None
    assert [message for message in caplog.messages if message.startswith("Channel")] == [
        'Channel "foo" has been created',
        'Channel "foo" delete timer set to fire in 1s',
        'Channel "foo" cannot be deleted now, reset timer to fire in 600ms',
        'Channel "foo" is being deleted',
        'Channel "foo" has been deleted',
    ]
    assert world.publish(b"foo", b"again") == [b""]
    assert world.channel(b"foo").messages.last == 1


def test_a_subscription_protects_it(world: World) -> None:
    world.publish(b"foo", b"1")
    subscriber = world.subscribe(b"foo", durable_name=b"d")
    world.advance(10)
    assert world.channel(b"foo") is not None
    subscriber.close()
    world.advance(0.9)
    assert world.channel(b"foo") is not None
    world.advance(0.2)
    assert world.channel(b"foo") is None, "an offline durable does not"
    again = world.subscribe(b"foo", durable_name=b"d")
    assert again.sequences() == []
    world.publish(b"foo", b"new")
    assert again.sequences() == [1]


def test_a_client_that_ends_starts_the_time(world: World) -> None:
    world.subscribe(b"foo")
    world.subscribe(b"foo", q_group=b"g", durable_name=b"d")
    world.advance(5)
    world.close()
    world.advance(1.1)
    assert world.channel(b"foo") is None


def test_what_is_published_at_the_last_moment_counts(world: World) -> None:
    world.publish(b"foo", b"1")
    world.advance(0.99)
    world.time.now += SECOND // 50
    subject = world.subjects.publish + b".foo"
    world.bus.feed([(subject, world.message(b"foo", b"2"), b"")])
    world.settle()
    assert world.channel(b"foo").messages.last == 2


def test_a_store_that_cannot_delete_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: bytes) -> None:
        raise StorageError("permission denied")

    world.publish(b"foo", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "delete_channel", fail)
        world.advance(1.1)
    assert world.publish(b"foo", b"2") == [b""]
    assert world.channel(b"foo").messages.last == 2
    world.advance(2.2)
    assert world.channel(b"foo") is None


def test_after_a_start_it_is_the_whole_time() -> None:
    store = Journal(StoreLimits(channel=ChannelLimits(max_inactivity_ns=SECOND)))
    world = World(store=store)
    world.connect()
    world.publish(b"foo", b"1")
    world.advance(0.9)
    world.server.stop()
    again = World(store=store, time=world.time)
    again.advance(0.9)
    assert again.channel(b"foo") is not None
    again.advance(0.2)
    assert again.channel(b"foo") is None


def test_messages_that_are_too_old() -> None:
    world = world_with(max_age_ns=SECOND)
    world.publish(b"foo", b"1", b"2")
    world.advance(0.5)
    world.publish(b"foo", b"3")
    messages = world.channel(b"foo").messages
    world.advance(0.6)
    assert (messages.first, messages.last, messages.count) == (3, 3, 1)
    world.advance(0.5)
    assert (messages.first, messages.last, messages.count) == (4, 3, 0)
    world.advance(10)
    world.publish(b"foo", b"4")
    assert (messages.first, messages.last, messages.count) == (4, 4, 1)
    world.advance(1.1)
    assert messages.count == 0


def test_pending_messages_that_are_too_old() -> None:
    world = world_with(max_age_ns=SECOND)
    subscriber = world.subscribe(b"foo", max_in_flight=1, ack_wait_in_secs=2)
    world.publish(b"foo", b"1")
    world.advance(1.9)
    world.publish(b"foo", b"2")
    assert subscriber.sequences() == [1]
    world.advance(0.2)
    assert subscriber.sequences() == [2]


class Readers:
    """Another reader of the channels."""

    def __init__(self) -> None:
        self.names: set[bytes] = set()

    def changed(self, channel: ChannelLog) -> None:
        self.names.add(channel.name)

    def removed(self, channel: ChannelLog) -> None:
        self.names.remove(channel.name)


def test_a_channel_that_is_deleted_before_a_commit_is_not_served_any_more() -> None:
    """Another server has written to it, and no client uses it here."""
    readers = Readers()
    store = MemoryStore(StoreLimits(channel=ChannelLimits(max_inactivity_ns=SECOND)))
    world = World(store=store, audience=readers)
    world.connect()
    world.publish(b"foo", b"1")
    assert readers.names == {b"foo"}
    world.time.now += SECOND
    world.server.deliver_new([b"foo"])
    world.server.run_timers()
    assert world.channel(b"foo") is None and not readers.names
    world.settle()
    assert not readers.names
