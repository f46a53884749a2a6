"""Statistics of each channel and of each hour, joined from the sums of tasks in any order."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stantools.errors import ExitCode
from stantools.pipeline.jobs.stats.sums import (
    HOUR,
    SumKind,
    bucket_of,
    fitting_width,
    percentile,
    sums_of,
    widened,
)
from stantools.pipeline.tables.model import FailedRead, Split
from stantools.progress import Progress
from stantools.work import Work
from stantools.work import each as in_tasks

if TYPE_CHECKING:
    import pyarrow as pa

    from stantools.pipeline.tables.planning import ReadPlan
    from stantools.pipeline.tables.table_options import TableOptions

#: Units of a rate in seconds; the first that has at least one message is used.
_RATES = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "day"))
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass
class ChannelStats:
    store: str
    channel: str
    messages: int = 0  #: intact messages
    bytes: int = 0  #: payload bytes
    damaged: int = 0  #: damaged ranges
    missing: int = 0  #: missing sequences between the first and the last message
    gaps: int = 0  #: ranges of missing sequences
    first_seq: int | None = None  #: None without messages
    last_seq: int | None = None  #: None without messages
    first_ns: int | None = None  #: storage time of the first message, nanoseconds since 1970
    last_ns: int | None = None  #: storage time of the last message
    largest: int = 0  #: bytes of the largest payload
    silence: int = 0  #: longest time between two messages, nanoseconds
    span: tuple[int, int] | None = None  #: earliest and latest time of a message, nanoseconds since 1970
    width: int = 1  #: nanoseconds of a time bucket, chosen for the span
    times: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  #: messages and bytes by number of the time bucket since 1970
    sizes: dict[int, int] = field(default_factory=dict)  #: histogram of payload sizes (`sums`)
    intervals: dict[int, int] = field(default_factory=dict)  #: histogram of the times between messages, nanoseconds
    #: Of a stream: subjects with the most messages, their messages and bytes.
    subjects: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its place in a list: damaged and incomplete channels first, then those with the most messages."""
        return -self.damaged, -self.missing, -self.messages, self.store, self.channel

    @property
    def seconds(self) -> float:
        if self.first_ns is None or self.last_ns is None:
            return 0.0
        return max(self.last_ns - self.first_ns, 0) / 1e9

    @property
    def rate(self) -> float | None:
        """Messages per second from the first to the last one; None if all came at once."""
        return (self.messages - 1) / self.seconds if self.seconds and self.messages > 1 else None

    def hours(self) -> dict[int, tuple[int, int]]:
        return widened(HOUR, {(self.width, place): sums for place, sums in self.times.items()})

    @property
    def peak_hour(self) -> tuple[int, int]:
        """The hour with the most messages, in nanoseconds since 1970, and their number."""
        if not self.times:
            return 0, 0
        hour, (messages, _) = max(self.hours().items(), key=lambda each: (each[1][0], -each[0]))
        return hour * HOUR, messages

    def as_json(self) -> dict[str, Any]:
        peak, most = self.peak_hour
        return {
            "name": self.channel,
            "messages": self.messages,
            "bytes": self.bytes,
            "damaged": self.damaged,
            "missing": self.missing,
            "gaps": self.gaps,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "first_timestamp_ns": self.first_ns,
            "last_timestamp_ns": self.last_ns,
            "rate": None if self.rate is None else round(self.rate, 6),
            "peak_hour_ns": peak,
            "peak_hour_messages": most,
            "size": {
                "mean": round(self.bytes / self.messages, 3) if self.messages else 0,
                **{name: min(percentile(self.sizes, share), self.largest) for name, share in _SHARES.items()},
                "max": self.largest,
            },
            "interval_ns": {
                **{name: min(percentile(self.intervals, share), self.silence) for name, share in _SHARES.items()},
                "max": self.silence,
            },
            **({"subjects": [list(each) for each in self.subjects]} if self.subjects else {}),
        }


@dataclass
class Stats:
    channels: list[ChannelStats] = field(default_factory=list)  #: sorted by store and name
    failed: list[FailedRead] = field(default_factory=list)  #: everything that could not be read

    @property
    def clean(self) -> bool:
        """True if everything could be read and nothing is damaged."""
        return not self.failed and not any(each.damaged for each in self.channels)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.CLEAN if self.clean else ExitCode.FINDINGS

    def as_json(self) -> dict[str, Any]:
        stores: dict[str, list[dict[str, Any]]] = {}
        for each in self.channels:
            stores.setdefault(each.store, []).append(each.as_json())
        return {
            "clean": self.clean,
            "stores": [{"store": store, "channels": channels} for store, channels in stores.items()],
            "failed": [each.as_json() for each in self.failed],
        }


def summarise(sums: Iterable[Mapping[str, Any]]) -> Stats:
    """Joins sums, in any order, given as rows of `sums.SCHEMA`."""
    stats = Stats()
    channels: dict[tuple[str, str], ChannelStats] = {}
    pieces: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    times: dict[tuple[str, str], dict[tuple[int, int], tuple[int, int]]] = {}
    for row in sums:
        if row["kind"] == SumKind.UNREADABLE:
            path = row["store"] if row["channel"] is None else f"{row['store']}/{row['channel']}"
            stats.failed.append(FailedRead(path, row["detail"]))
            continue
        key = row["store"], row["channel"]
        channel = channels.setdefault(key, ChannelStats(*key))
        if row["kind"] == SumKind.SUBJECT:
            channel.subjects.append((row["detail"], row["messages"], row["bytes"]))
        elif row["kind"] == SumKind.PIECE:
            pieces.setdefault(key, []).append(row)
        elif row["kind"] == SumKind.TIME:
            stretch = row["width"], row["bucket"]
            messages, size = times.setdefault(key, {}).get(stretch, (0, 0))
            times[key][stretch] = messages + row["messages"], size + row["bytes"]
        else:
            histogram = channel.sizes if row["kind"] == SumKind.SIZE else channel.intervals
            histogram[row["bucket"]] = histogram.get(row["bucket"], 0) + row["messages"]
    for key, rows in pieces.items():
        rows.sort(key=lambda row: (row["slice"], not row["archived"], row["offset"]))
        _join(channels[key], rows)
    for key, stretches in times.items():
        channel = channels[key]
        channel.width = max(fitting_width(channel.span), *(width for width, _ in stretches))
        channel.times = widened(channel.width, stretches)
    stats.channels = [channels[key] for key in sorted(channels)]
    stats.failed.sort(key=lambda each: (each.path, each.message))
    return stats


def _join(channel: ChannelStats, pieces: Iterable[Mapping[str, Any]]) -> None:
    """Adds up the pieces of a channel, and the gaps between them."""
    for piece in pieces:
        channel.messages += piece["messages"]
        channel.bytes += piece["bytes"]
        channel.damaged += piece["damaged"]
        channel.missing += piece["missing"]
        channel.gaps += piece["gaps"]
        channel.largest = max(channel.largest, piece["largest"])
        channel.silence = max(channel.silence, piece["silence"])
        if piece["first_seq"] is None:
            continue
        low, high = channel.span or (piece["earliest"], piece["latest"])
        channel.span = min(low, piece["earliest"]), max(high, piece["latest"])
        if channel.last_seq is None or channel.last_ns is None:
            channel.first_seq, channel.first_ns = piece["first_seq"], piece["first_ns"]
        else:
            _add_gap(channel, piece["first_seq"] - channel.last_seq - 1, piece["first_ns"] - channel.last_ns)
        channel.last_seq, channel.last_ns = piece["last_seq"], piece["last_ns"]


def _add_gap(channel: ChannelStats, between: int, interval: int) -> None:
    import numpy as np

    if between < 0:
        return
    if between:
        channel.missing += between
        channel.gaps += 1
    interval = max(interval, 0)
    channel.silence = max(channel.silence, interval)
    bucket = int(bucket_of(np.array([interval]))[0])
    channel.intervals[bucket] = channel.intervals.get(bucket, 0) + 1


def format_rate(rate: float) -> str:
    """Formats a rate, given in messages per second, in the unit that makes it readable, such as `12.5 / min`."""
    for length, unit in _RATES:
        if rate * length >= 1:
            return f"{digits(rate * length)} / {unit}"
    return f"{rate * 86400:.2g} / day"


def digits(value: float) -> str:
    """Formats a number with three digits, or with all digits before the point if these are more."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def run_stats(work: Work, plan: ReadPlan, options: TableOptions, *, progress: Progress | None = None) -> Stats:
    return summarise(_rows(work, plan, options, progress))


def _rows(work: Work, plan: ReadPlan, options: TableOptions, progress: Progress | None) -> Iterator[dict[str, Any]]:
    for number, batches in in_tasks(
        work, functools.partial(_sums, options), plan.splits, cost=lambda split: split.cost
    ):
        if progress:
            progress(plan.splits[number].cost)
        for batch in batches:
            yield from batch.to_pylist()


def _sums(options: TableOptions, split: Split) -> list[pa.RecordBatch]:
    return list(sums_of(split, options))
