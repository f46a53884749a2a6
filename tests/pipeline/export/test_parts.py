"""What a task writes: one file, or one for each directory, with bounded memory and bounded files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import StoreUnwritableError
from stantools.pipeline.export import parts
from stantools.pipeline.export.export_layout import Compression, ExportLayout, Format
from stantools.pipeline.export.parts import NOTHING, directory_of, divide, escaped, write_part
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.schema import schema_of

HOUR = 3600 * 10**9
SCHEMA = schema_of(TableName.MESSAGES, ("channel", "timestamp", "seq"))
DAY = 86_400_000_000


def rows_of(layout: ExportLayout, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch.select(layout.read_columns) for batch in batches]


def test_one_file(tmp_path: Path, messages) -> None:
    batches = messages()
    layout = ExportLayout()
    written = write_part(batches, tmp_path, 7, layout)
    assert [(f.path, f.rows) for f in written.files] == [("part-00007.parquet", 300)]
    assert written.files[0].size == (tmp_path / "part-00007.parquet").stat().st_size
    assert written.rows == 300 and written.tally == {"ok": 300}
    assert pq.read_table(tmp_path / "part-00007.parquet").equals(pa.Table.from_batches(batches))


def test_nothing_gives_no_file(tmp_path: Path, messages) -> None:
    assert write_part([], tmp_path, 0, ExportLayout()).files == []
    assert not list(tmp_path.iterdir())


def test_directories_are_read_back_as_columns(tmp_path: Path, messages) -> None:
    layout = ExportLayout(by=("channel", "date"))
    orders, other = messages(step=HOUR), messages(channel="a/b %", step=HOUR)
    write_part(rows_of(layout, orders), tmp_path, 0, layout)
    write_part(rows_of(layout, other), tmp_path, 1, layout)
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    for batches, channel in ((orders, "orders"), (other, "a/b %")):
        mine = table.filter(ds.field("channel") == channel).sort_by("seq")
        wanted = pa.Table.from_batches(batches)
        names = [name for name in schema_of(TableName.MESSAGES).names if name != "channel"]
        assert mine.select(names).equals(wanted.select(names))
        days = [t.date().isoformat() for t in mine.column("timestamp").to_pylist()]
        assert mine.column("date").to_pylist() == days and len(set(days)) == 14
    assert (tmp_path / "channel=a%2Fb %25").is_dir()


def test_few_files_are_open_at_a_time(tmp_path: Path, messages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_OPEN", 2)
    layout = ExportLayout(by=("channel",))
    one = [messages(1, 10, channel=f"c{n}", first=first)[0] for first in (1, 11) for n in range(3)]
    written = write_part(rows_of(layout, one), tmp_path, 3, layout)
    names = sorted(f.path for f in written.files)
    assert names == sorted(f"channel=c{n}/part-00003{again}.parquet" for n in range(3) for again in ("", "-1"))
    assert all(f.rows == 10 for f in written.files)


def test_memory_is_bounded_over_all_files(tmp_path: Path, messages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_WAITING", 50_000)
    seen = []
    flush = parts.File.flush

    def noted(self) -> None:
        seen.append(self.pending)
        flush(self)

    monkeypatch.setattr(parts.File, "flush", noted)
    layout = ExportLayout(by=("channel",))
    one = [messages(1, 100, 100, channel=f"c{n}", first=first)[0] for first in (1, 101) for n in range(4)]
    write_part(rows_of(layout, one), tmp_path, 0, layout)
    assert any(pending for pending in seen[:-4]), "the fullest is written before all are closed"


def test_a_few_rows_do_not_keep_a_batch(tmp_path: Path, messages, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.Table.from_batches(messages(1, 900, 100)).combine_chunks().to_batches()[0]
    layout = ExportLayout(by=("date",))
    times = pa.array([0] * 890 + [86_400_000_000] * 10, schema_of(TableName.MESSAGES).field("timestamp").type)
    batch = batch.set_column(3, "timestamp", times)
    kept: list[pa.RecordBatch] = []
    write = parts.File.write

    def noted(self: parts.File, rows: pa.RecordBatch) -> None:
        kept.append(rows)
        write(self, rows)

    monkeypatch.setattr(parts.File, "write", noted)
    write_part([batch], tmp_path, 0, layout)
    (few,) = (rows for rows in kept if rows.num_rows == 10)
    assert few.get_total_buffer_size() < batch.get_total_buffer_size() / 20


def test_a_name_that_is_too_long(tmp_path: Path, messages) -> None:
    layout = ExportLayout(by=("channel",))
    with pytest.raises(StoreUnwritableError, match="256 bytes") as caught:
        write_part(rows_of(layout, messages(channel="x" * 248)), tmp_path, 0, layout)
    assert "--by" in caught.value.remedy
    write_part(rows_of(layout, messages(channel="x" * 247)), tmp_path, 0, layout)


def test_text_in_directories(tmp_path: Path, messages) -> None:
    layout = ExportLayout(TableName.MESSAGES, Format.NDJSON, Compression.NONE, ("seq",), ("channel",))
    write_part(rows_of(layout, messages(1, 3)), tmp_path, 0, layout)
    assert (tmp_path / "channel=orders/part-00000.ndjson").read_text() == '{"seq":1}\n{"seq":2}\n{"seq":3}\n'


def test_a_reader_that_fails_leaves_files_closed(tmp_path: Path, messages) -> None:
    def broken():
        yield from messages()
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        write_part(broken(), tmp_path, 0, ExportLayout())


def rows_at(values: list[tuple[Any, Any]]) -> pa.RecordBatch:
    channels, times = [v[0] for v in values], [v[1] for v in values]
    columns = [channels, times, list(range(len(values)))]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.none() | st.integers(-3 * DAY, 3 * DAY))))
def test_every_row_is_in_its_place_once_and_in_order(values: list[tuple[Any, Any]]) -> None:
    batch = rows_at(values)
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
    batch = rows_at([("a", 0)] * 5 + [("a", DAY)] * 5)
    parts = [part for _, part in divide(batch, ("channel", "date"))]
    address = batch.column("seq").buffers()[1].address
    assert [part.column("seq").buffers()[1].address for part in parts] == [address, address]


def test_names_as_spark_escapes_them() -> None:
    rows: list[tuple[str, str]] = [
        ("orders.new", "orders.new"),
        ("a b", "a b"),
        ("50%", "50%25"),
        ("a/b:c=d", "a%2Fb%3Ac%3Dd"),
        ("q\"'*?\\{}[]^#", "q%22%27%2A%3F%5C%7B}%5B%5D%5E%23"),
        ("line\nbreak\x7f", "line%0Abreak%7F"),
        ("ü €", "ü €"),
    ]
    for value, name in rows:
        assert escaped(value) == name, (value, name)


def test_names_of_directories() -> None:
    assert directory_of(("channel", "date"), ("a/b", "2026-11-21")) == "channel=a%2Fb/date=2026-11-21"
    assert directory_of(("store", "date"), ("", None)) == f"store={NOTHING}/date={NOTHING}"
    assert directory_of((), ()) == ""
