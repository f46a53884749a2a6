"""Commits wait for publishers that come back at once, and for nobody else: clients, loop and disk in simulated time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from broker.stores.interface import ChannelStore, Flush
from broker.stores.memory import MemoryMessages, MemoryStore, MemorySubscriptions
from stantools.format.proto import protocol_pb2 as protocol
from stantools.store.limits import UNLIMITED
from tests.broker.streaming.world import SECOND, Time, World
from tests.conftest import others_slow

MICROSECOND = SECOND // 1_000_000
SYNC = 250 * MICROSECOND


class SyncedMessages(MemoryMessages):
    """A channel whose flushes are complete when the store has synced."""

    def __init__(self, name: bytes, store: SyncedStore) -> None:
        super().__init__(name, UNLIMITED)
        self._store = store

    def flush(self) -> Flush:
        self._store.flushes.append(Flush())
        return self._store.flushes[-1]


class SyncedStore(MemoryStore):
    """A store that syncs while the loop waits."""

    def __init__(self, time: Time, sync: int) -> None:
        super().__init__()
        self.flushes: list[Flush] = []
        self._time, self._sync = time, sync

    def create_channel(self, name: bytes) -> ChannelStore:
        found = self._channels[name] = ChannelStore(SyncedMessages(name, self), MemorySubscriptions(UNLIMITED))
        return found

    def completed(self) -> list[Flush]:
        flushes, self.flushes = self.flushes, []
        if flushes:
            self._time.now += self._sync
        return flushes


@dataclass
class Client:
    """A publisher of one message at a time, or of several.

    Attributes:
        pause: How long it takes from an acknowledgement to the next message.
        unique: Each acknowledgement goes to a subject of its own.
        burst: Messages that it sends at a time.
        waits: How long each message took to be acknowledged.
    """

    name: bytes
    pause: Callable[[], int]
    unique: bool = False
    burst: int = 1
    left: int = 0
    sent: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    waits: list[int] = field(default_factory=list)


class Loop:
    """An event loop: it reads what has come, commits when it was asked to, and goes on when there is more."""

    def __init__(self, *clients: Client, sync: int = SYNC) -> None:
        self.time = Time()
        self.world = World(store=SyncedStore(self.time, sync), time=self.time)
        self.clients = {each.name: each for each in clients}
        self.commits = Counter[int]()
        self.paused = 0  # how often it went on because nobody came
        for each in clients:
            self.world.connect(each.name)
            self.world.publish(b"foo", b"first", client=each.name)
        self.world.bus.sent.clear()
        self.arrivals = [(self.time.now, each.name) for each in clients]
        heapq.heapify(self.arrivals)

    def run(self, seconds: float) -> Loop:
        end = self.time.now + round(seconds * SECOND)
        driver = self.world.driver
        while self.time.now < end:
            coming = self.arrivals[0][0] if self.arrivals else end
            if not driver.commit and coming > self.time.now:
                self.time.now = min(coming, end if driver.by is None else max(driver.by, self.time.now))
            self._read()
            if driver.commit or (driver.by is not None and driver.by <= self.time.now):
                self.paused += not driver.commit
                driver.commit, driver.by = False, None
                self.world.server.commit()
            self._answer()
        return self

    def _read(self) -> None:
        messages = []
        while self.arrivals and self.arrivals[0][0] <= self.time.now:
            sent, name = heapq.heappop(self.arrivals)
            client = self.clients[name]
            client.sent, client.left = sent, client.burst
            for _ in range(client.burst):
                number = next(client.numbers)
                reply = b"acks." + name + (b".%d" % number if client.unique else b"")
                message = self.world.message(b"foo", b"x", name, name)
                messages.append((self.world.subjects.publish + b".foo", message, reply))
        if messages:
            self.world.bus.feed(messages)

    def _answer(self) -> None:
        sent, self.world.bus.sent = self.world.bus.sent, []
        acks = [protocol.PubAck.FromString(each.payload) for each in sent if each.subject.startswith(b"acks.")]
        if acks:
            self.commits[len(acks)] += 1
        for ack in acks:
            assert not ack.error
            client = self.clients[ack.guid]
            client.left -= 1
            if not client.left:
                client.waits.append(self.time.now - client.sent)
                heapq.heappush(self.arrivals, (self.time.now + client.pause(), client.name))


def soon(chance: random.Random) -> Callable[[], int]:
    return lambda: chance.randint(10, 90) * MICROSECOND


def quick(count: int) -> list[Client]:
    chance = random.Random(count)
    return [Client(b"quick-%d" % number, soon(chance)) for number in range(count)]


@pytest.mark.parametrize("synced", [True, False])
def test_a_commit_is_slow_if_the_last_one_was(synced: bool) -> None:
    """Then others do not wait for it; a commit that has nothing to flush is not, and changes nothing."""
    time = Time()
    world = World(store=SyncedStore(time, SYNC) if synced else MemoryStore(), time=time)
    server, message = world.server, (world.subjects.publish + b".foo", world.message(b"foo", b"x"), b"acks")
    world.connect()
    for _ in range(2):
        world.publish(b"foo", b"x", b"y")
        world.bus.feed([message, message])
        written = world.driver.written
        server.commit()
        assert world.driver.written - written == synced
        server.commit()
        assert world.driver.written - written == synced


@pytest.mark.parametrize("count", [2, 4, 16])
def test_those_who_come_back_at_once_are_committed_together(count: int) -> None:
    """Instead of in two groups that take turns."""
    clients = quick(count)
    loop = Loop(*clients).run(0.5)
    commits = sum(loop.commits.values())
    assert loop.commits[count] > 0.98 * commits
    # One sync and a pause for each message, not two syncs.
    assert commits > 0.5 * SECOND / (SYNC + 100 * MICROSECOND)
    assert max(max(each.waits[10:]) for each in clients) < 2 * SYNC


def test_while_they_come_one_after_the_other_it_waits_on() -> None:
    clients = [Client(b"%d" % number, lambda number=number: (20 + 10 * number) * MICROSECOND) for number in range(16)]  # type: ignore[misc]
    loop = Loop(*clients).run(0.5)
    assert loop.commits[16] > 0.98 * sum(loop.commits.values())


def test_one_alone_never_waits() -> None:
    (client,) = quick(1)
    Loop(client).run(1)
    assert len(client.waits) > 3000
    assert set(client.waits) == {SYNC}


@pytest.mark.parametrize("sync", others_slow([100 * MICROSECOND, SYNC, 5000 * MICROSECOND], [SYNC, 5000 * MICROSECOND]))
def test_who_comes_seldom_waits_for_others_for_a_while_only(sync: int) -> None:
    """While it is not waited for itself."""
    chance = random.Random(1)
    others = quick(3)
    seldom = [Client(b"seldom-%d" % number, lambda: chance.randint(5, 50) * 1000 * MICROSECOND) for number in range(5)]
    Loop(*others, *seldom, sync=sync).run(2)
    for each in seldom:
        # The commit that is under way when it comes, the pause behind it, and its own.
        assert len(each.waits) > 50
        assert max(each.waits) <= 2 * sync + min(sync * 3 // 4, SECOND // 1000) + MICROSECOND
    for each in others:
        assert sum(each.waits) / len(each.waits) < 1.4 * sync + 100 * MICROSECOND


def test_who_is_a_little_too_slow_is_not_waited_for_again_and_again() -> None:
    (client,) = quick(1)
    slow = Client(b"slow", lambda: 240 * MICROSECOND)
    loop = Loop(client, slow).run(2)
    assert len(slow.waits) > 1000
    # Alone it would be 3 / 2 of a commit for each: those of the other are under way, or not.
    ahead = [wait for wait in client.waits if wait > 2 * SYNC]
    assert len(ahead) < len(client.waits) / 6
    assert sum(loop.commits.values()) > 2 * SECOND / (1.25 * SYNC)


@pytest.mark.parametrize("client", [{"unique": True}, {"burst": 2}])
def test_others_are_not_known_to_come_back(client: dict[str, int]) -> None:
    """Whose acknowledgements go elsewhere each time, and who does not wait for each of them."""
    clients = [Client(each.name, each.pause, **client) for each in quick(3)]  # type: ignore[arg-type]
    loop = Loop(*clients)
    loop.run(0.5)
    assert loop.world.server._commits.delay._trust == {}
    assert max(max(each.waits) for each in clients) <= 2 * SYNC


@pytest.mark.parametrize(("count", "sync"), [(40, SYNC), (4, 20 * MICROSECOND)])
def test_it_is_not_worth_while(count: int, sync: int) -> None:
    """With many, who fill a commit anyway, and where syncs are quick."""
    clients = quick(count)
    loop = Loop(*clients, sync=sync).run(0.3)
    assert sum(loop.commits.values()) > 1000 and not loop.paused
    assert max(max(each.waits) for each in clients) <= 2 * sync


def test_who_has_gone_is_forgotten() -> None:
    clients = quick(4)
    loop = Loop(*clients).run(0.1)
    gone = clients[0]
    loop.run(0.1)
    loop.clients[gone.name].pause = lambda: 3600 * SECOND
    loop.run(0.1)
    before = [len(each.waits) for each in clients]
    loop.run(0.5)
    assert len(gone.waits) == before[0]
    for each, count in zip(clients[1:], before[1:], strict=True):
        assert len(each.waits) - count > 0.5 * SECOND / (SYNC + 100 * MICROSECOND)
    assert gone.name not in b"".join(loop.world.server._commits.delay._trust)


def test_what_is_remembered_is_bounded() -> None:
    """Whoever is not acknowledged any more, one at a time, is forgotten."""
    chance = random.Random(2)
    clients = [
        Client(b"%d" % number, lambda: chance.choice([1, 10, 300, 3000]) * MICROSECOND, burst=chance.choice([1, 1, 2]))
        for number in range(200)
    ]
    loop = Loop(*clients)
    rhythm = loop.world.server._commits.delay
    for _ in range(10):
        loop.run(0.01)
        assert len(rhythm._trust) <= 64, "nobody would be forgotten, of 126 who came back once"
