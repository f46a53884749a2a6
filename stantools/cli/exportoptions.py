"""What is exported, into what kind of files: the options of `export` and `pipeline export`."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stantools.cli import console
from stantools.cli.options import channel_option, time_options
from stantools.cli.output import print_json
from stantools.cli.pipelineoptions import Reading
from stantools.cli.values import SequenceRange, Size, format_size
from stantools.errors import ExitCode, StantoolsError, UsageError
from stantools.pipeline.tables.model import Mode, Piece, Table

if TYPE_CHECKING:
    from stantools.pipeline.export.model import Layout, Result
    from stantools.pipeline.tables.model import Unreadable
    from stantools.pipeline.tables.options import TableOptions
    from stantools.pipeline.tables.planning import Plan

_F = TypeVar("_F", bound=Callable[..., Any])

STDOUT = "-"
#: How a name that ends so is to be written.
_FORMATS = {".parquet": "parquet", ".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv"}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_MANY = 20


@dataclass(frozen=True)
class Exporting:
    """What the user asked for.

    Attributes:
        to: A directory, a file, or `-`.
        table: The table.
        format: Kind of files; None if it follows from the name.
        compression: None if it follows from the name or the format.
        columns: Columns with commas.
        by: Levels of directories with commas.
        file_size: Bytes of input for one file, about.
        mode: What to do with damage.
        channels: Patterns.
        sequences: Which sequences.
        since: Not older.
        until: Older than this.
        archived: Take `.bak` slices as well.
        overwrite: Replace an earlier export.
    """

    to: str
    table: str
    format: str | None
    compression: str | None
    columns: str
    by: str
    file_size: int
    mode: str
    channels: tuple[str, ...]
    sequences: tuple[int | None, int | None] | None
    since: int | None
    until: int | None
    archived: bool
    overwrite: bool

    @property
    def target(self) -> Path:
        """Where it goes."""
        return Path(self.to)

    @property
    def single(self) -> bool:
        """It is a single file, or stdout; not a directory, which a slash at the end makes clear."""
        return self.to == STDOUT or (not self.to.endswith("/") and self._told()[0] is not None and not self._is_there())

    def _is_there(self) -> bool:
        """There is a directory of this name."""
        return self.target.is_dir()

    def _told(self) -> tuple[str | None, str | None]:
        """Returns the format and the compression that the name tells."""
        *_, before, last = ["", "", *Path(self.to.lower()).suffixes]
        if last in _COMPRESSIONS and before in _FORMATS and before != ".parquet":
            return _FORMATS[before], _COMPRESSIONS[last]
        return _FORMATS.get(last), None

    def layout(self) -> Layout:
        """Returns what is to be in the files.

        Raises:
            UsageError: It makes no sense, or pyarrow is missing.
        """
        require_arrow()
        if not self.to.strip("/"):
            raise UsageError(f"--to {self.to!r}: names no directory of its own", "name a new directory or file, or -")
        from stantools.pipeline.export.model import COMPRESSIONS, Compression, Format, Layout
        from stantools.pipeline.tables.parse import check_columns

        named_format, named_compression = self._told()
        if self.format and named_format and self.single and self.to != STDOUT and self.format != named_format:
            raise UsageError(
                f"--to {self.to}: is named as {named_format}, and --format says {self.format}", "leave --format out"
            )
        format = Format(self.format or named_format or (Format.NDJSON if self.to == STDOUT else Format.PARQUET))
        if self.to == STDOUT and format is Format.PARQUET:
            raise UsageError("Parquet cannot be written to a stream", "name a file or a directory, or choose ndjson")
        if named_compression and self.single and self.compression not in (None, named_compression):
            raise UsageError(
                f"--to {self.to}: is named as {named_compression}, and --compression says {self.compression}",
                "leave --compression out",
            )
        told = self.compression or (named_compression if self.single else None)
        compression = Compression(told) if told else COMPRESSIONS[format][0]
        table = Table(self.table)
        layout = Layout(table, format, compression, check_columns(table, _listed(self.columns)), _listed(self.by))
        if layout.by and self.single:
            raise UsageError("--by makes directories, and --to names a single file", "name a directory: --to DIR/")
        layout.check()
        return layout

    def options(self, stores: tuple[str, ...], reading: Reading, layout: Layout, tasks: int) -> TableOptions:
        """Returns how the table is to be read.

        Args:
            stores: Paths, patterns or URLs.
            reading: How files are read.
            layout: What is to be in the files.
            tasks: Parts there shall be at least.

        Raises:
            UsageError: The selection makes no sense.
        """
        from stantools.pipeline.tables.options import Bounds

        first, last = self.sequences or (None, None)
        if (first or 0) < 0 or (last or 0) < 0:
            raise UsageError(
                "--seq: counts from the end, and every channel has another end",
                "give sequences that count from the start, such as 10:20, 10: or :20",
            )
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise UsageError("--since and --until leave no time in between", "--until has to be later than --since")
        options = reading.table(
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
        if bounded and layout.table not in (Table.MESSAGES, Table.SLICES, Table.RECORDS):
            raise UsageError(
                f"--seq, --since, --until and --archived choose messages; the table {layout.table} has none",
                "leave them out",
            )
        return options


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


def export_options(function: _F) -> _F:
    """Adds the options of what is exported and passes them on as `exporting: Exporting`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        fields = Exporting.__dataclass_fields__
        values["exporting"] = Exporting(**{name: values.pop(name) for name in fields})
        return function(*args, **values)

    decorated: Any = wrapper
    for option in reversed(list(_options())):
        decorated = option(decorated)
    return cast(_F, decorated)


def _options() -> Iterator[Callable[[Any], Any]]:
    yield click.option(
        "--to",
        required=True,
        metavar="DIR|FILE|-",
        help="A new directory of files; a single file, if the name ends in .parquet, .ndjson or .csv; or stdout.",
    )
    yield click.option(
        "--format",
        type=click.Choice(["parquet", "ndjson", "csv"]),
        help="Kind of files; what the name of --to says if not given, else parquet.",
    )
    yield click.option(
        "--table",
        type=click.Choice([each.value for each in Table]),
        default="messages",
        show_default=True,
        help="Which table.",
    )
    yield click.option(
        "--columns", default="", metavar="A,B,…", help="Only these columns, in this order; all if not given."
    )
    yield click.option(
        "--by",
        default="",
        metavar="LEVELS",
        help="Directories such as channel=orders/date=2026-11-21: store, channel, date, with commas.",
    )
    yield click.option(
        "--compression",
        type=click.Choice(["snappy", "zstd", "gzip", "none"]),
        help="snappy in Parquet files if not given; none of text files.",
    )
    yield click.option(
        "--file-size",
        type=Size(),
        default="128MB",
        show_default=True,
        metavar="SIZE",
        help="Bytes of the store that become one file, about.",
    )
    yield click.option(
        "--mode",
        type=click.Choice([each.value for each in Mode], case_sensitive=False),
        default="PERMISSIVE",
        show_default=True,
        help="Damaged places: as rows with a status, left out, or the end of it.",
    )
    yield channel_option
    yield click.option(
        "--seq",
        "sequences",
        type=SequenceRange(),
        metavar="A:B",
        help="Only these sequences of each channel, both ends included.",
    )
    yield time_options
    yield click.option("--archived", is_flag=True, help="Read .bak slices as well.")
    yield click.option("--overwrite", is_flag=True, help="Replace an earlier export, when the new one is complete.")


def require_arrow() -> None:
    """Checks that pyarrow is installed, without loading it.

    Raises:
        StantoolsError: It is not.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise StantoolsError(
            "exporting needs pyarrow, which is not installed", "install the extra: pip install 'stantools[arrow]'"
        )


def check_target(exporting: Exporting, plan: Plan) -> None:
    """Checks, before anything is read, that the export can go where it is to go.

    Raises:
        StoreUnwritableError: There is something, or no directory to hold it.
        RefusedError: It is in a store, or would replace what is no export.
    """
    from stantools.pipeline.export import targets

    if exporting.to == STDOUT or "://" in exporting.to:
        return
    targets.check_outside(exporting.target, plan)
    if exporting.single:
        targets.check_file(exporting.target, overwrite=exporting.overwrite)
    else:
        targets.check_directory(exporting.target, overwrite=exporting.overwrite)


def check_channels(options: TableOptions, plan: Plan) -> None:
    """Checks that the patterns for channels match any.

    Raises:
        UsageError: They do not.
    """
    work = (part for split in plan.splits for part in split.work)
    if not options.channels or any(isinstance(part, Piece) or part.channel is not None for part in work):
        return
    from stantools.pipeline.tables.discovery import discover

    # Perhaps they do, and the bounds leave nothing of them.
    stores, _ = discover(replace(options, table=Table.SLICES))
    if not any(True for store in stores for _ in store.channels(options.channels)):
        listed = ", ".join(map(console.escape, options.channels))
        raise UsageError(f"no channel of any store matches {listed}", "see: stantools info STORE")


def report_unreadable(unreadable: list[Unreadable]) -> None:
    """Says on stderr what could not be read."""
    for each in unreadable[:_MANY]:
        console.warning(each.message, each.remedy)
    if len(unreadable) > _MANY:
        console.warning(f"{len(unreadable) - _MANY} more cannot be read; -o json and the manifest name them")


def show_plan(exporting: Exporting, layout: Layout, plan: Plan, output: str) -> int:
    """Says what would be done, for --dry-run; returns the exit code."""
    from stantools.pipeline.export.run import as_json

    size = sum(split.cost for split in plan.splits)
    report_unreadable(plan.unreadable)
    if output == "json":
        print_json(
            {
                "written": False,
                "target": exporting.to,
                "table": layout.table.value,
                "format": layout.format.value,
                "compression": layout.compression.value,
                "columns": list(layout.file_columns),
                "by": list(layout.by),
                "stores": [store.root for store in plan.stores],
                "parts": len(plan.splits),
                "bytes_to_read": size,
                "failed": [as_json(each) for each in plan.unreadable],
            }
        )
    else:
        stores, parts = _several(len(plan.stores), "store"), _several(len(plan.splits), "part")
        click.echo(
            f"would write the table {layout.table} of {stores} to {console.escape(exporting.to)}: "
            f"{_kind(layout)}, {format_size(size)} to read in {parts}; nothing was written"
        )
    return ExitCode.FINDINGS if plan.unreadable else ExitCode.CLEAN


def show_result(result: Result, options: TableOptions, output: str) -> int:
    """Says what was done; returns the exit code."""
    from stantools.pipeline.export.run import manifest

    layout, written = result.layout, result.written
    report_unreadable(result.unreadable)
    if damaged := written.damaged(layout.table):
        kinds = ", ".join(f"{what} {count}" for what, count in written.tally.most_common() if what not in layout.good)
        rows = f"{damaged} {'row tells' if damaged == 1 else 'rows tell'}"
        console.warning(f"{rows} of damage or of what cannot be read: {kinds}", "see: stantools verify STORE")
    if output == "json":
        print_json(
            {"written": True, "target": result.target, "clean": result.clean, **manifest(result, options)},
        )
    elif result.target is not None:
        click.echo(
            f"{_several(written.rows, 'row')} of the table {layout.table} in {console.escape(result.target)}: "
            f"{_several(len(written.files), 'file')}, {format_size(written.size)}, {_kind(layout)}"
        )
    return ExitCode.CLEAN if result.clean else ExitCode.FINDINGS


def _kind(layout: Layout) -> str:
    compressed = "" if layout.compression == "none" else f" ({layout.compression})"
    return f"{layout.format}{compressed}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
