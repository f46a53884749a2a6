"""The messages of a channel: every row of it, and what is in a message.

The screen has the layout, the line below and the keys. The cursor, the files, the search, the detail and the payload
have modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from stantools.browse.window import Note, Row, WindowMessage
from tui.cells import Cell, counted, number
from tui.screens.base import ViewScreen
from tui.screens.messagecursor import HINT, MessageCursor, MessageRows
from tui.screens.messagefiles import MessageFiles
from tui.screens.messagepayload import DetailLoading, copy_payload, save_payload, write_payload
from tui.screens.messagesearch import MessageSearch
from tui.session import StoreSession
from tui.views import Place, View
from tui.widgets.line import Line
from tui.widgets.messagedetail import MessageDetail
from tui.widgets.rowtable import RowTable

#: How often the files are looked at, in seconds.
_WATCH = 0.4
#: From this many columns on the detail stands beside the table.
_BESIDE = 120


class MessagesScreen(ViewScreen):
    """The messages of a channel."""

    NAME = "messages"
    TAB = View.MESSAGES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Detail", id="messages.open"),
        Binding("space", "detail", "Show or hide the detail", show=False, id="messages.detail"),
        Binding("slash", "search", "Search", key_display="/", id="messages.search"),
        Binding("n", "again(1)", "Next match", show=False, id="messages.next"),
        Binding("N", "again(-1)", "Previous match", show=False, id="messages.previous"),
        Binding("right_square_bracket", "note(1)", "Next gap", key_display="]", id="messages.next_note"),
        Binding("left_square_bracket", "note(-1)", "Previous gap or damage", show=False, id="messages.previous_note"),
        Binding("v", "form", "Next view of the payload", show=False, id="messages.form"),
        Binding("plus,equals_sign", "fold(1)", "More levels of a payload", show=False, id="messages.unfold"),
        Binding("minus", "fold(-1)", "Fewer levels of a payload", show=False, id="messages.fold"),
        Binding("J", "scroll_detail(0.5)", "Payload down", show=False, id="messages.detail_down"),
        Binding("K", "scroll_detail(-0.5)", "Payload up", show=False, id="messages.detail_up"),
        Binding("y", "copy", "Copy the payload", show=False, id="messages.copy"),
        Binding("w", "save", "Save the payload", show=False, id="messages.save"),
        Binding("F", "follow", "Follow", id="messages.follow"),
        Binding("t", "timeline", "Timeline", show=False, id="messages.timeline"),
        Binding("x", "bytes", "Bytes", id="messages.bytes"),
        Binding("f", "findings", "Findings of the channel", show=False, id="messages.findings"),
        Binding("escape", "leave", "Back, or end the search", show=False, id="messages.leave"),
    ]

    def __init__(self, session: StoreSession | None, place: Place) -> None:
        super().__init__(session, place)
        self._rows = MessageRows(None)
        name = self._channel_name
        self._cursor = MessageCursor(self, name, self._rows, say=self._say, shown=self._show_detail)
        self._files = MessageFiles(self, name, self._rows, put=self._cursor.replace, changed=self._write_line)
        self._search = MessageSearch(
            self, name, self._rows, go=self._cursor.go_to_row, say=self._say, changed=self._write_line
        )
        self._loading = DetailLoading(self, self._rows)
        self._asked: bool | None = None  # whether the user wants the detail; None leaves it to the screen's size
        self._said: Sequence[Cell] = ()

    # layout

    def compose_body(self) -> Iterable[Widget]:
        """The table, the message at the cursor, a line about both."""
        with Container(id="messages"):
            yield RowTable(self._rows, id="message-rows")
            yield MessageDetail(id="message-detail")
        yield Line(id="message-line")

    def on_mount(self) -> None:
        """Opens the channel."""
        self._table.focus()
        self._arrange()
        self._open()
        self.call_after_refresh(self._write_line)
        self.set_interval(_WATCH, self._files.watch)

    def on_unmount(self) -> None:
        """Closes the files."""
        if self._rows.window is not None:
            self._rows.window.close()

    @property
    def _table(self) -> RowTable:
        return self.query_one(RowTable)

    @property
    def _detail(self) -> MessageDetail:
        return self.query_one(MessageDetail)

    @property
    def _channel_name(self) -> str:
        assert self.place.channel is not None
        return self.place.channel

    def on_resize(self) -> None:
        """Puts the detail beside the table where there is room."""
        self._arrange()

    def _arrange(self) -> None:
        beside = self.size.width >= _BESIDE
        body = self.query_one("#messages")
        body.set_class(beside, "-beside")
        self._detail.display = beside if self._asked is None else self._asked
        self._rows.wide = self.size.width >= _BESIDE and not self._detail.display
        self._table.reload()
        self._show_detail()

    # the rows

    def facts_changed(self) -> None:
        """The channel was scanned, or the store was opened anew."""
        self._files.facts_changed()

    def _open(self) -> None:
        window = self._files.open()
        if window is None:
            return
        self._cursor.begin(window)
        if not window.exact:
            self._files.refine()
        self._write_line()

    def action_follow(self) -> None:
        """Shows new messages of a running server as they come, or no longer."""
        if self._files.follow():
            self._cursor.go_to_end()
            self._files.catch_up()
            self.note("stantools", "messages", str(self.session.path), self._channel_name, "--tail", "1", "--follow")
        self._write_line()

    # what is seen

    def _row_now(self) -> Row | None:
        return self._cursor.row()

    @on(RowTable.Highlighted)
    def _highlighted(self) -> None:
        self._cursor.moved = True
        self._show_detail()
        self._write_line()

    def _show_detail(self) -> None:
        if self._detail.display:
            self._loading.show(self._row_now())

    def action_detail(self) -> None:
        """Shows the message at the cursor, or hides it."""
        self._asked = not self._detail.display
        self._arrange()
        self._table.show(self._table.cursor)
        message = self._cursor.message()
        if self._asked and message is not None:
            words = "stantools", "messages", str(self.session.path), self._channel_name
            self.note(*words, "--seq", str(message.sequence), "--cut", "0")

    def action_open(self) -> None:
        """Shows a message, or the bytes of what is damaged."""
        row = self._row_now()
        if isinstance(row, Note) and row.offset is not None:
            self.action_bytes()
        elif row is not None:
            self.action_detail()

    @on(RowTable.Selected)
    def _selected(self) -> None:
        self.action_open()

    def action_form(self) -> None:
        """Shows the payload in the next form."""
        if not self._detail.display:
            self.action_detail()
        else:
            self._detail.next_form()

    def action_fold(self, levels: int) -> None:
        """Shows more levels of a structure, or fewer."""
        self._detail.fold(levels)

    def action_scroll_detail(self, pages: float) -> None:
        """Moves the payload."""
        self._detail.scroll_body(pages)

    # the line below

    def _say(self, *cells: Cell) -> None:
        self._said = cells
        self._write_line()

    def _write_line(self) -> None:
        if self.is_mounted:
            self.query_one("#message-line", Line).show(*self._line())

    def _line(self) -> Iterable[Cell]:
        window = self._rows.window
        if self._files.follows:
            yield ("FOLLOWING  ", "accent")
        if window is not None and not len(window):
            yield ("there are no messages  ", "dim")
        elif window is not None:
            yield f"row {number(self._table.cursor + 1)} of {number(len(window))}"
            yield (f"  {counted(window.messages, 'message')}", "dim")
            if not window.decrypts and window.encrypted:
                yield ("  encrypted: no key was given (E)", "warn")
        if self._search.running:
            yield from self._search.cells()
        elif self._said:
            yield "  "
            yield from self._said
        yield from self._files.cells()
        if self._files.state:
            yield (f"  ! {self._files.state}", "bad")

    # going to places

    def go_to_hint(self) -> str:
        """Says what can be typed after `:`."""
        return HINT

    def go_to(self, text: str) -> str | None:
        """Goes to a sequence, a share or a time."""
        return None if text in self.session.channels else self._cursor.go_to(text)

    def action_note(self, way: int) -> None:
        """Goes to the next place where something is missing or wrong, or to the one before."""
        self._cursor.go_to_note(way)

    # searching

    def action_search(self) -> None:
        """Asks what to look for."""
        self._search.ask()

    def action_again(self, way: int) -> None:
        """Goes to the next match, or to the one before."""
        self._search.again(way)

    # the payload

    def action_copy(self) -> None:
        """Copies the payload: a text as it is, anything else in hex."""
        message = self._cursor.whole_message()
        if message is not None:
            self._say(copy_payload(self, message))

    def action_save(self) -> None:
        """Saves the payload to a file."""
        message = self._cursor.whole_message()
        if message is not None:
            save_payload(self, self._channel_name, message, write_payload, self._say)

    # other views

    def action_timeline(self) -> None:
        """Opens the timeline at this message."""
        message = self._cursor.message()
        place = Place(
            channel=self._channel_name,
            seq=message.sequence if message else None,
            timestamp=message.timestamp if message else None,
        )
        self.browser.open_view(View.TIMELINE, place, above=True)

    def action_bytes(self) -> None:
        """Opens the bytes of this row."""
        row = self._row_now()
        file = f"{self._channel_name}/{row.file}" if row is not None and row.file else None
        seq = row.sequence if isinstance(row, WindowMessage) else None
        place = Place(channel=self._channel_name, file=file, offset=row.offset if row else None, seq=seq)
        self.browser.open_view(View.SLICES, place, above=True)

    def action_findings(self) -> None:
        """Opens the findings of the channel."""
        self.browser.open_view(View.FINDINGS, Place(channel=self._channel_name), above=True)

    def action_leave(self) -> None:
        """Ends a search, hides the detail that was asked for, or goes back."""
        if self._search.running:
            self._search.cancel()
        elif self._detail.display and self.size.width < _BESIDE:
            self.action_detail()
        else:
            self.action_back()
