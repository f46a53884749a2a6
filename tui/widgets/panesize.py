"""The size of a pane beside or below a table, which the user can change with two keys."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Final

from textual.binding import Binding, BindingType
from textual.widget import Widget

#: Keys of views with such a pane.
RESIZING: Final[tuple[BindingType, ...]] = (
    Binding("less_than_sign", "resize_pane(1)", "Larger pane", key_display="<", show=False, id="pane.larger"),
    Binding("greater_than_sign", "resize_pane(-1)", "Smaller pane", key_display=">", show=False, id="pane.smaller"),
)
#: Columns and lines of a step, and of the least pane and table.
_STEP, _LEAST = {True: 4, False: 2}, {True: 20, False: 4}


class PaneSize:
    """The size of a pane.

    Args:
        pane: Returns the pane.
        sizes: Sizes that the user has chosen, by the pane's id and whether it is beside the table. Views share them.
    """

    def __init__(self, pane: Callable[[], Widget], sizes: MutableMapping[tuple[str, bool], int]) -> None:
        self._pane = pane
        self._sizes = sizes
        self._beside = False

    def lay_out(self, *, beside: bool) -> None:
        self._beside = beside
        pane = self._pane()
        size = self._sizes.get((pane.id or "", beside))
        for rule, chosen in (("width", size if beside else None), ("height", None if beside else size)):
            if chosen is None:
                pane.styles.clear_rule(rule)
            else:
                setattr(pane.styles, rule, chosen)
        pane.refresh(layout=True)

    def change(self, direction: int) -> None:
        """Makes the pane larger (1) or smaller (-1); it and the table stay visible."""
        pane, beside = self._pane(), self._beside
        room = pane.parent.size if isinstance(pane.parent, Widget) else pane.size
        whole, now = (room.width, pane.outer_size.width) if beside else (room.height, pane.outer_size.height)
        least = _LEAST[beside]
        self._sizes[pane.id or "", beside] = max(min(now + direction * _STEP[beside], whole - least), least)
        self.lay_out(beside=beside)
