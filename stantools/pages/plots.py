"""Plots as SVG inside a page: bars over time or another scale, strips of what is where, plots as small as a word.

What is drawn has classes instead of colors; the style sheet of the pages has their colors, in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from stantools.browse.histogram import BARS, WIDTHS, fitting, width_text
from stantools.notation import format_size, short_number, tick_text

_SECOND = 10**9
#: Room for this many bars is there at least: a single bar as wide as the plot looks like a mistake.
_FEWEST = 24
#: Marks of an axis of time, at most.
_TICKS = 12
#: Bars of a plot in a row of a table.
_SPARKS = 48
#: What is left free beside, above and between the plots, in units of the drawing.
_LEFT, _RIGHT, _ABOVE, _BELOW = 52, 8, 18, 20
#: Units across a strip. It is stretched to the width that there is.
_STRIP = 1000
#: Units that a part of a strip has at least.
_SEEN = 2


@dataclass(frozen=True)
class TimeAxis:
    """Stretches of time of equal width, for each of which a plot has a place."""

    start: int  #: first nanosecond of the first one, since 1970
    width: int  #: nanoseconds of each
    places: int  #: how many

    @classmethod
    def over(cls, first: int, last: int, least: int = 1) -> TimeAxis:
        """Returns the axis that fits data best: few enough bars to be seen apart, and none wider than needed.

        Args:
            first: The first nanosecond.
            last: The last one.
            least: Bars are not narrower than this, one of `WIDTHS`.
        """
        width = max(fitting(last - first, BARS), least) if last > first else max(_SECOND, least)
        begin, end = first // width, last // width + 1
        before = max(_FEWEST - (end - begin), 0) // 2
        return cls((begin - before) * width, width, max(end - begin, _FEWEST))

    def place(self, time: int) -> int:
        """Returns the place of a time."""
        return (time - self.start) // self.width

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """What is written below the plot, and at which places."""
        stop = self.start + self.places * self.width
        step = next(
            (each for each in WIDTHS if each >= self.width and (stop - self.start) // each <= _TICKS), WIDTHS[-1]
        )
        times = range(-(-self.start // step) * step, stop, step)
        return [((time - self.start) / self.width, tick_text(time, step)) for time in times]

    @property
    def unit(self) -> str:
        """How long a bar is, such as `5 min`."""
        return width_text(self.width)


@dataclass(frozen=True)
class Bars:
    """What one plot shows."""

    label: str  #: what is counted
    values: Mapping[int, float]  #: place -> how much
    role: str = "blue"  #: the class of the bars
    sizes: bool = False  #: numbers of bytes


def plot(
    panels: Sequence[Bars],
    places: int,
    ticks: Iterable[tuple[float, str]],
    *,
    marks: Iterable[tuple[int, str]] = (),
    width: int = 960,
    height: int = 90,
) -> Markup:
    """Draws bars, one plot below the other over one axis.

    Args:
        panels: The plots.
        places: Places of the axis.
        ticks: What is written below it, and where.
        marks: Places to mark on the axis, each with a class.
        width: Of the drawing.
        height: Of each plot.
    """
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
    return Markup(f'<svg class="plot" {box} role="img">{"".join(parts)}</svg>')


def _round_up(value: float, sizes: bool) -> float:
    """Returns the next number that looks well at the top of a scale."""
    if value <= 0:
        return 1
    unit = 1024 ** int(math.log(value, 1024)) if sizes and value >= 1 else 1
    power = unit * 10.0 ** math.floor(math.log10(value / unit))
    return next((each * power for each in (1, 2, 4, 6, 8) if each * power >= value), 10 * power)


def sparkline(values: Mapping[int, float], places: int) -> Markup:
    """Draws bars as small as a word, for a row of a table.

    Args:
        values: Place -> how much.
        places: Places of the axis.
    """
    if not any(values.values()):
        return Markup("")
    bars: dict[int, float] = {}
    for place, value in values.items():
        at = place * _SPARKS // max(places, _SPARKS)
        bars[at] = bars.get(at, 0) + value
    highest = max(bars.values())
    path = "".join(
        f"M{2 * at + 1} 18v-{max(16 * value / highest, 0.6):.3g}" for at, value in sorted(bars.items()) if value
    )
    box = f'width="{2 * _SPARKS}" height="20" viewBox="0 0 {2 * _SPARKS} 20"'
    return Markup(f'<svg class="spark" {box} aria-hidden="true"><path d="{path}"/></svg>')


def strip(parts: Iterable[tuple[int, int, str]], first: int, end: int) -> Markup:
    """Draws a strip that shows what is where. However little of something there is, it can be seen.

    Args:
        parts: Where something begins, where it ends (not included), and its class; of those of a class later ones begin
            later, and classes that come later lie on top.
        first: What the strip begins with.
        end: What it ends in front of.
    """
    scale = _STRIP / max(end - first, 1)
    paths: dict[str, list[tuple[int, int]]] = {}
    for low, high, role in parts:
        begin = min(int((low - first) * scale), _STRIP - _SEEN)
        stop = max(math.ceil((high - first) * scale), begin + _SEEN)
        path = paths.setdefault(role, [])
        if path and path[-1][0] <= begin <= path[-1][1]:  # so that a million parts draw no more than there is room for
            path[-1] = path[-1][0], max(stop, path[-1][1])
        else:
            path.append((begin, stop))
    drawn = "".join(
        f'<path class="{role}" d="{"".join(f"M{begin} 0H{stop}v12H{begin}z" for begin, stop in path)}"/>'
        for role, path in paths.items()
    )
    box = f'viewBox="0 0 {_STRIP} 12" preserveAspectRatio="none"'
    return Markup(f'<svg class="strip" {box} aria-hidden="true">{drawn}</svg>')
