"""`stantools truncate-bad-eof`: the server's own repair, with a report and a backup."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.click_options import dry_run_option, given, options_of, reading_options, store_argument, verb
from stantools.cli.diagnosis import ServerFlags
from stantools.cli.output import print_json, table_text
from stantools.errors import ExitCode
from stantools.notation import counted, describe_sequences, format_size
from stantools.options import FORCE, Option
from stantools.recovery.recovery_options import BACKUP

if TYPE_CHECKING:
    from stantools.recovery.truncate import RemovedRecord, TruncationPlan, TruncationResult
    from stantools.store.read_options import ReadOptions

_MANY = 40


@verb("truncate-bad-eof", "table", "json", progress=False)
@store_argument
@given(
    backup=BACKUP,
    force=FORCE.like(help="Repair even if salvage would keep more, or a server seems to be using the store."),
    in_place=Option(help="Do not ask before STORE is changed (same as --yes).", default=False),
    yes=Option(help="Do not ask before STORE is changed.", default=False),
)
@dry_run_option
@options_of(ServerFlags, "server", without=("cluster_id", "read_buffer", "workers"))
@reading_options()
def command(
    store: Path,
    backup: Path | None,
    force: bool,
    in_place: bool,
    yes: bool,
    dry_run: bool,
    server: ServerFlags,
    read_options: ReadOptions,
) -> int:
    """Repair STORE exactly as a start of the server with -file_truncate_bad_eof would, to the byte.

    Every removed record is listed with its sequence; the removed bytes are saved before anything changes. If a damaged
    length would make the server cut off intact records, the repair is refused: salvage keeps them. Like the server's,
    the repair leaves the file .truncate.lck, so the next start must be without the option. If no repair is needed,
    nothing is changed without --force.

    Exit code 0: done, only broken ends were cut off, or nothing to do. 1: the server would still not start, or would
    destroy data that no cut can save. 4: refused. 5: done, but intact records were cut off (--force). With --dry-run
    the codes describe the plan.
    """
    from stantools.cli.opening import open_source
    from stantools.recovery.truncate import apply_truncation, plan_truncation
    from stantools.recovery.truncate.apply import exit_code, refusal
    from stantools.recovery.truncate.backup import default_backup
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.FORECAST, *(() if dry_run else (Capability.CHANGE,)))
    opened, store = source.store(), source.path
    plan = plan_truncation(opened, server.options(opened))
    removed = [_removed_json(each) for each in plan.removed()] if console.output() == "json" else []
    idle = bool(plan.idle) and not force
    refused = bool(plan.refusals) and not force
    if console.output() == "table" and not idle:
        _print_plan(plan, force)
    result: TruncationResult | None = None
    if not (dry_run or idle or refused):
        if not console.confirm(f"Change {console.escape(str(store))}?", yes=yes or in_place):
            console.note("nothing was changed")
            return ExitCode.REFUSED
        result = apply_truncation(plan, backup or default_backup(store), force=force)
    if console.output() == "json":
        print_json(_as_json(store, plan, removed, result))
    elif result is None:
        click.echo(f"{plan.idle}; nothing was changed" if idle else "nothing was changed")
    else:
        _print_result(result)
    if refused:
        raise refusal(plan)
    return exit_code(plan, result)


def _removed_json(each: RemovedRecord) -> dict[str, Any]:
    return {
        "file": each.file,
        "offset": each.offset,
        "length": each.length,
        "intact": each.intact,
        "what": each.what,
        "seq": each.sequence,
        "sub_id": each.sub_id,
        "client_id": each.client_id,
    }


def _as_json(
    store: Path, plan: TruncationPlan, removed: list[dict[str, Any]], result: TruncationResult | None
) -> dict[str, Any]:
    now = result.after if result else plan.before
    return {
        "path": str(store),
        "done": result is not None,
        **plan.as_json(),
        "removed": removed,
        "backup": str(result.backup) if result and result.backup else None,
        "changed": list(result.changed) if result else [],
        "starts_without_option_now": now.starts,
        "destroys_without_option_now": [loss.as_json() for loss in now.destroys],
    }


def _print_plan(plan: TruncationPlan, force: bool) -> None:
    if not plan.before.starts:
        click.echo(
            console.wrapped(f"now the server does not start: {console.escape_lines(plan.before.error or '')}", 2)
        )
    for cut in plan.cuts:
        sizes = f"from {cut.size_before} to {cut.size_after} bytes"
        stay = counted(cut.kept, "record", "stays/stay")
        line = f"cut: {console.escape(cut.file)} {sizes}, {stay}"
        if cut.intact:
            gone = counted(cut.intact, "intact record", "goes/go")
            line += f"; {console.paint(gone, 'red', err=False)}"
            if cut.sequences:
                line += f" ({describe_sequences(cut.sequences, 4)})"
        click.echo(console.wrapped(line, 2))
    cut_files = {cut.file for cut in plan.cuts}
    for path, (before, after) in plan.forecast.files_changed().items():
        if path not in cut_files:
            if after is None:
                change = ", removed"
            elif before is None:
                change = f", created with {counted(after, 'byte')}"
            else:
                change = f" from {before} to {counted(after, 'byte')}"
            click.echo(f"also changed: {console.escape(path)}{change}")
    removed = list(islice(plan.removed(), _MANY + 1))
    if removed:
        rows = [
            (each.file, each.offset, each.length, each.what, each.intact, each.sequence, each.sub_id, each.client_id)
            for each in removed[:_MANY]
        ]
        headers = ("file", "offset", "bytes", "what goes", "intact", "sequence", "sub", "client")
        click.echo("\n" + table_text(headers, rows, right=("offset", "bytes", "sequence", "sub")))
        if len(removed) > _MANY:
            click.echo("… and more: see -o json\n")
    for refusal in plan.refusals:
        text = f"{'against it' if force else 'refused'}: {console.escape_lines(refusal)}"
        click.echo(console.wrapped(text, 2))


def _print_result(result: TruncationResult) -> None:
    for path in result.changed:
        click.echo(f"done: {console.escape(path)}")
    if result.backup:
        saved = sum(path.stat().st_size for path in (result.backup / "files").rglob("*") if path.is_file())
        click.echo(f"saved before: {format_size(saved)} in {console.escape(str(result.backup))}")
    if result.after.starts and not result.after.recovered:
        says = "the server would start now, as if the store were empty: do not start it"
        click.echo(console.paint(says, "red", err=False))
    elif result.after.starts and result.after.destroys:
        says = "the server would start now, but destroy data: do not start it"
        click.echo(console.paint(says, "red", err=False))
        for loss in result.after.destroys:
            click.echo(f"  destroys  {loss.sentence()}")
    elif result.after.starts:
        says = "the server would start now; start it without the truncate option"
        click.echo(console.paint(says, "green", err=False))
    else:
        click.echo(f"the server would still not start: {console.escape_lines(result.after.error or '')}")
