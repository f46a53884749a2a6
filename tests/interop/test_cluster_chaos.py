"""Three nodes, to which all happens that high-availability.md section D.6 names; clients see servers come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.blackhole import Way
from tests.interop.history import History
from tests.interop.test_cluster_nodes import Node, leader, running
from tests.interop.test_jetstream_store import contents, role
from tests.interop.test_other_clients import command
from tests.servers import free_port
from tests.waiting import until

CHANNELS = ("one", "two")
FAULTS = 9
_CONFIG = """
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{http}"
cluster {{ listen: "127.0.0.1:{route}", advertise: "127.0.0.1:9", routes: [{others}] }}
streaming {{
  cluster_id: test-cluster, store: file, dir: "store-{name}"
  store_limits {{ max_msgs: 0, max_bytes: 0 }}
  cluster {{ node_id: "{name}", peers: [{peers}] }}
}}
"""


pytestmark = pytest.mark.usefixtures("needs_server")


class Cluster:
    """Three nodes that reach each other by ways that can be cut; gossip shows no other ones."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.nodes = [Node(folder / name, http=True) for name in "abc"]
        routes = [free_port() for _ in self.nodes]
        self._ways = {
            (one, other): stack.enter_context(Way(routes[other]))
            for one in range(3)
            for other in range(3)
            if one != other
        }
        for number, node in enumerate(self.nodes):
            node.name = "node"
            others = [self._ways[number, other].port for other in range(3) if other != number]
            text = _CONFIG.format(
                port=node.port,
                http=node.http_port,
                route=routes[number],
                others=", ".join(f'"nats://127.0.0.1:{port}"' for port in others),
                name="abc"[number],
                peers=", ".join(f'"{name}"' for name in "abc" if name != "abc"[number]),
            )
            (node.folder / "node.conf").write_text(text)

    def cut(self, node: Node, *, off: bool) -> None:
        """Cuts a node off from the others, or links it again."""
        number = self.nodes.index(node)
        for ends, way in self._ways.items():
            if number in ends:
                way.cut = off

    def whole(self) -> None:
        """Waits until one leads and the others follow."""
        leader(self.nodes)

        def all_there() -> bool:
            with contextlib.suppress(OSError):
                return sorted(role(node)[1] for node in self.nodes) == ["Follower", "Follower", "Leader"]
            return False

        until(all_there, "one leads and the others follow", 120)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        made = Cluster(folder, stack)
        stack.enter_context(running(made.nodes))
        made.whole()
        yield made


# What is done to a node; it is as before in the end.


def broker_killed(_: Cluster, node: Node, chance: random.Random) -> None:
    node.kill()
    node.start(wait=False)


def server_killed(_: Cluster, node: Node, chance: random.Random) -> None:
    os.kill(node.server, signal.SIGKILL)


def both_killed(_: Cluster, node: Node, chance: random.Random) -> None:
    node.die()
    time.sleep(chance.uniform(0, 3))
    node.start(wait=False)


def ended(_: Cluster, node: Node, chance: random.Random) -> None:
    node.stop(signal.SIGTERM)
    node.start(wait=False)


def _stopped(pids: list[int], seconds: float) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


def broker_stopped(_: Cluster, node: Node, chance: random.Random) -> None:
    assert node.process is not None
    _stopped([node.process.pid], chance.choice([0.1, 1.0, 3.0, 5.0]))


def machine_stopped(_: Cluster, node: Node, chance: random.Random) -> None:
    assert node.process is not None
    _stopped([node.server, node.process.pid], chance.choice([0.1, 1.0, 4.0, 8.0]))


def cut_off(of: Cluster, node: Node, chance: random.Random) -> None:
    of.cut(node, off=True)
    time.sleep(chance.choice([0.5, 3.0, 8.0]))
    of.cut(node, off=False)


def two_killed(of: Cluster, node: Node, chance: random.Random) -> None:
    dead = [node, chance.choice([each for each in of.nodes if each is not node])]
    for each in dead:
        each.die()
    time.sleep(chance.uniform(1, 4))
    for each in dead:
        each.start(wait=False)


def all_killed(of: Cluster, node: Node, chance: random.Random) -> None:
    for each in of.nodes:
        each.die()
    for each in of.nodes:
        each.start(wait=False)


def rolling_restart(of: Cluster, node: Node, chance: random.Random) -> None:
    for each in of.nodes:
        each.stop(signal.SIGTERM)
        each.start(wait=False)
        of.whole()


Fault = Callable[[Cluster, Node, random.Random], None]
EVERY: list[Fault] = [
    broker_killed, server_killed, both_killed, ended, broker_stopped, machine_stopped, cut_off, two_killed, all_killed,
    rolling_restart,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_chaos(tmp_path: Path, seed: int) -> None:
    """What was acknowledged is there once, in its order, and delivered; and is so when everything has started again."""
    chance = random.Random(seed)
    faults = chance.sample(EVERY, FAULTS)
    with cluster(tmp_path) as of:
        logs = await _play(of, faults, chance)
        for node in of.nodes:
            node.die()
        for node in of.nodes:
            node.start(wait=False)
        of.whole()
        assert await _logs(of) == logs


@pytest.mark.slow
@pytest.mark.parametrize("who", ["leader", "another"])
async def test_cut_off(tmp_path: Path, who: str) -> None:
    """A node that nobody hears acknowledges nothing; the others serve, and it follows when it is heard again."""
    with cluster(tmp_path) as of:
        leads = leader(of.nodes)
        node = leads if who == "leader" else next(each for each in of.nodes if each is not leads)
        others = [each for each in of.nodes if each is not node]

        history = History([each.url for each in others], "test-cluster")
        try:
            await history.begin(CHANNELS)
            of.cut(node, off=True)
            await history.goes_on()
            await asyncio.to_thread(until, lambda: role(node)[1] != "Leader", "it does not take itself for the leader")
            assert leader(others) is not node
            of.cut(node, off=False)
            await asyncio.to_thread(of.whole)
            await history.goes_on()
            await history.end()
            history.check(await _logs(of))
        finally:
            of.cut(node, off=False)
            await history.close()


async def _play(of: Cluster, faults: list[Fault], chance: random.Random) -> dict[str, list[tuple[int, bytes]]]:
    history = History([node.url for node in of.nodes], "test-cluster")
    try:
        await history.begin(CHANNELS)
        for fault in faults:
            leads = await asyncio.to_thread(leader, of.nodes)
            node = leads if chance.random() < 0.7 else chance.choice(of.nodes)
            await asyncio.to_thread(fault, of, node, chance)
            await history.goes_on()
            await asyncio.to_thread(of.whole)
        await history.end()
        logs = await _logs(of)
        history.check(logs)
        print(f"{sum(map(len, logs.values()))} messages, {history.repeated:.2%} of the deliveries repeated")
        return logs
    finally:
        await history.close()


async def _logs(of: Cluster) -> dict[str, list[tuple[int, bytes]]]:
    url = leader(of.nodes).url
    return {channel: await contents(url, f"test-cluster_{channel}") for channel in CHANNELS}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["python", "node"])
def test_published_clients_do_not_notice(tmp_path: Path, library: str) -> None:
    """The node dies to which the client is connected, and which leads; later another one is ended."""
    with cluster(tmp_path) as of:
        first = leader(of.nodes)
        words = command(library, first.url, "takeover")
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n"
            first.die()
            second = leader([node for node in of.nodes if node is not first])
            time.sleep(1)
            first.start(wait=False)
            of.whole()
            assert second.stop(signal.SIGTERM) in (0, 143)
            leader([node for node in of.nodes if node is not second])
            time.sleep(2)
            output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
        seen: dict[str, Any] = json.loads(output.splitlines()[-1])
        texts = [text for _, text in sorted(seen["first"])]
        assert len(seen["acked"]) > 1
        assert set(seen["acked"]) <= set(texts)
        assert len(texts) == len(set(texts))
