"""A plot of bars over time, drawn with eighths of a character and readable without colours."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from stantools.browse.histogram import WIDTHS
from stantools.notation import short_number, tick_text
from tui.cells import Role

#: Columns of the scale at the left, including its line.
_SCALE = 7
_BLOCKS = " ▁▂▃▄▅▆▇█"
#: Wider bars would look like an area.
_MAX_BAR = 6
_DAY = 86400 * 10**9


@dataclass(frozen=True)
class PlotBars:
    start: int = 0  #: time of the first bar, in nanoseconds since 1970
    width: int = 1  #: nanoseconds of a bar
    values: Sequence[float] = ()  #: height of each bar
    roles: Sequence[Role] = ()  #: role of each bar
    marks: Sequence[tuple[str, Role]] = field(default_factory=tuple)  #: symbol below each bar, and its role
    cursor: int = 0  #: number of the selected bar


class Plot(Widget, can_focus=True):
    """Bars over time. The view moves the cursor; `Chosen` reports a click on a bar."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plot--bar",
        "plot--cursor",
        "plot--scale",
        "plot--good",
        "plot--warn",
        "plot--bad",
        "plot--dim",
    }

    @dataclass
    class Chosen(Message):
        bar: int
        twice: bool

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._bars = PlotBars()
        self._styles: dict[str, Style] = {}
        self._drawn: tuple[int, Sequence[int]] = (0, ())

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    @property
    def columns(self) -> int:
        return max(self.size.width - _SCALE - 1, 1)

    @property
    def bars(self) -> PlotBars:
        return self._bars

    def show(self, bars: PlotBars) -> None:
        self._bars, self._drawn = bars, (0, ())
        self._styles.clear()
        self.refresh()

    @property
    def edges(self) -> Sequence[int]:
        """The column at which each bar begins, and the one after the last bar: the bars share the width."""
        count = len(self._bars.values)
        length = max(min(self.columns, count * _MAX_BAR), count)
        return [place * length // max(count, 1) for place in range(count + 1)]

    def render_line(self, y: int) -> Strip:
        height = max(self.size.height - 3, 1)
        if y < height:
            strip = self._bar_line(y, height)
        elif y == height:
            segments = [Segment(" " * (_SCALE - 1) + "│", self._style("scale"))]
            for (symbol, role), (begin, end) in zip(self._bars.marks, pairwise(self.edges), strict=False):
                segments.append(Segment(symbol + " " * (end - begin - 1), self._style(role)))
            strip = Strip(segments).simplify()
        elif y == height + 1:
            strip = self._axis_line()
        else:
            text = "UTC".rjust(_SCALE - 1) + " "
            for column, label in self._ticks():
                if len(text) <= _SCALE + column and _SCALE + column + len(label) <= self.size.width:
                    text = text.ljust(_SCALE + column) + label
            strip = Strip([Segment(text, self._style("scale"))])
        return strip.adjust_cell_length(self.size.width, self._style("")).crop(0, self.size.width)

    def _style(self, name: str) -> Style:
        # Needed for every bar of every line: a new lookup would take most of the time of a key press.
        style = self._styles.get(name)
        if style is None:
            style = self.rich_style
            if name:
                style += self.get_component_rich_style(f"plot--{name}", partial=True)
            self._styles[name] = style
        return style

    def _bar_line(self, y: int, height: int) -> Strip:
        bars, edges = self._bars, self.edges
        top = max(bars.values, default=0.0)
        labels = {0: top, height - 1: 0.0}
        if height >= 7 and top >= 4:
            labels[height // 2] = top * (height - height // 2) / height
        text = short_number(labels[y]) if y in labels and (top or y) else ""
        segments = [Segment(f"{text:>{_SCALE - 1}}{'┤' if y in labels else '│'}", self._style("scale"))]
        # A space separates wide bars.
        cursor, gap = self._style("cursor"), edges[-1] > 2 * len(bars.values)
        if self._drawn[0] != height:
            scale = height * 8 / top if top > 0 else 0.0
            self._drawn = height, [max(round(value * scale), value > 0) for value in self._bars.values]
        for place, eighths in enumerate(self._drawn[1]):
            block = _BLOCKS[max(0, min(eighths - (height - 1 - y) * 8, 8))]
            style = self._style((bars.roles[place] if place < len(bars.roles) else "") or "bar")
            if place == bars.cursor:
                style += cursor
            segments.append(Segment(block * (edges[place + 1] - edges[place] - gap), style))
            if gap:
                segments.append(Segment(" ", self._style("")))
        return Strip(segments).simplify()

    def _step(self) -> int:
        """Time between ticks, so that their texts do not touch."""
        bars = self._bars
        for step in WIDTHS:
            if step < bars.width:
                continue
            text = max(len(tick_text(time * step, step)) for time in (1, _DAY // step or 1))
            if step // bars.width * self.edges[-1] // max(len(bars.values), 1) >= text + 2:
                return step
        return WIDTHS[-1]

    def _ticks(self) -> list[tuple[int, str]]:
        bars, step, edges = self._bars, self._step(), self.edges
        ticks = []
        for place in range(len(bars.values)):
            time = bars.start + place * bars.width
            if time % step == 0:
                ticks.append((edges[place], tick_text(time, step)))
        if not ticks and bars.values:
            ticks.append((0, tick_text(bars.start, bars.width)))
        return ticks

    def _axis_line(self) -> Strip:
        edges = self.edges
        length = edges[-1]
        line = ["─"] * length
        for column, _ in self._ticks():
            line[column] = "┬"
        segments = [Segment(" " * (_SCALE - 1) + "└", self._style("scale"))]
        cursor = edges[self._bars.cursor] if 0 <= self._bars.cursor < len(edges) - 1 else -1
        if cursor >= 0:
            segments += [
                Segment("".join(line[:cursor]), self._style("scale")),
                Segment("▲", self._style("cursor")),
                Segment("".join(line[cursor + 1 :]), self._style("scale")),
            ]
        else:
            segments.append(Segment("".join(line), self._style("scale")))
        return Strip(segments)

    def on_click(self, event: events.Click) -> None:
        place = bisect_right(self.edges, event.x - _SCALE) - 1
        if 0 <= place < len(self._bars.values):
            self.post_message(self.Chosen(place, event.chain > 1))
