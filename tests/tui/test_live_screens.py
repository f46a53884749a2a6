"""The views of a server that is watched, with figures of our choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stantools.nats.monitoring import GoneError
from tests.conftest import others_slow
from tests.tui.conftest import LARGE, check_screen, check_sizes, screen_text, until
from tests.tui.monitored import (
    Figures,
    MonitoredServer,
    channel,
    server_document,
    settle,
    subscription,
    usual_figures,
)
from tests.tui.test_live_monitor import Scripted
from tui.jobs import Job
from tui.live.monitor import PAGE, Monitor
from tui.screens.livedetails import LiveChannelScreen, LiveClientScreen
from tui.widgets.rowtable import RowTable

URL = "http://stan.example:8222"
Step = Callable[[Figures, Scripted], object]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes every monitor ask figures instead of a server: one round for each step, a second after the other."""

    def begin(*steps: Step) -> None:
        figures = Figures()
        usual_figures(figures)

        def run(self: Monitor, job: Job[None]) -> None:
            endpoint, now = Scripted(figures), [1_000_000.0]
            self._endpoint, self._clock, self._wall = endpoint, lambda: now[0], lambda: now[0]
            for step in steps:
                now[0] += 1.0
                step(figures, endpoint)
                self.ask(job.check)
            while True:
                job.check()
                time.sleep(0.01)

        monkeypatch.setattr(Monitor, "run", run)

    return begin


def grow(messages: int, size: int = 100, out: int = 0) -> Step:
    """So many messages come in."""

    def step(figures: Figures, _: Scripted) -> None:
        figures.server["in_msgs"] += messages
        figures.server["in_bytes"] += messages * size
        figures.server["out_msgs"] += out
        figures.server["out_bytes"] += out * size
        figures.server["total_msgs"] += messages
        figures.server["total_bytes"] += messages * size
        for each in figures.channels[::2]:
            each["last_seq"] += messages // 2
            each["msgs"] += messages // 2
            each["bytes"] += messages * size // 2
            for keeps_up in each.get("subscriptions", [])[1:2]:
                keeps_up["last_sent"] = each["last_seq"]

    return step


def gone(_: Figures, endpoint: Scripted) -> None:
    endpoint.gone = GoneError(f"{URL}: nothing is listening there", "is the server running?")


def shows(**server: Any) -> Step:
    return lambda figures, _: figures.server.update(server)


USUAL = tuple(grow(n, out=n // 2) for n in (0, 200, 400, 100, 800, 1200))


def polled(pilot: Any, rounds: int) -> Callable[[], bool]:
    """Everything was asked so many times, and is on the screen, with the keys at the bottom."""
    screen = pilot.app.screen
    return lambda: screen.written == (rounds,) and "Help" in screen_text(pilot.app)


async def test_golden(browse: Callable[..., Any], script: Callable[..., None]) -> None:
    script(*USUAL)

    async with browse(None, monitor=URL) as pilot:
        app = pilot.app
        await until(pilot, polled(pilot, len(USUAL)))
        await check_sizes(pilot, "live-channels", layout=True, ready=settle)
        await pilot.press("tab")
        await pilot.pause()
        await check_sizes(pilot, "live-clients", layout=True, ready=settle)
        await pilot.press("tab")
        await pilot.pause()
        await check_sizes(pilot, "live-subscriptions", layout=True, ready=settle)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LiveChannelScreen))
        await check_sizes(pilot, "live-channel", layout=True, ready=settle)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LiveClientScreen))
        await check_sizes(pilot, "live-client", layout=True, ready=settle)
        assert app.commands == [f"stantools tui --monitor {URL}"]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("gone", [*USUAL, gone]),
        ("never", [gone]),
        ("restarted", [*USUAL, shows(start_time="later", in_msgs=5, in_bytes=500, out_msgs=0, out_bytes=0), grow(10)]),
        ("standby", [lambda f, _: (f.channels.clear(), f.clients.clear(), f.server.update(
            state="FT_STANDBY", cluster_id="", total_msgs=0, total_bytes=0, in_msgs=0, out_msgs=0))]),
        ("cluster", [shows(state="CLUSTERED", role="Follower", node_id="a"), grow(20)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_golden_states(
    browse: Callable[..., Any],
    script: Callable[..., None],
    name: str,
    steps: Sequence[Step],
) -> None:
    script(*steps)

    async with browse(None, size=LARGE, monitor=URL) as pilot:
        await until(pilot, polled(pilot, len(steps)))
        await settle(pilot)
        await check_screen(pilot, f"live-{name}-140")


async def test_keys(browse: Callable[..., Any], script: Callable[..., None]) -> None:
    script(*USUAL)

    async with browse(None, monitor=URL) as pilot:
        app = pilot.app
        await until(pilot, polled(pilot, len(USUAL)))
        pace = app.screen.watching.pace
        await pilot.press("plus")
        assert pace.seconds == 0.5
        await pilot.press("minus", "minus")
        assert "every 2 s" in screen_text(app)
        await pilot.press("space")
        assert pace.paused
        assert "‖ paused" in screen_text(app)
        await pilot.press("space")
        assert not pace.paused
        # Filter, sort, and what is under the cursor stays there.
        await pilot.press("slash", *"ORD", "enter")
        assert [each.facts.name for each in app.screen.rows.shown] == ["orders"]
        assert "1 with ORD" in screen_text(app)
        await pilot.press("escape")
        assert len(app.screen.rows) == 3
        await pilot.press("G")
        assert app.screen.rows.shown[app.screen.table.cursor].facts.name == "orders"
        await pilot.press("s")
        assert app.screen.rows.order == "messages"
        assert app.screen.rows.shown[app.screen.table.cursor].facts.name == "orders"
        await pilot.press("S")
        assert app.screen.rows.shown[-1].facts.name == "orders"
        await pilot.press("shift+tab")
        assert app.screen.source is app.screen.watching.monitor
        assert [each.state for each in app.screen.rows.shown] == [
            "stalled",
            "not moving",
            "not moving",
            "offline",
            "ok",
        ]
        await pilot.press("tab")
        await pilot.press("colon", *"alerts", "enter")
        await until(pilot, lambda: app.screen.rows.shown[app.screen.table.cursor].facts.name == "alerts")


async def test_rows_move_and_the_cursor_goes_with_them(browse: Callable[..., Any], script: Callable[..., None]) -> None:
    ready: list[bool] = []

    def later(figures: Figures, _: Scripted) -> None:
        while not ready:
            time.sleep(0.01)
        figures.channels.insert(0, channel("aaa", 7))
        figures.channels.insert(3, channel("bbb", 7))

    script(*USUAL, later)

    async with browse(None, monitor=URL) as pilot:
        await until(pilot, polled(pilot, len(USUAL)))
        table = pilot.app.screen.query_one(RowTable)
        await pilot.press("down")
        assert pilot.app.screen.rows.shown[table.cursor].facts.name.startswith("audit")
        ready.append(True)
        await until(pilot, lambda: len(pilot.app.screen.rows) == 5)
        assert table.cursor == 2
        assert pilot.app.screen.rows.shown[2].facts.name.startswith("audit")


async def test_a_channel_and_a_client_that_go(browse: Callable[..., Any], script: Callable[..., None]) -> None:
    ready: list[bool] = []

    def empty(figures: Figures, _: Scripted) -> None:
        while not ready:
            time.sleep(0.01)
        figures.channels.clear()
        figures.clients.clear()

    script(*USUAL, empty)

    async with browse(None, monitor=URL) as pilot:
        app = pilot.app
        await until(pilot, polled(pilot, len(USUAL)))
        await pilot.press("end", "enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, LiveClientScreen))
        ready.append(True)
        await until(pilot, lambda: "not connected" in screen_text(app))
        await pilot.press("enter", "escape")
        await until(pilot, lambda: "there is no such channel now" in screen_text(app))
        await pilot.press("enter", "escape", "tab", "enter")
        assert "[Clients 0]" in screen_text(app)


async def test_resizing(browse: Callable[..., Any], script: Callable[..., None]) -> None:
    script(*USUAL)

    async with browse(None, monitor=URL) as pilot:
        await until(pilot, polled(pilot, len(USUAL)))
        await pilot.resize_terminal(*LARGE)
        await until(pilot, lambda: "stalled" in screen_text(pilot.app))
        await settle(pilot)
        await check_screen(pilot, "live-channels-140")
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        assert "alerts" in screen_text(pilot.app)


@pytest.fixture
def stub() -> Iterator[MonitoredServer]:
    with MonitoredServer() as server:
        usual_figures(server)
        yield server


async def test_over_http(browse: Callable[..., Any], stub: MonitoredServer) -> None:
    """The figures change, the server fails, answers nonsense, ends, and comes back at the same port."""

    async with browse(None, monitor=stub.url.replace("://", "://me:secret@")) as pilot:
        app = pilot.app

        def sees(text: str) -> Callable[[], bool]:
            return lambda: text in " ".join(screen_text(app).split())

        await until(pilot, sees("[Channels 3]"))
        assert "secret" not in screen_text(app)
        await pilot.press("plus", "plus")
        stub.channels.append(channel("new", 12, subscription("app-9", last_sent=12)))
        await until(pilot, sees("[Channels 4]"))
        stub.instead["/streaming/channelsz"] = 500, "text/plain", b"Error getting information about channels\n"
        await until(pilot, sees("with HTTP 500: Error"))
        assert "orders" in screen_text(app)
        stub.instead["/streaming/channelsz"] = 200, "text/html", b"<html>"
        await until(pilot, sees("is a web page"))
        stub.instead.clear()
        await until(pilot, sees("the server answers again"))
        port = stub.port
        stub.stop()
        await until(pilot, sees("nothing is listening there"))
        with MonitoredServer(port) as again:
            usual_figures(again)
            again.server = server_document(start_time="2026-11-22T00:00:00Z", server_id="new")
            await until(pilot, sees("the server was restarted"))
            await until(pilot, sees("[Channels 3]"))
        assert all("secret" not in line for line in app.commands)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nats://me:secret@host:4222", "monitoring uses HTTP"),
        ("http://no-such-host.invalid", "unknown host"),
    ],
)
async def test_a_wrong_url(browse: Callable[..., Any], url: str, said: str) -> None:
    async with browse(None, monitor=url) as pilot:
        await until(pilot, lambda: said in screen_text(pilot.app))
        assert "secret" not in screen_text(pilot.app)
        await pilot.press("enter", "tab", "s", "S", "slash", "a", "enter", "space", "plus", "minus", "escape")
        assert said in screen_text(pilot.app)


async def test_with_a_store(
    browse: Callable[..., Any], stub: MonitoredServer, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key 8 opens it, and what was found out before is still there when it is opened again."""
    monkeypatch.chdir(golden / "basic")

    async with browse("datastore", monitor=stub.url) as pilot:
        app = pilot.app
        await pilot.press("8")
        await until(pilot, lambda: "[Channels 3]" in screen_text(app))
        watching = app.screen.watching
        await pilot.press("1")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        stub.channels.append(channel("new", 1))
        await pilot.press("8")
        await until(pilot, lambda: "[Channels 4]" in screen_text(app))
        assert app.screen.watching is watching
        await pilot.press("8")
        stub.channels.append(channel("newer", 1))
        await until(pilot, lambda: "[Channels 5]" in screen_text(app))
        await pilot.press("end", "enter")
        await pilot.press("escape", "escape")
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize("count", others_slow([PAGE + 88, 10_000], [PAGE + 88]))
async def test_many_channels(count: int, browse: Callable[..., Any]) -> None:
    """All pages are turned, and keys are answered meanwhile."""
    with MonitoredServer() as server:
        server.channels = [
            channel(f"sensors.{n:05}", n, subscription(f"app-{n % 100}", "d", last_sent=n // 2)) for n in range(count)
        ]
        server.clients = [{"id": f"app-{n}", "hb_inbox": f"_INBOX.{n}", "subs_count": 100} for n in range(100)]

        async with browse(None, monitor=server.url) as pilot:
            app = pilot.app
            await until(pilot, lambda: f"[Channels {count:,}]" in screen_text(app), 60)
            await pilot.press("G")
            last = f"{count - 1:05}"
            assert f"sensors.{last}" in screen_text(app)
            await pilot.press("slash", *last[:-1], "enter")
            assert len(app.screen.rows) == 11
            await pilot.press("escape", "tab", "tab")
            assert f"[Subscriptions {count:,}]" in screen_text(app)
            rounds = app.screen.watching.monitor.revision
            await until(pilot, lambda: app.screen.watching.monitor.revision > rounds + 1, 60)
            await pilot.press("g", "enter")
            await until(pilot, lambda: isinstance(app.screen, LiveChannelScreen))
