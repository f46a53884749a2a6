"""What draws line by line: of any number of lines only those that can be seen. The keys that move are the same."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual.binding import Binding
from textual.scroll_view import ScrollView

from tui.cells import Role


def moving(group: str, first: str, last: str) -> list[Binding]:
    """Returns the keys that move up and down.

    Args:
        group: What their ids begin with.
        first: What going to the beginning is called.
        last: What going to the end is called.
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


class Lines(ScrollView, can_focus=True):
    """Lines that are scrolled; subclasses render them, and say how many there are by `virtual_size`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"lines--{role}" for role in ("good", "warn", "bad", "dim", "strong", "accent")
    }

    def role_style(self, role: Role) -> Style:
        """Returns how a role looks."""
        return self.get_component_rich_style(f"lines--{role}", partial=True) if role else Style()

    def scroll_to_line(self, line: int) -> None:
        """Makes a line the first that is seen, as far as there are lines behind it."""
        self.scroll_to(y=line, animate=False, immediate=True, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Other lines can be seen."""
        super().watch_scroll_y(old_value, new_value)
        self.refresh()

    @property
    def page(self) -> int:
        """Lines of a page: a little less than can be seen."""
        return max(self.scrollable_content_region.height - 1, 1)

    def action_by(self, lines: int) -> None:
        """Moves by lines."""
        self.scroll_to_line(self.scroll_offset.y + lines)

    def action_page(self, pages: int) -> None:
        """Moves by pages."""
        self.action_by(pages * self.page)

    def action_edge(self, which: int) -> None:
        """Goes to the beginning (0) or the end (1)."""
        self.scroll_to_line(which * self.virtual_size.height)
