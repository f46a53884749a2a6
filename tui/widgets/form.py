"""A form for options: one line for each, with a field to type into or a word to choose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from tui.plans.form import Field
from tui.widgets.line import Line


class Choice(Static, can_focus=True):
    """A word out of a few; `[x]` or `[ ]` where these are yes and no.

    Args:
        field: The option.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,right,l", "turn(1)", "Choose", show=False, id="form.next_choice"),
        Binding("left,h", "turn(-1)", "Choose the one before", show=False, id="form.previous_choice"),
        Binding("enter", "submit", "Go on", show=False, id="form.submit"),
    ]

    def __init__(self, field: Field) -> None:
        super().__init__(markup=False, classes="choice")
        self.field = field

    def on_mount(self) -> None:
        """Shows the word."""
        self._show()

    def _show(self) -> None:
        value = self.field.value
        if self.field.is_flag:
            self.update(Content("[x]" if value == "yes" else "[ ]"))
        else:
            self.update(Content(f"‹ {value or 'as the name says'} ›"))

    def action_turn(self, step: int) -> None:
        """Takes the next word."""
        choices = self.field.choices
        self.field.value = choices[(choices.index(self.field.value) + step) % len(choices)]
        self._show()
        self.post_message(FormView.Changed(self.field))

    def action_submit(self) -> None:
        """Takes the form as it is."""
        self.post_message(FormView.Submitted())

    def on_click(self, _event: events.Click) -> None:
        """A click takes the next word."""
        self.action_turn(1)


class _FieldInput(Input):
    """Types into a field."""

    def __init__(self, field: Field) -> None:
        super().__init__(field.value, compact=True, select_on_focus=False)
        self.field = field


class FormView(VerticalScroll, can_focus=False):
    """Shows fields, and writes what is typed into them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "The field above", show=False, id="form.up"),
        Binding("down", "app.focus_next", "The field below", show=False, id="form.down"),
    ]

    @dataclass
    class Reached(Message):
        """A field has the focus now."""

        field: Field

    @dataclass
    class Changed(Message):
        """A field holds something else."""

        field: Field

    class Submitted(Message):
        """The form is to be taken as it is."""

    def __init__(self, fields: Iterable[Field], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._fields = list(fields)

    def compose(self) -> ComposeResult:
        """One line for each field."""
        for field in self._fields:
            with Horizontal(classes="field"):
                yield Line([field.name], classes="field-name")
                yield Choice(field) if field.choices else _FieldInput(field)

    def focus_field(self, name: str = "") -> None:
        """Puts the cursor into a field, the first one if there is no other name."""
        for widget in self._controls():
            if not name or widget.field.name == name:
                widget.focus()
                return

    def _controls(self) -> Iterable[Choice | _FieldInput]:
        for widget in self.query(".field > *").results(Widget):
            if isinstance(widget, Choice | _FieldInput):
                yield widget

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Notes which field it is."""
        if isinstance(event.widget, Choice | _FieldInput):
            self.post_message(self.Reached(event.widget.field))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if isinstance(event.input, _FieldInput):
            event.input.field.value = event.value
            self.post_message(self.Changed(event.input.field))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Submitted())
