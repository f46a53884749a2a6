"""The steps that the stages of `stantools migrate` share: open the store of a plan, show the plan and ask, apply it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.cli.click_options import ChangeMode
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import preview, show
from stantools.errors import ExitCode, InterruptionError, StoreUnreadableError, UsageError
from stantools.escaping import shell_word
from stantools.inspection.report import ReportRemark
from stantools.notation import counted

if TYPE_CHECKING:
    from stantools.inspection.report import Report
    from stantools.migration.plan.migration_plan import MigrationPlan
    from stantools.migration.plan.plan_options import PlanOptions
    from stantools.migration.run_options import ApplySettings, PlanStoreOptions
    from stantools.migration.source import StoreSource
    from stantools.migration.targets.target import Destination
    from stantools.migration.workflow import Migration
    from stantools.nats.connect_options import ConnectOptions
    from stantools.sources.source import Source


def reopen(plan: MigrationPlan, store_options: PlanStoreOptions, *, running: bool) -> StoreSource:
    """Reads the store or the nodes of a plan; unless `running`, they must have stopped."""
    from stantools.cli.opening import node_source, open_source, read_source
    from stantools.sources.nodes import node_of
    from stantools.sources.source import Capability

    read_options, source_options = store_options.read_options(plan.source), store_options.source_options(plan)
    if not plan.source.nodes:
        path = store_options.store or Path(plan.source.path)
        return read_source(
            [open_source(path, read_options, Capability.MIGRATION)], read_options, source_options, running=running
        )
    if store_options.store:
        raise UsageError("the plan is of the nodes of a cluster", "if they are elsewhere now, change `nodes` in it")
    try:
        nodes = [node_source(node_of(each), read_options) for each in plan.source.nodes]
    except ValueError as error:
        raise StoreUnreadableError(f"a node of the plan is missing: {error}") from error
    return read_source(nodes, read_options, source_options, running=running)


@contextmanager
def opened_plan(
    file: Path, store_options: PlanStoreOptions, connect_options: ConnectOptions, *, running: bool
) -> Iterator[tuple[MigrationPlan, StoreSource, Destination]]:
    """Opens the target of a plan and reads its store; the plan that it yields names this target."""
    from stantools.migration.plan.planfile import read_plan
    from stantools.migration.targets.target import connecting_of, opened, places_of

    plan = read_plan(file)
    places = places_of(plan, store_options.account, store_options.embedded_store, force=store_options.force)
    with opened(places, connecting_of(plan, connect_options), note=console.note) as target:
        plan = plan.at(target.reference())
        yield plan, reopen(plan, store_options, running=running), target


def restore_streams(
    options: PlanOptions,
    plan_file: Path | None,
    sources: Sequence[Source],
    target: Destination,
    settings: ApplySettings,
    consent: ChangeMode,
) -> int:
    """Restores the streams of a JetStream directory into a running server, and proves them."""
    from stantools.migration.salvaged_streams import check_restore, migration_of
    from stantools.migration.workflow import Migration, default_plan_file
    from stantools.recovery.recovery_options import StreamSalvageOptions
    from stantools.recovery.streams.stream_plan import plan_stream_salvage
    from stantools.recovery.streams.stream_salvage_report import stream_salvage_report
    from stantools.sources.jetstream import joined

    check_restore(target, options)
    with ByteProgress("plan") as shown:
        salvage = plan_stream_salvage(
            joined(sources),
            StreamSalvageOptions(replicas=options.replicas),
            options.channels,
            shown.advance,
            [each.path for each in sources],
        )
    plan, inputs = migration_of(salvage, target.reference())
    file = plan_file or default_plan_file(Path(plan.source.path))
    migration = Migration(plan, None, target, settings.options(plan.way), file, restored=inputs)
    return apply_plan(migration, settings, consent, report=stream_salvage_report(salvage))


def confirm(
    migration: Migration,
    verb: str,
    settings: ApplySettings,
    consent: ChangeMode,
    again: str = "",
    report: Report | None = None,
) -> ExitCode | None:
    """Shows obstacles, and asks; returns the exit code if nothing is to be done.

    With `again`, the command that applies the plan later, the plan is written first. The `report` is that of a plan
    without a file.
    """
    from stantools.migration.migration_report import migration_plan_report
    from stantools.migration.workflow import refuse

    plan, problems = migration.plan, migration.problems()
    if report:
        report.list_remarks(
            (ReportRemark(str(each.level), f"{each.about}: {each.text}") for each in problems), "problem"
        )
    else:
        report = migration_plan_report(plan, problems, migration.contents())
    if consent.dry_run:
        return show(report)
    preview(report)
    refuse(plan, problems, accept_loss=settings.accept_loss)
    if again:
        migration.keep_plan()
        console.note(f"the plan is in {migration.file}; the journal will be beside it")
    if console.confirm(f"{verb} {counted(len(plan.streams), 'stream')} to {plan.target}?", yes=consent.yes):
        return None
    return console.declined(again)


def apply_plan(
    migration: Migration,
    settings: ApplySettings,
    consent: ChangeMode,
    *,
    new: bool = False,
    report: Report | None = None,
) -> int:
    """Asks, and applies the plan; a new one is written first."""
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.migration_report import migration_report

    plan, file = migration.plan, None if migration.restored else migration.file
    again = f"stantools migrate apply {shell_word(str(file))}" if file else ""
    if (settled := confirm(migration, "migrate", settings, consent, again if new else "", report)) is not None:
        return settled
    with migration.journal() as journal:
        if journal.resumed:
            console.note(f"continuing from {journal.path}")
        try:
            with StreamsProgress("migrate", migration.amount, place=str(plan.target)) as watch:
                results = migration.apply(journal, watch)
        except KeyboardInterrupt as interruption:
            raise InterruptionError(
                "interrupted; complete streams stay, unfinished ones are continued or restarted",
                f"to continue: the same command{again and f', or {again}'}",
            ) from interruption
    return show(migration_report(plan, results, file, loaded=True))
