"""`stantools pipeline verify`: a full scan of many stores, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.options import channel_option
from stantools.cli.output import show, table_text
from stantools.cli.pipelineoptions import (
    Cluster,
    cluster_options,
    job,
    no_channel,
    on_spark,
    report_failed,
    stores_argument,
    table_reading_options,
)
from stantools.cli.verify import FINDING_COLUMNS, finding_rows, print_findings, print_verdict
from stantools.errors import ExitCode
from stantools.notation import counted, format_size

if TYPE_CHECKING:
    from stantools.pipeline.jobs.verify import StoreVerdict, VerifyPlan, VerifyResult
    from stantools.pipeline.tables.options import TableOptions


@job("verify", "table", "json", "ndjson", "csv")
@stores_argument
@channel_option
@table_reading_options()
@cluster_options
def command(
    stores: tuple[str, ...],
    channels: tuple[str, ...],
    reading: TableOptions,
    cluster: Cluster,
) -> int:
    """Read every byte of STORES, check every record, and say what is intact, damaged and missing.

    For each store the result is that of `stantools verify`, in the same words and the same json; of slices without a
    store, it is about them alone. Nothing is changed. ndjson and csv give the findings with their store, json the
    channels as well. A store that cannot be read is named, on stderr and under `failed`, and the others are verified.

    Exit code 0: nothing is wrong. 1: there are findings other than informational ones, or something cannot be read.
    """
    from stantools.cli.progress import Progress
    from stantools.pipeline.jobs.verify import run_verify
    from stantools.pipeline.spark.tasks import SparkWork

    plan = _planned(stores, channels, reading)
    with (
        Progress("verify", plan.bytes) as shown,
        on_spark(cluster, "verify", shown) as spark,
    ):
        result = run_verify(
            SparkWork(spark, cluster.partitions),
            plan,
            progress=shown.advance,
            on_finding=shown.found,
        )
    rows = (row for each in result.stores for row in finding_rows(each.verdict.findings, of=[each.root]))
    show(result.as_json, lambda: _print(result), ("store", *FINDING_COLUMNS), rows)
    report_failed(result.failed)
    return ExitCode.CLEAN if result.clean else ExitCode.FINDINGS


def _planned(stores: tuple[str, ...], channels: tuple[str, ...], reading: TableOptions) -> VerifyPlan:
    from stantools.pipeline.jobs.verify import plan_verify
    from stantools.pipeline.tables.discovery import discover
    from stantools.pipeline.tables.model import Table

    options = reading.of(stores, table=Table.FINDINGS, channels=channels)
    plan = plan_verify(*discover(options), options)
    if channels and not plan.has_channels:
        raise no_channel(channels)
    return plan


def _print(result: VerifyResult) -> None:
    if len(result.stores) == 1 and not result.failed:
        console.set_store(click.get_current_context(), result.stores[0].root)
        print_verdict(result.stores[0].verdict)
        return
    headers = ("store", "channels", "messages", "bytes", "errors", "warnings", "")
    click.echo(table_text(headers, map(_line, result.stores), right=headers[1:6]))
    unclean = [store for store in result.stores if not store.verdict.clean]
    for store in unclean[:_NAMED]:
        click.echo(f"{console.paint(console.escape(store.root), 'cyan', err=False)}\n")
        print_findings(store.verdict.findings)
    if len(unclean) > _NAMED:
        click.echo(f"… and {counted(len(unclean) - _NAMED, 'more store')} with findings: see -o json\n")
    click.echo(_conclusion(result))


#: Stores whose findings are printed in full.
_NAMED = 10


def _line(store: StoreVerdict) -> tuple[object, ...]:
    verdict = store.verdict
    errors, warnings = (
        sum(each.severity.value == severity for each in verdict.findings) for severity in ("error", "warning")
    )
    return (
        store.root,
        len(verdict.channels),
        sum(each.messages for each in verdict.channels),
        sum(each.bytes for each in verdict.channels),
        errors or None,
        warnings or None,
        "clean" if store.clean else "not read" if verdict.clean else "not clean",
    )


def _conclusion(result: VerifyResult) -> str:
    scanned = sum(store.verdict.bytes_scanned for store in result.stores)
    seconds = sum(store.verdict.seconds for store in result.stores)
    read = f"{format_size(scanned)} read in {seconds:.2f} s of work"
    if result.clean:
        return f"{console.paint('clean', 'green', err=False)}: {counted(len(result.stores), 'store')}, {read}"
    unclean = sum(not store.verdict.clean for store in result.stores)
    stores = counted(len(result.stores), "store")
    parts = [f"{unclean} of {stores} {'has' if unclean == 1 else 'have'} findings"] if unclean else []
    if result.failed:
        parts.append(f"{len(result.failed)} cannot be read")
    return f"{console.paint('not clean', 'red', err=False)}: {', '.join(parts)}; {read}"
