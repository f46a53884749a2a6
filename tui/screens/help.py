"""The keys that work here, made from the bindings that are active."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen

from tui.cells import Cell
from tui.widgets.line import Line


class HelpScreen(ModalScreen[None]):
    """A page of keys above a view.

    Args:
        below: The view whose keys are shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss", "Close", id="help.close"),
        Binding("j", "scroll('down')", show=False),
        Binding("k", "scroll('up')", show=False),
    ]

    def __init__(self, below: Screen[Any]) -> None:
        super().__init__()
        self._lines = list(_lines(below))

    def compose(self) -> ComposeResult:
        """The keys, and where one can do otherwise."""
        with VerticalScroll(classes="sheet"):
            yield Line(id="keys")

    def on_mount(self) -> None:
        """Writes the keys."""
        self.query_one(".sheet").border_title = "keys that work here"
        self.query_one("#keys", Line).show_lines(self._lines)

    def action_scroll(self, way: str) -> None:
        """Moves the page."""
        sheet = self.query_one(VerticalScroll)
        (sheet.scroll_down if way == "down" else sheet.scroll_up)(animate=False)


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
