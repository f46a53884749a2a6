"""`stantools compact`: the same store without what is dead in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.options import (
    GivenLimits,
    common_options,
    dry_run_option,
    limit_options,
    output_option,
    progress_option,
    reading_options,
    store_argument,
    workers_option,
    yes_option,
)
from stantools.cli.output import print_json, table_text
from stantools.cli.values import Duration, Size, format_size
from stantools.cli.verbs import verb
from stantools.errors import ExitCode, UsageError
from stantools.notation import describe_ranges

if TYPE_CHECKING:
    from stantools.recovery.compact import CompactionPlan, CompactionResult, CompactOptions
    from stantools.store.options import ReadOptions


@verb("compact")
@store_argument
@click.option("--out", type=click.Path(path_type=Path), metavar="NEW", help="Where to write the compacted store.")
@click.option("--in-place", is_flag=True, help="Put the result in the place of STORE, which is kept beside it.")
@click.option("--backup", type=click.Path(path_type=Path), metavar="DIR", help="What STORE is called then.")
@limit_options
@click.option("--slice-msgs", type=click.IntRange(0), metavar="N", help="Messages of a slice; the server's option.")
@click.option("--slice-bytes", type=Size(), metavar="SIZE", help="Bytes of a slice; 64MB if no slice limit is given.")
@click.option("--slice-age", type=Duration(), metavar="AGE", help="Time that a slice covers; the server's option.")
@click.option("--drop-orphans", is_flag=True, help="Leave out plain subscriptions of clients that are gone.")
@click.option("--accept-loss", is_flag=True, help="Go on although slices or logs are missing already.")
@click.option("--force", is_flag=True, help="Go on although a server seems to be using the store.")
@dry_run_option
@yes_option
@workers_option
@reading_options(unchecked=False)
@output_option("table", "json")
@progress_option
@common_options
def command(
    store: Path,
    out: Path | None,
    in_place: bool,
    backup: Path | None,
    limits: GivenLimits | None,
    slice_msgs: int | None,
    slice_bytes: int | None,
    slice_age: int | None,
    drop_orphans: bool,
    accept_loss: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    workers: int,
    reading: ReadOptions,
    output: str,
    progress: str,
) -> int:
    """Write STORE anew without what is dead in it: in clients.dat, in subs.dat, and behind the limits.

    Logs keep only what is alive. With --max-msgs, --max-bytes or --max-age, messages that a server with these
    limits has removed are left out for good. Small slices are merged and big ones split, indexes are rebuilt. What
    the server makes of the store stays the same; that is checked before the new store appears.

    The result goes to a new directory, or with --in-place to the place of STORE, which is then kept under another
    name. A damaged store is refused: salvage it first.
    """
    from stantools.cli.opening import open_store
    from stantools.cli.progress import Progress
    from stantools.recovery.compact import (
        CompactOptions,
        apply_compaction,
        compact_in_place,
        finish_replacement,
        plan_compaction,
    )
    from stantools.store.limits import UNLIMITED
    from stantools.store.locks import check_not_in_use

    if (out is None) == (not in_place) and not dry_run:
        raise UsageError("where is the result to go?", "add either --out NEW or --in-place; or --dry-run for the plan")
    if backup and not in_place:
        raise UsageError("--backup names the old store when a new one takes its place", "add --in-place")
    if in_place and not dry_run and (finished := finish_replacement(store)):
        console.note(f"finished an interrupted run first; the old store is {console.escape(str(finished))}")
    opened, crc = open_store(store, reading)
    if not dry_run and not in_place:
        for use in check_not_in_use(store, force=force):
            console.warning(f"{use.detail}: what is being written may not be in the result")
    options = CompactOptions(
        limits=limits.over(UNLIMITED) if limits else None,
        slices=_slices(slice_msgs, slice_bytes, slice_age),
        drop_orphans=drop_orphans,
        accept_loss=accept_loss,
        workers=workers,
    )
    with Progress(progress, "plan") as shown:
        if shown.active:
            shown.total = opened.data_size(opened.channel_names)
        plan = plan_compaction(opened, crc, options, progress=shown.advance)
    result: CompactionResult | None = None
    if output == "table":
        _print_plan(plan)
    if not dry_run:
        if in_place and not console.confirm(f"Replace {console.escape(str(store))} (it is kept beside)?", yes=yes):
            console.note("nothing was changed")
            return ExitCode.REFUSED
        with Progress(progress, "write", plan.bytes_before) as shown:
            if out is not None:
                result = apply_compaction(plan, out, progress=shown.advance)
            else:
                result = compact_in_place(plan, backup=backup, force=force, progress=shown.advance)
    if output == "json":
        print_json(_as_json(plan, options, result))
    elif result is None:
        click.echo("nothing was changed")
    else:
        click.echo(
            f"compacted store: {console.escape(str(result.path))}, {format_size(result.bytes)}; read back and right"
        )
        if result.backup:
            click.echo(f"the old store is kept as {console.escape(str(result.backup))}")
    return ExitCode.CLEAN


def _slices(messages: int | None, size: int | None, age: int | None) -> Any:
    from stantools.store.limits import SliceLimits

    if messages is None and size is None and age is None:
        return SliceLimits()
    return SliceLimits(messages or 0, size or 0, age or 0)


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
    click.echo(f"{format_size(plan.bytes_before)} now, about {format_size(plan.bytes_after)} after")
