"""`stantools migrate`: plan, apply and verify a migration to JetStream, in one go or stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.connecting import connection_options, or_selected
from stantools.cli.migrationoptions import (
    Applying,
    Planning,
    applying_options,
    embedded_store_option,
    force_option,
    place_options,
    planning_options,
    store_option,
)
from stantools.cli.options import (
    GroupedCommand,
    common_options,
    dry_run_option,
    key_options,
    output_option,
    progress_option,
    store_argument,
    workers_option,
    yes_option,
)
from stantools.cli.verbs import CONTEXT, summaries
from stantools.errors import ExitCode, InterruptionError, UsageError
from stantools.escaping import shell_word
from stantools.migration.plan.model import Places
from stantools.migration.targets.target import connecting_of, opened, places_of

if TYPE_CHECKING:
    from stantools.format.crc import Crc
    from stantools.migration.journal import StreamResult
    from stantools.migration.plan.model import Note, Plan
    from stantools.migration.source import StoreSource
    from stantools.migration.targets.target import Destination
    from stantools.nats.options import ConnectOptions
    from stantools.store.directory import Datastore
    from stantools.store.options import ReadOptions

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


@command.command(_PLAIN, cls=GroupedCommand, context_settings=CONTEXT, hidden=True)
@store_argument
@place_options
@connection_options
@planning_options
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Where the plan is written.")
@applying_options
@dry_run_option
@yes_option
@output_option("table", "json")
@progress_option
@common_options
def run(
    store: Path,
    places: Places,
    connecting: ConnectOptions,
    planning: Planning,
    plan_file: Path | None,
    applying: Applying,
    dry_run: bool,
    yes: bool,
    output: str,
    progress: str,
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
    from stantools.migration.workflow import check_plan_file, default_plan_file, refuse

    with opened(places, or_selected(connecting), start=not dry_run, note=console.note) as target:
        source, plan = _make_plan(store, planning, target, progress)
        file = plan_file or default_plan_file(store)
        if not dry_run:
            check_plan_file(file, plan)
        problems = _judge(plan, source, target, applying, planning.keep_encrypted, file)
        _show(plan, problems, output)
        if dry_run:
            return ExitCode.REFUSED if _serious(problems) else ExitCode.FINDINGS if plan.lossy else ExitCode.CLEAN
        refuse(plan, problems, accept_loss=applying.accept_loss)
        _keep_plan(file, plan)
        if not _agreed(plan, yes):
            console.note(f"nothing was done; later: stantools migrate apply {shell_word(str(file))}")
            return ExitCode.CLEAN
        return _carry_out(file, plan, source, target, applying, output, progress)


@command.command("plan", cls=GroupedCommand, context_settings=CONTEXT)
@store_argument
@place_options
@connection_options
@planning_options
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Where to; - is standard output."
)
@output_option("table", "json")
@progress_option
@common_options
def plan_stage(
    store: Path,
    places: Places,
    connecting: ConnectOptions,
    planning: Planning,
    plan_file: Path | None,
    output: str,
    progress: str,
) -> int:
    """Write the plan of a migration, to be reviewed and edited; change nothing.

    It says for every channel which stream it becomes, with which subjects and limits; for every durable which consumer
    it becomes and where that stands; and what is left out, and why.
    """
    from stantools.migration.plan.planfile import write_plan
    from stantools.migration.plan.planwriter import render_plan
    from stantools.migration.workflow import check_plan_file, default_plan_file

    with opened(places, or_selected(connecting), start=False, note=console.note) as target:
        source, plan = _make_plan(store, planning, target, progress)
        problems = _judge(plan, source, target, None, planning.keep_encrypted)
    if str(plan_file) == "-":
        click.echo(render_plan(plan), nl=False)
    else:
        file = plan_file or default_plan_file(store)
        check_plan_file(file, plan)
        write_plan(file, plan)
        console.note(f"the plan is in {file}; go on with: stantools migrate apply {shell_word(str(file))}")
        _show(plan, problems, output)
    return ExitCode.FINDINGS if _serious(problems) or plan.lossy else ExitCode.CLEAN


_plan_argument = click.argument("plan_file", type=click.Path(path_type=Path), metavar="PLAN")


@command.command("apply", cls=GroupedCommand, context_settings=CONTEXT)
@_plan_argument
@connection_options
@store_option
@key_options
@click.option("--keep-encrypted", is_flag=True, help="Migrate encrypted payloads as they are stored, without a key.")
@click.option("--account", default="$G", show_default=True, help="For a store directory: the account.")
@embedded_store_option
@force_option
@applying_options
@workers_option
@dry_run_option
@yes_option
@output_option("table", "json")
@progress_option
@common_options
def apply_stage(
    plan_file: Path,
    connecting: ConnectOptions,
    store: Path | None,
    encryption_key: bytes | None,
    keep_encrypted: bool,
    account: str,
    embedded_store: Path,
    force: bool,
    applying: Applying,
    workers: int,
    dry_run: bool,
    yes: bool,
    output: str,
    progress: str,
) -> int:
    """Carry out a plan, and prove what was done. The same command goes on after an interruption."""
    from stantools.migration.plan.planfile import read_plan
    from stantools.migration.workflow import refuse

    plan = read_plan(plan_file)
    places = places_of(plan, account, embedded_store, force=force)
    with opened(places, connecting_of(plan, connecting), note=console.note) as target:
        plan = plan.at(target.reference())
        source = _reopen(plan, store, encryption_key, keep_encrypted, workers, progress)
        problems = _judge(plan, source, target, applying, keep_encrypted, plan_file)
        _show(plan, problems, output)
        if dry_run:
            return ExitCode.REFUSED if _serious(problems) else ExitCode.FINDINGS if plan.lossy else ExitCode.CLEAN
        refuse(plan, problems, accept_loss=applying.accept_loss)
        if not _agreed(plan, yes):
            return ExitCode.CLEAN
        return _carry_out(plan_file, plan, source, target, applying, output, progress)


@command.command("verify", cls=GroupedCommand, context_settings=CONTEXT)
@_plan_argument
@connection_options
@store_option
@key_options
@click.option("--keep-encrypted", is_flag=True, help="Payloads were migrated as they are stored, without a key.")
@click.option("--account", default="$G", show_default=True, help="For a store directory: the account.")
@embedded_store_option
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=2, show_default=True, help="Streams read at the same time."
)
@workers_option
@output_option("table", "json")
@progress_option
@common_options
def verify_stage(
    plan_file: Path,
    connecting: ConnectOptions,
    store: Path | None,
    encryption_key: bytes | None,
    keep_encrypted: bool,
    account: str,
    embedded_store: Path,
    parallel: int,
    workers: int,
    output: str,
    progress: str,
) -> int:
    """Prove a migration: compare every message and every consumer of the target with the store."""
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.plan.checks import find_changes
    from stantools.migration.plan.planfile import read_plan
    from stantools.migration.prepared import prepare
    from stantools.migration.workflow import published

    plan = read_plan(plan_file)
    places = places_of(plan, account, embedded_store)
    with opened(places, connecting_of(plan, connecting), note=console.note) as target:
        plan = plan.at(target.reference())
        source = _reopen(plan, store, encryption_key, keep_encrypted, workers, progress)
        for note in find_changes(plan, source):
            console.warning(f"{console.escape(note.about)}: {note.text}", note.remedy)
        with StreamsProgress(progress, "verify", plan.messages, place=str(plan.target)) as watch:
            results = target.verify(prepare(plan, source), published(plan, plan_file), watch, parallel)
    return _report(plan, results, None, output)


def _make_plan(store: Path, planning: Planning, target: Destination, progress: str) -> tuple[StoreSource, Plan]:
    """Reads the store and plans."""
    from stantools.cli.opening import open_store
    from stantools.migration.plan.planner import make_plan

    # Everything that can be wrong at once is found before the long reading.
    found = open_store(store, planning.read_options)
    options = planning.options(target.reference())
    source = _read_source(
        found,
        planning.read_options,
        planning.channels,
        planning.generation,
        planning.archived,
        planning.keep_encrypted,
        planning.workers,
        progress,
    )
    return source, make_plan(source, options, options.target.version)


def _reopen(
    plan: Plan, store: Path | None, key: bytes | None, keep_encrypted: bool, workers: int, progress: str
) -> StoreSource:
    """Reads the store that a plan was made for.

    Raises:
        UsageError: The plan needs the encryption key.
    """
    from stantools.cli.opening import open_store
    from stantools.store.options import ReadOptions

    source = plan.source
    if source.decrypted and key is None:
        raise UsageError(
            "the plan was made with the encryption key, which it does not hold",
            "give the key: --encryption-key-env or --encryption-key-file",
        )
    reading = ReadOptions(source.crc_poly, True, key)
    return _read_source(
        open_store(store or Path(source.path), reading),
        reading,
        source.patterns,
        source.generation,
        source.archived,
        keep_encrypted,
        workers,
        progress,
    )


def _read_source(
    found: tuple[Datastore, Crc],
    reading: ReadOptions,
    patterns: tuple[str, ...],
    generation: str,
    archived: bool,
    keep_encrypted: bool,
    workers: int,
    progress: str,
) -> StoreSource:
    from stantools.cli.opening import channel_names
    from stantools.cli.progress import Progress
    from stantools.migration.workflow import read_source
    from stantools.store.locks import check_not_in_use

    opened_store, crc = found
    for use in check_not_in_use(opened_store.path, force=True):
        console.warning(f"{use.detail}: what it writes from now on is not migrated", "stop it for a complete migration")
    names = channel_names(opened_store, patterns)
    with Progress(progress, "read", opened_store.data_size(names)) as shown:
        return read_source(
            opened_store,
            crc,
            patterns=patterns,
            generation=generation,
            archived=archived,
            key=reading.encryption_key,
            keep_encrypted=keep_encrypted,
            workers=workers,
            progress=shown.advance,
        )


def _keep_plan(file: Path, plan: Plan) -> None:
    from stantools.migration.workflow import keep_plan

    keep_plan(file, plan)
    console.note(f"the plan is in {file}; the journal will be beside it")


def _agreed(plan: Plan, yes: bool) -> bool:
    from stantools.notation import counted

    return console.confirm(f"migrate {counted(len(plan.streams), 'stream')} to {plan.target}?", yes=yes)


def _judge(
    plan: Plan,
    source: StoreSource,
    target: Destination,
    applying: Applying | None,
    keep_encrypted: bool,
    file: Path | None = None,
) -> list[Note]:
    """Returns what stands in the way of a plan, and what else should be known."""
    from stantools.migration.workflow import judge

    options = applying.options(plan.way) if applying is not None else None
    return judge(plan, source, target, options, keep_encrypted=keep_encrypted, file=file)


def _serious(problems: Sequence[Note]) -> bool:
    from stantools.migration.workflow import serious

    return bool(serious(problems))


def _show(plan: Plan, problems: Sequence[Note], output: str) -> None:
    from stantools.cli.migrationview import show_plan

    if output == "table":
        show_plan(plan, problems)


def _carry_out(
    file: Path, plan: Plan, source: StoreSource, target: Destination, applying: Applying, output: str, progress: str
) -> int:
    from stantools.cli.streamprogress import StreamsProgress
    from stantools.migration.workflow import amount, carry_out, open_journal

    options = applying.options(plan.way)
    with open_journal(file, plan) as journal:
        if journal.resumed:
            console.note(f"going on with what {journal.path} remembers")
        try:
            with StreamsProgress(progress, "migrate", amount(plan, options), place=str(plan.target)) as watch:
                results = carry_out(plan, source, target, journal, options, watch)
        except KeyboardInterrupt as interruption:
            raise InterruptionError(
                "interrupted; streams that are complete stay, what was under way is gone on with or begun again",
                f"to go on: the same command, or stantools migrate apply {shell_word(str(file))}",
            ) from interruption
    return _report(plan, results, file, output)


def _report(plan: Plan, results: Sequence[StreamResult], file: Path | None, output: str) -> int:
    """Prints the results and returns the exit code."""
    from stantools.cli.migrationview import results_json, show_results
    from stantools.cli.output import print_json
    from stantools.migration.journal import Outcome
    from stantools.migration.workflow import exit_code
    from stantools.notation import counted

    if output == "json":
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
    if output == "table" and not failed and not different:
        compared = sum(result.proven for result in results)
        text = f"{counted(len(results), 'stream')} {'is' if len(results) == 1 else 'are'} as the plan says"
        text += f"; {counted(compared, 'message', 'was/were')} compared one by one" if compared else ""
        click.echo(console.paint(text, "green", err=False))
    return code
