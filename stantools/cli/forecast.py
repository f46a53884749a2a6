"""`stantools forecast`: what the server would do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.options import limit_options, node_option, options_of, reading_options, stores_argument, verb
from stantools.cli.output import print_json, table_text
from stantools.errors import ExitCode, UsageError
from stantools.escaping import shell_word
from stantools.notation import counted, describe_ranges
from stantools.options import CLUSTER_ID, SIZE, WORKERS, option

if TYPE_CHECKING:
    from stantools.inspection.advice import Advice, Diagnosis
    from stantools.inspection.forecast import Forecast, OtherUser, ServerOptions
    from stantools.inspection.start_verdict import StartVerdict
    from stantools.store.directory import Datastore
    from stantools.store.limits import StoreLimits
    from stantools.store.nodes import NodeFiles
    from stantools.store.options import ReadOptions
    from stantools.store.ranges import Ranges

_LOG_LINES = 12
_LOSSES = 8
_CHANNELS = 20
#: Log lines that are left out of the table: informational ones, the dump of a bad record, and the error itself.
_DETAIL = re.compile(r"\[INF\]|\[FTL\]|\[ERR\] STREAM: (?: |Record |[0-9a-f]{2}(?: |$))")


# The versions are those of `inspection.forecast.SERVER_VERSIONS`; that module is too big to import for --help.
_VERSIONS = ("0.23.2", "0.25.6")


@dataclass(frozen=True)
class Server:
    """How the server whose behaviour is predicted is started; what is not given is the server's default."""

    server_version: str | None = option(f"Which server; {_VERSIONS[0]} if not given.", choices=_VERSIONS)
    cluster_id: str | None = CLUSTER_ID.field(help="The server's -cluster_id; the store's own if not given.")
    read_buffer: int | None = SIZE.field(help="The server's -file_read_buffer_size; 0 is off.")
    server_user: str | None = option("Name or number of the user that runs the server, if not you.", metavar="USER")
    workers: int = WORKERS.field()
    limits: StoreLimits | None = None

    def options(self, store: Datastore) -> ServerOptions:
        """Returns how the server is started on a store.

        The cluster id is the store's own if it is not given: a start with another one fails anyway.
        """
        from stantools.inspection.forecast.options import own_server

        version = self.server_version or _VERSIONS[0]
        options = own_server(store, version=version, workers=self.workers)
        if self.limits:
            options = replace(options, limits=self.limits)
        if self.read_buffer is not None:
            options = replace(options, read_buffer_size=self.read_buffer)
        if self.cluster_id:
            options = replace(options, cluster_id=self.cluster_id)
        return replace(options, access=_user(self.server_user)) if self.server_user else options


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


@verb("forecast", "table", "json")
@stores_argument("STORE | NODE...")
@node_option
@options_of(Server, "server", limit_options())
@reading_options()
def command(stores: tuple[Path, ...], server: Server, reading: ReadOptions) -> int:
    """Predict what the real server does with STORE if it is started now. Nothing is changed.

    The first lines say what a start would destroy although it is intact, and the next safe step. Both starts are
    predicted: the normal one, and the one with -file_truncate_bad_eof. For each: does it start, with which error not,
    what would each channel show, where would delivery stop, and which files would it change. Where servers since 0.25
    would do otherwise and no version is given, what they would do follows.

    Limits that are not given are the server's defaults (1,000,000 messages and 1,024,000,000 bytes a channel).

    For the directories of a cluster's nodes (Raft directory and file store below them) it says which nodes start, which
    of them can become leader, and which channels the cluster forgets then. Nodes that are not named stay down.

    Exit code 0: a normal start works and destroys nothing, no durable queue member is deleted, every message can be
    delivered; of a cluster: every node starts, one can lead, and none that can forgets a channel. Otherwise 1.
    """
    from stantools.cli.doctor import examine
    from stantools.cli.opening import node_at, open_store

    nodes = [node for path in stores if (node := node_at(path))]
    if nodes and len(nodes) == len(stores):
        return _forecast_cluster(nodes, reading)
    if len(stores) > 1:
        raise UsageError("only nodes of a cluster are forecast together", "name one store, or directories of nodes")
    (store,) = stores
    diagnosis = examine(store, open_store(store, reading), server, needs_start=True)
    judged = list(diagnosis.starts)
    if server.server_version:
        del judged[1:]
    versions = [(normal.forecast, truncating.forecast) for normal, truncating in judged]
    if console.output() == "json":
        described = [
            {
                "server_version": one.server_version,
                "normal": one.as_json(streamed=True),
                "truncate": two.as_json(streamed=True),
            }
            for one, two in versions
        ]
        start = judged[0][0]
        said = {
            "harmless": start.harmless,
            "says": start.sentence(),
            "flaws": [flaw.as_json() for flaw in start.flaws],
            "messages": diagnosis.totals.as_json(),
        }
        print_json({**described[0], **said, "other_versions": described[1:]})
    else:
        print_starts(judged)
        print_advice(diagnosis.advice)
        click.echo()
        print_outcomes(diagnosis)
        for one, two in versions:
            click.echo()
            _print(one, f"server {one.server_version}, normal start")
            click.echo()
            _print(two, f"server {two.server_version}, start with -file_truncate_bad_eof", beside=one)
    return ExitCode.CLEAN if judged[0][0].delivers else ExitCode.FINDINGS


def _forecast_cluster(files: Sequence[NodeFiles], reading: ReadOptions) -> int:
    from stantools.inspection.elections import forecast_cluster
    from stantools.inspection.node import node_overview

    said = forecast_cluster([node_overview(each, reading) for each in files])
    if console.output() == "json":
        print_json(said.as_json())
        return ExitCode.CLEAN if said.harmless else ExitCode.FINDINGS
    leaders = " or ".join(each.leader for each in said.outcomes)
    text = f"Started together now, {leaders or 'none of these nodes'} becomes leader; it needs {said.majority} of "
    text += counted(len(said.voters), "vote") + f" ({', '.join(said.voters) or 'members unknown'})."
    click.echo(console.paint(console.wrapped(text, 2), "green" if said.harmless else "red", err=False))
    for node in said.nodes:
        if node.error:
            click.echo(console.wrapped(f"  {node.name} does not start: {console.escape(node.error)}", 4))
    for each in said.outcomes:
        for lost in each.forgets:
            line = f"  if {each.leader} leads, the cluster forgets {console.escape(lost.channel)}: "
            line += f"sequences {lost.first} to {lost.last}, {counted(lost.subscriptions, 'subscription')}"
            click.echo(console.wrapped(line, 4))
    if any(each.forgets for each in said.outcomes):
        advice = "copy all directories first; then stantools merge NODE... --out NEW, or give the data directory of a "
        advice += "whole node to the one that lost its own"
        click.echo(console.wrapped(f"next: {advice}", 2))
    elif not said.harmless:
        click.echo(console.wrapped("next: stantools verify NODE for each node that does not start", 2))
    return ExitCode.CLEAN if said.harmless else ExitCode.FINDINGS


def print_starts(versions: Sequence[tuple[StartVerdict, StartVerdict]]) -> None:
    """Prints what starts come to and what they destroy."""
    (normal, truncating), *others = versions
    said = [("", normal)]
    one, two = normal.forecast, truncating.forecast
    if (two.starts, two.destroys) != (one.starts, one.destroys):
        said.append(("With -file_truncate_bad_eof ", truncating))
    said += [(f"As version {each.forecast.server_version} ", each) for each, _ in others]
    for label, start in said:
        color = "green" if start.harmless else "red"
        text = f"{label}the server would {start.outlook()}" if label else start.sentence()
        click.echo(console.paint(console.wrapped(text, 2), color, err=False))
        losses = start.forecast.destroys
        for loss in losses[:_LOSSES]:
            click.echo(console.wrapped(f"  destroys  {loss.sentence()}", 12))
        console.left_out(len(losses) - _LOSSES, head="  destroys  ", tail=": see -o json")


def print_outcomes(diagnosis: Diagnosis) -> None:
    """Prints what became of the messages: the numbers, then the channels in which it is not simply well."""
    click.echo(f"messages: {diagnosis.totals.sentence('a start')}")
    rows = [
        (
            each.name,
            each.count,
            describe_ranges(each.readable or (), 4) if each.readable is not None else None,
            _described(each.recoverable, *each.older),
            _described(each.archived),
            _described(each.missing),
            ", ".join(unknown.sequences for unknown in each.unknown) or None,
        )
        for each in diagnosis.outcomes.values()
        if each.recoverable or each.older or each.archived or each.missing or each.unknown
    ]
    if rows:
        headers = ("channel", "intact", "readable now", "recoverable", "archived", "missing before", "unknown")
        click.echo(table_text(headers, rows[:_CHANNELS], right=("intact",), indent=2), nl=False)
    console.left_out(len(rows) - _CHANNELS, "channel", head="  ", tail=": see -o json")


def _described(*sets: Ranges) -> str | None:
    return "; ".join(describe_ranges(each, 4) for each in sets if each) or None


def print_advice(advice: Advice) -> None:
    """Prints the next step, and its command as it can be pasted."""
    click.echo(console.wrapped(f"next: {console.escape_line(advice.text)}", 2))
    if advice.command:
        click.echo(f"  {' '.join(map(shell_word, advice.command))}")


def _print(forecast: Forecast, title: str, beside: Forecast | None = None) -> None:
    if forecast.starts:
        verdict = console.paint("starts", "green", err=False)
        if not forecast.recovered:
            verdict += " as if the store were empty"
    else:
        verdict = console.paint(f"does not start, exit code {forecast.exit_code}", "red", err=False)
    click.echo(f"{title}: {verdict}")
    if forecast.error:
        click.echo(console.wrapped(f"  error  {console.escape_lines(forecast.error)}", 9))
    notable = [line for line in forecast.log if not _DETAIL.match(line)]
    for line in notable[:_LOG_LINES]:
        click.echo(console.wrapped(f"  log    {console.escape_lines(line)}", 9))
    console.left_out(len(notable) - _LOG_LINES, "line", head="  log    ", tail=": see -o json")
    for path, (before, after) in forecast.files_changed().items():
        click.echo(f"  file   {console.escape(path)}  {_change(before, after)}")
    if beside and forecast.channels and _channels(forecast) == _channels(beside):
        click.echo("  the channels are as above")
    elif forecast.channels:
        click.echo(_channels(forecast), nl=False)


def _change(before: int | None, after: int | None) -> str:
    if before is None:
        return f"created, {counted(after or 0, 'byte')}"
    if after is None:
        return f"{console.paint('removed', 'yellow', err=False)}, had {counted(before, 'byte')}"
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
    right = ("first", "last", "messages", "bytes", "subs")
    return "\n" + table_text(headers, rows, right=right, fold=("delivery stops at",), indent=2)
