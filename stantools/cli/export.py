"""`stantools export`: the tables of stores as Parquet, ndjson, csv or databases, on this machine or on Spark."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from stantools.cli import console, pipeline
from stantools.cli.click_options import dry_run_option, given, options_of, verb
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show, show_plan
from stantools.errors import StoreUnreadableError, UsageError
from stantools.notation import some_of
from stantools.options import SERVER_KEY_VARIABLE, WORKERS, Option
from stantools.pipeline.export.request import ALL_TABLES, STDOUT, ExportOptions

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster
    from stantools.pipeline.export.export_layout import Result
    from stantools.pipeline.export.request import Export
    from stantools.pipeline.tables.table_options import TableOptions

#: Stores that are opened for a warning.
_MANY = 20


@verb("export", "table", "json")
@pipeline.stores_argument
@options_of(ExportOptions, "export_options")
@given(
    writer=Option(
        help="On Spark, tasks write the files; Spark's own writer can also write to URLs such as s3a://…",
        default="auto",
        choices=("auto", "tasks", "spark"),
    )
)
@pipeline.reading_options()
@given(workers=WORKERS.like(help="Number of parts to read and write at the same time."))
@pipeline.cluster_options
@dry_run_option
def command(
    stores: tuple[str, ...],
    export_options: ExportOptions,
    writer: str,
    table_options: TableOptions,
    workers: int,
    cluster: Cluster,
    dry_run: bool,
) -> int:
    r"""Write messages, or another table, of STORE as Parquet, ndjson, csv, or a SQLite or DuckDB database.

    STORE is a store, an archive of one, a directory with stores at any depth, a single slice, a directory of .bak
    slices, a glob pattern, a URL that fsspec can open, or a SQL store; there may be several. Of JetStream directories,
    the table stream-messages is written. The columns are those of the Spark tables; `data` is base64 in text files. A
    database is one file with a table named like TABLE, or with all tables. Damaged ranges are rows with a `status` that
    names the damage.

    A directory holds one file for each part of the input, named in the order of the table, and a manifest
    _stantools-export.json with counts. The directory or file appears when it is complete and synced. An earlier export
    is replaced only with --overwrite. STORE is not changed, and may be in use.

    On Spark, and as `stantools pipeline export`, --to is a directory, on a file system that the driver and all workers
    see under the same path. With --writer spark, Spark itself writes Parquet; --to may then be any URL that Spark can
    write, which is complete when it has a file _SUCCESS.

    \b
      stantools export STORE --to messages --by channel,date
      stantools export STORE --channel orders --to orders.csv.gz
      stantools export STORE --to messages.duckdb
      stantools export STORE --table all --to store.duckdb
      stantools export STORE --table subscriptions --to - | jq .
      stantools export /archive/stores --to s3a://bucket/messages \
        --by channel,date --engine spark

    Exit code 0: everything was intact. 1: done, but something was damaged or could not be read. 3: reading or writing
    failed; nothing was written. 4: refused, see the message.
    """
    tasks, url = pipeline.as_job() or cluster.on_spark() or writer == "spark", "://" in export_options.to
    if export_options.to == STDOUT and tasks:
        if cluster.on_spark() or writer == "spark":
            raise UsageError("Spark cannot write to stdout", "name a directory, or leave out the options for Spark")
        raise UsageError("`stantools pipeline export` writes directories", "for stdout: stantools export STORE --to -")
    if export_options.to == STDOUT and console.output() == "json":
        raise UsageError("-o json and --to - both use stdout", "leave one of them out")
    if url and writer == "tasks":
        raise UsageError("tasks write to directories, not to URLs", "leave --writer out")
    if (url or writer == "spark") and cluster.engine == "local":
        raise UsageError("URLs need --writer spark", "leave --engine out")
    if url and not tasks:
        raise UsageError(
            f"--to {export_options.to}: is a URL, but this command writes local files",
            "name a directory or a file, or let Spark write it: --engine spark",
        )
    if tasks and export_options.table == ALL_TABLES:
        raise UsageError("--table all is written by one process", "leave out the options for Spark")
    if tasks:
        by_spark = url or writer == "spark"
        return _in_tasks(stores, export_options, table_options, cluster, dry_run=dry_run, by_spark=by_spark)
    return _here(stores, export_options, table_options, cluster, workers, dry_run=dry_run)


def _here(
    stores: tuple[str, ...],
    export_options: ExportOptions,
    table_options: TableOptions,
    cluster: Cluster,
    workers: int,
    *,
    dry_run: bool,
) -> int:
    from stantools.pipeline.export.run import export_here, export_to_stream
    from stantools.pipeline.tables.model import TableName
    from stantools.pipeline.tables.sql_parts import is_sql_store

    table_options.key.key()  # a wrong variable or file is reported at once
    tables = export_options.tables
    paths, _ = pipeline.table_paths(stores, export_options.channels, cluster, table_options)
    # The private copy of a SQL store has none of its findings.
    named = tuple(own if is_sql_store(own) else path for own, path in zip(stores, paths, strict=True))
    exports = [
        each.planned(named if each.table == TableName.FINDINGS else paths, table_options, workers) for each in tables
    ]
    export = exports[0]
    if len(exports) > 1 and not dry_run:
        return _carry_out_all(exports, workers)

    def write(shown: ByteProgress) -> Result:
        if export_options.to == STDOUT:
            return export_to_stream(export, _print, workers=workers, progress=shown.advance)
        return export_here(export, workers, shown.advance)

    return _carry_out(export, None if dry_run else write)


def _in_tasks(
    stores: tuple[str, ...],
    export_options: ExportOptions,
    table_options: TableOptions,
    cluster: Cluster,
    *,
    dry_run: bool,
    by_spark: bool,
) -> int:
    from stantools.pipeline.export.run import export_to_directory

    if export_options.to and "://" not in export_options.to:  # tasks have other working directories
        export_options = replace(export_options, to=os.path.abspath(export_options.to))  # noqa: PTH100
    paths, cluster = pipeline.table_paths(stores, export_options.channels, cluster, table_options, sql_tasks=True)
    export = replace(export_options, directory=True).planned(
        paths, table_options, cluster.partitions or os.cpu_count() or 1
    )

    def write(shown: ByteProgress) -> Result:
        if by_spark:
            from stantools.pipeline.jobs.export import export_by_spark

            with cluster.session("export", shown) as spark:
                return export_by_spark(spark, export)
        with cluster.work("export", export.size, shown) as work:
            return export_to_directory(export, work=work, progress=shown.advance)

    return _carry_out(export, None if dry_run else write)


def _carry_out_all(exports: Sequence[Export], workers: int) -> int:
    """Writes several tables into one database."""
    from stantools.pipeline.export.export_report import export_tables_report
    from stantools.pipeline.export.run import export_tables

    exports[0].check_target()
    for export in exports:
        _tell_of_nodes(export)
        _tell_of_encryption(export)
    with ByteProgress("export", sum(export.size for export in exports)) as shown:
        results = export_tables(exports, workers=workers, progress=shown.advance)
    return show(export_tables_report(results, [export.options for export in exports]))


def _carry_out(export: Export, write: Callable[[ByteProgress], Result] | None) -> int:
    """Writes, except in a dry run; prints the result and returns the exit code."""
    from stantools.pipeline.export.export_report import export_plan_report, export_report

    export.check_target()
    _tell_of_nodes(export)
    _tell_of_encryption(export)
    if write is None:
        return show_plan(export_plan_report(export))
    with ByteProgress("export", export.size) as shown:
        result = write(shown)
    return show(export_report(result, export.options))


def _tell_of_nodes(export: Export) -> None:
    """Notes on stderr the data that stores of clustered nodes lack, or have several times."""
    from stantools.format.crc import Crc
    from stantools.pipeline.tables.model import TableName
    from stantools.pipeline.tables.remote import is_remote
    from stantools.store.directory import open_datastore
    from stantools.store.serverinfo import readable_server_info

    clusters: Counter[bytes] = Counter()
    for store in [each for each in export.plan.stores if not is_remote(each.root)][:_MANY]:
        with suppress(StoreUnreadableError):  # a directory of slices
            server = readable_server_info(open_datastore(store.root, Crc(store.polynomial)))
            if server is not None:
                clusters[server.cluster_id] += bool(server.node_id)
    nodes, table = max(clusters.values(), default=0), export.layout.table
    if nodes and table in (TableName.SUBSCRIPTIONS, TableName.CLIENTS):
        text = "clients and subscriptions of clustered nodes are in their Raft logs, not in their stores"
    elif nodes > 1 and table is TableName.MESSAGES:
        text = "nodes of one cluster hold the same messages; the export has them once per node"
    else:
        return
    console.warning(text, "`stantools merge NODE... --out NEW` makes one store of them, which can be exported")


def _tell_of_encryption(export: Export) -> None:
    """Warns of payloads that are probably encrypted, if no key was given: they are written as stored."""
    from stantools.format.crc import Crc
    from stantools.inspection.ciphertext import find_ciphertext
    from stantools.pipeline.tables.model import TableName
    from stantools.pipeline.tables.remote import is_remote
    from stantools.store.directory import open_datastore

    layout = export.layout
    if layout.table is not TableName.MESSAGES or "data" not in layout.file_columns or export.options.key.given:
        return
    for store in [each for each in export.plan.stores if not is_remote(each.root)][:_MANY]:
        with suppress(StoreUnreadableError):  # a directory of slices
            opened = open_datastore(store.root, Crc(store.polynomial, export.options.check_crc))
            if suspected := find_ciphertext(opened, opened.channel_names[:_MANY]).suspected:
                channels = some_of([console.escape(each) for each in suspected], 3)
                console.warning(
                    f"{console.escape(store.root)}: payloads of {channels} may be encrypted, and are written as stored",
                    f"give the server's key: --encryption-key-env {SERVER_KEY_VARIABLE}",
                )


def _print(data: bytes | memoryview) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        from stantools.store.durable import unwritable

        raise unwritable(problem, "standard output") from problem
