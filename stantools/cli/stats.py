"""`stantools stats`: number and size of messages over time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import console, pipeline
from stantools.cli.click_options import options_of, verb
from stantools.cli.progress import ByteProgress
from stantools.cli.report import OVERWRITE, check_page, write_page
from stantools.cli.reporttext import show
from stantools.errors import UsageError
from stantools.options import ARCHIVED, CHANNELS, SINCE, UNTIL, option

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster
    from stantools.pipeline.jobs.stats.summary import Stats
    from stantools.pipeline.tables.table_options import TableOptions


@dataclass(frozen=True)
class StatsOptions:
    channels: tuple[str, ...] = CHANNELS.field()
    since: int | None = SINCE.field()
    until: int | None = UNTIL.field()
    archived: bool = ARCHIVED.field(help="Count messages of .bak slices as well.")
    directory: Path | None = option(
        "Also write the tables channels, hours, sizes and intervals as Parquet into this new directory.",
        "--to",
        kind=Path,
        metavar="DIR",
    )
    report: Path | None = option("Also write a self-contained HTML page with plots.", kind=Path, metavar="FILE")
    overwrite: bool = OVERWRITE.field()


@verb("stats", "table", "json", "ndjson", "csv")
@pipeline.stores_argument
@options_of(StatsOptions, "stats_options")
@pipeline.reading_options()
@pipeline.cluster_options
def command(stores: tuple[str, ...], stats_options: StatsOptions, table_options: TableOptions, cluster: Cluster) -> int:
    """Count the messages of STORE by channel and hour: number, size, rate and gaps.

    STORE is a store, an archive of one, a directory with stores at any depth, a single slice, a directory of .bak
    slices, a glob pattern, a URL that fsspec can open, or a SQL store. Of a JetStream directory, the streams are
    counted as channels, and their subjects with the most messages are listed.

    Only intact messages are counted; damaged ranges are counted separately. Missing sequences are those between the
    first and the last message of a channel. Percentiles of sizes and of the times between messages can be off by a
    sixteenth (6 %). Rates are messages per second, minute, hour or day, from a channel's first to its last message.

    Exit code 0: done. 1: done, but something is damaged or cannot be read.
    """
    from stantools.pipeline.export.request import require
    from stantools.pipeline.tables.planning import plan
    from stantools.pipeline.tables.table_options import fitting
    from stantools.store.ranges import Bounds

    require("pyarrow", "stats")
    _check_outputs(stats_options)
    paths, cluster = pipeline.table_paths(stores, stats_options.channels, cluster, table_options)
    options = table_options.of(
        paths,
        channels=stats_options.channels,
        bounds=Bounds(since=stats_options.since, until=stats_options.until),
        archived=stats_options.archived,
        **({"partitions": cluster.partitions} if cluster.partitions else {}),
    )
    options = fitting(options)
    planned = plan(options)
    if stats_options.channels and not any(split.cost for split in planned.splits) and not planned.unreadable:
        raise options.no_channel()
    total = sum(split.cost for split in planned.splits)
    from stantools.pipeline.jobs.stats.stats_report import stats_report
    from stantools.pipeline.jobs.stats.summary import run_stats  # loads Arrow

    with ByteProgress("stats", total) as shown, cluster.work("stats", total, shown) as work:
        stats = run_stats(work, planned, options, progress=shown.advance)
    show(stats_report(stats))
    _write(stats, stats_options.directory, stats_options.report)
    return pipeline.ended(stats)


def _check_outputs(stats_options: StatsOptions) -> None:
    from stantools.store.atomic import check_vacant

    if stats_options.directory is not None:
        if stats_options.directory.suffix in (".html", ".htm"):
            raise UsageError("--to is a directory of Parquet files", f"the page is --report {stats_options.directory}")
        check_vacant(stats_options.directory)
    if stats_options.report is not None:
        check_page(stats_options.report, overwrite=stats_options.overwrite)


def _write(stats: Stats, directory: Path | None, report: Path | None) -> None:
    if directory is not None:
        from stantools.pipeline.jobs.stats.files import write_tables

        write_tables(stats, directory)
        console.note(f"wrote {console.escape(str(directory))}")
    if report is not None:
        from stantools.pipeline.jobs.stats.files import page

        write_page(report, page(stats))
