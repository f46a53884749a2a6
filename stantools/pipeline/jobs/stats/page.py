"""Statistics as one page of HTML that needs nothing beside it: tables, and plots of the largest channels."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stantools import __version__
from stantools.pipeline.jobs.stats import plots
from stantools.pipeline.jobs.stats.summary import ChannelStats, Stats

#: Channels that get plots of their own; the tables have all of them.
PLOTTED = 12
#: Rows of the table of channels; more make a page that browsers are slow with.
LISTED = 5000
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
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
    environment.filters.update(size=_size, moment=_moment, span=_span, count=_count, rate=_rate)
    largest = sorted((each for each in stats.channels if each.messages), key=lambda each: -each.messages)
    return environment.get_template("stats.html").render(
        version=__version__,
        stats=stats,
        stores=len({each.store for each in stats.channels}),
        messages=sum(each.messages for each in stats.channels),
        bytes=sum(each.bytes for each in stats.channels),
        damaged=sum(each.damaged for each in stats.channels),
        missing=sum(each.missing for each in stats.channels),
        listed=sorted(stats.channels, key=lambda each: (-each.messages, each.store, each.channel))[:LISTED],
        whole=Markup(plots.messages_over_time(plots.added(each.hours for each in stats.channels))),
        plotted=[(each, _plots(each)) for each in largest[:PLOTTED]],
    )


def _plots(channel: ChannelStats) -> dict[str, Markup]:
    return {
        "time": Markup(plots.messages_over_time(channel.hours, (9.0, 2.6))),
        "sizes": Markup(plots.distribution(channel.sizes, "B")),
        "intervals": Markup(plots.distribution(channel.intervals, "s")) if channel.intervals else Markup(""),
    }


def _count(value: int) -> str:
    return f"{value:,}"


def _size(value: float) -> str:
    power = 0
    while value >= 1000 and power < len(_UNITS) - 1:
        value, power = value / 1000, power + 1
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
            return f"{seconds / length:.3g} {unit}"
    return "0 s"


def _rate(value: Any) -> str:
    return "" if value is None else f"{value:,.3g}"
