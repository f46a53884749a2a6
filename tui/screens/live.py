"""What runs: a streaming server as its monitoring shows it, and the streams of a JetStream account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from textual import on
from textual.app import App
from textual.binding import Binding, BindingType
from textual.widget import Widget

from stantools.errors import StantoolsError
from tui.cells import Cell, name_text
from tui.jobs import Job
from tui.live.monitor import Monitor
from tui.live.streams import Streams
from tui.live.watching import Watching
from tui.screens.livecells import channel_rows, client_rows, subscription_rows
from tui.screens.livehead import account_head, server_head
from tui.screens.livetable import LiveRows
from tui.screens.liveview import WATCHING, LiveView
from tui.screens.streamcells import stream_rows
from tui.session import StoreSession
from tui.views import Place
from tui.widgets.line import Line
from tui.widgets.rowtable import RowTable

#: What a browser watches, kept while other views are open: figures of before are not lost.
_WATCHED: WeakKeyDictionary[App[Any], Watching] = WeakKeyDictionary()
_CHANNELS, _CLIENTS, _SUBSCRIPTIONS, _STREAMS = "Channels", "Clients", "Subscriptions", "Streams"


class LiveScreen(LiveView):
    """The view of what runs: channels, clients, subscriptions and streams as tabs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="live.open"),
        Binding("tab", "tab(1)", "Next tab", key_display="tab", id="live.next_tab"),
        Binding("shift+tab", "tab(-1)", "Previous tab", show=False, id="live.previous_tab"),
        *WATCHING,
        Binding("equals_sign", "compare", "Compare", key_display="=", show=False, id="live.compare"),
    ]

    def __init__(self, session: StoreSession | None, place: Place) -> None:
        super().__init__(session, place)
        self._tabs: dict[str, LiveRows[Any]] = {}
        self._tab = ""
        self._cursors: dict[str, int] = {}
        self._problem: StantoolsError | None = None

    @property
    def channel(self) -> str | None:
        """None: a channel of a server that runs need not be one of the store."""
        return None

    @property
    def source(self) -> Monitor | Streams | None:
        """The server, or its streams."""
        if self._watching is None:
            return None
        return self._watching.streams if self._tab == _STREAMS else self._watching.monitor

    @property
    def rows(self) -> LiveRows[Any]:
        """The table of the tab."""
        return self._tabs[self._tab]

    def compose_body(self) -> Iterable[Widget]:
        """Figures, tabs, filter, table."""
        self._begin()
        for widget in super().compose_body():
            if widget.id == "live-filter":
                yield Line(id="live-tabs")
            yield widget

    def _begin(self) -> None:
        try:
            self._watching = _WATCHED.get(self.app)
            if self._watching is None:
                self._watching = _WATCHED[self.app] = Watching(self.browser.monitor, self.browser.connecting)
        except StantoolsError as problem:
            self._problem = problem
        monitor = self._watching.monitor if self._watching else None
        if monitor is not None:
            self._tabs[_CHANNELS] = channel_rows()
            self._tabs[_CLIENTS] = client_rows(monitor)
            self._tabs[_SUBSCRIPTIONS] = subscription_rows()
        if self._watching is None or self._watching.streams is not None:
            self._tabs[_STREAMS] = stream_rows()
        self._tab = next(iter(self._tabs))

    def on_mount(self) -> None:
        """Begins to ask."""
        if self._watching is None:
            if self._problem is not None:
                self.query_one("#live-trouble", Line).show_lines(
                    [[("✗ ", "bad"), (self._problem.message, "bad")], ["  ", self._problem.remedy]]
                )
            return
        for job in self._watching.jobs():
            self.watch_job(job, self._ended(job))
        self._note()

    def _note(self) -> None:
        words = ["stantools", "tui", *([str(self.session.path)] if self._session is not None else [])]
        if self.watching.monitor is not None:
            words += ["--monitor", self.watching.monitor.address.shown]
        if self.watching.streams is not None:
            words += ["--server", ",".join(self.watching.streams.connecting.servers)]
        self.note(*words)

    def _ended(self, job: Job[None]) -> Callable[[], None]:
        def tell() -> None:
            if job.problem is None:
                return
            source = self.watching.monitor if job.name == "monitor" else self.watching.streams
            if source is not None:
                source.problem = job.problem
                source.revision += 1

        return tell

    def head(self) -> Iterable[Sequence[Cell]]:
        """The server, or the account."""
        width = max(self.size.width - 2, 20)
        source = self.source
        if isinstance(source, Monitor):
            yield from server_head(source, width)
        elif isinstance(source, Streams):
            yield from account_head(source, width)

    def fill_rows(self) -> None:
        """Fills the table of the tab."""
        source = self.source
        if isinstance(source, Streams):
            source.focus = None
            self.rows.fill(source.streams.values())
        elif self._tab == _CHANNELS and source is not None:
            self.rows.fill(source.channels.values())
        elif self._tab == _CLIENTS and source is not None:
            self.rows.fill(source.clients.values())
        elif source is not None:
            self.rows.fill(source.subscriptions)

    def write_head(self) -> None:
        """The tabs, too."""
        super().write_head()
        if not self.is_mounted or self._watching is None:
            return
        cells: list[Cell] = []
        for name in self._tabs:
            count = self._count(name)
            text = f"{name} {count:,}" if count is not None else name
            cells.append((f"[{text}]", "strong") if name == self._tab else (f" {text} ", "dim"))
            cells.append(" ")
        if self.rows.filter:
            shown = f"{len(self.rows):,} with {name_text(self.rows.filter)}"
            cells.append((f" {shown}", "accent"))
        self.query_one("#live-tabs", Line).show(*cells)

    def _count(self, name: str) -> int | None:
        monitor, streams = self.watching.monitor, self.watching.streams
        if name == _STREAMS:
            return len(streams.streams) if streams is not None and streams.account else None
        if monitor is None or monitor.server is None:
            return None
        if name == _CHANNELS:
            return len(monitor.channels)
        return len(monitor.clients) if name == _CLIENTS else len(monitor.subscriptions)

    def action_tab(self, step: int) -> None:
        """Shows another tab."""
        names = list(self._tabs)
        if len(names) < 2:
            return
        self.hide_filter()
        self._cursors[self._tab] = self.table.cursor
        self._tab = names[(names.index(self._tab) + step) % len(names)]
        self.rows.wide = self.size.width >= 120
        self.fill_rows()
        self.table.source = self.rows
        self.table.cursor = self._cursors.get(self._tab, 0)
        self.write()
        self.refresh_bindings()

    @on(RowTable.Selected)
    def _selected(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Opens what is at the cursor."""
        row = self.table.cursor
        if self._watching is None or row >= len(self.rows):
            return
        chosen = self.rows.shown[row]
        if self._tab == _STREAMS:
            from tui.screens.livestream import LiveStreamScreen

            self.app.push_screen(LiveStreamScreen(self._session, self.place, self.watching, chosen.facts.name))
            return
        from tui.screens.livechannel import LiveChannelScreen, LiveClientScreen

        if self._tab == _CLIENTS:
            self.app.push_screen(LiveClientScreen(self._session, self.place, self.watching, chosen.id))
        elif self._tab == _CHANNELS:
            self.app.push_screen(LiveChannelScreen(self._session, self.place, self.watching, chosen.facts.name))
        else:
            key = chosen.channel, chosen.facts.key
            self.app.push_screen(LiveChannelScreen(self._session, self.place, self.watching, chosen.channel, key))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only streams can be compared."""
        if action == "compare" and self._tab != _STREAMS:
            return False
        return super().check_action(action, parameters)

    def action_compare(self) -> None:
        """Compares the stream at the cursor with the channel that it came from."""
        from tui.screens.livecompare import compare

        row = self.table.cursor
        if row < len(self.rows):
            compare(self, self.watching, self.rows.shown[row].facts)

    def go_to(self, text: str) -> str | None:
        """Goes to a row by its name."""
        if self._watching is None or self._tab == _SUBSCRIPTIONS:
            return None
        found = self.rows.find(text)
        if found is None:
            return None
        self.table.cursor = found
        return ""

    def go_to_hint(self) -> str:
        """What can be typed."""
        return f"a name in {self._tab.lower()}" if self._tab else ""
