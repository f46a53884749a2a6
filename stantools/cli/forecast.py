"""`stantools forecast`: the server's behaviour on a store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.click_options import limit_options, node_option, options_of, reading_options, stores_argument, verb
from stantools.cli.diagnosis import ServerFlags, examine, print_advice, print_outcomes, print_starts
from stantools.cli.output import print_json, table_text
from stantools.cli.reporttext import show as show_report
from stantools.errors import ExitCode
from stantools.notation import counted, describe_ranges

if TYPE_CHECKING:
    from stantools.inspection.forecast import Forecast
    from stantools.sources.source import Source
    from stantools.store.nodes import NodeFiles
    from stantools.store.read_options import ReadOptions

_LOG_LINES = 12
_LOSSES = 8
_CHANNELS = 20
#: Log lines omitted from the table: informational ones, the dump of a bad record, and the error itself.
_DETAIL = re.compile(r"\[INF\]|\[FTL\]|\[ERR\] STREAM: (?: |Record |[0-9a-f]{2}(?: |$))")


@verb("forecast", "table", "json")
@stores_argument("STORE | NODE...")
@node_option
@options_of(ServerFlags, "server", limit_options())
@reading_options()
def command(stores: tuple[Path, ...], server: ServerFlags, read_options: ReadOptions) -> int:
    """Predict what the real server does with STORE if it is started now. Nothing is changed.

    The first lines name the intact data that a start would destroy, and the next safe step. Two starts are predicted:
    the normal one, and the one with -file_truncate_bad_eof. Each forecast tells whether the server starts or with which
    error it fails, the messages of each channel, the place where delivery stops, and the files it changes. Without
    --server-version, servers since 0.25 are predicted as well where they differ.

    Of a JetStream directory the streams are told that a nats-server loads, with which state and which consumers, the
    messages that are readable and delivered, the files that it cuts, removes and rewrites, and the directories that it
    deletes. The default is the version that seems to have written the directory, and the newest.

    Limits default to the server's (1,000,000 messages and 1,024,000,000 bytes per channel).

    For the directories of a cluster's nodes (with Raft directory and file store) it tells which nodes start, which of
    them can become leader, and which channels the cluster then loses. Nodes that are not named count as stopped.

    Exit code 0: a normal start works and destroys nothing, no durable queue member is deleted, every message can be
    delivered; for a cluster: every node starts, one can lead, and no possible leader loses a channel. Otherwise 1.
    """
    from stantools.cli.opening import nodes_of, open_sources
    from stantools.sources.source import Capability

    sources = open_sources(stores, read_options, Capability.FORECAST)
    if sources[0].streams:
        return _forecast_streams(sources, server)
    if nodes := nodes_of(sources):
        return _forecast_cluster(nodes, read_options)
    diagnosis = examine(sources[0], server, needs_start=True)
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


def _forecast_streams(sources: Sequence[Source], server: ServerFlags) -> int:
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.stream_forecast.start_report import forecast_starts

    with ByteProgress("forecast") as shown:
        found = forecast_starts(sources[0], server.server_version, shown.advance)
    return show_report(found.report())


def _forecast_cluster(files: Sequence[NodeFiles], read_options: ReadOptions) -> int:
    from stantools.inspection.elections import forecast_cluster
    from stantools.inspection.node import node_overview

    said = forecast_cluster([node_overview(each, read_options) for each in files])
    if console.output() == "json":
        print_json(said.as_json())
        return ExitCode.CLEAN if said.harmless else ExitCode.FINDINGS
    leaders = " or ".join(each.leader for each in said.outcomes)
    text = f"If started together now, {leaders or 'none of these nodes'} becomes leader; it needs {said.majority} of "
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
        click.echo(console.wrapped("next: `stantools verify NODE` for each node that does not start", 2))
    return ExitCode.CLEAN if said.harmless else ExitCode.FINDINGS


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
