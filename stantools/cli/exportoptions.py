"""What is exported, into what kind of files: the options of `export` and `pipeline export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.options import options_of
from stantools.cli.output import print_json
from stantools.errors import ExitCode
from stantools.notation import format_size
from stantools.pipeline.export.request import STDOUT, Exporting, check_channels, check_target

if TYPE_CHECKING:
    from stantools.pipeline.export.model import Layout, Result
    from stantools.pipeline.tables.model import Unreadable
    from stantools.pipeline.tables.options import TableOptions
    from stantools.pipeline.tables.planning import Plan

__all__ = ["STDOUT", "Exporting", "check_channels", "check_target", "export_options", "show_plan", "show_result"]

_MANY = 20


#: Adds the options of what is exported and passes them on as `exporting: Exporting`.
export_options = options_of(Exporting, "exporting")


def report_unreadable(unreadable: list[Unreadable]) -> None:
    """Says on stderr what could not be read."""
    for each in unreadable[:_MANY]:
        console.warning(each.message, each.remedy)
    if len(unreadable) > _MANY:
        console.warning(f"{len(unreadable) - _MANY} more cannot be read; -o json and the manifest name them")


def show_plan(exporting: Exporting, layout: Layout, plan: Plan) -> int:
    """Says what would be done, for --dry-run; returns the exit code."""
    from stantools.pipeline.export.run import as_json

    size = sum(split.cost for split in plan.splits)
    report_unreadable(plan.unreadable)
    if console.output() == "json":
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


def show_result(result: Result, options: TableOptions) -> int:
    """Says what was done; returns the exit code."""
    from stantools.pipeline.export.run import manifest

    layout, written = result.layout, result.written
    report_unreadable(result.unreadable)
    if damaged := written.damaged(layout.table):
        kinds = ", ".join(f"{what} {count}" for what, count in written.tally.most_common() if what not in layout.good)
        rows = f"{damaged} {'row tells' if damaged == 1 else 'rows tell'}"
        console.warning(f"{rows} of damage or of what cannot be read: {kinds}", "see: stantools verify STORE")
    if console.output() == "json":
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
