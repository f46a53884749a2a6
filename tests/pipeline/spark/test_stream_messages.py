"""The streams of JetStream directories as data sources, as Spark calls them; without Spark itself."""

from pathlib import Path
from typing import Any

import pytest

from stantools.errors import UsageError
from stantools.inspection.stored_messages import Selection, StoredMessage
from stantools.inspection.stream_messages import StreamMessageReader
from stantools.pipeline.spark.jetstream import JetStreamDataSource
from stantools.pipeline.spark.read import StanDataSource
from stantools.sources.door import open_source

COLUMNS = ("account", "stream", "sequence", "subject", "headers", "time", "payload", "block", "offset", "state")


def read(source: Any) -> list[dict[str, Any]]:
    reader = source.reader(source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", [StanDataSource, JetStreamDataSource])
def test_rows(kind: Any, golden_jetstream: Path) -> None:
    place = golden_jetstream / "dmg_flip_payload_idx" / "store" / "jetstream"
    source = kind({"path": str(place)})
    assert set(COLUMNS) <= set(source.schema().names)
    assert source.schema()["headers"].dataType.simpleString() == "map<string,array<string>>"
    found = read(source)
    for stream in open_source(place).streams:
        messages = [m for m in StreamMessageReader(stream).read(Selection()) if isinstance(m, StoredMessage)]
        mine = [row for row in found if row["stream"] == stream.name and row["state"] == "ok"]
        assert [(row["sequence"], row["payload"]) for row in mine] == [(m.sequence, m.data) for m in messages]
    assert any(row["state"] == "js-block-hash" for row in found)
    some = read(kind({"path": str(place), "channels": "EVENTS", "columns": "stream,sequence"}))
    assert {row["stream"] for row in some} == {"EVENTS"} and set(some[0]) == {"stream", "sequence"}


def test_a_server_is_not_read() -> None:
    with pytest.raises(UsageError, match="streams of a server"):
        JetStreamDataSource({"servers": "nats://127.0.0.1:1"}).schema()
