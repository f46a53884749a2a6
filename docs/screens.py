"""Writes the pictures of the browser that the README and the TUI guide show.

    python docs/screens.py            (or: make screens)

Each picture is made of the running browser, on stores that are written for it: a healthy one and a damaged one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shopstore import write_shop

from tui.app import Browser
from tui.store_session import StoreSession
from tui.views import View, ViewTarget

PICTURES = Path(__file__).parent / "screens"
SIZE = (112, 32)
_DAMAGE = ("flipped-length", "zero-tail", "cut-subs")


class _Room(NamedTuple):
    total: int = 500 << 30
    used: int = 376 << 30
    free: int = 124 << 30


Scenario = Callable[[Any], Awaitable[None]]


@contextlib.contextmanager
def shops() -> Iterator[Path]:
    """Writes the stores into a directory, as `healthy/datastore` and `damaged/datastore`, and removes it in the end."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, damage in (("healthy", ()), ("damaged", _DAMAGE)):
            Path(folder, kind).mkdir()
            write_shop(Path(folder, kind, "datastore"), damage=damage)
        # The same room on every machine that makes the pictures.
        shutil.disk_usage = lambda _path: _Room()  # type: ignore[assignment]
        yield Path(folder)
        os.chdir("/")


@contextlib.asynccontextmanager
async def browsing(path: Path) -> AsyncIterator[Any]:
    """Opens a store in the browser; yields its pilot when everything is known of the store."""
    async with Browser(StoreSession(path)).run_test(size=SIZE) as pilot:
        await settle(pilot)
        yield pilot


async def settle(pilot: Any) -> None:
    """Waits until everything is known and drawn, and no note is in the corner any more."""
    session = pilot.app.session
    for _ in range(600):
        screen = pilot.app.screen
        busy = getattr(screen, "working", False)
        if (session is None or (session.job is not None and not session.job.running)) and not busy:
            break
        await pilot.pause(0.05)
    # On a busy machine the screen may be drawn late.
    shown: list[str] = []
    while len(shown) < 60 and (len(shown) < 3 or len(set(shown[-3:])) > 1):
        await pilot.pause(0.4)
        shown.append(pilot.app.export_screenshot())


def _view(view: View, place: ViewTarget, *keys: str) -> Scenario:
    async def go(pilot: Any) -> None:
        pilot.app.open_view(view, place)
        await settle(pilot)
        await pilot.press(*keys)
        await settle(pilot)

    return go


async def _damaged_record(pilot: Any) -> None:
    """Goes to the bytes of the first record that is damaged."""
    found = next(each for each in pilot.app.session.findings() if each.code.startswith("slice-bad"))
    pilot.app.open_view(View.SLICES, ViewTarget(channel=found.channel, file=found.file, offset=found.offset))
    await settle(pilot)


async def _nothing(pilot: Any) -> None:
    """Shows what the browser opens with."""


#: Picture -> whether the store is damaged, and how to come to what it shows.
SCENES: dict[str, tuple[bool, Scenario]] = {
    "overview": (True, _nothing),
    "messages": (True, _view(View.MESSAGES, ViewTarget(channel="orders", seq=8112), "enter")),
    "timeline": (False, _view(View.TIMELINE, ViewTarget(channel="orders"))),
    "slices": (True, _damaged_record),
    "subscriptions": (False, _view(View.SUBSCRIPTIONS, ViewTarget(channel="orders"))),
    "findings": (True, _view(View.FINDINGS, ViewTarget())),
    "plans": (True, _view(View.PLANS, ViewTarget(plan="salvage"), "enter")),
}


async def _picture(path: Path, scenario: Scenario) -> str:
    async with browsing(path) as pilot:
        await scenario(pilot)
        return _plain(pilot.app.export_screenshot(title=f"stantools tui {path}"))


def _plain(svg: str) -> str:
    """Leaves out the fonts that a viewer would fetch from elsewhere."""
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: (?:Fira Code|arial)[^;]*;", "font-family: monospace;", svg)
    return svg.replace("<!-- Generated with Rich https://www.textualize.io -->\n", "").strip() + "\n"


def main(names: list[str]) -> None:
    """Writes the pictures with these names, or all."""
    PICTURES.mkdir(exist_ok=True)
    unknown = [name for name in names if name not in SCENES]
    if unknown:
        sys.exit(f"there is no picture {unknown[0]}; there are: {', '.join(SCENES)}")
    with shops() as place:
        for name, (damaged, scenario) in SCENES.items():
            if names and name not in names:
                continue
            os.chdir(place / ("damaged" if damaged else "healthy"))
            svg = asyncio.run(_picture(Path("datastore"), scenario))
            (PICTURES / f"{name}.svg").write_text(svg)
            print(f"wrote {PICTURES.name}/{name}.svg")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
