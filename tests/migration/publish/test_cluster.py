"""Three servers: a stream with three replicas is exact, also when its leader is killed while it is filled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.stream_publish import publish_stream
from stantools.nats.publishing.publish_run import PublishWindow
from tests import servers
from tests.migration.publish.conftest import CONFIG, FakeSource, expected, numbered, read_back
from tests.migration.publish.test_consumers import durable, place
from tests.natsclient import jetstream

SOURCE = FakeSource(numbered(*(n for n in range(100, 12_000) if n % 50), size=50), last=12_010)
SMALL = FakeSource(numbered(*(n for n in range(100, 700) if n % 50)), last=710, channel=b"small")
CONSUMERS = [(durable("work"), place(600, 201, 333)), (durable("done"), place(710))]
REPLICATED = {**CONFIG, "num_replicas": 3}


@pytest.mark.parametrize("version", [pytest.param("2.9.10", marks=pytest.mark.slow), servers.NEWEST])
async def test_the_leader_is_killed(tmp_path: Path, version: str) -> None:
    if not servers.binary(version).exists():
        pytest.skip(f"nats-server {version} is not here (python tests/servers.py)")
    told: list[int] = []

    async with servers.Cluster(tmp_path, version) as cluster, jetstream(*cluster.urls, timeout=5) as js:
        result = await publish_stream(js, "SMALL", {**REPLICATED, "subjects": ["small"]}, SMALL, CONSUMERS)
        # On a busy machine the servers may elect another leader meanwhile.
        assert result.state["messages"] == SMALL.count and result.interruptions <= 2
        assert await read_back(js, "SMALL") == expected(SMALL)
        for consumer, position in CONSUMERS:
            info = await js.consumer_info("SMALL", consumer.name)
            assert info and info["num_ack_pending"] == len(position.pending)
            assert info["num_pending"] == sum(item.sequence > position.delivered for item in SMALL.items)

        async def kill_leader() -> None:
            while sum(told) < SOURCE.count // 2:
                await asyncio.sleep(0.001)
            info = await js.stream_info("ORDERS")
            assert info
            leader = info["cluster"]["leader"]
            next(server for server in cluster.servers if server.directory.name == leader).kill()

        killing = asyncio.ensure_future(kill_leader())
        publishing = PublishOptions(window=PublishWindow(messages=512, chunk=64, seconds=1))
        result = await publish_stream(js, "ORDERS", REPLICATED, SOURCE, options=publishing, progress=told.append)
        await killing
        assert await read_back(js, "ORDERS") == expected(SOURCE)
    assert result.messages == SOURCE.count == sum(told)
    state = result.state
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (SOURCE.count, 101, 12_010)
