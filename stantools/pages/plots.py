"""Plots as inline SVG: bars over time or another scale, strips of ranges, plots as small as a word.

Shapes have classes instead of colors; the style sheet of the pages has their colors, in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from stantools.browse.histogram import BARS, WIDTHS, bucket_width, width_text
from stantools.notation import format_size, short_number, tick_text

_SECOND = 10**9
#: Minimum number of places: a single bar as wide as the plot looks like a mistake.
_MIN_PLACES = 24
#: Maximum number of marks of an axis of time.
_TICKS = 12
#: Bars of a plot in a row of a table: as many as its messages fill, so that an even rate has even bars.
_SPARK_BARS, _MIN_SPARK_BARS, _BAR_MESSAGES = 48, 12, 8
#: Units across and down that plot.
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 18
#: Margins beside, above and between the plots, in units of the drawing.
_LEFT, _RIGHT, _ABOVE, _BELOW = 52, 8, 18, 20
#: Units across a plot whose text is readable on a narrow screen, and the maximum number of its marks of time.
_NARROW, _NARROW_TICKS = 460, 4
#: Units across a strip. It is stretched to the available width.
_STRIP = 1000
#: Minimum number of units of a part of a strip.
_MIN_UNITS = 2


@dataclass(frozen=True)
class TimeAxis:
    """Periods of equal width, one for each place of a plot."""

    start: int  #: first nanosecond of the first one, since 1970
    width: int  #: nanoseconds of each
    places: int  #: number of places

    @classmethod
    def over(cls, first: int, last: int, minimum: int = 1) -> TimeAxis:
        """Returns the axis that fits data best: few enough bars to be seen apart, and none wider than needed.

        `first` and `last` are nanoseconds; `minimum` is the minimum width of a bar, one of `WIDTHS`.
        """
        width = max(bucket_width(last - first, BARS), minimum) if last > first else max(_SECOND, minimum)
        begin, end = first // width, last // width + 1
        before = max(_MIN_PLACES - (end - begin), 0) // 2
        return cls((begin - before) * width, width, max(end - begin, _MIN_PLACES))

    def place(self, time: int) -> int:
        return (time - self.start) // self.width

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Labels below the plot, with their places."""
        stop = self.start + self.places * self.width
        step = next(
            (each for each in WIDTHS if each >= self.width and (stop - self.start) // each <= _TICKS), WIDTHS[-1]
        )
        times = range(-(-self.start // step) * step, stop, step)
        return [((time - self.start) / self.width, tick_text(time, step)) for time in times]

    @property
    def unit(self) -> str:
        """Width of a bar, such as `5 min`."""
        return width_text(self.width)


@dataclass(frozen=True)
class BarChart:
    """The content of one plot."""

    label: str  #: quantity shown
    values: Mapping[int, float]  #: by place
    role: str = "blue"  #: class of the bars
    sizes: bool = False  #: the values are numbers of bytes


def plot(
    panels: Sequence[BarChart],
    places: int,
    ticks: Iterable[tuple[float, str]],
    *,
    marks: Iterable[tuple[int, str]] = (),
    width: int = 960,
    height: int = 90,
) -> Markup:
    """Draws bars, one plot below the other over one axis; a broad plot twice, of which narrow screens show the second.

    `ticks` are labels and `marks` are classes, each with its place on the axis. `height` is that of each plot.
    """
    ticks, marks = list(ticks), list(marks)
    broad = _draw(panels, places, ticks, marks, width, height, " broad" if width > _NARROW else "")
    if width <= _NARROW:
        return broad
    few = ticks[:: math.ceil(len(ticks) / _NARROW_TICKS) or 1]
    return broad + _draw(panels, places, few, marks, _NARROW, height, " narrow")


def _draw(
    panels: Sequence[BarChart],
    places: int,
    ticks: Iterable[tuple[float, str]],
    marks: Iterable[tuple[int, str]],
    width: int,
    height: int,
    size: str,
) -> Markup:
    inner = width - _LEFT - _RIGHT
    each = inner / max(places, 1)
    bottom = len(panels) * (height + _ABOVE)
    parts = []
    for number, bars in enumerate(panels):
        base = number * (height + _ABOVE) + _ABOVE + height
        top = _round_up(max(bars.values.values(), default=0), bars.sizes)
        for value in (0, top / 2, top):
            y = base - height * value / top
            parts.append(f'<path class="grid" d="M{_LEFT} {y:g}h{inner}"/>')
            if value == int(value):
                text = format_size(int(value)) if bars.sizes else short_number(value)
                parts.append(f'<text x="{_LEFT - 6}" y="{y + 3.5:g}" class="end">{text.replace(".0", "")}</text>')
        parts.append(f'<text x="{_LEFT}" y="{base - height - 6}">{escape(bars.label)}</text>')
        thick = max(each * 0.94, 0.7)
        drawn = "".join(
            f"M{_LEFT + place * each:.5g} {base}v-{max(height * value / top, 0.8):.4g}h{thick:.3g}V{base}z"
            for place, value in sorted(bars.values.items())
            if value
        )
        parts.append(f'<path class="{bars.role}" d="{drawn}"/>')
    parts += [
        f'<path class="{role}" d="M{_LEFT + place * each:.5g} {bottom}h{max(each, 2):.3g}v4h-{max(each, 2):.3g}z"/>'
        for place, role in marks
    ]
    for place, text in ticks:
        x = _LEFT + place * each
        side = "end" if x > width - 40 else "middle"
        parts.append(f'<path class="tick" d="M{x:.5g} {bottom}v4"/>')
        parts.append(f'<text x="{x:.5g}" y="{bottom + 15}" class="{side}">{escape(text)}</text>')
    box = f'viewBox="0 0 {width} {bottom + _BELOW}"'
    return Markup(f'<svg class="plot{size}" {box} role="img">{"".join(parts)}</svg>')


def _round_up(value: float, sizes: bool) -> float:
    """Returns the next round number, for the top of a scale."""
    if value <= 0:
        return 1
    unit = 1024 ** int(math.log(value, 1024)) if sizes and value >= 1 else 1
    power = unit * 10.0 ** math.floor(math.log10(value / unit))
    return next((each * power for each in (1, 2, 4, 6, 8) if each * power >= value), 10 * power)


def sparkline(values: Mapping[int, float], places: int) -> Markup:
    """Draws bars as small as a word, for a row of a table.

    A place that two bars share counts in both, each with its part. A count that is a multiple of the places for some
    bars and one more for others would draw a comb where the rate is even.
    """
    total = sum(values.values())
    if not total:
        return Markup("")
    count = min(max(int(total) // _BAR_MESSAGES, _MIN_SPARK_BARS), _SPARK_BARS, places)
    bars = [0.0] * count
    for place, value in values.items():
        low, high = place * count / places, (place + 1) * count / places
        at = int(low)
        share = min(1.0, (at + 1 - low) / (high - low))
        bars[at] += value * share
        if at + 1 < count:
            bars[at + 1] += value * (1 - share)
    highest, each = max(bars), _SPARK_WIDTH / count
    path = "".join(
        f"M{at * each:.4g} {_SPARK_HEIGHT}v-{max(16 * value / highest, 0.6):.3g}h{each * 0.85:.3g}V{_SPARK_HEIGHT}z"
        for at, value in enumerate(bars)
        if value
    )
    box = f'width="{_SPARK_WIDTH}" height="20" viewBox="0 0 {_SPARK_WIDTH} 20"'
    return Markup(f'<svg class="spark" {box} aria-hidden="true"><path d="{path}"/></svg>')


def strip(parts: Iterable[tuple[int, int, str]], first: int, end: int) -> Markup:
    """Draws a strip of ranges. Every range is visible, however small.

    `parts` have a begin, an end (exclusive) and a class; within a class they are in order, and later classes lie on
    top. The strip goes from `first` to `end` (exclusive).
    """
    scale = _STRIP / max(end - first, 1)
    paths: dict[str, list[tuple[int, int]]] = {}
    for low, high, role in parts:
        begin = min(int((low - first) * scale), _STRIP - _MIN_UNITS)
        stop = max(math.ceil((high - first) * scale), begin + _MIN_UNITS)
        path = paths.setdefault(role, [])
        if path and path[-1][0] <= begin <= path[-1][1]:  # so that a million parts draw no more than the space allows
            path[-1] = path[-1][0], max(stop, path[-1][1])
        else:
            path.append((begin, stop))
    drawn = "".join(
        f'<path class="{role}" d="{"".join(f"M{begin} 0H{stop}v12H{begin}z" for begin, stop in path)}"/>'
        for role, path in paths.items()
    )
    box = f'viewBox="0 0 {_STRIP} 12" preserveAspectRatio="none"'
    return Markup(f'<svg class="strip" {box} aria-hidden="true">{drawn}</svg>')
