"""One file of an export. Rows are gathered, then encoded or inserted into a database in bulk.

Parquet is written so that readers can skip parts: every column but the payload has minima and maxima per row group
and page. Numbers, which mostly rise, are stored as differences; texts have a dictionary per row group. Payloads have
none: a search for equal ones would take longer than all the rest. Spark reads these encodings since 3.3.

A database holds the rows in a table of the same name, beside the tables that were written before. It is published only
when complete, so it needs no journal.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from stantools.pipeline.export import text
from stantools.pipeline.export.export_layout import Compression, ExportLayout, Format
from stantools.pipeline.tables.arrow import pa
from stantools.store.durable import fsync_file, unwritable, writing

#: bytes of rows to encode and compress at once
_TEXT_BYTES: Final = 4 << 20
#: maximum rows of a row group
_GROUP_ROWS: Final = 1 << 20
#: Size from which a file is synced on closing, while other threads work; smaller ones are synced together at the end.
_SYNC_FROM: Final = 1 << 20

_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
#: SQLite types other than TEXT, by kind of column.
_SQLITE_TYPES: Final = {"int32": "INTEGER", "int64": "INTEGER", "bool": "INTEGER", "binary": "BLOB"}
#: Memory limit of DuckDB, which takes most of the machine's by default.
_DUCKDB_MEMORY: Final = "512MB"
#: zlib's number for the gzip format
_GZIP: Final = 16 + zlib.MAX_WBITS


class Sink(Protocol):
    """A writer of gathered rows."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> None: ...

    def close(self) -> int:
        """Writes the end of the file; returns the size in bytes."""

    def abandon(self) -> None: ...


class File:
    """A file of batches, which as a context manager closes itself; an existing file is replaced.

    Every method may raise `StoreUnwritableError`. `rows` counts the rows so far, `pending` the bytes of unencoded
    rows.
    """

    def __init__(self, path: Path, layout: ExportLayout) -> None:
        self.path = path
        self.rows = self.pending = 0
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._size: int | None = None
        in_columns = layout.format in (Format.PARQUET, Format.DUCKDB)
        self._full = layout.row_group_bytes if in_columns else _TEXT_BYTES
        with _system_errors(path):
            self._sink = _SINKS.get(layout.format, TextSink)(path, layout)

    def __enter__(self) -> File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes rows with exactly the columns of the file."""
        if not batch.num_rows:
            return
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self.rows += batch.num_rows
        self.pending += batch.nbytes
        if self.pending >= self._full or self._gathered_rows >= _GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self._gathered:
            return
        batches, self._gathered, self._gathered_rows, self.pending = self._gathered, [], 0, 0
        with _system_errors(self.path):
            self._sink.write(batches)

    def close(self) -> int:
        """Writes the pending rows and closes the file; returns its size in bytes."""
        if self._size is None:
            self.flush()
            with _system_errors(self.path):
                self._size = self._sink.close()
                if self._size >= _SYNC_FROM:
                    fsync_file(self.path)
        return self._size

    def abandon(self) -> None:
        """Closes a file that will not be used."""
        self._gathered = []
        with suppress(OSError):  # closing may fail for the same reason
            self._sink.abandon()


class ParquetSink:
    """Writes Parquet, one row group for each list of batches."""

    def __init__(self, path: Path, layout: ExportLayout) -> None:
        import pyarrow.parquet as pq

        schema = layout.file_schema
        self._output = pa.OSFile(os.fspath(path), "wb")
        self._writer = pq.ParquetWriter(self._output, schema, **parquet_settings(schema, layout.compression))

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> int:
        self._writer.close()
        size: int = self._output.tell()
        self._output.close()
        return size

    def abandon(self) -> None:
        """Closes the file without a footer, which pyarrow would write at garbage collection, complaining on stderr."""
        self._writer.is_open = False
        self._output.close()


def parquet_settings(schema: pa.Schema, compression: Compression) -> dict[str, Any]:
    numbers = [f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)]
    return {
        "compression": compression.value,
        "use_dictionary": [f.name for f in schema if pa.types.is_string(f.type)],
        "column_encoding": dict.fromkeys(numbers, _DIFFERENCES),
        "write_statistics": [f.name for f in schema if not pa.types.is_binary(f.type)],
        "write_page_index": True,
    }


class TextSink:
    """Writes ndjson or csv, compressed in pieces, which every program reads as one stream."""

    def __init__(self, path: Path, layout: ExportLayout) -> None:
        self._output = path.open("wb")
        self._layout = layout
        if first := text.heading(layout.file_columns, layout.format):
            self._output.write(compressed(first, layout.compression))

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._output.write(compressed(text.encode(batch, self._layout.format), self._layout.compression))

    def close(self) -> int:
        size = self._output.tell()
        self._output.close()
        return size

    def abandon(self) -> None:
        self._output.close()


class _Database:
    """A database being written; its errors become ours."""

    _END = ""  #: statement that writes the rows still in memory

    def __init__(self, path: Path, connect: Callable[..., Any], error: type[Exception], **settings: Any) -> None:
        if not path.exists():  # otherwise other tables are in it
            path.open("wb").close()  # failure to create it is reported in the system's words
            path.unlink()
        self._path, self._error = path, error
        with self._own_errors():
            self._connection = connect(os.fspath(path), **settings)

    def close(self) -> int:
        """Writes the rows still in memory; returns the size of the file."""
        with self._own_errors():
            self._connection.execute(self._END)
            self._connection.close()
        return self._path.stat().st_size

    def abandon(self) -> None:
        with suppress(self._error):
            self._connection.close()

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            # Of the system's errors, both databases know only a full disk.
            said = (str(error).splitlines() or [type(error).__name__])[0]
            full = errno.ENOSPC if "is full" in said or os.strerror(errno.ENOSPC) in said else 0
            raise unwritable(OSError(full, os.strerror(full) if full else said), self._path) from error


class SqliteSink(_Database):
    """Writes a SQLite database: times as text like in csv, lists as json."""

    _END = "COMMIT"

    def __init__(self, path: Path, layout: ExportLayout) -> None:
        import sqlite3

        super().__init__(path, sqlite3.connect, sqlite3.Error, isolation_level=None)
        schema = layout.file_schema
        columns = ", ".join(f'"{each.name}" {_SQLITE_TYPES.get(text.kind_of(each.type), "TEXT")}' for each in schema)
        self._insert = f"INSERT INTO {layout.table} VALUES ({', '.join('?' * len(schema))})"
        with self._own_errors():
            for each in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                self._connection.execute(f"PRAGMA {each}")
            self._connection.execute(f"CREATE TABLE {layout.table} ({columns})")
            self._connection.execute("BEGIN")

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        with self._own_errors():
            for batch in batches:
                self._connection.executemany(self._insert, zip(*map(text.values, batch.columns), strict=True))


class DuckdbSink(_Database):
    """Writes a DuckDB database with the types of Arrow's columns."""

    _END = "CHECKPOINT"

    def __init__(self, path: Path, layout: ExportLayout) -> None:
        import duckdb

        super().__init__(path, duckdb.connect, duckdb.Error, config={"memory_limit": _DUCKDB_MEMORY})
        self._table = layout.table.value
        self._run(f"CREATE TABLE {self._table} AS FROM gathered", layout.file_schema.empty_table())

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._run(f"INSERT INTO {self._table} FROM gathered", pa.Table.from_batches(batches))

    def _run(self, statement: str, rows: pa.Table) -> None:
        with self._own_errors():
            self._connection.register("gathered", rows)
            self._connection.execute(statement)
            self._connection.unregister("gathered")


_SINKS: Final[dict[Format, Callable[[Path, ExportLayout], Sink]]] = {
    Format.PARQUET: ParquetSink,
    Format.SQLITE: SqliteSink,
    Format.DUCKDB: DuckdbSink,
}


def compressed(data: bytes | memoryview, compression: Compression) -> Any:
    """Compresses a piece by itself; concatenated pieces are a valid file."""
    if compression is Compression.NONE:
        return data
    if compression is Compression.GZIP:
        return zlib.compress(data, wbits=_GZIP)
    return pa.Codec(compression.value).compress(pa.py_buffer(data))


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Converts errors as `writing` does, with the system's words instead of Arrow's."""
    with writing(path):
        try:
            yield
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(error.errno, os.strerror(error.errno)) from error
