"""`stantools salvage`: a new store with every intact record."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.options import (
    SERVER_KEY_VARIABLE,
    dry_run_option,
    given,
    options_of,
    reading_options,
    store_argument,
    verb,
)
from stantools.cli.output import show, table_text
from stantools.errors import UsageError
from stantools.escaping import beside, shell_word
from stantools.notation import counted, describe_ranges, describe_sequences, format_size
from stantools.options import FORCE, OUT
from stantools.recovery.options import SalvageOptions

if TYPE_CHECKING:
    from stantools.recovery.salvage import SalvagePlan, SalvageResult
    from stantools.recovery.salvage.check import NewStoreCheck
    from stantools.store.options import ReadOptions

_MANY = 20


@verb("salvage", "table", "json")
@store_argument
@given(out=OUT)
@options_of(SalvageOptions, "options")
@given(force=FORCE)
@dry_run_option
@reading_options(unchecked=False)
def command(
    store: Path, out: Path | None, options: SalvageOptions, force: bool, dry_run: bool, reading: ReadOptions
) -> int:
    """Write a new store that holds every intact record of STORE, and starts in the real server.

    STORE is not changed. Reading goes on behind any damage; indexes, server.dat, clients.dat and subs.dat are
    written anew, durables keep their position. The new directory appears when it is complete; it is then verified
    and a start is forecast. A file stantools-salvage.json in it says what was kept, moved and left behind.

    Exit code 0: everything was kept. 5: done, and something was lost before (the plan names it). With --dry-run the
    latter is 1.
    """
    from stantools.cli.opening import channel_names, open_store
    from stantools.cli.progress import Progress
    from stantools.recovery.salvage import plan_salvage
    from stantools.recovery.salvage.report import report
    from stantools.store.locks import check_not_in_use

    check_out(out, dry_run=dry_run)
    opened, crc = open_store(store, reading)
    names = channel_names(opened, options.patterns)
    for use in check_not_in_use(store, force=force or dry_run):
        console.warning(f"{use.detail}: what is being written may look damaged")
    with Progress("plan", lambda: opened.data_size(names)) as shown:
        plan = plan_salvage(opened, crc, options, progress=shown.advance)
    return carry_out(plan, None if dry_run else out, report)


def check_out(out: Path | None, *, dry_run: bool) -> None:
    """Makes sure that there is a place for a new store, if one is written.

    Raises:
        UsageError: None was given.
    """
    if out is None and not dry_run:
        raise UsageError("--out is missing: where is the new store to go?", "add --out NEW, or --dry-run for the plan")


def carry_out(
    plan: SalvagePlan,
    out: Path | None,
    report: Callable[[SalvagePlan, SalvageResult | None, dict[str, Any] | None], dict[str, Any]],
) -> int:
    """Writes and checks a new store, says what was done, and returns the exit code.

    Args:
        plan: What it is made of.
        out: Where to; None only says what would be done.
        report: Makes the document for json.
    """
    from stantools.cli.progress import Progress
    from stantools.recovery.salvage import apply_salvage
    from stantools.recovery.salvage.check import check_new_store, exit_code

    result: SalvageResult | None = None
    check: NewStoreCheck | None = None
    if out is not None:
        with Progress("write", plan.bytes) as shown:
            result = apply_salvage(plan, out, progress=shown.advance)
        with Progress("verify") as shown:
            check = check_new_store(plan, result, progress=shown.advance)
    show(lambda: report(plan, result, check.as_json() if check else None), lambda: _print(plan, result, check))
    if check is not None and not check.good:
        console.error(
            f"{console.escape(str(out))}: the new store is not as it should be",
            "this is a mistake in stantools: please report it, with the output of stantools verify on both stores",
        )
    return exit_code(plan, check)


def _print(plan: SalvagePlan, result: SalvageResult | None, check: NewStoreCheck | None) -> None:
    rows = [
        (
            each.name,
            each.sequences.count(),
            describe_ranges(each.sequences, 4),
            describe_ranges(each.filled, 4) if each.filled else None,
            len(each.subscriptions),
            each.origin or None,
        )
        for each in plan.channels
    ]
    if rows:
        headers = ("channel", "kept", "sequences", "filled", "subs", "origin")
        click.echo(table_text(headers, rows, right=("kept", "subs")))
    if plan.server_note:
        click.echo(f"server.dat: {console.escape_lines(plan.server_note)}")
    for change in plan.changes[:_MANY]:
        click.echo(f"changed: {console.escape_line(change)}")
    if len(plan.changes) > _MANY:
        click.echo(f"… and {counted(len(plan.changes) - _MANY, 'more change')}")
    for dropped in plan.dropped[:_MANY]:
        place = console.escape(dropped.file) + (f" at {dropped.offset}" if dropped.offset >= 0 else "")
        what = console.paint("lost", "red", err=False) if dropped.loss else "left out"
        place += f", {counted(dropped.length, 'byte')}" if dropped.length else ""
        line = f"{what}: {place}: {console.escape_line(dropped.reason)}"
        if dropped.sequences:
            line += f" ({describe_sequences(dropped.sequences, 4)})"
        click.echo(line)
    if len(plan.dropped) > _MANY:
        click.echo(f"… and {counted(len(plan.dropped) - _MANY, 'more place')}")
    kept = f"{counted(plan.messages, 'message')} in {counted(len(plan.channels), 'channel')}, {format_size(plan.bytes)}"
    lost = f"; {counted(plan.lost, 'message', 'is/are')} known to be lost" if plan.lost else ""
    if result is None:
        click.echo(f"would keep {kept}{lost}; nothing was written")
        return
    click.echo(f"kept {kept}{lost}")
    click.echo(f"new store: {console.escape(str(result.path))} (what was done: {console.escape(result.manifest.name)})")
    if check:
        says = "verify is clean and the server would start" if check.good else "verify or forecast found a problem"
        click.echo(f"checked: {console.paint(says, 'green' if check.good else 'red', err=False)}")
        for finding in check.as_json()["findings"][:_MANY]:
            click.echo(
                f"  {finding['code']}  {console.escape(finding['file'])}  {console.escape_line(finding['detail'])}"
            )
        if check.good:
            _print_next(plan, result, check.start.options)


def _print_next(plan: SalvagePlan, result: SalvageResult, options: tuple[str, ...]) -> None:
    """Prints how to start a server on the new store, as it can be pasted, and how to fill its gaps."""
    from stantools.recovery.salvage.check import ENCRYPT

    key, hint = _server_key() if ENCRYPT in options else ("", "")
    text = (
        f"next: start the server on the new store, with ports, users and limits as before{hint}; the original or ours:"
    )
    click.echo(console.wrapped(text, 2))
    words = " ".join(map(shell_word, ("-st", "FILE", "-dir", str(result.path), *options)))
    for program in ("nats-streaming-server", "stan-broker"):
        click.echo(f"  {key}{program} {words}")
    gaps = [each.gaps.count() for each in plan.channels if each.gaps and not each.filled]
    if gaps and all(each.fillable for each in plan.channels):
        where = f"{counted(sum(gaps), 'sequence', 'is/are')} missing in {counted(len(gaps), 'channel')}"
        text = f"{where}; servers pass over gaps. Where subscribers must not, put empty messages in them:"
        click.echo(console.wrapped(text, 2))
        filled = str(beside(result.path, "filled"))
        again = ("stantools", "salvage", str(result.path), "--out", filled, "--fill-gaps")
        click.echo(f"  {' '.join(map(shell_word, again))}")


def _server_key() -> tuple[str, str]:
    """Returns what hands the server its encryption key, in front of its command, and what is to be said about that."""
    given = click.get_current_context().params
    variable, path = given["encryption_key_env"], given["encryption_key_file"]
    if path:
        return f'{SERVER_KEY_VARIABLE}="$(cat {shell_word(str(path))})" ', ""
    if not variable and SERVER_KEY_VARIABLE not in os.environ:
        return f"{SERVER_KEY_VARIABLE}=KEY ", ", and its encryption key in the place of KEY"
    return (f'{SERVER_KEY_VARIABLE}="${variable}" ' if variable and variable != SERVER_KEY_VARIABLE else ""), ""
