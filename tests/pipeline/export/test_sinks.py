"""Single files: what is written is read back by Arrow's readers, pruning works, failures are told."""

from __future__ import annotations

import gc
import gzip
import resource
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest

from stantools.errors import StoreUnwritableError, UsageError
from stantools.pipeline.export.export_layout import (
    COMPRESSIONS,
    DATABASES,
    Compression,
    ExportedPart,
    ExportLayout,
    Format,
)
from stantools.pipeline.export.sinks import File
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.schema import schema_of

PARQUET = [pytest.param(each, id=each.value) for each in COMPRESSIONS[Format.PARQUET]]
TEXT = [pytest.param(each, id=each.value) for each in COMPRESSIONS[Format.NDJSON]]
#: Formats whose writers say why in the system's words; databases have their own.
FILES = [each for each in Format if each not in DATABASES]


def write(path: Path, layout: ExportLayout, batches: list[pa.RecordBatch]) -> int:
    with File(path, layout) as file:
        for batch in batches:
            file.write(batch.select(layout.file_columns))
        return file.close()


@pytest.mark.parametrize("compression", PARQUET)
def test_parquet_is_what_was_given(tmp_path: Path, messages, compression: Compression) -> None:
    batches = messages(batches=4, rows=500, size=50)
    path = tmp_path / "x.parquet"
    size = write(path, ExportLayout(compression=compression, row_group_bytes=100_000), batches)
    assert path.stat().st_size == size
    assert pq.read_schema(path).equals(schema_of(TableName.MESSAGES))
    assert pq.read_table(path).equals(pa.Table.from_batches(batches))
    assert pq.ParquetFile(path).metadata.num_row_groups == 2


def test_parquet_can_be_pruned(tmp_path: Path, messages) -> None:
    path = tmp_path / "x.parquet"
    write(path, ExportLayout(row_group_bytes=1), messages(batches=3, rows=500))
    meta = pq.ParquetFile(path).metadata
    for number in range(3):
        group = meta.row_group(number)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(meta.num_columns)}
        stats = columns["seq"].statistics
        assert (stats.min, stats.max) == (number * 500 + 1, number * 500 + 500)
        for name, column in columns.items():
            assert (column.is_stats_set and column.statistics.has_min_max) == (name != "data")
            assert column.has_column_index == (name != "data")
            assert column.has_dictionary_page == (name in ("store", "channel", "subject", "reply", "slice", "status"))
    found = pq.read_table(path, filters=[("seq", ">=", 700), ("seq", "<", 702)])
    assert found.column("seq").to_pylist() == [700, 701]


@pytest.mark.parametrize("table", list(TableName))
def test_every_table_without_rows(tmp_path: Path, table: TableName) -> None:
    path = tmp_path / "x.parquet"
    write(path, ExportLayout(table), [])
    assert pq.read_table(path).schema.equals(schema_of(table))
    assert write(tmp_path / "x.ndjson", ExportLayout(table, Format.NDJSON, Compression.NONE), []) == 0


@pytest.mark.parametrize("compression", TEXT)
def test_text_is_one_file(tmp_path: Path, messages, compression: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stantools.pipeline.export.sinks._TEXT_BYTES", 5000)
    batches = messages()
    columns = ("channel", "seq", "timestamp_ns", "status")
    rows = pa.Table.from_batches(batches).select(columns)
    layout = ExportLayout(TableName.MESSAGES, Format.NDJSON, compression, columns)
    path = tmp_path / f"x{layout.suffix}"
    write(path, layout, batches)
    with pa.input_stream(path, compression="detect") as stream:
        assert pj.read_json(stream, parse_options=pj.ParseOptions(explicit_schema=rows.schema)).equals(rows)
    if compression is Compression.GZIP:
        assert gzip.decompress(path.read_bytes()).count(b"\n") == 300
    layout = ExportLayout(TableName.MESSAGES, Format.CSV, compression, columns)
    path = tmp_path / f"x{layout.suffix}"
    write(path, layout, batches)
    with pa.input_stream(path, compression="detect") as stream:
        assert pc.read_csv(stream).cast(rows.schema).equals(rows)


def test_columns_in_the_order_that_was_asked_for(tmp_path: Path, messages) -> None:
    write(tmp_path / "x", ExportLayout(columns=("seq", "channel")), messages(1, 2))
    assert pq.read_table(tmp_path / "x").to_pylist() == [{"seq": n, "channel": "orders"} for n in (1, 2)]


@pytest.mark.parametrize("format", FILES)
def test_what_cannot_be_written(tmp_path: Path, messages, format: Format) -> None:
    layout = ExportLayout(TableName.MESSAGES, format, COMPRESSIONS[format][0])
    with pytest.raises(StoreUnwritableError, match="missing/x: cannot be written: No such file"):
        File(tmp_path / "missing" / "x", layout)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = File(tmp_path / "x", layout)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(StoreUnwritableError, match="x: cannot be written: File too large") as caught:
            for batch in messages(3, 1000, 500):
                file.write(batch)
            file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "choose another place" in caught.value.remedy
    file.abandon()


@pytest.mark.parametrize("format", FILES)
def test_no_space(tmp_path: Path, messages, format: Format) -> None:
    layout = ExportLayout(TableName.MESSAGES, format, COMPRESSIONS[format][0])
    (tmp_path / "x").symlink_to("/dev/full")
    with pytest.raises(StoreUnwritableError, match="No space left on device") as caught:
        write(tmp_path / "x", layout, messages(3, 1000, 500))
    assert "free some space" in caught.value.remedy


@pytest.mark.parametrize("format", DATABASES)
def test_a_database_that_cannot_be_written(tmp_path: Path, messages, format: Format) -> None:
    if format is Format.DUCKDB:
        pytest.importorskip("duckdb")
    layout = ExportLayout(TableName.MESSAGES, format, Compression.NONE)
    with pytest.raises(StoreUnwritableError, match="missing/x: cannot be written: No such file"):
        File(tmp_path / "missing" / "x", layout)
    file = File(tmp_path / "x", layout)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with pytest.raises(StoreUnwritableError, match="x: cannot be written: "):
            for batch in messages(20, 2000, 500):
                file.write(batch)
            file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.abandon()


def test_a_file_that_is_given_up_is_not_finished_later(
    tmp_path: Path, messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is collected, a writer of Arrow's would write its end to what is closed, and complain on stderr."""
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    file = File(tmp_path / "x", ExportLayout())
    file.write(messages(1, 10, 10)[0])
    file.flush()
    file.abandon()
    del file
    gc.collect()
    assert not complaints


def test_what_makes_no_sense() -> None:
    rows: list[tuple[ExportLayout, str]] = [
        (ExportLayout(columns=("seq", "sek")), "no column 'sek'"),
        (ExportLayout(columns=("seq", "seq")), "twice"),
        (ExportLayout(by=("channel", "channel")), "repeats a level"),
        (ExportLayout(by=("hour",)), "cannot be divided by 'hour'"),
        (ExportLayout(TableName.SUBSCRIPTIONS, by=("date",)), "cannot be divided by 'date'"),
        (ExportLayout(TableName.CLIENTS, by=("channel",)), "cannot be divided by 'channel'"),
        (ExportLayout(columns=("channel",), by=("channel",)), "no column is left"),
        (ExportLayout(format=Format.CSV), "csv files cannot be compressed with snappy"),
    ]
    for layout, problem in rows:
        with pytest.raises(UsageError, match=problem) as caught:
            layout.check()
            pytest.fail(f"accepted: {(layout, problem)!r}")
        assert caught.value.remedy, (layout, problem)


def test_columns_that_are_read() -> None:
    layout = ExportLayout(columns=("seq",), by=("channel", "date"))
    layout.check()
    assert layout.file_columns == ("seq",)
    assert layout.read_columns == ("channel", "seq", "timestamp", "status")
    assert ExportLayout(TableName.SUBSCRIPTIONS, columns=("id",)).read_columns == ("id", "status")
    assert ExportLayout(TableName.FINDINGS, columns=("code",)).read_columns == ("code", "severity")
    assert "channel" not in ExportLayout(by=("channel",)).file_schema.names
    assert ExportLayout(format=Format.CSV, compression=Compression.ZSTD).suffix == ".csv.zst"


def test_what_rows_say_of_damage() -> None:
    written = ExportedPart()
    schema = pa.schema([schema_of(TableName.SLICES).field("problems")])
    written.count(TableName.SLICES, pa.record_batch([pa.array([[], ["bad"], []], schema.field(0).type)], schema=schema))
    assert written.tally == {"ok": 2, "problems": 1} and written.damaged(TableName.SLICES) == 1
    written = ExportedPart()
    for statuses in (["ok", "ok"], ["ok", "torn", "torn"], []):
        batch = pa.record_batch([pa.array(statuses, pa.string())], names=["status"])
        written.count(TableName.MESSAGES, batch)
    assert written.tally == {"ok": 3, "torn": 2} and written.rows == 5 and written.damaged(TableName.MESSAGES) == 2
    severities = pa.record_batch([pa.array(["info", "error"])], names=["severity"])
    written = ExportedPart()
    written.count(TableName.FINDINGS, severities)
    assert written.damaged(TableName.FINDINGS) == 1
    written = ExportedPart()
    written.count(
        TableName.SUBSCRIPTIONS, pa.record_batch([pa.array(["active", "ghost", "damaged"])], names=["status"])
    )
    assert written.damaged(TableName.SUBSCRIPTIONS) == 1


def test_size_is_what_is_on_disk(tmp_path: Path, messages) -> None:
    for format in Format:
        layout = ExportLayout(format=format, compression=COMPRESSIONS[format][0])
        assert write(tmp_path / format, layout, messages()) == (tmp_path / format).stat().st_size
