"""Keys that arrive faster than the screen changes: each has the effect that it has after a pause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import Input

from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import others_slow
from tests.tui.conftest import key_event, notices, screen_text, until

Browse = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_sample(tmp_path / "datastore", SampleOptions(names=("audit", "orders.eu", "orders.us"), messages=300))
    return tmp_path / "datastore"


def burst(pilot: Any, text: str) -> None:
    """All keys arrive at once, as from a slow line; ⏎ is Enter, ⎋ Escape, ⇥ Tab."""
    names = {"⏎": "enter", "⎋": "escape", "⇥": "tab"}
    for each in text:
        pilot.app.post_message(key_event(names.get(each, each)))


def place(pilot: Any) -> tuple[str, str | None, str]:
    """The view, its channel, and the text of the field with the focus."""
    screen, field = pilot.app.screen, pilot.app.focused
    return getattr(screen, "NAME", "dialog"), getattr(screen, "channel", None), getattr(field, "value", "")


@pytest.mark.parametrize(
    ("keys", "seen", "shown"),
    others_slow(
        [
            ("/125", ("", None, "125"), "part of"),
            ("/us⏎", ("", "orders.us", ""), "orders.us"),
            (":orders.us⏎:125⏎", ("messages", "orders.us", ""), "row 125 of"),
            (":orders.us 125⏎", ("messages", "orders.us", ""), "row 125 of"),
            (":orders.us 125⏎1", ("", "audit", ""), "[1 overview]"),
            ("⏎/order⏎n", ("messages", "audit", ""), "found: order"),
            (":or⇥us⏎", ("messages", "orders.us", ""), "row 1 of"),
            ("2:5⏎", ("messages", "audit", ""), "row 5 of"),
            ("6/slice⏎1jj", ("", "orders.us", ""), "[1 overview]"),
            ("@⎋?⎋3", ("timeline", "audit", ""), "[3 timeline]"),
        ],
        ("/125", "/us⏎", ":orders.us 125⏎1", "⏎/order⏎n", ":or⇥us⏎", "6/slice⏎1jj", "@⎋?⎋3"),
    ),
)
async def test_keys_typed_ahead(
    keys: str, seen: tuple[str, str | None, str], shown: str, store: Path, browse: Browse
) -> None:
    async with browse(store) as pilot:
        burst(pilot, keys)
        await until(pilot, lambda: place(pilot) == seen)
        if shown != "part of":
            await until(pilot, lambda: shown in screen_text(pilot.app))
        if keys.startswith("/"):
            assert len(pilot.app.screen_stack) == 1


async def test_a_text_pasted_after_a_key_goes_into_the_field(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        burst(pilot, ":")
        pilot.app.post_message(events.Paste("orders.eu 7"))
        burst(pilot, "⏎")
        await until(pilot, lambda: "row 7 of" in screen_text(pilot.app))


async def test_a_burst_of_moves_ends_where_single_moves_do(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        burst(pilot, "2" + "j" * 40 + "k")
        await until(pilot, lambda: "row 40 of" in screen_text(pilot.app))


async def test_a_place_in_a_channel_that_does_not_exist(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        burst(pilot, ":orders.eu nowhere⏎")
        await until(pilot, lambda: "nowhere: not a place in messages" in notices(pilot.app))


async def test_names_that_begin_like_the_typed_text_are_shown(store: Path, browse: Browse) -> None:
    async with browse(store) as pilot:
        burst(pilot, ":or⇥")
        await until(pilot, lambda: "orders.eu  orders.us" in screen_text(pilot.app))
        assert pilot.app.screen.query_one(Input).value == "orders."
