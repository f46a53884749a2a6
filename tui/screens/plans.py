"""The list of wizards, and the advised one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from tui.cells import Cell
from tui.plans.account import advice_rows
from tui.plans.wizard import WIZARDS, SourceStore, Wizard, WizardEntry
from tui.rows import ListRows, TableColumn
from tui.screens.base import ViewScreen
from tui.screens.wizard import WizardScreen
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable


class PlansScreen(ViewScreen):
    NAME = "plans"
    TAB = View.PLANS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Choose", id="plans.open"),
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, ViewTarget(plan=place.plan))  # plans apply to the whole store
        self._wizards = [each for each in WIZARDS if each.verb in self.session.VERBS]
        self._wanted = self._entry(place.plan)
        self._row_seen = False
        self._opening = False

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="plan-advice")
        yield RowTable(self._entries(), id="plans")
        yield TextLine(
            [("Each plan is shown before anything is written. To run it, press W and type the store's name.", "dim")],
            id="plan-note",
        )

    def on_mount(self) -> None:
        table = self.query_one(RowTable)
        table.focus()
        if self._wanted is not None:
            table.cursor = self._wizards.index(self._wanted)
            self._row_seen = True
            self.call_after_refresh(self._open, self._wanted)

    def facts_changed(self) -> None:
        advice = self.session.advice()
        rows: list[Sequence[Cell]] = []
        if advice is None:
            rows.append([("next step: not known yet", "dim")])
        else:
            rows += advice_rows(advice)
        self.query_one("#plan-advice", TextLine).show_lines(rows)
        table = self.query_one(RowTable)
        table.source = self._entries()
        if (advised := self._advised()) and not self._row_seen:
            self._row_seen = True
            table.cursor = self._wizards.index(advised)

    def on_resize(self) -> None:
        self.query_one(RowTable).source = self._entries()

    def _entries(self) -> ListRows[WizardEntry]:
        advised = self._advised()
        columns: list[TableColumn[WizardEntry]] = [
            TableColumn(" ", 1, lambda each: ("▸", "accent") if each is advised else ""),
            TableColumn("plan", 16, lambda each: (each.verb, "strong")),
            TableColumn("what it makes", 52, lambda each: each.does, grows=True),
        ]
        if self.is_attached and self.app.size.width >= 120:
            columns.append(TableColumn("the store is", 40, lambda each: (each.changes, "dim")))
        return ListRows(columns, self._wizards)

    def _entry(self, verb: str | None) -> WizardEntry | None:
        return next((each for each in self._wizards if each.verb == verb), None)

    def _advised(self) -> WizardEntry | None:
        advice = self.session.advice()
        return self._entry(advice.command[1]) if advice and len(advice.command) > 1 else None

    @on(RowTable.Selected)
    def action_open(self) -> None:
        self._open(self._wizards[self.query_one(RowTable).cursor])

    def _open(self, chosen: WizardEntry) -> None:
        if self._opening:
            return
        session = self.session
        source = SourceStore(
            session.path, session.read_options, session.workers, self.browser.connect_options, session.source
        )
        # The import of a wizard's modules takes longer than a key press may.
        self._opening = True
        self.begin(f"open {chosen.verb}", lambda _: chosen.make(source), self._opened, self._not_opened)

    def _opened(self, wizard: Wizard[Any]) -> None:
        self._opening = False
        if self.is_current:
            self.app.push_screen(WizardScreen(self.session, ViewTarget(), wizard))

    def _not_opened(self) -> None:
        self._opening = False
