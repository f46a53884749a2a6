"""The cursor in the messages of a channel: what is there, where it goes, how it stays when the rows change."""

from __future__ import annotations

from collections.abc import Callable

from stantools.browse.window import Note, Row, Window, WindowMessage
from stantools.errors import StoreUnreadableError
from tui.screens import messagejumps as jumps
from tui.screens.base import ViewScreen
from tui.screens.messagerows import MessageRows
from tui.widgets.rowtable import RowTable


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
            jump = jumps.find(text, window, message.timestamp if message is not None else 0)
        except StoreUnreadableError as problem:
            return problem.message
        if jump is None:
            return None
        self._jump(jump)
        return ""

    def go_to_row(self, row: int) -> None:
        """Goes to a row."""
        self._jump(jumps.Jump(row))

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

    def _jump(self, jump: jumps.Jump) -> None:
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
            row = self._lookup(lambda: jumps.to_sequence(window, place.seq or 0).row)
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
