"""Details of a running channel, client or stream, with its subscriptions or consumers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from stantools.notation import cut, format_size
from tui.cells import Cell, Role, counted, name_text, number
from tui.live.monitor import Monitor, WatchedChannel
from tui.live.sources import LiveSources
from tui.live.streams_source import StreamsSource
from tui.screens.livetables import consumer_rows, inflow_cells, subjects_text, subscription_rows, trouble_cells
from tui.screens.liveview import WATCHING, LiveView
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.rowtable import RowTable


class _MonitorView(LiveView):
    def __init__(self, session: SourceSession | None, place: ViewTarget, watching: LiveSources, name: str) -> None:
        super().__init__(session, place, watching)
        self._thing = name

    @property
    def monitor(self) -> Monitor:
        assert self.watching.monitor is not None
        return self.watching.monitor

    @property
    def source(self) -> Monitor:
        return self.monitor


class LiveChannelScreen(_MonitorView):
    """A channel and its subscriptions, the cursor on the subscription `at`. Enter opens the subscription's client."""

    NAME = "live › channel"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Client", id="live.open"),
        *WATCHING,
        Binding("m", "messages", "Messages", show=False, id="live.messages"),
    ]

    def __init__(
        self, session: SourceSession | None, place: ViewTarget, watching: LiveSources, name: str, at: Hashable = None
    ) -> None:
        super().__init__(session, place, watching, name)
        self.rows = subscription_rows(channel=False)
        self._at = at

    @property
    def channel(self) -> str | None:
        """The channel, if the open store has one of this name."""
        return self._thing if self._session is not None and self._thing in self._session.channels else None

    def fill_rows(self) -> None:
        watched = self.monitor.channels.get(self._thing)
        self.rows.fill(watched.subscriptions if watched else ())

    def update_rows(self) -> None:
        super().update_rows()
        if self._at is not None and self.is_mounted:
            self.table.cursor = self.rows.find(self._at) or 0
            self._at = None

    def head(self) -> Iterable[Sequence[Cell]]:
        watched = self.monitor.channels.get(self._thing)
        name: Cell = (name_text(self._thing), "strong")
        if watched is None:
            yield [name, ("  there is no such channel now", "warn")]
        else:
            yield [name]
            yield from self._figures(watched, "dim" if self.monitor.problem is not None else "")

    def _figures(self, watched: WatchedChannel, grey: Role) -> Iterable[Sequence[Cell]]:
        facts = watched.facts
        parts = [
            counted(facts.messages, "message"),
            format_size(facts.bytes),
            f"sequences {facts.first} to {facts.last}",
            counted(facts.subscriptions_count, "subscription"),
        ]
        yield [(" · ".join(parts), grey)]
        yield inflow_cells(watched.meter, self.size.width, grey)
        waiting = f"not acknowledged {number(watched.pending)} · worst lag {number(watched.lag)}"
        yield [(waiting, grey), *trouble_cells(watched, grey)]

    @on(RowTable.Selected)
    def action_open(self) -> None:
        chosen = self.row
        if chosen is None:
            return
        if not chosen.facts.client_id:
            self.notify("this subscription has no client now", severity="warning")
            return
        self.app.push_screen(LiveClientScreen(self._session, self.place, self.watching, chosen.facts.client_id))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "messages" and self.channel is None:
            return False
        return super().check_action(action, parameters)

    def action_messages(self) -> None:
        chosen = self.row
        seq = chosen.facts.last_sent if chosen else None
        self.browser.open_view(View.MESSAGES, ViewTarget(channel=self._thing, seq=seq), above=True)


class LiveClientScreen(_MonitorView):
    """A client and its subscriptions in all channels. Enter opens the channel of a subscription."""

    NAME = "live › client"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "Channel", id="live.open"), *WATCHING]

    def __init__(self, session: SourceSession | None, place: ViewTarget, watching: LiveSources, name: str) -> None:
        super().__init__(session, place, watching, name)
        self.rows = subscription_rows(client=False)

    def fill_rows(self) -> None:
        self.rows.fill(each for each in self.monitor.subscriptions if each.facts.client_id == self._thing)

    def head(self) -> Iterable[Sequence[Cell]]:
        client = self.monitor.clients.get(self._thing)
        grey: Role = "dim" if self.monitor.problem is not None else ""
        state: Cell = ("connected", grey or "good") if client else ("not connected", grey or "warn")
        yield [(name_text(self._thing), "strong"), "  ", state]
        if client is not None:
            count = counted(client.subscriptions, "subscription")
            yield [(f"{count} · heartbeats on {name_text(client.hb_inbox)}", grey)]
        pending = sum(each.facts.pending for each in self.rows.shown)
        yield [(f"not acknowledged {number(pending)}", grey)]

    @on(RowTable.Selected)
    def action_open(self) -> None:
        chosen = self.row
        if chosen is not None:
            key = chosen.channel, chosen.facts.key
            self.app.push_screen(LiveChannelScreen(self._session, self.place, self.watching, chosen.channel, key))


class LiveStreamScreen(LiveView):
    NAME = "live › stream"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("equals_sign", "compare", "Compare", key_display="=", id="live.compare"),
        Binding("enter", "filters", "Its subjects", show=False, id="live.open"),
        *WATCHING,
    ]

    def __init__(self, session: SourceSession | None, place: ViewTarget, watching: LiveSources, name: str) -> None:
        super().__init__(session, place, watching)
        self._stream = name
        self.rows = consumer_rows()

    @property
    def channel(self) -> str | None:
        return None

    @property
    def source(self) -> StreamsSource:
        assert self.watching.streams is not None
        return self.watching.streams

    def fill_rows(self) -> None:
        """Shows its consumers; from now on they are polled."""
        self.source.focus = self._stream
        watched = self.source.streams.get(self._stream)
        self.rows.fill((watched.consumers or ()) if watched else ())

    def head(self) -> Iterable[Sequence[Cell]]:
        watched = self.source.streams.get(self._stream)
        name: Cell = (name_text(self._stream), "strong")
        if watched is None:
            yield [name, ("  there is no such stream now", "warn")]
            return
        grey: Role = "dim" if self.source.problem is not None else ""
        facts = watched.facts
        sealed: list[Cell] = [("  sealed", "warn")] if facts.sealed else []
        kind = [name_text(facts.storage), name_text(facts.retention), counted(facts.replicas, "replica")]
        if facts.leader:
            kind.append(f"led by {cut(name_text(facts.leader), 40)}")
        yield [name, (f"  {' · '.join(filter(None, kind))}", grey), *sealed]
        yield [(f"subjects {subjects_text(facts.subjects) or 'none'}", grey)]
        parts = [
            counted(facts.messages, "message"),
            format_size(facts.bytes),
            f"sequences {facts.first} to {facts.last}",
            f"{number(facts.deleted)} deleted in between",
        ]
        yield [(" · ".join(parts), grey)]
        if facts.last_time:
            yield [(f"from {facts.first_time} to {facts.last_time}", grey)]
        yield inflow_cells(watched.meter, self.size.width, grey)
        if watched.consumers is None and facts.consumers:
            yield [(f"requesting {counted(facts.consumers, 'consumer')}", "accent")]

    @on(RowTable.Selected)
    def action_filters(self) -> None:
        """Shows all filter subjects of a consumer; the table truncates them."""
        consumer = self.row
        if consumer is not None:
            text = subjects_text(consumer.filters) or "all subjects"
            self.notify(f"{name_text(consumer.name)}: {cut(text, 400)}", markup=False)

    def action_compare(self) -> None:
        from tui.screens.livecompare import compare

        watched = self.source.streams.get(self._stream)
        if watched is not None:
            compare(self, self.watching, watched.facts)
