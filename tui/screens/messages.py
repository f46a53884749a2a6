"""The messages of a channel: all rows, and the message at the cursor, which can be copied and saved."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from stantools.browse.payload_views import PayloadForm, likely_form
from stantools.browse.protobuf_fields import is_text
from stantools.browse.window import Row, RowNote, WindowMessage
from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.home import expanded
from tui.cells import Cell, counted, name_text, number
from tui.jobs import Job, JobState
from tui.screens.base import LatestWork, ViewScreen
from tui.screens.dialogs import PromptScreen, QuestionScreen
from tui.screens.messagesearch import MessageSearch
from tui.screens.messagetable import HINT, MessageTable
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.messagedetail import MessageDetail
from tui.widgets.panesize import RESIZING, PaneSize
from tui.widgets.rowtable import RowTable

#: Bytes of a message from which it is read in the background.
_BACKGROUND_SIZE = 1 << 21
#: Minimum number of columns for the detail beside the table.
_WIDE = 120


class MessagesScreen(ViewScreen):
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
        *RESIZING,
        Binding("escape", "leave", "Back, or end the search", show=False, id="messages.leave"),
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self._loading: LatestWork[Row] = LatestWork(self)
        self._detail_wanted: bool | None = (
            None  # whether the user wants the detail; None: decided by the size of the screen
        )
        self._notice: Sequence[Cell] = ()

    # Layout

    def compose_body(self) -> Iterable[Widget]:
        with Container(id="messages"):
            table = MessageTable(self.session, self.place, id="message-rows")
            self._search = MessageSearch(table, self.session)
            yield table
            yield MessageDetail(id="message-detail")
        self._pane = PaneSize(lambda: self._detail, self.browser.pane_sizes)
        yield TextLine(id="message-line")

    def on_mount(self) -> None:
        self.table.focus()
        self._arrange()
        self.table.open()
        self.call_after_refresh(self._write_line)

    @property
    def table(self) -> MessageTable:
        return self.query_one(MessageTable)

    @property
    def _detail(self) -> MessageDetail:
        return self.query_one(MessageDetail)

    def on_resize(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        beside = self.size.width >= _WIDE
        body = self.query_one("#messages")
        body.set_class(beside, "-beside")
        self._detail.display = beside if self._detail_wanted is None else self._detail_wanted
        self._pane.lay_out(beside=beside)
        self._show_detail()

    # Rows

    def facts_changed(self) -> None:
        self.table.facts_changed()

    def action_follow(self) -> None:
        if self.table.follow():
            self.note("stantools", "messages", str(self.session.path), self.table.channel, "--tail", "1", "--follow")

    # The message at the cursor

    @on(RowTable.Highlighted)
    def _highlighted(self) -> None:
        self.table.moved()
        self._look_at_row()

    @on(MessageTable.Replaced)
    def _look_at_row(self) -> None:
        self._show_detail()
        self._write_line()

    def _show_detail(self) -> None:
        detail, window, at = self._detail, self.table.window, self.table.cursor
        if not detail.display:
            return
        row, key = self.table.row(), window is not None and window.decrypts
        if window is None or not isinstance(row, WindowMessage) or row.whole:
            detail.show(row, key=key)
        elif row.record_size <= _BACKGROUND_SIZE:
            detail.show(window.row(at), key=key)
        else:
            detail.show_loading(row)
            mine = window.another()

            def done(job: Job[Row]) -> None:
                mine.close()
                if self.table.cursor == at and job.state is JobState.DONE:
                    detail.show(job.result, key=key)

            self._loading.start(Job("message", lambda _: mine.row(at)), done, dropped=mine.close)

    def action_detail(self) -> None:
        self._detail_wanted = not self._detail.display
        self._arrange()
        self.table.show(self.table.cursor)
        message = self.table.message()
        if self._detail_wanted and message is not None:
            words = "stantools", "messages", str(self.session.path), self.table.channel
            self.note(*words, "--seq", str(message.sequence), "--cut", "0")

    @on(RowTable.Selected)
    def action_open(self) -> None:
        row = self.table.row()
        if isinstance(row, RowNote) and row.offset is not None:
            self.action_bytes()
        elif row is not None:
            self.action_detail()

    def action_resize_pane(self, direction: int) -> None:
        if self._detail.display:
            self._pane.change(direction)

    def action_form(self) -> None:
        if not self._detail.display:
            self.action_detail()
        else:
            self._detail.next_form()

    def action_fold(self, levels: int) -> None:
        self._detail.fold(levels)

    def action_scroll_detail(self, pages: float) -> None:
        self._detail.scroll_body(pages)

    # Status line

    @on(MessageTable.Said)
    def _show_notice(self, event: MessageTable.Said) -> None:
        self._notice = event.cells
        self._write_line()

    @on(MessageTable.Progress)
    def _write_line(self) -> None:
        if self.is_mounted:
            self.query_one("#message-line", TextLine).show(*self._line())

    def _line(self) -> Iterable[Cell]:
        window = self.table.window
        if self.table.follows:
            yield ("FOLLOWING  ", "accent")
        if window is not None and not len(window):
            yield ("there are no messages  ", "dim")
        elif window is not None:
            yield f"row {number(self.table.cursor + 1)} of {number(len(window))}"
            yield (f"  {counted(window.messages, 'message')}", "dim")
            if not window.decrypts and window.encrypted:
                yield ("  encrypted: no key was given (E)", "warn")
        if self._search.running:
            yield from self._search.progress()
        elif self._notice:
            yield "  "
            yield from self._notice
        yield from self.table.progress()
        if self.table.state:
            yield (f"  ! {self.table.state}", "bad")

    # Navigation

    def go_to_hint(self) -> str:
        return HINT

    def go_to(self, text: str) -> str | None:
        return None if text in self.session.channels else self.table.go_to(text)

    def action_note(self, direction: int) -> None:
        self.table.go_to_note(direction)

    # Search

    def action_search(self) -> None:
        self._search.ask()

    def action_again(self, direction: int) -> None:
        self._search.again(direction)

    # Payload

    def action_copy(self) -> None:
        """Copies the payload: a text unchanged, other bytes in hex."""
        message = self.table.whole_message()
        if message is not None:
            text = is_text(message.data)
            self.app.copy_to_clipboard(message.data.decode("utf-8") if text else message.data.hex())
            self.table.say((f"copied {counted(len(message.data), 'byte')}{'' if text else ' in hex'}", "good"))

    def action_save(self) -> None:
        message = self.table.whole_message()
        if message is None:
            return
        store, data = self.session.root, message.data

        def save(path: Path, *, over: bool) -> None:
            try:
                write_payload(path, data, over=over)
            except StantoolsError as problem:
                self.browser.fail(problem)
                return
            self.table.say((f"saved {counted(len(data), 'byte')} to {name_text(str(path))}", "good"))

        def named(text: str | None) -> None:
            if text is None:
                return
            path = expanded(text)
            if not os.path.lexists(path):
                save(path, over=False)
                return
            question = QuestionScreen(f"Replace {name_text(str(path))}?", "It already exists; its contents are lost.")
            self.app.push_screen(question, lambda yes: save(path, over=True) if yes else None)

        hint = "a file to write the payload to, outside of the store"
        proposed = file_name(self.table.channel, message)
        self.app.push_screen(PromptScreen("file", hint, proposed, lambda text: save_problem(text, store)), named)

    # Other views

    def action_timeline(self) -> None:
        message = self.table.message()
        place = ViewTarget(
            channel=self.table.channel,
            seq=message.sequence if message else None,
            timestamp=message.timestamp if message else None,
        )
        self.browser.open_view(View.TIMELINE, place, above=True)

    def action_bytes(self) -> None:
        row = self.table.row()
        file = self.table.file_of(row) if row is not None else None
        seq = row.sequence if isinstance(row, WindowMessage) else None
        place = ViewTarget(channel=self.table.channel, file=file, offset=row.offset if row else None, seq=seq)
        self.browser.open_view(View.SLICES, place, above=True)

    def action_findings(self) -> None:
        self.browser.open_view(View.FINDINGS, ViewTarget(channel=self.table.channel), above=True)

    def action_leave(self) -> None:
        if self._search.running:
            self._search.cancel()
        elif self._detail.display and self.size.width < _WIDE:
            self.action_detail()
        else:
            self.action_back()


_ENDINGS = {PayloadForm.JSON: "json", PayloadForm.TEXT: "txt", PayloadForm.PROTOBUF: "bin", PayloadForm.HEX: "bin"}
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)
_LONGEST = 80


def file_name(channel: str, message: WindowMessage) -> str:
    """Proposes a file name for a payload, made of letters, digits, dots and dashes only."""
    name = _UNSAFE.sub("_", channel)[:_LONGEST].lstrip(".-") or "message"
    return f"{name}-{message.sequence}.{_ENDINGS[likely_form(message.data)]}"


def save_problem(text: str, store: Path) -> str:
    """Returns the reason why a file name is refused; "" if it is fine. Files in the store are refused."""
    if not text.strip():
        return "name a file"
    try:
        path = Path(os.path.realpath(expanded(text)))
        if path.is_dir():
            return "that is a directory"
        if path.is_relative_to(os.path.realpath(store)):
            return "that is in the store, which is only read; choose another place"
        if not path.parent.is_dir():
            return "no such directory"
    except (OSError, ValueError, StantoolsError) as problem:
        return f"that is not a name for a file: {problem}"
    return ""


def write_payload(path: Path, data: bytes, *, over: bool) -> None:
    """Writes a file. Raises `StoreUnwritableError`, without `over` also if the file exists."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if over else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o666), "wb") as file:  # noqa: PTH123
            file.write(data)
    except OSError as problem:
        raise StoreUnwritableError(
            f"{path}: cannot be written: {problem.strerror}", "choose another name or place"
        ) from problem
