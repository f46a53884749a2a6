"""Pending messages: the order in which they are due, against a list that is sorted; and how many are looked at."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from broker.streaming import delivery, redelivery
from broker.streaming.pending import TOLERANCE, PendingByDeadline, in_order
from broker.streaming.state import ChannelSubscription
from stantools.format.proto import store_pb2 as pb
from tests.broker.streaming.world import Subscriber, World

WAIT = 1_000_000_000
MANY = 12_000


class Story:
    """What becomes of pending messages by chance, beside a plain dictionary of their deadlines."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.pending, self.deadlines = PendingByDeadline(), dict[int, int]()
        self.now, self.numbers = 0, count(1)

    def go_on(self) -> None:
        self.now += self.chance.choice((0, 1000, TOLERANCE // 3, WAIT // 7))
        what = self.chance.choice((self.send, self.send, self.acknowledge, self.redeliver, self.take_over))
        what()

    def send(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            number = next(self.numbers)
            self.pending[number] = self.deadlines[number] = self.now + WAIT

    def acknowledge(self) -> None:
        for number in self.chance.sample(sorted(self.deadlines), len(self.deadlines) // 3):
            del self.deadlines[number], self.pending[number]

    def redeliver(self) -> None:
        due = self.pending.due(self.now + TOLERANCE, self.chance.choice((1, 3, 1000)))
        self.move({each: max(self.deadlines[each] + WAIT, self.now + 1) for each in due})

    def take_over(self) -> None:
        """What another one had comes, and is due at once; or was sent by a server before, at any time."""
        deadlines = [self.now, self.now + self.chance.randint(-WAIT, WAIT)]
        self.move({next(self.numbers): self.chance.choice(deadlines) for _ in range(self.chance.randint(1, 5))})

    def move(self, deadlines: dict[int, int]) -> None:
        self.deadlines.update(deadlines)
        self.pending.move(deadlines.items())

    def due(self, horizon: int) -> list[int]:
        found = sorted((deadline, number) for number, deadline in self.deadlines.items() if deadline <= horizon)
        return [number for _, number in found]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_due_is_found_in_order(seed: int) -> None:
    story = Story(seed)
    for _ in range(80):
        story.go_on()
        assert story.pending == story.deadlines
        for horizon in (story.now, story.now + TOLERANCE, story.now + WAIT // 2, story.now + 2 * WAIT):
            assert story.pending.due(horizon, 1 << 30) == story.due(horizon)
        earliest, first = story.pending.earliest(1 << 30), min(story.deadlines.values(), default=None)
        if first is None:
            assert earliest is None
        else:
            assert earliest is not None
            assert first <= earliest <= first + TOLERANCE
        assert in_order(story.pending) == story.due(1 << 62)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_with_few_looks_all_come_too(seed: int, limit: int) -> None:
    story = Story(seed)
    for _ in range(60):
        story.go_on()
    expected, found = {*story.due(story.now + TOLERANCE)}, list[int]()
    for _ in range(3000):
        horizon = story.now + TOLERANCE
        found += (due := story.pending.due(horizon, limit))
        assert len(due) <= limit
        story.move(dict.fromkeys(due, story.now + 2 * WAIT))
        earliest = story.pending.earliest(limit)
        if not due and (earliest is None or earliest > horizon):
            break
    else:
        pytest.fail("it never ends")
    assert len(found) == len({*found})
    assert {*found} == expected


class Counted(PendingByDeadline):
    """Pending messages that count how many of them are looked at."""

    __slots__ = ("looks",)

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def items(self) -> Any:
        return self._counted(super().items())

    def values(self) -> Any:
        return self._counted(super().values())

    def __iter__(self) -> Iterator[int]:
        return self._counted(super().__iter__())

    def get(self, *arguments: Any) -> Any:
        self.looks += 1
        return super().get(*arguments)

    def _counted(self, entries: Any) -> Iterator[Any]:
        for each in entries:
            self.looks += 1
            yield each


class Watched:
    """A world in which a subscription has much pending: the most looks of one step of the server."""

    def __init__(self, **more: Any) -> None:
        self.world = world = World()
        world.connect()
        world.publish(b"foo", *[b"%d" % number for number in range(MANY)])
        self.subscriber: Subscriber = world.subscribe(
            b"foo", max_in_flight=1 << 20, ack_wait_in_secs=1, start_position=pb.FIRST, **more
        )
        world.settle()
        assert self.subscriber.sequences() == [*range(1, MANY + 1)]

    def count(self, subscription: ChannelSubscription) -> None:
        """Counts looks from now on."""
        self.most = 0
        server = self.world.server
        self._run, self._commit = server.run_timers, server.commit
        server.run_timers, server.commit = self._run_timers, self._commit_all  # type: ignore[method-assign]
        self.pending = Counted()
        self.pending.update(subscription.pending)
        self.pending.looks = 0
        subscription.pending = self.pending

    @property
    def subscription(self) -> ChannelSubscription:
        found: ChannelSubscription = next(iter(self.world.channel(b"foo").plain.values()))
        return found

    def _run_timers(self) -> None:
        self._counted(self._run)

    def _commit_all(self) -> None:
        self._counted(self._commit)

    def _counted(self, step: Any) -> None:
        before = self.pending.looks
        step()
        self.most = max(self.most, self.pending.looks - before)


#: Looks of a step: for what is due in both orders, and for what is sent.
_BOUND = 4 * redelivery.LOOKS


@pytest.fixture
def steps_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a round is a run of the timers."""
    monkeypatch.setattr(redelivery, "SHARE", 0)


@pytest.mark.usefixtures("steps_are_short")
def test_a_round_looks_at_a_bounded_number_of_messages_in_each_step() -> None:
    watched = Watched()
    watched.count(watched.subscription)
    watched.world.advance(3.5)
    got = watched.subscriber.new()
    assert [each.sequence for each in got] == 3 * [*range(1, MANY + 1)]
    assert watched.most < _BOUND < MANY
    # All of them three times, for both orders, and to send them.
    assert watched.pending.looks < 3 * 8 * MANY


@pytest.mark.usefixtures("steps_are_short")
def test_one_message_that_is_due_costs_no_look_at_the_others() -> None:
    watched = Watched()
    world = watched.world
    watched.subscriber.ack(*range(2, MANY + 1))
    world.advance(0.5)
    world.publish(b"foo", *[b"x"] * MANY)
    world.settle()
    watched.count(watched.subscription)
    world.advance(0.7)
    assert watched.subscriber.new()[-1].sequence == 1
    assert watched.pending.looks < 20


@pytest.mark.usefixtures("steps_are_short")
def test_a_client_that_does_not_keep_up_costs_no_look_at_what_is_due() -> None:
    watched = Watched()
    watched.count(watched.subscription)
    watched.world.bus.full.add(watched.subscriber.request.inbox)
    watched.world.advance(1.5)
    assert watched.subscriber.new() == []
    # It is looked every 20 ms.
    assert watched.pending.looks < 100
    watched.world.bus.full.clear()
    watched.world.advance(0.3)
    assert watched.subscriber.sequences() == [*range(1, MANY + 1)]


def test_a_resumed_durable_is_looked_through_once() -> None:
    watched = Watched(durable_name=b"d")
    watched.world.advance(1.2)  # in another order than that of the sequences
    watched.subscriber.ack(*range(5, MANY, 10))
    watched.subscriber.close()
    left = [each for each in range(1, MANY + 1) if each % 10 != 5]
    (durable,) = watched.world.channel(b"foo").durables.values()
    watched.count(durable)
    resumed = watched.world.subscribe(b"foo", durable_name=b"d", max_in_flight=1 << 20, ack_wait_in_secs=1)
    watched.world.settle()
    assert resumed.sequences() == left
    assert watched.pending.looks < 4 * MANY
    watched.world.advance(1.1)
    assert resumed.sequences() == left


def test_what_an_ended_subscription_had_pending_is_freed_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    shorten = PendingByDeadline.shorten

    def counted(self: PendingByDeadline, count: int) -> None:
        freed.append(len(self))
        shorten(self, count)

    monkeypatch.setattr(PendingByDeadline, "shorten", counted)
    watched = Watched()
    watched.world.advance(1.2)
    pending, counts = watched.subscription.pending, watched.subscription.counts
    assert len(pending) == len(counts) == MANY
    watched.subscriber.unsubscribe()
    watched.world.advance(0.1)
    assert len(freed) > 2
    assert sorted(freed, reverse=True) == freed
    assert not pending
    assert not counts


@pytest.mark.skipif(not str(delivery.__file__).endswith(".py"), reason="replaces a method of a compiled class")
def test_a_group_of_many_messages_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that cost 10 µs each: a commit sends no more than its time allows, though there are more."""
    world = World()
    world.connect()
    for _ in range(3):
        world.subscribe(b"foo", q_group=b"g", max_in_flight=1 << 20)
    publish, commit, sent, most = world.bus.publish, world.server.commit, 0, 0

    def costly(*arguments: Any, **more: Any) -> bool:
        nonlocal sent
        sent += 1
        world.time.now += 10_000
        return publish(*arguments, **more)

    def counted() -> None:
        nonlocal sent, most
        sent = 0
        commit()
        most = max(most, sent)

    world.server.commit = counted  # type: ignore[method-assign]
    with monkeypatch.context() as patch:
        # Stored, and not delivered yet.
        patch.setattr(world.server._serving, "channel", lambda channel: None)
        world.publish(b"foo", *[b"x"] * MANY)
    world.bus.publish, most = costly, 0  # type: ignore[method-assign]
    world.publish(b"foo", b"x")
    world.settle()
    assert sum(len(each.pending) for each in world.channel(b"foo").groups[b"g"].members) == MANY + 1
    assert most <= 1100
