"""Asks for a text in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from tui.widgets.line import Line


class PromptScreen(ModalScreen[str | None]):
    """A field at the bottom of the screen; gives what was typed, or None if it was left.

    Args:
        what: What is asked for, shown while the field is empty.
        hint: What can be typed.
        value: What stands in the field at first.
        hidden: Dots stand for what is typed.
        check: Says what is wrong with a text, or "" if it can be taken; without it everything can.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close", id="prompt.close")]

    def __init__(
        self,
        what: str,
        hint: str,
        value: str = "",
        check: Callable[[str], str] | None = None,
        *,
        hidden: bool = False,
    ) -> None:
        super().__init__()
        self._what, self._hint, self._value = what, hint, value
        self._check, self._hidden = check, hidden

    def compose(self) -> ComposeResult:
        """The field and what can be typed into it."""
        with Vertical(classes="prompt"):
            yield Input(self._value, placeholder=self._what, password=self._hidden, select_on_focus=False, compact=True)
            yield Line([(self._hint, "dim")], id="hint")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        problem = self._check(event.value) if self._check else ""
        if problem:
            self.query_one("#hint", Line).show((problem, "bad"))
            return
        self.dismiss(event.value)
