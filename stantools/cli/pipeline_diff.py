"""`stantools pipeline diff`: what many stores and their copies do not have in common, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.diff import DIFFERENCE_COLUMNS
from stantools.cli.options import channel_option
from stantools.cli.output import show, table_text
from stantools.cli.pipelineoptions import (
    Cluster,
    cluster_options,
    job,
    on_spark,
    report_failed,
    table_reading_options,
)
from stantools.cli.verify import finding_rows, print_findings
from stantools.errors import ExitCode, UsageError
from stantools.notation import counted

if TYPE_CHECKING:
    from stantools.pipeline.jobs.diff import DiffPlan, DiffResult, PairDifference
    from stantools.pipeline.tables.options import TableOptions

#: Pairs whose findings are printed in full.
_NAMED = 10


@job("diff", "table", "json", "ndjson", "csv")
@click.argument("stores", metavar="STORES")
@click.argument("others", metavar="OTHERS")
@channel_option
@table_reading_options(unchecked=False, remote=False)
@cluster_options
def command(
    stores: str,
    others: str,
    channels: tuple[str, ...],
    reading: TableOptions,
    cluster: Cluster,
) -> int:
    """Compare every message of STORES with OTHERS, and everything else that both hold.

    Both are a store, or a directory of stores (or a pattern); of several, those are compared that have the same path
    below it, and those without a counterpart are named. For each pair the result is that of `stantools diff`, in the
    same words and the same json. Nothing is changed on either side. A stream is compared with `stantools diff`.

    Exit code 0: no difference. 1: there are differences other than informational ones, or something cannot be read.
    """
    from stantools.cli.progress import Progress
    from stantools.pipeline.jobs.diff import run_diff
    from stantools.pipeline.spark.tasks import SparkWork

    plan = _planned(stores, others, channels, reading)
    with (
        Progress("diff", plan.bytes) as shown,
        on_spark(cluster, "diff", shown) as spark,
    ):
        result = run_diff(SparkWork(spark, cluster.partitions), plan, progress=shown.advance)
    for pair in result.pairs:
        for ref, damaged in zip((pair.pair.first, pair.pair.second), pair.found.damaged, strict=True):
            if damaged:
                console.note(f"{console.escape(ref.root)} is damaged; only what is intact was compared")
    rows = (
        row
        for each in result.pairs
        for row in finding_rows(
            each.found.findings, DIFFERENCE_COLUMNS, of=[each.pair.first.root, each.pair.second.root]
        )
    )
    show(result.as_json, lambda: _print(result), ("store", "other", *DIFFERENCE_COLUMNS), rows)
    report_failed(result.failed)
    return ExitCode.CLEAN if result.clean else ExitCode.FINDINGS


def _planned(stores: str, others: str, channels: tuple[str, ...], reading: TableOptions) -> DiffPlan:
    from stantools.pipeline.jobs.diff import Found, match_stores, plan_diff
    from stantools.pipeline.tables.discovery import discover

    for each in (stores, others):
        if each.startswith(("nats://", "tls://", "ws://", "wss://", "#")):
            raise UsageError(f"{each} is a stream, and stores are compared here", "compare it with: stantools diff")
    options = [reading.of((each,), channels=channels) for each in (stores, others)]
    sides = [Found(each.paths[0], *discover(each)) for each in options]
    return plan_diff(*match_stores(*sides), options[0])


def _print(result: DiffResult) -> None:
    if len(result.pairs) > 1:
        headers = ("store", "channels", "messages", "differences", "")
        click.echo(table_text(headers, map(_line, result.pairs), right=headers[1:4]))
    unclean = [pair for pair in result.pairs if not pair.clean]
    for pair in unclean[:_NAMED]:
        if len(result.pairs) > 1:
            click.echo(f"{console.paint(console.escape(pair.pair.first.root), 'cyan', err=False)}\n")
        print_findings(pair.found.findings)
    if len(unclean) > _NAMED:
        click.echo(f"… and {counted(len(unclean) - _NAMED, 'more store')} with differences: see -o json\n")
    messages, channels = (sum(getattr(p.found, name) for p in result.pairs) for name in ("messages", "channels"))
    verb = "is" if messages == 1 else "are"
    text = f"{counted(messages, 'message')} in {counted(channels, 'channel')} {verb} in both stores"
    if len(result.pairs) != 1:
        text += f" of {len(result.pairs)} pairs"
    if result.clean:
        click.echo(f"{console.paint('no difference', 'green', err=False)}: {text}")
        return
    count = sum(len(pair.found.findings) for pair in result.pairs)
    failed = f", {len(result.failed)} cannot be compared" if result.failed else ""
    click.echo(f"{console.paint('different', 'red', err=False)}: {counted(count, 'finding')}{failed}; {text}")


def _line(pair: PairDifference) -> tuple[object, ...]:
    found = pair.found
    return (
        pair.pair.first.root,
        found.channels,
        found.messages,
        len(found.findings) or None,
        "no difference" if pair.clean else "different",
    )
