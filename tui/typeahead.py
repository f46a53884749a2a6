"""Keys that the user types ahead: each goes to the widget that has the focus after the keys before it.

Textual gives a key to the focused widget at once. A key that opens a dialog or a field takes a few messages to do
so, and the keys typed meanwhile would go to the widget below. Here they wait until the widgets have no message left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from textual import events
from textual.app import App, ScreenStackError

#: Rounds of the event loop without a message, after which the effect of a key is complete.
_QUIET_ROUNDS = 3
#: Seconds after which a key no longer waits.
_LONGEST_WAIT = 1.0
#: Seconds between two looks, after the first ones.
_PAUSE = 0.002
_EAGER_LOOKS = 20


class TypeAhead:
    """Delivers keys and pasted texts one at a time; `deliver` gives one to the widget with the focus."""

    def __init__(self, app: App[None], deliver: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app = app
        self._deliver = deliver
        self._waiting: deque[events.Event] = deque()
        self._delivery: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether all keys have had their effect."""
        return self._delivery is None

    async def take(self, event: events.Event) -> None:
        if self._delivery is not None:
            self._waiting.append(event)
            return
        await self._deliver(event)
        self._delivery = asyncio.create_task(self._deliver_waiting())

    async def _deliver_waiting(self) -> None:
        try:
            await self._settled()
            while self._waiting:
                # In the app's own turn, as if the key had arrived now.
                self._app.call_later(self._deliver, self._waiting.popleft())
                await self._settled()
        finally:
            self._delivery = None

    async def _settled(self) -> None:
        """Waits until no message is on its way between the widgets of the present screen."""
        loop = asyncio.get_running_loop()
        end, quiet, looks = loop.time() + _LONGEST_WAIT, 0, 0
        while quiet < _QUIET_ROUNDS and loop.time() < end and self._app.is_running:
            await asyncio.sleep(0 if looks < _EAGER_LOOKS else _PAUSE)
            looks += 1
            quiet = 0 if self._busy() else quiet + 1

    def _busy(self) -> bool:
        app = self._app
        try:
            screen = app.screen
        except ScreenStackError:  # the app ends
            return False
        if not screen.is_mounted or app.message_queue_size:
            return True
        auto_focus = app.AUTO_FOCUS if screen.AUTO_FOCUS is None else screen.AUTO_FOCUS
        if auto_focus and screen.focused is None and screen.focus_chain:
            return True
        return any(node.message_queue_size for node in screen.walk_children(with_self=True))
