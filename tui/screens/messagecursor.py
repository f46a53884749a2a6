"""The rows of a channel and the cursor in them: what is there, where a text leads, how it stays when rows change."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stantools.browse.payload_views import preview
from stantools.browse.window import Note, NoteKind, Row, Window, WindowMessage
from stantools.errors import StoreUnreadableError
from stantools.format.layout import Flag
from stantools.notation import format_size, format_time, parse_time
from tui.cells import Cell, Role, time_text
from tui.screens.base import ViewScreen
from tui.widgets.rowtable import Column, RowTable

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


_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_NUMBER = re.compile(r"-?\d+")
_CLOCK = re.compile(r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?")
HINT = "a sequence; -1 the last; 50%; a time such as 2026-11-21T03:00:00Z, 03:00 or 1h (ago)"


@dataclass(frozen=True)
class Jump:
    """Where to go.

    Attributes:
        row: The row.
        remark: Why it is not exactly what was wanted, "" if it is.
    """

    row: int
    remark: str = ""


def find(text: str, window: Window, today: int) -> Jump | None:
    """Returns where a text leads, None if it is no place in a channel.

    Args:
        text: What the user typed.
        window: The rows of the channel.
        today: A time on the day that a time of day means, in nanoseconds since 1970.

    Raises:
        StoreUnreadableError: The channel's files cannot be read.
    """
    text = text.strip()
    if match := _SHARE.fullmatch(text):
        return Jump(window.row_of_share(float(match[1]) / 100))
    if _NUMBER.fullmatch(text):
        number = int(text)
        return Jump(window.row_from_end(-number)) if number < 0 else to_sequence(window, number)
    if _CLOCK.fullmatch(text):
        text = f"{format_time(today)[:10]}T{text}"
    try:
        return to_time(window, parse_time(text))
    except (ValueError, OverflowError):
        return None


def to_sequence(window: Window, sequence: int) -> Jump:
    """Returns where a sequence is, or would be.

    Raises:
        StoreUnreadableError: The channel's files cannot be read.
    """
    row = window.row_of_sequence(sequence)
    there = window.rows(row, row + 1)
    if not there:
        return Jump(0, "there are no messages")
    found = there[0]
    if isinstance(found, Note):
        return Jump(row, "" if found.first <= sequence <= found.last else f"sequence {sequence} is not there")
    if found.sequence == sequence:
        return Jump(row)
    return Jump(row, f"sequence {sequence} is not there; this is the nearest")


def to_time(window: Window, timestamp: int) -> Jump:
    """Returns where the first message is that is not older than a time.

    Raises:
        StoreUnreadableError: The channel's files cannot be read.
    """
    row = window.row_of_time(timestamp)
    there = window.rows(row, row + 1)
    if there and isinstance(there[0], WindowMessage) and there[0].timestamp < timestamp:
        return Jump(row, "all messages are older")
    return Jump(row)


class MessageCursor:
    """The cursor of a screen that has one table of messages.

    Args:
        screen: The screen; its place is where the cursor is at first.
        channel: The channel's name.
        rows: What has the window that is shown.
        say: Tells why it went elsewhere, or nowhere; without a text, that there is nothing to tell.
        shown: Called when another row is to be shown in detail.
    """

    def __init__(
        self,
        screen: ViewScreen,
        channel: str,
        rows: MessageRows,
        *,
        say: Callable[..., None],
        shown: Callable[[], None],
    ) -> None:
        self._screen = screen
        self._channel = channel
        self._rows = rows
        self._say, self._shown = say, shown
        #: The user has moved it: it is not put to the screen's place any more.
        self.moved = False

    @property
    def _table(self) -> RowTable:
        return self._screen.query_one(RowTable)

    # what is there

    def row(self) -> Row | None:
        """Returns the row at the cursor; a payload may be cut."""
        window = self._rows.window
        if window is None or not len(window):
            return None
        found = window.rows(self._table.cursor, self._table.cursor + 1)
        return found[0] if found else None

    def message(self) -> WindowMessage | None:
        """Returns the message at the cursor, if there is one; its payload may be cut."""
        row = self.row()
        return row if isinstance(row, WindowMessage) else None

    def whole_message(self) -> WindowMessage | None:
        """Returns the message at the cursor with all of its payload; says so if there is none."""
        window = self._rows.window
        row = window.row(self._table.cursor) if window is not None and len(window) else None
        if isinstance(row, WindowMessage):
            return row
        self._say(("there is no message in this row", "warn"))
        return None

    # other rows

    def begin(self, window: Window) -> None:
        """Shows the first rows, at the screen's place."""
        self._use(window)
        self._to_place(window)
        self._screen.call_after_refresh(self._note_rows)

    def replace(self, window: Window, to_end: bool) -> None:
        """Shows other rows, with the cursor on the same message or on the last row."""
        row = self.row()
        self._use(window)
        if to_end:
            self._table.cursor = max(len(window) - 1, 0)
        elif not self.moved:
            self._to_place(window)
        elif isinstance(row, WindowMessage) or (isinstance(row, Note) and row.offset is not None):
            assert row.offset is not None
            found = self._lookup(lambda: window.row_of_place(row.file, row.offset or 0))
            if found is not None:
                self._table.show(found)
        self._shown()

    def _use(self, window: Window) -> None:
        before, self._rows.window = self._rows.window, window
        if before is not None:
            before.close()
        self._table.reload()

    # going to places

    def go_to(self, text: str) -> str | None:
        """Goes to a sequence, a share or a time; see `ViewScreen.go_to`."""
        window = self._rows.window
        if window is None:
            return None
        message = self.message()
        try:
            jump = find(text, window, message.timestamp if message is not None else 0)
        except StoreUnreadableError as problem:
            return problem.message
        if jump is None:
            return None
        self._jump(jump)
        return ""

    def go_to_row(self, row: int) -> None:
        """Goes to a row."""
        self._jump(Jump(row))

    def go_to_note(self, way: int) -> None:
        """Goes to the next place where something is missing or wrong (1), or to the one before (-1)."""
        window = self._rows.window
        if window is None:
            return
        found = window.next_note(self._table.cursor, backward=way < 0)
        if found is None:
            self._say((f"no gap or damage {'above' if way < 0 else 'below'}", "dim"))
        else:
            self.go_to_row(found)

    def go_to_end(self) -> None:
        """Goes to the last row."""
        self.moved = True
        self._table.action_to(-1)

    def _jump(self, jump: Jump) -> None:
        self.moved = True
        self._table.show(jump.row)
        self._shown()
        self._say(*[(jump.remark, "warn")] if jump.remark else [])
        self._screen.call_after_refresh(self._note_rows)

    def _to_place(self, window: Window) -> None:
        """Goes where the screen was told to look."""
        place = self._screen.place
        if not len(window):
            return
        row: int | None = None
        if place.file is not None and place.offset is not None:
            row = self._lookup(lambda: window.row_of_place(place.file or "", place.offset or 0))
        if row is None and place.seq is not None:
            row = self._lookup(lambda: to_sequence(window, place.seq or 0).row)
        if row is None and place.timestamp is not None:
            row = self._lookup(lambda: window.row_of_time(place.timestamp or 0))
        if row is not None:
            self._table.show(row)
            self.moved = False
        self._shown()

    def _lookup(self, find: Callable[[], int | None]) -> int | None:
        try:
            return find()
        except StoreUnreadableError as problem:
            self._say((problem.message, "bad"))
            return None

    def _note_rows(self) -> None:
        """Remembers the command line that shows about the same messages."""
        window = self._rows.window
        if window is None:
            return
        top = self._table.scroll_offset.y
        rows = window.rows(top, top + max(self._table.visible_rows, 1))
        shown = [row.sequence for row in rows if isinstance(row, WindowMessage)]
        words = "stantools", "messages", str(self._screen.session.path), self._channel
        if shown:
            self._screen.note(*words, "--seq", f"{min(shown)}:{max(shown)}")
        else:
            self._screen.note(*words)
