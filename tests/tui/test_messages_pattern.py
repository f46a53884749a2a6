"""A search for a pattern that takes forever: the browser goes on, and the search can be cancelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tui.conftest import until
from tests.tui.test_messages import line, opened, row_now, type_text, write_channel
from tui.views import ViewTarget


async def test_a_pattern_that_takes_forever(tmp_path: Path, browse: Callable[..., Any]) -> None:
    write_channel(tmp_path / "store", [b"a" * 60 + b"!"] * 3)

    async with opened(browse(tmp_path / "store"), ViewTarget(channel="one")) as (pilot, screen):
        await pilot.press("slash")
        await type_text(pilot, "r:^(a+)+$")
        await until(pilot, lambda: "searching" in line(screen))
        for sequence in (2, 3):
            await pilot.press("down")
            await until(pilot, lambda wanted=sequence: row_now(screen).sequence == wanted)
        assert "searching" in line(screen)
        await pilot.press("escape")
        await until(pilot, lambda: "cancelled" in line(screen))
        assert pilot.app.screen is screen
