"""One or more lines of text with roles."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from tui.cells import Cell, Role, role_of, text_of

#: Role -> style of the theme.
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
    """Returns cells as one text without separators; a line break needs a cell of its own."""
    parts = [(cell if cell == "\n" else text_of(cell), STYLES[role_of(cell)]) for cell in cells]
    return Content.assemble(*parts)


def lines(rows: Sequence[Sequence[Cell]]) -> Content:
    cells: list[Cell] = []
    for place, row in enumerate(rows):
        cells += ["\n", *row] if place else row
    return content(cells)


class TextLine(Static):
    """Text with roles, without markup."""

    def __init__(self, cells: Sequence[Cell] = (), *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(content(cells), id=id, classes=classes, markup=False)

    def show(self, *cells: Cell) -> None:
        self._show(content(cells))

    def show_lines(self, rows: Sequence[Sequence[Cell]]) -> None:
        self._show(lines(rows))

    def _show(self, text: Content) -> None:
        """Shows a text; the screen is laid out again only if the number of lines changes."""
        width = self.content_region.width
        parts = text.plain.split("\n")
        needs = len(parts) if text.plain and all(cell_len(part) <= width for part in parts) else None
        height = self.styles.height
        fixed = height is not None and not height.is_auto
        self.update(text, layout=not fixed and needs != self.content_region.height)
