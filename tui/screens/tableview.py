"""Views with a table that can be filtered and sorted, while the cursor stays on its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding
from textual.widgets import Input

from tui.cells import Cell
from tui.rows import Rows
from tui.screens.base import ViewScreen
from tui.session import StoreSession
from tui.views import Place
from tui.widgets.rowtable import RowTable
from tui.widgets.tablepane import TablePane


def filtering(group: str, leave: str = "leave", text: str = "Clear the filter, or back") -> list[Binding]:
    """Returns the keys that filter, with ids of a group; `leave` and `text` name the one that ends it."""
    return [
        Binding("slash", "filter", "Filter", key_display="/", id=f"{group}.filter"),
        Binding("escape", "leave", text, show=False, id=f"{group}.{leave}"),
    ]


def sorting(group: str) -> list[Binding]:
    """Returns the keys that sort, with ids of a group."""
    return [
        Binding("s", "sort", "Sort", id=f"{group}.sort"),
        Binding("S", "reverse", "Reverse", show=False, id=f"{group}.reverse"),
    ]


class FilterField(Input):
    """A field for the text that rows are filtered by. It comes with `/` and stays as long as it holds a text.

    Args:
        placeholder: What can be typed.
    """

    def __init__(self, placeholder: str, *, id: str) -> None:
        super().__init__(placeholder=placeholder, id=id, compact=True)
        self.display = False


class FilteredView(ViewScreen):
    """A view with a `FilterField` and a table."""

    @property
    def table(self) -> RowTable:
        """The table."""
        return self.query_one(RowTable)

    @property
    def pane(self) -> TablePane:
        """The table with what is said of its row, in views that have that."""
        return self.query_one(TablePane)

    @property
    def filter_field(self) -> FilterField:
        """The field above it."""
        return self.query_one(FilterField)

    def filter_by(self, text: str) -> None:
        """Shows the rows that a text occurs in; all if it is empty."""
        raise NotImplementedError

    def action_scroll(self, way: int) -> None:
        """Scrolls what is said of the row."""
        self.pane.scroll_pane(way)

    def action_filter(self) -> None:
        """Asks for a text."""
        self.filter_field.display = True
        self.filter_field.focus()

    def action_leave(self) -> None:
        """Shows everything again, or goes back if it does already."""
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
    """A view whose table shows `Rows`."""

    rows: Rows[Any]  #: what the table shows

    #: Columns of the screen from which on there is room for everything.
    WIDE: ClassVar[int] = 120

    @property
    def row(self) -> Any:
        """The row at the cursor; None if there is none."""
        shown, at = self.rows.shown, self.table.cursor
        return shown[at] if at < len(shown) else None

    def fill_rows(self) -> None:
        """Fills the rows with what is known now."""
        raise NotImplementedError

    def update_rows(self) -> None:
        """Shows what is known now. The cursor stays on its row; at the top one looks at what is there, not at a row."""
        table, rows = self.table, self.rows
        key = rows.key(self.row) if table.cursor and self.row is not None else None
        self.fill_rows()
        table.reload()
        if key is not None and (found := rows.find(key)) is not None:
            table.cursor = found

    def filter_by(self, text: str) -> None:
        """Shows the rows that a text occurs in."""
        self.rows.filter = text
        self.update_rows()

    def action_sort(self) -> None:
        """Sorts by the next column."""
        self.rows.sort_by_next()
        self.update_rows()

    def action_reverse(self) -> None:
        """Turns the order around."""
        self.rows.reverse = not self.rows.reverse
        self.update_rows()


class TabbedView(TableView):
    """A view with several tables, of which one is shown."""

    #: What is written between the names.
    SPACE: ClassVar[str] = " "

    def __init__(self, session: StoreSession | None, place: Place) -> None:
        super().__init__(session, place)
        self.tabs: dict[str, Rows[Any]] = {}  #: their names and rows
        self.tab = ""  #: the one that is shown
        self._cursors: dict[str, int] = {}

    def choose_tab(self, name: str) -> None:
        """Makes it the one that is shown."""
        self.tab, self.rows = name, self.tabs[name]

    def tab_cells(self, counts: Mapping[str, int | None]) -> list[Cell]:
        """Writes the names, with how many rows each has if that is known."""
        cells: list[Cell] = []
        for name in self.tabs:
            count = counts[name]
            text = f"{name} {count:,}" if count is not None else name
            cells += [(f"[{text}]", "strong") if name == self.tab else (f" {text} ", "dim"), self.SPACE]
        return cells

    def action_tab(self, step: int) -> None:
        """Shows the next tab, or the one before; the cursor is where it was left there."""
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
        """Called when another tab is going to be shown."""
