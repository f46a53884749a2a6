"""Commits on a store that answers late, in simulated time: completions that are late, out of order, failing and lost.

Channels are made late as well, or cannot be made.

A seed makes everything that happens. A checker looks at every message and every acknowledgement as they leave, and in
the end at the logs: what was acknowledged is there once, and in order; nothing was delivered that is not stored; nobody
waits for an acknowledgement but those whose messages nobody can tell about.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from broker.log import STREAMING, TRACE
from broker.record_buffer import MessageRecordBuffer
from broker.stores.interface import ChannelStore, Flush, FlushOutcome, StorageError
from broker.stores.memory import MemoryMessages, MemoryStore, MemorySubscriptions
from broker.streaming import backlog
from broker.streaming.commits import Commits, CommitState
from broker.streaming.ports import Role
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.nats.frames import Payloads
from stantools.store.limits import UNLIMITED, StoreLimits
from tests.broker.streaming.world import SECOND, Bus, Subscriber, Time, World

CHANNELS = (b"foo", b"bar", b"baz")
#: States while there is no commit.
BETWEEN = (CommitState.IDLE, CommitState.SLEEPING)


@dataclass
class Flight:
    """A flush that is under way.

    Attributes:
        due: When it is over.
        outcome: What comes of it.
        kept: Blocks that are stored although nobody can tell.
    """

    flush: Flush
    blocks: list[MessageRecordBuffer]
    due: int
    outcome: FlushOutcome
    kept: int


class LateMessages:
    """The messages of a channel: what is stored is in the log at once, in the order in which flushes end."""

    def __init__(self, name: bytes, store: LateStore, making: Flight | None) -> None:
        self.making = making
        self.log = MemoryMessages(name, UNLIMITED)
        self.limits, self.read, self.expire = self.log.limits, self.log.read, self.log.expire
        self.sequence_at = self.log.sequence_at
        self.name = name
        self.store = store
        self.appended: list[MessageRecordBuffer] = []
        self.flights: deque[Flight] = deque()

    @property
    def first(self) -> int:
        return self.log.first

    @property
    def last(self) -> int:
        ahead = [*(block for each in self.flights for block in each.blocks), *self.appended]
        return self.log.last + sum(len(block) for block in ahead)

    @property
    def count(self) -> int:
        return self.log.count

    @property
    def bytes(self) -> int:
        return self.log.bytes

    def append(self, records: MessageRecordBuffer) -> None:
        chance = self.store.chance
        assert int(records.sequences[0]) == self.last + 1
        if chance.random() < self.store.failing / 4:
            if chance.random() < 0.5:
                self.take_back()
            raise StorageError("cannot append")
        self.appended.append(records)

    def take_back(self) -> None:
        self.appended.clear()
        self.flights.clear()

    def flush(self) -> Flush | None:
        store, chance = self.store, self.store.chance
        if self.making is not None and not self.making.due:
            self.making.due = store.time.now + round(chance.expovariate(1 / store.latency) * SECOND)
        if not self.appended:
            return self.flights[-1].flush if self.flights else None
        if chance.random() < store.failing:
            self.take_back()
            raise StorageError("cannot flush")
        blocks, self.appended = self.appended, []
        if not self.flights and self.making is None and chance.random() < store.at_once:
            self._keep(blocks)
            return None
        if len(self.flights) > 1 and chance.random() < store.merging:
            self.flights[-1].blocks += blocks
            return self.flights[-1].flush
        due = store.time.now + round(chance.expovariate(1 / store.latency) * SECOND)
        outcome = FlushOutcome.STORED
        if chance.random() < store.failing:
            outcome = FlushOutcome.REFUSED
        elif chance.random() < store.losing:
            outcome, due = FlushOutcome.UNKNOWN, due + SECOND
        due = max(due, self.flights[-1].due if self.flights else 0, self.making.due if self.making else 0)
        self.flights.append(Flight(Flush(), blocks, due, outcome, chance.randint(0, len(blocks))))
        return self.flights[-1].flush

    def _keep(self, blocks: list[MessageRecordBuffer]) -> None:
        for block in blocks:
            self.log.append(block)
            for row in range(len(block)):
                message = pb.MsgProto.FromString(block.payload(row))
                self.store.logs[self.name].append((message.sequence, message.data))

    def land(self) -> list[Flush]:
        """Ends what is due, in order."""
        done = []
        making = self.making
        if making is not None and 0 < making.due <= self.store.time.now:
            self.making, making.flush.outcome = None, making.outcome
            done.append(making.flush)
            if making.outcome is FlushOutcome.REFUSED:
                making.flush.error = "cannot be made"
                self.take_back()
                del self.store.made[self.name]
        while self.flights and self.flights[0].due <= self.store.time.now:
            flight = self.flights.popleft()
            flight.flush.outcome = flight.outcome
            done.append(flight.flush)
            if flight.outcome is FlushOutcome.STORED:
                self._keep(flight.blocks)
                continue
            flight.flush.error = flight.outcome.name
            if flight.outcome is FlushOutcome.UNKNOWN:
                lost = [flight, *self.flights]
                for block in [*(block for each in lost for block in each.blocks), *self.appended]:
                    self.store.unknown.update(
                        pb.MsgProto.FromString(block.payload(row)).data for row in range(len(block))
                    )
                self._keep(flight.blocks[: flight.kept])
            self.take_back()
        return done


class LateStore(MemoryStore):
    """A store that completes flushes later, in any order between channels.

    Attributes:
        patience: How long (ns) whoever asks what is complete waits for all.
        logs: What is stored of each channel: sequences and data.
        unknown: Data of messages of which it could not tell what became of them.
    """

    def __init__(self, seed: int, time: Time, limits: StoreLimits | None = None) -> None:
        super().__init__(limits)
        self.chance = chance = random.Random(seed)
        self.time = time
        self.at_once = chance.choice([0, 0, 0.5])
        self.merging = chance.choice([0, 0.5, 1])
        self.failing = chance.choice([0, 0, 0.03, 0.15])
        self.losing = chance.choice([0, 0, 0.05])
        self.latency = chance.choice([0.001, 0.1, 2])
        self.new = chance.choice([0, 0, 0.5, 1])
        self.impossible = chance.choice([0, 0, 0.3, 0.9])
        self.patience = chance.choice([0, SECOND // 50])
        self.refused = 0
        self.logs: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        self.unknown: set[bytes] = set()

    @property
    def made(self) -> dict[bytes, ChannelStore]:
        """Its channels, also those that are being made."""
        return self._channels

    def create_channel(self, name: bytes) -> ChannelStore:
        if 0 < self.limits.max_channels <= len(self._channels):
            raise StorageError("too many channels")
        making = None
        if self.chance.random() < self.new:
            outcome = FlushOutcome.REFUSED if self.chance.random() < self.impossible else FlushOutcome.STORED
            self.refused += outcome is FlushOutcome.REFUSED
            making = Flight(Flush(), [], 0, outcome, 0)
        messages = LateMessages(name, self, making)
        found = ChannelStore(messages, MemorySubscriptions(UNLIMITED), making.flush if making else None)
        self._channels[name] = found
        return found

    def flights(self) -> list[Flight]:
        channels: list[Any] = [each.messages for each in self._channels.values()]
        making = [each.making for each in channels if each.making is not None and each.making.due]
        return [*making, *(flight for each in channels for flight in each.flights)]

    def completed(self) -> list[Flush]:
        channels: list[Any] = [each.messages for each in self._channels.values()]
        self.chance.shuffle(channels)
        self.time.now += min(max((each.due - self.time.now for each in self.flights()), default=0), self.patience)
        return [flush for each in channels for flush in each.land()]


class Watched(Bus):
    """A bus on which everything that leaves is checked."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self.store: LateStore
        self.commits: Commits
        self.states: set[CommitState] = set()
        self.acks: dict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.inboxes: dict[bytes, bytes] = {}
        self.answers: dict[bytes, protocol.SubscriptionResponse] = {}
        self.delivered: dict[bytes, list[int]] = defaultdict(list)

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        if subject.startswith(b"acks."):
            ack = protocol.PubAck.FromString(payload)
            self.acks[subject].append((ack.guid, ack.error))
            assert any(data == ack.guid for log in self.store.logs.values() for _, data in log) != bool(ack.error)
            self.states.add(self.commits.state)
        elif subject.startswith(b"subs."):
            self.answers[subject] = protocol.SubscriptionResponse.FromString(payload)
        elif subject in self.inboxes:
            message = pb.MsgProto.FromString(payload)
            log = self.store.logs[self.inboxes[subject]]
            assert log[message.sequence - 1] == (message.sequence, message.data), "it is stored"
            self.delivered[subject].append(message.sequence)
            self.states.add(self.commits.state)
        return super().publish(role, subject, payload, reply)

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        return all(self.publish(role, subject, block.payload(row)) for row in range(begin, end))


@dataclass
class Run:
    """What one seed does."""

    seed: int
    published: dict[bytes, list[tuple[bytes, bytes]]] = field(default_factory=lambda: defaultdict(list))
    subscribers: list[Subscriber] = field(default_factory=list)
    asked: dict[bytes, pb.SubscriptionRequest] = field(default_factory=dict)
    count: int = 0
    channels: tuple[bytes, ...] = CHANNELS
    max_channels: int = 0

    def __post_init__(self) -> None:
        time = Time()
        self.bus = Watched(time)
        self.store = self.bus.store = LateStore(self.seed, time, StoreLimits(self.max_channels, UNLIMITED))
        self.chance = self.store.chance
        sleep = self.chance.choice([0, 0, 0, SECOND // 1000])
        # Commits flush for 8 ms at most, and leave what is left to the next one.
        time.cost = self.chance.choice([0, 0, SECOND // 200, SECOND // 50])
        self.world = World(store=self.store, time=time, bus=self.bus, io_sleep_time=sleep)
        self.bus.commits = self.world.server._commits
        self.clients = [b"c%d" % number for number in range(self.chance.randint(1, 5))]
        for client in self.clients:
            self.world.connect(client)

    def publish(self) -> None:
        """Publishes as some connections do that are read in one turn."""
        messages = []
        for _ in range(self.chance.choice([1, 1, 2, 8, 40])):
            client, channel = self.chance.choice(self.clients), self.chance.choice(self.channels)
            self.count += 1
            data, reply = b"%d" % self.count, b"acks." + client
            subject = self.world.subjects.publish + b"." + channel
            messages.append((subject, self.world.message(channel, data, client, data), reply))
            self.published[reply].append((channel, data))
        self.bus.feed(messages)
        if self.chance.random() < 0.7:
            self.world.settle()

    def subscribe(self) -> None:
        channel = self.chance.choice(self.channels)
        start = self.chance.choice([pb.FIRST, pb.NEW_ONLY, pb.LAST_RECEIVED, pb.TIME_DELTA_START])
        inbox = self.world.inbox()
        self.bus.inboxes[inbox] = channel
        in_flight = self.chance.choice([2, 1024])
        request = self.world.request(
            channel, b"c0", inbox=inbox, max_in_flight=in_flight, ack_wait_in_secs=3600, start_position=start
        )
        reply = b"subs." + inbox
        self.asked[reply] = request
        self.bus.feed([(self.world.subjects.subscribe, request.SerializeToString(), reply)])
        self.world.settle()
        self.look()

    def look(self) -> None:
        """Looks for answers to those who subscribed: they come when the channel is there, or cannot be made."""
        for reply, response in self.bus.answers.items():
            request = self.asked.pop(reply)
            if not response.error:
                self.subscribers.append(Subscriber(self.world, request, response.ack_inbox, b""))
            else:
                assert self.store.refused or self.max_channels
        self.bus.answers.clear()

    def acknowledge(self, subscriber: Subscriber) -> bool:
        found = subscriber.sequences()
        if found:
            subscriber.ack(*found)
        return bool(found)

    def pass_time(self, seconds: float) -> None:
        """Lets time pass, with a stop wherever a flush ends."""
        end = self.world.time.now + round(seconds * SECOND)
        while True:
            due = min((each.due for each in self.store.flights()), default=end + 1)
            if due > end:
                break
            self.world.advance(max(due - self.world.time.now, 0) / SECOND)
            self.world.time.now = max(self.world.time.now, due)
            assert self.store.wake is not None
            self.store.wake()
            self.world.settle()
        self.world.advance(max(end - self.world.time.now, 0) / SECOND)
        self.look()

    def step(self) -> None:
        self.bus.states.add(self.bus.commits.state)
        assert self.bus.commits.state in BETWEEN
        what = self.chance.random()
        if what < 0.6:
            if not self.bus.slowed:
                self.publish()
        elif what < 0.7:
            if len(self.subscribers) + len(self.asked) < 6:
                self.subscribe()
        elif what < 0.8:
            for each in self.subscribers:
                self.acknowledge(each)
        elif what < 0.83 and self.subscribers:
            gone = self.subscribers.pop(self.chance.randrange(len(self.subscribers)))
            assert gone.close() == b""
        else:
            self.pass_time(self.chance.choice([0, 0.001, 0.1, 1]))

    def end(self) -> None:
        """Lets everything come to its end."""
        self.pass_time(1)  # what waits for more before it is flushed
        self.pass_time(60)
        assert not self.store.flights()
        while sum(self.acknowledge(each) for each in self.subscribers):
            self.pass_time(1)
        assert not self.bus.slowed
        assert not self.world.server.channels.making and not self.asked
        assert {each.name for each in self.world.server.channels} == set(self.store.made)
        self.check()

    def check(self) -> None:
        logs = self.store.logs
        for log in logs.values():
            assert [sequence for sequence, _ in log] == list(range(1, len(log) + 1))
            assert [int(data) for _, data in log] == sorted({int(data) for _, data in log}), "once, as they came"
        stored = {data for log in logs.values() for _, data in log}
        for reply, sent in self.published.items():
            acks = self.bus.acks[reply]
            known = [data for _, data in sent if data not in self.store.unknown]
            guids = [guid for guid, _ in acks]
            # Who is one channel too many hears of it at once.
            assert (sorted(guids, key=int) if self.max_channels else guids) == known, "in order, none is lost"
            assert {guid for guid, error in acks if not error} == {data for data in known if data in stored}
        for each in self.subscribers:
            found = self.bus.delivered[each.request.inbox]
            assert found == list(range(found[0], found[0] + len(found))) if found else True
            log = logs[each.request.subject]
            if each.request.start_position == pb.FIRST:
                assert len(found) == len(log)
            elif found:
                assert found[-1] == len(log)


def play(seed: int) -> Run:
    run = Run(seed)
    for _ in range(60):
        run.step()
    return run


SEEDS = pytest.mark.parametrize("seeds", [12, pytest.param(200, marks=pytest.mark.slow)])


def test_late_completions() -> None:
    seen: set[CommitState] = set()
    for seed in range(20):
        run = play(seed)
        run.end()
        seen |= run.bus.states
    assert seen == set(CommitState)


@SEEDS
def test_commits_that_wait_for_publishers(seeds: int) -> None:
    """Those who publish one message at a time, where whoever asks the store waits for it."""
    paused = 0
    for seed in range(seeds):
        run = Run(seed)
        run.store.patience, run.store.latency, run.store.at_once = SECOND // 50, 0.001, 0
        for _ in range(120):
            run.step()
        run.end()
        paused += run.world.driver.paused
    assert paused > seeds


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_seeds(part: int) -> None:
    for seed in range(part * 500, 500 + part * 500):
        play(seed).end()


@SEEDS
def test_channels_that_are_made_late_or_never(seeds: int) -> None:
    """Many channels, of which only a few may be there at a time; those that cannot be made make room for others."""
    refused = slowed = 0
    names = tuple(b"c%d" % number for number in range(40))
    for seed in range(seeds):
        run = Run(seed, channels=names, max_channels=seed % 3 * 10)
        run.store.new, run.store.impossible = 1, run.store.chance.choice([0, 0.5])
        with patch.object(backlog, "NEW_BOUND", 5):
            for _ in range(60):
                run.step()
                slowed += run.bus.slowed
                assert len(run.world.server.channels) <= (run.max_channels or len(names))
                assert {each.name for each in run.world.server.channels} == set(run.store.made)
            run.end()
        refused += run.store.refused
    assert refused > seeds and slowed > seeds // 2


def test_publishers_are_read_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a slow store is bounded, by all channels and by each."""
    for bound, channel_bound in ((2000, 1 << 20), (1 << 20, 700)):
        monkeypatch.setattr(backlog, "BOUND", bound)
        monkeypatch.setattr(backlog, "CHANNEL_BOUND", channel_bound)
        slowed = 0
        for seed in range(15):
            run = Run(seed)
            run.store.latency = 2
            for _ in range(60):
                run.step()
                slowed += run.bus.slowed
                waiting = sum(len(block.data) for each in run.store.flights() for block in each.blocks)
                assert waiting < min(bound, 3 * channel_bound) + 40 * 100
            run.end()
        assert slowed > 25


def test_the_end_waits_for_the_store_as_long_as_it_says() -> None:
    """Who is stored then is told; the others hear nothing."""
    for seed in range(15):
        run = play(seed)
        run.world.settle()
        until = run.world.time.now + SECOND

        def settle(run: Run = run, until: int = until) -> None:
            run.world.time.now = until

        run.store.settle = settle  # type: ignore[method-assign]
        run.world.server.stop()
        run.store.unknown.update(
            pb.MsgProto.FromString(block.payload(row)).data
            for flight in run.store.flights()
            for block in flight.blocks
            for row in range(len(block))
        )
        for reply, sent in run.published.items():
            known = [data for _, data in sent if data not in run.store.unknown]
            acks = [guid for guid, _ in run.bus.acks[reply]]
            assert acks == known[: len(acks)]


class TakenMessages(MemoryMessages):
    """A channel whose sequences somebody else has used, for messages of theirs."""

    def flush(self) -> None:
        raise StorageError("somebody else was faster")


class TakenStore(MemoryStore):
    """A store of such channels."""

    def create_channel(self, name: bytes) -> ChannelStore:
        found = self._channels[name] = ChannelStore(TakenMessages(name, UNLIMITED), MemorySubscriptions(UNLIMITED))
        return found


def test_what_somebody_else_has_stored_is_delivered() -> None:
    world = World(store=TakenStore())
    world.connect()
    subscriber = world.subscribe(b"foo")
    world.publish(b"foo", b"1")
    assert subscriber.sequences() == [1]


class LateSubscriptions(MemorySubscriptions):
    """Subscriptions whose flushes end when the test says so."""

    def __init__(self) -> None:
        super().__init__(UNLIMITED)
        self.under_way: list[Flush] = []

    def flush(self) -> Flush | None:  # type: ignore[override]
        self.under_way.append(Flush())
        return self.under_way[-1]


class LateSubscriptionStore(MemoryStore):
    """A store with such subscriptions in a single channel."""

    def __init__(self) -> None:
        super().__init__()
        self.late = LateSubscriptions()
        self.done: list[Flush] = []

    def create_channel(self, name: bytes) -> ChannelStore:
        found = self._channels[name] = ChannelStore(MemoryMessages(name, UNLIMITED), self.late)
        return found

    def completed(self) -> list[Flush]:
        done, self.done = self.done, []
        return done


class TestSubscriptionsThatAreDurableLater:
    """Answers to requests that change subscriptions wait until that is durable; nothing else does."""

    @pytest.fixture
    def world(self) -> World:
        world = World(store=LateSubscriptionStore())
        world.connect()
        return world

    @staticmethod
    def end(world: World, error: str = "") -> None:
        """Ends all flushes, with an error or none."""
        store = world.store
        assert isinstance(store, LateSubscriptionStore)
        for each in store.late.under_way:
            if error:
                each.outcome, each.error = FlushOutcome.REFUSED, error
        store.done += store.late.under_way
        store.late.under_way.clear()
        assert store.wake is not None
        store.wake()
        world.settle()

    @staticmethod
    def ask(world: World, subject: bytes, request: Any) -> bytes:
        """Sends a request and returns where its answer will go."""
        reply = world.inbox()
        world.bus.feed([(subject, request.SerializeToString(), reply)])
        world.settle()
        return reply

    @staticmethod
    def answers(world: World, reply: bytes) -> list[protocol.SubscriptionResponse]:
        return [
            protocol.SubscriptionResponse.FromString(sent.payload) for sent in world.bus.sent if sent.subject == reply
        ]

    def subscribe(self, world: World, **more: Any) -> tuple[pb.SubscriptionRequest, bytes]:
        request = world.request(b"foo", **more)
        return request, self.ask(world, world.subjects.subscribe, request)

    def test_a_subscription(self, world: World) -> None:
        world.publish(b"foo", b"1")
        request, reply = self.subscribe(world, durable_name=b"d")
        assert world.publish(b"foo", b"2") == [b""], "publishers do not wait for it"
        inboxes = [sent.subject for sent in world.bus.sent]
        assert reply not in inboxes
        assert request.inbox not in inboxes
        self.end(world)
        (answer,) = self.answers(world, reply)
        assert not answer.error
        assert [pb.MsgProto.FromString(s.payload).data for s in world.bus.sent if s.subject == request.inbox] == [
            b"1",
            b"2",
        ]
        end = pb.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=answer.ack_inbox)
        reply = self.ask(world, world.subjects.unsubscribe, end)
        assert not self.answers(world, reply)
        self.end(world)
        assert [each.error for each in self.answers(world, reply)] == [b""]

    @pytest.mark.parametrize("group", [b"", b"g"])
    def test_one_that_cannot_be_stored(self, world: World, group: bytes) -> None:
        _, reply = self.subscribe(world, durable_name=b"d", q_group=group)
        self.end(world, "no space left on device")
        assert [each.error for each in self.answers(world, reply)] == [b"no space left on device"]
        channel = world.channel(b"foo")
        assert not list(channel.subscriptions())
        assert not channel.groups
        assert not world.server.clients.get(b"me").subscriptions
        _, reply = self.subscribe(world, durable_name=b"d", q_group=group)
        self.end(world)
        assert [each.error for each in self.answers(world, reply)] == [b""]

    @pytest.mark.parametrize("group", [b"", b"g"])
    def test_a_durable_that_cannot_be_resumed(self, world: World, group: bytes) -> None:
        wishes = {"durable_name": b"d", "q_group": group}
        _, reply = self.subscribe(world, **wishes)
        self.end(world)
        world.publish(b"foo", b"1")
        (answer,) = self.answers(world, reply)
        end = pb.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=answer.ack_inbox)
        self.ask(world, world.subjects.sub_close, end)
        self.end(world)
        _, reply = self.subscribe(world, **wishes)
        self.end(world, "broken")
        assert [each.error for each in self.answers(world, reply)] == [b"broken"]
        (offline,) = world.channel(b"foo").subscriptions()
        assert not offline.active
        request, reply = self.subscribe(world, **wishes)
        self.end(world)
        assert [each.error for each in self.answers(world, reply)] == [b""]
        again = [pb.MsgProto.FromString(s.payload) for s in world.bus.sent if s.subject == request.inbox]
        assert [(each.sequence, each.redelivered) for each in again] == [(1, True)]

    def test_a_client_that_closes_meanwhile(self, world: World) -> None:
        for error in ("", "broken"):
            _, reply = self.subscribe(world, durable_name=b"d")
            closed = self.ask(world, world.subjects.close, pb.CloseRequest(client_id=b"me"))
            assert not self.answers(world, closed)
            self.end(world, error)
            assert [each.error for each in self.answers(world, closed)] == [b""]
            assert [each.error for each in self.answers(world, reply)] == [error.encode()]
            assert not world.channel(b"foo").active
            world.connect()


@pytest.mark.parametrize(
    ("level", "lone", "cuts"), [(logging.INFO, False, 5), (logging.INFO, True, 2), (TRACE, True, 5)]
)
def test_a_commit_that_is_cut_acknowledges_what_it_has_flushed(
    caplog: pytest.LogCaptureFixture, level: int, lone: bool, cuts: int
) -> None:
    """The rest follows with the next commit, in the order of arrival; each is acknowledged, and traced, once.

    What comes alone to its channel is stored with the first one, unless it is traced.
    """
    world = World()
    world.connect(b"me")
    channels = [b"c%d" % number for number in (0, 1, 0, 2, 3, 1, 4)]
    for channel in set(channels):
        world.publish(channel, b"x")
        if not lone:
            world.channel(channel).single_store = None
    caplog.set_level(level, STREAMING.name)
    caplog.clear()
    world.bus.sent.clear()
    prefix = world.subjects.publish + b"."
    world.bus.feed(
        [
            (prefix + channel, world.message(channel, b"y", guid=b"%d" % number), b"acks.%d" % (number % 2))
            for number, channel in enumerate(channels)
        ]
    )
    world.time.cost = SECOND // 100  # longer than a commit may flush, so that each flushes one channel
    told: list[int] = []
    commits = 0
    while world.driver.commit:
        world.driver.commit = False
        world.server.commit()
        commits += 1
        sent, world.bus.sent = world.bus.sent, []
        acks = [each.payload for each in sent if each.subject.startswith(b"acks.")]
        told += [int(protocol.PubAck.FromString(ack).guid) for ack in acks]
        for number in told:
            assert world.channel(channels[number]).visible == world.channel(channels[number]).messages.last
    assert commits == cuts
    assert told == sorted(told) == list(range(7))
    traced = [each.message.rpartition("guid=")[2] for each in caplog.records if "Acking Publisher" in each.message]
    assert traced == ([str(number) for number in range(7)] if level == TRACE else [])
