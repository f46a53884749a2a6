"""Our broker, as a process, watched while real clients are at work; killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from stantools.streaming.client import Start, SubscriptionOptions, connect
from tests.brokers import Broker
from tests.tui.conftest import LARGE, screen_text, until
from tui.screens.livedetails import LiveChannelScreen


@contextlib.asynccontextmanager
async def traffic(url: str) -> AsyncIterator[None]:
    """Publishes to two channels; one durable never acknowledges."""
    over = asyncio.Event()

    async def publish() -> None:
        async with await connect(url, "test-cluster", "busy") as client:
            options = SubscriptionOptions(durable="slow", start=Start.first(), manual_acks=True, max_in_flight=5)
            await client.subscribe("orders", lambda message: None, options)
            await client.subscribe("orders", lambda message: None, SubscriptionOptions(start=Start.first()))
            while not over.is_set():
                await client.publish("orders", b"x" * 100)
                await client.publish("alerts", b"y" * 10)
                await asyncio.sleep(0.01)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        over.set()
        await task


async def test_a_broker_at_work(browse: Callable[..., Any], tmp_path: Path) -> None:
    with Broker(tmp_path, "-st", "FILE", "-dir", tmp_path / "store", http=True) as broker:
        async with browse(None, size=LARGE, monitor=broker.monitoring) as pilot:
            app = pilot.app
            await until(pilot, lambda: "[Channels 0]" in screen_text(app))
            monitor = app.screen.watching.monitor
            await pilot.press("plus")
            async with traffic(broker.url):
                await until(pilot, lambda: "[Channels 2]" in screen_text(app))
                await until(pilot, lambda: (monitor.rates.in_messages.rate or 0) > 0)
                await until(pilot, lambda: (monitor.rates.out_messages.rate or 0) > 0)
                await until(pilot, lambda: "✗ 1 stalled" in screen_text(app))
                await until(pilot, lambda: (monitor.channels["orders"].meter.rate or 0) > 0)
                assert monitor.server.cluster_id == "test-cluster"
                assert (monitor.store.kind, monitor.problem) == ("FILE", None)
                assert list(monitor.clients) == ["busy"]
                await pilot.press("end", "enter")
                await until(pilot, lambda: isinstance(app.screen, LiveChannelScreen))
                await until(pilot, lambda: "durable slow" in screen_text(app))
                slow = app.screen.rows.shown[0]
                assert (slow.state, slow.facts.last_sent, slow.facts.pending) == ("stalled", 5, 5)
                await until(pilot, lambda: app.screen.rows.shown[0].lag > 20)
                await pilot.press("escape")
            # The client has gone: its durable is left behind.
            await until(pilot, lambda: not monitor.clients)
            await until(pilot, lambda: [each.state for each in monitor.subscriptions] == ["offline"])
            messages = monitor.server.messages
            broker.kill()
            await until(pilot, lambda: "the figures are old" in " ".join(screen_text(app).split()))
            assert "orders" in screen_text(app)
            # Starting takes long: the screen is alive meanwhile.
            await asyncio.to_thread(broker.start)
            await until(pilot, lambda: "the server was restarted" in screen_text(app))
            await until(pilot, lambda: monitor.server.messages == messages and "✗" not in screen_text(app))


async def test_the_port_of_clients(browse: Callable[..., Any], tmp_path: Path) -> None:
    """Somebody names the port of clients."""
    with Broker(tmp_path, http=True) as broker:
        async with browse(None, monitor=f"http://127.0.0.1:{broker.port}") as pilot:
            words = "the port for NATS clients, not the monitoring"
            await until(pilot, lambda: words in " ".join(screen_text(pilot.app).split()))
