"""The view of running servers: a streaming server's monitoring, and the streams of a JetStream account."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from textual import on
from textual.app import App
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.errors import StantoolsError
from stantools.notation import cut, format_size
from tui.cells import Cell, Role, counted, name_text
from tui.live.facts import ServerFacts
from tui.live.monitor import Monitor
from tui.live.source import RateMeter
from tui.live.sources import LiveSources
from tui.live.streams_source import StreamsSource
from tui.screens.livetables import (
    channel_rows,
    client_rows,
    rate_cells,
    rate_text,
    stream_rows,
    subscription_rows,
    trouble_cells,
)
from tui.screens.liveview import WATCHING, LiveView
from tui.screens.tableview import TabbedView
from tui.session import SourceSession
from tui.views import ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable

#: Role of the server's state.
_ROLES: dict[str, Role] = {
    "STANDALONE": "good",
    "CLUSTERED": "good",
    "FT_ACTIVE": "good",
    "FT_STANDBY": "warn",
    "FAILED": "bad",
    "SHUTDOWN": "bad",
}


def server_head(monitor: Monitor, width: int) -> Iterable[Sequence[Cell]]:
    server = monitor.server
    if server is None:
        if monitor.problem is None:
            yield [("asking ", "dim"), monitor.address.shown]
        return
    grey: Role = "dim" if monitor.problem is not None else ""
    yield _server_cells(monitor, server, width, grey)
    yield [
        *_flow("in ", monitor.rates.in_messages, monitor.rates.in_bytes, width // 2, grey),
        *_flow("out", monitor.rates.out_messages, monitor.rates.out_bytes, width // 2, grey),
    ]
    totals = f"{counted(server.messages, 'message')}, {format_size(server.bytes)}"
    yield [(totals, grey), *trouble_cells(monitor, grey)]
    if width >= 110:
        yield [(_limits(monitor, server), "dim")]
    if server.state == "FT_STANDBY":
        yield [("standby: it shows nothing of the store until it becomes active", "warn")]
    elif server.role and server.role != "Leader":
        yield [(f"{name_text(server.role)}: the leader of the cluster serves the subscriptions", "warn")]


def _server_cells(monitor: Monitor, server: ServerFacts, width: int, grey: Role) -> Sequence[Cell]:
    state = name_text(server.state) or "state unknown"
    if server.role:
        state += f" {name_text(server.role)}"
    role = grey or _ROLES.get(server.state, "warn")
    cells: list[Cell] = [
        (name_text(server.cluster_id) or "(no cluster id)", grey or "strong"),
        "  ",
        (state, role),
        (f"  {name_text(server.version) or 'version unknown'}", grey),
    ]
    if server.node_id:
        cells.append((f"  node {name_text(server.node_id)}", grey))
    if monitor.store is not None and monitor.store.kind:
        cells.append((f"  {name_text(monitor.store.kind)} store", grey))
    if server.uptime:
        cells.append((f"  up {name_text(server.uptime)}", grey))
    if width >= 100:
        cells.append((f"  id {cut(name_text(server.server_id), 40)}", "dim"))
    return cells


def _flow(title: str, messages: RateMeter, size: RateMeter, width: int, grey: Role) -> Sequence[Cell]:
    rate = f"{rate_text(messages.rate) or '…':>5} msg/s"
    amount = f"{format_size(int(size.rate or 0))}/s"
    figures = f"{title} {rate} {amount:>12} "
    return rate_cells(figures, messages, width, grey)


def _limits(monitor: Monitor, server: ServerFacts) -> str:
    parts = []
    store, nats = monitor.store, monitor.nats
    if store is not None:
        limits = [
            f"{store.most_channels:,} channels" if store.most_channels else "",
            f"{store.most_messages:,} messages" if store.most_messages else "",
            f"{format_size(store.most_bytes)} in each" if store.most_bytes else "",
        ]
        parts.append("limits: " + (", ".join(filter(None, limits)) or "none"))
    if server.open_files:
        most = f" of {server.most_files:,}" if server.most_files else ""
        parts.append(f"{server.open_files:,}{most} files open")
    if nats is not None:
        parts.append(
            f"NATS {name_text(nats.version)}: {counted(nats.connections, 'connection')}, {format_size(nats.memory)}, "
            f"{nats.cpu:.0f}% CPU"
            + (f", {counted(nats.slow_consumers, 'slow consumer')}" if nats.slow_consumers else "")
        )
    return " · ".join(parts)


def account_head(streams: StreamsSource, width: int) -> Iterable[Sequence[Cell]]:
    account = streams.account
    if account is None:
        if streams.problem is None:
            yield [("asking ", "dim"), name_text(streams.url)]
        return
    grey: Role = "dim" if streams.problem is not None else ""
    cells: list[Cell] = [("JetStream", grey or "strong"), (f" of {name_text(streams.url)}", grey)]
    if streams.version:
        cells.append((f"  {name_text(streams.version)}", grey))
    if account.domain:
        cells.append((f"  domain {name_text(account.domain)}", grey))
    if width >= 100 and streams.server:
        cells.append((f"  {cut(name_text(streams.server), 60)}", "dim"))
    yield cells
    used = [
        _of("storage", format_size(account.storage), account.most_storage and format_size(account.most_storage)),
        _of("memory", format_size(account.memory), account.most_memory and format_size(account.most_memory)),
        _of("streams", f"{account.streams:,}", account.most_streams and f"{account.most_streams:,}"),
        _of("consumers", f"{account.consumers:,}", account.most_consumers and f"{account.most_consumers:,}"),
    ]
    yield [(" · ".join(used), grey)]


def _of(noun: str, used: str, limit: str | int) -> str:
    return f"{noun} {used} of {limit}" if limit else f"{noun} {used}"


#: Watched servers, kept while other views are open, so that earlier figures are not lost.
_WATCHED: WeakKeyDictionary[App[Any], LiveSources] = WeakKeyDictionary()
_CHANNELS, _CLIENTS, _SUBSCRIPTIONS, _STREAMS = "Channels", "Clients", "Subscriptions", "Streams"


class LiveScreen(TabbedView, LiveView):
    """Channels, clients, subscriptions and streams of running servers, as tabs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="live.open"),
        Binding("tab", "tab(1)", "Next tab", key_display="tab", id="live.next_tab"),
        Binding("shift+tab", "tab(-1)", "Previous tab", show=False, id="live.previous_tab"),
        *WATCHING,
        Binding("equals_sign", "compare", "Compare", key_display="=", show=False, id="live.compare"),
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__(session, place)
        self._problem: StantoolsError | None = None

    @property
    def channel(self) -> str | None:
        """None: a channel of a running server is not necessarily in the store."""
        return None

    @property
    def source(self) -> Monitor | StreamsSource | None:
        if self._watching is None:
            return None
        return self._watching.streams if self.tab == _STREAMS else self._watching.monitor

    def compose_body(self) -> Iterable[Widget]:
        self._begin()
        for widget in super().compose_body():
            if widget.id == "live-filter":
                yield TextLine(id="live-tabs")
            yield widget

    def _begin(self) -> None:
        try:
            self._watching = _WATCHED.get(self.app)
            if self._watching is None:
                self._watching = _WATCHED[self.app] = LiveSources(self.browser.monitor, self.browser.connect_options)
        except StantoolsError as problem:
            self._problem = problem
        monitor = self._watching.monitor if self._watching else None
        if monitor is not None:
            self.tabs[_CHANNELS] = channel_rows()
            self.tabs[_CLIENTS] = client_rows(monitor)
            self.tabs[_SUBSCRIPTIONS] = subscription_rows()
        if self._watching is None or self._watching.streams is not None:
            self.tabs[_STREAMS] = stream_rows()
        self.choose_tab(next(iter(self.tabs)))

    def on_mount(self) -> None:
        if self._watching is None:
            if self._problem is not None:
                self.query_one("#live-trouble", TextLine).show_lines(
                    [[("✗ ", "bad"), (self._problem.message, "bad")], ["  ", self._problem.remedy]]
                )
            return
        for source in self._watching.sources:
            job = source.job()
            self.watch_job(job, partial(source.ended, job))
        self._note()

    def _note(self) -> None:
        words = ["stantools", "tui", *([str(self.session.path)] if self._session is not None else [])]
        if self.watching.monitor is not None:
            words += ["--monitor", self.watching.monitor.address.shown]
        if self.watching.streams is not None:
            words += ["--server", ",".join(self.watching.streams.connect_options.servers)]
        self.note(*words)

    def head(self) -> Iterable[Sequence[Cell]]:
        width = max(self.size.width - 2, 20)
        source = self.source
        if isinstance(source, Monitor):
            yield from server_head(source, width)
        elif isinstance(source, StreamsSource):
            yield from account_head(source, width)

    def fill_rows(self) -> None:
        if isinstance(self.source, StreamsSource):
            self.source.focus = None
        self.rows.fill(self._things(self.tab) or ())

    def write_head(self) -> None:
        super().write_head()
        if not self.is_mounted or self._watching is None:
            return
        things = {name: self._things(name) for name in self.tabs}
        counts = {name: None if each is None else len(each) for name, each in things.items()}
        if counts[self.tab] is not None:
            # the rows, because newer figures may have arrived since
            counts[self.tab] = self.rows.total
        cells = self.tab_cells(counts)
        if self.rows.filter:
            shown = f"{len(self.rows):,} with {name_text(self.rows.filter)}"
            cells.append((f" {shown}", "accent"))
        self.query_one("#live-tabs", TextLine).show(*cells)

    def _things(self, name: str) -> Collection[Any] | None:
        if self._watching is None:
            return None
        monitor, streams = self._watching.monitor, self._watching.streams
        if name == _STREAMS:
            return streams.streams.values() if streams is not None and streams.account else None
        if monitor is None or monitor.server is None:
            return None
        if name == _CHANNELS:
            return monitor.channels.values()
        return monitor.clients.values() if name == _CLIENTS else monitor.subscriptions

    def begin_tab(self) -> None:
        self.hide_filter()

    @on(RowTable.Selected)
    def action_open(self) -> None:
        chosen = self.row if self._watching is not None else None
        if chosen is None:
            return
        if self.tab == _STREAMS:
            from tui.screens.livedetails import LiveStreamScreen

            self.app.push_screen(LiveStreamScreen(self._session, self.place, self.watching, chosen.facts.name))
            return
        from tui.screens.livedetails import LiveChannelScreen, LiveClientScreen

        if self.tab == _CLIENTS:
            self.app.push_screen(LiveClientScreen(self._session, self.place, self.watching, chosen.id))
        elif self.tab == _CHANNELS:
            self.app.push_screen(LiveChannelScreen(self._session, self.place, self.watching, chosen.facts.name))
        else:
            key = chosen.channel, chosen.facts.key
            self.app.push_screen(LiveChannelScreen(self._session, self.place, self.watching, chosen.channel, key))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "compare" and self.tab != _STREAMS:
            return False
        return super().check_action(action, parameters)

    def action_compare(self) -> None:
        from tui.screens.livecompare import compare

        if self.row is not None:
            compare(self, self.watching, self.row.facts)

    def go_to(self, text: str) -> str | None:
        if self._watching is None or self.tab == _SUBSCRIPTIONS:
            return None
        found = self.rows.find(text)
        if found is None:
            return None
        self.table.cursor = found
        return ""

    def go_to_hint(self) -> str:
        return f"a name in {self.tab.lower()}" if self.tab else ""
