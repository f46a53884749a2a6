"""`stantools migrate`: plan, apply and verify a migration to JetStream, all at once or stage by stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    ChangeMode,
    PathType,
    SourceType,
    consent_options,
    each_of,
    given,
    in_group,
    limit_options,
    node_option,
    options_of,
    stores_argument,
    workers_option,
)
from stantools.cli.click_options import command as command_of
from stantools.cli.connection_options import connection_options, from_options, or_selected
from stantools.cli.migration_runs import apply_plan, confirm, opened_plan, restore_streams
from stantools.cli.progress import ByteProgress
from stantools.cli.report import OVERWRITE
from stantools.cli.reporttext import preview, show
from stantools.cli.stages import ALL_STAGES, StagesGroup
from stantools.cli.verbs import CONTEXT, summaries
from stantools.errors import ExitCode, InterruptionError, UsageError
from stantools.escaping import shell_word
from stantools.migration.plan.plan_options import PlanOptions, TargetPaths
from stantools.migration.protocol_source import ProtocolSource
from stantools.migration.run_options import ApplySettings, FollowOptions, PlanStoreOptions
from stantools.migration.targets.target import opened
from stantools.notation import counted
from stantools.options import Option, option

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster, NamedSources
    from stantools.migration.plan.migration_plan import MigrationPlan, OmittedPart
    from stantools.migration.source import StoreSource
    from stantools.migration.targets.stream_load import ApplyOptions
    from stantools.migration.targets.target import Destination
    from stantools.nats.connect_options import ConnectOptions
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.sources.source import Source
    from stantools.store.read_options import ReadOptions


@click.group("migrate", cls=StagesGroup, short_help=summaries()["migrate"], context_settings=CONTEXT)
def command() -> None:
    """Move channels into JetStream streams and durables into consumers, exactly, and prove it.

    With a store, all stages run; `plan`, `apply` and `verify` run one of them.
    """


def _stage(name: str) -> Callable[[Callable[..., int]], click.Command]:
    def add(function: Callable[..., int]) -> click.Command:
        stage = command_of(name, None, "table", "json")(function)
        stage.hidden = name == ALL_STAGES
        command.add_command(stage)
        return stage

    return add


_places = options_of(TargetPaths, "places", title="Target, if not a running server")
_reading = in_group("Reading the store", pipeline.reading_options(unchecked=False, remote=False), workers_option)
_planning = partial(
    options_of,
    PlanOptions,
    "plan_options",
    in_group("Limits of the streams", limit_options()),
    title="Selection and streams",
)
_remote = options_of(ProtocolSource, "remote_server", title="A server whose files are out of reach")
_follow_options = options_of(FollowOptions, "follow_options", title="Beside a running server")
_apply_options = options_of(ApplySettings, "settings", title="Execution")
_plan_argument = click.argument("plan_file", type=PathType(), metavar="PLAN")
_PLAN_FILE = Option(help="The file of the plan.", flags=("--plan",), kind=Path, metavar="FILE")


_sources = each_of(stores_argument("STORE... | NODE...", SourceType()), node_option)


@dataclass(frozen=True)
class PlannedMigration:
    """A source, its target, and the file of the plan."""

    stores: tuple[str, ...]
    places: TargetPaths
    connect_options: ConnectOptions
    plan_options: PlanOptions
    table_options: TableOptions
    remote_server: ProtocolSource
    plan_file: Path | None

    @cached_property
    def read_options(self) -> ReadOptions:
        return self.table_options.read_options()

    def target(self, *, start: bool) -> AbstractContextManager[Destination]:
        return opened(self.places, or_selected(self.connect_options), start=start, note=console.note)

    def named(self, cluster: Cluster) -> NamedSources:
        """Opens the source: a store, the nodes of a cluster, or several stores."""
        from stantools.sources.source import Capability

        self.remote_server.check(self.plan_options.channels)
        # of several stores, the result names the ones that cannot be migrated
        uses = (Capability.MIGRATION,) if len(self.stores) == 1 else ()
        return pipeline.named_sources(
            self.stores, self.table_options, cluster, *uses, channels=self.plan_options.channels
        )

    def whole(self, cluster: Cluster) -> list[Source]:
        """Opens the store, or the named nodes of a cluster, as the source of one plan."""
        if (sources := self.named(cluster).together()) is None:
            raise UsageError("a plan is of one store, or of the nodes of one cluster", "plan one store at a time")
        return sources

    def check_several(self) -> None:
        """Raises `UsageError` for an option that is for one store only."""
        places = self.places
        for flag, value in (
            ("--plan", self.plan_file),
            ("--jetstream-store", places.jetstream_store),
            ("--for-broker", self.plan_options.for_broker),
        ):
            if value:
                raise UsageError(f"{flag} is for one store", "migrate one store at a time, or leave it out")

    def options(self, target: Destination) -> PlanOptions:
        plan_options = self.plan_options
        decrypted = self.table_options.key.given
        return plan_options.settled(target.reference(), plan_options.all_overrides(), decrypted=decrypted)

    def plan(
        self, sources: Sequence[Source], target: Destination, *, running: bool
    ) -> tuple[StoreSource, MigrationPlan]:
        """Reads the store or the nodes and plans; unless `running`, they must have stopped."""
        from stantools.cli.opening import read_source
        from stantools.migration.plan.planner import make_plan

        # Every error that can be found at once precedes the long reading.
        options, source_options = self.options(target), self.plan_options.source_options()
        source = read_source(sources, self.read_options, source_options, running=running)
        plan = make_plan(source, options, options.target.version)
        return source, replace(plan, left_out=(*plan.left_out, *self.lacking))

    def copy(self, consent: ChangeMode) -> None:
        """Copies the channels of a server whose files are out of reach (--from); STORE is then the copy."""
        from stantools.cli.streamprogress import StreamsProgress
        from stantools.migration.protocol_copy import channels_of, copy_channels, left_out

        remote = self.remote_server
        remote.check(self.plan_options.channels)
        if not remote.source:
            return
        if consent.dry_run:
            if not remote.place.exists():
                raise UsageError(
                    f"there is no copy {remote.place} yet, and a plan copies nothing",
                    "run stantools migrate without --dry-run: it asks first",
                )
            return
        with self.target(start=False) as target:
            self.options(target)  # errors of the target precede the long copying
        channels = channels_of(remote, self.plan_options.channels)
        question = f"copy {counted(len(channels), 'channel')} of {remote.cluster_id} into {remote.place}?"
        if not console.confirm(question, yes=consent.yes):
            raise click.exceptions.Exit(console.declined())
        with StreamsProgress("copy", 0, place=remote.source) as watch:
            copied = copy_channels(remote, channels, from_options(remote.source, remote.source_context), watch)
        messages = sum(each.messages for each in copied)
        console.note(f"{counted(messages, 'message')} copied; the copy is {remote.place}")
        self.lacking.extend(left_out(remote, channels))

    @cached_property
    def lacking(self) -> list[OmittedPart]:
        """The parts of the server that the copy does not have."""
        return []


def _planned(plan_file: Option = _PLAN_FILE) -> Callable[[Any], Any]:
    return options_of(
        PlannedMigration,
        "planned",
        _sources,
        _places,
        connection_options,
        _planning(),
        _reading,
        _remote,
        given(plan_file=plan_file),
    )


@dataclass(frozen=True)
class SeveralStores:
    plans: Path | None = option("The local directory of each store's plan and journal.", kind=Path, metavar="DIR")
    compare: bool = option("Only compare the streams with the stores; change nothing.", "--verify", default=False)


@_stage(ALL_STAGES)
@_planned()
@_follow_options
@options_of(SeveralStores, "several", title="Several stores")
@in_group("Several stores", pipeline.cluster_options)
@_apply_options
@consent_options
def run(
    planned: PlannedMigration,
    follow_options: FollowOptions,
    several: SeveralStores,
    cluster: Cluster,
    settings: ApplySettings,
    consent: ChangeMode,
) -> int:
    """Move the channels of STORE into JetStream streams, and its durables into consumers, exactly.

    Sequences, gaps, timestamps, payloads, reply subjects and the position of every durable and durable queue group are
    kept. STORE is not changed and needs no server; its damaged data is left out, and named first.

    First a plan is written (--plan, by default in the current directory) and shown; after your consent every stream is
    restored, compared message by message, and recorded in a journal beside the plan. After an interruption the same
    command continues. --dry-run only shows the plan and writes no file.

    Nodes of a cluster are merged first as by `stantools merge`, without writing the result; name all nodes. They must
    be stopped, except for --dry-run.

    --follow reads the files of a running server continuously: new messages are in the streams within a second, new
    channels become streams. --cutover ends it when the server has stopped. Ctrl-C ends it with a summary and exit code
    0, without consumers; after that, or a kill at any moment, the same command continues.

    --for-broker makes the streams in which `stan-broker -st jetstream` keeps channels, and restores clients, durables
    and queue groups as well, so that this broker continues where the server of STORE stopped.

    --from reads the named channels of a running server through its protocol, where its files are out of reach. It
    copies them into a store first, from which all else is done; consumers cannot be made, because the protocol does not
    show the positions of durables. The same command continues with the messages that are new.

    Several stores are migrated one by one, each with a plan and a journal of its own; an unreadable one is named, and
    the others are migrated. Stores with equal channel names need distinguishing prefixes, in which {store} stands for
    the name of a store's directory: --stream-prefix '{store}-' --subject-prefix '{store}'. On Spark there is a task for
    each stream; restores run one at a time by default, because servers have crashed with several (--parallel changes
    that), while backups (--out) and publishing (--via publish) use the whole cluster.

    Exit code 0: done and proven. 1: differences, or an unreadable store among several. 3: the server or the store
    cannot be used. 4: refused; nothing was changed. 5: done, with the loss accepted by --accept-loss.
    130: interrupted by Ctrl-C while streams were loaded or finished.
    """
    from stantools.migration.workflow import Migration, check_plan_file, default_plan_file, set_aside
    from stantools.store.durable import writing

    if planned.remote_server.source and follow_options.wanted:
        remedy = "run the same command again, which copies the new messages; the last time after stopping the producers"
        raise UsageError("--follow reads the files of a server, which --from does without", remedy)
    planned.copy(consent)
    named = planned.named(cluster)
    sources = None if several.compare else named.together()
    if sources is None:
        if follow_options.wanted:
            raise UsageError("--follow reads the files of one running server", "name one store")
        return _migrate_several(planned, named.several(), several, settings, consent)
    with planned.target(start=not consent.dry_run) as target:
        if sources[0].holds_streams:
            return restore_streams(planned.plan_options, planned.plan_file, sources, target, settings, consent)
        if follow_options.wanted:
            return _follow(planned, sources, target, follow_options, settings, consent)
        source, plan = planned.plan(sources, target, running=planned.places.force or consent.dry_run)
        file = planned.plan_file or default_plan_file(Path(plan.source.path))
        if several.plans and not planned.plan_file:
            if not consent.dry_run:
                with writing(several.plans):
                    several.plans.mkdir(parents=True, exist_ok=True)
            file = several.plans / file.name
        if planned.remote_server.source:
            settings = replace(settings, append_missing=not settings.replace)
        if not consent.dry_run:
            if planned.remote_server.source:
                set_aside(file, plan)
            check_plan_file(file, plan)
        migration = Migration(plan, source, target, settings.options(plan.way), file)
        return apply_plan(migration, settings, consent, new=True)


@_stage("plan")
@_planned(_PLAN_FILE.like(help="The file to write; - is standard output."))
def plan_stage(planned: PlannedMigration) -> int:
    """Write the plan of a migration, for review and editing; change nothing.

    It maps every channel to a stream with subjects and limits, and every durable to a consumer with its position; it
    lists the data left out, with reasons.
    """
    from stantools.migration.journal import check_journal, journal_path
    from stantools.migration.migration_report import migration_plan_report
    from stantools.migration.plan.planfile import render_plan, write_plan
    from stantools.migration.targets.stream_load import ExistingPolicy
    from stantools.migration.workflow import Migration, check_plan_file, default_plan_file

    planned.copy(ChangeMode(dry_run=True))
    sources = planned.whole(pipeline.Cluster(engine="local"))
    with planned.target(start=False) as target:
        source, plan = planned.plan(sources, target, running=True)
        file = planned.plan_file or default_plan_file(Path(plan.source.path))
        written = str(file) != "-"
        if written:
            check_plan_file(file, plan)
            if journal_path(file).exists():
                check_journal(file, plan.digest, str(plan.target))
        options = replace(ApplySettings().options(plan.way), existing=ExistingPolicy.UNDECIDED)
        migration = Migration(plan, source, target, options, file if written else None)
        report = migration_plan_report(plan, migration.problems(), migration.contents())
    if not written:
        click.echo(render_plan(plan), nl=False)
    else:
        write_plan(file, plan)
        show(report)
        word = shell_word(str(file))
        console.note(f"the plan is in {file}; next: stantools migrate apply {word}")
        console.note(f"for the teams of the applications: stantools migrate handout {word}")
    return ExitCode.FINDINGS if report.code else ExitCode.CLEAN


@_stage("apply")
@_plan_argument
@connection_options
@options_of(PlanStoreOptions, "store_options", without=("parallel",))
@_apply_options
@consent_options
def apply_stage(
    plan_file: Path,
    connect_options: ConnectOptions,
    store_options: PlanStoreOptions,
    settings: ApplySettings,
    consent: ChangeMode,
) -> int:
    """Apply a plan, and prove the result. The same command continues after an interruption."""
    from stantools.migration.workflow import Migration

    with opened_plan(plan_file, store_options, connect_options, running=store_options.force) as (plan, source, target):
        migration = Migration(plan, source, target, settings.options(plan.way), plan_file)
        return apply_plan(migration, settings, consent)


@dataclass(frozen=True)
class HandoutFiles:
    html: Path | None = option("The page; by default beside the plan.", kind=Path, metavar="FILE")
    csv: Path | None = option("The table; by default beside the plan.", kind=Path, metavar="FILE")
    overwrite: bool = OVERWRITE.field()


@_stage("handout")
@_plan_argument
@options_of(HandoutFiles, "files")
def handout_stage(plan_file: Path, files: HandoutFiles) -> int:
    """Write a page and a csv file for the teams: the stream, consumer and subject of each client, durable and channel.

    The page has programs that read each consumer, in Go, Java, .NET, Node and Python.
    """
    from stantools.cli.report import check_page, write_page
    from stantools.migration.handout import as_csv, handout
    from stantools.migration.plan.planfile import read_plan

    html, csv = files.html or plan_file.with_suffix(".html"), files.csv or plan_file.with_suffix(".csv")
    for file in (html, csv):
        check_page(file, overwrite=files.overwrite)
    plan = read_plan(plan_file)
    from stantools.pages.handoutpage import handout_page

    write_page(html, handout_page(plan))
    write_page(csv, as_csv(handout(plan)))
    return ExitCode.CLEAN


@_stage("verify")
@_plan_argument
@connection_options
@options_of(
    PlanStoreOptions,
    "store_options",
    without=("force",),
    keep_encrypted="Payloads were migrated as stored, without a key.",
)
def verify_stage(plan_file: Path, connect_options: ConnectOptions, store_options: PlanStoreOptions) -> int:
    """Prove a migration: compare every message and every consumer of the target with the store."""
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.migration_report import migration_report
    from stantools.migration.plan.checks import find_changes
    from stantools.migration.workflow import Migration

    with opened_plan(plan_file, store_options, connect_options, running=True) as (plan, source, target):
        for note in find_changes(plan, source):
            console.warning(f"{console.escape(note.about)}: {note.text}", note.remedy)
        with StreamsProgress("verify", plan.messages, place=str(plan.target)) as watch:
            results = Migration(plan, source, target, file=plan_file).verify(watch, store_options.parallel)
    return show(migration_report(plan, results))


def _follow(
    planned: PlannedMigration,
    sources: Sequence[Source],
    target: Destination,
    follow_options: FollowOptions,
    settings: ApplySettings,
    consent: ChangeMode,
) -> int:
    """Shows the plan of the present data, asks, and follows the store into the streams."""
    from stantools.cli.opening import nodes_of
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.followed_store import (
        FollowedStore,
        FollowEnd,
        check_followable,
        has_ended,
        open_journal,
        store_of_nodes,
        was_seen,
    )
    from stantools.migration.migration_report import follow_end_report, migration_report
    from stantools.migration.plan.planfile import write_plan
    from stantools.migration.prepared_stream import prepare
    from stantools.migration.targets.server_destination import ServerDestination
    from stantools.migration.targets.stream_load import ExistingPolicy
    from stantools.migration.workflow import Migration, default_plan_file
    from stantools.store.read_options import open_store

    nodes = nodes_of(sources)
    follow_options.check(planned.plan_options, nodes=bool(nodes))
    if not isinstance(target, ServerDestination):
        raise UsageError("--follow needs the streams of a running server", "name it: --server URL")
    if sources[0].archived:
        raise UsageError("--follow reads the files of a running server", "name its directory")
    store = open_store(store_of_nodes(nodes), planned.read_options) if nodes else sources[0].store()
    source_options = planned.plan_options.source_options()
    followed = FollowedStore(store, source_options, planned.options(target), nodes, planned.read_options)
    file = planned.plan_file or default_plan_file(store.path, follows=True)
    with ByteProgress("read", store.data_size(store.chosen(source_options.patterns))) as shown:
        source = followed.first(shown.advance, ended=has_ended(file))
    plan = followed.plan(source)
    apply_options = replace(settings.options(plan.way), existing=ExistingPolicy.APPEND)
    check_followable(file, plan)
    migration = Migration(plan, source, target, apply_options, file, follows=True)
    if (settled := confirm(migration, "follow", settings, consent)) is not None:
        return settled
    ending = follow_options.ending(server_seen=was_seen(file))
    with open_journal(file, plan) as journal:
        try:
            with StreamsProgress("follow", plan.messages * 2, place=str(plan.target)) as watch:
                done = target.follow(followed, prepare(plan, source), journal, apply_options, ending, watch)
        except KeyboardInterrupt as interruption:
            raise InterruptionError(
                "interrupted while streams were loaded or finished; they hold the messages so far",
                "to continue: the same command; --cutover ends it when the server has stopped",
            ) from interruption
        if isinstance(done, FollowEnd):
            return show(follow_end_report(plan, done, time.time()))
        write_plan(file, done.plan)
    return show(migration_report(done.plan, done.results, cutover=done, loaded=True))


def _migrate_several(
    planned_migration: PlannedMigration,
    named: NamedSources,
    several: SeveralStores,
    settings: ApplySettings,
    consent: ChangeMode,
) -> int:
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.salvaged_streams import check_restore
    from stantools.migration.workflow import foreseen
    from stantools.pipeline.jobs.migrate import MigrateResult, StoresMigration, check_speculation, target_of_tasks
    from stantools.pipeline.jobs.migrateplans import Sources, plan_stores
    from stantools.pipeline.jobs.store_reports import migrate_plans_report, migrate_stores_report

    plan_options, cluster, out = planned_migration.plan_options, named.cluster, planned_migration.places.out
    planned_migration.check_several()
    connecting = planned_migration.connect_options
    target = target_of_tasks(out, connecting if out else or_selected(connecting))
    options = planned_migration.options(target)
    apply_options = settings.options(options.way)
    sources = Sources(named.options, plan_options.generation, plan_options.archived, plan_options.keep_encrypted)
    found, failed = sources.unplanned(named.found)
    failed += named.failed
    restored = [bool(each.found.streams) for each in found]
    if any(restored):
        check_restore(target, plan_options, alone=all(restored))
    size = sum(store.size for store in found)
    with cluster.work("migrate", size) as work:
        if out is None and not several.compare:
            check_speculation(work, apply_options.way)
        with ByteProgress("plan", size) as shown:
            planned, unread = plan_stores(work, found, sources, options, progress=shown.advance)
        failed += unread
        if not planned:
            result = MigrateResult(failed=failed)
            show(migrate_stores_report(result))
            pipeline.ended(result)
            return ExitCode.UNREACHABLE
        migration = StoresMigration(planned, sources, target, apply_options, several.plans or Path())
        if several.compare:
            with StreamsProgress("verify", migration.messages) as watch:
                result = migration.verify(work, watch)
        else:
            problems = migration.problems()
            report = migrate_plans_report(planned, problems, failed)
            if consent.dry_run:
                show(report)
                pipeline.report_failed(failed)
                return foreseen(problems, findings=bool(migration.lossy or failed))
            preview(report)
            migration.refuse(problems, accept_loss=settings.accept_loss)
            migration.keep_plans()
            streams = counted(sum(len(store.plan.streams) for store in planned), "stream")
            question = f"migrate {streams} of {counted(len(planned), 'store')} to {target.reference()}?"
            if not console.confirm(question, yes=consent.yes):
                return console.declined()
            limited = work.limited(_parallelism(out, apply_options, settings, cluster))
            with StreamsProgress("migrate", migration.messages) as watch:
                result = migration.apply(limited, watch)
    result.failed = failed
    show(migrate_stores_report(result))
    return pipeline.ended(result)


def _parallelism(out: Path | None, options: ApplyOptions, settings: ApplySettings, cluster: Cluster) -> int | None:
    """Returns the number of streams to process at the same time; None for no limit."""
    from stantools.migration.plan.choices import LoadMethod

    given = click.get_current_context().get_parameter_source("parallel") is not click.core.ParameterSource.DEFAULT
    if given or (out is None and options.way is LoadMethod.ARCHIVE):
        return settings.parallel
    return cluster.partitions
