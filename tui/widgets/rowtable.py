"""A table of any number of rows: it requests only the visible rows from its source and keeps no others.

Opening and scrolling a table of tens of millions of rows costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from tui.cells import Cell, role_of, text_of
from tui.rows import RowSource
from tui.widgets.lines import LineView, moving

#: Columns that a growing column gets at most if others follow it: numbers far from their names are hard to read.
_MOST_BEFORE_OTHERS = 64
#: Columns that a growing column gets before others take their full width.
_KEPT_FOR_GROWING = 4


class RowTable(LineView):
    """A source of rows with a cursor.

    Posts `Highlighted` when the cursor moves to another row and `Selected` when the user chooses a row.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *moving("table", "First", "Last"),
        Binding("left,h", "sideways(-8)", "Left", show=False, id="table.left"),
        Binding("right,l", "sideways(8)", "Right", show=False, id="table.right"),
        Binding("enter", "choose", "Open", id="table.open"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "rowtable--header",
        "rowtable--cursor",
        "rowtable--cursor-blurred",
        "rowtable--wide",
    }

    cursor = reactive(0, repaint=False)

    @dataclass
    class Highlighted(Message):
        table: RowTable

        @property
        def row(self) -> int:
            """The present row of the cursor, which may have moved since the message was posted."""
            return self.table.cursor

        @property
        def control(self) -> RowTable:
            """The table, for handlers of one of several."""
            return self.table

    @dataclass
    class Selected(Message):
        table: RowTable
        row: int

        @property
        def control(self) -> RowTable:
            """The table, for handlers of one of several."""
            return self.table

    def __init__(self, source: RowSource[Any], *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._source = source
        self._widths: list[int] = []
        self._window: tuple[int, int] = (0, 0)
        self._rows: Sequence[Sequence[Cell]] = ()

    @property
    def source(self) -> RowSource[Any]:
        return self._source

    @source.setter
    def source(self, source: RowSource[Any]) -> None:
        self._source = source
        self.reload()

    def reload(self) -> None:
        """Shows the present rows of the source. The cursor keeps its row number, as far as there are rows."""
        self._window, self._rows = (0, 0), ()
        self._measure()
        count = len(self._source)
        if self.cursor >= count:
            self.cursor = max(count - 1, 0)
        self.refresh()

    @property
    def visible_rows(self) -> int:
        return max(self.scrollable_content_region.height - 1, 1)

    def on_resize(self, _event: events.Resize) -> None:
        """Distributes the new width over the columns that grow."""
        self._measure()
        self._show_cursor()

    def watch_show_vertical_scrollbar(self) -> None:
        """The scrollbar takes one column from the rows, or returns it."""
        if self.is_mounted:
            self.call_after_refresh(self._measure)

    def _measure(self) -> None:
        columns = self._source.columns
        width = self.scrollable_content_region.width
        taken = sum(column.width for column in columns) + max(len(columns) - 1, 0)
        growing = [place for place, column in enumerate(columns) if column.grows]
        spare = max(width - taken, 0)
        widths = []
        kept = _KEPT_FOR_GROWING * len(growing)
        for column in columns:
            more = max(column.full - column.width, 0)
            extra = more if more + kept <= spare else 0
            spare -= extra
            widths.append(column.width + extra)
        for left, place in zip(range(len(growing), 0, -1), growing, strict=True):
            most = spare if place == len(columns) - 1 else max(_MOST_BEFORE_OTHERS - widths[place], 0)
            extra = min(spare // left, most)
            spare -= extra
            widths[place] += extra
        self._widths = widths
        self.virtual_size = Size(max(sum(widths) + max(len(widths) - 1, 0), 1), len(self._source) + 1)

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width = self.scrollable_content_region.width
        if y == 0:
            header = self.get_component_rich_style("rowtable--header")
            cells: Sequence[Cell] = [column.title for column in self._source.columns]
            return self._line(cells, header, plain=True).crop_extend(scroll_x, scroll_x + width, header)
        row = scroll_y + y - 1
        if row >= len(self._source):
            return Strip.blank(width, self.rich_style)
        base = self.rich_style
        at_cursor = row == self.cursor
        if at_cursor:
            focused = self.has_focus or not self.screen.is_current
            base += self.get_component_rich_style("rowtable--cursor" if focused else "rowtable--cursor-blurred")
        return self._line(self._row(row), base, plain=at_cursor).crop_extend(scroll_x, scroll_x + width, base)

    def _row(self, row: int) -> Sequence[Cell]:
        start, stop = self._window
        if not start <= row < stop:
            begin = max(min(row, self.scroll_offset.y), 0)
            if row >= begin + self.visible_rows:
                begin = row
            stop = min(begin + self.visible_rows, len(self._source))
            self._rows = self._source.rows(begin, stop)
            self._window = begin, begin + len(self._rows)
            start = begin
        place = row - start
        return self._rows[place] if place < len(self._rows) else ()

    def _line(self, cells: Sequence[Cell], base: Style, *, plain: bool) -> Strip:
        """Joins cells to a line. The cursor's line ignores roles, so that it is readable in any theme."""
        if len(cells) == 1 and len(self._widths) > 1:
            role = role_of(cells[0])
            style = self.role_style(role) if role else self.get_component_rich_style("rowtable--wide", partial=True)
            wide = base if plain else base + style
            text = Strip([Segment(text_of(cells[0]), wide)])
            width = max(self.virtual_size.width, self.scrollable_content_region.width)
            if text.cell_length > width:
                text = Strip([*text.crop(0, max(width - 1, 0)), Segment("…", wide)])
            return text.adjust_cell_length(width, base)
        segments: list[Segment] = []
        for place, (cell, width, column) in enumerate(zip(cells, self._widths, self._source.columns, strict=False)):
            if place:
                segments.append(Segment(" ", base))
            style = base if plain else base + self.role_style(role_of(cell))
            text = Strip([Segment(text_of(cell), style)])
            length = text.cell_length
            if length > width and column.full:
                segments += list(text.crop(0, width))
            elif length > width:
                text = Strip([*text.crop(0, max(width - 1, 0)), Segment("…", style)])
                segments += list(text)
            elif column.right:
                segments += [Segment(" " * (width - length), base), *text]
            else:
                segments += [*text, Segment(" " * (width - length), base)]
        return Strip(segments)

    def validate_cursor(self, row: int) -> int:
        return max(0, min(row, len(self._source) - 1))

    def watch_cursor(self, old: int, row: int) -> None:
        if not self.is_mounted:
            return
        top = self.scroll_offset.y
        self._show_cursor()
        if self.scroll_offset.y == top:
            self.refresh_line(old + 1)
            self.refresh_line(row + 1)
        else:
            self.refresh()
        if old != row:
            self.post_message(self.Highlighted(self))

    def watch_has_focus(self, focus: bool) -> None:
        super().watch_has_focus(focus)
        self.refresh()

    def _show_cursor(self) -> None:
        top, height = self.scroll_offset.y, self.visible_rows
        if self.cursor < top:
            self.scroll_to_line(self.cursor)
        elif self.cursor >= top + height:
            self.scroll_to_line(self.cursor - height + 1)

    def show(self, row: int) -> None:
        """Moves the cursor to a row; a row out of sight is shown with its neighbours."""
        row = self.validate_cursor(row)
        top, height = self.scroll_offset.y, self.visible_rows
        if not top <= row < top + height:
            self.scroll_to_line(max(row - height // 2, 0))
        self.cursor = row

    @property
    def page(self) -> int:
        return max(self.visible_rows - 1, 1)

    def action_by(self, lines: int) -> None:
        self.cursor += lines

    def action_edge(self, which: int) -> None:
        self.cursor = which * len(self._source)

    def action_sideways(self, columns: int) -> None:
        self.scroll_to(x=self.scroll_offset.x + columns, animate=False)

    def action_choose(self) -> None:
        if len(self._source):
            self.post_message(self.Selected(self, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor; a second one on the same row selects it."""
        row = self.scroll_offset.y + event.y - 1
        if event.y < 1 or not 0 <= row < len(self._source):
            return
        if row == self.cursor and event.chain > 1:
            self.action_choose()
        self.cursor = row
