"""Many connections whose bytes are cut anywhere: clients get what a server gives that serves one read at a time."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from unittest import mock

import pytest

from broker.nats import fair_scheduler
from broker.nats.nats_options import NatsOptions
from broker.nats.nats_server import NatsServer
from stantools.nats.frames import rows
from tests.broker.nats.model import Model, origin
from tests.broker.nats.simulator import Errors, Loop, Network, Peer

FEW, MANY = 36, 4000
#: Clients, and how often each of them sends something.
CLIENTS, STEPS = 5, 25
SUBJECTS = (b"c.a", b"c.b", b"c.a.x", b"c.b.y")
PATTERNS = (b"c.a", b"c.b", b"c.*", b"c.>", b"c.a.*", b"c.b.y")
#: What is heard by clients, too, is not gathered.
WIDE = (b">", b"pub.>")


class Simulation:
    """Clients of a server in whose process `pub.>` and `ack.*` are heard together, and `ask` by itself."""

    def __init__(self, loop: Loop, random: Random, *, exact: bool) -> None:
        self.loop, self.random, self.exact = loop, random, exact
        self.server = server = NatsServer(NatsOptions())
        self.inner = server.internal_client("inner")
        #: What was heard, by the server and by the model.
        self.heard: dict[str, list[tuple[bytes, ...]]] = {"pub": [], "ack": [], "ask": []}
        self.wanted: dict[str, list[tuple[bytes, ...]]] = {"pub": [], "ack": [], "ask": []}
        for name, subject, rank in (("pub", b"pub.>", 2), ("ack", b"ack.*", 1), ("ask", b"ask", 0)):
            self.inner.subscribe(subject, self._handler(name), rank=rank)
        self.model = Model(self._inside, b"c.")
        self.network = Network(self.loop, random, self.model.read)
        self._tags = 0
        self._calm = random.choice([0.7, 0.98])  # how likely a calm client stays so
        self._patterns = PATTERNS + WIDE if random.random() < 0.3 else PATTERNS
        for number in range(CLIENTS):
            self._join(number)

    def _join(self, number: int) -> None:
        peer = Peer(number, self.server)
        self.network.peers.append(peer)
        self._connect(peer, verbose=False)
        peer.send(b"SUB c.own.%d.* own\r\n" % number)
        for _ in range(3):  # A subject is remembered when it comes again.
            peer.send(b"PUB pub.%d 3\r\n%d 0\r\nPUB ack.%d 3\r\n%d 0\r\n" % (number, number, number, number))

    def _handler(self, name: str) -> Any:
        def handle(buffer: Any, frames: Any, begin: int, end: int) -> None:
            for subject, reply, _, payload in list(rows(buffer, frames, begin, end)):
                self.heard[name].append((subject, payload))
                if name == "ask":
                    # What others have sent before has been heard then.
                    self.inner.barrier(lambda reply=reply: self._say(reply))  # type: ignore[misc]
                elif reply:
                    self.inner.publish(reply, payload)

        return handle

    def _say(self, reply: bytes) -> None:
        self.inner.publish(reply, b"counts %d %d" % (len(self.heard["pub"]), len(self.heard["ack"])))

    def _inside(self, peer: Peer, subject: bytes, reply: bytes, payload: bytes) -> bool:
        name = subject[:3].decode()
        if name not in self.wanted:
            return False
        self.wanted[name].append((subject, payload))
        if name == "ask":
            self.model.answer(reply, b"counts %d %d" % (len(self.wanted["pub"]), len(self.wanted["ack"])))
        elif reply:
            self.model.answer(reply, payload)
        return True

    # What clients do

    def _connect(self, peer: Peer, *, verbose: bool) -> None:
        options = {
            "verbose": verbose,
            "pedantic": False,
            "headers": True,
            "echo": self.random.random() < 0.8,
            "no_responders": self.random.random() < 0.5,
        }
        peer.send(b"CONNECT %b\r\n" % json.dumps(options).encode())

    def _payload(self, peer: Peer) -> bytes:
        self._tags += 1
        size = self.random.choice([0, 3, 3, 20, 100] if peer.calm else [0, 3, 20, 100, 1000, 5000])
        return b"%d %d " % (peer.number, self._tags) + b"z" * (size if self.random.random() < 0.99 else 100_000)

    def _act(self, peer: Peer) -> None:
        random, number = self.random, peer.number
        payload, sid = self._payload(peer), random.randint(1, 6)
        own = b"c.own.%d.%d" % (number, self._tags)
        match random.randint(0, 19):
            case 0 | 1:
                queue = random.choice([b"", b"", b"", b"q ", b"r "])
                pattern = random.choice(self._patterns)
                # No limit for those of which it cannot be told what is their last message: members of a group, and
                # those who get a request as well as its answer.
                name = b"n%d" % self._tags if queue or pattern == b">" else b"%d" % sid
                peer.send(b"SUB %b %b%b\r\n" % (pattern, queue, name))
            case 2:
                # Which message is the last one is only known where all reads are applied at once.
                most = random.choice([b"", b" 3", b" 1", b" 40"]) if self.exact else b""
                peer.send(b"UNSUB %d%b\r\n" % (sid, most))
            case 3 | 4:
                peer.send(b"PING\r\n")
            case 5 | 6 | 7:
                reply = random.choice([b"", own + b" "])
                peer.send(b"PUB %b %b%d\r\n%b\r\n" % (random.choice(SUBJECTS), reply, len(payload), payload))
            case 8:
                head = b"NATS/1.0\r\nA: %d\r\n\r\n" % self._tags
                sizes = b"%d %d" % (len(head), len(head) + len(payload))
                peer.send(b"HPUB %b %b\r\n%b%b\r\n" % (random.choice(SUBJECTS), sizes, head, payload))
            case 9 | 10:
                peer.send(b"PUB ask %b %d\r\n%b\r\n" % (own, len(payload), payload))
            case 11:
                peer.send(b"PUB ack.%d %d\r\n%b\r\n" % (number, len(payload), payload))
            case 12 if random.random() < 0.4:
                self._connect(peer, verbose=random.random() < 0.3)
            case 13 if random.random() < 0.05:
                peer.send(b"NONSENSE\r\nPUB c.a 1\r\nx\r\n", whole=True)
            case 14 if random.random() < 0.1:
                self.network.round()
                # The end is read as anything else: not while nothing is read.
                if peer.open and not peer.wire.paused:
                    peer.end()
                    self.model.end(peer)
            case _:
                reply = random.choice([b"", own + b" "])
                peer.send(b"PUB pub.%d %b%d\r\n%b\r\n" % (number, reply, len(payload), payload))

    def run(self) -> None:
        """Lets them do that."""
        self.network.settle()
        for _ in range(STEPS):
            for peer in self.network.peers:
                peer.calm = self.random.random() < (self._calm if peer.calm else 0.3)
                for _ in range(self.random.choice([0, 1, 1, 1] if peer.calm else [0, 1, 1, 1, 2, 5])):
                    if peer.open:
                        self._act(peer)
            for _ in range(self.random.choice([0, 1, 1, 3])):
                self.network.round()
        self.network.settle()
        for peer in self.network.peers:
            peer.look()

    def check(self) -> None:
        """Compares all that has come with the model's."""
        assert not self.loop.failures
        peers = [peer for peer in self.network.peers if not peer.connection.closed]
        if self.exact:
            assert self.heard == self.wanted
        for peer in self.network.peers:
            assert self._of(peer, self.heard) == self._of(peer, self.wanted)
        self.model.check(peers, exact=self.exact)

    @staticmethod
    def _of(peer: Peer, heard: dict[str, list[tuple[bytes, ...]]]) -> list[list[tuple[bytes, ...]]]:
        name = b"%d" % peer.number
        return [[each for each in messages if origin(each[1])[0] == name] for messages in heard.values()]


def play(seed: int, turn: float = 3600.0) -> None:
    """Plays a simulation in which a turn has so many seconds: without any, each step is one of its own."""
    random, errors = Random(seed), Errors()
    loop = Loop(random)
    with mock.patch.multiple(fair_scheduler, _TURN=turn, _MIN_TURN=turn), errors.watching(), loop.running():
        simulation = Simulation(loop, random, exact=turn > 0)
        simulation.run()
    assert not errors.lines
    simulation.check()


@pytest.mark.parametrize("part", range(3))
def test_clients_get_what_they_get_one_after_another(part: int) -> None:
    for seed in range(part, FEW, 3):
        play(seed)


def test_each_client_gets_that_however_short_a_turn_is() -> None:
    for seed in range(FEW // 3):
        play(seed, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_simulations(part: int) -> None:
    for seed in range(FEW + part, MANY, 10):
        play(seed)
        play(seed, 0.0)
