"""`stantools replay`: messages of a store published again."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.connecting import connection_options
from stantools.cli.options import (
    channel_option,
    common_options,
    dry_run_option,
    output_option,
    progress_option,
    reading_options,
    sequence_option,
    store_argument,
    time_options,
    workers_option,
)
from stantools.cli.output import print_json, table_text
from stantools.cli.values import Duration, Speed, format_duration, format_size, format_time
from stantools.cli.verbs import verb
from stantools.errors import ExitCode, StantoolsError, UsageError

if TYPE_CHECKING:
    from stantools.migration.replay.run import Outcome
    from stantools.migration.replay.selection import Chosen, ReplayPlan
    from stantools.migration.replay.start import Destination, Pace
    from stantools.migration.replay.state import StateFile
    from stantools.migration.source import StoreSource
    from stantools.migration.target.options import ConnectOptions
    from stantools.store.options import ReadOptions

_MANY = 20
_SECOND = 1_000_000_000


@verb("replay")
@store_argument
@channel_option
@sequence_option
@time_options
@click.option("--to", "to", multiple=True, metavar="URL", help="The server, the same as --server.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["core", "jetstream", "streaming"]),
    default="core",
    show_default=True,
    help="Publish to NATS subjects, to streams that take them, or to channels of a streaming server.",
)
@click.option(
    "--speed",
    type=Speed(),
    default="original",
    show_default=True,
    metavar="original|N|max",
    help="At the original pace, N times as fast, or as fast as possible.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Messages a second, at most.")
@click.option("--max-pause", type=Duration(), metavar="TIME", help="Shorten longer pauses between messages to this.")
@click.option(
    "--subject",
    "rules",
    multiple=True,
    metavar="RULE",
    help="Rewrite names: 'old.*=new.*'. * is one token ($1, $2 to reorder), > the rest; the first that matches counts.",
)
@click.option("--prefix", default="", metavar="PREFIX", help="Put this and a dot in front of every subject.")
@click.option("--origin-headers", is_flag=True, help="Say in headers where messages come from: channel, sequence, time.")
@click.option("--cluster-id", metavar="ID", help="Of the streaming server; test-cluster if not given.")
@click.option("--client-id", metavar="ID", help="The name to register under with the streaming server.")
@click.option("--discover-prefix", metavar="SUBJECT", help="The streaming server's discover_prefix.")
@click.option("--resume", is_flag=True, help="Go on with a replay that was interrupted.")
@click.option(
    "--state",
    "state_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to remember how far it is; by default a file in the current directory that is found by the command.",
)
@click.option(
    "--generation",
    default="split",
    show_default=True,
    metavar="split|newest|N",
    help="If sequences began again: older generations as channels of their own, only the newest, or the Nth.",
)
@click.option("--archived", is_flag=True, help="Take messages from .bak slices as well.")
@dry_run_option
@workers_option
@connection_options
@reading_options(key=True, unchecked=False)
@output_option("table", "json")
@progress_option
@common_options
def command(
    store: Path,
    channels: tuple[str, ...],
    sequences: tuple[int | None, int | None] | None,
    since: int | None,
    until: int | None,
    to: tuple[str, ...],
    kind: str,
    speed: float | None,
    rate: float | None,
    max_pause: int | None,
    rules: tuple[str, ...],
    prefix: str,
    origin_headers: bool,
    cluster_id: str | None,
    client_id: str | None,
    discover_prefix: str | None,
    resume: bool,
    state_path: Path | None,
    generation: str,
    archived: bool,
    dry_run: bool,
    workers: int,
    connecting: ConnectOptions,
    reading: ReadOptions,
    output: str,
    progress: str,
) -> int:
    """Publish the messages of STORE again, in their order and at their pace.

    Several channels keep their relative timing. STORE is not changed; of a damaged one every intact message is
    taken. Reply subjects go into a header (streaming: they stay reply subjects).

    What is promised if it is interrupted and gone on with by --resume: nothing is left out. To streams, nothing is
    stored twice (messages have ids, and streams are asked what they have). To plain subjects and streaming servers,
    nothing is sent twice after Ctrl-C; what was on its way when the process was killed or the connection broke is
    sent again.
    """
    from stantools.cli.opening import channel_names, data_size, open_store
    from stantools.cli.progress import Progress
    from stantools.migration.replay.selection import Chosen
    from stantools.migration.replay.start import Kind, Pace
    from stantools.migration.replay.state import StateFile, default_path
    from stantools.migration.replay.subjects import SubjectRules
    from stantools.migration.source import open_source
    from stantools.migration.target.options import split_servers

    destination = _destination(kind, origin_headers, cluster_id, client_id, discover_prefix)
    if to:
        connecting = replace(connecting, servers=split_servers(to))
    connecting = connecting.checked()
    subjects = SubjectRules.parse(rules, prefix)
    pace = Pace(speed, rate, max_pause)
    first, last = sequences or (None, None)
    chosen = Chosen(first, last, since, until)
    identity = {
        "store": str(store.resolve()),
        "to": list(connecting.servers),
        "as": kind,
        "channels": list(channels),
        "rules": list(rules),
        "prefix": prefix,
        "generation": generation,
        "archived": archived,
        "cluster_id": destination.cluster_id if destination.kind is Kind.STREAMING else None,
    }
    path = state_path or default_path(identity)
    opened, crc = open_store(store, reading)
    names = channel_names(opened, channels)
    with Progress(progress, "plan") as shown:
        if shown.active:
            shown.total = data_size(opened, names)
        source = open_source(
            opened,
            crc,
            patterns=channels,
            generation=generation,
            archived=archived,
            key=reading.encryption_key,
            workers=workers,
            progress=shown.advance,
        )
    _warn(source, key_given=reading.encryption_key is not None)
    streaming = destination.kind is Kind.STREAMING
    if dry_run and not resume:
        plan = plan_of(source, subjects, chosen, streaming=streaming)
        _show(plan, plan, pace, output, source, path=None, outcome=None)
        return ExitCode.FINDINGS if source.lossy else ExitCode.CLEAN
    with StateFile(path, identity, resume=resume) as file:
        chosen = _chosen_before(file, chosen, source, resume=resume)
        plan = plan_of(source, subjects, chosen, streaming=streaming)
        plan.check_positions(source, file.state.channels)
        left = plan.after(file.state.channels)
        if dry_run:
            _show(plan, left, pace, output, source, path=path, outcome=None)
            return ExitCode.FINDINGS if source.lossy else ExitCode.CLEAN
        outcome = _replay(plan, left, connecting, destination, file, pace, resume=resume, progress=progress)
        _show(plan, left, pace, output, source, path=None if outcome.finished else path, outcome=outcome)
    if not outcome.finished:
        return ExitCode.INTERRUPTED
    return ExitCode.FINDINGS if source.lossy else ExitCode.CLEAN
