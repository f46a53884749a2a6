"""Our own client, `stantools.streaming`, against the broker."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.streaming.client import (
    Client,
    ClientOptions,
    Message,
    Start,
    SubscriptionOptions,
    connect,
)
from stantools.streaming.errors import NoServerError, RefusedByServerError, StreamingError
from tests.brokers import Broker
from tests.waiting import eventually

CLUSTER = "test-cluster"
QUICK = ClientOptions(ping_interval=1, ping_max_out=3)


class Names:
    """Channels and client ids that no other test uses."""

    def __init__(self) -> None:
        self._base = f"{time.time_ns():x}"
        self._next = 0

    def __call__(self, what: str = "c") -> str:
        self._next += 1
        return f"{what}-{self._base}-{self._next}"


@pytest.fixture
def names() -> Names:
    return Names()


async def publish(client: Client, channel: str, count: int, first: int = 1) -> None:
    problems: list[StreamingError | None] = []
    for number in range(first, first + count):
        await client.publish_async(channel, b"%d" % number, problems.append)
    await client.settled()
    assert problems == [None] * count


async def sequences(client: Client, channel: str, start: Start, count: int, **more: Any) -> list[int]:
    """The first so many sequences that a subscription gets."""
    got: list[int] = []
    subscription = await client.subscribe(
        channel, lambda message: got.append(message.sequence), SubscriptionOptions(start=start, **more)
    )
    await eventually(lambda: len(got) >= count)
    await subscription.close()
    return got


async def test_publish_and_subscribe(broker: Broker, names: Names) -> None:
    channel = names()
    async with await connect(broker.url, CLUSTER, names()) as client:
        got: list[Message] = []
        await client.publish(channel, b"one", reply="back")
        await client.subscribe(channel, got.append, SubscriptionOptions(start=Start.first()))
        await client.publish(channel, b"")
        await publish(client, channel, 1000)
        await eventually(lambda: len(got) == 1002)
        assert [message.sequence for message in got] == list(range(1, 1003))
        assert [message.data for message in got[2:]] == [b"%d" % number for number in range(1, 1001)]
        assert (got[0].channel, got[0].reply, got[0].redelivered) == (channel, "back", False)
        assert abs(got[0].timestamp - time.time_ns()) < 60 * 10**9


async def test_start_positions(broker: Broker, names: Names) -> None:
    channel = names()
    async with await connect(broker.url, CLUSTER, names()) as client:
        await publish(client, channel, 3)
        await asyncio.sleep(0.05)
        between = datetime.datetime.now(datetime.UTC)
        await asyncio.sleep(0.05)
        await publish(client, channel, 2)
        assert await sequences(client, channel, Start.first(), 5) == [1, 2, 3, 4, 5]
        assert await sequences(client, channel, Start.last_received(), 1) == [5]
        assert await sequences(client, channel, Start.sequence(3), 3) == [3, 4, 5]
        assert await sequences(client, channel, Start.at(between), 2) == [4, 5]
        assert await sequences(client, channel, Start.ago(3600), 5) == [1, 2, 3, 4, 5]
        got: list[int] = []
        for start in (Start.new_only(), Start.sequence(100), Start.ago(0)):
            options = SubscriptionOptions(start=start)
            await client.subscribe(channel, lambda message: got.append(message.sequence), options)
        await client.publish(channel, b"6")
        await eventually(lambda: len(got) == 3)
        assert got == [6, 6, 6]


async def test_acks_by_hand_and_messages_in_flight(broker: Broker, names: Names) -> None:
    channel = names()
    async with await connect(broker.url, CLUSTER, names()) as client:
        got: list[Message] = []
        options = SubscriptionOptions(start=Start.first(), manual_acks=True, max_in_flight=2)
        await publish(client, channel, 5)
        await client.subscribe(channel, got.append, options)
        await eventually(lambda: len(got) == 2)
        await asyncio.sleep(0.2)
        assert [message.sequence for message in got] == [1, 2]
        await got[1].ack()
        await eventually(lambda: len(got) == 3)
        assert got[2].sequence == 3


async def test_redelivery(broker: Broker, names: Names) -> None:
    channel = names()
    async with await connect(broker.url, CLUSTER, names()) as client:
        got: list[Message] = []
        options = SubscriptionOptions(manual_acks=True, ack_wait=1)
        await client.subscribe(channel, got.append, options)
        await client.publish(channel, b"x")
        await eventually(lambda: len(got) == 2)
        assert [(each.redelivered, each.redelivery_count) for each in got] == [(False, 0), (True, 1)]
        await got[0].ack()


async def test_a_handler_that_fails_gets_the_message_again(broker: Broker, names: Names) -> None:
    channel, tries = names(), []

    def handle(message: Message) -> None:
        tries.append(message.redelivery_count)
        if len(tries) == 1:
            raise ValueError("not yet")

    async with await connect(broker.url, CLUSTER, names()) as client:
        await client.subscribe(channel, handle, SubscriptionOptions(ack_wait=1))
        await client.publish(channel, b"x")
        await eventually(lambda: tries == [0, 1])


async def test_durables(broker: Broker, names: Names) -> None:
    channel, name = names(), names()
    async with await connect(broker.url, CLUSTER, name) as client:
        await publish(client, channel, 2)
        assert await sequences(client, channel, Start.first(), 2, durable="d") == [1, 2]
        await publish(client, channel, 2)
        # The position counts, not the start.
        assert await sequences(client, channel, Start.first(), 2, durable="d") == [3, 4]
    async with await connect(broker.url, CLUSTER, name) as client:
        await client.publish(channel, b"x")
        got: list[int] = []
        subscription = await client.subscribe(
            channel, lambda message: got.append(message.sequence), SubscriptionOptions(durable="d")
        )
        await eventually(lambda: got == [5])
        with pytest.raises(RefusedByServerError, match="stan: duplicate durable registration"):
            await client.subscribe(channel, print, SubscriptionOptions(durable="d"))
        await subscription.unsubscribe()
        assert await sequences(client, channel, Start.first(), 5, durable="d") == [1, 2, 3, 4, 5]


async def test_queue_groups(broker: Broker, names: Names) -> None:
    channel = names()
    got: list[tuple[str, int]] = []

    async def join(name: str, client: Client) -> None:
        options = SubscriptionOptions(queue="workers", durable="lasting", max_in_flight=1, start=Start.first())
        await client.subscribe(channel, lambda message: got.append((name, message.sequence)), options)

    async with (
        await connect(broker.url, CLUSTER, names()) as one,
        await connect(broker.url, CLUSTER, names()) as two,
    ):
        await join("one", one)
        await join("two", two)
        await publish(one, channel, 20)
        await eventually(lambda: len(got) == 20)
        assert sorted(sequence for _, sequence in got) == list(range(1, 21))
        assert {name for name, _ in got} == {"one", "two"}
    got.clear()
    async with await connect(broker.url, CLUSTER, names()) as three:
        await publish(three, channel, 3)
        await join("three", three)
        await eventually(lambda: len(got) == 3)
        assert [sequence for _, sequence in got] == [21, 22, 23]


async def test_what_the_server_refuses(broker: Broker, names: Names) -> None:
    name = names()
    async with await connect(broker.url, CLUSTER, name) as client:
        with pytest.raises(RefusedByServerError, match="stan: invalid publish request"):
            await client.publish("a/b", b"x")
        with pytest.raises(RefusedByServerError, match="stan: invalid subject"):
            await client.subscribe("a.*", print)
        with pytest.raises(RefusedByServerError, match="stan: invalid MaxInflight, should be >= 1"):
            await client.subscribe(names(), print, SubscriptionOptions(max_in_flight=0))
        with pytest.raises(StreamingError, match="stan: clientID already registered"):
            await connect(broker.url, CLUSTER, name)
        with pytest.raises(NoServerError, match="nothing listens"):
            await connect(broker.url, "another-cluster", name)
        await client.publish(names(), b"x")


async def test_publishing_and_closing_at_once_loses_nothing(broker: Broker, names: Names) -> None:
    channel, name = names(), names()
    problems: list[StreamingError | None] = []
    client = await connect(broker.url, CLUSTER, name)
    for number in range(500):
        await client.publish_async(channel, b"%d" % number, problems.append)
    await client.close()
    assert problems == [None] * 500
    async with await connect(broker.url, CLUSTER, name) as client:
        assert len(await sequences(client, channel, Start.first(), 500)) == 500


async def test_pings_and_heartbeats(start_broker: Callable[..., Broker]) -> None:
    running = start_broker("-hbi", "200ms", "-hbt", "200ms", "-hbf", "2")

    async with await connect(running.url, CLUSTER, "me", QUICK) as client:
        # It would be removed after 1.2 s.
        await asyncio.sleep(1.6)
        assert not client.closed
        await client.publish("a", b"x")


async def test_a_memory_server_that_was_started_again_has_forgotten_us(start_broker: Callable[..., Broker]) -> None:
    running = start_broker()
    lost: list[StreamingError] = []

    client = await connect(running.url, CLUSTER, "me", QUICK, lost.append)
    await client.publish("a", b"x")
    await asyncio.to_thread(running.kill)
    await asyncio.to_thread(running.start)
    await eventually(lambda: bool(lost), 30)
    assert "client has been replaced or is no longer registered" in str(lost[0])
    assert client.closed


async def test_a_file_server_that_was_started_again_goes_on(start_broker: Callable[..., Broker], tmp_path: Any) -> None:
    running = start_broker("-st", "FILE", "-dir", tmp_path / "store")

    options = ClientOptions(ack_timeout=5, ping_interval=1)
    async with await connect(running.url, CLUSTER, "me", options) as client:
        got: list[int] = []
        await client.subscribe("a", lambda message: got.append(message.sequence))
        await client.publish("a", b"x")
        await eventually(lambda: got == [1])
        await asyncio.to_thread(running.kill)
        await asyncio.to_thread(running.start)
        deadline = time.monotonic() + 60
        while 2 not in got:
            assert time.monotonic() < deadline
            try:
                await client.publish("a", b"y")
            except StreamingError:
                continue
            await asyncio.sleep(0.05)


async def test_user_and_password(start_broker: Callable[..., Broker]) -> None:
    running = start_broker("-user", "alice", "-pass", "secret")

    with pytest.raises(NoServerError, match="it requires credentials and none were given"):
        await connect(running.url, CLUSTER, "me")
    async with await connect(running.url, CLUSTER, "me", user="alice", password="secret") as client:
        await client.publish("a", b"x")


def test_the_example_of_the_guide(start_broker: Callable[..., Broker]) -> None:
    running = start_broker()
    page = (Path(__file__).parents[2] / "docs" / "streaming-client.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example.replace("nats://localhost:4222", running.url)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 b'first'\n2 b'second'\n", "")
