"""`stantools migrate`: plan, apply and verify a migration to JetStream, in one go or stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.connecting import connection_options, or_selected
from stantools.cli.migrationoptions import (
    Planning,
    Reopening,
    applying_options,
    place_options,
    planning_options,
)
from stantools.cli.options import (
    GroupedCommand,
    dry_run_option,
    given,
    options_of,
    store_argument,
    yes_option,
)
from stantools.cli.options import command as command_of
from stantools.cli.verbs import CONTEXT, summaries
from stantools.errors import ExitCode, InterruptionError
from stantools.escaping import shell_word
from stantools.migration.options import Applying
from stantools.migration.plan.model import Places
from stantools.migration.targets.target import connecting_of, opened, places_of
from stantools.options import Option

if TYPE_CHECKING:
    from stantools.format.crc import Crc
    from stantools.migration.journal import StreamResult
    from stantools.migration.plan.model import Note, Plan
    from stantools.migration.source import SourceOptions, StoreSource
    from stantools.migration.targets.target import Destination
    from stantools.migration.workflow import Migration
    from stantools.nats.options import ConnectOptions
    from stantools.store.directory import Datastore

_PLAIN = "run"


class _Stages(click.Group):
    """A group that takes a store in the place of a stage: then all stages are run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Finds out whether a stage is named."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_PLAIN, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the stage; all stages in one have no name of their own in messages."""
        name, stage, rest = super().resolve_command(ctx, args)
        return "" if name == _PLAIN else name, stage, rest

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help of all stages in one, and how to run them one by one."""
        plain = self.commands[_PLAIN]
        with click.Context(plain, info_name=ctx.info_name, parent=ctx.parent, **CONTEXT) as own:
            plain.format_help(own, formatter)
        with formatter.section("Stage by stage"):
            stages = {name: each for name, each in self.commands.items() if name != _PLAIN}
            formatter.write_dl([(f"{ctx.info_name} {n}", each.get_short_help_str(120)) for n, each in stages.items()])


@click.group("migrate", cls=_Stages, short_help=summaries()["migrate"], context_settings=CONTEXT)
def command() -> None:
    """Move channels into JetStream streams and durables into consumers, exactly, and prove it.

    Given a store, all stages are run; `plan`, `apply` and `verify` run one of them.
    """


def _stage(name: str) -> Callable[[Callable[..., int]], click.Command]:
    """Declares a function to be a stage."""

    def add(function: Callable[..., int]) -> click.Command:
        stage = command_of(name, None, "table", "json", kind=GroupedCommand)(function)
        stage.hidden = name == _PLAIN
        command.add_command(stage)
        return stage

    return add


_plan_argument = click.argument("plan_file", type=click.Path(path_type=Path), metavar="PLAN")
_PLAN_FILE = Option(help="Where the plan is written.", flags=("--plan",), kind=Path, metavar="FILE")


@_stage(_PLAIN)
@store_argument
@place_options
@connection_options
@planning_options
@given(plan_file=_PLAN_FILE)
@applying_options
@dry_run_option
@yes_option
def run(
    store: Path,
    places: Places,
    connecting: ConnectOptions,
    planning: Planning,
    plan_file: Path | None,
    applying: Applying,
    dry_run: bool,
    yes: bool,
) -> int:
    """Move the channels of STORE into JetStream streams, and its durables into consumers, exactly.

    Sequences, gaps, timestamps, payloads, reply subjects and the position of every durable and durable queue group are
    kept. STORE is not changed, and needs no server; what is damaged in it is left out, and told before.

    A plan is written first (--plan, by default beside where you are) and shown; after your consent every stream is
    restored, compared message by message, and noted in a journal beside the plan. Interrupted? The same command
    goes on. --dry-run stops after the plan is shown, and writes none.

    Exit code 0: done and proven. 1: something differs. 3: the server, or the store, cannot be used. 4: refused; nothing
    was changed. 5: done, with the loss that --accept-loss accepted.
    """
    from stantools.migration.workflow import Migration, check_plan_file, default_plan_file

    with opened(places, or_selected(connecting), start=not dry_run, note=console.note) as target:
        source, plan = _make_plan(store, planning, target)
        file = plan_file or default_plan_file(store)
        if not dry_run:
            check_plan_file(file, plan)
        migration = Migration(plan, source, target, applying.options(plan.way), file)
        return _go_through(migration, applying, dry_run=dry_run, yes=yes, new=True)


@_stage("plan")
@store_argument
@place_options
@connection_options
@planning_options
@given(plan_file=_PLAN_FILE.like(help="Where to; - is standard output."))
def plan_stage(
    store: Path, places: Places, connecting: ConnectOptions, planning: Planning, plan_file: Path | None
) -> int:
    """Write the plan of a migration, to be reviewed and edited; change nothing.

    It says for every channel which stream it becomes, with which subjects and limits; for every durable which consumer
    it becomes and where that stands; and what is left out, and why.
    """
    from stantools.migration.plan.planfile import write_plan
    from stantools.migration.plan.planwriter import render_plan
    from stantools.migration.workflow import Migration, check_plan_file, default_plan_file, serious

    with opened(places, or_selected(connecting), start=False, note=console.note) as target:
        source, plan = _make_plan(store, planning, target)
        problems = Migration(plan, source, target).problems()
    if str(plan_file) == "-":
        click.echo(render_plan(plan), nl=False)
    else:
        file = plan_file or default_plan_file(store)
        check_plan_file(file, plan)
        write_plan(file, plan)
        console.note(f"the plan is in {file}; go on with: stantools migrate apply {shell_word(str(file))}")
        _show(plan, problems)
    return ExitCode.FINDINGS if serious(problems) or plan.lossy else ExitCode.CLEAN


@_stage("apply")
@_plan_argument
@connection_options
@options_of(Reopening, "reopening", without=("parallel",))
@applying_options
@dry_run_option
@yes_option
def apply_stage(
    plan_file: Path, connecting: ConnectOptions, reopening: Reopening, applying: Applying, dry_run: bool, yes: bool
) -> int:
    """Carry out a plan, and prove what was done. The same command goes on after an interruption."""
    from stantools.migration.plan.planfile import read_plan
    from stantools.migration.workflow import Migration

    plan = read_plan(plan_file)
    places = places_of(plan, reopening.account, reopening.embedded_store, force=reopening.force)
    with opened(places, connecting_of(plan, connecting), note=console.note) as target:
        plan = plan.at(target.reference())
        source = _reopen(plan, reopening)
        migration = Migration(plan, source, target, applying.options(plan.way), plan_file)
        return _go_through(migration, applying, dry_run=dry_run, yes=yes)


@_stage("verify")
@_plan_argument
@connection_options
@options_of(
    Reopening,
    "reopening",
    without=("force",),
    keep_encrypted="Payloads were migrated as they are stored, without a key.",
)
def verify_stage(plan_file: Path, connecting: ConnectOptions, reopening: Reopening) -> int:
    """Prove a migration: compare every message and every consumer of the target with the store."""
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.plan.checks import find_changes
    from stantools.migration.plan.planfile import read_plan
    from stantools.migration.workflow import Migration

    plan = read_plan(plan_file)
    places = places_of(plan, reopening.account, reopening.embedded_store)
    with opened(places, connecting_of(plan, connecting), note=console.note) as target:
        plan = plan.at(target.reference())
        source = _reopen(plan, reopening)
        for note in find_changes(plan, source):
            console.warning(f"{console.escape(note.about)}: {note.text}", note.remedy)
        with StreamsProgress("verify", plan.messages, place=str(plan.target)) as watch:
            results = Migration(plan, source, target, file=plan_file).verify(watch, reopening.parallel)
    return _report(plan, results, None)


def _make_plan(store: Path, planning: Planning, target: Destination) -> tuple[StoreSource, Plan]:
    """Reads the store and plans."""
    from stantools.cli.opening import open_store
    from stantools.migration.plan.planner import make_plan

    # Everything that can be wrong at once is found before the long reading.
    reading, taking = planning.here()
    found = open_store(store, reading)
    options = planning.plan_options(target.reference())
    source = _read_source(found, taking)
    return source, make_plan(source, options, options.target.version)


def _reopen(plan: Plan, reopening: Reopening) -> StoreSource:
    """Reads the store that a plan was made for."""
    from stantools.cli.opening import open_store

    found = open_store(reopening.store or Path(plan.source.path), reopening.reading(plan.source))
    return _read_source(found, reopening.taking(plan.source))


def _read_source(found: tuple[Datastore, Crc], taking: SourceOptions) -> StoreSource:
    from stantools.cli.opening import channel_names
    from stantools.cli.progress import Progress
    from stantools.migration.workflow import read_source
    from stantools.store.locks import check_not_in_use

    store, crc = found
    for use in check_not_in_use(store.path, force=True):
        console.warning(f"{use.detail}: what it writes from now on is not migrated", "stop it for a complete migration")
    names = channel_names(store, taking.patterns)
    with Progress("read", store.data_size(names)) as shown:
        return read_source(store, crc, taking, progress=shown.advance)


def _go_through(migration: Migration, applying: Applying, *, dry_run: bool, yes: bool, new: bool = False) -> int:
    """Shows what stands in the way, asks, and carries the plan out; a new plan is written before."""
    from stantools.migration.workflow import refuse, serious
    from stantools.notation import counted

    plan, again = migration.plan, f"stantools migrate apply {shell_word(str(migration.file))}"
    problems = migration.problems()
    _show(plan, problems)
    if dry_run:
        return ExitCode.REFUSED if serious(problems) else ExitCode.FINDINGS if plan.lossy else ExitCode.CLEAN
    refuse(plan, problems, accept_loss=applying.accept_loss)
    if new:
        migration.keep_plan()
        console.note(f"the plan is in {migration.file}; the journal will be beside it")
    if not console.confirm(f"migrate {counted(len(plan.streams), 'stream')} to {plan.target}?", yes=yes):
        if new:
            console.note(f"nothing was done; later: {again}")
        return ExitCode.CLEAN
    return _carry_out(migration, again)


def _show(plan: Plan, problems: Sequence[Note]) -> None:
    from stantools.cli.migrationview import show_plan

    if console.output() == "table":
        show_plan(plan, problems)


def _carry_out(migration: Migration, again: str) -> int:
    from stantools.cli.streamprogress import StreamsProgress

    plan = migration.plan
    with migration.journal() as journal:
        if journal.resumed:
            console.note(f"going on with what {journal.path} remembers")
        try:
            with StreamsProgress("migrate", migration.amount, place=str(plan.target)) as watch:
                results = migration.apply(journal, watch)
        except KeyboardInterrupt as interruption:
            raise InterruptionError(
                "interrupted; streams that are complete stay, what was under way is gone on with or begun again",
                f"to go on: the same command, or {again}",
            ) from interruption
    return _report(plan, results, migration.file)


def _report(plan: Plan, results: Sequence[StreamResult], file: Path | None) -> int:
    """Prints the results and returns the exit code."""
    from stantools.cli.migrationview import results_json, show_results
    from stantools.cli.output import print_json
    from stantools.migration.journal import Outcome
    from stantools.migration.workflow import exit_code
    from stantools.notation import counted

    if console.output() == "json":
        print_json(results_json(plan, results))
    else:
        show_results(results)
    failed = [result for result in results if result.error]
    different = [result for result in results if result.findings]
    if file is not None and (failed or different):
        left = sum(result.outcome is Outcome.NOT_BEGUN for result in results)
        what = f"{counted(left, 'stream')} {'was' if left == 1 else 'were'} not begun; " if left else ""
        console.note(f"{what}when the cause is removed, go on with: stantools migrate apply {shell_word(str(file))}")
    code = exit_code(plan, results, changed=file is not None)
    if console.output() == "table" and not failed and not different:
        compared = sum(result.proven for result in results)
        text = f"{counted(len(results), 'stream')} {'is' if len(results) == 1 else 'are'} as the plan says"
        text += f"; {counted(compared, 'message', 'was/were')} compared one by one" if compared else ""
        click.echo(console.paint(text, "green", err=False))
    return code
