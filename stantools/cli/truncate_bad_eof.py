"""`stantools truncate-bad-eof`: the server's own repair, with a report and a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.cli.click_options import dry_run_option, given, options_of, reading_options, store_argument, verb
from stantools.cli.reporttext import preview, show, show_plan
from stantools.errors import ExitCode
from stantools.inspection.start_options import StartOptions
from stantools.options import FORCE, Option
from stantools.recovery.recovery_options import BACKUP

if TYPE_CHECKING:
    from stantools.store.read_options import ReadOptions


@verb("truncate-bad-eof", "table", "json", progress=False)
@store_argument
@given(
    backup=BACKUP,
    force=FORCE.like(help="Repair even if salvage would keep more, or a server seems to be using the store."),
    in_place=Option(help="Do not ask before STORE is changed (same as --yes).", default=False),
    yes=Option(help="Do not ask before STORE is changed.", default=False),
)
@dry_run_option
@options_of(StartOptions, "server", without=("cluster_id", "read_buffer", "workers"))
@reading_options()
def command(
    store: Path,
    backup: Path | None,
    force: bool,
    in_place: bool,
    yes: bool,
    dry_run: bool,
    server: StartOptions,
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
    from stantools.recovery.truncate.apply import refusal
    from stantools.recovery.truncate.backup import default_backup
    from stantools.recovery.truncate.truncation_report import truncation_report
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.FORECAST, *(() if dry_run else (Capability.CHANGE,)))
    opened, store = source.store(), source.path
    plan = plan_truncation(opened, server.server(opened))
    # They are in the files until the repair.
    removed = list(plan.removed()) if console.output() == "json" else []
    planned = truncation_report(plan, force=force, removed=removed)
    if dry_run or (not force and (plan.idle or plan.refusals)):
        code = show_plan(planned)
        if plan.refusals and not force:
            raise refusal(plan)
        return code
    preview(planned)
    if not console.confirm(f"Change {console.escape(str(store))}?", yes=yes or in_place):
        console.note("nothing was changed")
        return ExitCode.REFUSED
    result = apply_truncation(plan, backup or default_backup(store), force=force)
    return show(truncation_report(plan, result, removed=removed))
