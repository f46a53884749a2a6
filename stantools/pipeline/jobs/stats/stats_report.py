"""The report of stats: a row for each channel."""

from __future__ import annotations

from typing import Any

from stantools.inspection.report import Report, ReportTable, columns
from stantools.notation import counted, format_size, format_time
from stantools.pipeline.jobs.stats.summary import ChannelStats, Stats, format_rate

_NAMES = (
    *("store", "channel", "messages", "bytes", "damaged", "missing", "gaps", "first_seq", "last_seq"),
    *("first_timestamp_ns", "last_timestamp_ns", "rate", "peak_hour_ns", "peak_hour_messages"),
    *("size_mean", "size_p50", "size_p95", "size_p99", "size_max"),
    *("interval_ns_p50", "interval_ns_p95", "interval_ns_p99", "interval_ns_max"),
)
_COLUMNS = columns(
    *("store", "channel", "messages", "payloads", "first", "last", "rate", "p50", "p99", "missing", "damaged"),
    numbers=("messages", "payloads", "rate", "p50", "p99", "missing", "damaged"),
    keys=("store", "channel"),
    details=("p50", "p99", "payloads", "first", "rate", "last"),
)
_SUBJECTS = columns(
    "stream", "subject", "messages", "payloads", numbers=("messages", "payloads"), keys=("stream", "subject")
)
#: Channels in the table for people.
_SHOWN = 50


def stats_report(stats: Stats) -> Report:
    report = Report(code=stats.exit_code, document=stats.as_json, records=(_NAMES, map(_record, stats.channels)))
    ranked = sorted(stats.channels, key=lambda each: each.rank)
    stores = len({each.store for each in ranked})
    first = 0 if stores > 1 else 1  # a single store is not named in each row
    rows = [_row(each)[first:] for each in ranked]
    report.tables.append(ReportTable(_COLUMNS[first:], rows, _SHOWN, "channel", ": see -o csv, --to and --report"))
    subjects = [
        (each.channel, subject, count, format_size(total)) for each in ranked for subject, count, total in each.subjects
    ]
    if subjects:
        report.tables.append(ReportTable(_SUBJECTS, subjects, _SHOWN, "subject", ": see -o json"))
    messages, size = sum(each.messages for each in ranked), sum(each.bytes for each in ranked)
    where = f"{counted(len(ranked), 'channel')} of {counted(stores, 'store')}"
    report.verdict = f"{messages:,} message{'s' * (messages != 1)}, {format_size(size)}, in {where}"
    return report


def _record(channel: ChannelStats) -> list[Any]:
    values = channel.as_json()
    flat: dict[str, Any] = {"store": channel.store, "channel": channel.channel, **values}
    for group in ("size", "interval_ns"):
        flat.update({f"{group}_{name}": value for name, value in values[group].items()})
    return [flat[name] for name in _NAMES]


def _row(channel: ChannelStats) -> tuple[Any, ...]:
    size = channel.as_json()["size"]
    return (
        channel.store,
        channel.channel,
        channel.messages,
        format_size(channel.bytes),
        _second(channel.first_ns),
        _second(channel.last_ns),
        None if channel.rate is None else format_rate(channel.rate),
        format_size(size["p50"]),
        format_size(size["p99"]),
        channel.missing or None,
        channel.damaged or None,
    )


def _second(timestamp: int | None) -> str | None:
    return None if timestamp is None else f"{format_time(timestamp).partition('.')[0].rstrip('Z')}Z"
