"""Nodes with the original's configuration files, each with a nats-server of its own: killed, ended, refused."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import servers
from tests.brokers import Broker
from tests.interop.talker import Client, NobodyAnsweredError, Talker
from tests.interop.test_jetstream_store import contents, goes_on, needs, role
from tests.servers import NatsServer, free_port
from tests.waiting import listens, until

STREAM = "orders_a"
FILES = Path(__file__).parents[2] / "samples" / "broker"


pytestmark = pytest.mark.usefixtures("needs_server")


class Node(Broker):
    """A node, started with nothing but its file."""

    name = ""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "broker", "-c", f"{self.name}.conf", *self.words]

    @property
    def server(self) -> int:
        """The process of its NATS server."""
        return int(re.findall(r"pid (\d+)", self.said())[-1])

    def die(self) -> None:
        """As when a machine dies."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):  # it may have been killed a moment ago
            os.kill(self.server, signal.SIGKILL)
        self.process.kill()
        self.process.wait(60)


def configured(folder: Path, names: str) -> list[Node]:
    """Nodes with the files of samples/broker, in which only the ports, and what addresses they are of, are others."""
    nodes = [Node(folder, http=True) for _ in names]
    texts = [(FILES / f"cluster-{name}.conf").read_text() for name in names]
    ports = {port: free_port() for text in texts for port in re.findall(r":(\d{4})\"", text)}
    for node, name, text in zip(nodes, names, texts, strict=True):
        node.name, node.log = f"cluster-{name}", folder / f"{name}.log"
        node.port, node.http_port = (ports[re.search(f'{key}: ".*:(\\d+)"', text)[1]] for key in ("listen", "http"))
        text = re.sub(r":(\d{4})\"", lambda found: f':{ports[found[1]]}"', text)
        (folder / f"cluster-{name}.conf").write_text(text.replace("0.0.0.0", "127.0.0.1"))
    return nodes


@contextlib.contextmanager
def running(nodes: list[Node]) -> Iterator[None]:
    """Starts nodes, and sees to it that nothing of them is left."""
    with contextlib.ExitStack() as stack:
        for node in nodes:
            node.start(wait=False)
            stack.callback(stopped, node)
        yield


def stopped(node: Broker) -> None:
    if node.process is not None and node.process.poll() is None:
        node.kill()


def leader(nodes: list[Node]) -> Node:
    """The one that leads, as soon as one does, and everybody serves its page."""
    found: list[Node] = []

    def one_leads() -> bool:
        with contextlib.suppress(OSError):
            found[:] = [node for node in nodes if role(node)[1] == "Leader"]
        return len(found) == 1

    until(one_leads, "a node leads")
    return found[0]


def talker(node: Node) -> Talker:
    """A client of the NATS server of a node, as soon as that takes connections: it may be starting again."""
    until(lambda: listens(node.port))
    return Talker(node.port)


def copied(nats: Talker, stream: bytes) -> bool:
    """Returns whether each node has a copy of a stream that is in step."""
    about = json.loads(nats.request(b"$JS.API.STREAM.INFO." + stream, b"", 5))
    replicas = about.get("cluster", {}).get("replicas", [])
    return len(replicas) == 2 and all(each["current"] for each in replicas)


def acknowledged(client: Client, count: int, begin: int) -> list[bytes]:
    """Publishes numbers, each again until it is acknowledged."""
    data = [b"%d" % number for number in range(begin, begin + count)]
    for each in data:
        goes_on(client, b"a", each)
    return data


async def test_three_nodes(tmp_path: Path) -> None:
    """The leader's machine dies, later all of them: what was acknowledged is there, in its order, and is delivered."""
    nodes = configured(tmp_path, "abc")
    with running(nodes):
        first = leader(nodes)
        others = [node for node in nodes if node is not first]
        with talker(others[0]) as nats:
            client = connected(nats, "me", cluster="orders")
            durable = client.subscribe(b"a", durable_name=b"d", ack_wait_in_secs=1)
            stored = acknowledged(client, 20, 0)
            first.die()
            goes_on(client, b"a", b"killed")
            stored += [b"killed", *acknowledged(client, 20, 20)]
            second = leader(others)
            first.start(wait=False)
            until(lambda: first.said().count("following until it leads") == 2)
            until(lambda: role(first) == (first.name[-1], "Follower"))
            seen = await contents(first.url, STREAM)
            assert [sequence for sequence, _ in seen] == list(range(1, len(seen) + 1))
            assert list(dict.fromkeys(data for _, data in seen)) == stored
            until(lambda: {each.sequence for each in durable.messages} == {sequence for sequence, _ in seen})
            # Of a stream that was only just created, a nats-server may elect no leader later.
            for stream in (b"orders_a", b"orders-state"):
                until(lambda stream=stream: copied(nats, stream))  # type: ignore[misc]
        said = second.said()
        assert "server became leader, performing leader promotion actions" in said
        assert "Cluster Node ID : " in said and "Streaming Server is ready" in said
        for node in nodes:
            node.die()
        # One alone says that it waits, serves its page and no client; a second one is enough.
        alone, another, third = nodes
        began = alone.log.stat().st_size
        alone.start(wait=False)
        until(lambda: "[WRN] STREAM: JetStream does not answer yet" in alone.said(began))
        assert role(alone)[1] in ("Follower", "Candidate")
        with talker(alone) as nats:
            with pytest.raises((NobodyAnsweredError, TimeoutError)):
                Client(nats, "early", cluster="orders", seconds=2)
            another.start(wait=False)
            client = connected(nats, "me", cluster="orders")
            assert client.subscribe(b"a", durable_name=b"d") is not None
            goes_on(client, b"a", b"last")
        assert alone.process is not None
        assert alone.process.poll() is None
        third.start(wait=False)
        last = leader(nodes)
        assert (await contents(last.url, STREAM))[: len(seen)] == seen
        for node in nodes:
            assert node.stop(signal.SIGTERM) in (0, 143)


@pytest.mark.slow
async def test_all_lose_power(tmp_path: Path) -> None:
    """Streams are as they were at an earlier sync; with `sync` what was acknowledged since is in the leader's copy."""
    nodes = configured(tmp_path, "abc")
    for node in nodes:
        file = tmp_path / f"{node.name}.conf"
        file.write_text(file.read_text().replace("cluster {\n    node_id", "cluster {\n    sync: true\n    node_id"))
        assert "sync: true" in file.read_text()
    with running(nodes):

        def killed() -> None:
            for node in nodes:
                node.die()

        def started() -> Node:
            for node in nodes:
                node.start(wait=False)
            return leader(nodes)

        first = leader(nodes)
        with talker(first) as nats:
            stored = acknowledged(connected(nats, "me", cluster="orders"), 10, 0)
        killed()
        places = {path: tmp_path / f"synced-{path.parent.name}" for path in tmp_path.glob("*/jetstream")}
        assert len(places) == 3
        for path, synced in places.items():
            shutil.copytree(path, synced)
        assert started() is first, "another one would not have what only its copy may have"
        with talker(first) as nats:
            stored += acknowledged(connected(nats, "me2", cluster="orders"), 30, 10)
        killed()
        for path, synced in places.items():
            shutil.rmtree(path)
            shutil.move(synced, path)
        assert started() is first
        assert re.search(r"the stream has lost 3\d messages that were stored", first.said())
        seen = await contents(first.url, STREAM)
        assert [sequence for sequence, _ in seen] == list(range(1, len(seen) + 1))
        assert list(dict.fromkeys(data for _, data in seen)) == stored


def stop_for_a_while(node: Node) -> None:
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    node.process.send_signal(signal.SIGCONT)


def start_again(node: Node) -> None:
    node.die()
    node.start(wait=False)


def kill_broker(node: Node) -> None:
    node.kill()
    node.start(wait=False)


def end(node: Node) -> None:
    node.stop(signal.SIGTERM)
    node.start(wait=False)


FAULTS = (stop_for_a_while, start_again, kill_broker, end, lambda node: os.kill(node.server, signal.SIGKILL))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_rounds_of_faults(tmp_path: Path, seed: int) -> None:
    """What was acknowledged is in the log, in its order, whatever happens to one of the nodes at a time, or to all."""
    chance = random.Random(seed)
    nodes = configured(tmp_path, "abc")
    stored: list[bytes] = []
    with running(nodes):
        for number in range(8):
            leads = leader(nodes)
            with talker(leads) as nats:
                # Another one each time: this one's node may die.
                client = connected(nats, f"me{number}", cluster="orders")
                stored += acknowledged(client, 10, len(stored))
            victim = leads if chance.random() < 0.7 else chance.choice(nodes)
            other = next(node for node in nodes if node is not victim)
            with talker(other) as nats, ThreadPoolExecutor(1) as pool:
                client = connected(nats, f"other{number}", cluster="orders")
                fault = pool.submit(chance.choice(FAULTS), victim)
                stored += acknowledged(client, 30, len(stored))
                fault.result()
            if number == 5:
                for node in nodes:
                    node.die()
                for node in nodes:
                    node.start(wait=False)
        last = leader(nodes)
        seen = await contents(last.url, STREAM)
        assert [sequence for sequence, _ in seen] == list(range(1, len(seen) + 1))
        assert list(dict.fromkeys(data for _, data in seen)) == stored
        with talker(last) as nats:
            got = connected(nats, "reader", cluster="orders").subscribe(b"a", start_position=4).wait(len(seen))
        assert [(each.sequence, each.data) for each in got] == seen


def test_one_node(tmp_path: Path) -> None:
    """A node alone serves; its NATS server is started again when it dies; its name and its messages stay."""
    node = Node(tmp_path, http=True)
    node.name = "alone"
    (tmp_path / "alone.conf").write_text(
        f'listen: "127.0.0.1:{node.port}"\nhttp: "127.0.0.1:{node.http_port}"\npid_file: alone.pid\n'
        'authorization { user: app, password: "se\\"cret" }\n'
        'streaming { store: file, dir: data, cluster { raft_heartbeat_timeout: "1s", log_path: "raft" } }\n'
    )
    with running([node]):
        until(lambda: "Streaming Server is ready" in node.said())
        assert "cluster: log_path, raft_heartbeat_timeout: no effect" in node.said()
        assert (tmp_path / "alone.pid").read_text() == str(node.process and node.process.pid)
        login = {"user": "app", "pass": 'se"cret'}
        with Talker(node.port, **login) as nats:
            acknowledged(Client(nats, "me"), 1, 0)
        os.kill(node.server, signal.SIGKILL)
        until(lambda: "The NATS server runs again" in node.said())
        with Talker(node.port, **login) as nats:
            client = connected(nats, "me2")
            goes_on(client, b"a", b"again")
            assert [each.data for each in client.subscribe(b"a", start_position=4).wait(2)] == [b"0", b"again"]
        name = node.figures("streaming/serverz")["node_id"]
        assert node.stop() == 0
        # It keeps the name that it was given by chance, and its messages.
        node.start()
        assert role(node) == (name, "Leader")
        assert node.stop() == 0


def connected(nats: Talker, client_id: str, cluster: str = "test-cluster") -> Client:
    """A client, as soon as somebody serves."""
    found: list[Client] = []

    def connects() -> bool:
        # What was sent to a node that was just killed is not answered by anybody.
        with contextlib.suppress(NobodyAnsweredError, TimeoutError):
            found.append(Client(nats, client_id, cluster=cluster, seconds=15))
        return bool(found)

    until(connects)
    return found[0]


def refused(node: Broker) -> tuple[int, str]:
    node.start(wait=False)
    assert node.process is not None
    return node.process.wait(60), node.said()


def test_refusals(tmp_path: Path) -> None:
    def node(name: str, *words: object) -> Broker:
        return Broker(tmp_path / name, "-clustered", "-cluster_node_id", "a", "-st", "file", "-dir", "data", *words)

    # A store of the original, or of a broker alone, is left as it is.
    there = tmp_path / "original" / "data" / "server.dat"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"theirs")
    code, said = refused(node("original"))
    assert code == 2
    assert "stantools merge" in said and "stantools migrate" in said
    assert [path.name for path in there.parent.iterdir()] == ["server.dat"]
    raft = tmp_path / "logs" / "raft" / "test-cluster" / "raft.log"
    raft.parent.mkdir(parents=True)
    raft.write_bytes(b"theirs")
    assert refused(node("logs", "-cluster_log_path", "raft"))[0] == 2
    # The port is somebody else's.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = refused(node("taken", "-p", taken.getsockname()[1]))
        assert code == 1
        assert "address already in use" in said
    # Others cannot be reached.
    code, said = refused(node("apart", "-cluster_peers", "a,b,c"))
    assert code == 1
    assert "nodes b, c cannot be reached" in said


def test_nodes_on_one_server(tmp_path: Path) -> None:
    """With a NATS server for all that is named, nodes start none of their own."""
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        words = ("-ns", server.url, "-st", "file", "-clustered", "-cluster_peers", "a,b")
        nodes = [
            Broker(
                tmp_path / name, *words, "-dir", "data", "-cluster_node_id", name, "-jetstream_replicas", "1", http=True
            )
            for name in "ab"
        ]
        code, said = refused(Broker(tmp_path / "c", *words, "-dir", "data", "-cluster_node_id", "c"))
        assert code == 1
        assert "a single NATS server keeps one replica: -jetstream_replicas 1" in said
        with contextlib.ExitStack() as stack:
            for node in nodes:
                stack.callback(stopped, node)
            nodes[0].start()
            nodes[1].start(wait=False)
            with talker(server) as nats:
                acknowledged(connected(nats, "me"), 3, 0)
                nodes[0].kill()
                goes_on(connected(nats, "me2"), b"a", b"killed")
            assert role(nodes[1]) == ("b", "Leader")
            assert sorted(path.name for path in (tmp_path / "b" / "data").iterdir()) == ["copy", "node.json"]


def test_signals(tmp_path: Path) -> None:
    """HUP changes what can be changed, USR1 opens logs again, and USR2 sends everybody away, in good order."""
    node = Node(tmp_path, http=True)
    node.name = "alone"
    file, server_log = tmp_path / "alone.conf", tmp_path / "alone" / "nats-server" / "server.log"
    # With neither routes nor peers it leads alone.
    text = f"""
    listen: "127.0.0.1:{node.port}"
    http: "127.0.0.1:{node.http_port}"
    max_payload: 500000
    lame_duck_grace_period: "1s"
    streaming {{ cluster_id: orders, store: file, dir: alone, cluster {{ node_id: "alone" }} }}
    """
    file.write_text(text)
    with running([node]):
        leader([node])
        assert node.process is not None
        with talker(node) as nats:
            client = connected(nats, "me", cluster="orders")
            client.store(b"a", b"1")
            file.write_text(text.replace("500000", "400000"))
            node.process.send_signal(signal.SIGHUP)
            until(lambda: "[INF] Reloaded server configuration" in node.said())
            with talker(node) as another:
                assert another.info["max_payload"] == 400000
            file.write_text(f"max_subscriptions: 1000\n{text}")
            node.process.send_signal(signal.SIGHUP)
            until(lambda: "[ERR] STREAM: Reload: config reload not supported for MaxSubs" in node.said())
            client.store(b"a", b"2")
            server_log.rename(moved := tmp_path / "moved.log")
            node.process.send_signal(signal.SIGUSR1)
            until(lambda: server_log.exists() and server_log.stat().st_size)
            assert moved.stat().st_size
            node.process.send_signal(signal.SIGUSR2)
            until(lambda: nats.closed)
        assert node.process.wait(60) == 0
        assert "lame duck mode" in server_log.read_text()
