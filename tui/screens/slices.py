"""The slices of a channel: the state of each, and the way to their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.browse.slice_map import IndexState, cells, index_state, segments
from stantools.errors import StoreUnreadableError
from stantools.inspection.file_findings import missing_slices
from stantools.inspection.findings import Finding
from stantools.inspection.records import FileKind, kind_of
from stantools.inspection.survey import ChannelSurvey, SliceSurvey, stop_text, survey_slice
from stantools.notation import cut, describe_ranges, format_size, span_text
from stantools.store.directory import ChannelFiles, SliceFiles, size_of
from stantools.store.ranges import Ranges
from tui.cells import SYMBOLS, Cell, Role, counted, name_text, number
from tui.jobs import Job
from tui.rows import ListRows, TableColumn, time_column
from tui.screens.base import ViewScreen
from tui.screens.record import RecordScreen
from tui.session import StoreSession, worst
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable
from tui.widgets.slicebar import BAR, SliceTable, bar_text, legend

#: Archived slices up to this size in bytes are scanned without a request.
_SCANNED_AT_ONCE = 64 << 20
_INDEX_ROLES: dict[str, Role] = {"clean": "good", "warning": "warn", "error": "bad"}
_FILES = {
    FileKind.SERVER: "identity",
    FileKind.CLIENTS: "clients",
    FileKind.SUBS: "subscriptions",
    FileKind.INDEX: "index",
    FileKind.MESSAGES: "messages",
}


@dataclass(frozen=True)
class SliceEntry:
    """A row: a slice, another file, or a heading."""

    path: Path | None  #: the file; None for a heading
    text: str = ""
    slice: SliceFiles | None = None  #: the slice, if it is one
    size: int = 0  #: size of the file in bytes
    level: str = "unknown"  #: severity of the heading


class SliceRows(ListRows[SliceEntry]):
    def __init__(self) -> None:
        super().__init__(())
        self.surveys: dict[Path, SliceSurvey] = {}
        self.worst: dict[Path, str] = {}
        self.arrange(80)

    def arrange(self, width: int) -> None:
        """Gives the bar the width that the other columns leave."""
        wide = width >= 120
        columns: list[TableColumn[SliceEntry]] = [
            TableColumn(" ", 1, lambda entry: SYMBOLS[self.level(entry)]),
            TableColumn("file", 15, lambda entry: name_text(entry.path.name) if entry.path else ""),
            TableColumn("size", 9, lambda entry: format_size(entry.size), right=True),
            self._of_survey("messages", 10 if wide else 8, lambda survey: number(sum(r.count for r in survey.runs))),
            self._of_survey(
                "first", 9 if wide else 6, lambda survey: str(held.first) if (held := _held(survey)) else ""
            ),
            self._of_survey("last", 9 if wide else 6, lambda survey: str(held.last) if (held := _held(survey)) else ""),
        ]
        if wide:
            columns.append(time_column("newest", self._newest))
        columns.append(TableColumn("index", 16 if wide else 12, self._index))
        taken = sum(column.width for column in columns) + len(columns)
        room = max(width - 3 - taken, 4)
        title = "map of its bytes" if wide else "map"
        columns.insert(3, TableColumn(title, room, lambda entry: self._map(entry, room), key=BAR))
        self.columns = columns

    def _survey(self, entry: SliceEntry) -> SliceSurvey | None:
        return self.surveys.get(entry.path) if entry.slice and entry.path else None

    def _of_survey(self, title: str, width: int, cell: Callable[[SliceSurvey], str]) -> TableColumn[SliceEntry]:
        def shown(entry: SliceEntry) -> Cell:
            if entry.slice is None:
                return ""
            survey = self._survey(entry)
            return cell(survey) if survey is not None else ("…", "dim")

        return TableColumn(title, width, shown, right=True)

    def _map(self, entry: SliceEntry, width: int) -> Cell:
        if entry.slice is not None:
            return bar_text(cells(segments(self._survey(entry)), entry.slice.data_size, width))
        kind = kind_of(entry.path.name) if entry.path else None
        return _FILES[kind] if kind else "", "dim"

    def _newest(self, entry: SliceEntry) -> int:
        survey = self._survey(entry)
        return survey.runs[-1].last_timestamp if survey is not None and survey.runs else 0

    def _index(self, entry: SliceEntry) -> Cell:
        survey = self._survey(entry)
        if survey is None:
            return ("not scanned", "dim") if entry.slice else ""
        state = index_state(survey)
        return f"{SYMBOLS[state.level][0]} {state.short}", _INDEX_ROLES[state.level]

    def heading(self, thing: SliceEntry) -> Cell | None:
        return thing.text if thing.path is None else None

    def level(self, entry: SliceEntry) -> str:
        if entry.path is None:
            return entry.level
        known = self.worst.get(entry.path)
        survey = self.surveys.get(entry.path)
        if entry.slice is None or known is not None or survey is None:
            return known or "unknown"
        if survey.error or survey.header_error or survey.damages or entry.slice.data is None:
            return "error"
        return index_state(survey).level


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

    def __init__(self, session: StoreSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self._rows = SliceRows()
        self._files: ChannelFiles | None = None
        self._problem = ""
        self._extra: dict[Path, SliceSurvey] = {}  # of archived slices, which the scan of the store skips
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
        if name is not None:
            try:
                self._files = session.store.channel(name)
            except StoreUnreadableError as problem:
                self._problem = problem.message
        facts = session.channels.get(name) if name is not None else None
        if not session.scanned:
            self._extra.clear()
        surveys = dict(self._extra)
        if facts is not None and facts.survey is not None:
            for survey in (*facts.survey.slices, *facts.survey.lone_indexes):
                surveys[survey.files.data or survey.files.index or session.store.path] = survey
        rows = self._rows
        rows.surveys = surveys
        rows.shown = list(_entries(session, self._files, facts.survey if facts is not None else None))
        rows.worst = self._levels() if session.scanned or (facts and facts.verdict) else {}
        found = {
            part.state for each in rows.shown if each.slice and each.path for part in segments(surveys.get(each.path))
        }
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
        root = self.session.store.path
        levels: dict[Path, str] = {}
        for entry in self._rows.shown:
            if entry.path is None or entry.path.suffix == ".bak":
                continue
            paths = [entry.path, entry.slice.index if entry.slice else None]
            names = [path.relative_to(root).as_posix() for path in paths if path]
            levels[entry.path] = worst([finding for name in names for finding in found.get(name, [])])
        return levels

    # Archived slices

    def _scan_archived(self) -> None:
        if self._files is None or not self.session.scanned:
            return
        waiting = [each for each in self._files.archived if each.data and each.data not in self._extra]
        if sum(each.data_size for each in waiting) <= _SCANNED_AT_ONCE:
            for each in waiting:
                self._scan(each)

    def _scan(self, files: SliceFiles) -> None:
        path = files.data or files.index
        if path is None or path in self._scanning or self.channel is None:
            return
        self._scanning.add(path)
        session, channel = self.session, self.channel.encode("utf-8", "surrogateescape")

        def done(survey: SliceSurvey) -> None:
            self._scanning.discard(path)
            self._extra[path] = survey
            self._update()

        def work(job: Job[SliceSurvey]) -> SliceSurvey:
            return survey_slice(files, channel, session.store.crc, job.advance)

        self.begin("scan", work, done, lambda: self._scanning.discard(path), files.data_size)

    # Texts

    @property
    def _entry(self) -> SliceEntry | None:
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
            text = "messages are missing here" if entry.level == "warning" else "files that are not slices"
            yield [(text, "dim")]
        elif entry.slice is None:
            yield [(name_text(entry.path.name), "strong"), f", {format_size(entry.size)}"]
            yield from self._file_findings(entry.path, room)
        else:
            survey = self._rows.surveys.get(entry.path)
            if survey is None:
                scan = "not scanned yet" if not entry.slice.archived else "archived, not scanned: s scans it"
                yield [(name_text(entry.path.name), "strong"), f", {format_size(entry.size)}: {scan}"]
            else:
                yield from _survey_lines(survey, room, 3 if self.size.height < 35 else 10)
                yield from self._file_findings(entry.path, room, ("sequence", "foreign", "subject"))
        yield self._legend

    def _file_findings(self, path: Path, room: int, codes: tuple[str, ...] = ("",)) -> Iterable[Sequence[Cell]]:
        name = path.relative_to(self.session.store.path).as_posix()
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
        survey = self._rows.surveys.get(entry.path) if entry is not None and entry.path is not None else None
        first = survey.runs[0].first if survey is not None and survey.runs else None
        if self.channel is not None:
            self.browser.open_view(View.MESSAGES, ViewTarget(channel=self.channel, seq=first), above=True)

    def action_findings(self) -> None:
        self.browser.open_view(View.FINDINGS, ViewTarget(channel=self.channel), above=True)

    def action_scan(self) -> None:
        entry = self._entry
        if entry is not None and entry.slice is not None and entry.slice.archived:
            self._scan(entry.slice)
            self.notify("scanning it")

    # Records

    def _open_file(self, path: Path, offset: int | None = None) -> RecordScreen:
        name = path.relative_to(self.session.store.path).as_posix()
        screen = RecordScreen(self.session, ViewTarget(channel=self.channel, file=name, offset=offset))
        self.app.push_screen(screen)
        return screen

    def _open_place(self) -> None:
        file = self.place.file or ""
        path = self.session.store.path / file
        place = next((n for n, entry in enumerate(self._rows.shown) if entry.path == path), None)
        if place is not None:
            self.query_one(SliceTable).cursor = place
        if kind_of(path.name) is not None and not path.is_dir():
            self._open_file(path, self.place.offset)

    def _open_sequence(self, sequence: int) -> str:
        """Opens the record of a message, once a scan knows its slice; returns the reason if there is none."""
        for path, survey in self._rows.surveys.items():
            run = next((run for run in survey.runs if sequence < 2**64 and sequence in run.sequences), None)
            if run is not None:
                place = next((n for n, entry in enumerate(self._rows.shown) if entry.path == path), 0)
                self.query_one(SliceTable).cursor = place
                self._open_file(path, run.place(sequence)).sought = sequence
                return ""
        return f"no scanned slice has sequence {sequence}"

    def go_to_hint(self) -> str:
        return "the number of a slice; a sequence: #17"

    def go_to(self, text: str) -> str | None:
        if text.isdecimal():
            for place, entry in enumerate(self._rows.shown):
                if entry.slice is not None and entry.slice.number == int(text):
                    self.query_one(SliceTable).cursor = place
                    return ""
            return f"there is no slice {text}"
        if text[:1] == "#" and text[1:].isdecimal():
            return self._open_sequence(int(text[1:]))
        return None


def _held(survey: SliceSurvey) -> Ranges:
    return Ranges.union(run.sequences for run in survey.runs)


def _entries(session: StoreSession, files: ChannelFiles | None, survey: ChannelSurvey | None) -> Iterable[SliceEntry]:
    store = session.store
    others: list[Path] = []
    if files is not None:
        slices = sorted((*files.archived, *files.slices, *files.lone_indexes), key=lambda each: each.number)
        gaps = {gap.high + 1: gap for gap in missing_slices(survey)} if survey is not None else {}
        for each in slices:
            if each.data and not each.archived and (gap := gaps.get(each.number)):
                text = f"! slice {gap.numbers} is missing, with sequences {gap.first} to {gap.last}"
                yield SliceEntry(None, text, level="warning")
            path = each.data or each.index
            if path is not None:
                yield SliceEntry(path, slice=each, size=each.data_size if each.data else each.index_size)
        others += [each.index for each in slices if each.index and each.data]
        others += [files.subs] if files.subs else []
        others += [path for path in (*files.misnamed, *files.foreign) if kind_of(path.name)]
    others += [path for path in (store.clients, store.server, *store.leftovers) if path]
    if others:
        yield SliceEntry(None, "— other files —")
    for path in others:
        yield SliceEntry(path, size=size_of(path))


def _survey_lines(survey: SliceSurvey, room: int, limit: int) -> Iterable[Sequence[Cell]]:
    files = survey.files
    name: list[Cell] = [(name_text(files.name), "strong")]
    if survey.error:
        yield [*name, (f": {survey.error}", "bad")]
    elif survey.runs:
        held = _held(survey)
        when = span_text(survey.runs[0].first_timestamp, survey.runs[-1].last_timestamp, 10**6)
        yield [*name, cut(f": sequences {describe_ranges(held.pairs(), 3)}; {when}", room - len(files.name))]
    else:
        yield [*name, ": no good message" if files.data else ": the data file is gone"]
    state: IndexState = index_state(survey)
    yield [(f"{SYMBOLS[state.level][0]} ", _INDEX_ROLES[state.level]), cut(state.text, room - 2)]
    if survey.header_error:
        yield [(f"✗ {cut(survey.header_error, room - 2)}", "bad")]
    for neighbours in survey.damages[:limit]:
        damage = neighbours.damage
        seq = f", sequence {damage.sequence}" if damage.sequence is not None else ""
        text = f"at {damage.offset}: {damage.kind.value}, {counted(damage.length, 'byte')}{seq}"
        yield [("✗ ", "bad"), cut(f"{text}: {stop_text(damage.stop)}", room - 2)]
    if len(survey.damages) > limit:
        yield [(f"  … and {counted(len(survey.damages) - limit, 'more damaged place')}", "dim")]
