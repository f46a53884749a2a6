"""JetStream with nats.js and the C client as published: a program sees the same of a real server and of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import clients, servers
from tests.brokers import Broker

HERE = Path(__file__).parent


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URLs of a real server and of ours."""
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip(f"nats-server {servers.NEWEST} is not here")
    with (
        servers.NatsServer(tmp_path / "real", servers.NEWEST) as server,
        Broker(tmp_path / "ours", "-js", "-sd", tmp_path / "store") as broker,
    ):
        yield server.url, broker.url
        assert "rror" not in broker.said()


def play(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nats_js(both: tuple[str, str]) -> None:
    modules = clients.node_modules()
    if modules is None:
        pytest.skip("nats.js is not here (python tests/clients.py fetches it)")
    theirs, ours = (json.loads(play("node", HERE / "node" / "jetstream.js", modules, url)) for url in both)
    failed = {name: came for name, came in theirs.items() if isinstance(came, str)}
    assert not failed
    assert set(theirs) == set(ours)
    for name, came in theirs.items():
        assert ours[name] == came, name


def test_the_c_client(both: tuple[str, str]) -> None:
    program = clients.c_program(HERE / "c" / "jetstream.c")
    if program is None:
        pytest.skip("Debian's libnats-dev or a compiler is not here (python tests/clients.py fetches the former)")
    theirs, ours = (play(program, url) for url in both)
    assert ours.splitlines() == theirs.splitlines()
    assert "2 streams, at most -1" in ours
