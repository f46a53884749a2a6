"""`stantools verify`: a full scan of sources, with findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    channel_option,
    node_option,
    verb,
    workers_option,
)
from stantools.cli.output import show, table_text
from stantools.cli.reporttext import print_findings, print_report
from stantools.cli.reporttext import show as show_report
from stantools.notation import counted, format_size

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster, NamedSources
    from stantools.pipeline.jobs.stores import JobResult
    from stantools.pipeline.jobs.verify import StoreVerdict
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.sources.source import Source


@verb("verify", "table", "json", "ndjson", "csv")
@pipeline.stores_argument
@node_option
@channel_option
@workers_option
@pipeline.reading_options()
@pipeline.cluster_options
def command(
    stores: tuple[str, ...], channels: tuple[str, ...], workers: int, table_options: TableOptions, cluster: Cluster
) -> int:
    """Read every byte of STORE, check every record, and say what is intact, damaged and missing.

    Nothing is changed. ndjson and csv list the findings; json adds the channels. `stantools explain CODE` explains a
    finding.

    Of a clustered node, the Raft log and the snapshots are checked as well. Slices without a store are verified alone.

    Of several stores, each has its own result, and findings name their store; a store that cannot be read is named on
    stderr and under `failed`, and the others are verified.

    Exit code 0: clean. 1: findings other than informational ones, or one of several stores that cannot be read.
    """
    from stantools.sources.source import Capability

    sources = pipeline.named_sources(stores, table_options, cluster, Capability.SURVEY, channels=channels)
    return _of_one(sources.alone, channels, workers) if sources.alone else _of_several(sources, workers)


def _of_one(source: Source, channels: tuple[str, ...], workers: int) -> int:
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.source_queries import verify_source
    from stantools.inspection.verify_report import verify_report

    with ByteProgress("verify", lambda: source.data_size(channels)) as shown:
        verdict = verify_source(
            source, patterns=channels, workers=workers, progress=shown.advance, on_finding=shown.found
        )
    return show_report(verify_report(verdict, node=source.node is not None))


def _of_several(sources: NamedSources, workers: int) -> int:
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.report import FINDING_COLUMNS, finding_records
    from stantools.pipeline.jobs.verify import plan_verify, run_verify

    plan = plan_verify(sources.options, sources.found, sources.failed)
    size, threads = plan.bytes, pipeline.threads(workers)
    with ByteProgress("verify", size) as shown, sources.cluster.work("verify", size, shown, threads) as work:
        result = run_verify(work, plan, progress=shown.advance, on_finding=shown.found)
    rows = ([each.root, *row] for each in result.stores for row in finding_records(each.verdict.findings)[1])
    show(result.as_json, lambda: _print_stores(result), ("store", *FINDING_COLUMNS), rows)
    return pipeline.ended(result)


def _print_stores(result: JobResult[StoreVerdict]) -> None:
    from stantools.inspection.verify_report import verify_report

    if len(result.stores) == 1 and not result.failed:
        console.set_store(click.get_current_context(), result.stores[0].root)
        print_report(verify_report(result.stores[0].verdict))
        return
    headers = ("store", "channels", "messages", "bytes", "errors", "warnings", "")
    click.echo(table_text(headers, map(_line, result.stores), right=headers[1:6]))
    unclean = [store for store in result.stores if not store.verdict.clean]
    for store in unclean[: pipeline.NAMED]:
        console.set_store(click.get_current_context(), store.root)
        pipeline.print_heading(store.root, "\n")
        print_findings(store.verdict.findings)
    console.left_out(len(unclean) - pipeline.NAMED, "store", tail=" with findings: see -o json\n")
    click.echo(_conclusion_of_stores(result, len(unclean)))


def _line(store: StoreVerdict) -> tuple[object, ...]:
    from stantools.inspection.verify_report import severity_counts

    verdict = store.verdict
    errors, warnings, _ = severity_counts(verdict).values()
    return (
        store.root,
        len(verdict.channels),
        sum(each.messages for each in verdict.channels),
        sum(each.bytes for each in verdict.channels),
        errors or None,
        warnings or None,
        "clean" if store.clean else "not read" if verdict.clean else "not clean",
    )


def _conclusion_of_stores(result: JobResult[StoreVerdict], unclean: int) -> str:
    scanned = sum(store.verdict.bytes_scanned for store in result.stores)
    seconds = sum(store.verdict.seconds for store in result.stores)
    read = f"{format_size(scanned)} read in {seconds:.2f} s of work"
    stores = counted(len(result.stores), "store")
    if result.clean:
        return f"{console.paint('clean', 'green', err=False)}: {stores}, {read}"
    parts = [f"{unclean} of {stores} {'has' if unclean == 1 else 'have'} findings"] if unclean else []
    if result.failed:
        parts.append(f"{len(result.failed)} cannot be read")
    return f"{console.paint('not clean', 'red', err=False)}: {', '.join(parts)}; {read}"
