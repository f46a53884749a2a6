"""An account of a wizard as the rows of a table: its rows, and below them its remarks as paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from stantools.escaping import escape_line
from tui.cells import Cell
from tui.plans.account import Account, Remark
from tui.widgets.rowtable import Column


class AccountRows:
    """A source of rows.

    Args:
        account: What is told.
        width: Columns of the screen that paragraphs may have.
    """

    def __init__(self, account: Account, width: int) -> None:
        # A row of one cell is a paragraph only where there are several columns.
        headings = list(account.headings)
        self.columns: Sequence[Column] = [
            *(
                Column(f"{place}", each.title, each.width, each.right, each.grows)
                for place, each in enumerate(headings)
            ),
            *(Column(f"{place}", "", 1, grows=True) for place in range(len(headings), 2)),
        ]
        self._rows = account.rows
        self._paragraphs = [line for remark in account.remarks for line in _lines(remark, max(width, 20))]
        if self._rows and self._paragraphs:
            self._paragraphs.insert(0, [""])

    def __len__(self) -> int:
        return len(self._rows) + len(self._paragraphs)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns a part of the rows."""
        count = len(self._rows)
        below = self._paragraphs[max(start - count, 0) : max(stop - count, 0)]
        return [*self._rows[start:stop], *below]


def _lines(remark: Remark, width: int) -> Iterator[list[Cell]]:
    text = f"{remark.word}: {remark.text}" if remark.word != "…" else f"… {remark.text}"
    parts = [
        part for line in text.split("\n") for part in textwrap.wrap(escape_line(line), width, subsequent_indent="    ")
    ]
    for number, part in enumerate(parts):
        yield [(part, remark.role if not number else "dim")]
