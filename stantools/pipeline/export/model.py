"""What is exported, into what kind of files; values that can be sent to another process or machine."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stantools.errors import UsageError
from stantools.pipeline.tables.model import Failed, Table
from stantools.store.sublog import SubStatus

if TYPE_CHECKING:
    from stantools.pipeline.tables.arrow import pa

#: Name of the directory level that is made from `timestamp`.
DATE = "date"


class Format(enum.StrEnum):
    """Kinds of files."""

    PARQUET = "parquet"
    NDJSON = "ndjson"
    CSV = "csv"
    SQLITE = "sqlite"
    DUCKDB = "duckdb"


class Compression(enum.StrEnum):
    """How files are compressed: columns within Parquet, text as a whole."""

    NONE = "none"
    SNAPPY = "snappy"
    ZSTD = "zstd"
    GZIP = "gzip"


#: What a format can be compressed with; the first is what is taken if nothing is said.
COMPRESSIONS = {
    Format.PARQUET: (Compression.SNAPPY, Compression.ZSTD, Compression.GZIP, Compression.NONE),
    Format.NDJSON: (Compression.NONE, Compression.ZSTD, Compression.GZIP),
    Format.CSV: (Compression.NONE, Compression.ZSTD, Compression.GZIP),
    Format.SQLITE: (Compression.NONE,),
    Format.DUCKDB: (Compression.NONE,),
}

#: Files of lines, which can be compressed as a whole and written to a stream.
TEXTS = (Format.NDJSON, Format.CSV)
#: Files that hold the table under its name, always one for all of it.
DATABASES = (Format.SQLITE, Format.DUCKDB)
#: How the formats are called in sentences.
NAMES = {Format.PARQUET: "Parquet", Format.SQLITE: "SQLite", Format.DUCKDB: "DuckDB"}

_TEXT_SUFFIX = {Compression.NONE: "", Compression.ZSTD: ".zst", Compression.GZIP: ".gz"}

#: Columns by which rows can go into directories, of the tables that have them.
LEVELS = ("store", "channel", DATE)

#: Table -> the column that says whether a row marks damage, and what it says if not.
_HEALTH: dict[Table, tuple[str, ...]] = {
    Table.MESSAGES: ("status", "ok"),
    Table.RECORDS: ("status", "ok"),
    Table.SUBSCRIPTIONS: ("status", *SubStatus),
    Table.CLIENTS: ("status", "ok"),
    Table.FINDINGS: ("severity", "info"),
    Table.SLICES: ("problems", "ok"),
}


@dataclass(frozen=True)
class Layout:
    """What is in the files of an export."""

    table: Table = Table.MESSAGES
    format: Format = Format.PARQUET  #: what kind of files
    compression: Compression = Compression.SNAPPY  #: how they are compressed
    #: Which columns, in this order; all if empty. Those of `by` are in the names of directories instead.
    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()  #: the levels of directories, of `LEVELS`; none puts all files into one
    row_group_bytes: int = 32 << 20  #: a row group of Parquet holds so many bytes, about, before they are encoded

    def check(self) -> None:
        """Checks that it makes sense.

        Raises:
            UsageError: It does not.
        """
        from stantools.pipeline.tables.options import check_columns

        possible = COMPRESSIONS[self.format]
        if self.compression not in possible:
            raise UsageError(
                f"{self.format} files cannot be compressed with {self.compression}",
                f"choose one of {', '.join(possible)}",
            )
        check_columns(self.table, self.columns)
        have = self._all_columns()
        levels = [name for name in LEVELS if _source(name) in have]
        for name in self.by:
            if name not in levels:
                raise UsageError(
                    f"rows of the table {self.table} cannot be divided by {name!r}",
                    f"choose from {', '.join(levels)}" if levels else "leave --by out",
                )
        if len(set(self.by)) < len(self.by):
            raise UsageError(f"--by {','.join(self.by)} names a level twice", "name it once")
        if not self.file_columns:
            raise UsageError(
                "no column is left for the files: those of --by are names of directories", "ask for more columns"
            )

    def _all_columns(self) -> tuple[str, ...]:
        from stantools.pipeline.tables.schema import SCHEMAS

        return tuple(SCHEMAS[self.table].names)

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns that are in the files."""
        return tuple(name for name in self.columns or self._all_columns() if name not in self.by)

    def as_json(self) -> dict[str, Any]:
        """Returns it as a plan and a manifest say it."""
        return {
            "table": self.table.value,
            "format": self.format.value,
            "compression": self.compression.value,
            "columns": list(self.file_columns),
            "by": list(self.by),
        }

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that have to be read: also those of directories, and the one that reports damage."""
        needed = [*self.file_columns, *map(_source, self.by), *self.health_columns]
        return tuple(name for name in self._all_columns() if name in needed)

    @property
    def health_columns(self) -> tuple[str, ...]:
        """The column that reports damage."""
        return _HEALTH[self.table][:1]

    @property
    def good(self) -> tuple[str, ...]:
        """What the column that reports damage says where there is none."""
        return tuple(str(each) for each in _HEALTH[self.table][1:])

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of the files."""
        from stantools.pipeline.tables.schema import schema_of

        return schema_of(self.table, self.file_columns)

    @property
    def suffix(self) -> str:
        """How names of files end."""
        if self.format is Format.PARQUET:
            return ".parquet"
        return f".{self.format}{_TEXT_SUFFIX[self.compression]}"


def _source(level: str) -> str:
    return "timestamp" if level == DATE else level


@dataclass(frozen=True)
class WrittenFile:
    """A file of an export."""

    path: str  #: relative to the directory of the export
    rows: int  #: rows in it
    size: int  #: its size in bytes


@dataclass
class Written:
    """What was written."""

    files: list[WrittenFile] = field(default_factory=list)
    rows: int = 0
    tally: Counter[str] = field(default_factory=Counter)  #: what the rows say of damage -> how many

    def count(self, table: Table, batch: pa.RecordBatch) -> None:
        """Counts the rows of a batch."""
        self.rows += batch.num_rows
        self.tally.update(_tell(table, batch))

    def add(self, other: Written) -> None:
        """Adds what another task has written."""
        self.files += other.files
        self.rows += other.rows
        self.tally.update(other.tally)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def damaged(self, table: Table) -> int:
        """Returns how many rows mark damage."""
        good = _HEALTH[table][1:]
        return sum(count for what, count in self.tally.items() if what not in good)


@dataclass
class Result:
    """The result of an export."""

    target: str | None  #: where it is; None for standard output
    layout: Layout  #: what is in the files
    written: Written  #: what was written
    unreadable: list[Failed]  #: what could not be read

    @property
    def clean(self) -> bool:
        """Everything could be read, and nothing of it was damaged."""
        return not self.unreadable and not self.written.damaged(self.layout.table)


def _tell(table: Table, batch: pa.RecordBatch) -> dict[str, int]:
    from stantools.pipeline.tables.arrow import pc

    name, good = _HEALTH[table][:2]
    column = batch.column(name)
    if table is Table.SLICES:
        return Counter(name if problems else good for problems in column.to_pylist())
    # Nearly always nothing else.
    if pc and len(column) and pc.all(pc.equal(column, good), skip_nulls=False).as_py():
        return {good: len(column)}
    return Counter(map(str, column.to_pylist()))
