"""nats.js' JetStream as published: what comes of the same script with a real server and with the broker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import clients, servers
from tests.brokers import Broker

SCRIPT = Path(__file__).parent / "node" / "jetstream.js"


def play(modules: Path, url: str) -> dict[str, Any]:
    done = subprocess.run(["node", str(SCRIPT), str(modules), url], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not servers.binary(servers.NEWEST).exists(), reason=f"nats-server {servers.NEWEST} is not here")
def test_what_comes_of_it_is_the_same(tmp_path: Path) -> None:
    modules = clients.node_modules()
    if modules is None:
        pytest.skip("nats.js is not here (python tests/clients.py fetches it)")
    with servers.NatsServer(tmp_path / "real", servers.NEWEST) as server:
        theirs = play(modules, server.url)
    with Broker(tmp_path / "ours", "-js", "-sd", tmp_path / "store") as broker:
        ours = play(modules, broker.url)
        assert "rror" not in broker.said()
    failed = {name: came for name, came in theirs.items() if isinstance(came, str)}
    assert not failed
    assert set(theirs) == set(ours)
    for name, came in theirs.items():
        assert ours[name] == came, name
