"""`stantools compact`: the same store without dead records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.click_options import (
    ChangeMode,
    consent_options,
    folded,
    given,
    limit_options,
    options_of,
    reading_options,
    store_argument,
    verb,
)
from stantools.cli.output import print_json, table_text
from stantools.errors import ExitCode, UsageError
from stantools.notation import describe_ranges, format_size
from stantools.options import FORCE, SliceOptions, declared
from stantools.recovery.recovery_options import CompactOptions, CompactTarget

if TYPE_CHECKING:
    from stantools.recovery.compact import CompactionPlan, CompactionResult
    from stantools.store.limits import SliceLimits
    from stantools.store.read_options import ReadOptions


def _slices(**given: int | None) -> SliceLimits | None:
    from stantools.store.limits import SliceLimits

    return SliceLimits.given(SliceOptions(**given))


_slice_options = folded("slices", _slices, dict(declared(SliceOptions)))


@verb("compact", "table", "json")
@store_argument
@options_of(CompactTarget, "where")
@options_of(CompactOptions, "options", limit_options(unlimited=True), _slice_options)
@given(force=FORCE)
@consent_options
@reading_options(unchecked=False)
def command(
    store: Path,
    where: CompactTarget,
    options: CompactOptions,
    force: bool,
    consent: ChangeMode,
    read_options: ReadOptions,
) -> int:
    """Rewrite STORE without dead records in clients.dat and subs.dat, and without messages beyond the limits.

    Logs keep only live records. With --max-msgs, --max-bytes or --max-age, messages beyond the server's limits are
    removed for good. Small slices are merged and big ones split; indexes are rebuilt. The server recovers the same
    state; this is checked before the new store appears.

    The result is a new directory, or with --in-place it replaces STORE, which is then kept under another name. A
    damaged store is refused: salvage it first.
    """
    from stantools.cli.opening import check_stopped, open_source
    from stantools.cli.progress import ByteProgress
    from stantools.recovery.compact import (
        apply_compaction,
        compact_in_place,
        finish_replacement,
        plan_compaction,
    )
    from stantools.sources.source import Capability

    out, in_place = where.out, where.in_place
    if (out is None) == (not in_place) and not consent.dry_run:
        raise UsageError(
            "the place of the result is missing", "add either --out NEW or --in-place; or --dry-run for the plan"
        )
    if where.backup and not in_place:
        raise UsageError("--backup applies to --in-place only: it names the replaced store", "add --in-place")
    replaces = in_place and not consent.dry_run
    if replaces and (finished := finish_replacement(store)):
        console.note(f"first finished an interrupted run; the old store is {console.escape(str(finished))}")
    source = open_source(store, read_options, Capability.COMPACTION, *((Capability.CHANGE,) if replaces else ()))
    opened, store = source.store(), source.path
    if not consent.dry_run and not in_place:
        check_stopped([source], force=force)
    with ByteProgress("plan", lambda: opened.data_size(opened.channel_names)) as shown:
        plan = plan_compaction(opened, options, progress=shown.advance)
    result: CompactionResult | None = None
    if console.output() == "table":
        _print_plan(plan)
    if not consent.dry_run:
        question = f"Replace {console.escape(str(store))} (a copy is kept beside it)?"
        if in_place and not console.confirm(question, yes=consent.yes):
            console.note("nothing was changed")
            return ExitCode.REFUSED
        with ByteProgress("write", plan.bytes_before) as shown:
            if out is not None:
                result = apply_compaction(plan, out, progress=shown.advance)
            else:
                result = compact_in_place(plan, backup=where.backup, force=force, progress=shown.advance)
    if console.output() == "json":
        print_json(_as_json(plan, options, result))
    elif result is None:
        click.echo("nothing was changed")
    else:
        click.echo(f"compacted store: {console.escape(str(result.path))}, {format_size(result.bytes)}; verified")
        if result.backup:
            click.echo(f"the old store is kept as {console.escape(str(result.backup))}")
    return ExitCode.CLEAN


def _as_json(plan: CompactionPlan, options: CompactOptions, result: CompactionResult | None) -> dict[str, Any]:
    return {
        "source": str(plan.store.path),
        "written": result is not None,
        "out": str(result.path) if result else None,
        "backup": str(result.backup) if result and result.backup else None,
        "summary": plan.summary(),
        "drop_orphans": options.drop_orphans,
        "channels": [
            {
                "name": channel.files.name,
                "kept": channel.kept.as_json(),
                "messages": channel.messages,
                "dropped": channel.skip,
                "subscriptions": channel.subscriptions,
                "orphans_dropped": sorted(channel.orphans),
            }
            for channel in plan.channels
        ],
    }


def _print_plan(plan: CompactionPlan) -> None:
    rows = [
        (
            channel.files.name,
            channel.messages,
            describe_ranges(channel.kept, 4),
            channel.skip or None,
            len(channel.slices),
            channel.subscriptions,
            len(channel.orphans) or None,
        )
        for channel in plan.channels
    ]
    if rows:
        headers = ("channel", "kept", "sequences", "dropped", "slices now", "subs", "orphans dropped")
        click.echo(table_text(headers, rows, right=("kept", "dropped", "slices now", "subs", "orphans dropped")))
    click.echo(f"{format_size(plan.bytes_before)} now, about {format_size(plan.bytes_after)} afterwards")
