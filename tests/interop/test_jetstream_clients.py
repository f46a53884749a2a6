"""JetStream with nats.js and the C client as published: a program sees the same of a real server and of ours."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator
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


def play(urls: Iterable[str], *command: str | Path) -> list[str]:
    """What a program prints with each URL, all at the same time, as it mostly waits."""
    words = list(map(str, command))
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen([*words, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            for url in urls
        ]
        for process in started:
            stack.callback(process.kill)
        outputs = []
        for process in started:
            output, errors = process.communicate(timeout=180)
            assert process.returncode == 0, output + errors
            outputs.append(output)
    return outputs


def test_nats_js(both: tuple[str, str]) -> None:
    modules = clients.node_modules()
    if modules is None:
        pytest.skip("nats.js is not here (python tests/clients.py fetches it)")
    theirs, ours = map(json.loads, play(both, "node", HERE / "node" / "jetstream.js", modules))
    failed = {name: came for name, came in theirs.items() if isinstance(came, str)}
    assert not failed
    assert set(theirs) == set(ours)
    for name, came in theirs.items():
        assert ours[name] == came, name


def test_the_c_client(both: tuple[str, str]) -> None:
    program = clients.c_program(HERE / "c" / "jetstream.c")
    if program is None:
        pytest.skip("Debian's libnats-dev or a compiler is not here (python tests/clients.py fetches the former)")
    theirs, ours = play(both, program)
    assert ours.splitlines() == theirs.splitlines()
    assert "2 streams, at most -1" in ours
