"""Statistics as files: a page with tables of everything and plots of each channel, and Parquet tables.

The tables are channels, hours, and both histograms, so that SQL can work with them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from stantools.browse.histogram import PLAUSIBLE
from stantools.pages.html import moment, render
from stantools.pages.plots import BarChart, TimeAxis, plot, sparkline
from stantools.pipeline.jobs.stats.summary import ChannelStats, Stats, digits, format_rate
from stantools.pipeline.jobs.stats.sums import HOUR, bounds_of, widened
from stantools.store.atomic import new_directory
from stantools.store.durable import writing

_MOMENT = pa.timestamp("us", tz="UTC")
_NAME = [pa.field("store", pa.string()), pa.field("channel", pa.string())]


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([*_NAME, *(pa.field(name, kind) for name, kind in columns.items())])


_CHANNELS = _schema(
    messages=pa.int64(),
    bytes=pa.int64(),
    damaged=pa.int64(),
    missing=pa.int64(),
    gaps=pa.int64(),
    first_seq=pa.int64(),
    last_seq=pa.int64(),
    first_timestamp=_MOMENT,
    last_timestamp=_MOMENT,
    rate=pa.float64(),
    largest=pa.int64(),
    silence_ns=pa.int64(),
)
_HOURS = _schema(hour=_MOMENT, messages=pa.int64(), bytes=pa.int64(), rate=pa.float64())
_HISTOGRAM = _schema(low=pa.int64(), high=pa.int64(), messages=pa.int64())


def write_tables(stats: Stats, directory: Path) -> None:
    """Writes a new directory with one file per table; it appears when all of them are complete."""
    tables = {
        "channels": (_CHANNELS, map(_channel, stats.channels)),
        "hours": (_HOURS, _hours(stats.channels)),
        "sizes": (_HISTOGRAM, _histogram(stats.channels, "sizes")),
        "intervals": (_HISTOGRAM, _histogram(stats.channels, "intervals")),
    }
    with new_directory(directory) as building:
        for name, (schema, rows) in tables.items():
            with writing(directory):
                pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), building / f"{name}.parquet")


def _channel(each: ChannelStats) -> dict[str, Any]:
    return {
        "store": each.store,
        "channel": each.channel,
        "messages": each.messages,
        "bytes": each.bytes,
        "damaged": each.damaged,
        "missing": each.missing,
        "gaps": each.gaps,
        "first_seq": each.first_seq,
        "last_seq": each.last_seq,
        "first_timestamp": None if each.first_ns is None else each.first_ns // 1000,
        "last_timestamp": None if each.last_ns is None else each.last_ns // 1000,
        "rate": each.rate,
        "largest": each.largest,
        "silence_ns": each.silence,
    }


def _hours(channels: Iterable[ChannelStats]) -> Iterator[dict[str, Any]]:
    for each in channels:
        for hour, (messages, size) in sorted(each.hours().items()):
            yield {
                "store": each.store,
                "channel": each.channel,
                "hour": hour * HOUR // 1000,
                "messages": messages,
                "bytes": size,
                "rate": messages / 3600,
            }


def _histogram(channels: Iterable[ChannelStats], name: str) -> Iterator[dict[str, Any]]:
    for each in channels:
        for bucket, count in sorted(getattr(each, name).items()):
            low, high = bounds_of(bucket)
            yield {"store": each.store, "channel": each.channel, "low": low, "high": high, "messages": count}


#: Marks of the axis of a distribution: number and label.
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
#: approximate number of marks on an axis
_MARKS = 7
#: minimum number of bars with space in a distribution
_MIN_BARS = 6
#: Rows of the table of channels, each with its plots; browsers are slow with more.
LISTED = 5000
#: channels whose plots are open at first
OPEN = 12
_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def page(stats: Stats) -> str:
    stores = sorted({each.store for each in stats.channels})
    root = _root(stores)
    filters = {
        "hour": lambda value: moment(value)[:16],
        "span": _span,
        "rate": lambda value: "" if value is None else format_rate(value),
        "short": lambda store: store.removeprefix(root).lstrip("/") if len(stores) > 1 else store.rpartition("/")[2],
    }
    listed = sorted(stats.channels, key=lambda each: each.rank)[:LISTED]
    hurt = [each for each in listed if each.damaged or each.missing]
    whole = _over_time(stats.channels)
    return render(
        "stats.html",
        filters,
        stats=stats,
        stores=stores,
        root=root,
        first=min((each.first_ns for each in stats.channels if each.first_ns is not None), default=None),
        last=max((each.last_ns for each in stats.channels if each.last_ns is not None), default=None),
        messages=sum(each.messages for each in stats.channels),
        bytes=sum(each.bytes for each in stats.channels),
        damaged=sum(each.damaged for each in stats.channels),
        missing=sum(each.missing for each in stats.channels),
        hurt=hurt,
        listed=listed,
        opened=OPEN,
        whole=_plot(stats.channels),
        spark=lambda each: _spark(each, whole[0] if whole else None),
        plots=_plots,
    )


def _plots(channel: ChannelStats) -> dict[str, Markup]:
    return {
        "time": _plot([channel], height=70),
        "sizes": distribution(channel.sizes, BYTES),
        "intervals": distribution(channel.intervals, TIMES) if channel.intervals else Markup(""),
    }


def _root(stores: Sequence[str]) -> str:
    """Returns the common directory of all stores; of one store, the store."""
    if len(stores) < 2:
        return "".join(stores)
    parts = [store.split("/")[:-1] for store in stores]
    common = [names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))]
    return "/".join(common)


def _span(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{digits(seconds / length)} {unit}"
    return f"{nanoseconds} ns" if nanoseconds else "0 s"


def _over_time(channels: Sequence[ChannelStats]) -> tuple[TimeAxis, dict[int, tuple[int, int]]] | None:
    """Sums messages and bytes over time; returns the axis and the sums by position, None without messages."""
    times: dict[tuple[int, int], tuple[int, int]] = {}
    for each in channels:
        for place, (messages, size) in each.times.items():
            before = times.get((each.width, place), (0, 0))
            times[each.width, place] = before[0] + messages, before[1] + size
    if not times:
        return None
    # A wrong clock puts messages far away.
    usual = {stretch: sums for stretch, sums in times.items() if PLAUSIBLE[0] <= math.prod(stretch) < PLAUSIBLE[1]}
    if not usual:
        usual = times
    spans = [each.span for each in channels if each.span]
    first, last = min(low for low, _ in spans), max(high for _, high in spans)
    if len(usual) < len(times):
        first, last = min(map(math.prod, usual)), max(map(math.prod, usual))
    axis = TimeAxis.over(first, last, max(width for width, _ in usual))
    return axis, {axis.place(place * axis.width): sums for place, sums in widened(axis.width, usual).items()}


def _plot(channels: Sequence[ChannelStats], height: int = 90) -> Markup:
    """Plots messages and bytes of channels over time, one plot below the other."""
    found = _over_time(channels)
    if found is None:
        return Markup("")
    axis, bars = found
    panels = (
        BarChart(f"messages per {axis.unit}", {place: messages for place, (messages, _) in bars.items()}),
        BarChart(f"bytes per {axis.unit}", {place: size for place, (_, size) in bars.items()}, "orange", sizes=True),
    )
    return plot(panels, axis.places, axis.ticks, height=height)


def _spark(channel: ChannelStats, axis: TimeAxis | None) -> Markup:
    """Plots messages over the time of all channels, so that all rows have the same axis."""
    if axis is None:
        return Markup("")
    bars: dict[int, float] = {}
    for number, (messages, _) in channel.times.items():
        place = axis.place(number * channel.width)
        if 0 <= place < axis.places:
            bars[place] = bars.get(place, 0) + messages
    return sparkline(bars, axis.places)


def distribution(histogram: Mapping[int, int], marks: Mapping[int, str]) -> Markup:
    """Plots a histogram (number of values by bucket of `sums`) on a logarithmic axis with labelled marks."""
    doubled: dict[int, int] = {}
    for bucket, count in histogram.items():
        # One bar per power of two suffices for the eye. 0 comes before 1.
        power = bounds_of(bucket)[0].bit_length() - 1
        doubled[power] = doubled.get(power, 0) + count
    if not doubled:
        return Markup("")
    lowest, highest = min(doubled), max(doubled) + 1
    places = [(math.log2(number), name) for number, name in marks.items()]
    places = [(place, name) for place, name in places if lowest <= place <= highest]
    places = places[:: math.ceil(len(places) / _MARKS) or 1]
    if lowest < 0:
        places = [(-0.5, "0"), *((place, name) for place, name in places if place >= 1)]
    begin = lowest - max(_MIN_BARS - (highest - lowest), 0) // 2
    total = sum(doubled.values())
    bars = BarChart("% of messages", {power - begin: 100 * count / total for power, count in doubled.items()})
    ticks = [(place - begin, name) for place, name in places]
    return plot([bars], max(highest - begin, _MIN_BARS), ticks, width=460, height=90)
