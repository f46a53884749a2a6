"""Groups of brokers on streams that fail, in simulated time: one leads, is killed, stopped or cut off; another follows.

As in `test_simulated`, whose client and checks these are; but there are two or three brokers at a time, whose clocks
differ by a fifth, and one NATS for all, from which each can be cut off, from JetStream alone, or from both. Where two
hear the client at a time, and one of them was stopped, a publish may be stored twice.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from broker.group import FOLLOWER, LEADER, LeaderTerm, ServerGroup
from broker.stores.file import FileStore
from broker.stores.interface import StorageError
from broker.stores.jetstream.lease import Lease, LeaseTerm
from broker.stores.jetstream.start_check import StreamsOpening
from broker.stores.jetstream.store import JetStreamStore, StreamBacking
from broker.stores.store_options import FileOptions
from broker.streaming.context import Context
from broker.streaming.names import leader_subject, new_server
from broker.streaming.ports import RequestAnswer as Answered
from broker.streaming.ports import RequestOutcome, Role
from broker.streaming.server import StreamingServer
from broker.streaming.streaming_options import StreamingOptions
from stantools.format.proto import protocol_pb2 as protocol
from stantools.nats.channel_streams import StreamNames
from stantools.nats.errors import ConnectionLostError, NatsError
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.broker.stores.jetstream.loop import Process, number, process, real_time, simulated
from tests.broker.stores.jetstream.machine import on
from tests.broker.stores.jetstream.model import Faults, JetStream, Link
from tests.broker.stores.jetstream.test_simulated import (
    FAULTS,
    Answer,
    Client,
    Driver,
    History,
    LoopBus,
    LoopTime,
    all_served,
    check,
    play,
)
from tests.broker.stores.power import Machine

LIMITS = StoreLimits(channel=ChannelLimits(max_msgs=0, max_bytes=0))
LEADING = leader_subject(b"c")


class Nats:
    """What brokers and the client are connected to; for the client it is the broker."""

    def __init__(self) -> None:
        self.unlinked: set[str] = set()  #: nodes whose NATS server knows nobody on the others yet
        self.wires: list[Wire] = []
        self.sent: list[Any] = []
        self.responders: dict[bytes, bytes | None] = {}
        self.bus = self
        self.server = SimpleNamespace(subjects=new_server(b"c", b"_STAN.discover"))
        subjects = self.server.subjects
        self.server.subjects = SimpleNamespace(
            discovery=b"_STAN.discover.c", publish=subjects.publish, subscribe=subjects.subscribe
        )

    def feed(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        for wire in self.wires:
            if not wire.node.apart:
                wire.process.call(wire.take, messages)

    def request(self, subject: bytes, payload: bytes) -> Answer:
        inbox = b"_INBOX.client.%d" % number()
        answer = Answer(self, inbox)  # type: ignore[arg-type]
        answer.at = len(self.sent)
        self.feed([(subject, payload, inbox)])
        return answer


class Wire(LoopBus):
    """The connections of a broker in a term."""

    def __init__(self, node: Node, driver: Driver) -> None:
        super().__init__(node.time, driver)
        self.node = node
        self.process = node.process
        self.nats = node.nats
        self.sent = node.nats.sent
        self.responders = node.nats.responders

    async def connect(self) -> None:
        await asyncio.sleep(0.002)
        if self.node.apart:
            raise ConnectionLostError("nobody is there")
        self.nats.wires.append(self)

    async def close(self) -> None:
        self.closed = True
        if self in self.nats.wires:
            self.nats.wires.remove(self)

    def take(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        if not self.closed:
            self.feed(messages)

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        if self.node.apart or self.closed:
            return False
        return super().publish(role, subject, payload, reply)

    def request(
        self,
        role: Role,
        subject: bytes,
        payload: bytes,
        timeout: int,
        answer: Callable[[Answered], None],
        *,
        to_servers: bool = False,
    ) -> None:
        if subject != LEADING:
            super().request(role, subject, payload, timeout, answer)
            return
        others = [wire for wire in self.nats.wires if not wire.node.apart and wire.is_heard(subject)]
        if self.node.name in self.nats.unlinked:
            others = []
        outcome = Answered(RequestOutcome.REPLY, others[0].node.store.lease if others else b"")
        if self.node.apart or any(wire.process.stopped for wire in others):
            outcome = Answered(RequestOutcome.TIMEOUT)
        elif not others:
            outcome = Answered(RequestOutcome.NO_RESPONDERS)
        seconds = timeout / 1e9 if outcome.outcome is RequestOutcome.TIMEOUT else 0.001
        asyncio.get_running_loop().call_later(seconds, answer, outcome)


class Node:
    """One life of a broker in a group."""

    def __init__(
        self,
        name: str,
        servers: JetStream,
        nats: Nats,
        directory: Path,
        chance: random.Random,
        machine: Machine | None = None,
    ) -> None:
        self.name = name
        self.machine = machine
        self.chance = chance
        self.directory = directory
        self.nats = nats
        self.apart = False  #: from NATS
        self.problem = ""
        self.process = Process(chance.uniform(0.8, 1.2))
        self.time = LoopTime()
        self.dead = False
        self.ready = 0
        self.link: Link = self.process.context.run(Link, servers)
        self.group = ServerGroup(self.link, StreamNames("c"), name, 2.0, self._make, self._serves, self._failed, chance)
        self.starting = self.process.run(self._start)

    async def _start(self) -> None:
        assert process() is self.process
        while True:
            try:
                await self.group.start()
                return
            except (StorageError, ConnectionLostError) as problem:
                # As a service that is started again.
                assert "does not answer" in str(problem) or "nobody" in str(problem), problem
                await asyncio.sleep(1)

    def _make(self, over: Callable[[str], None]) -> LeaderTerm:
        driver = Driver()
        bus = Wire(self, driver)
        options = FileOptions(self.directory, sync=False, buffer_size=0)
        self.store = store = JetStreamStore(
            StreamBacking(self.link, StreamNames("c"), over, self.name, 2.0, durable=self.machine is not None),
            self.directory,
            lambda: on(self.chance, self.link, FileStore(options, LIMITS, wall=self.time.wall, cluster_id=b"c")),
            LIMITS,
        )
        streaming = StreamingOptions(cluster_id=b"c")
        server = driver.server = StreamingServer(Context(streaming, store, bus, self.time, driver), member=self.group)

        def stop() -> None:
            server.stop()
            driver.ended = "stopped"

        return LeaderTerm(bus, store, server, stop)  # type: ignore[arg-type]

    def _serves(self, term: LeaderTerm) -> None:
        self.ready += 1

    def _failed(self, problem: str) -> None:
        self.problem = problem

    def kill(self) -> None:
        self.dead = self.link.dead = True
        for wire in tuple(self.nats.wires):
            if wire.node is self:
                self.nats.wires.remove(wire)
                wire.closed = True
        # It ends silently: nothing of it reaches anybody any more.
        self.group.role = FOLLOWER
        self.process.resume()
        for task in tuple(self.process.tasks):
            task.cancel()

    def end(self) -> asyncio.Task[None]:
        """Ends it in order."""
        return self.process.run(self._end)

    async def _end(self) -> None:
        self.starting.cancel()
        await self.group.stop()


class Somebody(Client):
    """A client who may hear from two brokers at a time."""

    def hear(self) -> None:
        for answer, sent, channel in getattr(self, "_published", []):
            for payload in answer.come():
                ack = protocol.PubAck.FromString(payload)
                if (data := sent.pop(ack.guid, None)) is not None and not ack.error:
                    self.history.stored[channel].append(data)


async def scenario(seed: int, folder: Path) -> History:
    chance = random.Random(seed)
    servers, nats, history = JetStream(chance), Nats(), History()
    client = Somebody(b"me", history, chance)
    names = "abc"[: chance.choice((2, 2, 3))]
    nodes = {name: Node(name, servers, nats, folder / name, chance) for name in names}

    def links() -> list[Link]:
        return [node.link for node in nodes.values() if not node.link.dead]

    trouble = asyncio.get_running_loop().create_task(servers.trouble(links))
    servers.faults = chance.choice(FAULTS)
    for turn in range(chance.randint(4, 8)):
        until = real_time() + chance.uniform(0.3, 5)
        while real_time() < until:
            await live(client, nats, chance)
        await befall(nodes[chance.choice(names)], nodes, servers, chance)
        check(servers, history, twice=True)
        if turn % 2:
            servers.faults = chance.choice(FAULTS)
    servers.faults = Faults()
    for node in nodes.values():
        node.apart = False
        node.process.resume()
    calm = real_time()
    rounds = 0
    while real_time() < calm + 400:
        await live(client, nats, chance, publishes=rounds < 40, last=True)
        rounds += 1
        if rounds > 60 and client.connected and all_served(servers, client):
            break
    check(servers, history, twice=True)
    assert not any(node.problem for node in nodes.values()), [node.problem for node in nodes.values()]
    assert all_served(servers, client), "not everything was served in the end"
    until = real_time() + 60
    while [node.group.role for node in nodes.values()].count(LEADER) != 1:
        assert real_time() < until, "there is not one leader in the end"
        await asyncio.sleep(0.1)
    trouble.cancel()
    await let_go(nodes.values())
    return history


async def let_go(nodes: Iterable[Node]) -> None:
    """Ends all, so that their files are closed."""
    for node in nodes:
        node.kill()
        if tasks := tuple(node.process.tasks):
            await asyncio.wait(tasks)


async def live(
    client: Somebody, nats: Nats, chance: random.Random, *, publishes: bool = True, last: bool = False
) -> None:
    """What the client does."""
    if not client.connected:
        await client.connect(nats)  # type: ignore[arg-type]
        await asyncio.sleep(0.2)
        return
    client.take(nats, 1.0 if last else chance.choice((0, 0.5, 1)))  # type: ignore[arg-type]
    client.hear()
    if publishes and chance.random() < 0.3:
        client.publish(nats, chance.choice((1, 1, 3, 20)))  # type: ignore[arg-type]
    await asyncio.sleep(chance.choice((0.001, 0.02, 0.3)))


async def befall(node: Node, nodes: dict[str, Node], servers: JetStream, chance: random.Random) -> None:
    """Something happens to one of the brokers."""
    loop = asyncio.get_running_loop()
    seconds = chance.uniform(0.05, 8)
    fate = chance.random()
    if fate < 0.2:
        node.process.stopped = True
        loop.call_later(seconds, node.process.resume)
    elif fate < 0.35:
        node.link.lose(seconds)
    elif fate < 0.55:
        node.apart = True
        if chance.random() < 0.5:
            node.link.lose(seconds)
        loop.call_later(seconds, setattr, node, "apart", False)
    elif fate < 0.65:
        ending = node.end()
        await asyncio.wait([ending], timeout=20)
        node.kill()
        nodes[node.name] = Node(node.name, servers, node.nats, node.directory, chance)
    else:
        node.kill()
        await asyncio.sleep(chance.choice((0, 0, 1)) * seconds)
        if chance.random() < 0.3:
            shutil.rmtree(node.directory, ignore_errors=True)
        nodes[node.name] = Node(node.name, servers, node.nats, node.directory, chance)


def test_groups_of_brokers(tmp_path: Path) -> None:
    play(tmp_path, range(8), scenario)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_groups(tmp_path: Path, block: int) -> None:
    play(tmp_path, range(100 * block, 100 * block + 100), scenario)


@simulated
async def test_who_has_just_started_leaves_the_lease_where_it_is(tmp_path: Path) -> None:
    """Its NATS server says that nobody leads, as it is linked to no other yet; but somebody writes."""
    chance = random.Random(1)
    servers, nats = JetStream(chance), Nats()
    first = Node("a", servers, nats, tmp_path / "a", chance)
    while first.group.role != LEADER:
        await asyncio.sleep(0.01)
    nats.unlinked.add("b")
    second = Node("b", servers, nats, tmp_path / "b", chance)
    await asyncio.sleep(10)
    assert (first.group.role, second.group.role, first.ready) == (LEADER, FOLLOWER, 1)
    await let_go((first, second))


@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_two_who_miss_the_leader_at_the_same_time(tmp_path: Path, seed: int) -> None:
    """The second one does not take the lease from the first, of whom it has not heard: both would serve."""
    chance = random.Random(seed)
    servers, nats = JetStream(chance), Nats()
    nodes = [Node(name, servers, nats, tmp_path / name, chance) for name in "abc"]
    while not any(node.group.role == LEADER and node.ready for node in nodes):
        await asyncio.sleep(0.01)
    await asyncio.sleep(3)
    (first,) = [node for node in nodes if node.group.role == LEADER]
    nats.unlinked.update(node.name for node in nodes)
    first.kill()
    nodes.remove(first)
    await asyncio.sleep(10)
    assert sorted(node.ready for node in nodes) == [0, 1]
    await let_go(nodes)


@pytest.mark.parametrize(("what", "most"), [("killed", 1.0), ("ended", 1.0), ("stopped", 3.5)])
@simulated
async def test_how_long_it_takes(tmp_path: Path, what: str, most: float) -> None:
    """Whoever is killed or ends is missed at once, whoever is stopped when his lease is over."""
    chance = random.Random(1)
    servers, nats = JetStream(chance), Nats()
    nodes = [Node(name, servers, nats, tmp_path / name, chance) for name in "ab"]

    async def leader() -> Node:
        while True:
            for node in nodes:
                if node.ready and node.group.role == LEADER and not (node.dead or node.process.stopped):
                    return node
            await asyncio.sleep(0.01)

    first = await leader()
    await asyncio.sleep(5)
    begin = real_time()
    if what == "killed":
        first.kill()
    elif what == "ended":
        first.end()
        nodes.remove(first)
    else:
        first.process.stopped = True
    assert await leader() is not first
    took = real_time() - begin
    if what == "stopped":
        first.process.resume()
        until = real_time() + 5
        while first.group.role == LEADER:
            assert real_time() < until
            await asyncio.sleep(0.01)
    await let_go(nodes)
    assert took < most


@pytest.mark.parametrize("old", [True, False])
@simulated
async def test_nobody_waits_for_silence_where_the_last_record_is_old(tmp_path: Path, old: bool) -> None:
    """All nodes were killed: their NATS servers know each other no more, and say when the last one wrote."""
    chance = random.Random(1)
    servers, nats = JetStream(chance), Nats()
    first = Node("a", servers, nats, tmp_path / "a", chance)
    while first.group.role != LEADER:
        await asyncio.sleep(0.01)
    first.kill()
    await asyncio.sleep(20)
    nats.unlinked.add("b")
    second = Node("b", servers, nats, tmp_path / "b", chance)
    ask = second.link.stream_info

    async def dated(name: str) -> dict[str, Any] | None:
        info = await ask(name)
        if info is not None:
            info["ts"] = "2026-11-27T01:44:58.629144123Z"
            info["state"]["last_ts"] = "2026-11-27T01:44:51.1Z" if old else "2026-11-27T01:44:58Z"
        return info

    with patch.object(second.link, "stream_info", dated):
        begin = real_time()
        while second.group.role == FOLLOWER:
            await asyncio.sleep(0.01)
        took = real_time() - begin
    await let_go((second,))
    assert took < 1 if old else took > 1.3


async def leading(folder: Path, *, durable: bool = False) -> tuple[Node, Callable[[str], Node]]:
    """Returns a broker that leads, and what makes others of its group."""
    chance = random.Random(1)
    servers, nats = JetStream(chance), Nats()

    def node(name: str) -> Node:
        return Node(name, servers, nats, folder / name, chance, Machine(chance) if durable else None)

    first = node("a")
    while not first.ready:
        await asyncio.sleep(0.01)
    return first, node


@simulated
async def test_a_group_that_ends_in_order_leaves_no_lease(tmp_path: Path) -> None:
    """So that a single server may go on."""
    node, _ = await leading(tmp_path)
    opening = StreamsOpening(node.link, StreamNames("c"))
    assert (await opening.check()).lease.node == "a"
    await node.end()
    assert (await opening.check()).lease.node == ""
    await let_go((node,))


@simulated
async def test_who_alone_is_without_jetstream_does_not_try_to_lead(tmp_path: Path) -> None:
    first, other = await leading(tmp_path)
    second = other("b")
    await asyncio.sleep(5)
    second.link.lose(10)
    for _ in range(120):
        await asyncio.sleep(0.1)
        assert (first.group.role, second.group.role) == (LEADER, FOLLOWER)
    await let_go((first, second))


@pytest.mark.parametrize(("outage", "waits"), [(5, False), (20, True)])
@simulated
async def test_who_was_long_without_jetstream_waits_for_the_last_leader(
    tmp_path: Path, outage: float, waits: bool
) -> None:
    """The streams may have lost meanwhile what its durable copy has."""
    first, other = await leading(tmp_path, durable=True)
    second = other("b")
    await asyncio.sleep(5)
    first.kill()
    second.link.lose(outage)
    await asyncio.sleep(outage + 8)
    assert second.ready == (not waits)
    await asyncio.sleep(30)
    assert second.ready
    await let_go((second,))


@simulated
async def test_a_copy_that_does_not_follow_is_worth_a_word_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start of several nodes begins without JetStream; only what lasts is told, once, and its end."""
    caplog.set_level("INFO")

    def lines() -> list[str]:
        found = [each.getMessage() for each in caplog.records if "The copy in files" in each.getMessage()]
        caplog.clear()
        return found

    chance = random.Random(1)
    servers, nats = JetStream(chance), Nats()
    first = Node("a", servers, nats, tmp_path / "a", chance)
    while first.group.role != LEADER:
        await asyncio.sleep(0.01)
    problems = (f"nobody answered question {number}" for number in range(1_000_000))

    async def failing(_store: JetStreamStore) -> None:
        raise NatsError(next(problems))

    second = Node("b", servers, nats, tmp_path / "b", chance)
    for seconds in (10, 120):
        with patch.object(JetStreamStore, "follow", failing):
            await asyncio.sleep(seconds)
        await asyncio.sleep(10)
        found = lines()
        if seconds == 10:
            assert found == []
        else:
            assert len(found) == 2
            assert found[0].startswith("The copy in files does not follow the streams: nobody answered question ")
            assert found[1] == "The copy in files follows the streams again"
    await let_go((first, second))


@simulated
async def test_a_lease_is_certain_for_less_than_others_wait() -> None:
    """Also by a clock that is half as fast again as that of its holder."""
    loop = asyncio.get_running_loop()
    written: list[bytes] = []
    term, begin = LeaseTerm(Lease("me", 1), 10.0, written.append, lambda _: None), loop.time()
    assert not term.certain
    term.extend(begin)
    term.extend(begin - 5)  # an answer that was late
    await asyncio.sleep(5)
    assert term.certain
    term.extend(begin)  # another one
    await asyncio.sleep(begin + 10 / 1.5 - loop.time())
    assert not term.certain
    term.extend(loop.time())
    assert term.certain
    term.release_lease()
    assert not term.certain and Lease.decode(written[-1]).node == ""
