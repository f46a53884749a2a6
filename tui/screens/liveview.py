"""The base of views of running servers: figures that follow the server, and a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from tui.cells import Cell
from tui.live.monitor import Monitor
from tui.live.sources import LiveSources
from tui.live.streams_source import StreamsSource
from tui.screens.livetables import seconds_text
from tui.screens.tableview import FilterField, TableView, filtering, sorting
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable

_LOOK = 0.1
#: Polls between two updates of the ages on the screen.
_SECOND = 10
#: Actions that work without a server.
_OFFLINE_ACTIONS = ("back", "leave")

#: Keys of every view of running servers.
WATCHING: tuple[BindingType, ...] = (
    *filtering("live", "clear"),
    *sorting("live"),
    Binding("space", "pause", "Pause", key_display="space", id="live.pause"),
    Binding("plus", "faster", "Poll more often", key_display="+", show=False, id="live.faster"),
    Binding("minus", "slower", "Poll less often", key_display="-", show=False, id="live.slower"),
)


class LiveView(TableView):
    """A view of a running server. Without `watching`, the view makes it."""

    NAME: ClassVar[str] = "live"
    TAB = View.LIVE

    def __init__(self, session: SourceSession | None, place: ViewTarget, watching: LiveSources | None = None) -> None:
        # The channel of another view is unrelated to this one.
        super().__init__(session, replace(place, channel=None))
        self._watching = watching
        self.written: tuple[int, ...] | None = None
        self._looks = 0

    @property
    def watching(self) -> LiveSources:
        assert self._watching is not None
        return self._watching

    @property
    def source(self) -> Monitor | StreamsSource | None:
        raise NotImplementedError

    def head(self) -> Iterable[Sequence[Cell]]:
        raise NotImplementedError

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="live-head")
        yield TextLine(id="live-trouble")
        yield FilterField("part of a name", id="live-filter")
        yield RowTable(self.rows)

    def on_mount(self) -> None:
        self.table.focus()
        self.set_interval(_LOOK, self._look_for_figures)

    def on_resize(self) -> None:
        self.update_rows()

    def on_screen_resume(self) -> None:
        self.update_rows()

    @property
    def _is_seen(self) -> bool:
        """Whether no other view is above it; dialogs do not count."""
        # `is_current` is also true of the view below the top.
        return next((each for each in reversed(self.app.screen_stack) if not each.is_modal), None) is self

    def _look_for_figures(self) -> None:
        self._looks += 1
        if self._watching is None or not self._is_seen:
            return
        if self._watching.revision != self.written:
            self.update_rows()
        elif self._looks % _SECOND == 0:
            self.write_head()

    def update_rows(self) -> None:
        if not self.is_mounted or self._watching is None:
            return
        self.written = self._watching.revision
        self.rows.wide = self.size.width >= self.WIDE
        self.rows.grey = self.source is None or self.source.problem is not None
        super().update_rows()
        self.write_head()

    def write_head(self) -> None:
        if self.is_mounted and self._watching is not None:
            for name, lines in (("#live-head", list(self.head())), ("#live-trouble", list(self.trouble()))):
                shown = self.query_one(name, TextLine)
                shown.display = bool(lines)
                shown.show_lines(lines)
            self.status_changed()

    def status_cells(self) -> Sequence[Cell]:
        cells = list(super().status_cells())
        source = self.source
        if source is None or self._watching is None:
            return cells
        pace = source.pace
        if source.problem is not None:
            since = f" for {seconds_text(source.age)}" if source.answered is not None else ""
            cells += ["  ", (f"✗ no figures{since}", "bad")]
        elif pace.paused:
            cells += ["  ", ("‖ paused", "warn")]
        elif source.answered is None:
            cells += ["  ", ("asking", "accent")]
        else:
            slow = f", a round takes {seconds_text(source.took)}" if source.took > max(pace.seconds, 1.0) else ""
            cells += ["  ", (f"● every {seconds_text(pace.seconds)}{slow}", "good")]
        return cells

    def trouble(self) -> Iterable[Sequence[Cell]]:
        source = self.source
        if source is None:
            return
        if source.problem is not None:
            yield [("✗ ", "bad"), (source.problem.message, "bad")]
            again = f"polled again every {seconds_text(source.pace.seconds)}"
            old = "; the figures are old" if source.answered is not None else ""
            yield [("  ", ""), source.problem.remedy or "see the server's log", (f" ({again}{old})", "dim")]
        elif source.events:
            event = source.events[-1]
            yield [(f"{clock_text(event.time)} {event.text}", "warn" if event.bad else "dim")]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action in _OFFLINE_ACTIONS if self._watching is None else super().check_action(action, parameters)

    def action_filter(self) -> None:
        self.filter_field.value = self.rows.filter
        super().action_filter()

    def action_leave(self) -> None:
        if self.rows.filter:
            self.hide_filter()
            self.filter_by("")
        else:
            super().action_leave()

    def hide_filter(self) -> None:
        """Hides the field; the rows stay filtered."""
        with self.filter_field.prevent(Input.Changed):
            self.filter_field.value = ""
        self.filter_field.display = False
        self.table.focus()

    def action_pause(self) -> None:
        self.watching.pace.toggle_pause()
        self.write_head()

    def action_faster(self) -> None:
        self.watching.pace.faster()
        self.write_head()

    def action_slower(self) -> None:
        self.watching.pace.slower()
        self.write_head()


def clock_text(seconds: float) -> str:
    import time

    return time.strftime("%H:%M:%S", time.gmtime(seconds))
