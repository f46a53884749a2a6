"""Three nodes on this machine, each a broker with its nats-server, without limits."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from natsserver import processor_of

from tests.brokers import Broker
from tests.servers import free_port

_NAMES = "abc"
_PATIENCE = 60.0
_LOOK = 0.05
_CONFIG = """
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{http}"
cluster {{ listen: "127.0.0.1:{routes[0]}", routes: [{others}] }}
streaming {{
  store: file, dir: "store"
  store_limits {{ max_channels: 0, max_subs: 0, max_msgs: 0, max_bytes: 0 }}
  cluster {{ node_id: "{name}", peers: [{peers}] }}
}}
"""


class Node(Broker):
    """A node."""

    def __init__(self, folder: Path, name: str) -> None:
        # Python as an operator starts it, not a fork of this one.
        super().__init__(folder, http=True, environment={"STANTOOLS_NODE": name})
        self.name = name
        self.route = free_port()

    def configure(self, others: list[Node]) -> None:
        """Writes its file."""
        text = _CONFIG.format(
            port=self.port,
            http=self.http_port,
            name=self.name,
            routes=[self.route],
            others=", ".join(f'"nats://127.0.0.1:{node.route}"' for node in others),
            peers=", ".join(f'"{node.name}"' for node in others),
        )
        (self.folder / "node.conf").write_text(text)

    def command(self) -> list[str]:
        """As for `Broker`."""
        return [sys.executable, "-m", "broker", "-c", "node.conf"]

    @property
    def pid(self) -> int:
        """The process of the broker."""
        assert self.process is not None
        return self.process.pid

    @property
    def server(self) -> int:
        """The process of its nats-server."""
        return int(re.findall(r"pid (\d+)", self.said())[-1])

    @property
    def role(self) -> str:
        """What it is; nothing while it does not say."""
        with suppress(OSError), urllib.request.urlopen(f"{self.monitoring}/streaming/serverz", timeout=2) as page:
            return str(json.load(page)["role"])
        return ""


class Nodes:
    """All three."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [Node(folder / name, name) for name in _NAMES]
        for node in self.nodes:
            node.configure(self.others(node))

    def others(self, node: Node) -> list[Node]:
        """Returns the nodes but one."""
        return [each for each in self.nodes if each is not node]

    def leader(self) -> Node:
        """Waits until all serve their page and one leads; returns that."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            roles = [node.role for node in self.nodes]
            if sorted(roles) == ["Follower", "Follower", "Leader"]:
                return self.nodes[roles.index("Leader")]
            time.sleep(_LOOK)
        raise RuntimeError("no node leads: " + "\n".join(node.said() for node in self.nodes))

    def processor(self) -> tuple[float, float]:
        """Seconds on a processor so far: of the brokers, and of the nats-servers."""
        return sum(processor_of(node.pid) for node in self.nodes), sum(processor_of(node.server) for node in self.nodes)


@contextmanager
def running(place: Path) -> Iterator[Nodes]:
    """Starts three empty nodes; they run as long as the `with` block."""
    with tempfile.TemporaryDirectory(dir=place, prefix="nodes-") as folder:
        nodes = Nodes(Path(folder))
        try:
            for node in nodes.nodes:
                node.start(wait=False)
            nodes.leader()
            yield nodes
        finally:
            for node in nodes.nodes:
                _end(node)


def _end(node: Node) -> None:
    """Ends a node and its nats-server, in whatever state they are; nothing of them may write any more."""
    with suppress(IndexError, ProcessLookupError):
        os.kill(node.server, signal.SIGKILL)
    if node.process is not None and node.process.poll() is None:
        node.kill()
