"""Dialogs above a view: a place, a text, a question, the command lines, the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.suggester import Suggester
from textual.widgets import Input

from tui.cells import Cell, name_text
from tui.rows import ListRows, TableColumn
from tui.session import SourceSession
from tui.views import View
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable

#: Names shown as completions.
_MOST_NAMES = 50


class _NameSuggester(Suggester):
    def __init__(self, session: SourceSession | None) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._names = [*(view.value for view in View), "screenshot", *(session.channels if session else ())]

    def matches(self, text: str, limit: int) -> list[str]:
        """Returns the first names that begin with a text, or else names that contain it."""
        found = list(islice((name for name in self._names if name.startswith(text)), limit))
        lower = text.lower()
        return found or list(islice((name for name in self._names if lower in name.lower()), limit))

    async def get_suggestion(self, value: str) -> str | None:
        return next((name for name in self.matches(value, 1) if name.startswith(value)), None)


class PromptScreen(ModalScreen[str | None]):
    """A field at the bottom of the screen; its result is the text, or None after Escape.

    Args:
        what: Placeholder of the empty field.
        hint: Text about the accepted input.
        value: Initial text.
        hidden: Show dots instead of the text.
        check: Returns the reason why a text is refused, or "".
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close", id="prompt.close")]
    _suggester: Suggester | None = None

    def __init__(
        self,
        noun: str,
        hint: str,
        value: str = "",
        check: Callable[[str], str] | None = None,
        *,
        hidden: bool = False,
    ) -> None:
        super().__init__()
        self._noun, self._hint, self._value = noun, hint, value
        self._check, self._hidden = check, hidden

    def compose(self) -> ComposeResult:
        with Vertical(classes="prompt"):
            yield Input(
                self._value,
                placeholder=self._noun,
                password=self._hidden,
                suggester=self._suggester,
                select_on_focus=False,
                compact=True,
            )
            yield TextLine([(self._hint, "dim")], id="hint")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        problem = self._check(event.value) if self._check else ""
        if problem:
            self.query_one("#hint", TextLine).show((problem, "bad"))
            return
        self.dismiss(event.value)


class GoToScreen(PromptScreen):
    """A field for a place; `hint` describes the places of the open view. Tab completes names and shows them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="goto.close"),
        Binding("tab", "complete", "Complete", priority=True, id="goto.complete"),
    ]

    def __init__(self, hint: str, session: SourceSession | None) -> None:
        places = "a view; a channel, and a place in it: CHANNEL SEQ; tab completes"
        super().__init__("where to", f"{hint}; {places}" if hint else places)
        self._suggester: _NameSuggester = _NameSuggester(session)

    def action_complete(self) -> None:
        field = self.query_one(Input)
        found = self._suggester.matches(field.value, _MOST_NAMES) if field.value else []
        if not found:
            return
        shortest, longest = min(found), max(found)
        same = next((at for at, (a, b) in enumerate(zip(shortest, longest, strict=False)) if a != b), len(shortest))
        common = shortest[:same]
        if len(common) > len(field.value) or len(found) == 1:
            field.value = common
            field.cursor_position = len(common)
        if len(found) > 1:
            more = "  …" if len(found) == _MOST_NAMES else ""
            self.query_one("#hint", TextLine).show(("  ".join(map(name_text, found)) + more, "dim"))


class QuestionScreen(ModalScreen[bool]):
    """A question with the consequence of "yes"; its result is True for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes", id="question.yes"),
        Binding("n,escape,q", "dismiss(False)", "No", id="question.no"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        with Vertical(classes="prompt wizard-question"):
            yield TextLine([(self._question, "strong"), "  ", ("y yes   n no", "accent")])
            yield TextLine([(self._consequence, "dim")])


class CommandsScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,at", "dismiss", "Close", id="commands.close"),
        Binding("y", "copy", "Copy", id="commands.copy"),
    ]

    def __init__(self, commands: Sequence[str]) -> None:
        super().__init__()
        self._commands = list(commands)

    def compose(self) -> ComposeResult:
        column: TableColumn[str] = TableColumn("the same on the command line (y copies)", 40, str, grows=True)
        yield RowTable(ListRows([column], self._commands), classes="sheet")

    def on_mount(self) -> None:
        table = self.query_one(RowTable)
        table.focus()
        table.cursor = len(self._commands) - 1

    def action_copy(self) -> None:
        if self._commands:
            self.app.copy_to_clipboard(self._commands[self.query_one(RowTable).cursor])
            self.app.notify("copied")


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss", "Close", id="help.close"),
        Binding("j", "scroll('down')", show=False),
        Binding("k", "scroll('up')", show=False),
    ]

    def __init__(self, below: Screen[Any]) -> None:
        super().__init__()
        self._lines = list(_lines(below))

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet"):
            yield TextLine(id="keys")

    def on_mount(self) -> None:
        self.query_one(".sheet").border_title = "active keys"
        self.query_one("#keys", TextLine).show_lines(self._lines)

    def action_scroll(self, direction: str) -> None:
        sheet = self.query_one(VerticalScroll)
        (sheet.scroll_down if direction == "down" else sheet.scroll_up)(animate=False)


def _lines(below: Screen[Any]) -> list[list[Cell]]:
    groups: dict[str, list[list[Cell]]] = {}
    keys: dict[int, list[str]] = {}
    shown: dict[int, tuple[Binding, str]] = {}
    for active in below.active_bindings.values():
        binding = active.binding
        if not active.enabled or binding.system or not (binding.description or binding.tooltip):
            continue
        mark = hash((binding.action, binding.description, id(active.node)))
        keys.setdefault(mark, []).append(below.app.get_key_display(binding))
        shown[mark] = binding, (binding.id or "").partition(".")[0] or "other"
    for mark, (binding, group) in shown.items():
        names = " ".join(dict.fromkeys(keys[mark]))
        text: list[Cell] = [(f"  {names:<22} ", "accent"), f"{binding.tooltip or binding.description:<34}"]
        if binding.id:
            text.append((binding.id, "dim"))
        groups.setdefault(group, []).append(text)
    lines: list[list[Cell]] = []
    for group in sorted(groups, key=lambda name: (name in ("app", "view", "table", "other"), name)):
        lines += [[(group, "strong")], *groups[group], []]
    lines.append([("Other keys: [keys] in the settings file, by the ids on the right.", "dim")])
    return lines
