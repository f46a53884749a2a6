"""Published client libraries, unmodified, against the broker."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import clients
from tests.brokers import Broker
from tests.conftest import others_slow

HERE = Path(__file__).parent
CLUSTER = "test-cluster"
LIBRARIES = ["node", "python", "c"]


def command(library: str, url: str, scenario: str) -> list[str]:
    if library == "node":
        modules = clients.node_modules()
        if modules is None:
            pytest.skip("node-nats-streaming is not here (python tests/clients.py fetches it)")
        return ["node", str(HERE / "node" / "scenarios.js"), str(modules), url, CLUSTER, scenario]
    if library == "c":
        program = clients.c_program(HERE / "c" / "scenarios.c")
        if program is None:
            pytest.skip("Debian's libnats-dev or a compiler is not here (python tests/clients.py fetches the former)")
        return [str(program), url, CLUSTER, scenario]
    interpreter = clients.python()
    if interpreter is None:
        pytest.skip("asyncio-nats-streaming is not here (python tests/clients.py fetches it)")
    return [str(interpreter), str(HERE / "python" / "scenarios.py"), url, CLUSTER, scenario]


def play(library: str, url: str, scenario: str) -> Any:
    done = subprocess.run(command(library, url, scenario), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_publish_and_subscribe(broker: Broker, library: str) -> None:
    seen = play(library, broker.url, "basic")
    assert seen["texts"][-4:] == ["one", "two", "three", "four"]
    assert seen["sequences"] == list(range(1, len(seen["sequences"]) + 1))


def test_publish_without_waiting(broker: Broker, library: str) -> None:
    assert play(library, broker.url, "publish_async") == {"errors": [], "guids": 500, "in_order": True}


def test_start_positions(start_broker: Callable[..., Broker], library: str) -> None:
    seen = play(library, start_broker().url, "starts")
    assert seen == {"first": [1, 2, 3, 4, 5], "last": [5], "sequence": [3, 4, 5], "time": [1, 2, 3, 4, 5], "new": [6]}


@pytest.mark.parametrize("library", others_slow(LIBRARIES, ["node"]))
def test_redelivery(start_broker: Callable[..., Broker], library: str) -> None:
    seen = play(library, start_broker().url, "redelivery")
    assert seen == {"first": [[1, False], [2, False], [1, True], [2, True]], "after": 3}


def test_durables(start_broker: Callable[..., Broker], library: str) -> None:
    seen = play(library, start_broker().url, "durable")
    assert seen == {"before": [1, 2], "resumed": [3, 4], "anew": [1, 2, 3, 4]}


def test_queue_groups(broker: Broker, library: str) -> None:
    seen = play(library, broker.url, "queue")
    assert seen["left"]
    assert seen["right"]
    together = sorted(seen["left"] + seen["right"])
    assert together == list(range(together[0], together[0] + 20))


def test_a_burst_is_shared_evenly(start_broker: Callable[..., Broker]) -> None:
    rounds = play("c", start_broker().url, "burst")["shares"]
    assert [sum(shares) for shares in rounds] == [2048] * 20
    even = [shares for shares in rounds if all(abs(share - 2048 / 5) <= 0.2 * 2048 / 5 for share in shares)]
    assert len(even) >= 19, rounds


@pytest.mark.parametrize("library", ["node", "c"])
def test_durable_queue_groups(start_broker: Callable[..., Broker], library: str) -> None:
    assert play(library, start_broker().url, "durable_queue") == {"first": [1, 2, 3], "second": [4]}


def test_a_client_id_that_is_taken(broker: Broker, library: str) -> None:
    assert "clientID already registered" in play(library, broker.url, "duplicate")["error"]


@pytest.mark.parametrize("library", ["node", "c"])
def test_what_is_refused(broker: Broker, library: str) -> None:
    seen = play(library, broker.url, "refused")
    assert seen["publish"] == "stan: invalid publish request"
    assert seen["subscribe"] == "stan: invalid subject"
    assert seen["connect"].startswith("stan: invalid clientID")


@pytest.mark.parametrize("library", ["node", "c"])
def test_large_messages(broker: Broker, library: str) -> None:
    assert play(library, broker.url, "large") == {"size": 900000}


def test_plain_nats_with_the_c_client(broker: Broker) -> None:
    assert play("c", broker.url, "plain") == {
        "message": "hello",
        "header": "value",
        "reply": "re: x",
        "nobody": "No responders available for request",
        "shared": 100,
        "alone": False,
    }


@pytest.mark.parametrize("library", ["node", "c"])
def test_a_client_goes_on_over_a_restart(start_broker: Callable[..., Broker], tmp_path: Path, library: str) -> None:
    running = start_broker("-st", "FILE", "-dir", tmp_path / "store")
    with subprocess.Popen(
        command(library, running.url, "restart"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        running.kill()
        running.start()
        output, errors = process.communicate("started\n", timeout=60)
    assert process.returncode == 0, errors
    # The acknowledgement of the first message may not have reached the disk.
    seen = json.loads(output)
    assert seen["texts"][0] == "before"
    assert seen["texts"][-1] == "after"
    assert set(seen["sequences"]) == {1, 2}


@pytest.mark.parametrize("library", others_slow(LIBRARIES, ["c"]))
def test_a_memory_server_forgets_its_clients(start_broker: Callable[..., Broker], library: str) -> None:
    running = start_broker()
    with subprocess.Popen(
        command(library, running.url, "lost"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        running.kill()
        time.sleep(0.2)
        running.start()
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "client has been replaced or is no longer registered" in json.loads(output)["error"]
