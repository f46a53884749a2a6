"""A table with a pane about the row at its cursor: below it, or beside it on wide screens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll

from tui.cells import Cell
from tui.rows import RowSource
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable

#: Lines of a scroll step of the pane.
_STEP = 4


class TablePane(Container):
    def __init__(self, source: RowSource[Any], *, id: str) -> None:
        super().__init__(id=id)
        self._source = source

    def compose(self) -> ComposeResult:
        yield RowTable(self._source)
        with VerticalScroll(can_focus=False):
            yield TextLine()

    def lay_out(self, *, wide: bool) -> None:
        self.set_class(wide, "-wide")

    def show_lines(self, rows: Sequence[Sequence[Cell]]) -> None:
        self.query_one(TextLine).show_lines(rows)

    def show_beginning(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def scroll_pane(self, direction: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=direction * _STEP, animate=False)
