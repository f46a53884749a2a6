"""Plots of statistics, as SVG that stands in a page by itself."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from stantools.pipeline.jobs.stats.buckets import bounds_of

#: Bars that a plot of time has at most; longer times have bars of several hours.
_BARS = 240
_HOURS_A_BAR = (1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 28, 24 * 364)
_COLOR, _OTHER = "#2563a8", "#c2571a"
#: The same statistics give the same bytes; text stays text, so that pages stay small and can be searched.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "stantools",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def messages_over_time(hours: Mapping[int, tuple[int, int]], size: tuple[float, float] = (9.0, 3.2)) -> str:
    """Plots messages and bytes over time, two plots one above the other.

    Args:
        hours: Hour since 1970 -> messages and bytes.
        size: Inches.
    """
    step, bars = _bars(hours)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        moments = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour) for hour, _, _ in bars]
        width = timedelta(hours=step * 0.96)
        unit = "hour" if step == 1 else f"{step} hours" if step < 48 else f"{step // 24} days"
        for axes, place, color, label in ((upper, 1, _COLOR, "messages"), (lower, 2, _OTHER, "bytes")):
            axes.bar(moments, [bar[place] for bar in bars], width=width, align="edge", color=color)
            axes.set_ylabel(f"{label} / {unit}")
            axes.yaxis.set_major_formatter(EngFormatter())
        locator = AutoDateLocator(tz=UTC)
        lower.xaxis.set_major_locator(locator)
        lower.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
        return _svg(figure)


def distribution(histogram: Mapping[int, int], unit: str, size: tuple[float, float] = (4.4, 2.0)) -> str:
    """Plots how numbers are distributed, on a logarithmic axis.

    Args:
        histogram: Bucket -> how many (`buckets`).
        unit: `B` for bytes or `s` for nanoseconds, which are shown as seconds.
        size: Inches.
    """
    scale = 1e-9 if unit == "s" else 1.0
    doubled: dict[int, int] = {}
    for bucket, count in histogram.items():
        # One bar for each power of two: the eye needs no more.
        power = bounds_of(bucket)[0].bit_length()
        doubled[power] = doubled.get(power, 0) + count
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        powers = sorted(doubled)
        total = sum(doubled.values()) or 1
        axes.bar(powers, [100 * doubled[power] / total for power in powers], width=0.92, color=_COLOR)
        written = EngFormatter(unit, places=0, sep=" ")
        axes.xaxis.set_major_formatter(lambda power, _: written(2.0 ** (power - 1) * scale) if power >= 1 else "0")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        axes.set_ylabel("% of messages")
        return _svg(figure)


def added(hours: Iterable[Mapping[int, tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    """Adds the hours of several channels."""
    total: dict[int, tuple[int, int]] = {}
    for each in hours:
        for hour, (messages, size) in each.items():
            before = total.get(hour, (0, 0))
            total[hour] = before[0] + messages, before[1] + size
    return total


def _bars(hours: Mapping[int, tuple[int, int]]) -> tuple[int, list[tuple[int, int, int]]]:
    """Returns hours of a bar, and for each bar its first hour, messages and bytes."""
    # A clock that was wrong puts messages far away; matplotlib knows the years 1 to 9999.
    known = {hour: values for hour, values in hours.items() if 0 <= hour < 70_000_000}
    if not known:
        return 1, []
    span = max(known) - min(known) + 1
    step = next((step for step in _HOURS_A_BAR if span / step <= _BARS), _HOURS_A_BAR[-1])
    bars: dict[int, tuple[int, int]] = {}
    for hour, (messages, size) in known.items():
        before = bars.get(hour // step, (0, 0))
        bars[hour // step] = before[0] + messages, before[1] + size
    return step, [(place * step, *bars[place]) for place in sorted(bars)]


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    drawing = text.getvalue()
    return drawing[drawing.index("<svg") :]
