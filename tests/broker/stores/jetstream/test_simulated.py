"""A broker on streams that fail, killed again and again, in simulated time (high-availability.md section D.5).

A seed decides what happens: which answers are lost or late, when there is no leader, when connections break, when the
process is killed, and with which copy in files it comes back: its own, an older one, none. Checked is what clients are
promised: what was acknowledged is in the log, once, in order; a sequence has one content, in the log and wherever it
was delivered; durables skip nothing; and in the end everything is served.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.stores.file import FileStore
from broker.stores.interface import StorageError
from broker.stores.jetstream.store import JetStreamStore, StreamBacking
from broker.stores.store_options import FileOptions
from broker.streaming.context import Context
from broker.streaming.ports import RequestAnswer as Answered
from broker.streaming.ports import Role
from broker.streaming.server import StreamingServer
from broker.streaming.streaming_options import StreamingOptions
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.nats.channel_streams import StreamNames
from stantools.nats.errors import NoAnswerError
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.broker.stores.jetstream.loop import number, run, simulated
from tests.broker.stores.jetstream.machine import on
from tests.broker.stores.jetstream.model import NOW, Faults, JetStream, Link
from tests.broker.stores.making import block
from tests.broker.stores.power import Machine
from tests.broker.streaming.world import SECOND, Bus, Time

CHANNELS = (b"foo", b"bar.baz")


class LoopTime(Time):
    """The simulated loop's time."""

    @property
    def now(self) -> int:
        return round(asyncio.get_running_loop().time() * SECOND)

    @now.setter
    def now(self, value: int) -> None:
        """It moves by itself."""

    def wall(self) -> int:
        return NOW + self.now


class Driver:
    """Calls the rules from the simulated loop."""

    def __init__(self) -> None:
        self.server: Any = None
        self.ended = ""
        self._committing = False
        self._timer: asyncio.TimerHandle | None = None

    def commit_soon(self) -> None:
        if not self._committing:
            self._committing = True
            asyncio.get_running_loop().call_soon(self._commit)

    wake = commit_soon

    def _commit(self) -> None:
        self._committing = False
        if not self.ended:
            self.server.commit()

    def wake_at(self, time: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(time / SECOND, self._run_timers)

    def _run_timers(self) -> None:
        self._timer = None
        if not self.ended:
            self.server.run_timers()

    def write_now(self) -> None:
        """Nothing is held back."""

    def commit_by(self, time: int) -> None:
        raise AssertionError("nobody waits for a flush")

    def aside(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(job())

    def fatal(self, message: str) -> None:
        self.ended = message

    abort = fatal


class LoopBus(Bus):
    """Hands over what there is soon after it came, in simulated time."""

    def __init__(self, time: Time, driver: Driver) -> None:
        super().__init__(time)
        self.closed = False
        self._driver = driver
        self._due = False

    def request(
        self, role: Role, subject: bytes, payload: bytes, timeout: int, answer: Callable[[Answered], None]
    ) -> None:
        super().request(role, subject, payload, timeout, answer)
        self._soon(0.003)
        self._soon(timeout / SECOND + 0.003)

    def _route(self, subject: bytes, payload: bytes, reply: bytes) -> None:
        super()._route(subject, payload, reply)
        if not self._due:
            self._due = True
            self._soon(0.003)

    def _soon(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._hand_over)

    def _hand_over(self) -> None:
        self._due = False
        if not self.closed and not self._driver.ended:
            self.run()


class Broker:
    """One life of a broker."""

    def __init__(
        self, servers: JetStream, directory: Path, limits: StoreLimits, machine: Machine | None = None
    ) -> None:
        self.link = Link(servers)
        self.directory = directory
        self.driver = Driver()
        self.time = LoopTime()
        self.bus = LoopBus(self.time, self.driver)
        self.tasks: set[asyncio.Task[Any]] = set()
        names = StreamNames("c")
        options = FileOptions(directory, sync=False, buffer_size=0)
        self.store = JetStreamStore(
            StreamBacking(self.link, names, self.driver.fatal, durable=machine is not None),
            directory,
            lambda: on(servers.chance, self.link, FileStore(options, limits, wall=self.time.wall, cluster_id=b"c")),
            limits,
        )
        self.server: StreamingServer | None = None

    async def start(self) -> None:
        await self.store.prepare()
        options = StreamingOptions(cluster_id=b"c", detect=False)
        self.server = self.driver.server = StreamingServer(
            Context(options, self.store, self.bus, self.time, self.driver)
        )
        failures: list[str] = []
        self.server.start(lambda: None, failures.append)
        assert not failures, failures

    def kill(self) -> None:
        """Nothing of it happens any more. What it has sent may still arrive."""
        self.driver.ended = self.driver.ended or "killed"
        self.link.dead = True
        for task in asyncio.all_tasks():
            if task not in self.tasks and task is not asyncio.current_task():
                task.cancel()
        for timer in list(asyncio.get_running_loop()._scheduled):  # type: ignore[attr-defined]
            owner = getattr(getattr(timer, "_callback", None), "__self__", None)
            if type(owner).__module__.startswith("broker."):
                timer.cancel()
        copy = self.store._copy
        # The files stay as they are; only the process's own locks go.
        for pair in copy._channels.values():
            for each in pair:
                each.close()
        copy._channels.clear()
        copy.close()

    def request(self, subject: bytes, payload: bytes) -> Answer:
        inbox = b"_INBOX.client.%d" % number()
        self.bus.feed([(subject, payload, inbox)])
        return Answer(self.bus, inbox)


@dataclass
class Answer:
    """What may come to an inbox."""

    bus: Bus
    inbox: bytes
    at: int = field(init=False)

    def __post_init__(self) -> None:
        self.at = 0

    def come(self) -> list[bytes]:
        found = [sent.payload for sent in self.bus.sent[self.at :] if sent.subject == self.inbox]
        self.at = len(self.bus.sent)
        return found

    async def wait(self, seconds: float) -> bytes | None:
        until = JetStream.now() + seconds
        while JetStream.now() < until:
            if found := self.come():
                return found[0]
            await asyncio.sleep(0.01)
        return None


@dataclass
class Durable:
    """A durable as its client sees it."""

    channel: bytes
    name: bytes
    group: bytes = b""
    inbox: bytes = b""
    ack_inbox: bytes = b""
    got: dict[int, bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    answer: Answer | None = None


@dataclass
class History:
    """What clients have seen."""

    sent: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    refused: set[bytes] = field(default_factory=set)
    seen: dict[tuple[bytes, int], bytes] = field(default_factory=dict)

    def deliver(self, durable: Durable, payload: bytes) -> None:
        message = pb.MsgProto.FromString(payload)
        key = durable.channel, message.sequence
        assert self.seen.setdefault(key, message.data) == message.data, f"{key} has two contents"
        durable.got[message.sequence] = message.data


class Client:
    """Publishes to all channels, and has durables."""

    def __init__(self, name: bytes, history: History, chance: random.Random) -> None:
        self.name = name
        self.history = history
        self.chance = chance
        self.durables = [Durable(channel, b"d", group) for channel, group in itertools.product(CHANNELS, (b"", b"g"))]
        self.number = 0
        self.connected = False  # as far as it knows

    async def connect(self, broker: Broker) -> bool:
        """Comes as a new connection under its id, and resumes its durables."""
        assert broker.server is not None
        subjects = broker.server.subjects
        assert subjects is not None
        self.number += 1
        self.connected = False
        beat = b"_HB.%b.%d" % (self.name, self.number)
        broker.bus.responders[beat] = b""
        request = pb.ConnectRequest(client_id=self.name, heartbeat_inbox=beat, conn_id=beat[1:])
        answer = await broker.request(subjects.discovery, request.SerializeToString()).wait(8)
        if answer is None or protocol.ConnectResponse.FromString(answer).error:
            broker.bus.responders.pop(beat)
            return False
        for durable in self.durables:
            wanted = pb.SubscriptionRequest(
                client_id=self.name,
                subject=durable.channel,
                q_group=durable.group,
                inbox=b"_INBOX.d.%d" % number(),
                max_in_flight=self.chance.choice((1, 5, 1024)),
                ack_wait_in_secs=1,
                durable_name=durable.name,
                start_position=pb.FIRST,
            )
            at = len(broker.bus.sent)
            answer = await broker.request(subjects.subscribe, wanted.SerializeToString()).wait(8)
            response = protocol.SubscriptionResponse.FromString(answer or b"")
            if not response.ack_inbox:
                broker.bus.responders.pop(beat)
                return False
            durable.inbox, durable.ack_inbox = wanted.inbox, response.ack_inbox
            durable.answer = Answer(broker.bus, wanted.inbox)
            durable.answer.at = at
        self.beat = beat
        self.connected = True
        return True

    def stay(self, broker: Broker) -> None:
        """Was connected all the time."""
        broker.bus.responders[self.beat] = b""
        for durable in self.durables:
            durable.answer = Answer(broker.bus, durable.inbox)

    def take(self, broker: Broker, share: float) -> None:
        """Takes what has come, and acknowledges some of it."""
        for durable in self.durables:
            assert durable.answer is not None
            acks = []
            for payload in durable.answer.come():
                self.history.deliver(durable, payload)
                sequence = pb.MsgProto.FromString(payload).sequence
                if self.chance.random() < share:
                    ack = protocol.Ack(subject=durable.channel, sequence=sequence).SerializeToString()
                    acks.append((durable.ack_inbox, ack, b""))
                    durable.acknowledged.add(sequence)
            if acks:
                broker.bus.feed(acks)

    def publish(self, broker: Broker, count: int) -> None:
        """Publishes; what becomes of it is seen later."""
        assert broker.server is not None
        subjects = broker.server.subjects
        assert subjects is not None
        channel = self.chance.choice(CHANNELS)
        inbox = b"_INBOX.p.%d" % number()
        sent: dict[bytes, bytes] = {}
        frames = []
        for _ in range(count):
            data = b"%b-%d" % (self.name, number())
            guid = b"g%d" % number()
            sent[guid] = data
            self.history.sent[channel].append(data)
            message = protocol.PubMsg(client_id=self.name, guid=guid, subject=channel, data=data, conn_id=self.beat[1:])
            frames.append((subjects.publish + b"." + channel, message.SerializeToString(), inbox))
        self._published = getattr(self, "_published", [])
        self._published.append((Answer(broker.bus, inbox), sent, channel))
        broker.bus.feed(frames)

    def hear(self) -> None:
        """Takes acknowledgements."""
        for answer, sent, channel in getattr(self, "_published", []):
            for payload in answer.come():
                ack = protocol.PubAck.FromString(payload)
                data = sent.pop(ack.guid)
                if ack.error:
                    self.history.refused.add(data)
                else:
                    self.history.stored[channel].append(data)
        self._published = [each for each in getattr(self, "_published", []) if each[1]]


FAULTS = (
    Faults(),
    Faults(silent=0.02, late=0.02),
    Faults(silent=0.05, nobody=0.05, stale=0.5, broken=0.1),
    Faults(late=0.1, apart=3),
    Faults(leaderless=3, stale=0.3),
    Faults(silent=0.02, late=0.02, nobody=0.01, stale=0.3, broken=0.05, apart=5, leaderless=6),
)


Scenario = Callable[[int, Path], Coroutine[Any, Any, History]]


async def scenario(seed: int, folder: Path) -> History:
    chance = random.Random(seed)
    servers = JetStream(chance)
    history = History()
    limits = StoreLimits(channel=ChannelLimits(max_msgs=0, max_bytes=0))
    client = Client(b"me", history, chance)
    brokers: list[Broker] = []
    trouble = asyncio.get_running_loop().create_task(
        servers.trouble(lambda: [broker.link for broker in brokers if not broker.link.dead])
    )
    here = {trouble, asyncio.current_task()}
    copy = folder / "copy"
    lives = chance.randint(2, 4)
    for life in range(lives + 1):
        last = life == lives
        servers.faults = Faults() if last else chance.choice(FAULTS)
        if not last and chance.random() < 0.2:
            # It is killed while it starts.
            broker = Broker(servers, copy, limits)
            broker.tasks = here  # type: ignore[assignment]
            starting = asyncio.get_running_loop().create_task(broker.start())
            await asyncio.sleep(chance.uniform(0, 0.1))
            starting.cancel()
            await asyncio.wait([starting])
            broker.kill()
        broker = Broker(servers, copy, limits)
        broker.tasks = here  # type: ignore[assignment]
        try:
            await broker.start()
        except StorageError as problem:
            assert not last, problem
            assert "does not answer" in str(problem) or "no server answers" in str(problem)
            broker.kill()
            continue
        brokers.append(broker)
        connected = client.connected and chance.random() < 0.5
        if connected:
            client.stay(broker)
        until = JetStream.now() + (1000 if last else chance.uniform(0.2, 12))
        rounds = 0
        while JetStream.now() < until and not broker.driver.ended:
            if not connected:
                connected = await client.connect(broker)
                await asyncio.sleep(0.2)
                continue
            client.take(broker, 1.0 if last else chance.choice((0, 0.5, 1)))
            client.hear()
            if rounds < 40 and chance.random() < 0.5:
                client.publish(broker, chance.choice((1, 1, 3, 20, 200) if seed % 20 == 0 else (1, 1, 3, 20)))
            rounds += 1
            await asyncio.sleep(chance.choice((0.001, 0.02, 0.3)))
            if last and rounds > 60 and all_served(servers, client):
                break
        assert not broker.driver.ended, broker.driver.ended
        client.hear()
        if not last and chance.random() < 0.3:
            await broker.store.finish()
            client.hear()
            if connected:
                client.take(broker, 0)
        broker.kill()
        check(servers, history)
        fate = chance.random()
        if fate < 0.2 and copy.exists():
            shutil.rmtree(copy)
        elif fate < 0.4 and (folder / "older").exists():
            shutil.rmtree(copy)
            shutil.copytree(folder / "older", copy)
        elif fate < 0.7:
            shutil.rmtree(folder / "older", ignore_errors=True)
            shutil.copytree(copy, folder / "older")
    check(servers, history)
    assert all_served(servers, client), "not everything was served in the end"
    return history


def log_of(servers: JetStream, channel: bytes) -> dict[int, bytes]:
    stream = servers.streams.get(StreamNames("c").stream(channel))
    return {} if stream is None else {sequence: each.data for sequence, each in stream.messages.items()}


def all_served(servers: JetStream, client: Client) -> bool:
    return all(set(log_of(servers, durable.channel)) <= set(durable.got) for durable in client.durables)


def check(servers: JetStream, history: History, *, twice: bool = False) -> None:
    for channel in CHANNELS:
        log = log_of(servers, channel)
        assert sorted(log) == list(range(1, len(log) + 1))
        contents = [log[sequence] for sequence in sorted(log)]
        assert twice or len(set(contents)) == len(contents), "stored twice"
        sent = {data: number for number, data in enumerate(history.sent[channel])}
        assert set(contents) <= set(sent)
        place = {data: number for number, data in enumerate(contents)}
        for data in history.stored[channel]:
            assert data in place, f"{data!r} was acknowledged, and is not in the log"
        assert not history.refused & set(contents), "it was refused, and is in the log"
        for data, later in itertools.pairwise(history.stored[channel]):
            if sent[data] < sent[later]:
                assert place[data] < place[later], "the order was not kept"
        for (other, sequence), data in history.seen.items():
            if other == channel:
                assert log.get(sequence) == data, f"{channel!r} {sequence} was delivered, and is another"


def play(folder: Path, seeds: Iterable[int], scenario: Scenario = scenario) -> None:
    """Plays a scenario with each of some seeds, in which the client has sent something at least."""
    for seed in seeds:
        history = run(lambda seed=seed: scenario(seed, folder / str(seed)))  # type: ignore[misc]
        assert any(history.sent.values()), seed


def test_a_broker_on_streams(tmp_path: Path) -> None:
    play(tmp_path, range(8))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_lives(tmp_path: Path, block: int) -> None:
    play(tmp_path, range(100 * block, 100 * block + 100))


@simulated
async def test_streams_of_one_channel_are_deleted_one_after_the_other(tmp_path: Path) -> None:
    """A deletion without an answer is repeated before the channel's next stream is made."""
    broker = Broker(JetStream(random.Random(1)), tmp_path, StoreLimits())
    broker.tasks = {asyncio.current_task()}  # type: ignore[arg-type]
    await broker.store.prepare()
    broker.store.recover()
    store, delete, calls = broker.store, broker.link.delete_stream, itertools.count()

    async def answer_late(name: str) -> bool:
        there = await delete(name)
        if not next(calls):
            raise NoAnswerError("no answer")
        return there

    broker.link.delete_stream = answer_late  # type: ignore[method-assign]
    messages = store.create_channel(b"foo").messages
    for data in (b"first", b"third"):
        messages.append(block(b"foo", 1, [data]))
        flush = messages.flush()
        async with asyncio.timeout(60):
            while flush not in store.completed():
                await asyncio.sleep(0.01)
        if data == b"first":
            store.delete_channel(b"foo")
            await asyncio.sleep(0.05)
            store.create_channel(b"foo")
            store.delete_channel(b"foo")
            messages = store.create_channel(b"foo").messages
    await asyncio.sleep(5)
    assert next(calls) == 3 and not store._removals
    assert list(log_of(broker.link._servers, b"foo").values()) == [b"third"]
    broker.kill()
