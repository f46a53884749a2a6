"""The keys that work here, on one line.

The library's own footer makes three widgets for each key, whenever the keys change. That takes longer than anything
else when a view opens; a line of text says the same.
"""

from __future__ import annotations

from typing import Any

from textual import events
from textual.screen import Screen

from tui.cells import Cell
from tui.widgets.line import Line


class KeyLine(Line):
    """Shows the bindings of the screen that are to be shown. A click on one does what the key does."""

    def __init__(self) -> None:
        super().__init__(id="keys-here")
        self._places: list[tuple[int, str]] = []

    def on_mount(self) -> None:
        """Is told when other keys work."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self.call_after_refresh(self._write)

    def _changed(self, screen: Screen[Any]) -> None:
        if screen is self.screen and self.is_attached:
            self._write()

    def _write(self) -> None:
        if not self.is_attached:
            return
        cells: list[Cell] = []
        shown: set[str] = set()
        self._places, column = [], 1
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if not binding.show or binding.action in shown:
                continue
            shown.add(binding.action)
            key = self.app.get_key_display(binding)
            if cells:
                cells.append("  ")
                column += 2
            self._places.append((column, binding.key))
            cells += [
                (key, "accent" if active.enabled else "dim"),
                (f" {binding.description}", "" if active.enabled else "dim"),
            ]
            column += len(key) + 1 + len(binding.description)
        self.show(*cells)

    def on_click(self, event: events.Click) -> None:
        """Presses the key that was clicked at."""
        key = next((key for column, key in reversed(self._places) if event.x >= column), None)
        if key is not None:
            self.app.simulate_key(key)
