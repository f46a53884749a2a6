"""`stantools salvage`: new stores with every intact record."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    dry_run_option,
    given,
    options_of,
    verb,
)
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show, show_plan
from stantools.errors import UsageError
from stantools.escaping import shell_word
from stantools.options import FORCE, OUT, SERVER_KEY_VARIABLE
from stantools.recovery.recovery_options import SalvageOptions, StreamSalvageOptions

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster, NamedSources
    from stantools.inspection.report import Report
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.recovery.salvage import SalvagePlan
    from stantools.sources.source import Source

_OUT = OUT.like(help="Where to write the new store; of several, the directory of the new stores.")


@verb("salvage", "table", "json")
@pipeline.stores_argument
@given(out=_OUT)
@options_of(SalvageOptions, "options")
@options_of(StreamSalvageOptions, "stream_options")
@given(force=FORCE)
@dry_run_option
@pipeline.reading_options(unchecked=False, remote=False)
@pipeline.cluster_options
def command(
    stores: tuple[str, ...],
    out: Path | None,
    options: SalvageOptions,
    stream_options: StreamSalvageOptions,
    force: bool,
    dry_run: bool,
    table_options: TableOptions,
    cluster: Cluster,
) -> int:
    """Write a new store with every intact record of STORE that the real server can start with.

    STORE is not changed. Reading continues after any damage; indexes, server.dat, clients.dat and subs.dat are
    rewritten; durables keep their position. The new directory appears when it is complete; then it is verified and a
    start is forecast. Its file stantools-salvage.json lists the data kept, moved and left out.

    The plan lists the messages that are intact, missing before, and lost by this step; the former content of an empty
    slice is unknown.

    STORE may be a JetStream directory: the store of a nats-server, an account, a stream, or a backup of one. The new
    directory is the store of a stand-alone nats-server, with every intact message at its sequence, its subject, headers
    and time, and the positions of consumers; --to backup writes backups for `nats stream restore` instead.

    Of several stores, each has a new one, byte for byte as if it were alone: NEW/NAME, where NAME is the name of its
    directory, with the distinguishing part of its path in front if stores have equal names (node1-data, node2-data);
    json has `store` and `name` of each. An unreadable store is named, and the rest is done. The same command can run
    again: finished stores that have not changed since are kept. On Spark, all workers must see NEW under this path.

    Exit code 0: everything was kept, and nothing was missing. 5: done, but messages were missing before or are left out
    (the plan names them); 1 with --dry-run, or if one of several stores cannot be read. 3: nothing can be read, or a
    store cannot be written. 4: refused, because a server uses a store.
    """
    from stantools.sources.source import Capability

    check_out(out, dry_run=dry_run)
    sources = pipeline.named_sources(stores, table_options, cluster, Capability.SALVAGE, channels=options.patterns)
    if not (source := sources.alone):
        return _of_several(sources, out, options, stream_options, force=force, dry_run=dry_run)
    if source.holds_streams:
        return salvage_streams([source], None if dry_run else out, options.patterns, stream_options, force=force)
    return _of_one(source, out, options, force=force, dry_run=dry_run)


def _of_one(source: Source, out: Path | None, options: SalvageOptions, *, force: bool, dry_run: bool) -> int:
    from stantools.cli.opening import check_stopped
    from stantools.recovery.salvage import plan_salvage

    opened = source.store()
    names = opened.chosen(options.patterns)
    check_stopped([source], force=force or dry_run)
    with ByteProgress("plan", lambda: opened.data_size(names)) as shown:
        plan = plan_salvage(opened, options, progress=shown.advance)
    return carry_out(plan, None if dry_run else out, key=opened.key)


def salvage_streams(
    sources: Sequence[Source],
    out: Path | None,
    patterns: tuple[str, ...],
    options: StreamSalvageOptions,
    *,
    force: bool,
) -> int:
    """Writes the streams of JetStream directories anew, prints the result, and returns the exit code."""
    from stantools.cli.opening import check_stopped
    from stantools.recovery.streams.new_streams import write_streams
    from stantools.recovery.streams.stream_plan import plan_stream_salvage
    from stantools.recovery.streams.stream_salvage_report import stream_salvage_report
    from stantools.sources.jetstream import joined

    check_stopped(sources, force=force or out is None)
    with ByteProgress("plan") as shown:
        places = [each.path for each in sources]
        plan = plan_stream_salvage(joined(sources), options, patterns, shown.advance, places)
    if out is None:
        return show_plan(stream_salvage_report(plan))
    with ByteProgress("write", plan.bytes) as shown:
        result = write_streams(plan, out, options.to, shown.advance)
    code = show(stream_salvage_report(plan, result, options))
    if not result.good:
        _tell_mistake(str(out))
    return code


def check_out(out: Path | None, *, dry_run: bool) -> None:
    """Raises `UsageError` if a new store is to be written, but has no path."""
    if out is None and not dry_run:
        raise UsageError("--out is missing: the directory of the new store", "add --out NEW, or --dry-run for the plan")


def carry_out(
    plan: SalvagePlan, out: Path | None, described: Callable[..., Report] | None = None, key: bytes | None = None
) -> int:
    """Writes and checks a new store, prints the result, and returns the exit code.

    Args:
        out: The new store; None only prints the plan.
        described: Makes the report.
        key: The server's encryption key, if given.
    """
    from stantools.recovery.salvage import apply_salvage
    from stantools.recovery.salvage.check import check_new_store
    from stantools.recovery.salvage.salvage_report import salvage_report

    described = described or salvage_report
    if out is None:
        return show_plan(described(plan))
    with ByteProgress("write", plan.bytes) as shown:
        result = apply_salvage(plan, out, progress=shown.advance)
    usual_key = os.fsencode(os.environ.get(SERVER_KEY_VARIABLE, "")) or None  # the key that a server would use
    with ByteProgress("verify") as shown:
        check = check_new_store(plan, result, key=key or usual_key, progress=shown.advance)
    code = show(described(plan, result, check, key=_server_key()))
    if not check.good:
        _tell_mistake(str(out))
    return code


def _of_several(
    sources: NamedSources,
    out: Path | None,
    options: SalvageOptions,
    stream_options: StreamSalvageOptions,
    *,
    force: bool,
    dry_run: bool,
) -> int:
    from stantools.pipeline.jobs.salvage import run_salvage
    from stantools.pipeline.jobs.salvageplans import plan_job
    from stantools.pipeline.jobs.store_reports import salvage_stores_report

    planned = plan_job(
        sources.options,
        options,
        None if out is None else str(out),
        stream_options,
        dry_run=dry_run,
        force=force,
        found=sources.found,
        failed=sources.failed,
    )
    size, threads = sum(store.size for store in planned.stores), pipeline.threads(options.workers)
    with sources.cluster.work("salvage", size, None, threads) as work:
        for each in planned.passed:
            console.note(console.escape(each))
        result = run_salvage(work, planned, ByteProgress)
    show(salvage_stores_report(result, dry_run=dry_run))
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


def _server_key() -> str:
    """Returns the environment variable with the encryption key, in front of the server's command."""
    given = click.get_current_context().params
    variable, path = given["encryption_key_env"], given["encryption_key_file"]
    if path:
        return f'{SERVER_KEY_VARIABLE}="$(cat {shell_word(str(path))})" '
    return f'{SERVER_KEY_VARIABLE}="${variable}" ' if variable and variable != SERVER_KEY_VARIABLE else ""
