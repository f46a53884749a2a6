"""What is exported, into what kind of files: the options of `export` and `pipeline export`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stantools.cli import console
from stantools.cli.options import channel_option, time_options
from stantools.cli.output import print_json
from stantools.cli.values import SequenceRange, Size, format_size
from stantools.errors import ExitCode
from stantools.pipeline.export.request import STDOUT, Exporting, check_channels, check_target
from stantools.pipeline.tables.model import Mode, Table

if TYPE_CHECKING:
    from stantools.pipeline.export.model import Layout, Result
    from stantools.pipeline.tables.model import Unreadable
    from stantools.pipeline.tables.options import TableOptions
    from stantools.pipeline.tables.planning import Plan

__all__ = ["STDOUT", "Exporting", "check_channels", "check_target", "export_options", "show_plan", "show_result"]

_F = TypeVar("_F", bound=Callable[..., Any])

_MANY = 20


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
