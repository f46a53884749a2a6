"""Asks where to go."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input

from tui.screens.base import ViewScreen
from tui.session import StoreSession
from tui.views import View
from tui.widgets.line import Line


class _Names(Suggester):
    def __init__(self, session: StoreSession | None) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._names = [*(view.value for view in View), *(session.channels if session else ())]

    async def get_suggestion(self, value: str) -> str | None:
        """Completes the name of a view or channel."""
        return next((name for name in self._names if name.startswith(value)), None)


class GoToScreen(ModalScreen[str | None]):
    """A field for a place.

    Args:
        below: The view that is open.
        session: The store.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close", id="goto.close")]

    def __init__(self, below: ViewScreen, session: StoreSession | None) -> None:
        super().__init__()
        self._hint = below.go_to_hint()
        self._session = session

    def compose(self) -> ComposeResult:
        """The field and what can be typed into it."""
        with Vertical(classes="prompt"):
            yield Input(placeholder="where to", suggester=_Names(self._session), compact=True)
            hint = f"{self._hint}; a view; a channel" if self._hint else "a view; a channel"
            yield Line([(hint, "dim")])

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())
