"""Directories by channel and day: names as Spark makes them, no row lost, order kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.pipeline.export.hive import NOTHING, directory_of, divide, escaped
from stantools.pipeline.tables.schema import MESSAGES

SCHEMA = pa.schema([MESSAGES.field(n) for n in ("channel", "timestamp", "seq")])
DAY = 86_400_000_000


def rows_of(values: list[tuple[Any, Any]]) -> pa.RecordBatch:
    channels, times = [v[0] for v in values], [v[1] for v in values]
    columns = [channels, times, list(range(len(values)))]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.none() | st.integers(-3 * DAY, 3 * DAY))))
def test_every_row_is_in_its_place_once_and_in_order(values: list[tuple[Any, Any]]) -> None:
    batch = rows_of(values)
    seen: dict[Any, list[int]] = {}
    for key, part in divide(batch, ("channel", "date")):
        assert key not in seen
        seen[key] = part.column("seq").to_pylist()
        assert part.num_rows
    wanted: dict[Any, list[int]] = {}
    for number, (channel, micros) in enumerate(values):
        day = None if micros is None else datetime.fromtimestamp(micros // 1_000_000, UTC).date().isoformat()
        wanted.setdefault((channel, day), []).append(number)
    assert list(seen.items()) == list(wanted.items())


def test_runs_are_not_copied() -> None:
    batch = rows_of([("a", 0)] * 5 + [("a", DAY)] * 5)
    parts = [part for _, part in divide(batch, ("channel", "date"))]
    address = batch.column("seq").buffers()[1].address
    assert [part.column("seq").buffers()[1].address for part in parts] == [address, address]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("orders.new", "orders.new"),
        ("a b", "a b"),
        ("50%", "50%25"),
        ("a/b:c=d", "a%2Fb%3Ac%3Dd"),
        ("q\"'*?\\{}[]^#", "q%22%27%2A%3F%5C%7B}%5B%5D%5E%23"),
        ("line\nbreak\x7f", "line%0Abreak%7F"),
        ("ü €", "ü €"),
    ],
)
def test_names_as_spark_escapes_them(value: str, name: str) -> None:
    assert escaped(value) == name


def test_names_of_directories() -> None:
    assert directory_of(("channel", "date"), ("a/b", "2026-11-21")) == "channel=a%2Fb/date=2026-11-21"
    assert directory_of(("store", "date"), ("", None)) == f"store={NOTHING}/date={NOTHING}"
    assert directory_of((), ()) == ""
