"""Clients that do not keep up with what they are sent: the rest waits in the store, and the others do not wait."""

from __future__ import annotations

import pytest

from tests.broker.streaming.world import Delivered, World


@pytest.fixture
def world() -> World:
    world = World()
    world.connect()
    return world


def shown(messages: list[Delivered]) -> list[tuple[int, int]]:
    return [(each.sequence, each.count) for each in messages]


def test_new_messages_wait(world: World) -> None:
    slow, fast = world.subscribe(b"foo"), world.subscribe(b"foo")
    world.bus.full.add(slow.request.inbox)
    world.publish(b"foo", b"1", b"2")
    world.publish(b"foo", b"3")
    world.advance(0.5)
    assert slow.sequences() == []
    assert fast.sequences() == [1, 2, 3]
    world.bus.full.clear()
    world.advance(0.01)
    assert slow.sequences() == [1, 2, 3]


def test_redelivery_waits(world: World) -> None:
    slow = world.subscribe(b"foo", ack_wait_in_secs=1)
    world.publish(b"foo", b"1", b"2")
    assert slow.sequences() == [1, 2]
    world.bus.full.add(slow.request.inbox)
    world.advance(1.5)
    assert slow.new() == []
    world.bus.full.clear()
    world.advance(0.1)
    assert shown(slow.new()) == [(1, 1), (2, 1)]
    # The deadline after that is not put off (section 16.2).
    world.advance(0.3)
    assert slow.new() == []
    world.advance(0.2)
    assert shown(slow.new()) == [(1, 2), (2, 2)]


def test_a_durable_that_is_resumed_waits(world: World) -> None:
    first = world.subscribe(b"foo", durable_name=b"d")
    world.publish(b"foo", b"1", b"2")
    assert first.sequences() == [1, 2]
    first.close()
    world.publish(b"foo", b"3")
    world.bus.full.add(b"again")
    again = world.subscribe(b"foo", durable_name=b"d", inbox=b"again")
    world.advance(0.5)
    assert again.new() == []
    world.bus.full.clear()
    world.advance(0.1)
    assert shown(again.new()) == [(1, 1), (2, 1), (3, 0)]


def test_a_group_waits_only_if_all_of_it_does(world: World) -> None:
    one, two = (world.subscribe(b"foo", q_group=b"g") for _ in range(2))
    world.bus.full |= {one.request.inbox, two.request.inbox}
    world.publish(b"foo", b"1", b"2")
    world.advance(0.5)
    assert one.new() == two.new() == []
    world.bus.full.discard(one.request.inbox)
    world.advance(0.1)
    assert sorted(one.sequences() + two.sequences()) == [1, 2]


def test_one_that_ends_while_it_waits(world: World) -> None:
    slow = world.subscribe(b"foo")
    world.bus.full.add(slow.request.inbox)
    world.publish(b"foo", b"1")
    assert slow.unsubscribe() == b""
    world.bus.full.clear()
    world.advance(1)
    assert slow.new() == []
