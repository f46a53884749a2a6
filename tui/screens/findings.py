"""The findings of a store in groups, with an explanation of the one at the cursor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.escaping import fill_in, store_names
from stantools.inspection.explain import Explanation, explain
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.records import kind_of
from tui.cells import SYMBOLS, Cell, counted, number
from tui.screens.findingrows import FindingGroup, FindingRows, Grouping, of_subscription, place_words
from tui.screens.tableview import FilteredView, FilterField, filtering
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.panesize import RESIZING
from tui.widgets.rowtable import RowTable
from tui.widgets.tablepane import TablePane

#: Minimum number of columns for the explanation beside the table.
_WIDE = 130
#: Minimum number of columns for a wider column of places.
_WIDER = 150
#: Interval for adding new findings, in seconds.
_TAKE = 0.05

_SEVERITY_WORDS = {
    Severity.ERROR: "Data is damaged or lost, or the server would not start.",
    Severity.WARNING: "Nothing is lost yet, but a healthy server does not leave a store like this.",
    Severity.INFO: "Worth knowing; no action is needed.",
}


def place_of(session: SourceSession, finding: Finding) -> tuple[View, ViewTarget] | None:
    if finding.file and finding.offset is not None:
        return View.SLICES, ViewTarget(channel=finding.channel, file=finding.file, offset=finding.offset)
    if finding.channel is not None and of_subscription(finding) and (finding.seq is not None or session.consumers):
        return View.SUBSCRIPTIONS, ViewTarget(channel=finding.channel, seq=finding.seq)
    if finding.channel is not None and finding.seq is not None:
        return View.MESSAGES, ViewTarget(channel=finding.channel, seq=finding.seq)
    named = kind_of(PurePosixPath(finding.file).name) is not None
    if named and (session.root / finding.file).is_file():
        return View.SLICES, ViewTarget(channel=finding.channel, file=finding.file)
    return None


class FindingsScreen(FilteredView):
    """The view of findings. Channel, code, file, offset and seq of the place select the first finding."""

    NAME: ClassVar[str] = "findings"
    TAB = View.FINDINGS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "group", "Group by", id="findings.group"),
        Binding("space", "fold", "Fold", id="findings.fold"),
        Binding("z", "fold_all", "Fold all", show=False, id="findings.fold_all"),
        Binding("e", "errors", "Errors", id="findings.errors"),
        *filtering("findings"),
        Binding("n", "next(1)", "Next group", show=False, id="findings.next_group"),
        Binding("N", "next(-1)", "Previous group", show=False, id="findings.previous_group"),
        Binding("y", "copy", "Copy", id="findings.copy"),
        Binding("J", "scroll(1)", "Explanation down", show=False, id="findings.explanation_down"),
        Binding("K", "scroll(-1)", "Explanation up", show=False, id="findings.explanation_up"),
        *RESIZING,
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        # The place selects a finding; it does not restrict the view to a channel.
        super().__init__(session, ViewTarget())
        self._target: ViewTarget | None = place if place != ViewTarget() else None
        self._searched = 0
        self.rows = FindingRows(self.session)
        self._pin: FindingGroup | int | None = None
        self._reading = 0

    @property
    def channel(self) -> str | None:
        finding = self.finding if self.is_mounted else None
        return finding.channel if finding else None

    @property
    def finding(self) -> Finding | None:
        what = self.rows.at(self.table.cursor)
        return self.rows.findings[what] if isinstance(what, int) else None

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="find-summary")
        yield FilterField("part of a channel, code, file or text", id="find-filter")
        yield TablePane(self.rows, self.browser.pane_sizes, id="find-body")

    def on_mount(self) -> None:
        self.table.focus()
        self.set_interval(_TAKE, self._take)
        self.note("stantools", "verify", str(self.session.named))

    def on_resize(self) -> None:
        self.rows.wide = self.size.width >= _WIDER
        self.rows.arrange()
        self.pane.lay_out(wide=self.size.width >= _WIDE)
        self.table.reload()

    def facts_changed(self) -> None:
        self._take()
        self._write()

    def _take(self) -> None:
        if not self.is_mounted:
            return
        kept = self.rows.findings[self._pin] if isinstance(self._pin, int) else None
        news = self.rows.take()
        if self._reading != self.rows.readings:
            if self._reading and kept is not None and self._target is None:
                # The store was opened again: the finding at the cursor may have another number now.
                self._target = ViewTarget(kept.channel, kept.seq, file=kept.file, offset=kept.offset, code=kept.code)
            self._reading, self._searched, self._pin = self.rows.readings, 0, None
            news = True
        if news:
            self._show_rows()

    def _show_rows(self) -> None:
        table = self.table
        table.reload()
        self._find_target()
        if self._pin is not None and (row := self.rows.row_of(self._pin)) is not None:
            table.cursor = row
        self._write()

    def _find_target(self) -> None:
        target = self._target
        if target is None or self.rows.behind:
            return
        for at in range(self._searched, len(self.rows.findings)):
            if _matches(self.rows.findings[at], target) and self.rows.row_of(at) is not None:
                self._target, self._pin = None, at
                return
        self._searched = len(self.rows.findings)

    @on(RowTable.Highlighted)
    def _highlighted(self, event: RowTable.Highlighted) -> None:
        if not self.rows.behind:
            # The cursor stays at the top while the user has not moved it, because a worse finding may follow.
            self._pin = self.rows.at(event.row) if event.row else None
        self._write_explanation()
        self.pane.show_beginning()

    def on_key(self) -> None:
        """A key press is the user's choice: the cursor no longer moves to the place."""
        self._target = None

    def _write(self) -> None:
        rows = self.rows
        cells: list[Cell] = [f"by {rows.grouping.value}: ", (counted(len(rows.findings), "finding"), "strong")]
        if rows.shown != len(rows.findings):
            cells.append((f", {number(rows.shown)} shown", "accent"))
        if rows.errors_only:
            cells.append((" (errors only)", "accent"))
        if not self.session.scanned:
            cells.append(("  the scan is not complete", "dim"))
        self.query_one("#find-summary", TextLine).show(*cells)
        self._write_explanation()

    def _write_explanation(self) -> None:
        what = self.rows.at(self.table.cursor)
        self.pane.show_lines(list(self._explanation(what)))

    def _explanation(self, entry: FindingGroup | int | None) -> Iterator[Sequence[Cell]]:
        rows = self.rows
        if isinstance(entry, int):
            finding = rows.findings[entry]
            yield from finding_lines(finding, place_of(self.session, finding), self.session.named)
        elif entry is not None:
            yield [(f"{rows.title(entry)}: ", "strong"), entry.counts()]
            if rows.grouping is Grouping.CODE:
                yield from _explained(entry.name, "", self.session.named)
            elif rows.grouping is Grouping.SEVERITY:
                yield [_SEVERITY_WORDS[Severity(entry.name)]]
            else:
                yield [("space folds the group, b changes the grouping", "dim")]
        elif rows.findings:
            yield [("nothing matches the filter", "dim")]
        elif self.session.scanned:
            yield [("✓ ", "good"), "Every byte was checked; there are no findings."]
        else:
            yield [("no findings yet", "dim")]

    def _regroup(self, change: Callable[[], None]) -> None:
        """Changes the grouping or filter; the cursor stays on its finding if that is shown."""
        table = self.table
        what = self.rows.at(table.cursor)
        change()
        pin = what if isinstance(what, int) else None
        self.rows.regroup()
        self.rows.take()
        self._pin = pin
        if pin is None:
            table.cursor = 0
        self._show_rows()
        if pin is not None and not self.rows.behind and self.rows.row_of(pin) is None:
            self._pin, table.cursor = None, 0

    def action_group(self) -> None:
        kinds = list(Grouping)

        def change() -> None:
            self.rows.grouping = kinds[(kinds.index(self.rows.grouping) + 1) % len(kinds)]
            self.rows.forget_folding()

        self._regroup(change)

    def action_errors(self) -> None:
        def change() -> None:
            self.rows.errors_only = not self.rows.errors_only

        self._regroup(change)

    def action_fold(self) -> None:
        table = self.table
        group = self.rows.group_of(table.cursor)
        if group is None:
            return
        self.rows.toggle(group)
        table.reload()
        table.cursor = self.rows.row_of(group) or 0
        self._write()

    def action_fold_all(self) -> None:
        table = self.table
        group = self.rows.group_of(table.cursor)
        self.rows.toggle_all()
        table.reload()
        table.cursor = (self.rows.row_of(group) or 0) if group else 0
        self._write()

    def action_next(self, step: int) -> None:
        table = self.table
        table.cursor = self.rows.next_group(table.cursor, step)

    @on(RowTable.Selected)
    def action_open(self) -> None:
        finding = self.finding
        if finding is None:
            self.action_fold()
            return
        self.note("stantools", "explain", finding.code)
        found = place_of(self.session, finding)
        if found is None:
            self.notify("this finding has no place to show", severity="warning")
            return
        self.browser.open_view(*found, above=True)

    def action_copy(self) -> None:
        finding = self.finding
        if finding is None:
            self.notify("choose a finding first", severity="warning")
            return
        self.app.copy_to_clipboard(json.dumps(finding.as_json()))
        self.notify(f"copied {finding.code} as json", markup=False)

    def filter_by(self, text: str) -> None:
        def change() -> None:
            self.rows.filter = text

        self._regroup(change)

    def go_to(self, text: str) -> str | None:
        for at, finding in enumerate(self.rows.findings):
            if text in (finding.code, finding.channel) and (row := self.rows.row_of(at)) is not None:
                self.table.cursor = row
                return ""
        return f"there is no finding {text} here" if explain(text) else None

    def go_to_hint(self) -> str:
        return "a code or a channel that has findings"


def _matches(finding: Finding, place: ViewTarget) -> bool:
    wanted = (
        (place.code, finding.code),
        (place.channel, finding.channel),
        (place.file, finding.file),
        (place.offset, finding.offset),
        (place.seq, finding.seq),
    )
    return all(given is None or given == found for given, found in wanted)


def finding_lines(finding: Finding, place: tuple[View, ViewTarget] | None, store: Path) -> Iterator[Sequence[Cell]]:
    """Yields the explanation of a finding as lines. `store` is named in the commands."""
    symbol, role = SYMBOLS[finding.severity.value]
    where = place_words(finding, channel=True) or "the store as a whole"
    length = f", {counted(finding.length, 'byte')}" if finding.length is not None else ""
    yield [(f"{symbol} {finding.code} ", role), (f"{where}{length}", "strong")]
    yield [finding.detail]
    yield from _explained(finding.code, finding.remedy, store)
    if place is not None:
        yield [(f"Enter opens it among the {place[0].value}.", "dim")]


def _explained(code: str, remedy: str, store: Path) -> Iterator[Sequence[Cell]]:
    found = explain(code)
    known = found[0] if found else Explanation(code, "")
    for label, text in (
        ("Meaning: ", known.meaning),
        ("Cause: ", known.cause),
        ("The server: ", known.server),
        ("Remedy: ", fill_in(remedy or known.remedy, store_names(store))),
    ):
        if text:
            yield [(label, "accent"), text]
