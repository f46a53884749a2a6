"""Whatever interrupts it, and whenever: the same call again ends with everything there once, and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.publish import stream_fill, stream_publish
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.stream_publish import publish_stream
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection, connect
from stantools.nats.jetstream import JetStream
from stantools.nats.publishing.publish_run import PublishWindow
from tests.conftest import others_slow
from tests.migration.publish.conftest import CONFIG, FakeSource, expected, numbered, read_back
from tests.migration.publish.publisher import long_source
from tests.migration.publish.test_consumers import durable, place
from tests.natsclient import jetstream

SOURCE = FakeSource(
    numbered(*(n for n in range(10, 80) if n not in (13, 14, 15, 16, 40, 60, 61))), last=84, batch_rows=25
)
LIMITED = {**CONFIG, "max_msgs": 66, "deny_delete": True, "discard": "new", "duplicate_window": 10**8}
CONSUMERS = [(durable("work"), place(60, 20, 33)), (durable("new"), place(0)), (durable("done"), place(84))]
SMALL = PublishWindow(messages=16, chunk=4)


class Killed(BaseException):
    """Stands for kill -9: nothing of ours runs on."""


class Killer:
    """Ends the run at the n-th thing sent, before it or behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.before = True
        # Whatever is written, and every request.
        for name in ("write", "request"):
            monkeypatch.setattr(NatsConnection, name, self._wrapped(getattr(NatsConnection, name)))

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0 and self.before:
                raise Killed
            result = await function(*arguments, **more)
            if self.left == 0:
                raise Killed
            return result

        return call


async def publish(js: JetStream, name: str, **more: Any) -> Any:
    config = {**LIMITED, "name": name, "subjects": [name]}
    source = FakeSource(SOURCE.items, SOURCE.last, name.encode(), SOURCE.batch_rows)
    return await publish_stream(
        js, name, config, source, CONSUMERS, options=PublishOptions(window=SMALL), resume=True, **more
    )


async def check(js: JetStream, name: str) -> None:
    info = await js.api(f"STREAM.INFO.{name}", {"deleted_details": True})
    state, config = info["state"], info["config"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (SOURCE.count, 10, 84)
    # 2.9 and 2.10 do not list what is missing at the end.
    lacking = [n for n in range(10, 80) if n not in {item.sequence for item in SOURCE.items}]
    assert [n for n in state["deleted"] if n < 80] == lacking
    assert (config["max_msgs"], config["deny_delete"], config["discard"]) == (66, True, "new")
    assert config["duplicate_window"] == 10**8
    source = FakeSource(SOURCE.items, SOURCE.last, name.encode())
    assert await read_back(js, name) == expected(source)
    for consumer, position in CONSUMERS:
        found = await js.consumer_info(name, consumer.name)
        assert found and found["num_ack_pending"] == len(position.pending)
        assert found["num_pending"] == sum(item.sequence > position.delivered for item in SOURCE.items)
        assert found["config"]["max_ack_pending"] == 500


def fill_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with several replicas on old servers."""
    init = stream_fill.StreamFill.__init__

    def leading(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self._fills_before_first = self.loader.replicated = True

    monkeypatch.setattr(stream_fill.StreamFill, "__init__", leading)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("version", "leading"),
    [
        pytest.param("2.9.10", False, marks=pytest.mark.slow),
        pytest.param("2.10.26", False, marks=pytest.mark.slow),
        ("2.15.1", False),
        pytest.param("2.9.10", True, marks=pytest.mark.slow),
    ],
)
async def test_killed_at_every_step(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, version: str, before: bool, leading: bool
) -> None:
    server = start_server(version)
    # The server is not killed here, and forgets nothing.
    monkeypatch.setattr(stream_publish, "SETTLING", 0.0)
    if leading:
        fill_the_beginning(monkeypatch)
    killer = Killer(monkeypatch)
    killer.before = before

    async def attempt(step: int) -> bool:
        """Whether it was killed."""
        name = f"S{step}"
        options = ConnectOptions(servers=(server.url,))
        try:
            async with connect(options) as connection:
                killer.left = step
                await publish(JetStream(connection), name)
        except Killed:
            killed = True
        else:
            killed = False
        killer.left = 0
        async with connect(options) as connection:
            js = JetStream(connection)
            await publish(js, name)
            await check(js, name)
            again = await publish(js, name)
            assert (again.messages, again.fillers, again.consumers, again.found) == (0, 0, [], SOURCE.count)
            await check(js, name)
        return killed

    step = 1
    while await attempt(step):
        # All of the first ones, where the stream comes into being, then every third.
        step += 1 if step < 12 else 3
    assert step > 40


async def test_killed_again_and_again(start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind the duplicate window, which is a tenth of a second here."""
    server = start_server()
    monkeypatch.setattr(stream_publish, "SETTLING", 0.0)
    killer = Killer(monkeypatch)

    async def attempt(patience: int) -> bool:
        async with connect(ConnectOptions(servers=(server.url,))) as connection:
            killer.left = patience
            try:
                await publish(JetStream(connection), "S")
            except Killed:
                await asyncio.sleep(0.12)
                return False
            finally:
                killer.left = 0
        return True

    # A little longer every few times, as making a consumer cannot be continued in the middle.
    attempts = 1
    while not await attempt(8 + attempts // 2):
        attempts += 1
        assert attempts < 60
    assert attempts > 5
    async with jetstream(server.url) as js:
        await check(js, "S")


@pytest.mark.parametrize("version", [pytest.param("2.9.10", marks=pytest.mark.slow), "2.15.1"])
async def test_a_process_that_is_killed(start_server: Callable[..., Any], version: str) -> None:
    server = start_server(version)
    source = long_source(30_000)
    command = [sys.executable, str(Path(__file__).with_name("publisher.py")), server.url, "ORDERS", "30000", "512"]

    async def kill_at(js: JetStream, reached: int) -> int:
        process = subprocess.Popen(command)
        try:
            while process.poll() is None:
                info = await js.stream_info("ORDERS")
                if info and info["state"]["last_seq"] >= reached:
                    break
                await asyncio.sleep(0.001)
        finally:
            process.kill()
            process.wait()
        info = await js.stream_info("ORDERS")
        assert info
        last: int = info["state"]["last_seq"]
        return last

    async with jetstream(server.url) as js:
        for reached in (999, 2_100, 15_000):
            assert reached <= await kill_at(js, reached) < source.last
        result = await publish_stream(js, "ORDERS", CONFIG, source, resume=True)
        assert 0 < result.found < source.count and result.messages + result.found == source.count
        assert result.state["messages"] == source.count
        assert (result.state["first_seq"], result.state["last_seq"]) == (1000 + (1000 % 7 == 0), source.last)
        assert await read_back(js, "ORDERS") == expected(source)


@pytest.mark.parametrize("version", others_slow(["2.9.10", "2.15.1"], {"2.15.1"}))
async def test_a_server_that_is_killed_and_comes_back(start_server: Callable[..., Any], version: str) -> None:
    server = start_server(version)
    source = long_source(20_000)
    told: list[int] = []

    async with jetstream(server.url) as js:

        async def disturb() -> None:
            for part in (0.3, 0.7):
                while sum(told) < part * source.count:
                    await asyncio.sleep(0.001)
                server.kill()
                await asyncio.sleep(0.05)
                server.start(ready=False)

        disturbing = asyncio.ensure_future(disturb())
        window = PublishWindow(messages=512, chunk=64)
        result = await publish_stream(
            js, "ORDERS", CONFIG, source, options=PublishOptions(window=window), progress=told.append
        )
        await disturbing
        result = result
    assert result.interruptions >= 2
    assert sum(told) == result.messages == source.count
    assert result.state["messages"] == source.count and result.state["last_seq"] == source.last
    async with jetstream(server.url) as js:
        assert await read_back(js, "ORDERS") == expected(source)
