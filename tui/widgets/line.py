"""A line, or some lines, of text with roles."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from tui.cells import Cell, Role, role_of, text_of

#: Role -> style, in the words of the theme.
STYLES: dict[Role, str] = {
    "": "",
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "$text-error bold",
    "dim": "$foreground-muted",
    "strong": "bold",
    "accent": "$text-accent",
}


def content(cells: Sequence[Cell]) -> Content:
    """Returns cells as one text, without spaces in between; line breaks that are alone in a cell are kept."""
    parts = [(cell if cell == "\n" else text_of(cell), STYLES[role_of(cell)]) for cell in cells]
    return Content.assemble(*parts)


def lines(rows: Sequence[Sequence[Cell]]) -> Content:
    """Returns rows of cells as lines of text."""
    cells: list[Cell] = []
    for place, row in enumerate(rows):
        cells += ["\n", *row] if place else row
    return content(cells)


class Line(Static):
    """Text with roles. It is shown as it is: nothing in it is taken for markup."""

    def __init__(self, cells: Sequence[Cell] = (), *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(content(cells), id=id, classes=classes, markup=False)

    def show(self, *cells: Cell) -> None:
        """Shows other text."""
        self._show(content(cells))

    def show_lines(self, rows: Sequence[Sequence[Cell]]) -> None:
        """Shows lines of text."""
        self._show(lines(rows))

    def _show(self, text: Content) -> None:
        """Shows a text; where it takes as many lines as there are, the screen need not be laid out anew."""
        width = self.content_region.width
        parts = text.plain.split("\n")
        needs = len(parts) if text.plain and all(cell_len(part) <= width for part in parts) else None
        height = self.styles.height
        fixed = height is not None and not height.is_auto
        self.update(text, layout=not fixed and needs != self.content_region.height)
