"""The history of a subscription or client: its records in file order, and its pending messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.browse.log_history import HistoryRecord, LogHistory, read_history
from stantools.errors import StantoolsError
from stantools.notation import format_size
from tui.cells import Cell, Role, bar, counted, name_text, number
from tui.jobs import Job, JobState
from tui.rows import ListRows, RowSource, TableColumn
from tui.screens.base import ViewScreen
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable


def _pending_rows(sequences: Sequence[int]) -> ListRows[int]:
    def gap(row: int) -> Cell:
        gap = sequences[row] - sequences[row - 1] - 1 if row else 0
        return number(gap) if gap else ""

    columns: Sequence[TableColumn[int]] = (
        TableColumn("#", 10, lambda row: (number(row + 1), "dim"), right=True),
        TableColumn("sequence", 20, lambda row: str(sequences[row]), right=True),
        TableColumn("after a gap of", 20, gap, right=True, grows=True),
    )
    return ListRows(columns, range(len(sequences)))


class PendingScreen(ViewScreen):
    NAME: ClassVar[str] = "pending messages"
    TAB = View.SUBSCRIPTIONS

    def __init__(
        self, session: SourceSession, place: ViewTarget, about: Sequence[Cell], pending: Sequence[int]
    ) -> None:
        super().__init__(session, place)
        self._about = about
        self._pending = pending

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="subject")
        yield RowTable(_pending_rows(self._pending))

    def on_mount(self) -> None:
        count = f"{counted(len(self._pending), 'message')} sent and not acknowledged"
        self.query_one("#subject", TextLine).show(*self._about, count)
        self.query_one(RowTable).focus()

    @on(RowTable.Selected)
    def action_open(self) -> None:
        row = self.query_one(RowTable).cursor
        if row < len(self._pending):
            place = ViewTarget(channel=self.channel, seq=self._pending[row])
            self.browser.open_view(View.MESSAGES, place, above=True)

    def go_to(self, text: str) -> str | None:
        if not text.isdigit():
            return None
        from bisect import bisect_left

        self.query_one(RowTable).cursor = bisect_left(self._pending, int(text))
        return ""

    def go_to_hint(self) -> str:
        return "a sequence"


#: Record type -> its text.
_WORDS: dict[str, tuple[str, Role]] = {
    "new": ("new", "accent"),
    "update": ("update", "accent"),
    "delete": ("deleted", "warn"),
    "msg": ("sent", ""),
    "ack": ("acknowledged", "dim"),
    "add": ("connected", "accent"),
}
#: Fields with a column of their own, and fields of little interest.
_HIDDEN_FIELDS = frozenset({"id", "seqno"})
_LAST = ("inbox", "ack_inbox", "hb_inbox")


class HistoryRows(RowSource[HistoryRecord | StantoolsError]):
    """Records as rows. If the file can no longer be read, the error is a row.

    `of_client` says that they are records of a client.
    """

    def __init__(self, history: LogHistory, *, of_client: bool) -> None:
        self._history = history
        columns: list[TableColumn[Any]] = [
            TableColumn("offset", 11, lambda each: str(each.record.offset), right=True),
            TableColumn("bytes", 6, lambda each: (str(each.record.length), "dim"), right=True),
            TableColumn("record", 13, lambda each: _WORDS.get(each.record.type, (each.record.type, ""))),
            TableColumn("sequence", 9, lambda each: "" if each.sequence is None else str(each.sequence), right=True),
            TableColumn("pending", 8, lambda each: number(each.pending) if each.pending else ("0", "dim"), right=True),
            TableColumn("says", 24, lambda each: (" ".join(_record_texts(each)), "dim"), grows=True),
        ]
        self.columns = [*columns[:3], columns[5]] if of_client else columns

    def __len__(self) -> int:
        return len(self._history)

    def things(self, start: int, stop: int) -> Sequence[HistoryRecord | StantoolsError]:
        try:
            return self._history.records(start, stop)
        except StantoolsError as problem:
            return [problem] * (min(stop, len(self)) - start)

    def at(self, row: int) -> HistoryRecord | StantoolsError | None:
        return next(iter(self.things(row, row + 1)), None) if row < len(self) else None

    def heading(self, thing: HistoryRecord | StantoolsError) -> Cell | None:
        if isinstance(thing, StantoolsError):
            return thing.message, "bad"
        record = thing.record
        return (
            None if record.ok else (f"— ✗ damaged {record.length} bytes at {record.offset}: {record.detail} —", "bad")
        )


def _record_texts(each: HistoryRecord) -> Iterable[str]:
    fields = each.record.fields
    for name in sorted(fields, key=lambda name: name in _LAST):
        value = fields[name]
        if name not in _HIDDEN_FIELDS and value not in ("", b"", 0, False):
            yield f"{name}={name_text(value) if isinstance(value, (str, bytes)) else value}"


class HistoryScreen(ViewScreen):
    """The records of a subscription or client.

    Args:
        place: The channel of the subscription; ignored for a client.
        path: The file; None if there is none.
        who: Id of the subscription or client.
        about: Its name for people.
    """

    NAME: ClassVar[str] = "history"
    TAB = View.SUBSCRIPTIONS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "messages", "Message", id="history.messages"),
    ]

    def __init__(
        self, session: SourceSession, place: ViewTarget, path: Path | None, owner: int | bytes, description: str
    ) -> None:
        super().__init__(session, place)
        self._path = path
        self._owner = owner
        self._description = description
        self.rows: HistoryRows | None = None
        self._job: Job[LogHistory] | None = None

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="subject")
        yield RowTable(ListRows(()))
        yield TextLine(id="record")

    def on_mount(self) -> None:
        self.query_one(RowTable).focus()
        words = ["stantools", "clients", str(self.session.path), "--history"]
        if isinstance(self._owner, int):
            words = ["stantools", "subs", str(self.session.path), "--channel", self.channel or ""]
            words += ["--id", str(self._owner), "--history"]
        self.note(*words)
        if self._path is None:
            self._show_texts(("no such file", "warn"))
            return
        path, session, who = self._path, self.session, self._owner

        def read(job: Job[LogHistory]) -> LogHistory:
            job.total = path.stat().st_size
            return read_history(path, session.crc, who, progress=job.advance)

        self._job = self.watch_job(Job("history", read), self._done, self._progress)
        self._show_texts(("reading …", "dim"))

    def _show_texts(self, *cells: Cell) -> None:
        self.query_one("#subject", TextLine).show((self._description, "strong"), "  ", *cells)

    def _progress(self) -> None:
        assert self._job is not None
        share = self._job.share or 0.0
        self._show_texts(
            ("reading ", "dim"), (f"{bar(share, 20):<20} ", "accent"), f"{share:.0%} of {format_size(self._job.total)}"
        )

    def _done(self) -> None:
        assert self._job is not None
        if self._job.state is not JobState.DONE:
            self._show_texts((self._job.problem.message if self._job.problem else "stopped", "bad"))
            return
        history = self._job.result
        self.rows = HistoryRows(history, of_client=isinstance(self._owner, bytes))
        damage: list[Cell] = []
        if history.damages:
            damage = [(f", {counted(history.damages, 'damaged range')} in the file", "bad")]
        self._show_texts(counted(history.good, "record"), *damage)
        self.query_one(RowTable).source = self.rows
        self._show_record()

    @on(RowTable.Highlighted)
    def _show_record(self) -> None:
        found = self._record()
        if not isinstance(found, HistoryRecord):
            self.query_one("#record", TextLine).show("")
            return
        record = found.record
        kind = _WORDS[record.type][0] if record.type in _WORDS else record.type
        cells: list[Cell] = [(f"{kind} at {record.offset}: ", "strong")]
        cells.append(record.detail if not record.ok else " ".join(_record_texts(found)) or f"message {found.sequence}")
        self.query_one("#record", TextLine).show(*cells)

    def _record(self) -> HistoryRecord | StantoolsError | None:
        return self.rows.at(self.query_one(RowTable).cursor) if self.rows is not None else None

    def _at_cursor(self) -> HistoryRecord | None:
        found = self._record()
        if isinstance(found, StantoolsError):
            self.browser.fail(found)
            return None
        return found

    @on(RowTable.Selected)
    def action_open(self) -> None:
        found = self._at_cursor()
        if found is None or self._path is None:
            return
        file = self.session.file_name(self._path)
        place = ViewTarget(channel=self.channel, file=file, offset=found.record.offset)
        self.browser.open_view(View.SLICES, place, above=True)

    def action_messages(self) -> None:
        found = self._at_cursor()
        if found is None or found.sequence is None:
            self.notify("this record names no message", severity="warning")
            return
        self.browser.open_view(View.MESSAGES, ViewTarget(channel=self.channel, seq=found.sequence), above=True)
