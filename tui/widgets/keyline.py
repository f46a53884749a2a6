"""The active keys, on one or two lines, and the views with their numbers as tabs.

Textual's own footer makes three widgets per key whenever the keys change, which takes longer than the rest of
opening a view; a line of text is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.binding import ActiveBinding, Binding
from textual.screen import Screen

from tui.cells import Cell, Role, text_of
from tui.views import View
from tui.widgets.line import TextLine

#: Screens with fewer lines show the keys on one line.
_ROOM = 16
#: Minimum number of columns for more space between tabs.
_WIDE = 100


class _KeyLabel:
    """A key on a line: its text, and the key that a click presses."""

    def __init__(self, press: str, *cells: Cell) -> None:
        self.press = press
        self.cells = cells
        self.width = sum(cell_len(text_of(cell)) for cell in cells)


class _PressedLine(TextLine):
    """Lines of keys; a click on a key presses it."""

    def __init__(self, id: str, gap: int) -> None:
        super().__init__(id=id)
        self._gap = gap
        self._rows: Sequence[Sequence[_KeyLabel]] = ()
        self._written: object = None
        self._waiting = False

    def on_mount(self) -> None:
        """Follows the active keys. The lines exist from the first layout on, so that nothing moves later."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self.write()
        self._changed(self.screen)

    def _changed(self, screen: Screen[Any]) -> None:
        # an opening view reports changes a dozen times
        if screen is self.screen and not self._waiting:
            self._waiting = self.call_after_refresh(self.write)

    def on_resize(self) -> None:
        self.write()

    def write(self) -> None:
        self._waiting = False
        if not self.is_attached:
            return
        rows = self.arranged(list(self.screen.active_bindings.values()), max(self.screen.size.width - 2, 0))
        shown = [self._cells(row) for row in rows]
        if shown != self._written:
            self._rows, self._written = rows, shown
            self.styles.height = max(len(shown), 1)
            self.show_lines(shown)

    def arranged(self, active: Sequence[ActiveBinding], width: int) -> Sequence[Sequence[_KeyLabel]]:
        raise NotImplementedError

    def fit(self, keys: Sequence[_KeyLabel], width: int) -> bool:
        return sum(key.width for key in keys) + self._gap * (len(keys) - 1) <= width

    def _cells(self, row: Iterable[_KeyLabel]) -> list[Cell]:
        cells: list[Cell] = []
        for key in row:
            cells += [" " * self._gap, *key.cells] if cells else key.cells
        return cells

    def on_click(self, event: events.Click) -> None:
        row = self._rows[event.y] if event.y < len(self._rows) else ()
        column, pressed = 1, None
        for key in row:
            if event.x >= column:
                pressed = key.press
            column += key.width + self._gap
        if pressed is not None:
            self.app.simulate_key(pressed)


class KeyLine(_PressedLine):
    """The visible bindings: those of the view, then the global ones; on a second line if there is no room."""

    def __init__(self) -> None:
        super().__init__("keys-here", 2)

    def arranged(self, active: Sequence[ActiveBinding], width: int) -> Sequence[Sequence[_KeyLabel]]:
        here: list[_KeyLabel] = []
        everywhere: list[_KeyLabel] = []
        shown: set[str] = set()
        field = self.screen.focused
        for each in active:
            binding, key = each.binding, self.app.get_key_display(each.binding)
            if not binding.show or binding.action in shown:
                continue
            # Textual knows that a field takes letters, but not that it takes "@", whose key is named "at".
            if field is not None and each.node is self.app and field.check_consume_key(binding.key, key):
                continue
            shown.add(binding.action)
            roles: tuple[Role, Role] = ("accent", "") if each.enabled else ("dim", "dim")
            row = everywhere if each.node is self.app else here
            row.append(_KeyLabel(binding.key, (key, roles[0]), (f" {binding.description}", roles[1])))
        if not here or self.fit([*here, *everywhere], width) or self.screen.size.height < _ROOM:
            return [[*here, *everywhere]]
        return [here, everywhere]


class TabLine(_PressedLine):
    """The views with their keys, as tabs.

    `view` is the open one, `bindings` returns the binding of each view, and `refusal` the reason why a view cannot
    be opened. `names` are those of views with another name than usual.
    """

    def __init__(
        self,
        view: View,
        bindings: Callable[[], Mapping[View, Binding]],
        refusal: Callable[[View], str],
        names: Mapping[str, str],
    ) -> None:
        super().__init__("tabs", 1)
        self._view = view
        self._bindings_of_views = bindings
        self._refusal = refusal
        self._names = {view: names.get(view, view.value) for view in View}

    def arranged(self, active: Sequence[ActiveBinding], width: int) -> Sequence[Sequence[_KeyLabel]]:
        """Returns the tabs on one line: with full names, short names, or only the name of the open view."""
        keys = self._bindings_of_views()
        works = {each.binding.action for each in active}  # numbers typed into a field open no view
        row: list[_KeyLabel] = []
        self._gap = 1 if width < _WIDE else 2
        short = {**self._names, View.SUBSCRIPTIONS: self._names[View.SUBSCRIPTIONS][:4]}
        for names in (self._names, short, dict.fromkeys(View, "")):
            row = [
                self._tab(binding, view, names[view], works=binding.action in works) for view, binding in keys.items()
            ]
            if self.fit(row, width):
                break
        return [row]

    def _tab(self, binding: Binding, view: View, name: str, *, works: bool) -> _KeyLabel:
        key = self.app.get_key_display(binding)
        if view is self._view:
            return _KeyLabel(binding.key, (f"[{key} {name or self._names[view]}]", "strong"))
        roles: tuple[Role, Role] = ("accent", "") if works and not self._refusal(view) else ("dim", "dim")
        return _KeyLabel(binding.key, (key, roles[0]), (f" {name}".rstrip(), roles[1]))
