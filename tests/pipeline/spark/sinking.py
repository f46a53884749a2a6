"""Rows for the sink, and what a stream holds afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from stantools.migration import headers
from stantools.pipeline.spark.jetstream_options import SinkOptions, sink_options
from stantools.pipeline.tables.schema import MESSAGES
from tests.migration.publish.conftest import Message, read_back, run

START = 1_700_000_000_000_000_000


def rows(channel: str, sequences: Iterable[int], /, **changes: Any) -> list[dict[str, Any]]:
    """Rows of the messages table."""
    return [
        {
            "store": "/data/store",
            "channel": channel,
            "seq": number,
            "timestamp_ns": START + number,
            "subject": channel,
            "reply": f"inbox.{number}" if number % 5 == 0 else None,
            "data": b"%b %d " % (channel.encode(), number) * (number % 4),
            "slice": f"{channel}/msgs.1.dat",
            "offset": 4 + 100 * number,
            "status": "ok",
        }
        | changes
        for number in sequences
    ]


def batches(listed: Sequence[dict[str, Any]], size: int = 100) -> list[pa.RecordBatch]:
    """Rows as Arrow batches."""
    return [
        pa.RecordBatch.from_pylist(list(listed[at : at + size]), schema=MESSAGES) for at in range(0, len(listed), size)
    ]


def options(url: str = "nats://127.0.0.1:1", **more: str) -> SinkOptions:
    """Options of the sink."""
    return sink_options({"servers": url, **more})


def expected(listed: Sequence[dict[str, Any]], *, origin: bool = True) -> list[Message]:
    """What a stream holds when these rows were written into it."""
    return [
        Message(
            row["seq"],
            row["channel"].encode(),
            headers.header_block(
                row["channel"].encode(), row["seq"], row["timestamp_ns"], (row["reply"] or "").encode(), origin=origin
            ),
            row["data"],
        )
        for row in listed
    ]


def stored(server: Any, stream: str) -> list[Message]:
    """What a stream holds."""
    return run(server.url, lambda js: read_back(js, stream))


def info(server: Any, stream: str) -> dict[str, Any] | None:
    """Configuration and state of a stream."""
    return run(server.url, lambda js: js.stream_info(stream))


def description(server: Any, stream: str) -> str:
    """What a stream says about itself."""
    found = info(server, stream)
    assert found
    return str(found["config"].get("description", ""))
