"""A form for options: a line to continue, then one line per option, with a text field or a choice.

A form opens on its first line, so that the keys of the view (unlock, go to, help) work until the user enters a field.
"""

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

from tui.plans.form import FormField
from tui.widgets.line import TextLine


class Choice(Static, can_focus=True):
    """A choice of a few words; `[x]` or `[ ]` for yes and no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,right,l", "turn(1)", "Choose", show=False, id="form.next_choice"),
        Binding("left,h", "turn(-1)", "Previous choice", show=False, id="form.previous_choice"),
        Binding("enter", "submit", "Continue", show=False, id="form.submit"),
    ]

    def __init__(self, field: FormField) -> None:
        super().__init__(markup=False, classes="choice")
        self.field = field

    def on_mount(self) -> None:
        self._show()

    def _show(self) -> None:
        value = self.field.value
        if self.field.is_flag:
            self.update(Content("[x]" if value == "yes" else "[ ]"))
        else:
            self.update(Content(f"‹ {value or 'by file name'} ›"))

    def action_turn(self, step: int) -> None:
        choices = self.field.choices
        self.field.value = choices[(choices.index(self.field.value) + step) % len(choices)]
        self._show()
        self.post_message(FormView.Changed(self.field))

    def action_submit(self) -> None:
        self.post_message(FormView.Submitted())

    def on_click(self, _event: events.Click) -> None:
        self.action_turn(1)


class Continue(Static, can_focus=True):
    """The line that submits the form."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Continue", show=False, id="form.submit"),
    ]

    def action_submit(self) -> None:
        self.post_message(FormView.Submitted())

    def on_click(self, _event: events.Click) -> None:
        self.action_submit()


class _FieldLabel(TextLine):
    """The name of a field, with a mark while the field has the focus."""

    def __init__(self, name: str) -> None:
        super().__init__(classes="field-name")
        self._name_of_field = name

    def on_mount(self) -> None:
        self.mark(focus=False)

    def mark(self, *, focus: bool) -> None:
        self.show((f"▸ {self._name_of_field}", "accent") if focus else (f"  {self._name_of_field}", "dim"))


class _FieldInput(Input):
    def __init__(self, field: FormField) -> None:
        super().__init__(field.value, compact=True, select_on_focus=False)
        self.field = field


class FormView(VerticalScroll, can_focus=False):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "The field above", show=False, id="form.up"),
        Binding("down", "app.focus_next", "The field below", show=False, id="form.down"),
    ]

    @dataclass
    class Reached(Message):
        field: FormField | None  #: None for the line that submits the form

    @dataclass
    class Changed(Message):
        field: FormField

    class Submitted(Message):
        pass

    def __init__(self, fields: Iterable[FormField], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._fields = list(fields)

    def compose(self) -> ComposeResult:
        yield Continue("[ preview ]", markup=False, classes="continue")
        for field in self._fields:
            with Horizontal(classes="field"):
                yield _FieldLabel(field.name)
                yield Choice(field) if field.choices else _FieldInput(field)

    def focus_field(self, name: str = "") -> None:
        """Puts the cursor into a field; without a name, on the first line."""
        for widget in self.query(".field > *").results(Widget):
            if isinstance(widget, Choice | _FieldInput) and widget.field.name == name:
                widget.focus()
                return
        self.query_one(Continue).focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        field = event.widget.field if isinstance(event.widget, Choice | _FieldInput) else None
        self._mark(event.widget, focus=True)
        self.post_message(self.Reached(field))

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        self._mark(event.widget, focus=False)

    def _mark(self, widget: Widget, *, focus: bool) -> None:
        if isinstance(widget, Choice | _FieldInput) and isinstance(widget.parent, Horizontal):
            widget.parent.query_one(_FieldLabel).mark(focus=focus)

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
