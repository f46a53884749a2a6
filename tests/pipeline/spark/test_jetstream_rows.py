"""Rows on their way into streams: what is taken, and what is refused before anything is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import RefusedError, StoreUnwritableError, UsageError
from stantools.pipeline.spark import jetstream_rows
from stantools.pipeline.spark.jetstream_options import sink_options
from stantools.pipeline.spark.jetstream_rows import SpoolRows
from stantools.streamfiles.headers import safe_value
from tests.pipeline.spark.sinking import batches, options, rows


def taken(listed: list[pa.RecordBatch], **more: str) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """What of rows would be published, channel by channel."""
    result = []
    for spool in SpoolRows(options(**more)).channels(listed):
        with spool:
            found = [
                (int(number), int(batch.timestamp[row]), batch.reply(row), batch.data(row))
                for batch in spool.read()
                for row, number in enumerate(batch.sequence)
            ]
            assert spool.count == len(found)
            assert (spool.first, spool.last) == (found[0][0], found[-1][0])
            result.append((spool.channel.decode(), found))
    return result


def as_taken(listed: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What should be published of rows."""
    return [(row["seq"], row["timestamp_ns"], safe_value((row["reply"] or "").encode()), row["data"]) for row in listed]


def test_channels_come_one_by_one() -> None:
    first, second = rows("a", range(1, 250)), rows("b.c", range(7, 900, 3))
    assert taken(batches([*first, *second], 64)) == [("a", as_taken(first)), ("b.c", as_taken(second))]
    assert taken([]) == taken(batches([], 1)) == []


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.binary(max_size=40), min_size=1, max_size=60),
    replies=st.lists(st.none() | st.text(max_size=6), min_size=1),
    size=st.integers(1, 30),
    block=st.integers(1, 50),
    after=st.integers(0, 70),
)
def test_what_is_put_aside_comes_back(
    data: list[bytes], replies: list[str | None], size: int, block: int, after: int
) -> None:
    listed = [
        row | {"data": data[at], "reply": replies[at % len(replies)]}
        for at, row in enumerate(rows("x", range(1, len(data) + 1)))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jetstream_rows, "_BYTES", block)
        assert taken(batches(listed, size)) == [("x", as_taken(listed))]
        [spool] = SpoolRows(options()).channels(batches(listed, size))
        with spool:
            behind = [int(number) for batch in spool.read(after=after) for number in batch.sequence]
            assert behind == [row["seq"] for row in listed if row["seq"] > after]


@pytest.mark.parametrize(
    "change",
    [
        {"data": pa.large_binary(), "channel": pa.large_string(), "seq": pa.int32()},
        {"data": pa.string_view(), "reply": pa.string_view(), "timestamp_ns": pa.uint64()},
        {"data": pa.binary_view(), "status": pa.dictionary(pa.int8(), pa.string())},
    ],
)
def test_columns_of_other_types(change: dict[str, pa.DataType]) -> None:
    listed = rows("x", range(3, 9))
    [batch] = batches(listed)
    for name, kind in change.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, batch.column(name).cast(kind))
    assert taken([batch.slice(2)]) == [("x", as_taken(listed[2:]))]


def test_few_columns_are_enough() -> None:
    listed = rows("x", range(3, 9))
    [batch] = batches(listed)
    few = batch.select(["channel", "seq", "data"])
    assert taken([few], originHeaders="off") == [("x", [(row["seq"], 0, b"", row["data"]) for row in listed])]
    with pytest.raises(UsageError, match="need the columns timestamp_ns; there are channel, seq, data"):
        taken([few])
    with pytest.raises(UsageError, match="need the columns data"):
        taken([batch.drop_columns(["data"])])
    time = pa.array([1_700_000_000_000_001 + row for row in range(6)], pa.timestamp("us", "UTC"))
    timed = few.append_column("timestamp", time)
    assert [row[1] for row in taken([timed])[0][1]][:2] == [1_700_000_000_000_001_000, 1_700_000_000_000_002_000]
    for name, kind in (("seq", pa.float64()), ("data", pa.int64()), ("timestamp_ns", pa.string())):
        at = batch.schema.get_field_index(name)
        with pytest.raises(UsageError, match=f"the column {name} is of type {kind}, expected"):
            taken([batch.set_column(at, name, pa.array([1] * 6).cast(kind))])


def test_what_is_refused() -> None:
    listeds: list[tuple[list[dict[str, Any]], str]] = [
        (rows("x", [1, 2, 5, 4]), "channel x: message 4 comes after message 5"),
        (rows("x", [1, 2, 2]), "channel x: there are two messages with sequence 2"),
        (rows("x", [0, 2]), "0 is not a sequence"),
        (rows("x", [-3]), "-3 is not a sequence"),
        (rows("x", [1]) + rows("y", [1]) + rows("x", [2]), "channel x: its rows are not contiguous"),
        (rows("x", [1], seq=None), r"a row has no seq \(null\)"),
        (rows("x", [1], channel=None), r"a row has no channel \(null\)"),
        (rows("x", [1, 2], data=None), r"message 1 has no data \(null\)"),
        (rows("x", [1], timestamp_ns=None), r"has no time \(null\)"),
        (rows("x", [1]) + rows("x", [2], subject="other"), "message 2 has the subject other"),
        (
            rows("x", [1]) + rows("x", [2], status="torn"),
            "not an intact message but torn: store /data/store, channel x, slice x/msgs.1.dat, offset 204, seq 2",
        ),
    ]
    sizes: list[int] = [1, 100]
    for listed, message in listeds:
        for size in sizes:
            with pytest.raises(RefusedError, match=message) as raised:
                taken(batches(listed, size))
                pytest.fail(f"accepted: {(listed, message, size)!r}")
            assert raised.value.remedy, (listed, message, size)


def test_damaged_rows_can_be_left_out() -> None:
    listed = rows("x", [1]) + rows("x", [0], status="garbage", seq=None, data=None) + rows("x", [3], status="repaired")
    sink = SpoolRows(options(damaged="leave-out"))
    [spool] = sink.channels(batches(listed))
    with spool:
        assert spool.count == 2
    assert sink.left_out == {"garbage": 1}
    assert list(SpoolRows(options(damaged="leave-out")).channels(batches(rows("x", [5], status="torn")))) == []


def test_one_stream_takes_one_channel() -> None:
    with pytest.raises(RefusedError, match="stream S would get the channels x and y"):
        taken(batches(rows("x", [1]) + rows("y", [1])), stream="S")


def test_no_room_to_put_messages_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUnwritableError, match="nowhere: temporary files cannot be written there"):
        taken(batches(rows("x", [1])), spoolDir=str(tmp_path / "nowhere"))

    monkeypatch.setattr(jetstream_rows.tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("w+b"))  # noqa: SIM115
    with pytest.raises(StoreUnwritableError, match="No space left on device") as raised:
        taken(batches(rows("x", [1])), spoolDir=str(tmp_path))
    assert "the largest channel must fit" in raised.value.remedy


def test_options_that_make_no_sense() -> None:
    rows: list[tuple[dict[str, str], str]] = [
        ({"server": "x"}, "unknown option 'server'"),
        ({"servers": "http://x"}, "no servers for 'http' URLs"),
        ({"servers": "embedded"}, "tasks cannot reach embedded"),
        ({"stream": "a b"}, "stream 'a b'"),
        ({"stream": "a", "streamPrefix": "b"}, "exclude each other"),
        ({"subjectPrefix": "$JS.API"}, "belongs to the system"),
        ({"maxAge": "soon"}, "option maxAge: 'soon' is not a duration"),
        ({"maxMsgs": "-1"}, "option maxMsgs: '-1' is not a number"),
        ({"replicas": "7"}, "option replicas: '7' is not a number from 1 to 5"),
        ({"storage": "tape"}, "option storage: 'tape' is not known"),
        ({"timeout": "0"}, "option timeout"),
        ({"user": "me"}, "no password"),
        ({"user": "me", "passwordEnv": "A", "passwordFile": "B"}, "exclude each other"),
        ({"token": "t", "creds": "/x"}, "exclude each other"),
        ({"tlsCert": "/x"}, "the key of the client certificate is missing"),
        ({"context": "no-such-context"}, "no-such-context"),
        ({"originHeaders": "maybe"}, "neither true nor false"),
        ({"damaged": "keep"}, "option damaged"),
    ]
    for values, message in rows:
        with pytest.raises((UsageError, Exception), match=message) as raised:
            sink_options(values)
            pytest.fail(f"accepted: {(values, message)!r}")
        assert raised.value.remedy, (values, message)  # type: ignore[attr-defined]


def test_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = sink_options({"SERVERS": "nats://a,b:1", "streamprefix": "old-", "subjectPrefix": "stan", "maxAge": "72h"})
    assert found.connect.servers == ("nats://a", "b:1")
    assert found.names("orders.eu") == ("old-orders_eu", "stan.orders.eu")
    config = found.config("orders.eu", (2, 10, 0))
    assert config["max_age"] == 72 * 3600 * 10**9 and config["metadata"] == {"stantools.channel": "orders.eu"}
    assert "metadata" not in found.config("orders.eu", (2, 9, 10))
    # Secrets are looked up where they are needed, and never shown.
    found = sink_options({"user": "me", "passwordEnv": "SINK_PASSWORD"})
    with pytest.raises(UsageError, match="SINK_PASSWORD, which option passwordEnv names, is not set where a task runs"):
        found.connect_options()
    monkeypatch.setenv("SINK_PASSWORD", "secret")
    assert found.connect_options().password == "secret"
    file = tmp_path / "token"
    file.write_text("geheim\n")
    assert sink_options({"tokenFile": str(file)}).connect_options().token == "geheim"
    assert "geheim" not in repr(sink_options({"token": "geheim"}))
