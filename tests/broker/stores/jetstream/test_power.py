"""All machines lose power at once; copies are synced before an acknowledgement (high-availability.md section C.11).

The streams are what they were at their last sync, or gone; of the copies only what was synced is there for sure. What
was acknowledged has to be in the log again, where it was, as soon as whoever led last serves.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from broker.group import LEADER
from broker.stores.file import FileStore
from broker.stores.jetstream.copy_repair import truncate_copy
from broker.stores.jetstream.lease import Lease
from broker.stores.store_options import FileOptions
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.proto import store_pb2 as pb
from tests.broker.stores.jetstream.loop import real_time, simulated
from tests.broker.stores.jetstream.model import JetStream
from tests.broker.stores.jetstream.test_groups import LIMITS, Nats, Node, Somebody, let_go, live
from tests.broker.stores.jetstream.test_simulated import Broker, Client, History, all_served, check, play
from tests.broker.stores.making import IEEE, block, everything, flush, made
from tests.broker.stores.power import Machine


async def scenario(seed: int, folder: Path) -> History:
    """One broker, several lives."""
    chance = random.Random(seed)
    servers, machine, history = JetStream(chance), Machine(chance), History()
    client = Client(b"me", history, chance)
    copy = folder / "copy"
    here = asyncio.current_task()
    lives = chance.randint(2, 4)
    with machine.watched():
        for life in range(lives + 1):
            last = life == lives
            broker = Broker(servers, copy, LIMITS, machine)
            broker.tasks = {here}  # type: ignore[arg-type]
            await broker.start()
            check(servers, history)
            client.connected = False
            rounds, most = 0, 5000 if last else chance.randint(5, 40)
            while rounds < most:
                rounds += 1
                if not client.connected:
                    await client.connect(broker)
                    await asyncio.sleep(0.2)
                    continue
                client.take(broker, 1.0 if last else chance.choice((0, 0.5, 1)))
                client.hear()
                if rounds < 40 and chance.random() < 0.7:
                    client.publish(broker, chance.choice((1, 1, 3, 20)))
                await asyncio.sleep(chance.choice((0.001, 0.02, 0.3)))
                if chance.random() < 0.1:
                    servers.sync()
                if last and rounds > 60 and all_served(servers, client):
                    break
            assert not broker.driver.ended, broker.driver.ended
            client.hear()
            broker.kill()
            if not last and chance.random() < 0.8:
                servers.lose_power()
                machine.lose_power(copy)
    check(servers, history)
    assert all_served(servers, client), "not everything was served in the end"
    return history


def test_a_broker_whose_machines_lose_power(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    play(tmp_path, range(12), scenario)
    said = r"the stream has lost \d+ messages that were stored, from sequence \d+ on; they are published again"
    assert re.search(said, caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_losses_of_power(tmp_path: Path, block: int) -> None:
    play(tmp_path, range(100 * block, 100 * block + 100), scenario)


@simulated
async def test_what_is_read_from_streams_at_a_start_is_durable_before_it_is_served(tmp_path: Path) -> None:
    chance = random.Random(1)
    servers, machine, history = JetStream(chance), Machine(chance), History()
    client = Client(b"me", history, chance)
    with machine.watched():
        first = Broker(servers, tmp_path / "first", LIMITS, machine)
        await first.start()
        while not client.connected:
            await client.connect(first)
        while sum(map(len, history.stored.values())) < 100:
            client.publish(first, 20)
            client.take(first, 1.0)
            await asyncio.sleep(0.1)
            client.hear()
        first.kill()
        again = Broker(servers, tmp_path / "again", LIMITS, machine)
        await again.start()
        assert list((tmp_path / "again").rglob("msgs.*.dat"))
        assert not machine.unsynced(tmp_path / "again")
        again.kill()


async def group(seed: int, folder: Path) -> History:
    """Three nodes; whoever led last comes back, maybe later than the others."""
    chance = random.Random(seed)
    servers, nats, machine, history = JetStream(chance), Nats(), Machine(chance), History()
    client = Somebody(b"me", history, chance)

    def node(name: str) -> Node:
        return Node(name, servers, nats, folder / name, chance, machine)

    def leaders() -> list[str]:
        return [name for name, each in nodes.items() if each.group.role == LEADER]

    async def somebody_leads() -> None:
        while not leaders():
            await asyncio.sleep(0.1)

    with machine.watched():
        nodes = {name: node(name) for name in "abc"}
        await somebody_leads()
        for turn in range(3):
            until = real_time() + chance.uniform(4, 15)
            while real_time() < until or not leaders():
                await live(client, nats, chance)
                if chance.random() < 0.05:
                    servers.sync()
            check(servers, history, twice=True)
            servers.sync()
            leader = leaders()[0]
            if turn == 2:
                break
            await let_go(nodes.values())
            client.hear()
            servers.lose_power()
            for name in nodes:
                machine.lose_power(folder / name)
            client.connected = False
            names = [name for name in nodes if name != leader]
            nodes = {name: node(name) for name in names}
            await asyncio.sleep(chance.choice((0, 1, 10)))
            nodes[leader] = node(leader)
            await somebody_leads()
        await let_go(nodes.values())
    check(servers, history, twice=True)
    return history


def test_groups_whose_machines_lose_power(tmp_path: Path) -> None:
    play(tmp_path, range(3), group)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_groups_that_lose_power(tmp_path: Path, block: int) -> None:
    play(tmp_path, range(50 * block, 50 * block + 50), group)


@pytest.mark.parametrize(
    ("left", "first", "kept"),
    [(0, 13, 20), (8, 13, 20), (11, 13, 20), (0, 15, 12), (8, 15, 12), (0, 11, 20), (8, 11, 20), (0, 1, 12)],
)
def test_a_slice_with_a_torn_end_is_followed_by_the_next_message(
    tmp_path: Path, left: int, first: int, kept: int
) -> None:
    """A start takes a slice as it is with the header of a record at its end, and without what its index does not name.

    The next one begins with other messages than those.
    """
    store = FileStore(FileOptions(tmp_path, sync=False), LIMITS)
    store.init(pb.ServerInfo(cluster_id=b"c"))
    messages = made(store, b"foo").messages
    messages.append(block(b"foo", 1, [b"message"] * 12))
    flush(store, messages)
    store.close()
    channel = tmp_path / "foo"
    (channel / "msgs.1.dat").open("ab").write(block(b"foo", 13, [b"message"]).data[:left])
    following = [block(b"foo", sequence, [b"another"]).data for sequence in range(first, 21)]
    (channel / "msgs.2.dat").write_bytes(FILE_HEADER_BYTES + b"".join(following))
    (channel / "msgs.2.idx").write_bytes(FILE_HEADER_BYTES)
    truncate_copy(tmp_path, IEEE)
    again = FileStore(FileOptions(tmp_path, sync=False), LIMITS)
    recovered = again.recover(at_once=True)
    assert recovered is not None
    found = [(each.sequence, each.data) for each in everything(recovered.channels[b"foo"][0].messages)]
    again.close()
    others = first if kept == 20 else 21
    assert found == [(sequence, b"another" if sequence >= others else b"message") for sequence in range(1, kept + 1)]


def test_leases_with_the_same_epoch_are_told_apart() -> None:
    """Where the streams are gone epochs begin again."""
    first, second = Lease().next_for("a"), Lease().next_for("b")
    third = first.next_for("b")
    assert first.epoch == second.epoch < third.epoch
    assert third.follows(first) and first.follows(first) and first.follows(Lease())
    assert not first.follows(third) and not third.follows(second)
    assert third.follows(replace(first, node="")), "it was given back"
    assert Lease.decode(third.encode()) == third
    for _ in range(100):
        third = third.next_for("a")
    assert len(third.encode()) < 1000 and not third.follows(first)
