"""Streaming clients whose bytes are cut anywhere, and become readable in any combination, against a model.

What is stored, acknowledged, delivered and answered is what the model gives, which serves one read after the other:
requests of all kinds, publishes alone and many at once, acknowledgements, other messages, and clients that send
nonsense or are gone in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from unittest import mock

import pytest

from broker.bus.embedded import EmbeddedBus
from broker.driver import LoopDriver, SystemClock
from broker.nats import fair_scheduler
from broker.nats.nats_options import NatsOptions
from broker.nats.nats_server import NatsServer
from broker.stores.memory import MemoryStore
from broker.streaming.context import Context
from broker.streaming.server import StreamingServer
from broker.streaming.streaming_options import StreamingOptions
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from tests.broker.nats import model as core
from tests.broker.nats.simulator import Errors, Loop, Network, Peer
from tests.broker.streaming.model import Member, Model

FEW, MANY = 33, 3000
#: Clients, those of them that may go in the middle, and how often each of them sends something.
CLIENTS, UNSTEADY, STEPS = 5, 1, 25
CHANNELS = (b"foo", b"bar", b"foo.bar")


@dataclass
class Talker:
    """A client: what it will ask for next depends on what it has asked for."""

    peer: Peer
    number: int
    lives: int = 0  #: how often it has connected to the streaming server
    connected: bool = False
    subscriptions: list[bytes] = field(default_factory=list)  #: inboxes
    acked: set[tuple[bytes, int]] = field(default_factory=set)
    seen: int = 0  #: frames that it has looked at

    @property
    def id(self) -> bytes:
        return b"client-%d" % self.number

    @property
    def connection(self) -> bytes:
        return b"connection-%d-%d" % (self.number, self.lives)

    @property
    def inbox(self) -> bytes:
        return b"in.%d." % self.number


class Simulation:
    """A streaming server and its clients."""

    def __init__(self, loop: Loop, random: Random, *, exact: bool) -> None:
        self.loop, self.random, self.exact = loop, random, exact
        self.nats = NatsServer(NatsOptions())
        driver = LoopDriver(loop, self._fatal, self.nats.rounds)  # type: ignore[arg-type]
        bus = EmbeddedBus(self.nats, b"test-cluster")
        context = Context(StreamingOptions(detect=False), MemoryStore(), bus, SystemClock(), driver)
        self.server = driver.server = StreamingServer(context)
        self.server.start(lambda: None, self._fatal)
        loop.settle()
        subjects = self.server.subjects
        assert subjects is not None
        self._asks = {
            "connect": subjects.discovery,
            "subscribe": subjects.subscribe,
            "unsubscribe": subjects.unsubscribe,
            "sub_close": subjects.sub_close,
            "close": subjects.close,
            "ping": subjects.pings,
        }
        self._prefix = subjects.publish
        self.model = Model(self._prefix, {subject: what for what, subject in self._asks.items()})
        self.core = core.Model(lambda peer, *message: self.model.serve(peer, *message), b"c.")
        self.network = Network(loop, random, self.core.read)
        self.gone: set[Peer] = set()
        self._inboxes: dict[bytes, bytes] = {}  # of subscriptions, by where they are answered
        self._tags = 0
        self._calm = random.choice([0.7, 0.98])  # how likely a calm client stays so
        self.talkers = [self._join(number) for number in range(CLIENTS)]
        self.network.settle()

    @staticmethod
    def _fatal(message: str) -> None:
        raise AssertionError(message)

    def _join(self, number: int) -> Talker:
        peer = Peer(number, self.nats)
        self.network.peers.append(peer)
        talker = Talker(peer, number)
        peer.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n')
        peer.send(b"SUB %b> 1\r\n" % talker.inbox)
        self._connect(talker)
        for _ in range(3):  # A subject is remembered when it comes again.
            self._publish(talker, random_size=False)
        return talker

    # What clients do

    def _ask(self, talker: Talker, what: str, payload: bytes) -> bytes:
        self._tags += 1
        reply = b"%br%d" % (talker.inbox, self._tags)
        talker.peer.send(b"PUB %b %b %d\r\n%b\r\n" % (self._asks[what], reply, len(payload), payload))
        return reply

    def _connect(self, talker: Talker) -> None:
        talker.lives, talker.connected = talker.lives + 1, True
        request = pb.ConnectRequest(
            client_id=talker.id, heartbeat_inbox=talker.inbox + b"hb", conn_id=talker.connection, protocol=1
        )
        self._ask(talker, "connect", request.SerializeToString())

    def _publish(self, talker: Talker, *, random_size: bool = True) -> None:
        self._tags += 1
        size = self.random.choice([0, 10, 300] if talker.peer.calm else [0, 10, 300, 3000]) if random_size else 5
        message = protocol.PubMsg(
            client_id=talker.id,
            conn_id=talker.connection,
            guid=b"guid-%d" % self._tags,
            subject=CHANNELS[talker.number % 3] if self.random.random() < 0.7 else self.random.choice(CHANNELS),
            data=b"%d %d %b" % (talker.number, self._tags, b"d" * (size if self.random.random() < 0.99 else 90_000)),
        )
        payload = message.SerializeToString()
        subject = self._prefix + b"." + message.subject
        talker.peer.send(b"PUB %b %backs %d\r\n%b\r\n" % (subject, talker.inbox, len(payload), payload))

    def _subscribe(self, talker: Talker) -> None:
        random = self.random
        self._tags += 1
        inbox = b"%bs%d" % (talker.inbox, self._tags)
        request = pb.SubscriptionRequest(
            client_id=talker.id,
            subject=random.choice(CHANNELS) if random.random() < 0.9 else b"new.%d" % self._tags,
            inbox=inbox,
            ack_wait_in_secs=30,
            max_in_flight=random.choice([1, 2, 5, 100]),
            start_position=random.choice([pb.NEW_ONLY, pb.NEW_ONLY, pb.FIRST, pb.LAST_RECEIVED, pb.SEQUENCE_START]),
            start_sequence=random.randint(1, 40),
        )
        if talker.number >= UNSTEADY:
            match random.randint(0, 4):
                case 0 | 1 | 2:
                    request.durable_name, request.subject = b"mine", CHANNELS[0]
                case 3:
                    request.q_group, request.max_in_flight = b"group", 10_000
        talker.subscriptions.append(inbox)
        self._inboxes[self._ask(talker, "subscribe", request.SerializeToString())] = inbox

    def _known(self, talker: Talker) -> list[Member]:
        """Returns the subscriptions whose ack inboxes the client knows."""
        inboxes = set(talker.subscriptions)
        return [each for each in self.model.members if each.ack_inbox and each.request.inbox in inboxes]

    def _end(self, talker: Talker) -> None:
        if members := self._known(talker):
            member = self.random.choice(members)
            request = pb.UnsubscribeRequest(client_id=talker.id, subject=member.request.subject, inbox=member.ack_inbox)
            self._ask(talker, self.random.choice(["unsubscribe", "sub_close"]), request.SerializeToString())

    def _acknowledge(self, talker: Talker) -> None:
        for member in self._known(talker):
            for sequence, _, _ in self.model.delivered(member):
                key = member.ack_inbox, sequence
                if key not in talker.acked and self.random.random() < 0.7:
                    talker.acked.add(key)
                    payload = protocol.Ack(subject=member.request.subject, sequence=sequence).SerializeToString()
                    talker.peer.send(b"PUB %b %d\r\n%b\r\n" % (member.ack_inbox, len(payload), payload))

    def _act(self, talker: Talker) -> None:
        random, peer = self.random, talker.peer
        # Mostly one publish at a time, and sometimes anything.
        match random.randint(5, 60) if peer.calm and talker.connected else random.randint(0, 23):
            case 0 | 1 | 2:
                self._subscribe(talker)
            case 3 | 4:
                self._end(talker)
            case 5 | 6 | 7 | 8:
                self._acknowledge(talker)
            case 9 if random.random() < 0.4:
                self._ask(talker, "close", pb.CloseRequest(client_id=talker.id).SerializeToString())
                talker.connected = False
            case 10:
                self._ask(talker, "ping", protocol.Ping(conn_id=talker.connection).SerializeToString())
            case 11:
                peer.send(b"PING\r\n")
            case 12:
                self._tags += 1
                peer.send(random.choice([b"SUB c.* %d\r\n", b"UNSUB %d\r\n"]) % random.randint(2, 4))
                text = b"%d %d" % (talker.number, self._tags)
                peer.send(b"PUB c.%d %d\r\n%b\r\n" % (self._tags, len(text), text))
            case 13 if talker.number < UNSTEADY and random.random() < 0.1:
                peer.send(b"NONSENSE\r\nPING\r\n", whole=True)
                self.gone.add(peer)
            case 14 if talker.number < UNSTEADY and random.random() < 0.1 and not peer.wire.paused:
                peer.end()
                self.core.end(peer)
                self.gone.add(peer)
            case _ if talker.connected or random.random() < 0.3:
                self._publish(talker)
            case _:
                self._connect(talker)

    def _look(self) -> None:
        """Has clients look at what they have got: where to acknowledge."""
        for talker in self.talkers:
            talker.peer.look()
            frames, talker.seen = talker.peer.frames[talker.seen :], len(talker.peer.frames)
            for frame in frames:
                if frame[0] == b"MSG" and (inbox := self._inboxes.get(frame[2])):
                    answer = protocol.SubscriptionResponse.FromString(frame[5])
                    if not answer.error:
                        self.model.told(inbox, answer.ack_inbox)

    def run(self) -> None:
        """Lets clients do that, and compares from time to time."""
        for _ in range(STEPS):
            for talker in self.talkers:
                peer = talker.peer
                peer.calm = self.random.random() < (self._calm if peer.calm else 0.3)
                for _ in range(self.random.choice([0, 1, 1, 1] if peer.calm else [0, 1, 1, 1, 2, 4])):
                    if peer.open and peer not in self.gone:
                        self._act(talker)
            for _ in range(self.random.choice([0, 1, 1, 3])):
                self.network.round()
            self._look()
            if self.random.random() < 0.2:
                self._settle()
        self._settle()
        self._read_all()

    def _read_all(self) -> None:
        """A client that comes last gets all that is stored."""
        talker = self._join(CLIENTS)
        for name in self.model.channels:
            self._tags += 1
            inbox = b"%bs%d" % (talker.inbox, self._tags)
            request = pb.SubscriptionRequest(
                client_id=talker.id,
                subject=name,
                inbox=inbox,
                ack_wait_in_secs=30,
                max_in_flight=1 << 20,
                start_position=pb.FIRST,
            )
            self._ask(talker, "subscribe", request.SerializeToString())
        self._settle()
        if not self.exact:
            self.model.check_stored(talker.peer)

    def _settle(self) -> None:
        self.network.settle()
        self._look()
        if self.exact:
            self.model.check(self.gone)
        else:
            self.model.check_answers(self.gone)
        self.core.check([peer for peer in self.network.peers if peer not in self.gone], exact=self.exact)


def play(seed: int, turn: float = 3600.0) -> None:
    """Plays a simulation in which a turn has so many seconds: without any, each step is one of its own."""
    random, errors = Random(seed), Errors()
    loop = Loop(random)
    with mock.patch.multiple(fair_scheduler, _TURN=turn, _MIN_TURN=turn), errors.watching(), loop.running():
        Simulation(loop, random, exact=turn > 0).run()
    assert not loop.failures and not errors.lines


@pytest.mark.parametrize("part", range(3))
def test_clients_get_what_they_get_one_after_another(part: int) -> None:
    for seed in range(part, FEW, 3):
        play(seed)


def test_each_client_gets_that_however_short_a_turn_is() -> None:
    for seed in range(FEW // 3):
        play(seed, 0.0)


@pytest.mark.parametrize("turn", [3600.0, 0.0])
@pytest.mark.parametrize("busy", [0, 20])
def test_a_durable_is_ended_and_resumed_in_one_write(busy: int, turn: float) -> None:
    """Also while parts of the process are sending each other something, however short a turn is."""
    loop = Loop(Random(1))
    with mock.patch.multiple(fair_scheduler, _TURN=turn, _MIN_TURN=turn), loop.running():
        simulation = Simulation(loop, Random(1), exact=False)
        talker = simulation.talkers[0]
        request = pb.SubscriptionRequest(
            client_id=talker.id,
            subject=CHANNELS[0],
            inbox=talker.inbox + b"s",
            durable_name=b"mine",
            ack_wait_in_secs=30,
            max_in_flight=1,
        )

        def answers(*replies: bytes) -> list[protocol.SubscriptionResponse]:
            simulation.network.settle()
            return [protocol.SubscriptionResponse.FromString(talker.peer.messages(reply)[0][5]) for reply in replies]

        [first] = answers(simulation._ask(talker, "subscribe", request.SerializeToString()))
        end = pb.UnsubscribeRequest(client_id=talker.id, subject=request.subject, inbox=first.ack_inbox)
        part = simulation.nats.internal_client("part")
        part.subscribe(b"note", lambda *_: None)
        for _ in range(busy):
            part.publish(b"note", b"")
        ended = simulation._ask(talker, "sub_close", end.SerializeToString())
        resumed = simulation._ask(talker, "subscribe", request.SerializeToString())
        simulation.network._reader(talker.peer, talker.peer.unread)()
        assert [answer.error for answer in (first, *answers(ended, resumed))] == [b"", b"", b""]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_simulations(part: int) -> None:
    for seed in range(FEW + part, MANY, 10):
        play(seed)
        play(seed, 0.0)
