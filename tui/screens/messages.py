"""The messages of a channel: every row of it, what is in a message, searching, and following a running server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.inspection.search import Query, Searcher, parse_query
from stantools.inspection.survey import ChannelSurvey
from stantools.inspection.window import Note, Row, Window, WindowMessage, open_window, refine
from stantools.inspection.wireview import is_text
from stantools.store.directory import ChannelFiles
from tui.cells import Cell, counted, name_text, number
from tui.jobs import Job, State
from tui.screens import messagejumps as jumps
from tui.screens.base import ViewScreen
from tui.screens.messagerows import MessageRows
from tui.screens.prompt import PromptScreen
from tui.screens.savepayload import file_name, save_problem, write_payload
from tui.session import StoreSession
from tui.views import Place, View
from tui.widgets.line import Line
from tui.widgets.messagedetail import MessageDetail
from tui.widgets.rowtable import RowTable

#: How often the files are looked at, in seconds.
_WATCH = 0.4
#: From this many columns on the detail stands beside the table.
_BESIDE = 120
#: A larger message is read in the background.
_AT_ONCE = 1 << 21
_SEARCH_HINT = "a text; r:REGEX; x:DE AD BEEF; capitals make case count; n next, N previous"


class MessagesScreen(ViewScreen):
    """The messages of a channel."""

    NAME = "messages"
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
        self._files: ChannelFiles | None = None
        self._known: ChannelSurvey | None = None
        self._asked: bool | None = None  # whether the user wants the detail; None leaves it to the screen's size
        self._query: Query | None = None
        self._searching: Job[int | None] | None = None
        self._refining: Job[tuple[Window, tuple[object, ...]]] | None = None
        self._loading: Job[Row] | None = None
        self._said: Sequence[Cell] = ()
        self._state = ""  # what is wrong with the files since they were opened
        self._stamp: tuple[object, ...] = ()
        self._follows = False
        self._moved = False

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
        self.set_interval(_WATCH, self._watch)

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

    # opening and refining

    def facts_changed(self) -> None:
        """The channel was scanned, or the store was opened anew."""
        facts = self.session.channels.get(self._channel_name)
        survey = facts.survey if facts is not None else None
        if survey is None:
            self._known = None  # a new scan has begun
        elif survey is not self._known and self._files is not None:
            self._known = survey
            self._refine()

    def _open(self) -> None:
        facts = self.session.channels.get(self._channel_name)
        self._known = facts.survey if facts is not None else None
        reading = self.session.reading
        try:
            self._files = self.session.store.channel(self._channel_name)
            window = open_window(
                self._files,
                self.session.crc,
                check_crc=reading.check_crc,
                key=reading.encryption_key,
                survey=self._known,
            )
        except StantoolsError as problem:
            self._state = problem.message
            self._write_line()
            return
        self._stamp = _signature(self._files)
        self._use(window)
        self._go_to_place()
        self.call_after_refresh(self._note_rows)
        if not window.exact:
            self._refine()
        self._write_line()

    def _refine(self, *, to_end: bool = False) -> None:
        """Finds out all rows in the background, by the files as they are now."""
        if self._refining is not None and self._refining.running:
            self._refining.cancel()
        have, known, session, live = self._rows.window, self._known, self.session, self._follows
        name = self._channel_name

        def work(job: Job[tuple[Window, tuple[object, ...]]]) -> tuple[Window, tuple[object, ...]]:
            files = session.store.channel(name)
            seen = _signature(files)
            job.total = sum(each.index_size or each.data_size for each in files.slices)
            window = refine(
                have,
                files,
                session.crc,
                check_crc=session.reading.check_crc,
                key=session.reading.encryption_key,
                survey=known,
                live=live,
                progress=job.advance,
            )
            return window, seen

        job = Job("rows", work)

        def done() -> None:
            if job is not self._refining:
                return
            self._refining = None
            if job.state is State.DONE:
                window, self._stamp = job.result
                self._refined(window, to_end=to_end)
            elif job.problem is not None:
                self._state = job.problem.message
            self._write_line()

        self._refining = job
        self.watch_job(job, done, self._write_line)

    def _refined(self, window: Window, *, to_end: bool) -> None:
        """Puts the new rows in place of the old ones, with the cursor on the same message."""
        self._state = ""
        row = self._row_now()
        self._files = window.files
        self._use(window)
        if to_end:
            self._table.cursor = max(len(window) - 1, 0)
        elif not self._moved:
            self._go_to_place()
        elif isinstance(row, WindowMessage) or (isinstance(row, Note) and row.offset is not None):
            assert row.offset is not None
            found = self._lookup(lambda: window.row_of_place(row.file, row.offset or 0))
            if found is not None:
                self._table.show(found)
        self._show_detail()

    def _use(self, window: Window) -> None:
        before, self._rows.window = self._rows.window, window
        if before is not None:
            before.close()
        self._table.reload()

    def _lookup(self, find: Callable[[], int | None]) -> int | None:
        try:
            return find()
        except StoreUnreadableError as problem:
            self._say((problem.message, "bad"))
            return None

    # a store that lives

    def _watch(self) -> None:
        if self._files is None or (self._refining is not None and self._refining.running):
            return
        now = _signature(self._files)
        if now == self._stamp:
            return
        if not now:
            self._stamp = now
            self._state = "the channel's directory is gone; what could be read before is still shown"
        elif self._follows:
            self._follow_on()
        else:
            self._stamp = now
            self._state = "the files have changed since they were opened: F follows them, R reads everything again"
        self._write_line()

    def _follow_on(self) -> None:
        at_end = self._table.cursor >= len(self._rows) - 1
        try:
            self._files = self.session.store.channel(self._channel_name)
        except StantoolsError as problem:
            self._state = problem.message
            return
        self._stamp = _signature(self._files)
        self._state = ""
        self._refine(to_end=at_end)

    def action_follow(self) -> None:
        """Shows new messages of a running server as they come, or no longer."""
        self._follows = not self._follows
        if self._follows and self._files is not None:
            self._moved = True
            self._table.action_to(-1)
            self._follow_on()
            self.note("stantools", "messages", str(self.session.path), self._channel_name, "--tail", "1", "--follow")
        self._write_line()

    # what is seen

    def _row_now(self) -> Row | None:
        window = self._rows.window
        if window is None or not len(window):
            return None
        found = window.rows(self._table.cursor, self._table.cursor + 1)
        return found[0] if found else None

    def _message_now(self) -> WindowMessage | None:
        row = self._row_now()
        return row if isinstance(row, WindowMessage) else None

    @on(RowTable.Highlighted)
    def _highlighted(self) -> None:
        self._moved = True
        self._show_detail()
        self._write_line()

    def _show_detail(self) -> None:
        """Shows the row at the cursor; a large message when it has been read."""
        if not self._detail.display:
            return
        window, row = self._rows.window, self._row_now()
        key = window is not None and window.decrypts
        if window is None or not isinstance(row, WindowMessage) or row.whole:
            self._detail.show(row, key=key)
            return
        if row.record_size <= _AT_ONCE:
            self._detail.show(window.row(self._table.cursor), key=key)
            return
        self._detail.show_loading(row)
        at, mine = self._table.cursor, window.another()
        if self._loading is not None:
            self._loading.cancel()
        job: Job[Row] = Job("message", lambda _: mine.row(at))

        def done() -> None:
            mine.close()
            if job is self._loading and job.state is State.DONE and self._table.cursor == at:
                self._detail.show(job.result, key=key)

        self._loading = job
        self.watch_job(job, done)

    def action_detail(self) -> None:
        """Shows the message at the cursor, or hides it."""
        self._asked = not self._detail.display
        self._arrange()
        self._table.show(self._table.cursor)
        message = self._message_now()
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
        if self._follows:
            yield ("FOLLOWING  ", "accent")
        if window is not None and not len(window):
            yield ("there are no messages  ", "dim")
        elif window is not None:
            yield f"row {number(self._table.cursor + 1)} of {number(len(window))}"
            yield (f"  {counted(window.messages, 'message')}", "dim")
            if not window.decrypts and window.encrypted:
                yield ("  encrypted: no key was given", "warn")
        if self._searching is not None:
            share = f" {self._searching.share:.0%}" if self._searching.share is not None else ""
            yield (f"  searching{share}, Esc cancels", "accent")
        elif self._said:
            yield "  "
            yield from self._said
        if self._refining is not None and window is not None and not window.exact:
            share = f" {self._refining.share:.0%}" if self._refining.share is not None else ""
            yield (f"  looking for gaps{share}", "accent")
        if self._state:
            yield (f"  ! {self._state}", "bad")

    # going to places

    def go_to_hint(self) -> str:
        """Says what can be typed after `:`."""
        return jumps.HINT

    def go_to(self, text: str) -> str | None:
        """Goes to a sequence, a share or a time."""
        window = self._rows.window
        if window is None or text in self.session.channels:
            return None
        message = self._message_now()
        try:
            jump = jumps.find(text, window, message.timestamp if message is not None else 0)
        except StoreUnreadableError as problem:
            return problem.message
        if jump is None:
            return None
        self._jump(jump)
        return ""

    def _jump(self, jump: jumps.Jump) -> None:
        self._moved = True
        self._table.show(jump.row)
        self._said = ((jump.remark, "warn"),) if jump.remark else ()
        self._show_detail()
        self._write_line()
        self.call_after_refresh(self._note_rows)

    def _go_to_place(self) -> None:
        """Goes where the view was told to look."""
        window, place = self._rows.window, self.place
        if window is None or not len(window):
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
            self._moved = False
        self._show_detail()

    def _note_rows(self) -> None:
        """Remembers the command line that shows about the same messages."""
        window = self._rows.window
        if window is None:
            return
        top = self._table.scroll_offset.y
        rows = window.rows(top, top + max(self._table.visible_rows, 1))
        shown = [row.sequence for row in rows if isinstance(row, WindowMessage)]
        words = "stantools", "messages", str(self.session.path), self._channel_name
        if shown:
            self.note(*words, "--seq", f"{min(shown)}:{max(shown)}")
        else:
            self.note(*words)

    def action_note(self, way: int) -> None:
        """Goes to the next place where something is missing or wrong, or to the one before."""
        window = self._rows.window
        if window is None:
            return
        found = window.next_note(self._table.cursor, backward=way < 0)
        if found is None:
            self._say((f"no gap or damage {'above' if way < 0 else 'below'}", "dim"))
        else:
            self._jump(jumps.Jump(found))

    # searching

    def action_search(self) -> None:
        """Asks what to look for."""
        self.app.push_screen(PromptScreen("search for", _SEARCH_HINT, check=_query_problem), self._search_for)

    def _search_for(self, text: str | None) -> None:
        if text is None or not text.strip():
            return
        self._query = parse_query(text)
        self._note_search(self._query)
        self._search(1)

    def _note_search(self, query: Query) -> None:
        pattern, words = query.text, ["stantools", "messages", str(self.session.path), self._channel_name]
        kind = pattern[:2]
        if kind in ("r:", "x:", "t:"):
            pattern = pattern[2:]
        if kind == "x:":
            digits = "".join(pattern.split()).removeprefix("0x")
            pattern = "".join(f"\\x{digits[at : at + 2]}" for at in range(0, len(digits), 2))
        words += ["--grep", pattern]
        words += ["--regex"] if kind in ("r:", "x:") else []
        self.note(*words, *([] if query.case else ["--ignore-case"]))

    def action_again(self, way: int) -> None:
        """Goes to the next match, or to the one before."""
        if self._query is None:
            self.action_search()
        else:
            self._search(way)

    def _search(self, way: int) -> None:
        window, query = self._rows.window, self._query
        if window is None or query is None:
            return
        if self._searching is not None:
            self._searching.cancel()
        at, count = self._table.cursor, len(window)
        channel = os.fsencode(self._channel_name)
        searcher = Searcher(window, query, self.session.crc, channel, self.session.reading.encryption_key)

        def work(job: Job[int | None]) -> int | None:
            try:
                if way > 0:
                    found = searcher.forward(at + 1, count, job.advance)
                    return found if found is not None else searcher.forward(0, at + 1, job.advance)
                found = searcher.backward(0, at, job.advance)
                return found if found is not None else searcher.backward(at, count, job.advance)
            finally:
                searcher.close()

        job: Job[int | None] = Job("search", work, total=count)

        def done() -> None:
            if job is not self._searching:
                return
            self._searching = None
            self._found(job, query, at, way)

        self._searching = job
        self._said = ()
        self.watch_job(job, done, self._write_line)
        self._write_line()

    def _found(self, job: Job[int | None], query: Query, at: int, way: int) -> None:
        shown = name_text(query.text)
        if job.state is State.CANCELLED:
            self._say(("the search was cancelled", "warn"))
        elif job.problem is not None:
            self._say((job.problem.message, "bad"))
        elif job.result is None:
            self._say((f"not found: {shown}", "warn"))
        else:
            row = job.result
            wrapped = row <= at if way > 0 else row >= at
            self._jump(jumps.Jump(row))
            around = f", from the {'start' if way > 0 else 'end'} on" if wrapped else ""
            self._say((f"found: {shown}{around}", "good"), ("  n next  N previous", "dim"))

    # the payload

    def _whole(self) -> WindowMessage | None:
        window = self._rows.window
        row = window.row(self._table.cursor) if window is not None and len(window) else None
        if isinstance(row, WindowMessage):
            return row
        self._say(("there is no message in this row", "warn"))
        return None

    def action_copy(self) -> None:
        """Copies the payload: a text as it is, anything else in hex."""
        message = self._whole()
        if message is None:
            return
        text = is_text(message.data)
        self.app.copy_to_clipboard(message.data.decode("utf-8") if text else message.data.hex())
        self._say((f"copied {counted(len(message.data), 'byte')}{'' if text else ' in hex'}", "good"))

    def action_save(self) -> None:
        """Saves the payload to a file."""
        message = self._whole()
        if message is None:
            return
        store = self.session.path

        def write(path: Path, *, over: bool) -> None:
            try:
                write_payload(path, message.data, over=over)
            except StantoolsError as problem:
                self.browser.fail(problem)
                return
            self._say((f"saved {counted(len(message.data), 'byte')} to {name_text(str(path))}", "good"))

        def named(text: str | None) -> None:
            if text is None:
                return
            path = Path(text).expanduser()
            if not os.path.lexists(path):
                write(path, over=False)
                return
            from tui.screens.question import QuestionScreen

            question = QuestionScreen(f"Replace {name_text(str(path))}?", "It is there already; what it holds is lost.")
            self.app.push_screen(question, lambda yes: write(path, over=True) if yes else None)

        hint = "a file to write the payload to, outside of the store"
        prompt = PromptScreen(
            "file", hint, file_name(self._channel_name, message), lambda text: save_problem(text, store)
        )
        self.app.push_screen(prompt, named)

    # other views

    def action_timeline(self) -> None:
        """Opens the timeline at this message."""
        message = self._message_now()
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
        if self._searching is not None:
            self._searching.cancel()
        elif self._detail.display and self.size.width < _BESIDE:
            self.action_detail()
        else:
            self.action_back()


def _signature(files: ChannelFiles) -> tuple[object, ...]:
    """Returns what tells that the files of a channel have changed; () if its directory is gone."""
    try:
        status = files.path.stat()
    except OSError:
        return ()
    found: list[object] = [status.st_ino, status.st_mtime_ns]
    last = files.slices[-1] if files.slices else None
    for path in (last.data, last.index) if last is not None else ():
        try:
            status = path.stat() if path is not None else status
            found += [status.st_ino, status.st_mtime_ns, status.st_size]
        except OSError:
            found.append(None)
    return tuple(found)


def _query_problem(text: str) -> str:
    """Says why a text cannot be searched for; nothing typed ends the question."""
    if not text.strip():
        return ""
    try:
        parse_query(text)
    except StantoolsError as problem:
        return f"{problem.message}: {problem.remedy}" if problem.remedy else problem.message
    return ""
