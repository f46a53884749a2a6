"""Running the browser without a terminal, and comparing what it shows with screens that are kept as text."""

from __future__ import annotations

import asyncio
import contextlib
import os
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from textual import events
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.keys import KEY_NAME_REPLACEMENTS, KEY_TO_UNICODE_NAME, REPLACED_KEYS
from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from stantools.store import locks
from tui.screens import base
from tui.screens.base import ViewScreen
from tui.views import View, ViewTarget

_parse_rules = Stylesheet._parse_rules
_styles: dict[tuple[Any, ...], list[RuleSet]] = {}


def _parse_rules_once(self: Stylesheet, *given: Any, **named: Any) -> list[RuleSet]:
    """Parses styles once, not for each browser again: that takes long."""
    key = (*given, *sorted(named.items()), frozenset(self._variables.items()))
    if key not in _styles:
        _styles[key] = _parse_rules(self, *given, **named)
    return _styles[key]


SCREENS = Path(__file__).parent / "golden"
#: Set to write screens anew that are not what is kept; look at the differences before a commit.
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


async def check_screen(pilot: Any, name: str, *, masks: dict[str, str] | None = None) -> None:
    """Compares the screen with the one that is kept under a name, as soon as it looks so: layouts come in steps.

    Args:
        pilot: Of the browser.
        name: Of the file in tests/tui/golden, without `.txt`.
        masks: Texts that differ between runs, and what stands for them in the file.
    """
    path = SCREENS / f"{name}.txt"
    kept = path.read_text() if path.exists() else ""
    for _ in range(50):
        if _masked(screen_text(pilot.app), masks) == kept:
            return
        await pilot.pause(0.1)
    text = _masked(screen_text(pilot.app), masks)
    if os.environ.get(WRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert path.exists(), f"{path} is missing; look at the screen and write it with {WRITE}=1:\n{text}"
    assert text == kept, f"{path.name} is not what is shown (rewrite with {WRITE}=1)"


def _masked(text: str, masks: dict[str, str] | None) -> str:
    for found, shown in (masks or {}).items():
        text = text.replace(found, shown.ljust(len(found)) if len(shown) < len(found) else shown)
    return text


async def check_sizes(
    pilot: Any,
    name: str,
    *,
    layout: bool = False,
    masks: dict[str, str] | None = None,
    ready: Callable[[Any], Awaitable[None]] | None = None,
) -> None:
    """Compares the screen in a small terminal with that which is kept under `name-80`.

    Where its layout matters as well, also in a large one, with `name-140`: one screen of each kind is enough for that.
    What a view shows in a large terminal does not depend on how large it was when the view was opened. A view that
    never ends to ask its server is `ready` otherwise than by `idle`.
    """
    for size in (SMALL, LARGE) if layout else (SMALL,):
        if pilot.app.size != size:
            await pilot.resize_terminal(*size)
            await (ready or idle)(pilot)
        await check_screen(pilot, f"{name}-{size[0]}", masks=masks)


def notices(app: Any) -> str:
    """Returns what the browser has told in the corner of the screen lately."""
    return "\n".join(each.message for each in app._notifications)


def key_event(key: str) -> events.Key:
    """Returns the event of a key, given by its name or as the character that it types."""
    if len(key) == 1 and not key.isalnum():
        name = unicodedata.name(key).lower().replace("-", "_").replace(" ", "_")
        return events.Key(KEY_NAME_REPLACEMENTS.get(name, name), key)
    if len(key) == 1:
        return events.Key(key, key)
    name = REPLACED_KEYS.get(key, key)
    try:
        return events.Key(key, unicodedata.lookup(KEY_TO_UNICODE_NAME.get(name, name.replace("_", " "))))
    except KeyError:
        return events.Key(key, None)


class Hands(Pilot[None]):
    """Presses keys as a user does. Waits until all that they lead to is done and drawn, not for a time."""

    async def press(self, *keys: str) -> None:
        """Presses keys one after the other. What is typed into a field is typed fast; all else is waited for."""
        for key, following in zip(keys, [*keys[1:], ""], strict=True):
            self.app.post_message(key_event(key))
            if not (len(key) == len(following) == 1 and isinstance(self.app.focused, Input)):
                await self.pause()

    async def resize_terminal(self, width: int, height: int) -> None:
        """Makes the terminal larger or smaller, and waits until the view has got its new size."""
        await super().resize_terminal(width, height)
        await until(self, lambda: self.app.screen.size == (width, height))

    async def pause(self, delay: float | None = None) -> None:
        """Waits until no message is under way between the widgets, and the screen is drawn."""
        if delay:
            await asyncio.sleep(delay)
        quiet = 0
        while quiet < 2 and self._alive:
            screen = self.app.screen
            await self._until_on(screen, lambda: not self._busy)
            drawn = asyncio.Event()
            if screen.call_after_refresh(drawn.set):
                await self._until_on(screen, drawn.is_set)
            quiet = 0 if self._busy or screen is not self.app.screen else quiet + 1

    @property
    def _alive(self) -> bool:
        return self.app.is_running and self.app.failure is None  # type: ignore[attr-defined]

    @property
    def _busy(self) -> bool:
        """Whether keys wait, or the application or a widget of the screen has a message, or handles one."""
        if not self.app.typed.idle:  # type: ignore[attr-defined]
            return True
        return any(map(_is_busy, (self.app, *self.app.screen.walk_children(with_self=True))))

    async def _until_on(self, screen: Screen[Any], condition: Callable[[], bool]) -> None:
        """Waits until something is so, or the screen is not the topmost one any more."""
        turns = 0
        while not condition() and self._alive and screen is self.app.screen:
            await asyncio.sleep(0 if turns < 20 else 0.002)
            turns += 1


def _is_busy(node: MessagePump) -> bool:
    """Whether a node does anything else than to wait for a message."""
    queue = node._message_queue
    waits = queue.empty() and queue.ready_event._waiters  # type: ignore[attr-defined]
    return not waits and node.is_running and node.is_attached


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[View, ViewTarget]]:
    """The views that are opened, which are not shown."""
    from tui.app import Browser

    found: list[tuple[View, ViewTarget]] = []

    def open_view(_self: Any, view: View, place: ViewTarget | None = None, *, above: bool = False) -> None:
        assert above
        found.append((view, place or ViewTarget()))

    monkeypatch.setattr(Browser, "open_view", open_view)
    return found


async def until(pilot: Any, condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Waits until something is so; looks whenever the screen was drawn."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition() and loop.time() < end:
        if pilot.app.failure is not None:
            raise pilot.app.failure
        await asyncio.sleep(0.01)
    assert condition(), f"did not come true within {seconds} s; the screen:\n{screen_text(pilot.app)}"
    await pilot.pause()


async def scanned(pilot: Any) -> None:
    """Waits until everything is known of the store, and shown."""
    session = pilot.app.session
    await until(pilot, lambda: session.job is not None)
    await asyncio.to_thread(session.job.wait, 60)
    assert session.job.problem is None, session.job.problem
    await until(pilot, lambda: pilot.app.screen.up_to_date)


async def idle(pilot: Any) -> None:
    """Waits until nothing that was begun for the view is read in the background any more; what is written goes on."""
    await pilot.pause()

    def ready() -> bool:
        screen = pilot.app.screen
        return screen.is_mounted and (not isinstance(screen, ViewScreen) or not screen.working or bool(screen.busy()))

    await until(pilot, ready)


@pytest.fixture(autouse=True)
def _no_long_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that were just written are watched for a moment only, and views look for news more often.

    Styles are parsed once.
    """
    monkeypatch.setattr(Stylesheet, "_parse_rules", _parse_rules_once)
    monkeypatch.setattr(locks, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(base, "LOOK", 0.02)


@pytest.fixture
def steady_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk has always the same room."""
    monkeypatch.setattr("tui.plans.wizard.free_bytes", lambda _: 123 << 30)


@pytest.fixture
def browse() -> Callable[..., contextlib.AbstractAsyncContextManager[Any]]:
    """Runs the browser on a store: `async with browse(path, size=…) as pilot`.

    The browser is opened with the path as it is given: change the directory to have short ones on the screen.
    """

    @contextlib.asynccontextmanager
    async def run(
        path: Path | str | None, *, size: tuple[int, int] = SMALL, scan: bool = True, **options: Any
    ) -> AsyncIterator[Any]:
        from tui.app import Browser
        from tui.opening import open_session
        from tui.store_session import StoreSession

        reading = options.pop("read_options", None)
        files, of_any_kind = options.pop("files", None), options.pop("of_any_kind", False)
        session: Any = None
        if path is not None and of_any_kind:
            session = open_session(Path(path), reading)
        elif path is not None:
            session = StoreSession(Path(path), reading, files=files)
        app = Browser(session, **options)
        async with app.run_test(size=size, notifications=True):
            pilot = Hands(app)
            if session is not None and scan:
                await scanned(pilot)
            yield pilot

    return run
