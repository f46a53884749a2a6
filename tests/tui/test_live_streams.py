"""Streams of a real server with JetStream, and comparing them with the store that they came from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from stantools.format.proto import store_pb2 as pb
from stantools.migration.proof.stream_proof import ExpectedStream
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.jetstream import JetStream
from tests import natsclient, servers
from tests.brokers import Broker
from tests.migration.stores import fill, records, stored, write_store
from tests.servers import free_port
from tests.tui.conftest import LARGE, SMALL, check_screen, screen_text, until
from tests.tui.monitored import MonitoredServer, settle, usual_figures
from tui.jobs import JobState
from tui.live.facts import LiveAccount, LiveConsumer, LiveStream, read
from tui.live.source import PollInterval
from tui.screens.livecompare import ChannelChoice, LiveCompareScreen
from tui.screens.livedetails import LiveStreamScreen

MESSAGES = 200


class Place:
    """A server with streams, and a store with their channels."""

    def __init__(self, server: Any) -> None:
        self.server = server

    async def fill(self, folder: Path) -> None:
        orders = [("orders.new", b"%d" % n, {}) for n in range(1, MESSAGES + 1)]
        await fill(self.server.url, "orders_new", orders, subjects=["orders.new"])
        await fill(self.server.url, "mixed", [("a.b", b"1", {})] * 5, subjects=["a.b", "c.d"])
        rows = await stored(self.server.url, "orders_new")
        write_store(folder, {"orders.new": rows, "a.b": records(3), "c.d": records(2), "other": records(1)})

    def jetstream(self) -> AbstractAsyncContextManager[JetStream]:
        return natsclient.jetstream(self.server.url)

    @property
    def connect_options(self) -> ConnectOptions:
        return ConnectOptions(servers=(self.server.url,))


@pytest.fixture
async def place(
    request: pytest.FixtureRequest, start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    """With a real server, or with a broker of ours where a test asks for one."""
    with ExitStack() as stack:
        ours = getattr(request, "param", "") == "broker"
        words = (tmp_path / "broker", "-js", "-sd", tmp_path / "streams")
        place = Place(stack.enter_context(Broker(*words)) if ours else start_server())
        await place.fill(tmp_path / "store")
        monkeypatch.chdir(tmp_path)
        yield place


def masks(app: Any, place: Place) -> dict[str, str]:
    """What differs between runs: the port, the server's name, times, seconds."""
    found = {str(place.server.port): "PORT0"}
    for watched in app.screen.watching.streams.streams.values() if hasattr(app.screen, "watching") else ():
        found |= dict.fromkeys((watched.facts.first_time, watched.facts.last_time), "2026-11-21 03:00:00")
    streams = getattr(getattr(app.screen, "watching", None), "streams", None)
    if streams is not None and streams.server:
        found[streams.server] = "N" * len(streams.server)
    return found


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
async def test_golden(
    browse: Callable[..., Any], place: Place, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One round for each view: rates are not for a picture.
    monkeypatch.setattr(PollInterval, "seconds", 3600.0)
    config = {"durable_name": "d", "ack_policy": "explicit", "filter_subject": "orders.new", "max_ack_pending": 7}
    async with place.jetstream() as js:
        await js.consumer_create("orders_new", config)
        await js.delete_message("orders_new", 50)

    async with browse(None, size=size, connect_options=place.connect_options) as pilot:
        app, width = pilot.app, size[0]
        await until(pilot, lambda: "[Streams 2]" in screen_text(app))
        await settle(pilot)
        await check_screen(pilot, f"live-streams-{width}", masks=masks(app, place))
        for each in app.screen.watching.streams.streams.values():
            each.meter.forget()
        await pilot.press("G", "enter")
        await until(pilot, lambda: isinstance(app.screen, LiveStreamScreen) and len(app.screen.rows) == 1)
        await settle(pilot)
        await check_screen(pilot, f"live-stream-{width}", masks=masks(app, place))
        await pilot.press("enter")
        await until(pilot, lambda: "d: orders.new" in screen_text(app))


async def test_a_tab_counts_the_rows_that_it_shows(browse: Callable[..., Any], place: Place) -> None:
    """A key acts on the rows: what came since they were filled is not announced before.

    Without a store, nothing is compared.
    """

    async with browse(None, connect_options=place.connect_options) as pilot:
        await until(pilot, lambda: "[Streams 2]" in screen_text(pilot.app))
        await pilot.press("equals_sign")
        await until(pilot, lambda: "there is no store to compare" in " ".join(screen_text(pilot.app).split()))
        pilot.app.clear_notifications()
        await until(pilot, lambda: "no store" not in screen_text(pilot.app))
        screen = pilot.app.screen
        screen.watching.pace.toggle_pause()
        screen.watching.streams.streams = dict(list(screen.watching.streams.streams.items())[:1])
        screen.write_head()
        assert len(screen.rows) == 2
        await until(pilot, lambda: "paused" in screen_text(pilot.app))
        assert "[Streams 2]" in screen_text(pilot.app)
        screen.update_rows()
        await until(pilot, lambda: "[Streams 1]" in screen_text(pilot.app))
        assert len(screen.rows) == 1


@pytest.mark.parametrize("place", ["nats-server", "broker"], indirect=True)
async def test_figures(browse: Callable[..., Any], place: Place) -> None:
    """Messages that come in, a message that is deleted, a consumer that does not acknowledge."""

    async with browse(None, connect_options=place.connect_options) as pilot:
        app = pilot.app
        await until(pilot, lambda: "[Streams 2]" in screen_text(app))
        streams = app.screen.watching.streams
        assert streams.account.streams == 2
        await pilot.press("plus", "plus", "slash", *"orders", "enter")
        await pilot.press("enter")
        more = [("orders.new", b"more", {})] * 10
        await _publish(place.server.url, more)
        await until(pilot, lambda: streams.streams["orders_new"].facts.messages == MESSAGES + 10)
        assert any(rate > 0 for rate in streams.streams["orders_new"].meter.rates)
        config = {"durable_name": "d", "ack_policy": "explicit", "max_ack_pending": 3}
        async with place.jetstream() as js:
            await js.consumer_create("orders_new", config)
        await _fetch(place.server.url, 3)
        await until(pilot, lambda: [each.state for each in app.screen.rows.shown] == ["stalled"])
        (consumer,) = app.screen.rows.shown
        assert (consumer.delivered, consumer.ack_floor, consumer.ack_pending, consumer.pending) == (3, 0, 3, 207)
        async with place.jetstream() as js:
            await js.delete_message("orders_new", 9)
        await until(pilot, lambda: "1 deleted in between" in screen_text(app))
        async with place.jetstream() as js:
            await js.delete_stream("orders_new")
        await until(pilot, lambda: "there is no such stream now" in screen_text(app))
        await pilot.press("equals_sign", "escape")
        await until(pilot, lambda: "[Streams 1]" in screen_text(app))


async def _publish(url: str, messages: list[Any]) -> None:

    async with natsclient.connected(url) as client:
        for subject, data, _ in messages:
            await client.jetstream().publish(subject, data)


async def _fetch(url: str, count: int) -> None:

    async with natsclient.connected(url) as client:
        subscription = await client.jetstream().pull_subscribe_bind("d", "orders_new")
        assert len(await subscription.fetch(count, timeout=natsclient.PATIENCE)) == count


async def test_equal_and_after_damage(browse: Callable[..., Any], place: Place) -> None:
    async with browse("store", connect_options=place.connect_options) as pilot:
        app = pilot.app
        await pilot.press("8")
        await until(pilot, lambda: "[Streams 2]" in screen_text(app))
        await pilot.press("equals_sign")
        # Both subjects of the first stream are channels.
        await until(pilot, lambda: isinstance(app.screen, ChannelChoice))
        await pilot.press("escape", "G", "equals_sign")

        async def compared() -> Any:
            await until(pilot, lambda: isinstance(app.screen, LiveCompareScreen) and not app.screen.job.running)
            await pilot.pause(0.1)
            return app.screen.job.result

        result = await compared()
        assert result.equal
        seconds = f"in {result.proof.seconds:.1f} s"
        await settle(pilot)
        await check_screen(pilot, "live-compare-equal-80", masks={seconds: "in 0.0 s"})
        assert app.commands[-1] == f"stantools diff store '{place.server.url}#orders_new' --channel orders.new"
        for damage, said in (
            (lambda js: js.delete_message("orders_new", 50), "1 message of stream orders_new: 50"),
            (lambda js: js.delete_message("orders_new", MESSAGES), f"orders_new: 50, {MESSAGES}"),
        ):
            async with place.jetstream() as js:
                await damage(js)
            await pilot.press("equals_sign")
            result = await compared()
            assert not result.equal
            assert said in screen_text(app)
        seconds = f"in {result.proof.seconds:.1f} s"
        await settle(pilot)
        await check_screen(pilot, "live-compare-missing-80", masks={seconds: "in 0.0 s"})
        # Nothing was left behind on the server.
        async with place.jetstream() as js:
            assert await servers.consumer_names(js, "orders_new") == []
        await pilot.press("escape", "8")
        assert isinstance(app.screen.watching.streams.connect_options, ConnectOptions)


async def test_durables(browse: Callable[..., Any], place: Place, tmp_path: Path) -> None:
    rows = await stored(place.server.url, "orders_new")
    state = pb.SubState(
        id=1, client_id=b"c", durable_name=b"d", is_durable=True, is_closed=True, last_sent=7, ack_wait_in_secs=30
    )
    write_store(tmp_path / "durables", {"orders.new": rows}, subscriptions={"orders.new": [(state, [])]})

    async with browse("durables", connect_options=place.connect_options) as pilot:
        await pilot.press("8")
        await until(pilot, lambda: "[Streams 2]" in screen_text(pilot.app))
        await pilot.press("G", "equals_sign")
        await until(pilot, lambda: "consumer-missing" in screen_text(pilot.app))
        seconds = f"in {pilot.app.screen.job.result.proof.seconds:.1f} s"
        await settle(pilot)
        await check_screen(pilot, "live-compare-durables-80", masks={seconds: "in 0.0 s"})


async def test_a_missing_tail(browse: Callable[..., Any], place: Place, tmp_path: Path) -> None:
    """What the store took after the migration is not in the stream."""
    rows = await stored(place.server.url, "orders_new")
    later = [(MESSAGES + n, rows[-1][1] + n, b"", b"later") for n in range(1, 6)]
    write_store(tmp_path / "longer", {"orders.new": [*rows, *later]})

    async with browse("longer", connect_options=place.connect_options) as pilot:
        app = pilot.app
        await pilot.press("8")
        await until(pilot, lambda: "[Streams 2]" in screen_text(app))
        await pilot.press("G", "equals_sign")
        await until(pilot, lambda: "message-missing" in screen_text(app))
        assert "5 of them are missing in the stream" in screen_text(app)
        await pilot.press("G")
        await until(pilot, lambda: "5 messages of stream orders_new: 201-205" in screen_text(app))
        assert "last sequence is 200 instead of 205" in str(app.screen.findings)


async def test_several_channels_in_one_stream(browse: Callable[..., Any], place: Place) -> None:
    async with browse("store", connect_options=place.connect_options) as pilot:
        app = pilot.app
        await pilot.press("8")
        await until(pilot, lambda: "[Streams 2]" in screen_text(app))
        await pilot.press("equals_sign")
        await until(pilot, lambda: isinstance(app.screen, ChannelChoice))
        assert "all 2 of them" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "message-payload" in screen_text(app))
        assert app.screen.job.result.channels == ["a.b", "c.d"]
        await pilot.press("escape", "equals_sign")
        await until(pilot, lambda: isinstance(app.screen, ChannelChoice))
        await pilot.press("G", "enter")
        await until(pilot, lambda: "message-extra" in screen_text(app))
        assert app.screen.job.result.channels == ["c.d"]


async def test_cancelling_a_comparison(
    browse: Callable[..., Any], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []

    async def for_ever(*_: Any, **__: Any) -> None:
        begun.append(True)
        await asyncio.sleep(3600)

    monkeypatch.setattr(ExpectedStream, "prove", for_ever)

    async with browse("store", connect_options=place.connect_options) as pilot:
        app = pilot.app
        await pilot.press("8")
        await until(pilot, lambda: "[Streams 2]" in screen_text(app))
        await pilot.press("G", "equals_sign")
        await until(pilot, lambda: begun)
        assert "The stream is read through a temporary consumer" in screen_text(app)
        job = app.screen.job
        await pilot.press("c")
        await until(pilot, lambda: job.state is JobState.CANCELLED)
        await until(pilot, lambda: "cancelled" in screen_text(app))
        # So does leaving.
        begun.clear()
        await pilot.press("equals_sign")
        await until(pilot, lambda: begun)
        job = app.screen.job
        await pilot.press("escape")
        await until(pilot, lambda: job.state is JobState.CANCELLED)


async def test_killed_and_started_again(
    browse: Callable[..., Any], place: Place, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with browse(None, connect_options=place.connect_options) as pilot:
        app = pilot.app
        await until(pilot, lambda: "[Streams 2]" in screen_text(app))
        await asyncio.to_thread(place.server.kill)
        await until(pilot, lambda: "the figures are old" in " ".join(screen_text(app).split()))
        assert "orders_new" in screen_text(app)
        await asyncio.to_thread(place.server.start)
        await until(pilot, lambda: "the server answers again" in screen_text(app))
    assert not [each for each in caplog.records if each.name in ("nats", "asyncio") and each.levelno >= logging.WARNING]
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err


async def test_monitor_and_streams(browse: Callable[..., Any], place: Place) -> None:
    """Both are tabs of one view, and the pace is that of both."""

    with MonitoredServer() as stub:
        usual_figures(stub)
        async with browse(None, monitor=stub.url, connect_options=place.connect_options) as pilot:
            app = pilot.app
            await until(pilot, lambda: "[Channels 3]" in screen_text(app))
            await pilot.press("shift+tab")
            await until(pilot, lambda: "[Streams 2]" in screen_text(app))
            assert "JetStream of nats://" in screen_text(app)
            await pilot.press("space")
            assert all(source.pace.paused for source in app.screen.watching.sources)
            await pilot.press("tab")
            assert "[Channels 3]" in screen_text(app)
            assert app.commands == [f"stantools tui --monitor {stub.url} --server {place.server.url}"]


async def test_nobody_listens(browse: Callable[..., Any]) -> None:
    async with browse(None, connect_options=ConnectOptions(servers=(f"nats://127.0.0.1:{free_port()}",))) as pilot:
        await until(pilot, lambda: "cannot connect to nats://127.0.0.1" in screen_text(pilot.app))


async def test_no_jetstream(browse: Callable[..., Any], start_server: Callable[..., Any]) -> None:
    server = start_server(jetstream=False)

    async with browse(None, connect_options=ConnectOptions(servers=(server.url,))) as pilot:
        await until(pilot, lambda: "has no JetStream for this user" in " ".join(screen_text(pilot.app).split()))


async def test_options_that_cannot_be(browse: Callable[..., Any]) -> None:
    async with browse(None, connect_options=ConnectOptions(servers=("embedded",))) as pilot:
        await until(pilot, lambda: "must be started before" in " ".join(screen_text(pilot.app).split()))


def test_documents_that_say_little() -> None:
    for document in ({}, {"config": 1, "state": [], "limits": "x", "subjects": {}, "paused": 1}):
        assert read(LiveAccount, document).storage == 0
        assert read(LiveStream, document).name == ""
        assert read(LiveConsumer, document).state == "ok"
