"""The state of a store: verdict, forecast, findings, next step, and the channels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.inspection.findings import Finding
from stantools.notation import cut, format_size
from tui.cells import SYMBOLS, Cell, Role, bar, counted, name_text, number
from tui.plans.account import advice_rows
from tui.rows import TableColumn, TableRows, time_column
from tui.screens.tableview import FilterField, TableView, filtering, sorting
from tui.session import ChannelFacts, ChannelSummary, SourceSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable

#: Minimum seconds between two sorts while the store is being read.
_SORT_EVERY = 1.0
_RANK = {"error": 0, "warning": 1, "unknown": 2, "info": 3, "clean": 4}


def _message_count(facts: ChannelFacts) -> int:
    """Number of intact messages; before the scan, of those in the indexes."""
    if facts.verdict is not None:
        return facts.intact
    return facts.summary.count if facts.summary else 0


def _messages(facts: ChannelFacts) -> Cell:
    return number(_message_count(facts)) if facts.summary or facts.verdict else ("…", "dim")


def _known(
    title: str,
    width: int,
    cell: Callable[[ChannelSummary], Cell],
    value: Callable[[ChannelSummary], int],
    *,
    key: str = "",
    smallest: bool = False,
) -> TableColumn[ChannelFacts]:
    """Returns a column of facts from the indexes; empty before they are read."""

    def order(facts: ChannelFacts) -> int:
        found = value(facts.summary) if facts.summary else 0
        return found if smallest else -found

    def shown(facts: ChannelFacts) -> Cell:
        return cell(facts.summary) if facts.summary else ("…", "dim")

    return TableColumn(title, width, shown, order, key=key, right=True)


def _newest(facts: ChannelFacts) -> int:
    return facts.summary.newest if facts.summary else 0


def channel_rows(session: SourceSession) -> TableRows[ChannelFacts]:
    files = session.FILES
    columns: Sequence[TableColumn[ChannelFacts]] = (
        TableColumn(
            " ", 1, lambda facts: SYMBOLS[facts.state], lambda facts: (_RANK[facts.state], facts.name), key="state"
        ),
        TableColumn(
            session.NOUN, 15, lambda facts: name_text(facts.name), lambda facts: facts.name, key="name", grows=True
        ),
        TableColumn("messages", 10, _messages, lambda facts: -_message_count(facts), right=True),
        _known("first", 9, lambda k: str(k.first_seq), lambda k: k.first_seq, smallest=True),
        _known("last", 9, lambda k: str(k.last_seq), lambda k: k.last_seq),
        time_column("oldest", lambda facts: facts.summary.oldest if facts.summary else 0, wide=True),
        time_column("newest", _newest, lambda facts: -_newest(facts), wide=True),
        _known("size", 10, lambda k: format_size(k.bytes), lambda k: k.bytes, key="bytes"),
        _known(files[:2], 4, lambda k: str(k.files), lambda k: k.files, key=f"{files}s"),
        _known("subs", 4, lambda k: str(k.subscriptions or ""), lambda k: k.subscriptions),
        _known("lag", 6, lambda k: (str(k.lag), "warn") if k.lag else "", lambda k: k.lag, key="lag"),
    )
    return TableRows(columns, lambda facts: facts.name, lambda facts: facts.name, "name")


class OverviewScreen(TableView):
    """The first view of a store."""

    TAB = View.OVERVIEW
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "findings", "Findings", id="overview.findings"),
        Binding("p", "plan", "Plan", id="overview.plan"),
        *filtering("overview", "clear", "Clear the filter"),
        *sorting("overview"),
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self.rows = channel_rows(self.session)
        self.fill_rows()
        self._sorted = 0.0
        self._store: object = None

    @property
    def channel(self) -> str | None:
        return self.row.name if self.is_mounted and self.row is not None else None

    def fill_rows(self) -> None:
        self.rows.fill(self.session.channels.values())

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="verdict")
        yield TextLine(id="findings")
        yield FilterField(f"part of a {self.session.NOUN}'s name", id="filter")
        yield RowTable(self.rows)

    def on_mount(self) -> None:
        self.table.focus()
        self.note("stantools", "info", str(self.session.named))

    def on_resize(self) -> None:
        self.rows.wide = self.size.width >= self.WIDE
        self.update_rows()
        self._write()

    def facts_changed(self) -> None:
        """Shows new facts. Rows are sorted only if their order may have changed, and at most once a second."""
        now = time.monotonic()
        if self._store is not self.session.opened:
            self._store = self.session.opened
            self.update_rows()
        elif self.rows.order == "name" or (not self.session.scanned and now < self._sorted + _SORT_EVERY):
            self.table.reload()
        else:
            self.update_rows()
            self._sorted = now
        self._write()

    def _write(self) -> None:
        verdict = list(_verdict(self.session))
        high = self.size.height >= 35
        verdict += _node(self.session, self.size.width - 2, whole=high)
        if high:
            verdict += _identity(self.session)
        self.query_one("#verdict", TextLine).show_lines(verdict)
        findings = list(_top_findings(self.session, 3 if self.size.height < 35 else 8, self.size.width - 2))
        shown = self.query_one("#findings", TextLine)
        shown.display = bool(findings)
        shown.show_lines(findings)

    @on(RowTable.Selected)
    def action_open(self) -> None:
        if self.channel is not None:
            self.browser.open_view(View.MESSAGES, ViewTarget(channel=self.channel), above=True)

    def action_findings(self) -> None:
        self.browser.open_view(View.FINDINGS, ViewTarget(), above=True)

    def action_plan(self) -> None:
        advice = self.session.advice()
        plan = advice.command[1] if advice and len(advice.command) > 1 else None
        self.browser.open_view(View.PLANS, ViewTarget(plan=plan), above=True)


def _verdict(session: SourceSession) -> Iterable[Sequence[Cell]]:
    totals, channels = session.totals, len(session.channels)
    job = session.job
    if session.scanned:
        from stantools.inspection.outcomes import OutcomeTotals

        became = OutcomeTotals.of(session.outcomes.values())
        role: Role = "bad" if became.missing else "warn" if became.unknown else "good"
        others = [(became.archived, "archived"), (became.missing, "missing before")]
        unknown = (
            f"; the last messages of {counted(became.unknown, session.NOUN)} are unknown" if became.unknown else ""
        )
        yield [
            (f"{number(became.intact)} of {counted(became.whole, 'message')} intact", role),
            f", {number(totals.unharmed)} of {counted(channels, session.NOUN)} without damage",
            *((f"; {number(count)} {what}", role) for count, what in others if count),
            (unknown, role),
        ]
    elif job and job.running and job.phase in ("", "reading indexes"):
        # No number of all messages yet: it would be read as the store's.
        done = f"{number(job.done if job.phase else 0)} of {counted(channels, session.NOUN)}"
        yield [f"reading the indexes: {done}, {counted(totals.by_index, 'message')} so far"]
    else:
        share = job.share if job and job.running and job.phase == "checking every byte" else None
        progress: list[Cell] = [(f" {bar(share, 20):<20} ", "accent"), f"{share:.0%}"] if share is not None else []
        by_index = f"{counted(totals.by_index, 'message')} in {counted(channels, session.NOUN)} by the indexes"
        yield [f"{by_index}; checking every byte", *progress]
    if session.forecast_problem:
        yield [(f"The server's start cannot be forecast: {session.forecast_problem}", "bad")]
    elif (outlook := session.start_outlook()) is None:
        yield [("forecast: not known yet", "dim")]
    else:
        sentence, harmless = outlook
        yield [(sentence, "good" if harmless else "bad")]
    advice = session.advice()
    if advice is None:
        yield [("next step: not known yet", "dim")]
    else:
        yield from advice_rows(advice, "  (p)")


#: Facts of a clustered node that are shown even on small screens.
_NODE_FACTS = ("term", "log", "entries lost", "not in the store yet")
#: Their number of lines on small screens.
_NODE_LINES = 4


def _node(session: SourceSession, width: int, *, whole: bool) -> Iterable[Sequence[Cell]]:
    node = session.node
    if node is None:
        return
    facts = [(what, how) for what, how in node.facts() if whole or what in _NODE_FACTS]
    name = f"node {name_text(node.node_id)}, " if node.node_id else ""
    for number_, (what, how) in enumerate(facts[: None if whole else _NODE_LINES]):
        label = f"{name if not number_ else ''}{what}: "
        role: Role = "warn" if what in ("entries lost", "not in the store yet") else "dim"
        yield [(label, "strong"), (cut(name_text(how), max(width - len(label), 20)), role)]
    for each in node.snapshots if whole else ():
        usable = "" if each.usable else ", not usable"
        yield [
            ("snapshot: ", "strong"),
            (f"{name_text(each.name)}, term {each.term}, index {each.index}{usable}", "dim"),
        ]


def _identity(session: SourceSession) -> Iterable[Sequence[Cell]]:
    if parts := session.about():
        yield [(", ".join(parts), "dim")]


def _top_findings(session: SourceSession, limit: int, width: int) -> Iterable[Sequence[Cell]]:
    totals = session.totals
    ranked = [*totals.first.get("error", []), *totals.first.get("warning", [])]
    count = totals.severities.get("error", 0) + totals.severities.get("warning", 0)
    for finding in ranked[:limit]:
        yield _finding_cells(finding, width)
    notes = totals.severities.get("info", 0)
    rest = [counted(count - limit, "more finding")] if count > limit else []
    if notes:
        rest.append(counted(notes, "note"))
    if rest:
        yield [(f"  … and {', '.join(rest)} (f)", "dim")]


def _finding_cells(finding: Finding, width: int) -> Sequence[Cell]:
    symbol, role = SYMBOLS[finding.severity.value]
    place = name_text(finding.file)
    if finding.offset is not None:
        place += f" at {finding.offset}"
    text = f"{finding.detail}"
    return [(f"{symbol} ", role), (f"{place}: ", "strong"), cut(text, max(width - len(place) - 4, 20))]
