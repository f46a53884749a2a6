"""`stantools salvage`: a new store with every intact record; of many stores on Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    dry_run_option,
    given,
    options_of,
    reading_options,
    store_argument,
    verb,
)
from stantools.cli.output import place_text, show, table_text
from stantools.errors import ExitCode, UsageError
from stantools.escaping import beside, shell_word
from stantools.notation import counted, describe_ranges, format_size, some_of
from stantools.options import FORCE, OUT, SERVER_KEY_VARIABLE
from stantools.recovery.recovery_options import SalvageOptions

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster
    from stantools.pipeline.jobs.salvage import SalvagedStore, SalvageJobResult
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.recovery.salvage import SalvagePlan, SalvageResult
    from stantools.recovery.salvage.check import NewStoreCheck
    from stantools.store.read_options import ReadOptions

_MANY = 20


@verb("salvage", "table", "json")
@store_argument
@given(out=OUT)
@options_of(SalvageOptions, "options")
@given(force=FORCE)
@dry_run_option
@reading_options(unchecked=False)
def command(
    store: Path, out: Path | None, options: SalvageOptions, force: bool, dry_run: bool, read_options: ReadOptions
) -> int:
    """Write a new store with every intact record of STORE that the real server can start with.

    STORE is not changed. Reading continues after any damage; indexes, server.dat, clients.dat and subs.dat are
    rewritten; durables keep their position. The new directory appears when it is complete; then it is verified and a
    start is forecast. Its file stantools-salvage.json lists the data kept, moved and left out.

    The plan lists the messages that are intact, missing before, and lost by this step; the former content of an empty
    slice is unknown. Exit code 0: everything was kept, and nothing was missing. 5: done, but messages were missing
    before or are left out (the plan names them); 1 with --dry-run.
    """
    from stantools.cli.opening import check_stopped, open_source
    from stantools.cli.progress import ByteProgress
    from stantools.recovery.salvage import plan_salvage
    from stantools.recovery.salvage.manifest import report
    from stantools.sources.source import Capability

    check_out(out, dry_run=dry_run)
    source = open_source(store, read_options, Capability.SALVAGE, channels=options.patterns)
    opened = source.store()
    names = opened.chosen(options.patterns)
    check_stopped([source], force=force or dry_run)
    with ByteProgress("plan", lambda: opened.data_size(names)) as shown:
        plan = plan_salvage(opened, options, progress=shown.advance)
    return carry_out(plan, None if dry_run else out, report, opened.key)


def check_out(out: Path | None, *, dry_run: bool) -> None:
    """Raises `UsageError` if a new store is to be written, but has no path."""
    if out is None and not dry_run:
        raise UsageError("--out is missing: the directory of the new store", "add --out NEW, or --dry-run for the plan")


def carry_out(
    plan: SalvagePlan,
    out: Path | None,
    report: Callable[[SalvagePlan, SalvageResult | None, dict[str, Any] | None], dict[str, Any]],
    key: bytes | None = None,
) -> int:
    """Writes and checks a new store, prints the result, and returns the exit code.

    Args:
        out: The new store; None only prints the plan.
        report: Makes the json document.
        key: The server's encryption key, if given.
    """
    from stantools.cli.progress import ByteProgress
    from stantools.recovery.salvage import apply_salvage
    from stantools.recovery.salvage.check import check_new_store, exit_code

    result: SalvageResult | None = None
    check: NewStoreCheck | None = None
    if out is not None:
        with ByteProgress("write", plan.bytes) as shown:
            result = apply_salvage(plan, out, progress=shown.advance)
        usual_key = os.fsencode(os.environ.get(SERVER_KEY_VARIABLE, "")) or None  # the key that a server would use
        with ByteProgress("verify") as shown:
            check = check_new_store(plan, result, key=key or usual_key, progress=shown.advance)
    show(lambda: report(plan, result, check.as_json() if check else None), lambda: _print(plan, result, check))
    if check is not None and not check.good:
        _tell_mistake(str(out))
    return exit_code(plan, check)


_STORES_OUT = OUT.like(
    help="Directory of the new stores, each under its own name; writable by all workers.", kind=str, metavar="DIR"
)


@pipeline.job("salvage", "table", "json")
@pipeline.stores_argument
@given(out=_STORES_OUT)
@options_of(SalvageOptions, "options", without=("workers",))
@given(force=FORCE)
@dry_run_option
@pipeline.reading_options(unchecked=False, remote=False)
@pipeline.cluster_options
def job(
    stores: tuple[str, ...],
    out: str | None,
    options: SalvageOptions,
    force: bool,
    dry_run: bool,
    table_options: TableOptions,
    cluster: Cluster,
) -> int:
    """Write new stores with every intact record of STORES that the real server can start with.

    Each new store and its report equal those of `stantools salvage`, byte for byte. It is DIR/NAME: NAME is the name of
    its directory, with the distinguishing part of its path in front if stores have equal names (node1-data,
    node2-data); json has `store` and `name` of each. DIR must be on a file system that the driver and all workers see
    under the same path. STORES are not changed; an unreadable one is named, and the rest is done.

    A new store appears only when it is complete, even if processes are killed. The same command can run again: finished
    stores that have not changed since are kept, the rest is salvaged.

    Exit code 0: all data of every store was kept. 5: done, but data was missing before or is left out (the plans name
    it). 1: a store cannot be read, or the same as 5 with --dry-run. 3: nothing can be read, or a store cannot be
    written. 4: refused, because a server uses a store.
    """
    from stantools.cli.progress import ByteProgress
    from stantools.pipeline.jobs.salvage import run_salvage
    from stantools.pipeline.jobs.salvageplans import plan_job

    planned = plan_job(table_options.of(stores, channels=options.patterns), options, out, dry_run=dry_run, force=force)
    with cluster.work("salvage", sum(store.size for store in planned.stores)) as work:
        for each in planned.passed:
            console.note(console.escape(each))
        result = run_salvage(work, planned, ByteProgress)
    for warning in result.warnings:
        console.warning(warning)
    show(result.as_json, lambda: _print_stores(result, dry_run=dry_run))
    code = pipeline.ended(result)
    for store in result.stores:
        if store.is_wrong:
            _tell_mistake(store.report["out"])
    return code


def _tell_mistake(out: str) -> None:
    console.error(
        f"{console.escape(out)}: the new store is wrong",
        "this is a bug in stantools: please report it, with the output of stantools verify on both stores",
    )


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
    console.left_out(len(plan.changes) - _MANY, "change")
    for dropped in plan.dropped[:_MANY]:
        what = console.paint(dropped.fate.value, "red", err=False) if dropped.loss else dropped.fate.value
        length = counted(dropped.length, "byte") if dropped.length else ""
        offset = dropped.offset if dropped.offset >= 0 else None
        click.echo(f"{what}: {place_text(dropped.file, offset, length, dropped.reason, dropped.sequences)}")
    console.left_out(len(plan.dropped) - _MANY, "place")
    suspected = {dropped.reason for dropped in plan.dropped}
    for channel in plan.channels:
        for end in channel.unknown:
            if end in suspected:
                continue
            click.echo(console.wrapped(f"unknown: {console.escape_line(end)}", 2))
    kept = f"{counted(plan.messages, 'message')} in {counted(len(plan.channels), 'channel')}, {format_size(plan.bytes)}"
    click.echo(console.wrapped(f"messages: {plan.outcome.sentence()}", 2))
    if result is None:
        click.echo(f"would keep {kept}; nothing was written")
        return
    click.echo(f"kept {kept}")
    click.echo(f"new store: {console.escape(str(result.path))} (report: {console.escape(result.manifest.name)})")
    if check:
        says = "verify is clean and the server would start" if check.good else "verify or forecast found a problem"
        click.echo(f"checked: {console.paint(says, 'green' if check.good else 'red', err=False)}")
        for finding in check.as_json()["findings"][:_MANY]:
            click.echo(
                f"  {finding['code']}  {console.escape(finding['file'])}  {console.escape_line(finding['detail'])}"
            )
        if check.good:
            if check.start.suspected:
                _print_question(result, check.start.suspected)
            else:
                _print_next(plan, result, check.start.options)


def _print_question(result: SalvageResult, suspected: tuple[str, ...]) -> None:
    """Prints how to find out whether payloads are encrypted: a start with the wrong choice does harm."""
    names = some_of([console.escape(each) for each in suspected], 3)
    click.echo(
        console.wrapped(
            f"next: find out whether payloads are encrypted ({names}), before a server is started: with the key of the "
            "old server in the variable, this command tells whether the key decrypts them",
            2,
        )
    )
    words = ("stantools", "doctor", str(result.path), "--encryption-key-env", SERVER_KEY_VARIABLE)
    click.echo(f"  {' '.join(map(shell_word, words))}")
    text = "If the old server ran with -encrypt, start the new one with it and the same key; if not, start it without."
    click.echo(console.wrapped(text, 2))


def _print_next(plan: SalvagePlan, result: SalvageResult, options: tuple[str, ...]) -> None:
    """Prints the pasteable commands to start a server on the new store, and to fill its gaps."""
    from stantools.recovery.salvage.check import ENCRYPT

    key = _server_key() if ENCRYPT in options else ""
    text = (
        "next: start the server on the new store, with ports, users and limits as before; the original server or ours:"
    )
    click.echo(console.wrapped(text, 2))
    words = " ".join(map(shell_word, ("-st", "FILE", "-dir", str(result.path), *options)))
    for program in ("nats-streaming-server", "stan-broker"):
        click.echo(f"  {key}{program} {words}")
    gaps = [each.gaps.count() for each in plan.channels if each.gaps and not each.filled]
    if gaps and all(each.fillable for each in plan.channels):
        where = f"{counted(sum(gaps), 'sequence', 'is/are')} missing in {counted(len(gaps), 'channel')}"
        text = f"{where}; servers skip gaps. If subscribers must not, fill them with empty messages:"
        click.echo(console.wrapped(text, 2))
        filled = str(beside(result.path, "filled"))
        again = ("stantools", "salvage", str(result.path), "--out", filled, "--fill-gaps")
        click.echo(f"  {' '.join(map(shell_word, again))}")


def _server_key() -> str:
    """Returns the environment variable with the encryption key, in front of the server's command."""
    given = click.get_current_context().params
    variable, path = given["encryption_key_env"], given["encryption_key_file"]
    if path:
        return f'{SERVER_KEY_VARIABLE}="$(cat {shell_word(str(path))})" '
    return f'{SERVER_KEY_VARIABLE}="${variable}" ' if variable and variable != SERVER_KEY_VARIABLE else ""


def _print_stores(result: SalvageJobResult, *, dry_run: bool) -> None:
    headers = (
        "store",
        "name",
        "channels",
        "messages",
        "bytes",
        "filled",
        "subs",
        "missing before",
        "lost by this step",
        "",
    )
    if result.stores:
        click.echo(table_text(headers, map(_line, result.stores), right=headers[2:9]))
    lossy = [store for store in result.stores if store.report["summary"]["lossy"]]
    for store in lossy[: pipeline.NAMED]:
        pipeline.print_heading(store.root)
        lost = [each for each in store.report["dropped"] if each["loss"]]
        for each in lost[: pipeline.NAMED]:
            length = f"{each['length']} bytes" if each["length"] else ""
            place = place_text(each["file"], each["offset"], length, each["reason"], each["sequences"])
            click.echo(f"  {each['fate']}: {place}")
        console.left_out(len(lost) - pipeline.NAMED, "place", head="  ")
    console.left_out(len(lossy) - pipeline.NAMED, "store", tail=" with losses: see -o json")
    click.echo(_conclusion(result, dry_run=dry_run))


def _line(store: SalvagedStore) -> tuple[Any, ...]:
    summary = store.report["summary"]
    if store.is_wrong:
        state = "wrong"
    elif not store.report["written"]:
        state = "planned"
    else:
        state = "kept from before" if store.kept else "written"
    return (
        store.root,
        store.name,
        summary["channels"],
        summary["messages"],
        summary["bytes"],
        summary["filled"] or None,
        summary["subscriptions"] or None,
        summary["missing_before"] or None,
        summary["lost_by_this_step"] or ("perhaps" if summary["lossy"] and not summary["missing_before"] else None),
        state,
    )


def _conclusion(result: SalvageJobResult, *, dry_run: bool) -> str:
    summaries = [store.report["summary"] for store in result.stores]
    names = ("messages", "bytes", "missing_before", "lost_by_this_step")
    messages, size, missing, lost = (sum(each[name] for each in summaries) for name in names)
    text = f"{counted(messages, 'message')} in {counted(len(summaries), 'store')}, {format_size(size)}"
    text += f"; {missing} missing before" if missing else ""
    text += f"; {lost} lost by this step" if lost else ""
    text += f"; {counted(len(result.failed), 'store')} failed" if result.failed else ""
    if dry_run:
        return f"would keep {text}; nothing was written"
    good = result.exit_code in (ExitCode.CLEAN, ExitCode.LOSS)
    return console.paint(f"kept {text}", "green" if good else "red", err=False)
