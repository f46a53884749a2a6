"""Views with a table that can be filtered and sorted; the cursor stays on its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding
from textual.widgets import Input

from tui.cells import Cell
from tui.rows import TableRows
from tui.screens.base import ViewScreen
from tui.session import SourceSession
from tui.views import ViewTarget
from tui.widgets.rowtable import RowTable
from tui.widgets.tablepane import TablePane


def filtering(group: str, leave: str = "leave", text: str = "Clear the filter, or back") -> list[Binding]:
    """Returns the filter keys.

    `group` is the prefix of their ids; `leave` and `text` name the key that clears the filter.
    """
    return [
        Binding("slash", "filter", "Filter", key_display="/", id=f"{group}.filter"),
        Binding("escape", "leave", text, show=False, id=f"{group}.{leave}"),
    ]


def sorting(group: str) -> list[Binding]:
    return [
        Binding("s", "sort", "Sort", id=f"{group}.sort"),
        Binding("S", "reverse", "Reverse", show=False, id=f"{group}.reverse"),
    ]


class FilterField(Input):
    """The filter field. It appears with `/` and stays while it has a text."""

    def __init__(self, placeholder: str, *, id: str) -> None:
        super().__init__(placeholder=placeholder, id=id, compact=True)
        self.display = False


class FilteredView(ViewScreen):
    @property
    def table(self) -> RowTable:
        return self.query_one(RowTable)

    @property
    def pane(self) -> TablePane:
        return self.query_one(TablePane)

    @property
    def filter_field(self) -> FilterField:
        return self.query_one(FilterField)

    def filter_by(self, text: str) -> None:
        raise NotImplementedError

    def action_scroll(self, direction: int) -> None:
        self.pane.scroll_pane(direction)

    def action_resize_pane(self, direction: int) -> None:
        self.pane.resize_pane(direction)

    def action_filter(self) -> None:
        self.filter_field.display = True
        self.filter_field.focus()

    def action_leave(self) -> None:
        if not self.filter_field.display:
            self.action_back()
            return
        self.filter_field.value = ""
        self.filter_field.display = False
        self.table.focus()

    @on(Input.Changed, "FilterField")
    def _filter_typed(self, event: Input.Changed) -> None:
        self.filter_by(event.value)

    @on(Input.Submitted, "FilterField")
    def _filter_submitted(self) -> None:
        self.filter_field.display = bool(self.filter_field.value)
        self.table.focus()


class TableView(FilteredView):
    rows: TableRows[Any]  #: rows of the table

    #: Minimum number of columns of the screen for the complete table.
    WIDE: ClassVar[int] = 120

    @property
    def row(self) -> Any:
        shown, at = self.rows.shown, self.table.cursor
        return shown[at] if at < len(shown) else None

    def fill_rows(self) -> None:
        raise NotImplementedError

    def update_rows(self) -> None:
        """Shows the rows. The cursor stays on its row; at the top it stays at the top."""
        table, rows = self.table, self.rows
        key = rows.key(self.row) if table.cursor and self.row is not None else None
        self.fill_rows()
        table.reload()
        if key is not None and (found := rows.find(key)) is not None:
            table.cursor = found

    def filter_by(self, text: str) -> None:
        self.rows.filter = text
        self.update_rows()

    def action_sort(self) -> None:
        self.rows.sort_by_next()
        self.update_rows()

    def action_reverse(self) -> None:
        self.rows.reverse = not self.rows.reverse
        self.update_rows()


class TabbedView(TableView):
    #: Separator of the names.
    SPACE: ClassVar[str] = " "

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self.tabs: dict[str, TableRows[Any]] = {}  #: names and rows
        self.tab = ""  #: name of the visible tab
        self._cursors: dict[str, int] = {}

    def choose_tab(self, name: str) -> None:
        self.tab, self.rows = name, self.tabs[name]

    def tab_cells(self, counts: Mapping[str, int | None]) -> list[Cell]:
        cells: list[Cell] = []
        for name in self.tabs:
            count = counts[name]
            text = f"{name} {count:,}" if count is not None else name
            cells += [(f"[{text}]", "strong") if name == self.tab else (f" {text} ", "dim"), self.SPACE]
        return cells

    def action_tab(self, step: int) -> None:
        """Shows the next (1) or previous (-1) tab; each tab keeps its cursor."""
        names, table = list(self.tabs), self.table
        if len(names) < 2:
            return
        self._cursors[self.tab] = table.cursor
        self.choose_tab(names[(names.index(self.tab) + step) % len(names)])
        self.begin_tab()
        self.fill_rows()
        table.source = self.rows
        table.cursor = self._cursors.get(self.tab, 0)
        self.update_rows()
        self.refresh_bindings()

    def begin_tab(self) -> None:
        """Called before another tab is shown."""
