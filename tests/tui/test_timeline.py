"""The timeline: what it shows, and getting about in it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.notation import span_text, tick_text
from tests.conftest import others_slow
from tests.inspection.timedstores import DAY, NOW, SECOND, YEAR, write_channel
from tests.tui.conftest import LARGE, SMALL, check_screen, notices, screen_text, until
from tui.screens.timeline import TimelineScreen
from tui.views import View, ViewTarget
from tui.widgets.plot import Plot


async def opened(pilot: Any, channel: str, **place: Any) -> TimelineScreen:
    """Opens the timeline and waits until it has been read."""
    pilot.app.open_view(View.TIMELINE, ViewTarget(channel=channel, **place))
    await until(pilot, lambda: isinstance(pilot.app.screen, TimelineScreen) and pilot.app.screen.is_mounted)
    screen: TimelineScreen = pilot.app.screen
    await settled(pilot, screen)
    return screen


async def settled(pilot: Any, screen: TimelineScreen) -> None:
    """Waits until nothing is read any more and the keys are at the bottom."""
    await pilot.pause()
    await until(pilot, lambda: not screen.working and "Quit" in screen_text(pilot.app).splitlines()[-1])
    await pilot.pause()


async def press(pilot: Any, screen: TimelineScreen, *keys: str) -> None:
    await pilot.press(*keys)
    await settled(pilot, screen)


def values(screen: TimelineScreen) -> list[float]:
    return list(screen.query_one(Plot).bars.values)


def cursor_line(pilot: Any) -> str:
    """What is said of the bucket at the cursor."""
    return " ".join(screen_text(pilot.app).splitlines()[-4:-2])


@pytest.mark.parametrize(
    ("case", "channel"),
    others_slow(
        [
            ("basic", "foo"),
            ("dmg_middle_slice_missing", "alpha"),
            ("dmg_crc_flip_idx_intact", "alpha"),
            ("dmg_payload_flip_noidx", "alpha"),
            ("gap_truncated_slice", "gapcut"),
        ],
        # `test_resize` and `test_without_colors` show the first two.
        ("dmg_payload_flip_noidx",),
    ),
)
async def test_golden(
    case: str,
    channel: str,
    golden: Path,
    browse: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(golden / case)
    async with browse("datastore") as pilot:
        screen = await opened(pilot, channel)
        if case != "basic":
            await press(pilot, screen, "n")
        await check_screen(pilot, f"timeline-{case}-80")


async def test_before_the_scan(tmp_path: Path, browse: Callable[..., Any]) -> None:
    """It needs no scan, and says that the scan is not complete."""

    async with browse(write_channel(tmp_path, [NOW + n * SECOND for n in range(50)])) as pilot:
        pilot.app.session.channels["c"].survey = None
        screen = await opened(pilot, "c")
        assert sum(values(screen)) == 50
        assert "the scan is not complete" in screen_text(pilot.app)


async def test_zoom_and_pan(tmp_path: Path, browse: Callable[..., Any]) -> None:
    times = [NOW + n * SECOND // 4 + (n % 7) * 1000 for n in range(5000)]

    async with browse(write_channel(tmp_path, times)) as pilot:
        screen = await opened(pilot, "c")
        plot = screen.query_one(Plot)
        assert sum(values(screen)) == len(times)
        widths = []
        await press(pilot, screen, "g", *"lllll")
        for _ in range(9):
            widths.append(plot.bars.width)
            await press(pilot, screen, "plus")
        assert widths == sorted(set(widths), reverse=True)
        bars = plot.bars
        counted = [
            sum(bars.start + n * bars.width <= t < bars.start + (n + 1) * bars.width for t in times)
            for n in range(len(bars.values))
        ]
        assert list(bars.values) == counted and sum(counted) > 0
        start = bars.start
        await press(pilot, screen, "L")
        assert plot.bars.start > start
        await press(pilot, screen, "H")
        assert plot.bars.start == start
        for _ in range(9):
            await press(pilot, screen, "minus")
        assert sum(values(screen)) == len(times)
        await press(pilot, screen, "plus", "plus", "0")
        assert sum(values(screen)) == len(times)
        await press(pilot, screen, "G")
        assert screen.query_one(Plot).bars.cursor == len(values(screen)) - 1
        assert re.search(r"\b5000\b", cursor_line(pilot))


async def test_cursor_and_messages(tmp_path: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened_views: list[Any] = []

    async with browse(write_channel(tmp_path, [NOW + n * SECOND for n in range(60)])) as pilot:
        screen = await opened(pilot, "c")
        await press(pilot, screen, "right", "l", "h")
        bars = screen.query_one(Plot).bars
        assert bars.cursor == 1
        monkeypatch.setattr(pilot.app, "open_view", lambda *args, **more: opened_views.append((args, more)))
        await pilot.press("enter")
        await pilot.pause()
        when = bars.start + bars.width
        assert opened_views == [((View.MESSAGES, ViewTarget(channel="c", timestamp=when)), {"above": True})]


async def test_mouse(tmp_path: Path, browse: Callable[..., Any]) -> None:
    async with browse(write_channel(tmp_path, [NOW + n * SECOND for n in range(30)])) as pilot:
        screen = await opened(pilot, "c")
        plot = screen.query_one(Plot)
        await pilot.click(Plot, offset=(7 + 3 * plot.edges[1], 2))
        await settled(pilot, screen)
        assert plot.bars.cursor == 3


async def test_units(tmp_path: Path, browse: Callable[..., Any]) -> None:
    payloads = [b"x" * 10] * 9 + [b"y" * 900]

    async with browse(write_channel(tmp_path, [NOW + n * SECOND for n in range(10)], payloads=payloads)) as pilot:
        screen = await opened(pilot, "c")
        assert values(screen)[0] == 1
        await press(pilot, screen, "b")
        assert "bytes per" in screen_text(pilot.app) and values(screen)[-1] > 900
        await press(pilot, screen, "b")
        assert "mean size per" in screen_text(pilot.app)
        await press(pilot, screen, "b")
        assert "messages per" in screen_text(pilot.app)


async def test_going_to_times_and_sequences(tmp_path: Path, browse: Callable[..., Any]) -> None:
    times = [NOW + n * 60 * SECOND for n in range(3000)]

    async with browse(write_channel(tmp_path, times)) as pilot:
        screen = await opened(pilot, "c")
        go = pilot.app.go_to

        async def at(text: str) -> int:
            assert go(text) == ""
            await settled(pilot, screen)
            shown = screen.query_one(Plot).bars
            return shown.start + shown.cursor * shown.width

        width = screen.query_one(Plot).bars.width
        assert await at("50%") == (times[0] + (times[-1] - times[0]) // 2) // width * width
        assert await at("100") == times[99] // width * width
        middle = span_text(times[1500], times[1500], SECOND)[:19]
        assert await at(middle) == times[1500] // width * width
        assert await at(middle[11:16]) // DAY == times[1500] // DAY
        # What lies before and behind all messages is their beginning and end.
        assert await at("1990-01-01") == times[0] // width * width
        assert "neither a time" in go("2026-xx")
        assert "03:00" in screen.go_to_hint()
        await pilot.press("colon", *"10%", "enter")
        await until(pilot, lambda: pilot.app.screen is screen)
        await settled(pilot, screen)
        assert screen.query_one(Plot).bars.cursor < 10
        assert await at("999999") == times[-1] // width * width


async def test_opened_at_a_place(tmp_path: Path, browse: Callable[..., Any]) -> None:
    async with browse(write_channel(tmp_path, [NOW + n * SECOND for n in range(60)])) as pilot:
        for place in ({"seq": 31}, {"timestamp": NOW + 30 * SECOND}):
            screen = await opened(pilot, "c", **place)
            bars = screen.query_one(Plot).bars
            assert bars.start + bars.cursor * bars.width == NOW + 30 * SECOND
            pilot.app.close_views()
            await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


@pytest.mark.parametrize(
    ("kind", "times", "words"),
    others_slow(
        [
            ("none", [], ["no messages"]),
            ("one", [NOW], ["1 message,", "all at 2026", "sequence 1"]),
            ("one nanosecond", [NOW] * 90, ["90 messages,", "all at 2026", "sequences 1 to 90"]),
            (
                "ten years",
                [NOW - 10 * YEAR + n * YEAR for n in range(11)],
                ["11 messages", "2016-", "2026-", "per 90 d"],
            ),
            ("since 1970", [1, 2, 3], ["3 messages", "1970-01-01 00:00:00.000000001"]),
            ("all times", [-(2**63), 2**63 - 1], ["2 messages", "1677-09-21"]),
        ],
        ("none", "one nanosecond", "all times"),
    ),
)
async def test_unusual_times(
    kind: str, times: list[int], words: list[str], tmp_path: Path, browse: Callable[..., Any]
) -> None:
    async with browse(write_channel(tmp_path, times)) as pilot:
        screen = await opened(pilot, "c")
        for word in words:
            assert word in screen_text(pilot.app), screen_text(pilot.app)
        assert sum(values(screen)) == len(times)
        # Whatever is pressed, it holds.
        await press(pilot, screen, *["plus", "plus", "right", "minus", "L", "H", "n", "N", "G", "g", "0", "b"])
        await press(pilot, screen, *["plus"] * 20)


async def test_damaged_times_do_not_break_the_scale(tmp_path: Path, browse: Callable[..., Any]) -> None:
    times = [NOW + n * SECOND for n in range(200)]
    times[50], times[120], times[150] = -6795364578871345152, 2**63 - 1, times[149] - 5

    async with browse(write_channel(tmp_path, times)) as pilot:
        screen = await opened(pilot, "c")
        text = screen_text(pilot.app)
        assert "2 times far outside (1754-08-30, 2262-04-11)" in text
        assert "3 out of order" in text
        assert sum(values(screen)) == 198
        # The scale can be left to look at them.
        assert pilot.app.go_to("2262-04-11") == ""
        await settled(pilot, screen)
        assert pilot.app.go_to("2263-01-01") == ""
        await settled(pilot, screen)
        assert "2262-04-11" in cursor_line(pilot) and "sequence 121" in cursor_line(pilot)
        await press(pilot, screen, "0")
        assert sum(values(screen)) == 198


async def test_resize(golden: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "basic")
    async with browse("datastore") as pilot:
        screen = await opened(pilot, "foo")
        assert pilot.app.commands[-1].startswith("stantools messages ")
        total = sum(values(screen))
        await pilot.resize_terminal(*LARGE)
        await settled(pilot, screen)
        assert sum(values(screen)) == total
        await check_screen(pilot, "timeline-basic-140")
        await pilot.resize_terminal(30, 10)
        await pilot.pause()
        await until(pilot, lambda: not screen.working)
        await pilot.resize_terminal(*SMALL)
        await settled(pilot, screen)
        await press(pilot, screen, "0")
        await check_screen(pilot, "timeline-basic-80")


async def test_a_store_that_vanishes(tmp_path: Path, browse: Callable[..., Any]) -> None:
    store = write_channel(tmp_path / "store", [NOW + n * SECOND * 3600 for n in range(5000)])

    async with browse(store) as pilot:
        screen = await opened(pilot, "c")
        shutil.rmtree(store)
        for _ in range(15):
            await press(pilot, screen, "plus")
        assert "cannot be read" in notices(pilot.app)
        await press(pilot, screen, "0")
        assert sum(values(screen)) == 5000
        again = await opened(pilot, "c")
        assert "cannot be listed" in " ".join(screen_text(pilot.app).split())
        await press(pilot, again, "plus", "L", "n", "enter", "0")


async def test_an_unreadable_slice(tmp_path: Path, browse: Callable[..., Any]) -> None:
    store = write_channel(tmp_path / "store", [NOW + n * SECOND for n in range(40)], each=20)
    for name in ("msgs.1.dat", "msgs.1.idx"):
        (store / "c" / name).unlink()
    (store / "c" / "msgs.1.dat").mkdir()

    async with browse(store) as pilot:
        screen = await opened(pilot, "c")
        assert sum(values(screen)) == 20


async def test_without_colors(golden: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text: what is missing, silent or damaged has a symbol, and so has the cursor."""

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(golden / "dmg_middle_slice_missing")
    async with browse("datastore") as pilot:
        assert pilot.app.no_color
        screen = await opened(pilot, "alpha")
        await press(pilot, screen, "n")
        await check_screen(pilot, "timeline-dmg_middle_slice_missing-80")
        text = screen_text(pilot.app)
        marks = next(line for line in text.splitlines() if "----" in line)
        assert "!" in marks and "·" in marks and "▲" in text


async def test_scan_results_are_taken_over(golden: Path, browse: Callable[..., Any]) -> None:
    """Opened before the scan has come to the channel, it shows what the scan has found once it has."""

    async with browse(golden / "dmg_crc_flip_idx_intact" / "datastore") as pilot:
        facts = pilot.app.session.channels["alpha"]
        survey, facts.survey = facts.survey, None
        screen = await opened(pilot, "alpha")
        assert "damaged" not in screen_text(pilot.app)
        facts.survey = survey
        pilot.app.session.touch()
        await until(pilot, lambda: "✗ 1 damaged" in screen_text(pilot.app))
        await settled(pilot, screen)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, "5.678901234"),
        (1000, "05.678901"),
        (10**6, "05.678"),
        (SECOND, "03:04:05"),
        (60 * SECOND, "03:04"),
        (DAY, "2026-11-21"),
    ],
)
def test_tick_texts(step: int, expected: str) -> None:
    time = 1795230245 * SECOND + 678901234
    assert expected in tick_text(time, step) or tick_text(time, step) in "05.678901234"
    assert tick_text(2**70, step) == "?"
