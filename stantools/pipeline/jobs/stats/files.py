"""Statistics as Parquet tables: channels, hours, and both histograms, so that SQL can go on with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stantools.pipeline.jobs.stats.summary import ChannelStats, Stats
from stantools.pipeline.jobs.stats.sums import HOUR, bounds_of
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
    """Writes a directory with one file a table; it appears when all of them are whole.

    Args:
        stats: The statistics.
        directory: Where to; nothing may be there.

    Raises:
        StoreUnwritableError: It cannot be written, or something already exists.
    """
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
