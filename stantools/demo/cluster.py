"""A demonstration: three nodes serve, the leader is killed, nothing that was acknowledged is missing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from stantools.demo.stage import DemoFailedError, say, title
from stantools.nats.serverprocess import find_server
from stantools.streaming.client import Client, ClientOptions, Message, Start, SubscriptionOptions, connect
from stantools.streaming.errors import NoServerError, StreamingError

CLUSTER, CHANNEL = "orders", "demo"
NAMES = ("a", "b", "c")
#: The configuration of a node; samples/broker/cluster-a.conf explains it.
CONFIGURATION = """\
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{http}"

cluster {{
  listen: "127.0.0.1:{route}"
  routes: [{routes}]
}}

streaming {{
  cluster_id: {cluster}
  store: file
  dir: "store-{name}"

  cluster {{
    node_id: "{name}"
    peers: [{peers}]
  }}
}}
"""
#: Seconds until a publish is tried again, and until the demo gives up.
AGAIN, PATIENCE = 1.0, 60.0


class Node:
    """A node: the broker and its NATS server."""

    def __init__(self, name: str, out: Path, routes: dict[str, int]) -> None:
        client, http = free_ports(2)
        others = [each for each in routes if each != name]
        self.name, self.out = name, out
        self.file, self.log = out / f"cluster-{name}.conf", out / f"cluster-{name}.log"
        self.file.write_text(
            CONFIGURATION.format(
                name=name,
                cluster=CLUSTER,
                client=client,
                http=http,
                route=routes[name],
                routes=", ".join(f'"nats://127.0.0.1:{routes[each]}"' for each in others),
                peers=", ".join(f'"{each}"' for each in others),
            ),
            "utf-8",
        )
        self.url, self.page = f"nats://127.0.0.1:{client}", f"http://127.0.0.1:{http}/streaming/serverz"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        say(f"$ stan-broker -c {self.file.name} &")
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "broker", "-c", self.file.name]
            self.process = subprocess.Popen(command, cwd=self.out, stderr=log)

    def kill(self) -> None:
        """Ends it as when its machine dies."""
        server = int(re.findall(r"pid (\d+), log", self.log.read_text("utf-8"))[-1])
        assert self.process is not None
        say(f"$ kill -9 {self.process.pid} {server}         # node {self.name}: the broker, and its nats-server")
        os.kill(server, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    @property
    def role(self) -> str:
        """Leader, Follower or Candidate; "" while it does not answer."""
        try:
            with urllib.request.urlopen(self.page, timeout=2) as page:
                found: dict[str, Any] = json.load(page)
        except OSError:
            return ""
        return str(found["role"])


def leader(nodes: list[Node]) -> Node:
    """Waits until one of the nodes leads."""
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE:
        for node in nodes:
            if node.role == "Leader":
                say(f"node {node.name} leads, after {time.monotonic() - begin:.1f} s")
                return node
        time.sleep(0.1)
    raise DemoFailedError("no node leads", f"see {nodes[0].out}/*.log")


async def connected(nodes: list[Node], client_id: str) -> Client:
    """Connects as soon as the new leader answers clients: all NATS servers must know its subscriptions."""
    begin = time.monotonic()
    while True:
        try:
            return await connect([node.url for node in nodes], CLUSTER, client_id, ClientOptions(ack_timeout=AGAIN))
        except NoServerError:
            if time.monotonic() - begin > PATIENCE:
                raise
        await asyncio.sleep(0.1)


async def publish(client: Client, numbers: range) -> list[bytes]:
    """Publishes numbers, each again until it is acknowledged."""
    longest = 0.0
    for number in numbers:
        begin = time.monotonic()
        while True:
            with contextlib.suppress(StreamingError):
                await client.publish(CHANNEL, b"%d" % number)
                break
        longest = max(longest, time.monotonic() - begin)
    say(f"{len(numbers)} messages acknowledged; the longest took {longest:.1f} s")
    return [b"%d" % number for number in numbers]


async def everything(nodes: list[Node], client_id: str, count: int) -> list[bytes]:
    """Returns what a new subscriber gets: the channel from its first message, each content once."""
    got: asyncio.Queue[Message] = asyncio.Queue()
    seen: dict[bytes, int] = {}
    async with await connected(nodes, client_id) as client:
        await client.subscribe(CHANNEL, got.put, SubscriptionOptions(start=Start.first()))
        while len(seen) < count:
            message = await asyncio.wait_for(got.get(), PATIENCE)
            seen.setdefault(message.data, message.sequence)
    return list(seen)


async def play(nodes: list[Node]) -> bool:
    title("A client publishes")
    first = leader(nodes)
    others = [node for node in nodes if node is not first]
    client = await connected(others, "publisher")
    stored = await publish(client, range(500))

    title("The machine of the leader dies; the client goes on")
    first.kill()
    stored += await publish(client, range(500, 1000))
    leader(others)

    title("It comes back, and follows")
    first.start()
    while first.role != "Follower":
        await asyncio.sleep(0.1)
    say(f"node {first.name} follows")

    title("What is there now")
    found = await everything(nodes, "reader", len(stored))
    await client.close()
    say(f"  acknowledged   {len(stored):>6}")
    say(f"  in the channel {len(found):>6}, in the order of publishing: {'yes' if found == stored else 'no'}")

    title("All three die, and are started again")
    for node in nodes:
        node.kill()
    for node in nodes:
        node.start()
    leader(nodes)
    found = await everything(nodes, "reader-again", len(stored))
    say(f"  in the channel {len(found):>6}, in the order of publishing: {'yes' if found == stored else 'no'}")
    return found == stored


def play_cluster(out: Path) -> bool:
    """Plays it in an empty directory; returns whether every message is there.

    Raises `StantoolsError` without a nats-server.
    """
    find_server()
    title("Three nodes, each a broker with a nats-server of its own")
    routes = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    nodes = [Node(name, out, routes) for name in NAMES]
    try:
        for node in nodes:
            node.start()
        return asyncio.run(play(nodes))
    finally:
        for node in nodes:
            if node.process is not None:
                node.process.terminate()
        for node in nodes:
            if node.process is not None:
                node.process.wait()
        say(f"\nThe directories and logs of the nodes are in {out}/.")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
