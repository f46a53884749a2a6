"""Request of an export, as the user gives it: target, table, selection, file format."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stantools.errors import StantoolsError, UsageError
from stantools.escaping import shell_word
from stantools.install_hints import install_command
from stantools.options import ARCHIVED, CHANNELS, SEQUENCES, SINCE, SIZE, UNTIL, option
from stantools.pipeline.tables.model import STORE_TABLES, FailedRead, Mode, SlicePiece, SqlPart, TableName
from stantools.pipeline.tables.option_texts import listed

if TYPE_CHECKING:
    from stantools.pipeline.export.export_layout import ExportLayout
    from stantools.pipeline.tables.planning import ReadPlan
    from stantools.pipeline.tables.table_options import TableOptions

#: target for standard output
STDOUT: Final = "-"
#: every table, in one database
ALL_TABLES: Final = "all"
#: Format and compression implied by a file name's ending.
_FORMATS: Final = {
    ".parquet": "parquet",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".duckdb": "duckdb",
}
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
#: Ending of a file name; a number, as in a date, is not an ending.
_ENDING: Final = re.compile(r"\.(?!\d+$)\w+")


@dataclass(frozen=True)
class ExportOptions:
    to: str = option(
        "A new directory of files; a single file, if the name ends in .parquet, .ndjson, .csv, .sqlite or .duckdb, "
        "or another ending and --format are given; or stdout.",
        default="",
        required=True,
        metavar="DIR|FILE|-",
    )
    format: str | None = option(
        "Kind of files; by default from the name of --to, otherwise parquet. sqlite and duckdb are databases.",
        choices=("parquet", "ndjson", "csv", "sqlite", "duckdb"),
    )
    table: str = option(
        "The table to export; all is every table, in one database.",
        default=TableName.MESSAGES.value,
        choices=(*(each.value for each in TableName), ALL_TABLES),
    )
    columns: str = option("Only these columns, in this order; default: all.", default="", metavar="A,B,…")
    by: str = option(
        "Directories such as channel=orders/date=2026-11-21: store, channel, date, separated by commas.",
        default="",
        metavar="LEVELS",
    )
    compression: str | None = option(
        "Default: snappy in Parquet files, none for text files.", choices=("snappy", "zstd", "gzip", "none")
    )
    file_size: int = SIZE.field(help="Approximate bytes of the store per file.", default=128 << 20, written="128MB")
    mode: str = option(
        "Damaged ranges: as rows with a status, left out, or an error.",
        default=Mode.PERMISSIVE.value,
        choices=tuple(each.value for each in Mode),
        any_case=True,
    )
    channels: tuple[str, ...] = CHANNELS.field()
    sequences: tuple[int | None, int | None] | None = SEQUENCES.field(
        help="Only these sequences of each channel, both ends included."
    )
    since: int | None = SINCE.field()
    until: int | None = UNTIL.field()
    archived: bool = ARCHIVED.field(help="Read .bak slices as well.")
    overwrite: bool = option("Replace an earlier export once the new one is complete.", default=False)
    directory: bool = False  #: treat the target as a directory, whatever its name

    @property
    def target(self) -> Path:
        return Path(self.to)

    @property
    def single(self) -> bool:
        """True for a single file or stdout; a slash at the end of the name means a directory."""
        if self.to == STDOUT:
            return True
        if self.directory or self.to.endswith("/") or self.target.is_dir():
            return False
        return self.format in ("sqlite", "duckdb") or bool(_ENDING.fullmatch(self.target.suffix))

    @property
    def tables(self) -> list[ExportOptions]:
        """The options of each table; raises `UsageError` for all tables in anything but a database."""
        if self.table != ALL_TABLES:
            return [self]
        each = [replace(self, table=table.value) for table in STORE_TABLES]
        if not self.single or self.to == STDOUT or each[0].layout().format not in ("sqlite", "duckdb"):
            remedy = "name a database: --to ALL.duckdb or --to ALL.sqlite; or export one table after the other"
            raise UsageError(f"--table {ALL_TABLES} needs a file for several tables", remedy)
        if self.columns:
            raise UsageError("--columns chooses columns of one table", "leave it out, or name a table")
        return each

    def layout(self) -> ExportLayout:
        """Returns the content of the files; raises `StantoolsError` if an optional package is missing."""
        if not self.to.strip("/"):
            raise UsageError(f"--to {self.to!r}: is not a directory of its own", "name a new directory or file, or -")
        from stantools.pipeline.export.export_layout import (
            COMPRESSIONS,
            DATABASES,
            NAMES,
            TEXTS,
            Compression,
            ExportLayout,
            Format,
        )
        from stantools.pipeline.tables.table_options import check_columns

        *_, before, last = ["", "", *Path(self.to.lower()).suffixes]
        named_format, named_compression = _FORMATS.get(last), None
        if last in _COMPRESSIONS and _FORMATS.get(before) in ("ndjson", "csv"):
            named_format, named_compression = _FORMATS[before], _COMPRESSIONS[last]
        if self.single and self.to != STDOUT and not self.format and not named_format:
            raise UsageError(
                f"--to {self.to}: {self.target.suffix} implies no format",
                f"end it in one of {', '.join(_FORMATS)}, or add --format; a directory of this name is --to {self.to}/",
            )
        if self.format and named_format and self.single and self.to != STDOUT and self.format != named_format:
            raise UsageError(
                f"--to {self.to}: the name implies {named_format}, but --format is {self.format}", "leave --format out"
            )
        format = Format(self.format or named_format or (Format.NDJSON if self.to == STDOUT else Format.PARQUET))
        if self.to == STDOUT and format not in TEXTS:
            raise UsageError(
                f"{NAMES[format]} cannot be written to a stream", "name a file or a directory, or choose ndjson"
            )
        if format in DATABASES and not self.single:
            plain = self.to.rstrip("/").removesuffix(f".{format}")
            raise UsageError(
                f"--to {self.to}: is a directory, but {NAMES[format]} is one file, written by one process",
                f"use stantools export, and name a file: --to {shell_word(f'{plain}.{format}')}",
            )
        if named_compression and self.single and self.compression not in (None, named_compression):
            raise UsageError(
                f"--to {self.to}: the name implies {named_compression}, but --compression is {self.compression}",
                "leave --compression out",
            )
        told = self.compression or (named_compression if self.single else None)
        compression = Compression(told) if told else COMPRESSIONS[format][0]
        table = TableName(self.table)
        layout = ExportLayout(table, format, compression, check_columns(table, listed(self.columns)), listed(self.by))
        if layout.by and self.single:
            raise UsageError("--by makes directories, but --to names a single file", "name a directory: --to DIR/")
        layout.check()
        otherwise = "choose csv or ndjson, plain or with gzip"
        if table is not TableName.MESSAGES:
            require("pyarrow", f"the table {table}", "export messages as csv or ndjson")
        elif format not in TEXTS:
            require("pyarrow", NAMES[format], otherwise)
        elif compression is Compression.ZSTD:
            require("pyarrow", "zstd compression", otherwise)
        if format is Format.DUCKDB:
            require("duckdb", "a DuckDB database", "choose sqlite, which needs no package")
        return layout

    def planned(self, stores: tuple[str, ...], table_options: TableOptions, tasks: int) -> Export:
        """Plans the export of the stores (paths, patterns or URLs).

        `tasks` is the least number of parts if there may be several files. Raises `StoreUnreadableError` if nothing
        can be read, `StantoolsError` if an optional package is missing.
        """
        from stantools.pipeline.tables.planning import plan
        from stantools.pipeline.tables.table_options import fitting

        table = fitting(replace(table_options.of(stores), table=TableName(self.table))).table
        if table != self.table:
            return replace(self, table=table.value).planned(stores, table_options, tasks)
        layout = self.layout()
        options = self._options(stores, table_options, layout, 1 if self.single else tasks)
        export = Export(self, layout, options, plan(options))
        export.check_channels()
        return export

    def _options(
        self, stores: tuple[str, ...], table_options: TableOptions, layout: ExportLayout, tasks: int
    ) -> TableOptions:
        from stantools.store.ranges import Bounds

        first, last = self.sequences or (None, None)
        if (first or 0) < 0 or (last or 0) < 0:
            raise UsageError(
                "--seq: counts from the end, which differs for each channel",
                "count from the start, such as 10:20, 10: or :20",
            )
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise UsageError("--since and --until select an empty range", "--until must be later than --since")
        options = table_options.of(
            stores,
            table=layout.table,
            columns=layout.read_columns,
            mode=Mode(self.mode),
            channels=self.channels,
            bounds=Bounds(first, last, self.since, self.until),
            archived=self.archived,
            partition_bytes=self.file_size,
            partitions=tasks,
        )
        bounded = options.bounds != Bounds() or self.archived
        of_messages = (TableName.MESSAGES, TableName.SLICES, TableName.RECORDS, TableName.STREAM_MESSAGES)
        if bounded and layout.table not in of_messages:
            raise UsageError(
                f"--seq, --since, --until and --archived select messages; the table {layout.table} has none",
                "leave them out",
            )
        return options


def require(package: str, feature: str, alternative: str = "") -> None:
    """Raises `StantoolsError` if `feature` needs a package that is not installed; does not load the package."""
    if importlib.util.find_spec(package) is None:
        install = f"install it: {install_command(package)}"
        raise StantoolsError(
            f"{feature} needs {package}, which is not installed",
            f"{install}; or {alternative}" if alternative else install,
        )


@dataclass(frozen=True)
class Export:
    export_options: ExportOptions
    layout: ExportLayout
    options: TableOptions
    plan: ReadPlan

    @property
    def size(self) -> int:
        return sum(split.cost for split in self.plan.splits)

    @property
    def unreadable(self) -> list[FailedRead]:
        """All that cannot be read, each once."""
        return list(dict.fromkeys(self.plan.unreadable))

    def check_target(self) -> None:
        """Checks the target before anything is read.

        Raises `StoreUnwritableError` if it exists or has no parent directory, `RefusedError` if it is in a store or
        would replace something other than an export.
        """
        from stantools.pipeline.export import targets

        export_options = self.export_options
        if export_options.to == STDOUT or "://" in export_options.to:
            return
        targets.check_outside(export_options.target, self.plan)
        if export_options.single:
            targets.check_file(export_options.target, overwrite=export_options.overwrite)
        else:
            targets.check_directory(export_options.target, overwrite=export_options.overwrite)

    def check_channels(self) -> None:
        """Raises `UsageError` if the channel patterns match no channel."""
        options = self.options
        work = (part for split in self.plan.splits for part in split.parts)
        if not options.channels or any(isinstance(part, SlicePiece) or part.channel is not None for part in work):
            return
        if any(isinstance(part, SqlPart) for split in self.plan.splits for part in split.parts):
            raise options.no_channel()
        from stantools.pipeline.tables.discovery import discover

        # They may match, and the bounds exclude everything.
        stores, _ = discover(replace(options, table=TableName.SLICES))
        if not any(True for store in stores for _ in store.channels(options.channels)):
            raise options.no_channel()
