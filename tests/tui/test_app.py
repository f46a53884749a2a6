"""What works everywhere: help, going places, the log of commands, unlocking, settings, a store that changes or goes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import others_slow
from tests.tui import conftest
from tests.tui.conftest import LARGE, SMALL, check_screen, idle, notices, scanned, screen_text, until
from tui.keys import LIGHT, KeySettings

Browse = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy store with three channels, opened as `datastore`."""
    write_sample(tmp_path / "datastore", SampleOptions(names=("orders.eu", "orders.us", "audit"), messages=40))
    monkeypatch.chdir(tmp_path)
    return Path("datastore")


async def test_help_shows_the_bindings_that_work(store: Path, browse: Browse) -> None:
    async with browse(store, size=LARGE) as pilot:
        await pilot.press("question_mark")
        await until(pilot, lambda: "active keys" in screen_text(pilot.app))
        await check_screen(pilot, "help-140")
        await pilot.press("escape")
        await until(pilot, lambda: "active keys" not in screen_text(pilot.app))


async def test_the_views_are_tabs(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:

        def tabs() -> str:
            return screen_text(pilot.app).splitlines()[1].strip()

        await until(pilot, lambda: "[1 overview]" in tabs())
        assert tabs() == "[1 overview] 2 messages 3 timeline 4 slices 5 subs 6 findings 7 plans 8 live"
        await pilot.click("#tabs", offset=(tabs().index("6 findings") + 3, 0))
        await until(pilot, lambda: "[6 findings]" in tabs())
        await pilot.press("1", "enter")
        await until(pilot, lambda: "[2 messages]" in tabs())
        await pilot.resize_terminal(50, 24)
        await until(pilot, lambda: tabs() == "1 [2 messages] 3 4 5 6 7 8")
        await pilot.resize_terminal(*LARGE)
        await until(pilot, lambda: "5 subscriptions  6 findings" in tabs())


@pytest.mark.parametrize("size", others_slow([(SMALL,), (LARGE,)], [SMALL]), ids=["small", "large"])
async def test_every_view_opens_by_its_number_and_closes_by_escape(
    size: tuple[int, int], store: Path, browse: Browse
) -> None:
    """The keys that work everywhere are at the bottom."""
    async with browse(store, size=size) as pilot:
        everywhere = ": Go to  @ Commands  W Lock/unlock  q Quit  ? Help"
        for view in "1234567":
            await pilot.press(view)
            await until(pilot, lambda view=view: f"[{view} " in screen_text(pilot.app))
            assert screen_text(pilot.app).splitlines()[-1].endswith(everywhere)
            if view != "1":
                assert len(pilot.app.screen_stack) == 2
                assert pilot.app.screen.NAME in screen_text(pilot.app)
                await pilot.press("escape")
                await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
        await pilot.click(offset=(screen_text(pilot.app).splitlines()[-1].index("@ "), size[1] - 1))
        await until(pilot, lambda: "the same on the command line" in screen_text(pilot.app))


async def test_keys_that_a_field_takes_are_not_shown_as_working(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        before = screen_text(pilot.app).splitlines()
        await pilot.press("slash")
        await until(pilot, lambda: "Go to" not in screen_text(pilot.app))
        assert screen_text(pilot.app).splitlines()[1] == before[1]
        assert "Commands" not in screen_text(pilot.app)
        await pilot.press("6", "@")
        assert pilot.app.screen.query_one("#filter").value == "6@"
        await pilot.press("escape")
        await until(pilot, lambda: screen_text(pilot.app).splitlines()[-1] == before[-1])
        await pilot.resize_terminal(20, 8)
        await pilot.pause()
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: screen_text(pilot.app).splitlines() == before)


async def test_the_store_has_a_name_at_the_top_however_long_its_path_is(tmp_path: Path, browse: Browse) -> None:
    place = tmp_path / ("d" * 100) / "shop"
    place.parent.mkdir()
    write_sample(place, SampleOptions(names=("c" * 90,), messages=2, damage=("flipped-length",)))

    async with browse(place) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "[2 messages]" in screen_text(pilot.app))
        top = screen_text(pilot.app).splitlines()[0]
        assert top.startswith(" READ ONLY shop › messages › cccc")
        assert "… " in top
        assert "✗" in top
        await pilot.resize_terminal(140, 45)
        await pilot.press("1")
        await until(pilot, lambda: "ddddd" in screen_text(pilot.app))


async def test_a_remapped_key_works_and_is_in_the_help(store: Path, browse: Browse) -> None:
    """What cannot be used of the settings is told, the rest is used."""
    keys = {"app.help": "x", "overview.sort": "z", "view.findings": "f6", "nothing.such": "x"}
    async with browse(store, size=LARGE, settings=KeySettings(keys, "pink")) as pilot:
        await until(pilot, lambda: "unknown binding nothing.such" in notices(pilot.app))
        assert "unknown theme pink" in notices(pilot.app)
        await until(pilot, lambda: "f6 findings" in screen_text(pilot.app).splitlines()[1])
        await pilot.press("x")
        await until(pilot, lambda: "overview.sort" in screen_text(pilot.app))
        line = next(line for line in screen_text(pilot.app).splitlines() if "overview.sort" in line)
        assert " z " in line
        await pilot.press("escape", "z")
        await until(pilot, lambda: "messages▾" in screen_text(pilot.app))


async def test_going_to_a_channel_and_back(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        await pilot.press("colon")
        await pilot.press(*"orders.us", "enter")
        await until(pilot, lambda: pilot.app.screen.place.channel == "orders.us")
        await pilot.press("colon", *"nowhere", "enter")
        await until(pilot, lambda: "not a place in this view" in notices(pilot.app))
        await pilot.press("1")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


async def test_live_asks_for_a_url(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        await pilot.press("8")
        await until(pilot, lambda: "URL of a running server" in screen_text(pilot.app))
        await pilot.press("escape", "8", *"ftp://x", "enter")
        await until(pilot, lambda: "monitoring uses HTTP" in screen_text(pilot.app))
        await pilot.press("ctrl+u", *"http://127.0.0.1:1", "enter")
        await until(pilot, lambda: pilot.app.screen.NAME == "live")
        await until(pilot, lambda: "http://127.0.0.1:1" in screen_text(pilot.app))
        await pilot.press("at")
        await until(pilot, lambda: "--monitor http://127.0.0.1:1" in screen_text(pilot.app))


async def test_what_a_prompt_accepts_is_shown_in_full_in_a_small_terminal(store: Path, browse: Browse) -> None:
    async with browse(store, size=SMALL) as pilot:
        await pilot.press("8")
        await until(pilot, lambda: "nats://localhost:4222" in screen_text(pilot.app))
        await pilot.press("escape", "2", "colon")
        await until(pilot, lambda: "tab completes" in " ".join(screen_text(pilot.app).split()))
        await pilot.press("escape", "slash")
        await until(pilot, lambda: "N previous" in " ".join(screen_text(pilot.app).split()))


async def test_a_screenshot_is_written_outside_of_the_store(
    store: Path, browse: Browse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browse(store) as pilot:
        await pilot.press("2", "ctrl+s")
        await until(pilot, lambda: list(tmp_path.glob("stantools-messages-*.svg")))
        assert "audit" in next(tmp_path.glob("*.svg")).read_text()
        await pilot.press("colon", *"screenshot a.svg", "enter")
        await until(pilot, lambda: (tmp_path / "a.svg").exists())
        kept = (tmp_path / "a.svg").read_bytes()
        await pilot.press("3", "colon", *"screenshot a.svg", "enter")
        await until(pilot, lambda: "choose another name" in notices(pilot.app))
        assert (tmp_path / "a.svg").read_bytes() == kept
        await pilot.press("colon", *"screenshot datastore/a.svg", "enter")
        await until(pilot, lambda: "only read" in notices(pilot.app))
        assert not (store / "a.svg").exists()
        (tmp_path / "loop").symlink_to("loop")
        for name, problem in (("~nobody.here/a.svg", "no home directory"), ("loop/a.svg", "no such directory")):
            await pilot.press("colon", *f"screenshot {name}", "enter")
            await until(pilot, lambda problem=problem: problem in notices(pilot.app))


@pytest.mark.parametrize(("view", "size"), [("2", (120, 20)), ("6", (80, 24))])
async def test_panes_are_resized_and_stay_so(view: str, size: tuple[int, int], store: Path, browse: Browse) -> None:
    def extent(pilot: object) -> int:
        screen = pilot.app.screen  # type: ignore[attr-defined]
        pane = screen.query_one("#message-detail" if view == "2" else "TablePane > VerticalScroll")
        return int(pane.outer_size.width if size[0] > 100 else pane.outer_size.height)

    async with browse(store, size=size) as pilot:
        await pilot.press(view)
        before = extent(pilot)
        await pilot.press("less_than_sign", "less_than_sign")
        await until(pilot, lambda: extent(pilot) > before)
        larger = extent(pilot)
        await pilot.press("1", view)
        await until(pilot, lambda: extent(pilot) == larger)

        async def to_an_end(key: str) -> int:
            """Presses a key until it has no effect any more."""
            found = -1
            while found != extent(pilot):
                found = extent(pilot)
                await pilot.press(key, key)
            return found

        assert 0 < await to_an_end("greater_than_sign") < before
        assert pilot.app.screen.table.size.width > 10
        assert await to_an_end("less_than_sign") >= larger
        assert min(pilot.app.screen.table.size) >= 3


async def test_the_log_of_commands(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        await pilot.press("at")
        await until(pilot, lambda: "stantools info datastore" in screen_text(pilot.app))
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.clipboard == "stantools info datastore")


async def test_unlocking_is_seen_in_every_view(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        assert screen_text(pilot.app).startswith(" READ ONLY")
        await pilot.press("W")
        await until(pilot, lambda: screen_text(pilot.app).startswith(" UNLOCKED"))
        await pilot.press("6")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
        assert screen_text(pilot.app).startswith(" UNLOCKED")
        await pilot.press("W")
        await until(pilot, lambda: screen_text(pilot.app).startswith(" READ ONLY"))


async def test_light_theme_from_the_settings_and_by_key(store: Path, browse: Browse) -> None:
    async with browse(store, settings=KeySettings(theme=LIGHT)) as pilot:
        assert not pilot.app.current_theme.dark
        await pilot.press("ctrl+t")
        await until(pilot, lambda: pilot.app.current_theme.dark)


async def test_without_colors_nothing_is_colored(store: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async with browse(store) as pilot:
        strips = pilot.app.screen._compositor.render_strips()
        filtered = [
            s for strip in strips for s in strip.apply_filter(pilot.app._filters[0], pilot.app.background_colors[1])
        ]
        for segment in filtered:
            for color in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                assert color is None or len(set(color.get_truecolor())) == 1, segment
        assert "✓" in screen_text(pilot.app)


async def test_resize(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        assert "oldest" not in screen_text(pilot.app)
        await pilot.resize_terminal(*LARGE)
        await until(pilot, lambda: "oldest" in screen_text(pilot.app))
        await pilot.resize_terminal(40, 12)
        await pilot.pause()
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: "oldest" not in screen_text(pilot.app) and "orders.eu" in screen_text(pilot.app))


async def test_filter_and_sort(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        await pilot.press("slash", *"eu", "enter")
        await until(pilot, lambda: "audit" not in screen_text(pilot.app))
        assert "orders.eu" in screen_text(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: "audit" in screen_text(pilot.app))
        await pilot.press("S")
        await until(pilot, lambda: "channel▴" in screen_text(pilot.app))
        names = [line.split()[1] for line in screen_text(pilot.app).splitlines() if line.startswith(" ✓")]
        assert names == ["orders.us", "orders.eu", "audit"]


async def test_scanning_again_sees_what_has_changed(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        (store / "orders.eu" / "msgs.1.dat").write_bytes(b"\1\0\0\0" + bytes(range(200)))
        await pilot.press("R")
        await scanned(pilot)
        await until(pilot, lambda: "✗ orders.eu" in screen_text(pilot.app))
        shutil.rmtree(store / "audit")
        await pilot.press("R")
        await scanned(pilot)
        await until(pilot, lambda: "audit" not in screen_text(pilot.app))


async def test_a_store_that_is_gone(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        shutil.rmtree(store)
        await pilot.press("R")
        await until(pilot, lambda: "datastore" in notices(pilot.app))
        for view in "2345671":
            await pilot.press(view)
            await idle(pilot)
        assert pilot.app.is_running


async def test_leaving(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        await pilot.press("q")
        await until(pilot, lambda: not pilot.app.is_running)


@pytest.mark.parametrize("count", others_slow([300, 10_000], [300]))
async def test_many_channels(count: int, tmp_path: Path, browse: Browse) -> None:
    write_sample(tmp_path / "many", SampleOptions(channels=20, messages=1, no_subscriptions=True))
    model = next((tmp_path / "many").glob("*/"))
    for number in range(count):
        (tmp_path / "many" / f"extra.{number:05d}").mkdir()
    shutil.copytree(model, tmp_path / "many" / f"extra.{count - 1:05d}", dirs_exist_ok=True)

    async with browse(tmp_path / "many", scan=False) as pilot:
        await until(
            pilot,
            lambda: "extra.00000" in screen_text(pilot.app) or f"{count + 20:,} channels" in screen_text(pilot.app),
        )
        await pilot.press("G")
        await until(pilot, lambda: pilot.app.screen.channel is not None)
        last = f"extra.{count - 2:05d}"
        await pilot.press("slash", *last, "enter")
        await until(pilot, lambda: pilot.app.screen.channel == last)
        assert pilot.app.session.job.running or pilot.app.session.scanned


async def test_hostile_channel_names_are_shown_harmlessly(tmp_path: Path, browse: Browse) -> None:
    write_sample(tmp_path / "datastore", SampleOptions(names=("good",), messages=5))
    for name in ("\x1b[31mred\x1b[0m", "[bold]loud[/bold]", "abc\u202egnp.exe", "tab\there"):
        shutil.copytree(tmp_path / "datastore" / "good", tmp_path / "datastore" / name)

    async with browse(tmp_path / "datastore") as pilot:
        text = screen_text(pilot.app)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\t" not in text
        for fragment in ("good", "red", "[bold]loud", "gnp", "here"):
            assert fragment in text


@pytest.mark.parametrize("kept", [None, "whole\n", "old\n"])
async def test_a_screen_is_written_when_it_is_laid_out(
    kept: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Laying:
        """A pilot of a browser that lays out its screen in three steps."""

        app, steps = None, 0

        async def pause(self, _delay: float) -> None:
            self.steps += 1

    pilot = Laying()
    monkeypatch.setattr(conftest, "SCREENS", tmp_path)
    monkeypatch.setattr(conftest, "screen_text", lambda _app: "whole\n" if pilot.steps > 2 else "half\n")
    monkeypatch.setenv(conftest.WRITE, "1")
    path = tmp_path / "name.txt"
    if kept:
        path.write_text(kept)
        os.utime(path, (1, 1))
    await check_screen(pilot, "name")
    assert path.read_text() == "whole\n"
    assert (path.stat().st_mtime == 1) == (kept == "whole\n")
