"""A stream of a running server with its consumers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from stantools.notation import format_size
from tui.cells import Cell, Role, counted, cut, name_text, number, sparkline
from tui.live.streamfacts import Consumer, Stream
from tui.live.streams import Streams
from tui.live.watching import Watching
from tui.screens.livecells import rate_text
from tui.screens.livetable import LiveRows
from tui.screens.liveview import WATCHING, LiveView
from tui.screens.streamcells import consumer_rows, subjects_text
from tui.session import StoreSession
from tui.views import Place
from tui.widgets.rowtable import RowTable


class LiveStreamScreen(LiveView):
    """A stream: its figures and its consumers.

    Args:
        session: The store, if one is open as well.
        place: Where to look.
        watching: The server.
        name: Of the stream.
    """

    NAME = "live › stream"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("equals_sign", "compare", "Compare", key_display="=", id="live.compare"),
        Binding("enter", "filters", "Its subjects", show=False, id="live.open"),
        *WATCHING,
    ]

    def __init__(self, session: StoreSession | None, place: Place, watching: Watching, name: str) -> None:
        super().__init__(session, place, watching)
        self._stream = name
        self._rows = consumer_rows()

    @property
    def channel(self) -> str | None:
        """None: a stream is no channel."""
        return None

    @property
    def source(self) -> Streams:
        """The account."""
        assert self.watching.streams is not None
        return self.watching.streams

    @property
    def rows(self) -> LiveRows[Consumer]:
        """Its consumers."""
        return self._rows

    def fill_rows(self) -> None:
        """Its consumers; they are asked for from now on."""
        self.source.focus = self._stream
        watched = self.source.streams.get(self._stream)
        self._rows.fill((watched.consumers or ()) if watched else ())

    def head(self) -> Iterable[Sequence[Cell]]:
        """Its figures."""
        watched = self.source.streams.get(self._stream)
        name: Cell = (name_text(self._stream), "strong")
        if watched is None:
            yield [name, ("  there is no such stream now", "warn")]
            return
        grey: Role = "dim" if self.source.problem is not None else ""
        facts = watched.facts
        sealed: list[Cell] = [("  sealed", "warn")] if facts.sealed else []
        yield [name, (f"  {_nature(facts)}", grey), *sealed]
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
        figures = f"in {rate_text(watched.meter.rate) or '…':>5} msg/s  "
        line = sparkline(watched.meter.rates, max(min(self.size.width - len(figures) - 4, 60), 0))
        yield [(figures, grey), (line, grey or "accent")]
        if watched.consumers is None and facts.consumers:
            yield [(f"asking for {counted(facts.consumers, 'consumer')}", "accent")]

    @on(RowTable.Selected)
    def _selected(self) -> None:
        self.action_filters()

    def action_filters(self) -> None:
        """Tells which subjects a consumer gets, where there is no room for them in the table."""
        row = self.table.cursor
        if row < len(self._rows):
            consumer = self._rows.shown[row]
            text = subjects_text(consumer.filters) or "all subjects"
            self.notify(f"{name_text(consumer.name)}: {cut(text, 400)}", markup=False)

    def action_compare(self) -> None:
        """Compares the stream with the channel that it came from."""
        from tui.screens.livecompare import compare

        watched = self.source.streams.get(self._stream)
        if watched is not None:
            compare(self, self.watching, watched.facts)


def _nature(facts: Stream) -> str:
    parts = [name_text(facts.storage), name_text(facts.retention), f"{counted(facts.replicas, 'replica')}"]
    if facts.leader:
        parts.append(f"led by {cut(name_text(facts.leader), 40)}")
    return " · ".join(filter(None, parts))
