"""The messages of a channel as a table: cursor movement, and updates when the channel's files change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from textual.message import Message

from stantools.browse.browsed_channel import BrowsedChannel
from stantools.browse.payload_views import preview
from stantools.browse.window import Row, RowNote, RowNoteKind, RowWindow, WindowMessage
from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.format.layout import Flag
from stantools.notation import format_size
from stantools.store.growing_channel import Sign
from tui.cells import Cell, Role, name_text
from tui.jobs import Job, JobState
from tui.rows import RowSource, TableColumn, time_column
from tui.screens.base import LatestWork, ViewScreen
from tui.session import SourceSession
from tui.views import ViewTarget, share_of, time_of
from tui.widgets.rowtable import RowTable

#: Interval for looking at the files, in seconds.
_WATCH = 0.4
#: Differs whenever the files of a channel have changed; begins with None if its directory is gone.
_Signature = tuple[Sign, ...]
_Refined = tuple[RowWindow, BrowsedChannel, _Signature]
_NOTE_ROLES: dict[RowNoteKind, Role] = {
    RowNoteKind.GAP: "warn",
    RowNoteKind.DELETED: "dim",
    RowNoteKind.DAMAGE: "bad",
    RowNoteKind.BACK: "warn",
    RowNoteKind.INDEX: "dim",
    RowNoteKind.NAMED: "bad",
    RowNoteKind.UNINDEXED: "warn",
    RowNoteKind.FOREIGN: "warn",
    RowNoteKind.FILE: "bad",
    RowNoteKind.PENDING: "dim",
}
_PREVIEW = 200


class MessageTableRows(RowSource[Row]):
    def __init__(self) -> None:
        self.window: RowWindow | None = None  #: the rows; None before the files are open
        self.arrange()

    def arrange(self) -> None:
        digits = max(len(str(self.window.highest)) if self.window is not None else 0, 5)
        self.columns: Sequence[TableColumn[Any]] = (
            TableColumn("seq", digits, lambda row: str(row.sequence), right=True),
            time_column("time (UTC)", lambda row: row.timestamp),
            TableColumn(
                "size",
                9,
                lambda row: format_size(row.size if row.error or not row.whole else len(row.data)),
                right=True,
            ),
            TableColumn("", 3, _flags),
            *((TableColumn("subject", 10, _subject, grows=True),) if self._has_subjects else ()),
            TableColumn("payload", 10, self._payload, grows=True),
        )

    @property
    def _has_subjects(self) -> bool:
        return self.window is not None and self.window.reader.has_subjects

    def __len__(self) -> int:
        return len(self.window) if self.window is not None else 0

    def things(self, start: int, stop: int) -> Sequence[Row]:
        return self.window.rows(start, stop) if self.window is not None else []

    def heading(self, thing: Row) -> Cell | None:
        return (f"— {thing.sentence()} —", _NOTE_ROLES[thing.kind]) if isinstance(thing, RowNote) else None

    def _payload(self, row: WindowMessage) -> Cell:
        if row.error or (row.encrypted and self.window is not None and not self.window.decrypts):
            return "encrypted", "dim"
        return preview(row.data, _PREVIEW) if row.size else ("empty", "dim")


def _subject(message: WindowMessage) -> Cell:
    return name_text(message.subject), "strong"


def _flags(message: WindowMessage) -> Cell:
    letters = flag_letters(message)
    return letters, "warn" if set(letters) - {"r", "e"} else "dim"


def flag_letters(message: WindowMessage) -> str:
    letters = "r" if message.reply else ""
    if message.encrypted:
        letters += "E" if message.error else "e"
    letters += "s" if message.flags & Flag.FOREIGN_SUBJECT else ""
    letters += "u" if message.flags & Flag.UNUSUAL else ""
    letters += "d" if message.flags & Flag.REDELIVERED else ""
    return letters + ("h" if message.proven or message.headers else "")


_NUMBER = re.compile(r"-?\d+")
HINT = "a sequence; -1 the last; 50%; a time such as 2026-11-21T03:00:00Z, 03:00 or 1h (ago)"


@dataclass(frozen=True)
class JumpTarget:
    row: int
    remark: str = ""  #: the difference from the place the user typed; "" if none


def find(text: str, window: RowWindow, today: int) -> JumpTarget | None:
    """Finds the row of a sequence, share or time; None if the text is none of them.

    `today` is a time in nanoseconds on the day of a time of day. Raises `StoreUnreadableError`.
    """
    text = text.strip()
    if (share := share_of(text)) is not None:
        return JumpTarget(window.row_of_share(share))
    if _NUMBER.fullmatch(text):
        number = int(text)
        return JumpTarget(window.row_from_end(-number)) if number < 0 else to_sequence(window, number)
    try:
        return to_time(window, time_of(text, today))
    except (ValueError, OverflowError):
        return None


def to_sequence(window: RowWindow, sequence: int) -> JumpTarget:
    """Finds the row of a sequence, or the nearest one. Raises `StoreUnreadableError`."""
    row = window.row_of_sequence(sequence)
    there = window.rows(row, row + 1)
    if not there:
        return JumpTarget(0, "there are no messages")
    found = there[0]
    if isinstance(found, RowNote):
        return JumpTarget(row, "" if found.first <= sequence <= found.last else f"sequence {sequence} does not exist")
    if found.sequence == sequence:
        return JumpTarget(row)
    return JumpTarget(row, f"sequence {sequence} does not exist; this is the nearest")


def to_time(window: RowWindow, timestamp: int) -> JumpTarget:
    """Finds the first message that is not older than a time. Raises `StoreUnreadableError`."""
    row = window.row_of_time(timestamp)
    there = window.rows(row, row + 1)
    if there and isinstance(there[0], WindowMessage) and there[0].timestamp < timestamp:
        return JumpTarget(row, "all messages are older")
    return JumpTarget(row)


class MessageTable(RowTable):
    """The messages of a channel. A first version of the rows is shown at once; the exact rows follow in the background.

    The cursor starts at the place.
    """

    @dataclass
    class Said(Message):
        """A remark about the last movement; without cells, the last remark is obsolete."""

        cells: Sequence[Cell] = ()

    class Replaced(Message):
        """The rows or the row at the cursor changed."""

    class Progress(Message):
        pass

    def __init__(self, session: SourceSession, place: ViewTarget, *, id: str | None = None) -> None:
        assert place.channel is not None
        self._rows_shown = MessageTableRows()
        super().__init__(self._rows_shown, id=id)
        self._session, self._place, self.channel = session, place, place.channel
        self.state = ""  #: problem with the files since they were opened
        self.follows = False  #: new messages are shown as they arrive
        self._moved = False  # by the user: the cursor no longer moves to the place
        self._files: BrowsedChannel | None = None
        self._known: object = None
        self._stamp: _Signature = ()
        self._refining: LatestWork[_Refined] = LatestWork(self)

    def on_mount(self) -> None:
        self.set_interval(_WATCH, self._watch)

    def on_unmount(self) -> None:
        if self.window is not None:
            self.window.close()

    @property
    def window(self) -> RowWindow | None:
        return self._rows_shown.window

    def say(self, *cells: Cell) -> None:
        self.post_message(self.Said(cells))

    # Contents

    def row(self) -> Row | None:
        if self.window is None or not len(self.window):
            return None
        found = self.window.rows(self.cursor, self.cursor + 1)
        return found[0] if found else None

    def message(self) -> WindowMessage | None:
        """Returns the message at the cursor, if any; its payload may be truncated."""
        row = self.row()
        return row if isinstance(row, WindowMessage) else None

    def whole_message(self) -> WindowMessage | None:
        """Returns the message at the cursor with its whole payload; posts a remark if there is none."""
        row = self.window.row(self.cursor) if self.window is not None and len(self.window) else None
        if isinstance(row, WindowMessage):
            return row
        self.say(("there is no message in this row", "warn"))
        return None

    def file_of(self, row: Row) -> str | None:
        """Returns the file of a row as findings name it."""
        if self._files is None or not row.file:
            return None
        return self._session.file_name(self._files.path_of(row.file))

    # Files

    def open(self) -> None:
        self._known = self._survey()
        session = self._session
        try:
            self._files = session.channel(self.channel)
            window = self._files.open()
        except StantoolsError as problem:
            self.state = problem.message
            self.post_message(self.Progress())
            return
        self._stamp = self._files.signature()
        self._use(window)
        self._to_place(window)
        self.call_after_refresh(self._note_rows)
        if not window.exact:
            self._refine()

    def facts_changed(self) -> None:
        survey = self._survey()
        if survey is None:
            self._known = None  # a new scan has started
        elif survey is not self._known and self._files is not None:
            self._known = survey
            self._refine()
        window, key = self.window, self._session.key
        if window is not None and not window.reader.has_subjects and window.key != key:
            if self._refining.job is not None:
                self._refine()  # the present jobs read with the old key
            self._replace(window.with_key(key))

    def _survey(self) -> object:
        return self._session.survey(self.channel)

    def progress(self) -> Iterable[Cell]:
        if self._refining.job is not None and self.window is not None and not self.window.exact:
            yield (f"  looking for gaps{self._refining.share_text()}", "accent")

    def _refine(self, *, to_end: bool = False) -> None:
        """Determines the exact rows of the present files in the background."""
        have, session, live, name = self.window, self._session, self.follows, self.channel

        def work(job: Job[_Refined]) -> _Refined:
            files = session.channel(name)
            seen = files.signature()
            job.total = files.bytes_to_read()
            return files.refine(have, live=live, progress=job.advance), files, seen

        def done(job: Job[_Refined]) -> None:
            if job.state is JobState.DONE:
                window, self._files, self._stamp = job.result
                self.state = ""
                self._replace(window, to_end=to_end)
            elif job.problem is not None:
                self.state = job.problem.message
            self.post_message(self.Progress())

        self._refining.start(Job("rows", work), done, lambda: self.post_message(self.Progress()))

    def _watch(self) -> None:
        """Reports changed files, or shows the new rows in follow mode."""
        if self._files is None or self._refining.job is not None:
            return
        now = self._files.signature()
        if now == self._stamp:
            return
        if now[0] is None:
            self._stamp = now
            self.state = "the channel's directory is gone; the rows read before are still shown"
        elif self.follows:
            self._catch_up()
        else:
            self._stamp = now
            self.state = "the files have changed since they were opened: F follows them, R reads everything again"
        self.post_message(self.Progress())

    def follow(self) -> bool:
        """Turns follow mode on or off; returns False if there are no files to follow."""
        self.follows = not self.follows
        follows = self.follows and self._files is not None
        if follows:
            self._moved = True
            self.action_edge(1)
            self._catch_up()
        self.post_message(self.Progress())
        return follows

    def _catch_up(self) -> None:
        """Reads the rows of the present files; a cursor at the end stays at the end."""
        at_end = self.cursor >= len(self._rows_shown) - 1
        try:
            self._files = self._session.channel(self.channel)
        except StantoolsError as problem:
            self.state = problem.message
            return
        self._stamp = self._files.signature()
        self.state = ""
        self._refine(to_end=at_end)

    def _replace(self, window: RowWindow, *, to_end: bool = False) -> None:
        """Replaces the rows; the cursor stays on its message, or goes to the last row."""
        row = self.row()
        self._use(window)
        if to_end:
            self.cursor = max(len(window) - 1, 0)
        elif not self._moved:
            self._to_place(window)
        elif isinstance(row, WindowMessage) or (isinstance(row, RowNote) and row.offset is not None):
            file, offset = row.file, row.offset or 0
            found = self._lookup(lambda: window.row_of_place(file, offset))
            if found is not None:
                self.show(found)

    def _use(self, window: RowWindow) -> None:
        before, self._rows_shown.window = self.window, window
        self._rows_shown.arrange()
        if before is not None:
            before.close()
        self.reload()
        self.post_message(self.Replaced())

    # Navigation

    def moved(self) -> None:
        self._moved = True

    def go_to(self, text: str) -> str | None:
        if self.window is None:
            return None
        message = self.message()
        try:
            jump = find(text, self.window, message.timestamp if message is not None else 0)
        except StoreUnreadableError as problem:
            return problem.message
        if jump is None:
            return None
        self._jump(jump)
        return ""

    def go_to_row(self, row: int) -> None:
        self._jump(JumpTarget(row))

    def go_to_note(self, direction: int) -> None:
        if self.window is None:
            return
        found = self.window.next_note(self.cursor, backward=direction < 0)
        if found is None:
            self.say((f"no gap or damage {'above' if direction < 0 else 'below'}", "dim"))
        else:
            self.go_to_row(found)

    def _jump(self, jump: JumpTarget) -> None:
        self._moved = True
        self.show(jump.row)
        self.post_message(self.Said([(jump.remark, "warn")] if jump.remark else ()))
        self.post_message(self.Replaced())
        self.call_after_refresh(self._note_rows)

    def _to_place(self, window: RowWindow) -> None:
        place = self._place
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
            self.show(row)
            self._moved = False

    def _lookup(self, find: Callable[[], int | None]) -> int | None:
        try:
            return find()
        except StoreUnreadableError as problem:
            self.say((problem.message, "bad"))
            return None

    def _note_rows(self) -> None:
        """Adds the command line that shows about the same messages."""
        if self.window is None:
            return
        top = self.scroll_offset.y
        rows = self.window.rows(top, top + max(self.visible_rows, 1))
        shown = [row.sequence for row in rows if isinstance(row, WindowMessage)]
        words = ["stantools", "messages", str(self._session.path), self.channel]
        if shown:
            words += ["--seq", f"{min(shown)}:{max(shown)}"]
        cast(ViewScreen, self.screen).note(*words)
