"""`stantools pipeline migrate`: many stores into JetStream, on Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from stantools.cli import console
from stantools.cli.connecting import connection_options, or_selected
from stantools.cli.migrationoptions import Planning, applying_options, planning_options_with
from stantools.cli.options import dry_run_option, options_of, yes_option
from stantools.cli.output import print_json, table_text
from stantools.cli.pipelineoptions import (
    Cluster,
    cluster_options,
    job,
    on_spark,
    report_failed,
    stores_argument,
    table_reading_options,
)
from stantools.errors import ExitCode, RefusedError, UsageError
from stantools.migration.options import Applying
from stantools.notation import counted
from stantools.options import OUT, option

if TYPE_CHECKING:
    from stantools.migration.journal import Journal
    from stantools.migration.plan.model import Note
    from stantools.migration.targets.loading import ApplyOptions
    from stantools.migration.targets.target import Destination
    from stantools.nats.options import ConnectOptions
    from stantools.pipeline.jobs.migrate import MigrateResult
    from stantools.pipeline.jobs.migrateplans import PlannedStore, Sources
    from stantools.pipeline.tables.found import FoundStore
    from stantools.pipeline.tables.options import TableOptions

#: Stores whose plans and results are shown in full.
_NAMED = 5
#: What a job over many stores ends with: the worst first.
_WORST = (ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.FINDINGS, ExitCode.LOSS, ExitCode.CLEAN)


@dataclass(frozen=True)
class Job:
    """What is done, and where plans and backups are kept."""

    out: Path | None = OUT.field(
        help="No server: write a backup of each stream, where all workers can write.", metavar="DIR"
    )
    plans: Path = option(
        "Where the plan and the journal of each store are kept, on this machine.",
        default=Path(),
        kind=Path,
        metavar="DIR",
    )
    compare: bool = option("Only compare what is there with the stores; change nothing.", "--verify", default=False)


@job("migrate", "table", "json")
@stores_argument
@options_of(Job, "asked")
@connection_options
@planning_options_with(table_reading_options(unchecked=False, remote=False))
@applying_options
@cluster_options
@dry_run_option
@yes_option
def command(
    stores: tuple[str, ...],
    asked: Job,
    connecting: ConnectOptions,
    planning: Planning,
    applying: Applying,
    cluster: Cluster,
    dry_run: bool,
    yes: bool,
) -> int:
    """Move the channels of STORES into JetStream streams, and their durables into consumers: one task a stream.

    For each store it does what `stantools migrate` does, and says the same in the same json. A task plans a store; with
    your consent every stream is restored, compared message by message, and noted in a journal here. Interrupted? The
    same command goes on. STORES are not changed; one that cannot be read is named, and the others are migrated.

    Stores with channels of the same names need prefixes that keep them apart, in which {store} stands for the name of
    a store's directory: --stream-prefix '{store}-' --subject-prefix '{store}'.

    Restores are done one after the other, however many cores there are, unless --parallel says otherwise: servers were
    seen to crash with several. Backups (--out) and publishing (--via publish) use the whole cluster.

    Exit code 0: done and proven. 1: something differs, or a store cannot be read. 3: the server cannot be used. 4:
    refused; nothing was changed. 5: done, with the loss that --accept-loss accepted.
    """
    from stantools.cli.progress import Progress
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.plan.model import Way
    from stantools.migration.workflow import serious
    from stantools.pipeline.jobs.migrate import MigrateResult, apply_stores, check_speculation, verify_stores
    from stantools.pipeline.jobs.migrateplans import find_obstacles, plan_stores
    from stantools.pipeline.spark.tasks import SparkWork

    out = asked.out
    target = _target(out, connecting)
    reference = target.reference()
    options = planning.plan_options(reference)
    how = applying.options(options.way)
    sources, (found, failed) = _sources(stores, planning)
    with on_spark(cluster, "migrate") as spark:
        work = SparkWork(spark, cluster.partitions)
        if out is None and not asked.compare:
            check_speculation(spark, how.way)
        with Progress("plan", sum(_size(store, planning) for store in found)) as shown:
            planned, unread = plan_stores(work, found, sources, options, progress=shown.advance)
        result = MigrateResult(failed=[*failed, *unread])
        if not planned:
            report_failed(result.failed)
            if console.output() == "json":
                print_json(_json(result))
            return ExitCode.UNREACHABLE
        files = _files(planned, asked.plans)
        total = sum(store.plan.messages for store in planned)
        if asked.compare:
            published = _published(files)
            with StreamsProgress("verify", total) as watch:
                result.stores = verify_stores(
                    work,
                    planned,
                    target,
                    sources,
                    lambda store, stream: how.way is Way.PUBLISH or stream.name in published[store.root],
                    watch=watch,
                )
            return _report(result, changed=False)
        begun = _begun(files)
        notes = find_obstacles(planned, target, how, begun)
        _show(planned, notes)
        lossy = any(store.plan.lossy for store in planned)
        if dry_run:
            report_failed(result.failed)
            return (
                ExitCode.REFUSED if serious(notes) else ExitCode.FINDINGS if lossy or result.failed else ExitCode.CLEAN
            )
        _refuse(planned, notes, applying)
        _keep_plans(planned, files)
        if not _agreed(planned, reference, yes=yes):
            console.note("nothing was done")
            return ExitCode.CLEAN
        with _journals(planned, files) as journals, StreamsProgress("migrate", total) as watch:
            result.stores = apply_stores(
                SparkWork(spark, _partitions(out, how, applying, cluster)),
                planned,
                journals,
                target,
                sources,
                how,
                there=_there(connecting) if out is None else frozenset(),
                watch=watch,
            )
    return _report(result, changed=True)


def _target(out: Path | None, connecting: ConnectOptions) -> Destination:
    """Returns where streams go: somewhere that tasks on other machines reach as well."""
    from stantools.migration.targets.backup import BackupDirectory
    from stantools.migration.targets.server import ServerDestination

    if out is not None:
        return BackupDirectory(out)
    if connecting.embedded:
        raise UsageError("--server embedded is no server that tasks could reach", "start one, and give its URL")
    return ServerDestination(_everywhere(or_selected(connecting)))


def _everywhere(connecting: ConnectOptions) -> ConnectOptions:
    """Returns the options with whole paths: tasks have other working directories."""
    paths = ("nkey", "creds", "tls_ca", "tls_cert", "tls_key")
    given = {name: getattr(connecting, name) for name in paths}
    return replace(connecting, **{name: path.absolute() for name, path in given.items() if path is not None})


def _sources(stores: tuple[str, ...], planning: Planning) -> tuple[Sources, tuple[list[FoundStore], list[Any]]]:
    """Finds the stores; what cannot be read of what was given is no reason to stop."""
    from stantools.pipeline.jobs.migrateplans import Sources
    from stantools.pipeline.jobs.outcome import Failed
    from stantools.pipeline.tables.discovery import discover

    reading = cast("TableOptions", planning.reading)
    options = reading.of(stores, channels=planning.channels)
    found, unreadable = discover(options)
    sources = Sources(options, planning.channels, planning.generation, planning.archived, planning.keep_encrypted)
    return sources, (found, [Failed.unreadable(each) for each in unreadable])


def _size(store: FoundStore, planning: Planning) -> int:
    from stantools.pipeline.jobs.migrateplans import store_size

    return store_size(store, planning.channels)


def _files(planned: Sequence[PlannedStore], folder: Path) -> dict[str, Path]:
    """Returns the plan file of each store; where directories have the same name, with digits of their paths."""
    from stantools.migration.plan.names import digits

    names = [Path(store.root).name for store in planned]
    files = {}
    for store, name in zip(planned, names, strict=True):
        apart = f"-{digits(store.root)}" if names.count(name) > 1 else ""
        files[store.root] = folder / f"{name}{apart}.migration.yaml"
    return files


def _begun(files: Mapping[str, Path]) -> dict[str, Any]:
    from stantools.migration.journal import remembered_streams

    return {name: entry for file in files.values() for name, entry in remembered_streams(file).items()}


def _published(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Returns the streams of each store that were published, wholly or in part, as far as the journals know."""
    from stantools.migration.journal import remembered_streams
    from stantools.migration.plan.model import Way

    return {
        root: {name for name, entry in remembered_streams(file).items() if entry.get("way") == Way.PUBLISH}
        for root, file in files.items()
    }


def _there(connecting: ConnectOptions) -> frozenset[str]:
    """Returns the streams that are on the server."""
    from stantools.migration.tasks import run
    from stantools.nats.connection import connect
    from stantools.nats.jetstream import JetStream

    async def ask() -> frozenset[str]:
        async with connect(or_selected(connecting)) as connection:
            return frozenset(await JetStream(connection).stream_names())

    return run(ask())


def _partitions(out: Path | None, how: ApplyOptions, applying: Applying, cluster: Cluster) -> int | None:
    """Returns how many streams are worked on at the same time, None for as many as the cluster can."""
    from stantools.migration.plan.model import Way

    given = click.get_current_context().get_parameter_source("parallel") is not click.core.ParameterSource.DEFAULT
    if given or (out is None and how.way is Way.ARCHIVE):
        return applying.parallel
    return cluster.partitions


def _show(planned: Sequence[PlannedStore], notes: Sequence[Note]) -> None:
    from stantools.cli.migrationview import show_notes, show_plan

    if console.output() != "table":
        return
    if len(planned) <= _NAMED:
        for store in planned:
            if len(planned) > 1:
                click.echo(console.paint(console.escape(store.root), "cyan", err=False))
            show_plan(store.plan, ())
        show_notes(notes)
        return
    headers = ("store", "streams", "messages", "consumers", "lost")
    rows = [
        (
            store.root,
            len(store.plan.streams),
            store.plan.messages,
            store.plan.consumers,
            store.plan.lost or ("yes" if store.plan.lossy else None),
        )
        for store in planned
    ]
    click.echo(table_text(headers, rows, right=headers[1:]))
    show_notes(notes)


def _refuse(planned: Sequence[PlannedStore], notes: Sequence[Note], applying: Applying) -> None:
    """Stops where something stands in the way, or is lost without consent.

    Raises:
        RefusedError: Always in these cases.
    """
    from stantools.migration.workflow import refuse_problems

    refuse_problems(notes)
    lossy = [store for store in planned if store.plan.lossy]
    if lossy and not applying.accept_loss:
        lost = sum(store.plan.lost for store in lossy)
        what = counted(lost, "message", "is/are") if lost else "something is"
        raise RefusedError(
            f"nothing was changed: {len(lossy)} of {counted(len(planned), 'store')} "
            f"{'is' if len(lossy) == 1 else 'are'} damaged, {what} lost: {lossy[0].root}",
            "--accept-loss migrates what is intact; `stantools pipeline verify` says more",
        )


def _keep_plans(planned: Sequence[PlannedStore], files: Mapping[str, Path]) -> None:
    """Writes the plans, unless they are there already.

    Raises:
        RefusedError: One is there and is another plan.
        StoreUnwritableError: One cannot be written.
    """
    from stantools.migration.plan.planfile import read_plan, write_plan
    from stantools.store.durable import writing

    for store in planned:
        file = files[store.root]
        if not file.exists():
            with writing(file.parent):
                file.parent.mkdir(parents=True, exist_ok=True)
            write_plan(file, store.plan)
        elif read_plan(file).digest != store.plan.digest:
            raise RefusedError(
                f"{file}: is there already, and is another plan than what {store.root} needs now",
                "finish that one with `stantools migrate apply`, or remove it; --plans names another directory",
            )


def _agreed(planned: Sequence[PlannedStore], reference: object, *, yes: bool) -> bool:
    streams = counted(sum(len(store.plan.streams) for store in planned), "stream")
    stores = counted(len(planned), "store")
    return console.confirm(f"migrate {streams} of {stores} to {reference}?", yes=yes)


@contextlib.contextmanager
def _journals(planned: Sequence[PlannedStore], files: Mapping[str, Path]) -> Iterator[dict[str, Journal]]:
    """Opens the journals of all stores."""
    from stantools.migration.journal import Journal

    with contextlib.ExitStack() as stack:
        yield {
            store.root: stack.enter_context(Journal(files[store.root], store.plan.digest, str(store.plan.target)))
            for store in planned
        }


def _json(result: MigrateResult) -> dict[str, Any]:
    from stantools.cli.migrationview import results_json

    stores = [{"store": store.root, **results_json(store.plan, streams)} for store, streams in result.stores]
    return {
        "clean": not result.failed and all(store["clean"] for store in stores),
        "stores": stores,
        "failed": [each.as_json() for each in result.failed],
    }


def _report(result: MigrateResult, *, changed: bool) -> int:
    """Prints the results and returns the exit code."""
    from stantools.cli.migrationview import show_results
    from stantools.migration.workflow import exit_code

    codes = {exit_code(store.plan, streams, changed=changed) for store, streams in result.stores}
    if result.failed:
        codes.add(ExitCode.FINDINGS)
    if console.output() == "json":
        print_json(_json(result))
    else:
        bad = [each for each in result.stores if not all(stream.good for stream in each[1])]
        named = result.stores if len(result.stores) <= _NAMED else bad[:_NAMED]
        for store, streams in named:
            if len(result.stores) > 1:
                click.echo(console.paint(console.escape(store.root), "cyan", err=False))
            show_results(streams)
        if len(bad) > len(named):
            click.echo(f"… and {counted(len(bad) - len(named), 'more store')}; -o json has them all")
        good = [stream for _, streams in result.stores for stream in streams if stream.good]
        text = f"{counted(len(good), 'stream')} of {counted(len(result.stores), 'store')} as planned"
        compared = sum(stream.proven for stream in good)
        text += f"; {counted(compared, 'message', 'was/were')} compared one by one" if compared else ""
        click.echo(console.paint(text, "green" if not bad else "yellow", err=False))
    report_failed(result.failed)
    return next(code for code in _WORST if code in codes or code is ExitCode.CLEAN)
