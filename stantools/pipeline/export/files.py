"""One file of an export. Rows are gathered first, then encoded many at a time.

Parquet is written so that readers can leave parts out: everything but the payloads has minima and maxima for each row
group and page. Numbers, which mostly rise, are stored as differences, texts once for each row group. Payloads have no
dictionary either: looking for equal ones would take longer than all the rest. Spark reads these encodings since 3.3.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol

from stantools.pipeline.export import text
from stantools.pipeline.export.model import Compression, Format, Layout
from stantools.pipeline.tables.arrow import pa
from stantools.store.durable import fsync_file, writing

#: So many bytes of rows are turned into text, and compressed, at once.
_TEXT_BYTES: Final = 4 << 20
#: Rows of a row group, at most.
_GROUP_ROWS: Final = 1 << 20
#: Larger files are made durable when they are closed, while other threads go on; small ones all at the end.
_SYNC_FROM: Final = 1 << 20

_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
#: What zlib calls the format of gzip.
_GZIP: Final = 16 + zlib.MAX_WBITS


class Sink(Protocol):
    """Takes gathered rows."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Writes rows."""

    def close(self) -> None:
        """Writes what comes at the end."""

    def abandon(self) -> None:
        """Lets it end without one."""


class File:
    """A file that takes batches; a context manager that closes it.

    Args:
        path: Where it is; what is there is replaced.
        layout: What it holds.

    Attributes:
        rows: Rows so far.
        pending: Bytes of rows that are not encoded yet.

    Raises:
        StoreUnwritableError: It cannot be written; from every method.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.rows = self.pending = 0
        self._layout = layout
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._size: int | None = None
        self._full = layout.row_group_bytes if layout.format is Format.PARQUET else _TEXT_BYTES
        with _writing(path):
            self._output: Any
            self._sink: Sink
            if layout.format is Format.PARQUET:
                self._output = pa.OSFile(os.fspath(path), "wb")
                self._sink = ParquetSink(self._output, layout)
            else:
                self._output = path.open("wb")
                self._sink = TextSink(self._output, layout)

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
        """Takes rows that have exactly the columns of the file."""
        if not batch.num_rows:
            return
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self.rows += batch.num_rows
        self.pending += batch.nbytes
        if self.pending >= self._full or self._gathered_rows >= _GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that are still waiting, as a row group."""
        if not self._gathered:
            return
        batches, self._gathered, self._gathered_rows, self.pending = self._gathered, [], 0, 0
        with _writing(self.path):
            self._sink.write(batches)

    def close(self) -> int:
        """Writes what is left and closes the file.

        Returns:
            Its size in bytes.
        """
        if self._size is None:
            self.flush()
            with _writing(self.path):
                self._sink.close()
                self._size = self._output.tell()
                self._output.close()
                if self._size >= _SYNC_FROM:
                    fsync_file(self.path)
        return self._size

    def abandon(self) -> None:
        """Closes a file that nobody will look at."""
        self._gathered = []
        self._sink.abandon()
        with suppress(OSError):  # what made us give up may be why it cannot be closed
            self._output.close()


class ParquetSink:
    """Writes Parquet, a row group for what is gathered.

    Args:
        output: Open file.
        layout: What it holds.
    """

    def __init__(self, output: pa.NativeFile, layout: Layout) -> None:
        import pyarrow.parquet as pq

        schema = layout.file_schema
        self._writer = pq.ParquetWriter(output, schema, **parquet_settings(schema, layout.compression))

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Writes a row group.

        Raises:
            OSError: It cannot be written.
        """
        table = pa.Table.from_batches(batches)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> None:
        """Writes the footer.

        Raises:
            OSError: It cannot be written.
        """
        self._writer.close()

    def abandon(self) -> None:
        """Lets it end without a footer, which it would write, and complain on stderr, when it is collected."""
        self._writer.is_open = False


def parquet_settings(schema: pa.Schema, compression: Compression) -> dict[str, Any]:
    """Returns the settings of pyarrow's writer for a schema."""
    numbers = [f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)]
    return {
        "compression": compression.value,
        "use_dictionary": [f.name for f in schema if pa.types.is_string(f.type)],
        "column_encoding": dict.fromkeys(numbers, _DIFFERENCES),
        "write_statistics": [f.name for f in schema if not pa.types.is_binary(f.type)],
        "write_page_index": True,
    }


class TextSink:
    """Writes ndjson or csv, compressed piece by piece, which every program reads as one.

    Args:
        output: Open file.
        layout: What it holds.
    """

    def __init__(self, output: BinaryIO, layout: Layout) -> None:
        self._output = output
        self._layout = layout
        if first := text.heading(layout.file_schema, layout.format):
            output.write(compressed(first, layout.compression))

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Writes rows.

        Raises:
            OSError: They cannot be written.
        """
        for batch in batches:
            self._output.write(compressed(text.encode(batch, self._layout.format), self._layout.compression))

    def close(self) -> None:
        """Does nothing: text has no end."""

    def abandon(self) -> None:
        """Does nothing either."""


def compressed(data: bytes | memoryview, compression: Compression) -> Any:
    """Compresses a piece by itself; pieces one after the other are a valid file."""
    if compression is Compression.NONE:
        return data
    if compression is Compression.GZIP:
        return zlib.compress(data, wbits=_GZIP)
    return pa.Codec(compression.value).compress(pa.py_buffer(data))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns errors into ours as `writing` does, in the system's words instead of Arrow's."""
    with writing(path):
        try:
            yield
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(error.errno, os.strerror(error.errno)) from error
