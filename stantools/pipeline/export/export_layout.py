"""Table, columns and file format of an export; values that can be sent to another process or machine."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stantools.errors import UsageError
from stantools.pipeline.tables.model import FailedRead, TableName
from stantools.pipeline.tables.schema import column_names
from stantools.store.sublog import SubStatus

if TYPE_CHECKING:
    import pyarrow as pa

#: Directory level made from the moment of a message, and the columns that have it.
DATE = "date"
MOMENTS = ("time", "timestamp")


class Format(enum.StrEnum):
    PARQUET = "parquet"
    NDJSON = "ndjson"
    CSV = "csv"
    SQLITE = "sqlite"
    DUCKDB = "duckdb"


class Compression(enum.StrEnum):
    """Compression: of columns within Parquet, of text files as a whole."""

    NONE = "none"
    SNAPPY = "snappy"
    ZSTD = "zstd"
    GZIP = "gzip"


#: Compressions of each format, the default first.
COMPRESSIONS = {
    Format.PARQUET: (Compression.SNAPPY, Compression.ZSTD, Compression.GZIP, Compression.NONE),
    Format.NDJSON: (Compression.NONE, Compression.ZSTD, Compression.GZIP),
    Format.CSV: (Compression.NONE, Compression.ZSTD, Compression.GZIP),
    Format.SQLITE: (Compression.NONE,),
    Format.DUCKDB: (Compression.NONE,),
}

#: Files of lines, which can be compressed as a whole and written to a stream.
TEXTS = (Format.NDJSON, Format.CSV)
#: Files that hold the table under its name, always one file for all of it.
DATABASES = (Format.SQLITE, Format.DUCKDB)
#: Names of formats in sentences.
NAMES = {Format.PARQUET: "Parquet", Format.SQLITE: "SQLite", Format.DUCKDB: "DuckDB"}

_TEXT_SUFFIX = {Compression.NONE: "", Compression.ZSTD: ".zst", Compression.GZIP: ".gz"}

#: Columns that can divide rows into directories, in tables that have them.
LEVELS = ("store", "channel", "account", "stream", DATE)

#: The column that marks damage in each table, and its values for intact rows.
_HEALTH: dict[TableName, tuple[str, ...]] = {
    TableName.MESSAGES: ("status", "ok"),
    TableName.RECORDS: ("status", "ok"),
    TableName.SUBSCRIPTIONS: ("status", *SubStatus),
    TableName.CLIENTS: ("status", "ok"),
    TableName.FINDINGS: ("severity", "info"),
    TableName.SLICES: ("problems", "ok"),
    TableName.STREAM_MESSAGES: ("state", "ok"),
}


@dataclass(frozen=True)
class ExportLayout:
    """Content of the files of an export."""

    table: TableName = TableName.MESSAGES
    format: Format = Format.PARQUET
    compression: Compression = Compression.SNAPPY
    #: Columns in this order; all if empty. Those of `by` are in the names of directories instead.
    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()  #: directory levels, of `LEVELS`; none puts all files into one directory
    row_group_bytes: int = 32 << 20  #: approximate bytes of a Parquet row group before encoding

    def check(self) -> None:
        """Raises `UsageError` if the parts of the layout contradict each other."""
        from stantools.pipeline.tables.table_options import check_columns

        possible = COMPRESSIONS[self.format]
        if self.compression not in possible:
            raise UsageError(
                f"{self.format} files cannot be compressed with {self.compression}",
                f"choose one of {', '.join(possible)}",
            )
        check_columns(self.table, self.columns)
        have = self._all_columns()
        levels = [name for name in LEVELS if self._source(name) in have]
        for name in self.by:
            if name not in levels:
                raise UsageError(
                    f"rows of the table {self.table} cannot be divided by {name!r}",
                    f"choose from {', '.join(levels)}" if levels else "leave --by out",
                )
        if len(set(self.by)) < len(self.by):
            raise UsageError(f"--by {','.join(self.by)} repeats a level", "name it once")
        if not self.file_columns:
            raise UsageError(
                "no column is left for the files: the columns of --by become directory names", "add columns"
            )

    def _all_columns(self) -> tuple[str, ...]:
        return column_names(self.table)

    def _source(self, level: str) -> str:
        """Returns the column that a level of directories is made from."""
        return (
            next(each for each in MOMENTS if each in self._all_columns() or each == MOMENTS[-1])
            if (level == DATE)
            else level
        )

    @property
    def file_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns or self._all_columns() if name not in self.by)

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.table.value,
            "format": self.format.value,
            "compression": self.compression.value,
            "columns": list(self.file_columns),
            "by": list(self.by),
        }

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Columns to read: those of files and directories, and the one that marks damage."""
        needed = [*self.file_columns, *map(self._source, self.by), *self.health_columns]
        return tuple(name for name in self._all_columns() if name in needed)

    @property
    def health_columns(self) -> tuple[str, ...]:
        """The column that marks damage, as a tuple; empty if the table has none."""
        return _HEALTH[self.table][:1]

    @property
    def good(self) -> tuple[str, ...]:
        """Values of that column for intact rows."""
        return tuple(str(each) for each in _HEALTH[self.table][1:])

    @property
    def file_schema(self) -> pa.Schema:
        from stantools.pipeline.tables.schema import schema_of

        return schema_of(self.table, self.file_columns)

    @property
    def suffix(self) -> str:
        if self.format is Format.PARQUET:
            return ".parquet"
        return f".{self.format}{_TEXT_SUFFIX[self.compression]}"


@dataclass(frozen=True)
class WrittenFile:
    path: str  #: relative to the directory of the export
    rows: int
    size: int


@dataclass
class ExportedPart:
    files: list[WrittenFile] = field(default_factory=list)
    rows: int = 0
    tally: Counter[str] = field(default_factory=Counter)  #: rows by value of the column that marks damage

    def count(self, table: TableName, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.tally.update(_tell(table, batch))

    def add(self, other: ExportedPart) -> None:
        self.files += other.files
        self.rows += other.rows
        self.tally.update(other.tally)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def damaged(self, table: TableName) -> int:
        good = _HEALTH[table][1:]
        return sum(count for what, count in self.tally.items() if what not in good)


@dataclass
class Result:
    target: str | None  #: None for standard output
    layout: ExportLayout  #: content of the files
    written: ExportedPart
    unreadable: list[FailedRead]  #: everything that could not be read

    @property
    def clean(self) -> bool:
        """True if everything could be read and nothing is damaged."""
        return not self.unreadable and not self.written.damaged(self.layout.table)


def _tell(table: TableName, batch: pa.RecordBatch) -> dict[str, int]:
    from stantools.pipeline.tables.arrow import pc
    from stantools.pipeline.tables.value_rows import ValueRows

    name, good = _HEALTH[table][:2]
    if isinstance(batch, ValueRows):
        return Counter(batch.columns[name])
    column = batch.column(name)
    if table is TableName.SLICES:
        return Counter(name if problems else good for problems in column.to_pylist())
    # The common case: all rows are intact.
    if len(column) and pc.all(pc.equal(column, good), skip_nulls=False).as_py():
        return {good: len(column)}
    return Counter(map(str, column.to_pylist()))
