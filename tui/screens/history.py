"""What lies behind a subscription or client: its records in the order of the file, and its pending messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.browse.log_history import HistoryRecord, LogHistory, read_history
from stantools.errors import StantoolsError
from stantools.inspection.subscribers import Subscriber
from stantools.notation import format_size
from tui.cells import Cell, Role, bar, counted, name_text, number
from tui.jobs import Job, State
from tui.rows import Column, ListSource
from tui.screens.base import ViewScreen
from tui.session import StoreSession
from tui.views import Place, View
from tui.widgets.line import Line
from tui.widgets.rowtable import RowTable


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


#: Record type -> what it says.
_WORDS: dict[str, tuple[str, Role]] = {
    "new": ("new", "accent"),
    "update": ("update", "accent"),
    "delete": ("deleted", "warn"),
    "msg": ("sent", ""),
    "ack": ("acknowledged", "dim"),
    "add": ("connected", "accent"),
}
#: Fields that have a column of their own, and those that say little.
_TOLD = frozenset({"id", "seqno"})
_LAST = ("inbox", "ack_inbox", "hb_inbox")


class HistoryRows:
    """Records as rows.

    Args:
        history: The records.
        of_client: They are of a client.
    """

    def __init__(self, history: LogHistory, *, of_client: bool) -> None:
        self._history = history
        self._of_client = of_client
        self.problem: StantoolsError | None = None
        self.columns: Sequence[Column] = (
            Column("offset", "offset", 11, right=True),
            Column("size", "bytes", 6, right=True),
            Column("type", "record", 13),
            *(
                ()
                if of_client
                else (Column("seq", "sequence", 9, right=True), Column("pend", "pending", 8, right=True))
            ),
            Column("rest", "says", 24, grows=True),
        )

    def __len__(self) -> int:
        return len(self._history)

    def rows(self, start: int, stop: int) -> Sequence[Sequence[Cell]]:
        """Reads a part of the records; where the file cannot be read any more it says so."""
        try:
            return [self._row(each) for each in self._history.records(start, stop)]
        except StantoolsError as problem:
            return [[(problem.message, "bad")]] * (min(stop, len(self)) - start)

    def at(self, row: int) -> HistoryRecord | None:
        """Reads one record; None if the file cannot be read, which `problem` tells."""
        try:
            found = self._history.records(row, row + 1)
        except StantoolsError as problem:
            self.problem = problem
            return None
        return found[0] if found else None

    def _row(self, each: HistoryRecord) -> Sequence[Cell]:
        record = each.record
        if not record.ok:
            return [(f"— ✗ damaged {record.length} bytes at {record.offset}: {record.detail} —", "bad")]
        said = " ".join(_said(each))
        cells: list[Cell] = [
            str(record.offset),
            (str(record.length), "dim"),
            _WORDS.get(record.type, (record.type, "")),
        ]
        if not self._of_client:
            cells.append(str(each.sequence) if each.sequence is not None else "")
            cells.append(number(each.pending) if each.pending else ("0", "dim"))
        return [*cells, (said, "dim")]


def _said(each: HistoryRecord) -> Iterable[str]:
    fields = each.record.fields
    for name in sorted(fields, key=lambda name: name in _LAST):
        value = fields[name]
        if name not in _TOLD and value not in ("", b"", 0, False):
            yield f"{name}={name_text(value) if isinstance(value, (str, bytes)) else value}"


class HistoryScreen(ViewScreen):
    """The records of a subscription or client.

    Args:
        session: The store.
        place: The channel of the subscription; for a client it does not matter.
        path: The file; None if there is none.
        who: Id of the subscription or client.
        about: Who it is, for people.
    """

    NAME: ClassVar[str] = "history"
    TAB = View.SUBSCRIPTIONS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "messages", "Message", id="history.messages"),
    ]

    def __init__(self, session: StoreSession, place: Place, path: Path | None, who: int | bytes, about: str) -> None:
        super().__init__(session, place)
        self._path = path
        self._who = who
        self._about = about
        self._rows: HistoryRows | None = None
        self._job: Job[LogHistory] | None = None

    @property
    def ready(self) -> bool:
        """Everything that will be shown is shown."""
        return self._job is None or not (self._job.running or self._job.state is State.WAITING)

    def compose_body(self) -> Iterable[Widget]:
        """Whose history it is, and the records."""
        yield Line(id="subject")
        yield RowTable(ListSource(()))
        yield Line(id="record")

    def on_mount(self) -> None:
        """Begins to read the file."""
        self.query_one(RowTable).focus()
        words = ["stantools", "clients", str(self.session.path), "--history"]
        if isinstance(self._who, int):
            words = ["stantools", "subs", str(self.session.path), "--channel", self.channel or ""]
            words += ["--id", str(self._who), "--history"]
        self.note(*words)
        if self._path is None:
            self._say(("there is no such file", "warn"))
            return
        path, session, who = self._path, self.session, self._who

        def read(job: Job[LogHistory]) -> LogHistory:
            job.total = path.stat().st_size
            return read_history(path, session.crc, who, progress=job.advance)

        self._job = self.watch_job(Job("history", read), self._done, self._progress)
        self._say(("reading …", "dim"))

    def _say(self, *cells: Cell) -> None:
        self.query_one("#subject", Line).show((self._about, "strong"), "  ", *cells)

    def _progress(self) -> None:
        assert self._job is not None
        share = self._job.share or 0.0
        self._say(
            ("reading ", "dim"), (f"{bar(share, 20):<20} ", "accent"), f"{share:.0%} of {format_size(self._job.total)}"
        )

    def _done(self) -> None:
        assert self._job is not None
        if self._job.state is not State.DONE:
            self._say((self._job.problem.message if self._job.problem else "stopped", "bad"))
            return
        history = self._job.result
        self._rows = HistoryRows(history, of_client=isinstance(self._who, bytes))
        damage: list[Cell] = []
        if history.damages:
            damage = [(f", {counted(history.damages, 'damaged range')} in the file", "bad")]
        self._say(counted(history.good, "record"), *damage)
        self.query_one(RowTable).source = self._rows
        self._show_record()

    @on(RowTable.Highlighted)
    def _show_record(self) -> None:
        """Writes out the record at the cursor, which the table has no room for."""
        row = self.query_one(RowTable).cursor
        found = self._rows.at(row) if self._rows is not None and row < len(self._rows) else None
        if found is None:
            self.query_one("#record", Line).show("")
            return
        record = found.record
        kind = _WORDS[record.type][0] if record.type in _WORDS else record.type
        cells: list[Cell] = [(f"{kind} at {record.offset}: ", "strong")]
        cells.append(record.detail if not record.ok else " ".join(_said(found)) or f"message {found.sequence}")
        self.query_one("#record", Line).show(*cells)

    def _at_cursor(self) -> HistoryRecord | None:
        table = self.query_one(RowTable)
        if self._rows is None or table.cursor >= len(self._rows):
            return None
        found = self._rows.at(table.cursor)
        if found is None and self._rows.problem:
            self.browser.fail(self._rows.problem)
        return found

    @on(RowTable.Selected)
    def action_open(self) -> None:
        """Opens the bytes of the record at the cursor."""
        found = self._at_cursor()
        if found is None or self._path is None:
            return
        file = self._path.relative_to(self.session.store.path).as_posix()
        place = Place(channel=self.channel, file=file, offset=found.record.offset)
        self.browser.open_view(View.SLICES, place, above=True)

    def action_messages(self) -> None:
        """Opens the message that the record at the cursor is about."""
        found = self._at_cursor()
        if found is None or found.sequence is None:
            self.notify("this record is about no message", severity="warning")
            return
        self.browser.open_view(View.MESSAGES, Place(channel=self.channel, seq=found.sequence), above=True)
