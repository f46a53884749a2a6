"""`stantools replay`: messages of a store published again."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
from stantools.cli.replayreport import how_to_go_on, show_outcome, show_plan, tell_pace, warn
from stantools.cli.values import Duration
from stantools.cli.verbs import verb
from stantools.errors import ExitCode, StantoolsError, StoreUnreadableError, UsageError

if TYPE_CHECKING:
    from stantools.migration.replay.run import Destination, Outcome, Pace
    from stantools.migration.replay.selection import Chosen, ReplayPlan
    from stantools.migration.replay.state import StateFile
    from stantools.migration.source import StoreSource
    from stantools.nats.options import ConnectOptions
    from stantools.store.options import ReadOptions

_F = TypeVar("_F", bound=Callable[..., Any])
_MAX_SPEED = 1e6


def _to_option(function: _F) -> _F:
    """Adds --to, which says the same as --server; a selected context of the nats command has no say then."""

    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        if to := values.pop("to"):
            values["servers"] = to
        return function(*args, **values)

    return click.option("--to", multiple=True, metavar="URL", help="Where to; the same as --server, and before it.")(
        cast(_F, wrapper)
    )


def _read_speed(_ctx: click.Context, _param: click.Parameter, text: str) -> float | None:
    """Reads a speed; None is as fast as possible."""
    if text == "max":
        return None
    if text == "original":
        return 1.0
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed <= _MAX_SPEED:
        raise click.BadParameter(f"{text!r} is not a speed: original, max, or a number such as 10 or 0.5")
    return speed


@verb("replay")
@store_argument
@_to_option
@channel_option
@sequence_option
@time_options
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
    callback=_read_speed,
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
@click.option(
    "--origin-headers", is_flag=True, help="Say in headers where messages come from: channel, sequence, time."
)
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
@reading_options(unchecked=False)
@output_option("table", "json")
@progress_option
@common_options
def command(
    store: Path,
    channels: tuple[str, ...],
    sequences: tuple[int | None, int | None] | None,
    since: int | None,
    until: int | None,
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
    taken (exit code 1 says that there were others). Reply subjects go into a header; for a streaming server they stay
    reply subjects.

    If a replay is interrupted, --resume leaves nothing out. Streams store nothing twice: messages have ids, and
    streams are asked what they have. Plain subjects and streaming servers get nothing twice after Ctrl-C; what was on
    its way when the process was killed or the connection broke is sent again.
    """
    from stantools.migration.replay.run import Kind, Outcome, Pace
    from stantools.migration.replay.selection import Chosen, plan_replay
    from stantools.migration.replay.state import StateFile, default_path
    from stantools.migration.replay.subjects import SubjectRules

    destination = _destination(kind, origin_headers, cluster_id, client_id, discover_prefix)
    if not dry_run and not connecting.servers:
        raise UsageError("where to is missing", "add --to nats://HOST:4222, or --dry-run to see what would be sent")
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
    with StateFile(path, identity, resume=True) if resume else nullcontext() as earlier:
        # Nothing is written before it is known that the store can be read.
        source = _source(store, channels, generation, archived, workers, reading, progress)
        if earlier is not None:
            chosen = _chosen_before(earlier, chosen)
        plan = plan_replay(source, subjects, chosen, streaming=destination.kind is Kind.STREAMING)
        positions = earlier.state.channels if earlier is not None else {}
        plan.check_positions(source, positions)
        left = plan.after(positions)
        code = ExitCode.FINDINGS if source.lossy else ExitCode.CLEAN
        if dry_run:
            show_plan(left, pace, source, output)
            return code
        if not left.messages:
            console.note("there is no message to replay in what was chosen")
            if earlier is not None:
                earlier.remove()
            show_outcome(left, Outcome(finished=True), source, output, None)
            return code
        tell_pace(left, pace)
        with nullcontext(earlier) if earlier is not None else StateFile(path, identity, resume=False) as file:
            file.state.selection = chosen.fixed(source.channels).as_json()
            outcome = _replay(plan, left, connecting, destination, file, pace, progress)
            show_outcome(left, outcome, source, output, None if outcome.finished else path)
    return code if outcome.finished else ExitCode.INTERRUPTED


def _destination(
    kind: str, origin: bool, cluster_id: str | None, client_id: str | None, discover_prefix: str | None
) -> Destination:
    from stantools.migration.replay.run import CLUSTER_ID, Destination, Kind
    from stantools.migration.replay.session import DISCOVER_PREFIX

    given = {"--cluster-id": cluster_id, "--client-id": client_id, "--discover-prefix": discover_prefix}
    if kind != Kind.STREAMING:
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"{option} is of no use without --as streaming", "add that, or leave it out")
    elif origin:
        raise UsageError(
            "messages of a streaming server have no headers, which --origin-headers would write", "leave it out"
        )
    return Destination(Kind(kind), origin, cluster_id or CLUSTER_ID, client_id, discover_prefix or DISCOVER_PREFIX)


def _source(
    store: Path,
    channels: tuple[str, ...],
    generation: str,
    archived: bool,
    workers: int,
    reading: ReadOptions,
    progress: str,
) -> StoreSource:
    """Reads the store, and says what of it cannot be replayed."""
    from stantools.cli.opening import channel_names, open_store
    from stantools.cli.progress import Progress
    from stantools.migration.source import open_source

    opened, crc = open_store(store, reading)
    names = channel_names(opened, channels)
    with Progress(progress, "plan") as shown:
        if shown.active:
            shown.total = opened.data_size(names)
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
    if reading.encryption_key is not None:
        for channel in source.channels:
            channel.check_key()
    warn(source, key_given=reading.encryption_key is not None)
    return source


def _chosen_before(file: StateFile, chosen: Chosen) -> Chosen:
    """Returns the selection of the run that is gone on with.

    Raises:
        UsageError: The user has asked for another one now.
        StoreUnreadableError: The file makes no sense.
    """
    from stantools.migration.replay.selection import Chosen

    try:
        before = Chosen.from_json(file.state.selection)
    except ValueError as problem:
        raise StoreUnreadableError(f"{file.path}: {problem}", "name the right file by --state") from problem
    if not file.state.selection:
        return chosen
    if (chosen.first, chosen.last) not in ((None, None), (before.first, before.last)):
        raise UsageError(
            f"{file.path}: the replay to go on with has other sequences than --seq now says",
            "repeat the command as it was",
        )
    return before


def _replay(
    plan: ReplayPlan,
    left: ReplayPlan,
    connecting: ConnectOptions,
    destination: Destination,
    file: StateFile,
    pace: Pace,
    progress: str,
) -> Outcome:
    """Runs it; Ctrl-C stops it, a second one at once."""
    from stantools.cli.progress import Progress
    from stantools.migration.replay.run import replay
    from stantools.migration.tasks import run

    new = not file.state.channels

    async def work() -> Outcome:
        stop = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            else:
                stop.set()
                console.note("stopping when what is on its way has arrived; once more stops at once")

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not in a thread, and not on every system: then Python's own handling counts.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, on_signal)
        with Progress(progress, "replay", left.payload) as shown:
            return await replay(
                plan, connecting, destination, file, pace, stop=stop, say=console.note, progress=shown.advance
            )

    try:
        outcome = run(work())
    except asyncio.CancelledError:
        console.note(how_to_go_on(file.path))
        raise KeyboardInterrupt from None
    except StantoolsError:
        if new and not file.state.channels and not file.state.streams:
            file.remove()
        else:
            console.note(how_to_go_on(file.path))
        raise
    if outcome.finished:
        file.remove()
    return outcome
