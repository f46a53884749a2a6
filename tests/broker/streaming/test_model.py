"""Random operations against a model that is as simple as the rules allow, in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.broker.streaming.journal import Journal
from tests.broker.streaming.world import SECOND, Subscriber, World

TICK = SECOND // 10


@dataclass
class Model:
    """What a plain subscription should be sent."""

    max_in_flight: int
    wait: int
    last_sent: int
    pending: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    sent: list[tuple[int, int]] = field(default_factory=list)
    online: bool = True

    def new(self, first: int, last: int, now: int) -> None:
        while self.online and len(self.pending) < self.max_in_flight:
            sequence = max(self.last_sent + 1, first)
            if sequence > last:
                return
            self.last_sent = sequence
            self.pending[sequence] = now + self.wait
            self.sent.append((sequence, 0))

    def again(self, sequence: int, deadline: int) -> None:
        self.counts[sequence] = self.counts.get(sequence, 0) + 1
        self.pending[sequence] = deadline
        self.sent.append((sequence, self.counts[sequence]))

    def tick(self, first: int, now: int) -> None:
        due = sorted((deadline, sequence) for sequence, deadline in self.pending.items() if deadline <= now)
        for deadline, sequence in due if self.online else ():
            if sequence < first:
                del self.pending[sequence]
                self.counts.pop(sequence, None)
            else:
                self.again(sequence, deadline + self.wait)

    def ack(self, sequence: int) -> None:
        if self.pending.pop(sequence, None) is not None:
            self.counts.pop(sequence, None)

    def resume(self, first: int, now: int) -> None:
        self.online = True
        for sequence in sorted(self.pending):
            if sequence < first:
                self.ack(sequence)
            else:
                self.again(sequence, now + self.wait)


class Plain:
    """A server with plain subscriptions and durables, and the model of each."""

    def __init__(self, max_msgs: int) -> None:
        store = Journal(StoreLimits(channel=ChannelLimits(max_msgs=max_msgs)))
        self.world = World(store=store)
        self.world.connect()
        self.max_msgs = max_msgs
        self.last = 0
        self.pairs: list[tuple[Subscriber, Model, bytes]] = []

    @property
    def first(self) -> int:
        return max(1, self.last - self.max_msgs + 1) if self.max_msgs else 1

    def publish(self, count: int) -> None:
        assert self.world.publish(b"foo", *[b"x"] * count) == [b""] * count
        self.last += count
        self.flow()

    def flow(self) -> None:
        for _, model, _ in self.pairs:
            model.new(self.first, self.last, self.world.time.now)

    def subscribe(self, start: int, in_flight: int, wait: int, durable: bool) -> None:
        name = b"d%d" % len(self.pairs) if durable else b""
        subscriber = self.world.subscribe(
            b"foo",
            max_in_flight=in_flight,
            ack_wait_in_secs=wait,
            durable_name=name,
            start_position=pb.SEQUENCE_START,
            start_sequence=start,
        )
        behind = self.last if start > self.last else max(start, self.first if self.last else 0, 1) - 1
        self.pairs.append((subscriber, Model(in_flight, wait * SECOND, behind), name))
        self.flow()

    def ack(self, which: int, sequences: list[int]) -> None:
        if self.pairs:
            subscriber, model, _ = self.pairs[which % len(self.pairs)]
            subscriber.ack(*sequences)
            for sequence in sequences if model.online else ():
                model.ack(sequence)
            self.flow()

    def close(self, which: int, in_flight: int) -> None:
        """Closes a durable, or resumes it."""
        if not self.pairs:
            return
        which %= len(self.pairs)
        subscriber, model, name = self.pairs[which]
        if not name:
            return
        if model.online:
            assert subscriber.close() == b""
            model.online = False
            return
        request = subscriber.request
        again = self.world.subscribe(
            b"foo", max_in_flight=in_flight, ack_wait_in_secs=request.ack_wait_in_secs, durable_name=name
        )
        assert not again.error
        model.max_in_flight = in_flight
        model.resume(self.first, self.world.time.now)
        again.messages = subscriber.messages
        self.pairs[which] = (again, model, name)
        self.flow()

    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.advance(TICK / SECOND)
            for _, model, _ in self.pairs:
                model.tick(self.first, self.world.time.now)
            self.flow()

    def check(self) -> None:
        for subscriber, model, _ in self.pairs:
            assert [(each.sequence, each.count) for each in subscriber.new()] == model.sent
            model.sent.clear()
        channel = self.world.channel(b"foo")
        if channel is not None:
            assert channel.messages.last == self.last


sizes = st.integers(1, 4)
operations = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6)),
    st.tuples(st.just("subscribe"), st.integers(0, 12), sizes, st.integers(1, 2), st.booleans()),
    st.tuples(st.just("ack"), st.integers(0, 5), st.lists(st.integers(0, 20), min_size=1, max_size=4)),
    st.tuples(st.just("close"), st.integers(0, 5), sizes),
    st.tuples(st.just("pass_time"), st.integers(1, 25)),
)


@pytest.mark.parametrize("max_msgs", [0, 4])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operations, max_size=25))
def test_plain_subscriptions(max_msgs: int, steps: list[tuple[object, ...]]) -> None:
    plain = Plain(max_msgs)
    for name, *arguments in steps:
        getattr(plain, str(name))(*arguments)
        plain.check()


group_operations = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 9)),
    st.tuples(st.just("join"), sizes),
    st.tuples(st.just("leave"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("ack"), st.integers(0, 5), st.integers(1, 5)),
    st.tuples(st.just("pass_time"), st.integers(1, 12)),
    st.tuples(st.just("restart"), st.booleans()),
)


class Group:
    """A durable queue group whose members come and go, and the server with them."""

    def __init__(self) -> None:
        self.store = Journal()
        self.world = World(store=self.store)
        self.world.connect()
        self.members: list[Subscriber] = []
        self.all: list[Subscriber] = []
        self.last = 0
        self.acked: set[int] = set()
        self.first_seen: list[int] = []
        self.crashed = False
        self.at = len(self.world.bus.sent)
        self.join(1)

    def publish(self, count: int) -> None:
        self.world.publish(b"foo", *[b"x"] * count)
        self.last += count

    def join(self, in_flight: int) -> None:
        member = self.world.subscribe(
            b"foo", q_group=b"g", durable_name=b"d", max_in_flight=in_flight, ack_wait_in_secs=1
        )
        assert not member.error
        self.members.append(member)
        self.all.append(member)

    def leave(self, which: int, unsubscribe: bool) -> None:
        if self.members:
            member = self.members.pop(which % len(self.members))
            # Unsubscribing the last one would end the group.
            assert (member.unsubscribe() if unsubscribe and self.members else member.close()) == b""

    def ack(self, which: int, count: int) -> None:
        if self.members:
            member = self.members[which % len(self.members)]
            seen = [each.sequence for each in member.messages[:count]]
            del member.messages[:count]
            if seen:
                member.ack(*seen)
            self.acked.update(seen)

    def pass_time(self, ticks: int) -> None:
        self.world.advance(ticks * TICK / SECOND)

    def restart(self, crash: bool) -> None:
        if crash:
            self.store.crash()
            self.crashed = True
        else:
            self.world.server.stop()
        bus = self.world.bus
        bus.listeners.clear()
        self.world = World(store=self.store, time=self.world.time, bus=bus)
        for member in self.all:
            member.world = self.world

    def check(self) -> None:
        inboxes = {member.request.inbox: member for member in self.all}
        fresh = self.world.bus.sent[self.at :]
        self.at = len(self.world.bus.sent)
        for sent in fresh:
            if (member := inboxes.get(sent.subject)) is None:
                continue
            message = pb.MsgProto.FromString(sent.payload)
            member.messages.append(message)
            if not message.redelivered:
                self.first_seen.append(message.sequence)
            elif not self.crashed:
                assert message.sequence in self.first_seen
                assert message.sequence not in self.acked
        if not self.crashed:
            assert self.first_seen == list(range(1, len(self.first_seen) + 1)), "in order, each once"
        for channel in self.world.server.channels:
            for group in channel.groups.values():
                holders = [sequence for member in group.members for sequence in member.pending]
                assert len(holders) == len(set(holders)), "a message is pending at one member"

    def finish(self) -> None:
        """Whoever is there acknowledges what comes: in the end everybody's messages have been seen."""
        if not self.members:
            self.join(2)
        for _ in range(200):
            self.check()
            for i in range(len(self.members)):
                self.ack(i, 1000)
            self.check()
            members = self.world.channel(b"foo").groups[b"d:g"].members
            if self.acked >= set(range(1, self.last + 1)) and not any(member.pending for member in members):
                return
            self.pass_time(4)
        raise AssertionError("something does not come")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(group_operations, max_size=25))
def test_a_durable_group_loses_nothing(steps: list[tuple[object, ...]]) -> None:
    group = Group()
    for name, *arguments in steps:
        getattr(group, str(name))(*arguments)
        group.check()
    group.finish()
