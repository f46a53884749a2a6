"""`stantools pipeline salvage`: new stores with every intact record of many, on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.options import dry_run_option, given, options_of
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
from stantools.errors import ExitCode, UsageError
from stantools.notation import counted, describe_sequences, format_size
from stantools.options import FORCE
from stantools.recovery.options import SalvageOptions

if TYPE_CHECKING:
    from stantools.pipeline.jobs.salvage import SalvagedStore, SalvageJobResult
    from stantools.pipeline.jobs.salvagejob import SalvageJob
    from stantools.pipeline.tables.options import TableOptions

#: Stores of which losses are listed, and losses of each.
_NAMED = 10


@job("salvage", "table", "json")
@stores_argument
@click.option(
    "--out",
    metavar="DIR",
    help="Where to put the new stores, each under its own name, where all workers can write.",
)
@options_of(SalvageOptions, "options", without=("workers",))
@given(force=FORCE)
@dry_run_option
@table_reading_options(unchecked=False, remote=False)
@cluster_options
def command(
    stores: tuple[str, ...],
    out: str | None,
    options: SalvageOptions,
    force: bool,
    dry_run: bool,
    reading: TableOptions,
    cluster: Cluster,
) -> int:
    """Write new stores that hold every intact record of STORES, and start in the real server.

    Each is the store that `stantools salvage` writes, byte for byte, and the same is said of it. DIR/NAME is where it
    goes: NAME is the name of its directory, with as much of the path in front as tells stores of the same name apart
    (node1-data, node2-data); json has `store` and `name` of each. DIR has to lie on a file system that the driver and
    all workers see under the same path. STORES are not changed; one that cannot be read is named, and the rest is done.

    A new store appears when it is complete, whatever is killed meanwhile. Run the same command again: what was
    finished and has not changed since is kept as it is, the rest is salvaged.

    Exit code 0: everything was kept of every store. 5: done, and something was lost before (the plans name it). 1: a
    store cannot be read, or the same as 5 with --dry-run. 3: nothing can be read, or a store cannot be written. 4:
    refused, because a server uses a store.
    """
    from stantools.pipeline.jobs.salvage import run_salvage
    from stantools.pipeline.spark.tasks import SparkWork

    work = _planned(stores, options, reading, out, dry_run=dry_run, force=force)

    @contextmanager
    def phase(task: str, total: int) -> Iterator[Callable[[int], object]]:
        from stantools.cli.progress import Progress

        with Progress(task, total) as shown:
            yield shown.advance

    with on_spark(cluster, "salvage") as spark:
        result = run_salvage(SparkWork(spark, cluster.partitions), work, phase)
    for warning in result.warnings:
        console.warning(warning)
    show(result.as_json, lambda: _print(result, dry_run=dry_run))
    report_failed(result.failed)
    for store in result.stores:
        if store.is_wrong:
            console.error(
                f"{console.escape(store.report['out'])}: the new store is not as it should be",
                "this is a mistake in stantools: please report it, with the output of stantools verify on both stores",
            )
    return result.exit_code


def _planned(
    stores: tuple[str, ...],
    options: SalvageOptions,
    reading: TableOptions,
    out: str | None,
    *,
    dry_run: bool,
    force: bool,
) -> SalvageJob:
    from stantools.pipeline.jobs.salvagejob import plan_job
    from stantools.pipeline.tables.discovery import discover
    from stantools.pipeline.tables.remote import is_remote

    if out is None and not dry_run:
        raise UsageError(
            "--out is missing: where are the new stores to go?", "add --out DIR, or --dry-run for the plans"
        )
    if out is not None and "://" in out:
        raise UsageError(f"--out {out}: new stores are written to a file system", "name a directory")
    if remote := [path for path in stores if is_remote(path)]:
        raise UsageError(
            f"{console.escape(remote[0])}: stores are salvaged from a file system, not from a URL",
            "mount it where all workers see it, or copy the store; `stantools pipeline export` reads URLs",
        )
    table = reading.of(stores, channels=options.patterns)
    target = Path(out).absolute() if out is not None else None
    work = plan_job(*discover(table), options, target, dry_run=dry_run, force=force)
    for each in work.passed:
        console.note(console.escape(each))
    if not work.stores and not work.failed:
        if options.patterns:
            raise no_channel(options.patterns)
        raise UsageError("there is nothing to salvage", "name the stores that are damaged")
    return work


def _print(result: SalvageJobResult, *, dry_run: bool) -> None:
    headers = ("store", "name", "channels", "messages", "bytes", "filled", "subs", "lost", "")
    if result.stores:
        click.echo(table_text(headers, map(_line, result.stores), right=headers[2:8]))
    lossy = [store for store in result.stores if store.report["summary"]["lossy"]]
    for store in lossy[:_NAMED]:
        click.echo(console.paint(console.escape(store.root), "cyan", err=False))
        lost = [each for each in store.report["dropped"] if each["loss"]]
        for each in lost[:_NAMED]:
            click.echo(_lost(each))
        if len(lost) > _NAMED:
            click.echo(f"  … and {counted(len(lost) - _NAMED, 'more place')}")
    if len(lossy) > _NAMED:
        click.echo(
            f"… and {counted(len(lossy) - _NAMED, 'more store', 'that has/that have')} lost something: see -o json"
        )
    click.echo(_conclusion(result, dry_run=dry_run))


def _line(store: SalvagedStore) -> tuple[Any, ...]:
    summary = store.report["summary"]
    if store.is_wrong:
        state = "not as it should be"
    elif not store.report["written"]:
        state = "planned"
    else:
        state = "kept from before" if store.kept else "written"
    return (
        store.root,
        store.name,
        summary["channels"],
        summary["messages"],
        summary["bytes"],
        summary["filled"] or None,
        summary["subscriptions"] or None,
        summary["lost"] or ("yes" if summary["lossy"] else None),
        state,
    )


def _lost(each: dict[str, Any]) -> str:
    place = console.escape(each["file"])
    if each["offset"] is not None:
        place += f" at {each['offset']}"
    if each["length"]:
        place += f", {each['length']} bytes"
    text = f"  lost: {place}: {console.escape_line(each['reason'])}"
    return text + (f" ({describe_sequences(each['sequences'], 4)})" if each["sequences"] else "")


def _conclusion(result: SalvageJobResult, *, dry_run: bool) -> str:
    summaries = [store.report["summary"] for store in result.stores]
    messages, size, lost = (sum(each[name] for each in summaries) for name in ("messages", "bytes", "lost"))
    text = f"{counted(messages, 'message')} in {counted(len(summaries), 'store')}, {format_size(size)}"
    text += f"; {counted(lost, 'message')} known to be lost" if lost else ""
    text += f"; {counted(len(result.failed), 'store')} failed" if result.failed else ""
    if dry_run:
        return f"would keep {text}; nothing was written"
    good = result.exit_code in (ExitCode.CLEAN, ExitCode.LOSS)
    return console.paint(f"kept {text}", "green" if good else "red", err=False)
