"""Lines of text with roles, any number of them: only those that can be seen are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.cells import Cell, role_of, text_of


class TextPane(ScrollView, can_focus=True):
    """Shows lines. A line is a sequence of cells; they are made harmless, whatever they hold."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "by(-1)", "Up", show=False, id="text.up"),
        Binding("down,j", "by(1)", "Down", show=False, id="text.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="text.page_up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="text.page_down"),
        Binding("home,g", "end(0)", "First line", show=False, id="text.first"),
        Binding("end,G", "end(1)", "Last line", show=False, id="text.last"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "textpane--good",
        "textpane--warn",
        "textpane--bad",
        "textpane--dim",
        "textpane--strong",
        "textpane--accent",
    }

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: Sequence[Sequence[Cell]] = ()

    def show(self, lines: Sequence[Sequence[Cell]], *, keep: bool = False) -> None:
        """Shows other lines.

        Args:
            lines: The lines; asked for those that can be seen.
            keep: Stay at the place that is seen now.
        """
        self._lines = lines
        self.virtual_size = Size(max(self.scrollable_content_region.width, 1), max(len(lines), 1))
        if not keep:
            self.scroll_to(y=0, animate=False, immediate=True, force=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Renders a line."""
        row = self.scroll_offset.y + y
        width, base = self.scrollable_content_region.width, self.rich_style
        if row >= len(self._lines):
            return Strip.blank(width, base)
        segments = [Segment(text_of(cell), base + self._style(cell)) for cell in self._lines[row]]
        return Strip(segments).crop_extend(0, width, base)

    def _style(self, cell: Cell) -> Style:
        role = role_of(cell)
        return self.get_component_rich_style(f"textpane--{role}", partial=True) if role else Style()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Another part can be seen."""
        super().watch_scroll_y(old_value, new_value)
        self.refresh()

    def action_by(self, lines: int) -> None:
        """Moves by lines."""
        self.scroll_to(y=self.scroll_offset.y + lines, animate=False)

    def action_page(self, pages: int) -> None:
        """Moves by what can be seen."""
        self.action_by(pages * max(self.scrollable_content_region.height - 1, 1))

    def action_end(self, end: int) -> None:
        """Goes to the first line or to the last."""
        self.scroll_to(y=len(self._lines) if end else 0, animate=False)
