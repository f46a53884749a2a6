"""The base of widgets that draw line by line, and only the visible lines. They share their keys for movement."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual.binding import Binding
from textual.scroll_view import ScrollView

from tui.cells import Role


def moving(group: str, first: str, last: str) -> list[Binding]:
    """Returns the keys that move up and down.

    `group` is the prefix of their ids; `first` and `last` describe the keys for the beginning and the end.
    """
    keys = (
        ("up,k", "by(-1)", "Up", "up"),
        ("down,j", "by(1)", "Down", "down"),
        ("pageup,ctrl+b", "page(-1)", "Page up", "page_up"),
        ("pagedown,ctrl+f", "page(1)", "Page down", "page_down"),
        ("home,g", "edge(0)", first, "first"),
        ("end,G", "edge(1)", last, "last"),
    )
    return [Binding(key, action, text, show=False, id=f"{group}.{name}") for key, action, text, name in keys]


class LineView(ScrollView, can_focus=True):
    """Scrollable lines; subclasses render them and set their number with `virtual_size`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"lines--{role}" for role in ("good", "warn", "bad", "dim", "strong", "accent")
    }

    def role_style(self, role: Role) -> Style:
        return self.get_component_rich_style(f"lines--{role}", partial=True) if role else Style()

    def scroll_to_line(self, line: int) -> None:
        """Scrolls a line to the top, as far as enough lines follow it."""
        self.scroll_to(y=line, animate=False, immediate=True, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.refresh()

    @property
    def page(self) -> int:
        """Lines of a page, a few less than visible."""
        return max(self.scrollable_content_region.height - 1, 1)

    def action_by(self, lines: int) -> None:
        self.scroll_to_line(self.scroll_offset.y + lines)

    def action_page(self, pages: int) -> None:
        self.action_by(pages * self.page)

    def action_edge(self, which: int) -> None:
        """Goes to the beginning (0) or the end (1)."""
        self.scroll_to_line(which * self.virtual_size.height)
