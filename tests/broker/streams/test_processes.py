"""Streams of a broker as a process: what was acknowledged survives its end, and monitoring tells of it."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests import natsclient, servers
from tests.brokers import Broker
from tests.conftest import others_slow
from tests.waiting import eventually


@pytest.mark.parametrize("seed", others_slow(range(3), [0]))
async def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path, seed: int) -> None:
    """The broker is killed while four publishers write, a few times; small limits make for rewritten blocks."""
    chance = random.Random(seed)
    acknowledged: dict[int, bytes] = {}
    gone: set[int] = set()

    async def publish(client: Any, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            payload = b"%d-%d" % (chance.randrange(1 << 30), number) * chance.choice((1, 1, 2000))
            try:
                answer = await client.request("s.x", payload, timeout=5)
            except Exception:  # the broker is gone
                return
            sequence = json.loads(answer.data)["seq"]
            acknowledged[sequence] = payload
            if not chance.randrange(4):
                body = b'{"seq":%d,"no_erase":%b}' % (sequence, chance.choice((b"true", b"false")))
                gone.add(sequence)
                try:
                    await client.request("$JS.API.STREAM.MSG.DELETE.S", body, timeout=5)
                except Exception:
                    return

    with Broker(tmp_path, "-js", "-sd", tmp_path / "store") as broker:
        for first in (True, False, False):
            client = await natsclient.connect(broker.url, allow_reconnect=False)
            if first:
                await client.jetstream().add_stream(name="S", subjects=["s.>"])
            stop = asyncio.Event()
            publishers = [asyncio.create_task(publish(client, stop)) for _ in range(4)]
            wanted = len(acknowledged) + chance.randrange(50, 200)
            while len(acknowledged) < wanted:
                await asyncio.sleep(0.001)
            broker.kill()
            stop.set()
            # What came before the end of the connection counts; nothing else comes.
            await eventually(lambda client=client: client.is_closed)  # type: ignore[misc]
            for publisher in publishers:
                publisher.cancel()
            ends = await asyncio.gather(*publishers, return_exceptions=True)
            assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends), ends
            broker.start()
        async with natsclient.connected(broker.url) as client:
            js = client.jetstream()
            for sequence, payload in acknowledged.items():
                if sequence not in gone:
                    assert (await js.get_msg("S", sequence)).data == payload
            state = (await js.stream_info("S")).state
            assert state.last_seq >= max(acknowledged)


async def test_monitoring_tells_of_streams(tmp_path: Path) -> None:
    words = ("-js", "-sd", tmp_path / "store")
    with Broker(tmp_path, *words, http=True) as broker:
        async with natsclient.connected(broker.url) as client:
            js = client.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            await js.publish("s", b"x")
            await js.pull_subscribe("s", "c")
        found = broker.figures("jsz")
        assert (found["streams"], found["consumers"], found["messages"], found["bytes"]) == (1, 1, 1, 32)
        assert "account_details" not in found
        [account] = broker.figures("jsz?streams=1&consumers=1&config=1")["account_details"]
        [stream] = account["stream_detail"]
        assert stream["name"] == "S" and stream["state"]["messages"] == 1 and stream["config"]["subjects"] == ["s"]
        assert [each["name"] for each in stream["consumer_detail"]] == ["c"]
        varz = broker.figures("varz")["jetstream"]
        assert varz["config"]["store_dir"] == str(tmp_path / "store/jetstream") and varz["stats"]["storage"] == 32
        assert broker.stop(signal.SIGTERM) in (0, 143)


@pytest.mark.skipif(not servers.binary(servers.NEWEST).exists(), reason=f"nats-server {servers.NEWEST} is not here")
async def test_health_is_told_as_by_a_real_server(tmp_path: Path) -> None:
    async def fill(url: str) -> None:
        async with natsclient.connected(url) as client:
            js = client.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            await js.pull_subscribe("s", "c")

    questions = [
        "js-enabled-only=true", "js-enabled=1", "js-server-only=true", "js-enabled-only=x", "details=x",
        *("account=$G", "account=X", "account=$G&stream=S", "account=$G&stream=Z", "stream=S", "consumer=c"),
        *(f"account=$G&stream=S&consumer={name}" for name in "cz"), "account=$G&stream=Z&consumer=z",
        "account=X&js-enabled-only=true", "account=$G&consumer=c",
    ]  # fmt: skip
    port = servers.free_port()
    with servers.NatsServer(tmp_path / "real", servers.NEWEST, {"http": f"127.0.0.1:{port}"}) as server:
        await fill(server.url)
        theirs = [health(f"http://127.0.0.1:{port}/", each + more) for each in questions for more in ("", "&details=1")]
    with Broker(tmp_path / "ours", "-js", "-sd", tmp_path / "store", http=True) as broker:
        await fill(broker.url)
        ours = [health(broker.monitoring, each + more) for each in questions for more in ("", "&details=1")]
    assert ours == theirs


def health(url: str, question: str) -> tuple[int, Any]:
    """Status and document; text if it is none."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/healthz?{question}", timeout=20) as page:
            return page.status, json.loads(page.read())
    except urllib.error.HTTPError as refused:
        body = refused.read().decode().strip()
        return refused.code, json.loads(body) if body.startswith("{") else body
