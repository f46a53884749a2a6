"""The slices of a channel: the state of each, and the way to their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.browse.browsed_channel import FileState, ListedFile
from stantools.browse.slice_map import ByteSegment, cells, segments
from stantools.errors import StoreUnreadableError
from stantools.inspection.findings import Finding
from stantools.inspection.records import kind_of
from stantools.notation import cut, describe_ranges, format_size, span_text
from tui.cells import SYMBOLS, Cell, Role, counted, name_text, number
from tui.jobs import Job
from tui.rows import ListRows, TableColumn, time_column
from tui.screens.base import ViewScreen
from tui.screens.record import RecordScreen
from tui.session import SourceSession, worst
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable
from tui.widgets.slicebar import BAR, SliceTable, bar_text, legend

#: Archived slices up to this size in bytes are scanned without a request.
_SCANNED_AT_ONCE = 64 << 20
_INDEX_ROLES: dict[str, Role] = {"clean": "good", "warning": "warn", "error": "bad"}


class SliceRows(ListRows[ListedFile]):
    def __init__(self) -> None:
        super().__init__(())
        self.states: dict[Path, FileState] = {}
        self.worst: dict[Path, str] = {}
        self.arrange(80)

    def arrange(self, width: int) -> None:
        """Gives the bar the width that the other columns leave."""
        wide = width >= 120
        columns: list[TableColumn[ListedFile]] = [
            TableColumn(" ", 1, lambda entry: SYMBOLS[self.level(entry)]),
            TableColumn("file", 15, lambda entry: name_text(entry.path.name) if entry.path else ""),
            TableColumn("size", 9, lambda entry: format_size(entry.size), right=True),
            self._of_state("messages", 10 if wide else 8, lambda state: number(state.messages)),
            self._of_state("first", 9 if wide else 6, lambda state: str(state.held.first) if state.held else ""),
            self._of_state("last", 9 if wide else 6, lambda state: str(state.held.last) if state.held else ""),
        ]
        if wide:
            columns.append(time_column("newest", self._newest))
        columns.append(TableColumn("index", 16 if wide else 12, self._index))
        taken = sum(column.width for column in columns) + len(columns)
        room = max(width - 3 - taken, 4)
        title = "map of its bytes" if wide else "map"
        columns.insert(3, TableColumn(title, room, lambda entry: self._map(entry, room), key=BAR))
        self.columns = columns

    def _state(self, entry: ListedFile) -> FileState | None:
        return self.states.get(entry.path) if entry.number is not None and entry.path else None

    def _of_state(self, title: str, width: int, cell: Callable[[FileState], str]) -> TableColumn[ListedFile]:
        def shown(entry: ListedFile) -> Cell:
            if entry.number is None:
                return ""
            state = self._state(entry)
            return cell(state) if state is not None else ("…", "dim")

        return TableColumn(title, width, shown, right=True)

    def _map(self, entry: ListedFile, width: int) -> Cell:
        if entry.number is None:
            return entry.text, "dim"
        state = self._state(entry)
        return bar_text(cells(state.segments if state else segments(None), state.size if state else 0, width))

    def _newest(self, entry: ListedFile) -> int:
        state = self._state(entry)
        return state.times[1] if state is not None and state.times else 0

    def _index(self, entry: ListedFile) -> Cell:
        state = self._state(entry)
        if state is None:
            return ("not scanned", "dim") if entry.number is not None else ""
        return f"{SYMBOLS[state.index.level][0]} {state.index.short}", _INDEX_ROLES[state.index.level]

    def heading(self, thing: ListedFile) -> Cell | None:
        return thing.text if thing.path is None else None

    def level(self, entry: ListedFile) -> str:
        if entry.path is None:
            return entry.level
        known = self.worst.get(entry.path)
        state = self._state(entry)
        if known is not None or state is None:
            return known or "unknown"
        return state.level


class SlicesScreen(ViewScreen):
    """The slices of a channel; without a channel, the files of the store."""

    NAME = "slices"
    TAB = View.SLICES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "damage(1)", "Next damage", id="slices.next_damage"),
        Binding("N", "damage(-1)", "Previous damage", show=False, id="slices.damage_before"),
        Binding("m", "messages", "Messages", id="slices.messages"),
        Binding("f", "findings", "Findings", id="slices.findings"),
        Binding("s", "scan", "Scan an archived slice", show=False, id="slices.scan"),
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self._rows = SliceRows()
        self._problem = ""
        self._extra: dict[Path, FileState] = {}  # of archived slices, which the scan of the store skips
        self._scanning: set[Path] = set()
        self._legend: Sequence[Cell] = ()
        self._known: tuple[object, ...] = ()
        self._wanted_sequence = place.seq if place.file is None else None  # sequence of the message to show

    def compose_body(self) -> Iterable[Widget]:
        yield SliceTable(self._rows, id="slices")
        yield TextLine(id="slice-about")

    def on_mount(self) -> None:
        self.query_one(SliceTable).focus()
        words = ["--channel", self.channel] if self.channel else []
        self.note("stantools", "verify", str(self.session.path), *words)
        self._update()
        if self.place.file is not None:
            self.call_after_refresh(self._open_place)

    def on_resize(self) -> None:
        self._rows.arrange(self.size.width)
        self.query_one(SliceTable).reload()
        self._write()

    def facts_changed(self) -> None:
        facts = self.session.channels.get(self.channel or "")
        known = id(facts), facts and id(facts.survey), self.session.scanned, self.session.stage, len(self._extra)
        if known != self._known:
            self._known = known
            self._update()

    def _update(self) -> None:
        session, name = self.session, self.channel
        self._problem = ""
        files: Sequence[ListedFile] = ()
        states: dict[Path, FileState] = {}
        try:
            files, states = session.listed(name)
        except StoreUnreadableError as problem:
            self._problem = problem.message
        facts = session.channels.get(name) if name is not None else None
        if not session.scanned:
            self._extra.clear()
        rows = self._rows
        rows.states = self._extra | states
        rows.shown = files
        rows.worst = self._levels() if session.scanned or (facts and facts.verdict) else {}
        found = {part.state for each in rows.shown if each.number is not None for part in _segments(rows, each)}
        self._legend = legend(sorted(found))
        self.query_one(SliceTable).reload()
        self._write()
        self._scan_archived()
        if self._wanted_sequence is not None and facts is not None and facts.survey is not None:
            sought, self._wanted_sequence = self._wanted_sequence, None
            if refused := self._open_sequence(sought):
                self.notify(refused, severity="warning")

    def _levels(self) -> dict[Path, str]:
        found: dict[str, list[Finding]] = {}
        for finding in self.session.findings():
            found.setdefault(finding.file, []).append(finding)
        levels: dict[Path, str] = {}
        for entry in self._rows.shown:
            if entry.path is None or entry.path.suffix == ".bak":
                continue
            names = [self.session.file_name(path) for path in (entry.path, entry.index) if path]
            levels[entry.path] = worst([finding for name in names for finding in found.get(name, [])])
        return levels

    # Archived slices

    def _scan_archived(self) -> None:
        if not self.session.scanned:
            return
        waiting = [each for each in self._rows.shown if each.archived and each.path not in self._extra]
        if sum(each.size for each in waiting) <= _SCANNED_AT_ONCE:
            for each in waiting:
                self._scan(each)

    def _scan(self, file: ListedFile) -> None:
        path, name = file.path, self.channel
        if path is None or path in self._scanning or name is None:
            return
        self._scanning.add(path)
        session = self.session

        def done(state: FileState) -> None:
            self._scanning.discard(path)
            self._extra[path] = state
            self._update()

        def work(job: Job[FileState]) -> FileState:
            return session.channel(name).scan(file, job.advance)

        self.begin("scan", work, done, lambda: self._scanning.discard(path), file.size)

    # Texts

    @property
    def _entry(self) -> ListedFile | None:
        row = self.query_one(SliceTable).cursor
        return self._rows.shown[row] if row < len(self._rows.shown) else None

    def _write(self) -> None:
        if self.is_mounted:
            self.query_one("#slice-about", TextLine).show_lines(list(self._about()))

    def _about(self) -> Iterable[Sequence[Cell]]:
        room = self.size.width - 2
        if self._problem:
            yield [(f"✗ {self._problem}", "bad")]
        entry = self._entry
        if entry is None:
            yield [("there are no files", "dim")]
        elif entry.path is None:
            text = f"files that are not {self.session.FILES}s"
            text = "messages are missing here" if entry.level == "warning" else text
            yield [(text, "dim")]
        elif entry.number is None:
            yield [(name_text(entry.path.name), "strong"), f", {format_size(entry.size)}"]
            yield from self._file_findings(entry.path, room)
        else:
            state = self._rows.states.get(entry.path)
            if state is None:
                scan = "not scanned yet" if not entry.archived else "archived, not scanned: s scans it"
                yield [(name_text(entry.path.name), "strong"), f", {format_size(entry.size)}: {scan}"]
            else:
                yield from _state_lines(entry.path.name, state, room, 3 if self.size.height < 35 else 10)
                yield from self._file_findings(entry.path, room, ("sequence", "foreign", "subject"))
        yield self._legend

    def _file_findings(self, path: Path, room: int, codes: tuple[str, ...] = ("",)) -> Iterable[Sequence[Cell]]:
        name = self.session.file_name(path)
        found = [each for each in self.session.findings() if each.file == name and each.code.startswith(codes)]
        for finding in found[:3]:
            symbol, role = SYMBOLS[finding.severity.value]
            where = f"at {finding.offset}: " if finding.offset is not None else ""
            yield [(f"{symbol} ", role), cut(f"{where}{finding.detail}", room - 2)]

    # Keys

    @on(RowTable.Highlighted)
    def _highlighted(self) -> None:
        self._write()

    @on(RowTable.Selected)
    def _selected(self) -> None:
        entry = self._entry
        if entry is not None and entry.path is not None:
            self._open_file(entry.path)

    def action_damage(self, direction: int) -> None:
        table, entries = self.query_one(SliceTable), self._rows.shown
        places = range(table.cursor + 1, len(entries)) if direction > 0 else range(table.cursor - 1, -1, -1)
        for place in places:
            if self._rows.level(entries[place]) in ("error", "warning"):
                table.cursor = place
                return
        self.notify(f"no damage {'below' if direction > 0 else 'above'} this")

    def action_messages(self) -> None:
        entry = self._entry
        state = self._rows.states.get(entry.path) if entry is not None and entry.path is not None else None
        first = state.first if state is not None else None
        if self.channel is not None:
            self.browser.open_view(View.MESSAGES, ViewTarget(channel=self.channel, seq=first), above=True)

    def action_findings(self) -> None:
        self.browser.open_view(View.FINDINGS, ViewTarget(channel=self.channel), above=True)

    def action_scan(self) -> None:
        entry = self._entry
        if entry is not None and entry.archived:
            self._scan(entry)
            self.notify("scanning it")

    # Records

    def _open_file(self, path: Path, offset: int | None = None) -> RecordScreen:
        name = self.session.file_name(path)
        screen = RecordScreen(self.session, ViewTarget(channel=self.channel, file=name, offset=offset))
        self.app.push_screen(screen)
        return screen

    def _open_place(self) -> None:
        file = self.place.file or ""
        path = self.session.root / file
        place = next((n for n, entry in enumerate(self._rows.shown) if entry.path == path), None)
        if place is not None:
            self.query_one(SliceTable).cursor = place
        if kind_of(path.name) is not None and not path.is_dir():
            self._open_file(path, self.place.offset)

    def _open_sequence(self, sequence: int) -> str:
        """Opens the record of a message, once a scan knows its slice; returns the reason if there is none."""
        for path, state in self._rows.states.items():
            offset = state.place(sequence) if sequence < 2**64 else None
            if offset is not None:
                place = next((n for n, entry in enumerate(self._rows.shown) if entry.path == path), 0)
                self.query_one(SliceTable).cursor = place
                self._open_file(path, offset).sought = sequence
                return ""
        return f"no scanned {self.session.FILES} has sequence {sequence}"

    def go_to_hint(self) -> str:
        return f"the number of a {self.session.FILES}; a sequence: #17"

    def go_to(self, text: str) -> str | None:
        if text.isdecimal():
            for place, entry in enumerate(self._rows.shown):
                if entry.number == int(text):
                    self.query_one(SliceTable).cursor = place
                    return ""
            return f"there is no {self.session.FILES} {text}"
        if text[:1] == "#" and text[1:].isdecimal():
            return self._open_sequence(int(text[1:]))
        return None


def _segments(rows: SliceRows, file: ListedFile) -> Sequence[ByteSegment]:
    state = rows.states.get(file.path) if file.path else None
    return state.segments if state else segments(None)


def _state_lines(file: str, state: FileState, room: int, limit: int) -> Iterable[Sequence[Cell]]:
    name: list[Cell] = [(name_text(file), "strong")]
    if state.error:
        yield [*name, (f": {state.error}", "bad")]
    elif state.times:
        when = span_text(*state.times, 10**6)
        yield [*name, cut(f": sequences {describe_ranges(state.held.pairs(), 3)}; {when}", room - len(file))]
    else:
        yield [*name, ": the data file is gone" if state.gone else ": no good message"]
    index = state.index
    yield [(f"{SYMBOLS[index.level][0]} ", _INDEX_ROLES[index.level]), cut(index.text, room - 2)]
    if state.header_error:
        yield [(f"✗ {cut(state.header_error, room - 2)}", "bad")]
    for damage in state.damages[:limit]:
        yield [("✗ ", "bad"), cut(damage, room - 2)]
    if len(state.damages) > limit:
        yield [(f"  … and {counted(len(state.damages) - limit, 'more damaged place')}", "dim")]
