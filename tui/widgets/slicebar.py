"""A table of slices; a bar in each row shows the state of its bytes with symbols and colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from stantools.browse.slice_map import BytesState
from tui.cells import Cell, Role
from tui.widgets.rowtable import RowTable

#: Key of the column with the bars.
BAR = "bar"

#: State -> its symbol and role.
BAR_SYMBOLS: dict[BytesState, tuple[str, Role]] = {
    BytesState.EMPTY: (" ", ""),
    BytesState.UNKNOWN: ("·", "dim"),
    BytesState.GOOD: ("━", "good"),
    BytesState.INDEX_ONLY: ("i", "warn"),
    BytesState.FOREIGN: ("≠", "warn"),
    BytesState.ORPHAN: ("?", "warn"),
    BytesState.ZERO: ("0", "warn"),
    BytesState.BAD: ("✗", "bad"),
    BytesState.UNREADABLE: ("#", "bad"),
}
_NAMES = {
    BytesState.GOOD: "good",
    BytesState.BAD: "damaged",
    BytesState.ZERO: "zeros",
    BytesState.ORPHAN: "not in the index",
    BytesState.FOREIGN: "other channel",
    BytesState.INDEX_ONLY: "index only",
    BytesState.UNREADABLE: "unreadable",
    BytesState.UNKNOWN: "not scanned",
}
_ROLES: dict[str, Role] = dict(BAR_SYMBOLS.values())


def bar_text(states: Sequence[BytesState]) -> str:
    return "".join(BAR_SYMBOLS[state][0] for state in states)


def bar_cells(text: str) -> Sequence[tuple[str, Role]]:
    return [("".join(group), _ROLES.get(symbol, "")) for symbol, group in groupby(text)]


def legend(states: Sequence[BytesState]) -> Sequence[Cell]:
    cells: list[Cell] = []
    for state in states:
        symbol, role = BAR_SYMBOLS[state]
        cells += [(symbol, role), (f" {_NAMES[state]}  ", "dim")]
    return cells


class SliceTable(RowTable):
    """A table with a column `BAR` whose characters have roles of their own."""

    def _line(self, cells: Sequence[Cell], base: Style, *, plain: bool) -> Strip:
        strip = super()._line(cells, base, plain=plain)
        columns = self.source.columns
        place = next((n for n, column in enumerate(columns) if column.key == BAR), -1)
        if plain or len(cells) != len(columns) or place < 0 or isinstance(cells[place], tuple):
            return strip
        start = sum(self._widths[:place]) + place
        end = start + self._widths[place]
        parts = [Segment(text, base + self.role_style(role)) for text, role in bar_cells(str(cells[place]))]
        bar = Strip(parts).adjust_cell_length(end - start, base)
        return Strip.join([strip.crop(0, start), bar, strip.crop(end)])
