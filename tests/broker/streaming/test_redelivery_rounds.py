"""Redelivery of much: in rounds that give way to others, in the order and with the counts of one that does not."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pytest

from broker.streaming import redelivery
from stantools.format.proto import store_pb2 as pb
from tests.broker.streaming.world import Subscriber, World

#: What it costs to send a message.
COST = 5_000  # ns


class Worked:
    """A world in which messages that are sent cost time, and what was sent in each run of the timers."""

    def __init__(self, cost: int = COST) -> None:
        self.world = World()
        self.world.connect()
        self.runs: list[int] = []
        self.reads = 0
        self._sent = 0
        self._cost = 0
        self._later_cost = cost
        bus, server = self.world.bus, self.world.server
        publish, run = bus.publish, server.run_timers

        def costly(*arguments: Any) -> bool:
            self.world.time.now += self._cost
            self._sent += 1
            return publish(*arguments)

        def counted() -> None:
            self._sent = 0
            run()
            self.runs.append(self._sent)

        bus.publish, server.run_timers = costly, counted  # type: ignore[method-assign]

    def pending(self, count: int, subscribers: int, **more: Any) -> list[Subscriber]:
        self.world.publish(b"foo", *[b"%d" % number for number in range(count)])
        found = [
            self.world.subscribe(b"foo", max_in_flight=1 << 20, ack_wait_in_secs=1, start_position=pb.FIRST, **more)
            for _ in range(subscribers)
        ]
        self.world.settle()
        for each in found:
            assert each.sequences() == [*range(1, count + 1)]
        self._cost = self._later_cost
        return found


def test_a_run_of_the_timers_sends_a_bounded_amount() -> None:
    worked = Worked()
    subscribers = worked.pending(3000, 6)
    worked.runs.clear()
    worked.world.advance(1.1)
    most = redelivery.SHARE // COST + redelivery.STEP
    assert max(worked.runs) <= most < 3000
    for each in subscribers:
        got = each.new()
        assert [message.sequence for message in got] == [*range(1, 3001)]
        assert all(message.redelivered and message.count == 1 for message in got)


def test_rounds_take_turns() -> None:
    worked = Worked()
    subscribers = worked.pending(3000, 6)
    before = len(worked.world.bus.sent)
    worked.world.advance(1.1)
    inboxes = [each.request.inbox for each in subscribers]
    order = [inboxes.index(each.subject) for each in worked.world.bus.sent[before:] if each.subject in inboxes]
    # The last one begins long before the first one is done, once their timers have fired.
    assert order.index(5) < len(order) - 1 - order[::-1].index(0)
    assert all(order.count(number) == 3000 for number in range(6))


def test_nothing_is_looked_up_for_nobody() -> None:
    worked = Worked()
    (only,) = worked.pending(3000, 1)
    worked.world.bus.deserted.add(only.request.inbox)
    messages = worked.world.channel(b"foo").messages
    with patch.object(type(messages), "read", side_effect=AssertionError("it is read")):
        worked.world.advance(2.1)
    assert only.new() == []
    worked.world.bus.deserted.clear()
    worked.world.advance(1)
    got = only.new()
    assert [message.sequence for message in got] == [*range(1, 3001)]
    assert {message.count for message in got} == {3}, "the redeliveries that nobody got count"


def test_what_is_not_there_any_more_is_acknowledged_for_nobody_too() -> None:
    worked = Worked()
    (only,) = worked.pending(10, 1)
    worked.world.bus.deserted.add(only.request.inbox)
    messages = worked.world.channel(b"foo").messages
    with patch.object(messages, "first", 6):
        worked.world.advance(1.1)
    worked.world.bus.deserted.clear()
    worked.world.advance(1)
    assert only.sequences() == [6, 7, 8, 9, 10]


def story(seed: int, share: int) -> list[tuple[int, bool, int]]:
    """Messages, acknowledgements and time by chance; returns what came, without the time at which it did."""
    chance = random.Random(seed)
    with patch.object(redelivery, "SHARE", share), patch.object(redelivery, "STEP", chance.choice((1, 7, 256))):
        worked = Worked(cost=COST if share < 1 << 60 else 0)
        world = worked.world
        (only,) = worked.pending(chance.randint(1, 400), 1)
        got: list[tuple[int, bool, int]] = []
        open_ones = set(range(1, world.channel(b"foo").messages.last + 1))
        for _ in range(chance.randint(1, 6)):
            acked = chance.sample(sorted(open_ones), chance.randint(0, len(open_ones) // 2))
            open_ones -= {*acked}
            if acked:
                only.ack(*acked)
            world.settle()
            world.advance(1.01)
            got += [(each.sequence, each.redelivered, each.count) for each in only.new()]
        return got


@pytest.mark.parametrize("seed", range(12))
def test_the_same_comes_in_the_same_order_as_without_turns(seed: int) -> None:
    assert story(seed, 50_000) == story(seed, 1 << 62)


def test_what_is_acknowledged_meanwhile_does_not_come() -> None:
    worked = Worked()
    (only,) = worked.pending(3000, 1)
    bus, publish = worked.world.bus, worked.world.bus.publish
    sent = 0

    def acknowledging(*arguments: Any) -> bool:
        nonlocal sent
        sent += 1
        if sent == 10:
            only.ack(*range(2000, 3001))
        return publish(*arguments)

    with patch.object(bus, "publish", acknowledging):
        worked.world.advance(1.1)
    assert only.sequences() == [*range(1, 2000)]


def test_a_subscription_that_ends_in_the_middle_of_its_round() -> None:
    worked = Worked()
    first, second = worked.pending(3000, 2)
    subscriptions = worked.world.channel(b"foo").plain
    run = worked.world.server.run_timers

    def ending() -> None:
        run()
        if first.request.inbox in {each.subject for each in worked.world.bus.sent[-100:]} and len(subscriptions) == 2:
            first.unsubscribe()

    with patch.object(worked.world.server, "run_timers", ending):
        worked.world.advance(1.1)
    assert second.sequences() == [*range(1, 3001)]
    assert 0 < len(first.new()) < 3000
