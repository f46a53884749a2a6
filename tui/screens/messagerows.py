"""The rows of a channel as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from stantools.browse.payload_views import preview
from stantools.browse.window import Note, NoteKind, Row, Window, WindowMessage
from stantools.format.layout import Flag
from stantools.notation import format_size
from tui.cells import Cell, Role, time_text
from tui.widgets.rowtable import Column

_NOTE_ROLES: dict[NoteKind, Role] = {
    NoteKind.GAP: "warn",
    NoteKind.DAMAGE: "bad",
    NoteKind.BACK: "warn",
    NoteKind.INDEX: "dim",
    NoteKind.NAMED: "bad",
    NoteKind.UNINDEXED: "warn",
    NoteKind.FOREIGN: "warn",
    NoteKind.FILE: "bad",
    NoteKind.PENDING: "dim",
}
_PREVIEW = 200


class MessageRows:
    """Messages and notes as cells.

    Args:
        window: The rows; None while nothing is known.
        wide: There is room for milliseconds.
    """

    def __init__(self, window: Window | None, *, wide: bool = False) -> None:
        self.window = window
        self.wide = wide

    @property
    def columns(self) -> Sequence[Column]:
        """The columns; as wide as the last sequence needs it."""
        digits = max(len(str(self.window.highest)) if self.window is not None else 0, 5)
        return [
            Column("seq", "seq", digits, right=True),
            Column("time", "time (UTC)", 23 if self.wide else 19),
            Column("size", "size", 9, right=True),
            Column("flags", "", 3),
            Column("preview", "payload", 10, grows=True),
        ]

    def __len__(self) -> int:
        return len(self.window) if self.window is not None else 0

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Returns a part of the rows."""
        return [self._cells(row) for row in self.window.rows(start, stop)] if self.window is not None else []

    def _cells(self, row: Row) -> Sequence[Cell]:
        if isinstance(row, Note):
            return [(f"— {row.sentence()} —", _NOTE_ROLES[row.kind])]
        shown: Cell
        if row.error or (row.encrypted and self.window is not None and not self.window.decrypts):
            shown = ("encrypted", "dim")
        elif not row.size:
            shown = ("empty", "dim")
        else:
            shown = preview(row.data, _PREVIEW)
        time = time_text(row.timestamp)
        letters = flag_letters(row)
        return [
            str(row.sequence),
            time if self.wide else time[:19],
            format_size(row.size if row.error or not row.whole else len(row.data)),
            (letters, "warn" if set(letters) - {"r", "e"} else "dim"),
            shown,
        ]


def flag_letters(message: WindowMessage) -> str:
    """Returns a letter for each thing that is special about a message."""
    letters = "r" if message.reply else ""
    if message.encrypted:
        letters += "E" if message.error else "e"
    letters += "s" if message.flags & Flag.FOREIGN_SUBJECT else ""
    letters += "u" if message.flags & Flag.UNUSUAL else ""
    letters += "d" if message.flags & Flag.REDELIVERED else ""
    return letters + ("h" if message.proven else "")
