"""The rules about receivers are the same for one message and for many, from sockets and from this process."""

from __future__ import annotations

import numpy as np
import pytest

from broker.reserved import ReservedSubjects
from stantools.nats.frames import Payloads, frame_table
from stantools.nats.kernels import parse_publishes
from tests.broker.nats.test_read_coalescer import World

COUNT = 4
LINES = (b"SUB a.b 1\r\n", b"SUB a.* 2\r\nUNSUB 2 2\r\n", b"SUB a.b q 3\r\n", b"SUB a.b q 4\r\n", b"")


def publish(world: World, way: str) -> None:
    router, inner = world.server.router, world.inner
    if way == "one":
        for _ in range(COUNT):
            assert router.publish_one(inner, b"a.b", b"", b"xy", 0) >= 2
    elif way == "each":
        assert list(router.publish_each(inner, [(b"a.b", b"xy")] * COUNT)) == []
    elif way == "runs":
        block = Payloads(b"xy" * COUNT, np.arange(COUNT, dtype=np.int64) * 2, np.full(COUNT, 2, np.uint32))
        router.publish_runs(inner, [(b"a.b", 0, COUNT)], block)
    elif way == "to":
        for _ in range(COUNT):
            router.hand_to(inner, b"a.b", b"a.b", b"", b"xy", 0, b"")
    else:
        data, frames = b"PUB a.b 2\r\nxy\r\n" * COUNT, frame_table(COUNT)
        parse_publishes(data, 0, len(data), frames, world.server.subscriptions.unrestricted.routes, 99, 99)
        router.publish_rows(inner, data, frames, ReservedSubjects())


@pytest.mark.parametrize("way", ["one", "each", "runs", "rows", "to", "socket one", "socket run"])
async def test_receivers(way: str) -> None:
    world = await World.of(len(LINES))
    for number, line in enumerate(LINES):
        await world.feed(number, line)
    world.server.read_coalescer.run()
    origin = world.connections[-1] if way.startswith("socket") else world.inner
    before = origin.counters.in_msgs, world.server.router.counters.in_bytes, world.server.router.counters.out_msgs
    if way == "socket run":
        await world.feed(len(LINES) - 1, b"PUB a.b 2\r\nxy\r\n" * COUNT)
    elif way == "socket one":
        for _ in range(COUNT):
            await world.feed(len(LINES) - 1, b"PUB a.b 2\r\nxy\r\n")
            world.server.read_coalescer.run()
    else:
        publish(world, way)
    await world.settle()
    plain, limited, *members = (connection.counters.out_msgs for connection in world.connections[:4])
    assert (plain, limited, sum(members)) == (COUNT, 2, COUNT)
    assert b"2" not in world.connections[1].subscriptions, "it ended at its limit"
    counters = world.server.router.counters
    assert (origin.counters.in_msgs - before[0], counters.in_bytes - before[1]) == (COUNT, 2 * COUNT)
    assert counters.out_msgs - before[2] == 2 * COUNT + 2
