"""What works everywhere: help, going places, the log of commands, unlocking, settings, a store that changes or goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.store.sample import SampleOptions, write_sample
from tests.tui.conftest import LARGE, SMALL, check_screen, notices, scanned, screen_text, until
from tui.keys import LIGHT, Settings

Browse = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy store with three channels, opened as `datastore`."""
    write_sample(tmp_path / "datastore", SampleOptions(channels=("orders.eu", "orders.us", "audit"), messages=40))
    monkeypatch.chdir(tmp_path)
    return Path("datastore")


def test_help_shows_the_bindings_that_work(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: "keys that work here" in screen_text(pilot.app))
        check_screen(pilot.app, "help-140")
        await pilot.press("escape")
        await until(pilot, lambda: "keys that work here" not in screen_text(pilot.app))

    browse(store, look, size=LARGE)


def test_a_remapped_key_works_and_is_in_the_help(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press("x")
        await until(pilot, lambda: "overview.sort" in screen_text(pilot.app))
        line = next(line for line in screen_text(pilot.app).splitlines() if "overview.sort" in line)
        assert " z " in line
        await pilot.press("escape", "z")
        await until(pilot, lambda: "messages▾" in screen_text(pilot.app))

    settings = Settings({"app.help": "x", "overview.sort": "z"})
    browse(store, look, size=LARGE, settings=settings)


def test_settings_that_cannot_be_used_are_told(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await until(pilot, lambda: "no binding nothing.such" in notices(pilot.app))
        assert "no theme pink" in notices(pilot.app)

    browse(store, look, size=LARGE, settings=Settings({"nothing.such": "x"}, "pink"))


def test_going_to_a_channel_and_back(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press("colon")
        await pilot.press(*"orders.us", "enter")
        await until(pilot, lambda: pilot.app.screen.place.channel == "orders.us")
        await pilot.press("colon", *"nowhere", "enter")
        await until(pilot, lambda: "no place in this view" in notices(pilot.app))
        await pilot.press("1")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)

    browse(store, look)


@pytest.mark.parametrize("view", range(2, 8))
def test_every_view_opens_by_its_number_and_closes_by_escape(view: int, store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press(str(view))
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
        await pilot.pause(0.2)
        assert pilot.app.screen.NAME in screen_text(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)

    browse(store, look)


def test_no_server_to_watch(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press("8")
        await until(pilot, lambda: "--monitor URL" in notices(pilot.app))
        assert len(pilot.app.screen_stack) == 1

    browse(store, look)


def test_the_log_of_commands(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press("at")
        await until(pilot, lambda: "stantools info datastore" in screen_text(pilot.app))
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.clipboard == "stantools info datastore")

    browse(store, look)


def test_unlocking_is_seen_in_every_view(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        assert screen_text(pilot.app).startswith(" READ ONLY")
        await pilot.press("W")
        await until(pilot, lambda: screen_text(pilot.app).startswith(" UNLOCKED"))
        await pilot.press("6")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
        assert screen_text(pilot.app).startswith(" UNLOCKED")
        await pilot.press("W")
        await until(pilot, lambda: screen_text(pilot.app).startswith(" READ ONLY"))

    browse(store, look)


def test_light_theme_from_the_settings_and_by_key(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        assert not pilot.app.current_theme.dark
        await pilot.press("ctrl+t")
        await until(pilot, lambda: pilot.app.current_theme.dark)

    browse(store, look, settings=Settings(theme=LIGHT))


def test_without_colors_nothing_is_colored(store: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def look(pilot: Any) -> None:
        strips = pilot.app.screen._compositor.render_strips()
        filtered = [
            s for strip in strips for s in strip.apply_filter(pilot.app._filters[0], pilot.app.background_colors[1])
        ]
        for segment in filtered:
            for color in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                assert color is None or len(set(color.get_truecolor())) == 1, segment
        assert "✓" in screen_text(pilot.app)

    browse(store, look)


def test_resize(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        assert "oldest" not in screen_text(pilot.app)
        await pilot.resize_terminal(*LARGE)
        await until(pilot, lambda: "oldest" in screen_text(pilot.app))
        await pilot.resize_terminal(40, 12)
        await pilot.pause()
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: "oldest" not in screen_text(pilot.app) and "orders.eu" in screen_text(pilot.app))

    browse(store, look)


def test_filter_and_sort(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press("slash", *"eu", "enter")
        await until(pilot, lambda: "audit" not in screen_text(pilot.app))
        assert "orders.eu" in screen_text(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: "audit" in screen_text(pilot.app))
        await pilot.press("S")
        await until(pilot, lambda: "channel▴" in screen_text(pilot.app))
        names = [line.split()[1] for line in screen_text(pilot.app).splitlines() if line.startswith(" ✓")]
        assert names == ["orders.us", "orders.eu", "audit"]

    browse(store, look)


def test_scanning_again_sees_what_has_changed(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        (store / "orders.eu" / "msgs.1.dat").write_bytes(b"\1\0\0\0" + bytes(range(200)))
        await pilot.press("R")
        await scanned(pilot)
        await until(pilot, lambda: "✗ orders.eu" in screen_text(pilot.app))
        shutil.rmtree(store / "audit")
        await pilot.press("R")
        await scanned(pilot)
        await until(pilot, lambda: "audit" not in screen_text(pilot.app))

    browse(store, look)


def test_a_store_that_is_gone(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        shutil.rmtree(store)
        await pilot.press("R")
        await until(pilot, lambda: "datastore" in notices(pilot.app))
        for view in "2345671":
            await pilot.press(view)
            await pilot.pause(0.2)
        assert pilot.app.is_running

    browse(store, look)


def test_leaving(store: Path, browse: Browse) -> None:
    async def look(pilot: Any) -> None:
        await pilot.press("q")
        await until(pilot, lambda: not pilot.app.is_running)

    browse(store, look)


def test_ten_thousand_channels(tmp_path: Path, browse: Browse) -> None:
    write_sample(tmp_path / "many", SampleOptions(channels=200, messages=1, subscriptions=False))
    model = next((tmp_path / "many").glob("*/"))
    for number in range(10_000):
        (tmp_path / "many" / f"extra.{number:05d}").mkdir()
    shutil.copytree(model, tmp_path / "many" / "extra.09999", dirs_exist_ok=True)

    async def look(pilot: Any) -> None:
        await until(
            pilot, lambda: "extra.00000" in screen_text(pilot.app) or "10,200 channels" in screen_text(pilot.app)
        )
        await pilot.press("G")
        await until(pilot, lambda: pilot.app.screen.channel is not None)
        await pilot.press("slash", *"extra.09998", "enter")
        await until(pilot, lambda: pilot.app.screen.channel == "extra.09998")
        assert pilot.app.session.job.running or pilot.app.session.scanned

    browse(tmp_path / "many", look, scan=False)


@pytest.mark.parametrize("name", ["\x1b[31mred\x1b[0m", "[bold]loud[/bold]", "abc\u202egnp.exe", "tab\there"])
def test_hostile_channel_names_are_shown_harmlessly(name: str, tmp_path: Path, browse: Browse) -> None:
    write_sample(tmp_path / "datastore", SampleOptions(channels=("good",), messages=5))
    shutil.copytree(tmp_path / "datastore" / "good", tmp_path / "datastore" / name)

    async def look(pilot: Any) -> None:
        text = screen_text(pilot.app)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "good" in text
        for fragment in ("red", "loud", "gnp", "here"):
            if fragment in name:
                assert fragment in text

    browse(tmp_path / "datastore", look)
