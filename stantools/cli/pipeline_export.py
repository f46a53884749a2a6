"""`stantools pipeline export`: the tables of many stores as Parquet, ndjson or csv, on Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli.exportoptions import (
    STDOUT,
    Exporting,
    check_channels,
    check_target,
    export_options,
    show_plan,
    show_result,
)
from stantools.cli.options import dry_run_option, given
from stantools.cli.pipelineoptions import (
    Cluster,
    cluster_options,
    job,
    on_spark,
    stores_argument,
    table_reading_options,
)
from stantools.errors import UsageError
from stantools.options import Option

if TYPE_CHECKING:
    from stantools.pipeline.tables.options import TableOptions


@job("export", "table", "json")
@stores_argument
@export_options
@given(
    writer=Option(
        help="Tasks write the files of stantools export; Spark's own writer can also write to URLs such as s3a://…",
        default="auto",
        choices=("auto", "tasks", "spark"),
    )
)
@table_reading_options()
@cluster_options
@dry_run_option
def command(
    stores: tuple[str, ...],
    exporting: Exporting,
    writer: str,
    reading: TableOptions,
    cluster: Cluster,
    dry_run: bool,
) -> int:
    r"""Write messages, or another table, of STORES as Parquet, ndjson or csv, on Spark.

    The files are those of `stantools export`, with the same columns, names and manifest, and so is the report. --to is
    a directory on a file system that the driver and all workers see under the same path. It appears when it is
    complete, whatever is killed meanwhile.

    With --writer spark it is Spark that writes Parquet; --to may then be any URL that Spark can write. A directory at
    a URL is complete when it has a file _SUCCESS.

    \b
      stantools pipeline export /archive/stores --to messages --by channel,date
      stantools pipeline export /archive/stores --to s3a://bucket/messages --by channel,date

    Exit codes: as for `stantools export`.
    """
    from stantools.cli.progress import Progress
    from stantools.pipeline.export.run import export_to_directory
    from stantools.pipeline.jobs.export import export_by_spark
    from stantools.pipeline.spark.tasks import SparkWork
    from stantools.pipeline.tables.planning import plan as make_plan

    if exporting.to == STDOUT:
        raise UsageError("a cluster does not write to stdout", "name a directory, or use: stantools export")
    by_spark = _by_spark(exporting, writer)
    # Always a directory, whatever its name looks like.
    layout = replace(exporting, to=f"{exporting.to}/").layout()
    options = exporting.options(stores, reading, layout, cluster.partitions or os.cpu_count() or 1)
    plan = make_plan(options)
    check_channels(options, plan)
    check_target(replace(exporting, to=_directory(exporting.to)), plan)
    if dry_run:
        return show_plan(exporting, layout, plan)

    total = sum(split.cost for split in plan.splits)
    with Progress("export", total) as shown, on_spark(cluster, "export", shown) as spark:
        if by_spark:
            target = exporting.to if "://" in exporting.to else str(Path(exporting.to).absolute())
            result = export_by_spark(spark, plan, options, layout, target, overwrite=exporting.overwrite)
        else:
            result = export_to_directory(
                plan,
                options,
                layout,
                Path(exporting.to).absolute(),
                work=SparkWork(spark, cluster.partitions),
                overwrite=exporting.overwrite,
                progress=shown.advance,
            )
    return show_result(result, options)


def _directory(path: str) -> str:
    return path if "://" in path else f"{path}/"


def _by_spark(exporting: Exporting, writer: str) -> bool:
    url = "://" in exporting.to
    if url and writer == "tasks":
        raise UsageError("tasks write into directories, not to URLs", "leave --writer out")
    return url or writer == "spark"
