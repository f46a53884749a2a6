"""A table with a pane about the row at its cursor: below it, or beside it on wide screens."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll

from tui.cells import Cell
from tui.rows import RowSource
from tui.widgets.line import TextLine
from tui.widgets.panesize import PaneSize
from tui.widgets.rowtable import RowTable

#: Lines of a scroll step of the pane.
_STEP = 4


class TablePane(Container):
    def __init__(self, source: RowSource[Any], sizes: MutableMapping[tuple[str, bool], int], *, id: str) -> None:
        super().__init__(id=id)
        self._source = source
        self._pane_size = PaneSize(lambda: self.query_one(VerticalScroll), sizes)

    def compose(self) -> ComposeResult:
        yield RowTable(self._source)
        with VerticalScroll(id=f"{self.id}-pane", can_focus=False):
            yield TextLine()

    def lay_out(self, *, wide: bool) -> None:
        self.set_class(wide, "-wide")
        self._pane_size.lay_out(beside=wide)

    def resize_pane(self, direction: int) -> None:
        self._pane_size.change(direction)

    def show_lines(self, rows: Sequence[Sequence[Cell]]) -> None:
        self.query_one(TextLine).show_lines(rows)

    def show_beginning(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def scroll_pane(self, direction: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=direction * _STEP, animate=False)
