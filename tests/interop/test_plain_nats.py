"""Plain NATS on the running broker: node's client and nats-py. (The C client is in test_other_clients.py.)"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests import clients, natsclient
from tests.broker.nats.certificates import party
from tests.brokers import Broker
from tests.interop.test_other_clients import HERE
from tests.nats.authority import new_pair
from tests.waiting import eventually

PATIENCE = 60.0


def node(url: str, scenario: str, **options: Any) -> list[str]:
    modules = clients.node_modules()
    if modules is None:
        pytest.skip("node's NATS client is not here (python tests/clients.py fetches it)")
    return ["node", str(HERE / "node" / "plain.js"), str(modules), url, scenario, json.dumps(options)]


def play(url: str, scenario: str, **options: Any) -> Any:
    done = subprocess.run(node(url, scenario, **options), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


async def join(url: str, **options: Any) -> Client:
    settings: dict[str, Any] = {"allow_reconnect": False, "connect_timeout": 10}
    return await natsclient.connect(url, **(settings | options))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("plain")) as broker:
        yield broker


def test_node_at_work(plain: Broker) -> None:
    seen = play(plain.url, "work")
    assert seen["star"] == [["js.a.x", "1"]]
    assert seen["rest"] == ["1", "2"]
    assert (seen["few"], seen["all"], seen["both"]) == (3, 1000, True)
    assert seen["replies"] == [f"re: {n}" for n in range(5)]
    # This client knows nothing of headers: it has to wait.
    assert seen["nobody"] == "REQ_TIMEOUT"


def test_node_sends_too_much(plain: Broker) -> None:
    assert play(plain.url, "payload") == {"problem": "NatsError: 'Maximum Payload Violation'", "limit": 1048576}


async def test_nats_py_at_work(plain: Broker) -> None:
    one, two = await join(plain.url), await join(plain.url)

    async def answer(message: Msg) -> None:
        await message.respond(b"re: " + message.data)

    await one.subscribe("py-service", cb=answer)
    wild = await one.subscribe("py.*.>")
    got: list[int] = []

    async def take(message: Msg) -> None:
        await asyncio.sleep(0)
        got.append(int(message.data))

    for _ in range(3):
        await one.subscribe("py-work", "g", cb=take)
    await one.flush()
    await two.publish("py.a.b", b"x", headers={"key": "value", "other": "one"})
    message = await wild.next_msg(PATIENCE)
    assert (message.subject, message.data, message.headers) == ("py.a.b", b"x", {"key": "value", "other": "one"})
    assert (await two.request("py-service", b"y", timeout=PATIENCE)).data == b"re: y"
    with pytest.raises(nats.errors.NoRespondersError):
        await two.request("py-nobody", b"", timeout=PATIENCE)
    for number in range(2000):
        await two.publish("py-work", b"%d" % number)
    await two.flush()
    # What already exists is still delivered. What is still on its way when it unsubscribes the library drops.
    await one.flush()
    await one.drain()
    assert sorted(got) == list(range(2000))
    with pytest.raises(nats.errors.MaxPayloadError):
        await two.publish("py-large", bytes(two.max_payload + 1))
    await two.publish("py-large", bytes(two.max_payload))
    await two.flush()
    await two.close()


async def test_reconnecting(tmp_path: Path) -> None:
    """Clients come back after a restart, with their subscriptions and what they have kept."""

    with Broker(tmp_path) as broker:
        back = asyncio.Event()

        async def reconnected() -> None:
            back.set()

        client = await join(
            broker.url, allow_reconnect=True, reconnect_time_wait=0.1, max_reconnect_attempts=200,
            reconnected_cb=reconnected, error_cb=_ignore,
        )  # fmt: skip
        seen: list[bytes] = []

        async def take(message: Msg) -> None:
            seen.append(message.data)

        await client.subscribe("py-again", cb=take)
        await client.publish("py-again", b"before")
        await eventually(lambda: seen == [b"before"])
        process = await asyncio.create_subprocess_exec(
            *node(broker.url, "reconnect"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout
        assert await process.stdout.readline() == b"connected\n"
        await asyncio.to_thread(broker.kill)
        await eventually(lambda: not client.is_connected)
        await client.publish("py-again", b"meanwhile")
        # Long enough for node's client to notice, too.
        await asyncio.sleep(0.3)
        await asyncio.to_thread(broker.start)
        await asyncio.wait_for(back.wait(), PATIENCE)
        await client.publish("py-again", b"after")
        await eventually(lambda: len(seen) == 3)
        assert seen == [b"before", b"meanwhile", b"after"]
        output, errors = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == 0, errors
        assert json.loads(output) == {"seen": ["before", "after"]}
        await client.close()


async def _ignore(problem: Exception) -> None:
    """What is reported while the broker is away."""


async def test_nkeys_and_wrong_credentials(tmp_path: Path) -> None:
    seed, public = new_pair()
    (tmp_path / "seed").write_text(seed)
    (tmp_path / "config").write_text(
        f"""
        authorization {{ users = [ {{ nkey: {public} }}, {{ user: u, password: p }} ] }}
        streaming {{ user: u, password: p }}
        """
    )

    with Broker(tmp_path, "-c", tmp_path / "config") as broker:
        for options in ({"nkeys_seed": str(tmp_path / "seed")}, {"user": "u", "password": "p"}):
            client = await join(broker.url, **options)
            await client.flush()
            await client.close()
        (tmp_path / "other").write_text(new_pair()[0])
        bad: list[dict[str, str]] = [{}, {"user": "u", "password": "x"}, {"token": "t"}]
        for options in (*bad, {"nkeys_seed": str(tmp_path / "other")}):
            with pytest.raises(nats.errors.Error, match="Authorization Violation"):
                await join(broker.url, **options, error_cb=_ignore)
        # The same codes as with a server of the original.
        assert play(broker.url, "nkey", seed=seed, nkey=public) == {"problem": "NATS_PROTOCOL_ERR"}
        assert [code for code, _ in play(broker.url, "wrong")["problems"]] == ["SIG_REQ"] * 3
    with Broker(tmp_path / "simple", "--user", "u", "--pass", "p") as broker:
        assert play(broker.url, "wrong")["problems"] == [["NATS_PROTOCOL_ERR", "'Authorization Violation'"]] * 3


async def test_tls_with_nats_py(tmp_path: Path) -> None:
    authority = party(tmp_path, "authority")
    server = party(tmp_path, "server", authority)
    (tmp_path / "config").write_text(f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}" }}\n')

    with Broker(tmp_path, "-c", tmp_path / "config", "--tls_client_cacert", authority.cert) as broker:
        context = ssl.create_default_context(cafile=str(authority.cert))
        client = await join(broker.url, tls=context)
        inbox = await client.subscribe("tls")
        await client.publish("tls", b"x" * 200_000)
        assert len((await inbox.next_msg(PATIENCE)).data) == 200_000
        await client.close()
        with pytest.raises((ssl.SSLError, OSError, nats.errors.Error)):
            await join(broker.url, tls=ssl.create_default_context(), error_cb=_ignore)
