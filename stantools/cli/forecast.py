"""`stantools forecast`: what the server would do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.options import (
    GivenLimits,
    common_options,
    limit_options,
    output_option,
    progress_option,
    reading_options,
    store_argument,
    workers_option,
)
from stantools.cli.output import describe_ranges, print_json, table_text
from stantools.cli.values import Size
from stantools.cli.verbs import verb
from stantools.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from stantools.format.crc import Crc
    from stantools.inspection.forecast import Forecast, OtherUser
    from stantools.store.directory import Datastore
    from stantools.store.options import ReadOptions

_VERSIONS = ("0.23.2", "0.25.6")
_LOG_LINES = 12
#: Log lines that are left out of the table: informational ones, the dump of a bad record, and the error itself.
_DETAIL = re.compile(r"\[INF\]|\[FTL\]|\[ERR\] STREAM: (?: |Record |[0-9a-f]{2}(?: |$))")


@verb("forecast")
@store_argument
@click.option(
    "--server-version", type=click.Choice(_VERSIONS), default=_VERSIONS[0], show_default=True, help="Which server."
)
@limit_options
@click.option("--cluster-id", metavar="ID", help="The server's -cluster_id; the store's own if not given.")
@click.option("--read-buffer", type=Size(), metavar="SIZE", help="The server's -file_read_buffer_size; 0 is off.")
@click.option("--server-user", metavar="USER", help="Name or number of the user that runs the server, if not you.")
@workers_option
@reading_options(key=True)
@output_option("table", "json")
@progress_option
@common_options
def command(
    store: Path,
    server_version: str,
    limits: GivenLimits | None,
    cluster_id: str | None,
    read_buffer: int | None,
    server_user: str | None,
    workers: int,
    reading: ReadOptions,
    output: str,
    progress: str,
) -> int:
    """Predict what the real server does with STORE if it is started now. Nothing is changed.

    Both starts are predicted: the normal one, and the one with -file_truncate_bad_eof. For each: does it start, with
    which error not, what would each channel show, where would delivery stop, and which files would it change.

    Limits that are not given are the server's defaults (1,000,000 messages and 1,024,000,000 bytes a channel).

    Exit code 0: a normal start works, nothing is cut off, every message can be delivered. Otherwise 1.
    """
    from stantools.cli.opening import data_size, open_store
    from stantools.cli.progress import Progress
    from stantools.inspection.forecast import ServerOptions, forecast_both
    from stantools.inspection.forecast.access import CurrentUser
    from stantools.inspection.forecast.model import DEFAULT_CLUSTER_ID, DEFAULT_READ_BUFFER
    from stantools.store.limits import ChannelLimits, StoreLimits

    opened, crc = open_store(store, reading)
    options = ServerOptions(
        version=server_version,
        polynomial=crc.polynomial,
        check_crc=reading.check_crc,
        limits=limits.over(ChannelLimits()) if limits else StoreLimits(),
        read_buffer_size=DEFAULT_READ_BUFFER if read_buffer is None else read_buffer,
        encryption_key=reading.encryption_key,
        cluster_id=cluster_id or _stored_cluster_id(opened, crc) or DEFAULT_CLUSTER_ID,
        access=_user(server_user) if server_user else CurrentUser(),
        workers=workers,
    )
    with Progress(progress, "forecast") as shown:
        if shown.active:
            shown.total = data_size(opened, opened.channel_names)
        normal, truncating = forecast_both(opened, options, progress=shown)
    if output == "json":
        both = {"normal": normal.as_json(), "truncate": truncating.as_json()}
        print_json({"server_version": server_version, **both})
    else:
        _print(normal, f"server {server_version}, normal start")
        click.echo()
        _print(truncating, f"server {server_version}, start with -file_truncate_bad_eof")
    return ExitCode.CLEAN if _harmless(normal) else ExitCode.FINDINGS


def _stored_cluster_id(store: Datastore, crc: Crc) -> str | None:
    from stantools.errors import StoreUnreadableError
    from stantools.store.mapping import mapped
    from stantools.store.serverinfo import read_server_info

    if store.server is None:
        return None
    try:
        with mapped(store.server) as buffer:
            info = read_server_info(buffer, crc).info
            return info.cluster_id.decode("utf-8", "surrogateescape") if info else None
    except StoreUnreadableError:
        return None  # the forecast itself says what the server makes of this file


def _user(name: str) -> OtherUser:
    import grp
    import pwd

    from stantools.inspection.forecast import OtherUser

    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError as problem:
        if name.isdecimal():
            return OtherUser(int(name))
        raise UsageError(f"there is no user {console.escape(name)}", "give the user's number") from problem
    groups = {each.gr_gid for each in grp.getgrall() if entry.pw_name in each.gr_mem}
    return OtherUser(entry.pw_uid, frozenset({entry.pw_gid, *groups}))


def losses(forecast: Forecast) -> list[str]:
    """Says which files a start would shorten or remove, indexes that are rebuilt aside."""
    lost = []
    for path, (before, after) in forecast.files_changed().items():
        if path.endswith(".dat") and before is not None and (after is None or after < before):
            lost.append(path)
    return lost


def _harmless(forecast: Forecast) -> bool:
    delivered = all(
        channel.stalls_at is None and not channel.lookups.failing and not channel.lookups.wrong
        for channel in forecast.channels.values()
    )
    return forecast.starts and forecast.recovered and delivered and not losses(forecast)


def _print(forecast: Forecast, title: str) -> None:
    if forecast.starts:
        verdict = console.paint("starts", "green", err=False)
        if not forecast.recovered:
            verdict += " as if the store were empty"
    else:
        verdict = console.paint(f"does not start, exit code {forecast.exit_code}", "red", err=False)
    click.echo(f"{title}: {verdict}")
    if forecast.error:
        click.echo(f"  error  {console.escape_lines(forecast.error)}")
    notable = [line for line in forecast.log if not _DETAIL.match(line)]
    for line in notable[:_LOG_LINES]:
        click.echo(f"  log    {console.escape_lines(line)}")
    if len(notable) > _LOG_LINES:
        click.echo(f"  log    … and {len(notable) - _LOG_LINES} more lines: see -o json")
    for path, (before, after) in forecast.files_changed().items():
        click.echo(f"  file   {console.escape(path)}  {_change(before, after)}")
    if forecast.channels:
        click.echo(_channels(forecast), nl=False)


def _change(before: int | None, after: int | None) -> str:
    if before is None:
        return f"created, {after} bytes"
    if after is None:
        return f"{console.paint('removed', 'yellow', err=False)}, had {before} bytes"
    if after < before:
        return f"{console.paint('cut', 'yellow', err=False)} from {before} to {after} bytes"
    return f"changed from {before} to {after} bytes"


def _channels(forecast: Forecast) -> str:
    rows = [
        (
            each.name,
            each.first_seq,
            each.last_seq,
            each.count,
            each.bytes,
            describe_ranges(each.lookups.readable, 4),
            describe_ranges(each.delivered, 4),
            f"{each.stalls_at}: {each.stall_error}" if each.stalls_at is not None else None,
            len(each.subscriptions),
        )
        for each in forecast.channels.values()
    ]
    headers = ("channel", "first", "last", "messages", "bytes", "readable", "delivered", "delivery stops at", "subs")
    text = table_text(headers, rows, right=("first", "last", "messages", "bytes", "subs"))
    return "\n" + "".join(f"  {line}\n" for line in text.splitlines())
