"""Three servers: a stream with three replicas is exact, also when its leader is killed while it is filled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.publish import Window, publish_stream
from stantools.migration.target.connection import connect
from stantools.migration.target.errors import TargetError
from stantools.migration.target.jetstream import JetStream
from stantools.migration.target.options import ConnectOptions
from tests import servers
from tests.migration.publish.conftest import CONFIG, FakeSource, expected, numbered, read_back
from tests.migration.publish.test_consumers import durable, place

SOURCE = FakeSource(numbered(*(n for n in range(100, 12_000) if n % 50), size=50), last=12_010)


async def until_placeable(js: JetStream) -> None:
    """Waits until the cluster knows all its servers."""
    for _ in range(100):
        try:
            await js.create_stream({"name": "PROBE", "subjects": ["probe"], "num_replicas": 3})
        except TargetError:
            await asyncio.sleep(0.1)
        else:
            await js.delete_stream("PROBE")
            return


@pytest.mark.parametrize("version", ["2.9.10", servers.NEWEST])
def test_the_leader_is_killed(tmp_path: Path, version: str) -> None:
    if not servers.binary(version).exists():
        pytest.skip(f"nats-server {version} is not here (python tests/servers.py)")
    consumers = [(durable("work"), place(6000, 201, 3333)), (durable("done"), place(12_010))]
    told: list[int] = []

    async def work(cluster: servers.Cluster) -> Any:
        async with connect(ConnectOptions(servers=tuple(cluster.urls))) as connection:
            js = JetStream(connection)

            async def kill_leader() -> None:
                while sum(told) < SOURCE.count // 2:
                    await asyncio.sleep(0.001)
                info = await js.stream_info("ORDERS")
                assert info
                leader = info["cluster"]["leader"]
                next(server for server in cluster.servers if server.directory.name == leader).kill()

            await until_placeable(js)
            killing = asyncio.ensure_future(kill_leader())
            config = {**CONFIG, "num_replicas": 3}
            window = Window(messages=512, chunk=64, seconds=1)
            result = await publish_stream(js, "ORDERS", config, SOURCE, consumers, window=window, progress=told.append)
            await killing
            assert await read_back(js, "ORDERS") == expected(SOURCE)
            for consumer, position in consumers:
                info = await js.consumer_info("ORDERS", consumer.name)
                assert info and info["num_ack_pending"] == len(position.pending)
                assert info["num_pending"] == sum(item.sequence > position.delivered for item in SOURCE.items)
            return result

    with servers.Cluster(tmp_path, version) as cluster:
        result = asyncio.run(work(cluster))
    assert result.messages == SOURCE.count == sum(told)
    state = result.state
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (SOURCE.count, 101, 12_010)
