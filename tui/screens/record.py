"""A file of a store: its records as rows, and the bytes of the record at the cursor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from stantools.browse.record_fields import PartRole, RecordPart
from stantools.browse.record_map import RecordMap, SingleRecord
from stantools.browse.record_reader import RecordReader
from stantools.errors import StantoolsError, StoreUnreadableError
from stantools.inspection.records import FileKind, FileRecord
from stantools.notation import format_size
from tui.cells import Cell, Role, bar, counted, name_text, number, time_text
from tui.jobs import Job, JobState
from tui.rows import ListRows, RowSource, TableColumn
from tui.screens.base import LatestWork, ViewScreen
from tui.session import SourceSession
from tui.views import View, ViewTarget, share_of
from tui.widgets.hexview import HexView
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable

_WRONG: dict[PartRole, Role] = {PartRole.WRONG: "bad", PartRole.UNKNOWN: "warn", PartRole.ZEROS: "warn"}
_OFFSET = re.compile(r"0[xX][0-9a-fA-F]+|[0-9][0-9,_]*")


class RecordRows(RowSource[FileRecord]):
    def __init__(self, *, hashed: bool) -> None:
        self.reader: RecordReader | None = None  #: the file; None before it is open
        self.columns = (
            TableColumn(" ", 1, lambda row: ("✓", "good") if row.ok else ("✗", "bad")),
            TableColumn("offset", 10, lambda row: str(row.offset), right=True),
            TableColumn("bytes", 7, lambda row: str(row.length), right=True),
            TableColumn("type", 9, lambda row: (row.type, "" if row.ok else "bad")),
            TableColumn("seq", 8, lambda row: "" if row.sequence is None else str(row.sequence), right=True),
            TableColumn("CRC or hash", 16, _crc) if hashed else TableColumn("CRC", 8, _crc),
            TableColumn("what it says", 20, _detail, grows=True),
        )

    def __len__(self) -> int:
        return self.reader.map.rows if self.reader else 0

    def things(self, start: int, stop: int) -> Sequence[FileRecord]:
        return self.reader.rows(start, stop) if self.reader else []


def _crc(row: FileRecord) -> Cell:
    text = "" if row.crc is None else f"{row.crc:08x}"
    return text if row.ok else (text, "bad")


def _detail(row: FileRecord) -> Cell:
    if row.detail:
        return row.detail if row.ok else (row.detail, "bad")
    if "size" in row.fields:
        time = time_text(row.fields["timestamp"])
        size = row.fields["size"]
        if "offset" in row.fields:
            return f"at {row.fields['offset']}, {number(size)} bytes, {time}"
        subject = f"{name_text(row.fields['subject'])}, " if "subject" in row.fields else ""
        return f"{subject}{time} {format_size(size)}"
    shown = []
    for name, value in row.fields.items():
        if value in ("", b"", 0, False):
            continue
        text = value.hex() if isinstance(value, bytes) else name_text(value) if isinstance(value, str) else str(value)
        shown.append(name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {text}")
    return ", ".join(shown)


class RecordScreen(ViewScreen):
    """A file, record by record. The place names the file, relative to the store, and an offset or sequence in it."""

    NAME = "records"
    TAB = View.SLICES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False, id="record.back"),
        Binding("n", "flaw(1)", "Next damage", id="record.next_damage"),
        Binding("N", "flaw(-1)", "Previous damage", show=False, id="record.damage_before"),
        Binding("f", "fields", "Fields", id="record.fields"),
        Binding("m", "messages", "Messages", id="record.messages"),
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        assert place.file is not None
        self._path = self.session.root / place.file
        self._reader: RecordReader | None = None
        self._reading: LatestWork[RecordMap] = LatestWork(self)
        self._survey: object = None
        self._problem: StantoolsError | None = None
        self._rows = RecordRows(hashed=self._path.name.endswith((".blk", ".tmp", ".new")))
        self._wanted = place.offset
        self.row: FileRecord | None = None
        self.parts: list[RecordPart] = []
        self._fields_only = False
        #: Sequence to go to when the file is open.
        self.sought: int | None = None

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="record-file")
        yield RowTable(self._rows, id="records")
        yield TextLine(id="record-about")
        with Horizontal(id="record-bytes"):
            yield HexView(id="hex")
            yield RowTable(ListRows(_FIELDS), id="fields")

    def on_mount(self) -> None:
        self.query_one("#records").focus()
        self.note("stantools", "records", str(self._path))
        self._layout()
        self._open()
        self.call_after_refresh(self._write)

    def on_unmount(self) -> None:
        super().on_unmount()
        if self._reader is not None:
            self._reader.close()

    def on_resize(self) -> None:
        self._layout()

    def _layout(self) -> None:
        wide = self.size.width >= 120
        self.query_one("#hex").display = wide or not self._fields_only
        self.query_one("#fields").display = wide or self._fields_only

    def facts_changed(self) -> None:
        survey = self.session.survey(self.channel)
        if survey is not None and self._survey is not None and survey is not self._survey:
            self._wanted = self.row.offset if self.row else self._wanted
            self._open()

    def trail(self) -> Iterable[Cell]:
        if self.place.channel is None:
            yield self.NAME
        else:
            yield from ((name_text(self.place.channel), "strong"), (name_text(self._path.name), "strong"))

    # Files

    def _open(self) -> None:
        self._problem = None
        session = self.session
        try:
            opened = session.records(self._path, self.channel)
        except StoreUnreadableError as problem:
            self._problem = problem
            self._write()
            return
        if opened is None:
            self._problem = StantoolsError(f"{name_text(self._path.name)}: its name does not tell its type")
            self._write()
            return
        reader, mapped = opened.reader, opened.mapped
        self._survey = session.survey(self.channel)

        def work(job: Job[RecordMap]) -> RecordMap:
            return mapped(job.advance)

        job: Job[RecordMap] = Job("records", work, total=reader.size)
        self._reading.start(job, lambda job: self._opened(job, reader), self._write, dropped=reader.close)
        self._write()

    def _opened(self, job: Job[RecordMap], reader: RecordReader) -> None:
        if job.state is not JobState.DONE:
            reader.close()
            self._problem = job.problem
            self._write()
            return
        if self._reader is not None:
            self._reader.close()
        reader.map = job.result
        self._reader = self._rows.reader = reader
        table = self.query_one("#records", RowTable)
        table.reload()
        wanted, self._wanted = self._wanted, None
        if wanted is None or self._go_to_offset(wanted):
            self._show_record()
        if self.sought is not None:
            self.find_sequence(self.sought)
            self.sought = None

    # Texts

    def _write(self) -> None:
        if not self.is_mounted:
            return
        self.query_one("#record-file", TextLine).show(*self._file_cells())
        self.query_one("#record-about", TextLine).show_lines(list(self._about()))

    def _file_cells(self) -> Iterable[Cell]:
        job, reader = self._reading.job, self._reader
        if self._problem is not None:
            yield (f"✗ {self._problem.message.replace(str(self._path), name_text(self._path.name))}", "bad")
            return
        if job is not None:
            share = f" {bar(job.share, 20)} {job.share:.0%}" if job.share else ""
            yield (f"reading the records{share}", "accent")
            return
        if reader is None:
            return
        flaws = len(reader.map.flaws)
        yield f"{_KINDS[reader.kind]}, {format_size(reader.map.size)}, "
        first = reader.map.entries[0] if reader.map.entries else None
        has_version = isinstance(first, SingleRecord) and first.ok and first.type == "version"
        yield counted(reader.map.rows - flaws - has_version, "record")
        if flaws:
            yield (f"  ✗ {counted(flaws, 'damaged place')}", "bad")
        elif reader.map.rows and not self.session.read_options.check_crc:
            yield ("  CRCs were not checked", "warn")
        elif reader.map.rows:
            yield ("  ✓ every CRC is correct", "good")
        if reader.size != reader.map.size:
            yield (f"  ! the file has {format_size(reader.size)} now: press R", "warn")

    def _about(self) -> Iterable[Sequence[Cell]]:
        if self._problem is not None:
            yield [(self._problem.remedy, "dim")]
            return
        row, reader = self.row, self._reader
        if row is None or reader is None:
            return
        part = self.parts[self._field] if self._field < len(self.parts) else None
        where = f" at {row.offset} = 0x{row.offset:x}, {counted(row.length, 'byte')}"
        if row.ok:
            yield [(row.type, "strong"), where]
            yield [_detail(row)]
        else:
            yield [(f"✗ {row.type}", "bad"), where, *self._next_good(row, reader)]
            yield [(row.detail, "bad")]
        if part is not None:
            role = _WRONG.get(part.role, "")
            mark = "✗ " if role == "bad" else ""
            where = f"{part.start}" if part.end - part.start == 1 else f"{part.start}–{part.end - 1}"
            yield [(f"{mark}{part.name}", role or "strong"), f" ({where}): {part.value}"]
        else:
            yield [""]

    def _next_good(self, row: FileRecord, reader: RecordReader) -> Iterable[Cell]:
        entry = reader.map.at_offset(row.offset)
        good = reader.map.next_good(entry) if isinstance(entry, SingleRecord) else None
        if good is not None:
            yield f"; next good record at {good} = 0x{good:x}"
        elif reader.map.size > row.length:
            yield "; no good record follows"

    @property
    def _field(self) -> int:
        return self.query_one(HexView).field

    def _show_record(self) -> None:
        reader, table = self._reader, self.query_one("#records", RowTable)
        row = reader.row(table.cursor) if reader else None
        self.row = row
        hexview = self.query_one(HexView)
        if row is None or reader is None:
            self.parts = []
            hexview.show(lambda _offset, _length: b"", 0, 0, [])
        else:
            self.parts = reader.parts(row)
            hexview.show(reader.read, row.offset, row.length, self.parts)
            wrong = next((n for n, part in enumerate(self.parts) if part.role is PartRole.WRONG), 0)
            hexview.choose(wrong)
        fields = self.query_one("#fields", RowTable)
        fields.source = ListRows(_FIELDS, self.parts)
        fields.cursor = self._field
        self._write()

    # Keys

    @on(RowTable.Highlighted)
    def _highlighted(self, event: RowTable.Highlighted) -> None:
        if event.table.id == "records":
            if self._reader is None or self.row is None or self._reader.row(event.row) != self.row:
                self._show_record()
        elif self.query_one(HexView).field != event.row:
            self.query_one(HexView).choose(event.row)
            self._write()

    @on(RowTable.Selected)
    def _selected(self, event: RowTable.Selected) -> None:
        if event.table.id == "records":
            self.query_one("#hex" if self.query_one("#hex").display else "#fields").focus()

    @on(HexView.FieldChosen)
    def _field_chosen(self, event: HexView.FieldChosen) -> None:
        self.query_one("#fields", RowTable).cursor = event.field
        self._write()

    def action_back(self) -> None:
        table = self.query_one("#records")
        if table.has_focus:
            super().action_back()
        else:
            table.focus()

    def action_fields(self) -> None:
        self._fields_only = not self._fields_only
        self._layout()
        self.query_one("#fields" if self._fields_only else "#hex").focus()

    def action_flaw(self, direction: int) -> None:
        if self._reader is None:
            return
        table = self.query_one("#records", RowTable)
        known = self._reader.map
        flaw = known.next_flaw(table.cursor) if direction > 0 else known.flaw_before(table.cursor)
        if flaw is None:
            self.notify(f"no damage {'after' if direction > 0 else 'before'} this record")
        else:
            table.cursor = flaw.row

    def action_messages(self) -> None:
        if self.channel is None or self.row is None or self.row.sequence is None:
            self.notify("this record is not a message of a channel", severity="warning")
            return
        self.browser.open_view(View.MESSAGES, ViewTarget(channel=self.channel, seq=self.row.sequence), above=True)

    # Places

    def go_to_hint(self) -> str:
        return "an offset: 1234 or 0x4d2; 50%; a sequence: #17"

    def go_to(self, text: str) -> str | None:
        reader = self._reader
        if reader is None or not reader.map.rows:
            return None
        if (share := share_of(text)) is not None:
            return self._go_to_offset(int(reader.map.size * share))
        if re.fullmatch(r"#\d{1,20}", text):
            return self.find_sequence(int(text[1:]))
        if not _OFFSET.fullmatch(text):
            return None
        return self._go_to_offset(int(text.replace(",", "").replace("_", ""), 16 if text[:2].lower() == "0x" else 10))

    def _go_to_offset(self, offset: int) -> str:
        reader = self._reader
        if reader is None:
            self._wanted = offset
            return ""
        if offset > reader.map.size:
            return f"the file has {number(reader.map.size)} bytes"
        table = self.query_one("#records", RowTable)
        table.cursor = reader.row_at(offset)
        self._show_record()
        inside = next((n for n, part in enumerate(self.parts) if part.start <= offset < part.end), None)
        if inside and self.row and self.row.ok:
            self.query_one(HexView).choose(inside)
            self.query_one("#fields", RowTable).cursor = inside
        self._write()
        return ""

    def find_sequence(self, sequence: int) -> str:
        """Finds the record of a message in the background and goes to it."""
        reader = self._reader
        if reader is None or sequence >= 2**64:
            return "there is no such sequence"

        def found(row: int | None) -> None:
            if row is not None:
                self.query_one("#records", RowTable).cursor = row
            else:
                self.notify(f"sequence {sequence} is not in this file", severity="warning")

        self.begin("look up", lambda _: reader.row_of_sequence(sequence), found)
        return ""


_KINDS = {
    FileKind.SERVER: "the server's identity",
    FileKind.CLIENTS: "clients",
    FileKind.SUBS: "subscriptions",
    FileKind.MESSAGES: "messages",
    FileKind.INDEX: "index",
    FileKind.BLOCK: "messages of a stream",
}


def _part_role(part: RecordPart) -> Role:
    return _WRONG.get(part.role, "")


_FIELDS: Sequence[TableColumn[RecordPart]] = (
    TableColumn("offset", 8, lambda part: str(part.start), right=True),
    TableColumn("bytes", 5, lambda part: number(part.end - part.start), right=True),
    TableColumn(
        "field",
        16,
        lambda part: (
            f"✗ {part.name}" if _part_role(part) == "bad" else part.name,
            _part_role(part) or ("dim" if part.role is PartRole.TAG else ""),
        ),
    ),
    TableColumn("value", 20, lambda part: (part.value, _part_role(part)), grows=True),
)
