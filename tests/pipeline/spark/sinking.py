"""Rows for the sink, and what a stream holds afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from stantools.pipeline.spark.jetstream_options import SinkOptions, sink_options
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.schema import schema_of
from stantools.streamfiles import headers
from tests.migration.publish.conftest import Message, read_back
from tests.natsclient import with_jetstream

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
        pa.RecordBatch.from_pylist(list(listed[at : at + size]), schema=schema_of(TableName.MESSAGES))
        for at in range(0, len(listed), size)
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
    return with_jetstream(server.url, lambda js: read_back(js, stream))


def info(server: Any, stream: str) -> dict[str, Any] | None:
    """Configuration and state of a stream."""
    return with_jetstream(server.url, lambda js: js.stream_info(stream))


def description(server: Any, stream: str) -> str:
    """What a stream says about itself."""
    found = info(server, stream)
    assert found
    return str(found["config"].get("description", ""))


def kill_clients(server: Any, stream: str, reached: int) -> list[int]:
    """Waits until a stream has so many messages, then kills -9 what is connected to the server; not ourselves."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = info(server, stream)
        if found and found["state"]["messages"] >= reached:
            break
    # Whoever waits for the server cannot get done while it is looked for.
    server.process.send_signal(signal.SIGSTOP)
    try:
        killed = [pid for pid in connected_to(server.port) if pid not in (os.getpid(), server.process.pid)]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
    finally:
        server.process.send_signal(signal.SIGCONT)
    return killed


def connected_to(port: int) -> set[int]:
    """Processes of this machine that have a connection to a port of it."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{line[9]}]" for line in lines if int(line[2].split(":")[1], 16) == port and line[3] == "01"}
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) in inodes:
                found.add(int(link.parts[2]))
    return found
