"""Phases of subscriptions: answers and flushes are late or fail, subscriptions end at any moment, servers restart."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from broker.stores.interface import ChannelStore, Flush, FlushOutcome, StorageError
from broker.streaming.ports import Role
from broker.streaming.state import ENDED, SubscriptionPhase
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.nats.frames import Payloads
from tests.broker.streaming.journal import Journal, JournalSubscriptions
from tests.broker.streaming.world import Bus, Subscriber, Time, World


class LateSubscriptions(JournalSubscriptions):
    """Records that cannot be stored now and then, and flushes that are complete later, or fail."""

    def __init__(self, store: LateJournal) -> None:
        super().__init__()
        self._store = store

    def create(self, state: pb.SubState) -> None:
        self._store.maybe_fail()
        super().create(state)

    def update(self, state: pb.SubState) -> None:
        self._store.maybe_fail()
        super().update(state)

    def flush(self) -> Flush | None:  # type: ignore[override]
        self._store.maybe_fail()
        super().flush()
        if self._store.chance.random() < 0.5:
            return None
        self._store.under_way.append(Flush())
        return self._store.under_way[-1]


class LateJournal(Journal):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.failing = chance.choice((0, 0, 0.1))
        self.under_way: list[Flush] = []

    def maybe_fail(self) -> None:
        if self.chance.random() < self.failing:
            raise StorageError("not now")

    def create_channel(self, name: bytes) -> ChannelStore:
        store = super().create_channel(name)
        store.subscriptions = LateSubscriptions(self)
        return store

    def completed(self) -> Sequence[Flush]:
        done = [each for each in self.under_way if self.chance.random() < 0.5]
        self.under_way = [each for each in self.under_way if each not in done]
        for each in done:
            if self.chance.random() < self.failing:
                each.outcome, each.error = FlushOutcome.REFUSED, "not now"
        return done


class Inboxes:
    """The delivery inboxes of clients, and those whose clients know their subscription, or have ended it."""

    def __init__(self) -> None:
        self.all: set[bytes] = set()
        self.known: set[bytes] = set()
        self.over: set[bytes] = set()


class Checked(Bus):
    def __init__(self, time: Time, inboxes: Inboxes) -> None:
        super().__init__(time)
        self.inboxes = inboxes
        self.barriers = []

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        inboxes = self.inboxes
        if subject in inboxes.all:
            assert subject in inboxes.known, "a message comes before the answer"
            assert subject not in inboxes.over, "a message comes after the end"
        return super().publish(role, subject, payload, reply)

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        return all(self.publish(role, subject, block.payload(row)) for row in range(begin, end))


class PhaseRun:
    """What one seed does."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = LateJournal(self.chance)
        self.time = Time()
        self.inboxes = Inboxes()
        self.asked: dict[bytes, pb.SubscriptionRequest] = {}
        self.subscribers: list[Subscriber] = []
        self.phases: set[SubscriptionPhase] = set()
        self.published = 0
        self.start()

    def start(self) -> None:
        self.bus = Checked(self.time, self.inboxes)
        self.world = World(store=self.store, time=self.time, bus=self.bus, replace_durable=self.chance.random() < 0.3)
        for client in self.store.infos:
            self.bus.responders[b"_HB." + client] = b""

    def go_on(self, count: int) -> None:
        """Calls some barriers, and looks for answers."""
        barriers = self.bus.barriers
        assert barriers is not None
        for _ in range(min(count, len(barriers))):
            at = len(self.bus.sent)
            barriers.pop(0)()
            for sent in self.bus.sent[at:]:
                request = self.asked.pop(sent.subject, None)
                if request is not None:
                    response = protocol.SubscriptionResponse.FromString(sent.payload)
                    self.inboxes.known.add(request.inbox)
                    self.subscribers.append(Subscriber(self.world, request, response.ack_inbox, response.error))
        self.world.driver.commit = True  # for completed flushes
        self.settle()

    def settle(self) -> None:
        self.world.settle()
        for channel in self.world.server.channels:
            self.phases |= {each.phase for each in channel.subscriptions()}

    def step(self) -> None:
        chance, world = self.chance, self.world
        # Receivers are slow for a while: their subscriptions stay in their phases.
        self.bus.full = self.inboxes.all if chance.random() < 0.5 else set()
        action = chance.random()
        client = chance.choice((b"a", b"b"))
        if action < 0.3:
            self.published += 1
            world.publish(b"foo", *[b"x"] * chance.randint(1, 3), client=client)
        elif action < 0.5:
            names = chance.choice(
                ({}, *[{"durable_name": b"d"}] * 3, {"q_group": b"q"}, {"q_group": b"q", "durable_name": b"d"})
            )
            request = world.request(
                b"foo", client, ack_wait_in_secs=1, max_in_flight=chance.choice((1, 3, 100)), **names
            )
            reply = world.inbox()
            self.asked[reply] = request
            self.inboxes.all.add(request.inbox)
            self.bus.feed([(world.subjects.subscribe, request.SerializeToString(), reply)])
        elif action < 0.6 and self.subscribers:
            self.end(chance.choice(self.subscribers))
        elif action < 0.65:
            self.bus.feed(
                [(world.subjects.close, pb.CloseRequest(client_id=client).SerializeToString(), world.inbox())]
            )
        elif action < 0.75:
            world.connect(client)
        elif action < 0.85 and self.subscribers:
            each = chance.choice(self.subscribers)
            each.ack(*each.sequences())
        elif action < 0.87:
            self.restart()
        else:
            world.advance(chance.choice((0.01, 0.3, 1.1)))
        self.settle()
        if chance.random() < 0.6:
            self.go_on(chance.randint(0, 3))

    def end(self, subscriber: Subscriber) -> None:
        end = subscriber.close if self.chance.random() < 0.6 else subscriber.unsubscribe
        subjects = self.world.subjects
        subject = subjects.sub_close if end == subscriber.close else subjects.unsubscribe
        request = subscriber.request
        self.bus.feed(
            [
                (
                    subject,
                    pb.UnsubscribeRequest(
                        client_id=request.client_id, subject=b"foo", inbox=subscriber.ack_inbox
                    ).SerializeToString(),
                    self.world.inbox(),
                )
            ]
        )
        self.go_on(1 << 20)
        channel = self.world.channel(b"foo")
        if channel is None or subscriber.ack_inbox not in channel.by_ack_inbox:
            self.inboxes.over.add(request.inbox)
            self.subscribers.remove(subscriber)

    def restart(self) -> None:
        """The server is killed. Ends may be forgotten, and subscriptions kept whose clients had no answer."""
        self.store.crash()
        self.store.under_way.clear()
        self.inboxes.known |= self.inboxes.all
        self.inboxes.over.clear()
        self.asked.clear()
        self.subscribers.clear()
        self.start()


def play(seeds: Iterable[int]) -> set[SubscriptionPhase]:
    phases: set[SubscriptionPhase] = set()
    for seed in seeds:
        run = PhaseRun(seed)
        for _ in range(80):
            run.step()
        run.go_on(1 << 20)
        phases |= run.phases
    return phases


def test_subscriptions_in_every_phase() -> None:
    assert play(range(25)) == set(SubscriptionPhase) - {ENDED}


def ask(world: World, request: pb.SubscriptionRequest) -> None:
    world.bus.feed([(world.subjects.subscribe, request.SerializeToString(), world.inbox())])
    world.settle()


def sent_to(world: World, request: pb.SubscriptionRequest) -> list[int]:
    return [pb.MsgProto.FromString(each.payload).sequence for each in world.bus.sent if each.subject == request.inbox]


def test_a_new_member_gets_the_messages_of_another_one_after_its_answer() -> None:
    world = World()
    world.connect()
    first = world.subscribe(b"foo", q_group=b"q")
    world.publish(b"foo", b"1", b"2")
    world.bus.barriers = late = []
    request = world.request(b"foo", q_group=b"q")
    ask(world, request)
    end = pb.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=first.ack_inbox)
    world.bus.feed([(world.subjects.unsubscribe, end.SerializeToString(), world.inbox())])
    answer, unsubscribe = late
    unsubscribe()
    world.advance(1)
    assert sent_to(world, request) == []
    answer()
    world.advance(0.1)
    assert sent_to(world, request) == [1, 2]


def test_a_recovered_durable_is_resumed_before_the_server_is_ready() -> None:
    """The request comes as soon as the server listens."""
    store = Journal()
    world = World(store=store)
    world.connect()
    durable = world.subscribe(b"foo", durable_name=b"d")
    world.publish(b"foo", b"1")
    world.bus.connected = False
    store.crash()
    again = World(store=store, start=False, replace_durable=True)
    again.bus.barriers = late = []
    again.start()
    request = again.request(b"foo", durable_name=b"d")
    ask(again, request)
    ready, answer = late
    ready()
    again.settle()
    assert sent_to(again, request) == []
    answer()
    again.settle()
    assert sent_to(again, request) == [1]
    assert durable.sequences() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_seeds_of_phases(part: int) -> None:
    play(range(1000 + part * 500, 1500 + part * 500))
