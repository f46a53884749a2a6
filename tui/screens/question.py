"""A question with the answers yes and no."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from tui.widgets.line import Line


class QuestionScreen(ModalScreen[bool]):
    """Asks, and returns whether the answer was yes.

    Args:
        question: The question.
        consequence: What yes means.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes", id="question.yes"),
        Binding("n,escape,q", "dismiss(False)", "No", id="question.no"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical(classes="prompt wizard-question"):
            yield Line([(self._question, "strong"), "  ", ("y yes   n no", "accent")])
            yield Line([(self._consequence, "dim")])
