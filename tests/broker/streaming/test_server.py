"""A first round: connect, publish, subscribe, deliver, acknowledge, send again, close."""

from __future__ import annotations

from tests.broker.streaming.world import World


def test_a_message_goes_from_a_publisher_to_a_subscriber() -> None:
    world = World()
    assert world.started
    assert not world.connect().error
    assert world.publish(b"foo", b"one", b"two") == [b"", b""]
    subscriber = world.subscribe(b"foo", ack_wait_in_secs=1)
    got = subscriber.new()
    assert [(each.sequence, each.data, each.redelivered) for each in got] == [(1, b"one", False), (2, b"two", False)]
    subscriber.ack(1)
    world.advance(1.5)
    assert [(each.sequence, each.redelivered, each.count) for each in subscriber.new()] == [(2, True, 1)]
    assert world.publish(b"foo", b"three") == [b""]
    assert subscriber.sequences() == [3]
    assert world.close() == b""
    assert world.close() == b"stan: unknown clientID"
    assert world.publish(b"foo", b"four") == [b"stan: invalid publish request"]
    world.server.stop()
