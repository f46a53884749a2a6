"""`stantools repair`, also named `truncate-bad-eof`: repairs in place, with a report and a backup."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.cli.click_options import dry_run_option, given, options_of, reading_options, store_argument, verb
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import agreed, show, show_plan
from stantools.inspection.start_options import AnyStartOptions
from stantools.options import FORCE, Option
from stantools.recovery.recovery_options import BACKUP

if TYPE_CHECKING:
    from stantools.sources.source import Source
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
@options_of(AnyStartOptions, "server", without=("cluster_id", "read_buffer", "workers"))
@reading_options()
def command(
    store: Path,
    backup: Path | None,
    force: bool,
    in_place: bool,
    yes: bool,
    dry_run: bool,
    server: AnyStartOptions,
    read_options: ReadOptions,
) -> int:
    """Repair STORE in place; `stantools repair` is the same.

    A file store is repaired exactly as a start of the server with -file_truncate_bad_eof would, to the byte.

    Every removed record is listed with its sequence; the removed bytes are saved before anything changes. If a damaged
    length would make the server cut off intact records, the repair is refused: salvage keeps them. Like the server's,
    the repair leaves the file .truncate.lck, so the next start must be without the option. If no repair is needed,
    nothing is changed without --force.

    Of a JetStream directory, only such steps are taken that can lose nothing: a fresh meta.sum for an intact meta.inf
    (or the one flipped bit that meta.sum proves); an index.db that every server rejects, and leftovers that a server
    takes for data, are moved into the backup, STORE.repaired. Each step is tried on a shadow of the stream first, and
    refused if a start would then destroy more than before. The report has the starts before and after.

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

    consent = yes or in_place
    source = open_source(store, read_options, Capability.FORECAST, *(() if dry_run else (Capability.CHANGE,)))
    if source.holds_streams:
        return _repair_streams(source, server, backup, force=force, consent=consent, dry_run=dry_run)
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
    if not agreed(planned, f"Change {console.escape(str(store))}?", yes=consent):
        return console.declined()
    result = apply_truncation(plan, backup or default_backup(store), force=force)
    return show(truncation_report(plan, result, removed=removed))


def _repair_streams(
    source: Source, server: AnyStartOptions, backup: Path | None, *, force: bool, consent: bool, dry_run: bool
) -> int:
    from stantools.inspection.stream_forecast.versions import chosen_rules
    from stantools.recovery.streams.stream_repair import apply_stream_repair, plan_stream_repair
    from stantools.recovery.streams.stream_repair_report import stream_repair_report
    from stantools.recovery.truncate.backup import default_backup

    now = time.time_ns()
    with ByteProgress("forecast") as shown:
        plan = plan_stream_repair(source, chosen_rules(source.streams, server.server_version), now, shown.advance)
    planned = stream_repair_report(plan)
    if dry_run or not plan.steps:
        return show_plan(planned)
    if not agreed(planned, f"Change {console.escape(str(source.path))}?", yes=consent):
        return console.declined()
    result = apply_stream_repair(plan, backup or default_backup(source.path, "repaired"), now, force=force)
    return show(stream_repair_report(plan, result))
