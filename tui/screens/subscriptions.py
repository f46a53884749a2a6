"""Subscriptions, queue groups and clients of a store, with their positions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.browse.log_history import LogLoss, log_loss
from stantools.escaping import text
from stantools.inspection.records import FileKind
from tui.cells import Cell, counted, name_text, number
from tui.screens.history import HistoryScreen, PendingScreen
from tui.screens.subdetail import detail, loss_lines
from tui.screens.subrows import ClientRow, ConsumerRow, GroupRow, SubRows, SubscriptionRow, gather
from tui.screens.tableview import FilterField, TabbedView, filtering, sorting
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.panesize import RESIZING
from tui.widgets.rowtable import RowTable
from tui.widgets.tablepane import TablePane

#: Interval for adding rows, in seconds; the work takes at most a tenth of it.
_TAKE = 0.05


class SubscriptionsScreen(TabbedView):
    """The view of subscriptions, queue groups and clients. `seq` of the place is the id of a subscription."""

    NAME: ClassVar[str] = "subscriptions"
    TAB = View.SUBSCRIPTIONS
    SPACE = "  "
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "tab(1)", "Groups", id="subscriptions.next_tab"),
        Binding("shift+tab", "tab(-1)", "Previous tab", show=False, id="subscriptions.previous_tab"),
        Binding("c", "all_channels", "All", id="subscriptions.all_channels"),
        Binding("m", "messages", "Messages", id="subscriptions.messages"),
        Binding("p", "pending", "Pending messages", show=False, id="subscriptions.pending"),
        *sorting("subscriptions"),
        *filtering("subscriptions"),
        Binding("J", "scroll(1)", "Details down", show=False, id="subscriptions.details_down"),
        Binding("K", "scroll(-1)", "Details up", show=False, id="subscriptions.details_up"),
        *RESIZING,
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self._home = place.channel
        self.gathered = gather(self.session, place.channel)
        self.tabs = {kind: SubRows(kind) for kind in self.gathered.counts()}
        self.choose_tab(next(iter(self.tabs)))
        self._wanted = place.seq
        self._stale = True
        self._cost = self._last = 0.0
        self._losses: dict[str, LogLoss | None] = {}
        self._compared_files: set[str] = set()
        self._read: object = None
        self._facts: tuple[object, ...] = ()

    @property
    def channel(self) -> str | None:
        row = self.row if self.is_mounted else None
        if isinstance(row, SubscriptionRow | GroupRow | ConsumerRow):
            return row.channel.name
        return self.place.channel

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="sub-tabs")
        yield TextLine(id="sub-problems")
        yield FilterField("part of a channel, client, durable, group or status", id="sub-filter")
        yield TablePane(self.rows, self.browser.pane_sizes, id="sub-body")

    def on_mount(self) -> None:
        self.table.focus()
        self.set_interval(_TAKE, self._take)
        self._note()

    def _note(self) -> None:
        words = ["stantools", "clients" if self.tab == "clients" else "subs", str(self.session.named)]
        if self.place.channel is not None and self.tab != "clients":
            words += ["--channel", self.place.channel]
        self.note(*words)

    def on_resize(self) -> None:
        wide = self.size.width >= self.WIDE
        self.pane.lay_out(wide=wide)
        for rows in self.tabs.values():
            rows.wide = wide
        self.update_rows()

    def facts_changed(self) -> None:
        self._stale = True
        self._take()

    def _take(self) -> None:
        if not self.is_mounted:
            return
        if self.session.overview is not self._read:
            # the store was opened again
            self._read, self._losses, self._compared_files = self.session.overview, {}, set()
        self._stale |= self.gathered.update()
        facts = (self.session.forecasts, self.gathered.known)
        if self._stale and time.monotonic() - self._last >= 10 * self._cost:
            self.update_rows()
        elif facts != self._facts:
            self._write()
        self._facts = facts

    def fill_rows(self) -> None:
        cast(SubRows, self.rows).take(self.gathered)

    def update_rows(self) -> None:
        begun = time.monotonic()
        super().update_rows()
        if self._wanted is not None and self.tab == "subscriptions":
            found = self.rows.find(("subscription", self.place.channel or "", str(self._wanted)))
            if found is not None:
                self.table.cursor, self._wanted = found, None
        self._stale = self.gathered.behind
        self._last = time.monotonic()
        self._cost = self._last - begun
        self._write()

    def _write(self) -> None:
        self._write_tabs()
        self._write_problems()
        self._write_detail()

    def _write_tabs(self) -> None:
        gathered = self.gathered
        cells = self.tab_cells(gathered.counts())
        if not gathered.known:
            total = len(self.session.channels)
            cells.append((f" {number(gathered.read)} of {counted(total, self.session.NOUN)} read", "accent"))
        elif self.rows.filter:
            cells.append((f" {number(len(self.rows))} shown", "accent"))
        self.query_one("#sub-tabs", TextLine).show(*cells)

    def _write_problems(self) -> None:
        lines = list(self._problems(2 if self.size.height < 35 else 5))
        shown = self.query_one("#sub-problems", TextLine)
        shown.display = bool(lines)
        shown.show_lines(lines)

    def _problems(self, limit: int) -> Iterable[Sequence[Cell]]:
        overview = self.session.overview
        if overview is None:
            return
        if overview.server is not None and overview.server.node_id and self.session.node is None:
            yield [("i the node is clustered: its subscriptions and clients are in the raft log, not here", "dim")]
        found = [
            ("clients.dat", FileKind.CLIENTS, each) for each in overview.problems if each.startswith("clients.dat: ")
        ]
        for name in self.gathered.damaged:
            facts = self.session.channels.get(name)
            known = facts.overview if facts else None
            problems = [each for each in known.problems if each.startswith("subs.dat: ")] if known else []
            found += [(f"{name}/subs.dat", FileKind.SUBS, each) for each in problems]
        for file, kind, problem in found[:limit]:
            self._ask(file, kind)
            what = "subscription" if kind is FileKind.SUBS else "client"
            yield from loss_lines(file, problem.split(": ", 1)[1], self._losses.get(file), what)
        if len(found) > limit:
            yield [(f"  … and {counted(len(found) - limit, 'more damaged file')}; see the findings", "dim")]

    def _ask(self, file: str, kind: FileKind) -> None:
        path = self._file(file)
        if file in self._compared_files or path is None:
            return
        self._compared_files.add(file)
        session = self.session

        def done(loss: LogLoss | None) -> None:
            self._losses[file] = loss
            self._write_problems()

        self.begin("compare", lambda _: log_loss(path, kind, session.crc), done)

    def _file(self, file: str) -> Path | None:
        path = self.session.root / file
        return path if path.is_file() else None

    def _write_detail(self) -> None:
        row = self.row
        if row is None:
            self.pane.show_lines([[(self._empty_text(), "dim")]])
            return
        forecast = self.session.forecasts[0] if self.session.forecasts else None
        self.pane.show_lines(list(detail(row, forecast)))

    def _empty_text(self) -> str:
        if not self.gathered.known:
            return "not read yet"
        if self.rows.filter:
            return f"no {self.tab} match the filter"
        return (
            f"no {self.tab} in this {self.session.NOUN} (c: all {self.session.NOUN}s)"
            if self.place.channel
            else f"no {self.tab}"
        )

    @on(RowTable.Highlighted)
    def _highlighted(self) -> None:
        self._write_detail()
        self.pane.show_beginning()

    def begin_tab(self) -> None:
        self.rows.filter = self.filter_field.value
        self.table.cursor = 0
        self._note()

    def action_all_channels(self) -> None:
        """Switches between the whole store and the channel of the view."""
        here = self.channel
        wanted = None if self.place.channel is not None else self._home or here
        if wanted is None and self.place.channel is None:
            self.notify("choose a row first", severity="warning")
            return
        row = self.row
        self.place = ViewTarget(channel=wanted)
        self.gathered = gather(self.session, wanted)
        self.gathered.update()
        self.table.cursor = 0
        self.update_rows()
        if row is not None and (found := self.rows.find(row.key)) is not None:
            self.table.cursor = found
        self.status_changed()
        self._note()

    @on(RowTable.Selected)
    def action_open(self) -> None:
        row = self.row
        if isinstance(row, SubscriptionRow):
            name, one = row.channel.name, row.one
            about = (
                f"subscription {one.state.id} of {name_text(name)}, client {name_text(one.state.client_id) or 'none'}"
            )
            path = self._file(f"{name}/subs.dat")
            self.app.push_screen(HistoryScreen(self.session, ViewTarget(channel=name), path, one.state.id, about))
        elif isinstance(row, ClientRow):
            about = f"client {name_text(row.client.id)}"
            path = self._file("clients.dat")
            place = ViewTarget(channel=self.place.channel)
            self.app.push_screen(HistoryScreen(self.session, place, path, row.client.id, about))
        elif isinstance(row, ConsumerRow):
            self.notify("a consumer's file has its present state only: no history", severity="information")
        elif isinstance(row, GroupRow):
            self.notify("choose a member: each has a history of its own", severity="information")

    def action_messages(self) -> None:
        """Opens the messages at the first pending one, otherwise at the last delivered one."""
        row = self.row
        if isinstance(row, SubscriptionRow):
            seq = row.one.pending[0] if row.one.pending else row.one.state.last_sent
        elif isinstance(row, ConsumerRow):
            seq = row.pending[0] if row.pending else row.one.delivered
        elif isinstance(row, GroupRow):
            first = [each.pending[0] for each in row.group.members if each.pending]
            seq = min(first) if first else row.group.last_sent
        else:
            self.notify("choose a subscription first", severity="warning")
            return
        self.browser.open_view(View.MESSAGES, ViewTarget(channel=row.channel.name, seq=seq or None), above=True)

    def action_pending(self) -> None:
        row = self.row
        if isinstance(row, SubscriptionRow) and row.one.pending:
            about = f"subscription {row.one.state.id}"
            of = f" of client {name_text(row.one.state.client_id) or 'none'}: "
            self._show_pending(row.channel.name, about, of, row.one.pending)
        elif isinstance(row, ConsumerRow) and row.pending:
            of = f" of {name_text(row.channel.name)}: "
            self._show_pending(row.channel.name, f"consumer {name_text(row.one.consumer.name)}", of, row.pending)
        else:
            self.notify("no pending messages here", severity="warning")

    def _show_pending(self, channel: str, about: str, of: str, pending: Sequence[int]) -> None:
        cells: list[Cell] = [(about, "strong"), of]
        self.app.push_screen(PendingScreen(self.session, ViewTarget(channel=channel), cells, pending))

    def go_to(self, text_: str) -> str | None:
        table = self.table
        for place, row in enumerate(self.rows.shown):
            names: tuple[str, ...]
            if isinstance(row, SubscriptionRow):
                names = (str(row.one.state.id), text(row.one.state.client_id), row.one.name)
            elif isinstance(row, ClientRow):
                names = (text(row.client.id),)
            elif isinstance(row, ConsumerRow):
                names = (row.one.consumer.name,)
            else:
                names = (row.group.name,)
            if text_ in names:
                table.cursor = place
                return ""
        return f"there is no subscription {text_} here" if text_.isdigit() else None

    def go_to_hint(self) -> str:
        return "the id of a subscription, a client, a durable or queue group"
