"""Rows as ndjson and csv: equal to what Python's json and csv make of them, whatever is in the rows."""

from __future__ import annotations

import base64
import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.pipeline.export import text
from stantools.pipeline.export.export_layout import Format
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.schema import column_names, schema_of
from stantools.pipeline.tables.value_rows import ValueRows

MESSAGES = set(column_names(TableName.MESSAGES))

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_text(micros: int) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def value_of(field: pa.Field, column: pa.Array, row: int) -> Any:
    """What a value should be in json."""
    if not column[row].is_valid:
        return None
    if pa.types.is_timestamp(field.type):
        return time_text(column[row].value)
    value = column[row].as_py()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def expected(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [
        {field.name: value_of(field, batch.column(field.name), row) for field in batch.schema}
        for row in range(batch.num_rows)
    ]


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else str(value)


def twin(batch: pa.RecordBatch) -> ValueRows:
    """The same rows without pyarrow."""
    return ValueRows(
        {
            name: [each.value for each in column] if pa.types.is_timestamp(column.type) else column.to_pylist()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
    )


def check(batch: pa.RecordBatch) -> None:
    wanted = expected(batch)
    for format in (Format.NDJSON, Format.CSV) if set(batch.schema.names) <= MESSAGES else ():
        assert text.encode_values(twin(batch), format) == bytes(text.encode_columns(batch, format))
    lines = bytes(text.encode(batch, Format.NDJSON))
    assert lines == b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in wanted)
    rows = list(csv.reader(io.StringIO(bytes(text.encode(batch, Format.CSV)).decode(), newline="")))
    # An empty line is how csv has a single column without a value.
    assert [row or [""] for row in rows] == [[cell(value) for value in row.values()] for row in wanted]


names = st.one_of(st.sampled_from(["orders", "", "a b", 'q"uo\\te', "line\nbreak", "ü", "€,\x00", "�"]), st.text())
# The years that Arrow's timestamps of nanoseconds can have.
moments = st.integers(-(2**63) // 1000 + 1, (2**63 - 1) // 1000)
row = st.tuples(
    names,
    st.none() | names,
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | moments,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | names,
    st.none() | names,
    st.none() | st.binary(max_size=20),
    st.none() | st.integers(0, 2**40),
    st.none() | names,
    st.none() | st.integers(0, 2**40),
    st.sampled_from(["ok", "torn", "payload"]),
)


def batch_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@settings(max_examples=150, deadline=None)
@given(st.lists(row, min_size=1, max_size=30), st.integers(0, 3), st.booleans())
def test_any_messages(rows: list[tuple[Any, ...]], skipped: int, large: bool) -> None:
    whole = batch_of(schema_of(TableName.MESSAGES), rows)
    batch = whole.slice(skipped)
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(text, "_LARGE_FROM", -1)
        if batch.num_rows:
            check(batch)
            check(batch.select(["data"]))
            check(batch.select(["subject"]))
            check(batch.select(["timestamp", "store"]))
        else:
            assert text.encode(batch, Format.CSV) == b"" == text.encode(batch, Format.NDJSON)
            assert text.encode(twin(batch), Format.CSV) == b""


def test_the_same_value_in_all_rows() -> None:
    rows = [("s", "ü", 1, 2, 3, None, "", b"", 0, 'a"b', None, "ok")] * 3
    batch = batch_of(schema_of(TableName.MESSAGES), rows)
    check(batch)
    check(batch.select(["reply", "store", "slice"]))
    check(batch.select(["status"]))


def test_lists_and_booleans() -> None:
    schema = pa.schema(
        [schema_of(TableName.SUBSCRIPTIONS).field(n) for n in ("id", "is_durable", "pending", "max_in_flight", "ghost")]
    )
    check(batch_of(schema, [(1, True, [1, 2, 3], 4, None), (None, None, None, None, False), (2, False, [], 0, True)]))
    check(batch_of(pa.schema([schema_of(TableName.SLICES).field("problems")]), [(['a "b"', "ü,"],), ([],), (None,)]))


def test_csv_tells_nothing_from_an_empty_text() -> None:
    batch = batch_of(
        schema_of(TableName.MESSAGES, ("subject", "reply")),
        [("", None), (None, ""), ("x", "y")],
    )
    assert bytes(text.encode(batch, Format.CSV)) == b'"",\n,""\nx,y\n'
    assert text.heading(batch.schema.names, Format.CSV) == b"subject,reply\n"
    assert text.heading(batch.schema.names, Format.NDJSON) == b""


@pytest.mark.parametrize("large", [False, True])
def test_base64(large: bool) -> None:
    values = [bytes(range(n)) for n in range(70)] + [None, b"", None, b"\xff" * 1000]
    for begin in (0, 5, len(values) - 3):
        column = pa.array(values, pa.binary())[begin:]
        assert text.base64_of(column, large).to_pylist() == [
            None if v is None else base64.b64encode(v).decode() for v in values[begin:]
        ]
    assert text.base64_of(pa.array([], pa.binary()), large).to_pylist() == []
    assert text.base64_of(pa.array([None, None], pa.binary()), large).to_pylist() == [None, None]
