"""Statistics as one page of HTML that needs nothing beside it: tables, and plots of the largest channels as SVG."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from stantools import __version__
from stantools.pipeline.jobs.stats.summary import ChannelStats, Stats, digits, format_rate
from stantools.pipeline.jobs.stats.sums import bounds_of

#: Bars that a plot of time has at most; longer times have bars of several hours.
_BARS = 240
_HOURS_A_BAR = (1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 28, 24 * 364)
#: A clock that was wrong puts messages far away; matplotlib knows the years 1 to 9999.
_LAST_HOUR = 70_000_000
#: Bars of the small plot in a row.
_SPARKS = 48
_COLOR, _OTHER, _INK = "#2563a8", "#c2571a", "#3c4654"
#: Numbers whose distribution is plotted: where its axis has marks, and what they say.
BYTES = {
    1 << power: f"{1 << power % 10} {unit}" for power, unit in enumerate(("B",) * 10 + ("KiB",) * 10 + ("MiB",) * 10)
}
TIMES = {
    **{10**power: f"{10 ** (power % 3)} {('ns', 'µs', 'ms')[power // 3]}" for power in range(9)},
    **{second * 10**9: f"{second} s" for second in (1, 10)},
    **{minute * 60 * 10**9: f"{minute} min" for minute in (1, 10)},
    **{hour * 3600 * 10**9: f"{hour} h" for hour in (1, 6)},
    **{day * 86400 * 10**9: f"{day} d" for day in (1, 7, 30, 365)},
}
#: Room for this many bars is there at least.
_FEWEST_BARS = 24
#: Marks of an axis, about.
_MARKS = 7
#: The same statistics give the same bytes; text stays text, so that pages stay small and can be searched.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "stantools",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#aab3be",
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e8ecf1",
}
#: Channels that get plots of their own; the tables have all of them.
PLOTTED = 12
#: Rows of the table of channels; more make a page that browsers are slow with.
LISTED = 5000
#: Rows with a small plot in them.
_SPARKED = 500
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def page(stats: Stats) -> str:
    """Makes the page.

    Args:
        stats: The statistics.
    """
    environment = Environment(
        loader=PackageLoader("stantools.pipeline.jobs.stats"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    stores = sorted({each.store for each in stats.channels})
    root = _root(stores)
    environment.filters.update(
        size=_size,
        moment=_moment,
        hour=lambda value: _moment(value)[:16],
        span=_span,
        count=_count,
        rate=lambda value: "" if value is None else format_rate(value),
        short=lambda store: store.removeprefix(root).lstrip("/") if len(stores) > 1 else store.rpartition("/")[2],
    )
    listed = sorted(stats.channels, key=lambda each: (-each.messages, each.store, each.channel))[:LISTED]
    plotted = [each for each in listed[:PLOTTED] if each.messages]
    whole = added(each.hours for each in stats.channels)
    hurt = [each for each in stats.channels if each.damaged or each.missing]
    return environment.get_template("stats.html").render(
        version=__version__,
        stats=stats,
        stores=stores,
        root=root,
        first=min((each.first_ns for each in stats.channels if each.first_ns is not None), default=None),
        last=max((each.last_ns for each in stats.channels if each.last_ns is not None), default=None),
        messages=sum(each.messages for each in stats.channels),
        bytes=sum(each.bytes for each in stats.channels),
        damaged=sum(each.damaged for each in stats.channels),
        missing=sum(each.missing for each in stats.channels),
        hurt=sorted(hurt, key=lambda each: (-each.damaged, -each.missing, each.store, each.channel)),
        listed=listed,
        sparks=[Markup(sparkline(each.hours, whole)) for each in listed[:_SPARKED]],
        whole=Markup(messages_over_time(whole)),
        plotted=[(each, _plots(each)) for each in plotted],
    )


def _plots(channel: ChannelStats) -> dict[str, Markup]:
    return {
        "time": Markup(messages_over_time(channel.hours, height=2.5)),
        "sizes": Markup(distribution(channel.sizes, BYTES)),
        "intervals": Markup(distribution(channel.intervals, TIMES)) if channel.intervals else Markup(""),
    }


def _root(stores: Sequence[str]) -> str:
    """Returns the directory in which all stores lie; of one store, the store."""
    if len(stores) < 2:
        return "".join(stores)
    parts = [store.split("/")[:-1] for store in stores]
    common = [names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))]
    return "/".join(common)


def _count(value: int) -> str:
    return f"{value:,}"


def _size(value: float) -> str:
    power = 0
    while value >= 1024 and power < len(_UNITS) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.1f} {_UNITS[power]}" if power else f"{value:.0f} B"


def _moment(value: int | None) -> str:
    if value is None:
        return ""
    try:
        return datetime.fromtimestamp(value // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{value} ns"


def _span(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{digits(seconds / length)} {unit}"
    return f"{nanoseconds} ns" if nanoseconds else "0 s"


def messages_over_time(hours: Mapping[int, tuple[int, int]], height: float = 3.2) -> str:
    """Plots messages and bytes over time, two plots one above the other.

    Args:
        hours: Hour since 1970 -> messages and bytes.
        height: Inches; it is 12 wide.
    """
    step, bars = _bars(hours)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(12.0, height), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        moments = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour) for hour, _, _ in bars]
        width = timedelta(hours=step * 0.96)
        unit = "hour" if step == 1 else f"{step} hours" if step < 48 else f"{step // 24} days"
        for axes, place, color, label in ((upper, 1, _COLOR, "messages"), (lower, 2, _OTHER, "bytes")):
            axes.bar(moments, [bar[place] for bar in bars], width=width, align="edge", color=color)
            axes.set_ylabel(f"{label} / {unit}")
            axes.yaxis.set_major_formatter(EngFormatter())
        lower.margins(x=0.01)
        lacking = _FEWEST_BARS - (bars[-1][0] - bars[0][0]) // step - 1 if bars else 0
        if lacking > 0:
            # A single bar as wide as the plot looks like a mistake.
            around = timedelta(hours=step * lacking / 2)
            lower.set_xlim(moments[0] - around, moments[-1] + around + width)
        locator = AutoDateLocator(tz=UTC)
        lower.xaxis.set_major_locator(locator)
        lower.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
        return _svg(figure)


def distribution(histogram: Mapping[int, int], marks: Mapping[int, str]) -> str:
    """Plots how numbers are distributed, on a logarithmic axis.

    Args:
        histogram: Bucket -> how many (`sums`).
        marks: Numbers that are marked on the axis, if they lie on it, and what they are called: `BYTES`, `TIMES`.
    """
    doubled: dict[int, int] = {}
    for bucket, count in histogram.items():
        # One bar for each power of two: the eye needs no more. 0 stands in front of 1.
        power = bounds_of(bucket)[0].bit_length() - 1
        doubled[power] = doubled.get(power, 0) + count
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 2.0), layout="constrained")
        axes = figure.subplots()
        powers = sorted(doubled)
        total = sum(doubled.values()) or 1
        axes.bar(powers, [100 * doubled[power] / total for power in powers], width=0.92, align="edge", color=_COLOR)
        if powers:
            lowest, highest = powers[0], powers[-1] + 1
            places = [(math.log2(number), name) for number, name in marks.items()]
            places = [(place, name) for place, name in places if lowest <= place <= highest]
            places = places[:: math.ceil(len(places) / _MARKS) or 1]
            if lowest < 0:
                places = [(-0.54, "0"), *((place, name) for place, name in places if place >= 1)]
            axes.set_xticks([place for place, _ in places], [name for _, name in places])
            middle, half = (lowest + highest) / 2, max(highest - lowest, 6) / 2
            axes.set_xlim(middle - half, middle + half)
        axes.set_ylabel("% of messages")
        return _svg(figure)


def sparkline(hours: Mapping[int, tuple[int, int]], whole: Mapping[int, tuple[int, int]]) -> str:
    """Plots messages over time as small as a word, for a row of a table.

    Args:
        hours: Hour since 1970 -> messages and bytes.
        whole: The same of everything: all rows have the same time axis.
    """
    known = sorted(hour for hour in whole if 0 <= hour < _LAST_HOUR)
    if not known:
        return ""
    step = max((known[-1] - known[0] + 1) / _SPARKS, 1.0)
    bars: dict[int, int] = {}
    for hour, (messages, _) in hours.items():
        if 0 <= hour < _LAST_HOUR:
            place = int((hour - known[0]) / step)
            bars[place] = bars.get(place, 0) + messages
    if not any(bars.values()):
        return ""
    highest = max(bars.values())
    path = "".join(
        f"M{2 * place + 1} 18v-{max(16 * count / highest, 0.6):.3g}" for place, count in sorted(bars.items()) if count
    )
    drawing = f'<path d="{path}" stroke="{_COLOR}" stroke-width="1.6"/>'
    return f'<svg width="{2 * _SPARKS}" height="20" viewBox="0 0 {2 * _SPARKS} 20" aria-hidden="true">{drawing}</svg>'


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
    known = {hour: values for hour, values in hours.items() if 0 <= hour < _LAST_HOUR}
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
