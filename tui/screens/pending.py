"""The messages that were sent to a subscription and not acknowledged, one a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.widget import Widget

from stantools.inspection.subscribers import Subscriber
from tui.cells import Cell, counted, name_text, number
from tui.screens.base import ViewScreen
from tui.session import StoreSession
from tui.views import Place, View
from tui.widgets.line import Line
from tui.widgets.rowtable import Column, RowTable


class PendingRows:
    """Pending sequences as rows.

    Args:
        sequences: Ascending.
    """

    columns = (
        Column("row", "#", 10, right=True),
        Column("seq", "sequence", 20, right=True),
        Column("gap", "after a gap of", 20, right=True, grows=True),
    )

    def __init__(self, sequences: Sequence[int]) -> None:
        self._sequences = sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns a part of the sequences."""
        found: list[Sequence[Cell]] = []
        for row in range(start, min(stop, len(self._sequences))):
            gap = self._sequences[row] - self._sequences[row - 1] - 1 if row else 0
            found.append([(number(row + 1), "dim"), str(self._sequences[row]), number(gap) if gap else ""])
        return found


class PendingScreen(ViewScreen):
    """The pending messages of a subscription.

    Args:
        session: The store.
        place: The channel.
        one: The subscription.
    """

    NAME: ClassVar[str] = "pending messages"
    TAB = View.SUBSCRIPTIONS

    def __init__(self, session: StoreSession, place: Place, one: Subscriber) -> None:
        super().__init__(session, place)
        self._one = one

    def compose_body(self) -> Iterable[Widget]:
        """Whose they are, and the list."""
        yield Line(id="subject")
        yield RowTable(PendingRows(self._one.pending))

    def on_mount(self) -> None:
        """Begins with the first one."""
        one = self._one
        self.query_one("#subject", Line).show(
            (f"subscription {one.state.id}", "strong"),
            f" of client {name_text(one.state.client_id) or 'none'}: ",
            f"{counted(len(one.pending), 'message')} sent and not acknowledged",
        )
        self.query_one(RowTable).focus()

    @on(RowTable.Selected)
    def action_open(self) -> None:
        """Opens the message at the cursor."""
        row = self.query_one(RowTable).cursor
        if row < len(self._one.pending):
            place = Place(channel=self.channel, seq=self._one.pending[row])
            self.browser.open_view(View.MESSAGES, place, above=True)

    def go_to(self, text: str) -> str | None:
        """Goes to a sequence, or to the next one that is pending."""
        if not text.isdigit():
            return None
        from bisect import bisect_left

        self.query_one(RowTable).cursor = bisect_left(self._one.pending, int(text))
        return ""

    def go_to_hint(self) -> str:
        """What can be typed."""
        return "a sequence"
