"""`stantools export`: the tables of stores as Parquet, ndjson or csv, without Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.cli.exportoptions import (
    STDOUT,
    Exporting,
    check_channels,
    check_target,
    export_options,
    show_plan,
    show_result,
)
from stantools.cli.options import dry_run_option, given, verb
from stantools.cli.pipelineoptions import stores_argument, table_reading_options
from stantools.errors import UsageError
from stantools.options import WORKERS

if TYPE_CHECKING:
    from stantools.pipeline.export.model import Layout, Result
    from stantools.pipeline.tables.options import TableOptions
    from stantools.pipeline.tables.planning import Plan
    from stantools.progress import Progress as Advance


@verb("export", "table", "json")
@stores_argument
@export_options
@table_reading_options(local=True)
@given(workers=WORKERS.like(help="Parts that are read and written at the same time."))
@dry_run_option
def command(
    stores: tuple[str, ...],
    exporting: Exporting,
    reading: TableOptions,
    workers: int,
    dry_run: bool,
) -> int:
    r"""Write messages, or another table, of STORES as Parquet, ndjson or csv.

    STORES are stores, directories in which stores lie at any depth, single slices, directories of .bak slices, glob
    patterns, or URLs that fsspec can open. The columns are those of the Spark tables; `data` is base64 in text files.
    Damaged places are rows with a `status` that says what they are.

    A directory holds one file for each part of the input, named in the order of the table, and a manifest
    _stantools-export.json with counts. It appears when it is complete and on disk; so does a single file. An earlier
    export is replaced only with --overwrite. STORES are not changed, and may be in use.

    \b
      stantools export STORE --to messages --by channel,date
      stantools export STORE --channel orders --to orders.csv.gz
      stantools export STORE --table subscriptions --to - | jq .

    Exit code 0: everything was intact. 1: done, and damage was met or something could not be read. 3: it cannot be
    read or written; nothing is there. 4: refused, see the message.
    """
    from stantools.cli.progress import Progress
    from stantools.pipeline.tables.planning import plan as make_plan

    if exporting.to == STDOUT and console.output() == "json":
        raise UsageError("-o json and --to - both want stdout", "leave one of them out")
    if "://" in exporting.to:
        raise UsageError(
            f"--to {exporting.to}: is a URL, and this command writes to this machine",
            "name a directory or a file, or use: stantools pipeline export",
        )
    layout = exporting.layout()
    options = exporting.options(stores, reading, layout, 1 if exporting.single else workers)
    options.encryption_key()  # a wrong variable or file is told at once
    plan = make_plan(options)
    check_channels(options, plan)
    check_target(exporting, plan)
    if dry_run:
        return show_plan(exporting, layout, plan)
    with Progress("export", sum(split.cost for split in plan.splits)) as shown:
        result = _export(plan, options, layout, exporting, workers, shown.advance)
    return show_result(result, options)


def _print(data: bytes | memoryview) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        from stantools.store.durable import unwritable

        raise unwritable(problem, "standard output") from problem


def _export(
    plan: Plan, options: TableOptions, layout: Layout, exporting: Exporting, workers: int, progress: Advance
) -> Result:
    from stantools.pipeline.export.request import export
    from stantools.pipeline.export.run import export_to_stream

    if exporting.to == STDOUT:
        return export_to_stream(plan, options, layout, _print, workers=workers, progress=progress)
    return export(exporting, plan, options, layout, workers=workers, progress=progress)
