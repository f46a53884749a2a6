"""Running the browser without a terminal, and comparing what it shows with screens that are kept as text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stantools.store import locks

SCREENS = Path(__file__).parent / "golden"
#: Set to write the screens anew instead of comparing (make screens); look at the differences before a commit.
WRITE = "STANTOOLS_WRITE_SCREENS"
SMALL, LARGE = (80, 24), (140, 45)


def screen_text(app: Any) -> str:
    """Returns what is on the screen as plain text."""
    width, height = app.size
    console = Console(width=width, height=height, file=open(os.devnull, "w"), record=True, color_system=None)  # noqa: SIM115, PTH123
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    console.print(update)
    text = console.export_text()
    console.file.close()
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def check_screen(app: Any, name: str, *, masks: dict[str, str] | None = None) -> None:
    """Compares the screen with the one that is kept under a name.

    Args:
        app: The browser.
        name: Of the file in tests/tui/golden, without `.txt`.
        masks: Texts that differ between runs, and what stands for them in the file.
    """
    text = screen_text(app)
    for found, shown in (masks or {}).items():
        text = text.replace(found, shown.ljust(len(found)) if len(shown) < len(found) else shown)
    path = SCREENS / f"{name}.txt"
    if os.environ.get(WRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert path.exists(), f"{path} is missing; look at the screen and write it with {WRITE}=1:\n{text}"
    assert text == path.read_text(), f"{path.name} is not what is shown (rewrite with {WRITE}=1)"


def notices(app: Any) -> str:
    """Returns what the browser has told in the corner of the screen lately."""
    return "\n".join(each.message for each in app._notifications)


async def until(pilot: Any, condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Waits until something is so."""
    for _ in range(int(seconds / 0.05)):
        if pilot.app.failure is not None:
            raise pilot.app.failure
        if condition():
            break
        await pilot.pause(0.05)
    assert condition(), f"did not come true within {seconds} s; the screen:\n{screen_text(pilot.app)}"
    await pilot.pause()


async def scanned(pilot: Any) -> None:
    """Waits until everything is known of the store, and shown."""
    session = pilot.app.session
    await until(pilot, lambda: session.job is not None and not session.job.running)
    assert session.job.problem is None, session.job.problem
    await pilot.pause(0.25)


@pytest.fixture(autouse=True)
def _no_long_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that were just written are watched for a moment only."""
    for function in (locks.check_not_in_use, locks.find_uses):
        monkeypatch.setitem(function.__kwdefaults__, "quiet", 0.05)


@pytest.fixture
def browse() -> Callable[..., Any]:
    """Runs a scenario on a store: `browse(path, scenario, size=…)`; scenario(pilot) is a coroutine function.

    The browser is opened with the path as it is given: change the directory to have short ones on the screen.
    """

    def run(
        path: Path | str | None,
        scenario: Callable[[Any], Awaitable[None]],
        *,
        size: tuple[int, int] = SMALL,
        scan: bool = True,
        **options: Any,
    ) -> None:
        from tui.app import Browser
        from tui.session import StoreSession

        async def go() -> None:
            reading = options.pop("reading", None)
            session = StoreSession(Path(path), reading) if path is not None else None
            app = Browser(session, **options)
            async with app.run_test(size=size, notifications=True) as pilot:
                if session is not None and scan:
                    await scanned(pilot)
                await scenario(pilot)

        asyncio.run(go())

    return run
