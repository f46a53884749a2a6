"""Statistics as one page of HTML that needs nothing beside it: tables, and plots of the largest channels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stantools import __version__
from stantools.pipeline.jobs.stats import plots
from stantools.pipeline.jobs.stats.summary import ChannelStats, Stats, digits, format_rate

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
    whole = plots.added(each.hours for each in stats.channels)
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
        sparks=[Markup(plots.spark(each.hours, whole)) for each in listed[:_SPARKED]],
        whole=Markup(plots.messages_over_time(whole)),
        plotted=[(each, _plots(each)) for each in plotted],
    )


def _plots(channel: ChannelStats) -> dict[str, Markup]:
    return {
        "time": Markup(plots.messages_over_time(channel.hours, height=2.5)),
        "sizes": Markup(plots.distribution(channel.sizes, plots.BYTES)),
        "intervals": Markup(plots.distribution(channel.intervals, plots.TIMES)) if channel.intervals else Markup(""),
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
