"""`stantools replay`: messages of a store published again."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stantools.cli import console
from stantools.cli.connecting import connection_options
from stantools.cli.options import dry_run_option, options_of, reading_options, store_argument, verb, workers_option
from stantools.cli.replayreport import how_to_go_on, show_outcome, show_plan, tell_pace, warn
from stantools.errors import ExitCode, StantoolsError, StoreUnreadableError, UsageError
from stantools.options import (
    AGE,
    ARCHIVED,
    CHANNELS,
    CLUSTER_ID,
    GENERATION,
    SEQUENCES,
    SINCE,
    UNTIL,
    option,
)

if TYPE_CHECKING:
    from stantools.migration.replay.publisher import Destination
    from stantools.migration.replay.run import Outcome, Pace
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

    return click.option(
        "--to", multiple=True, metavar="URL", help="Where to publish; like --server, and takes precedence over it."
    )(cast(_F, wrapper))


def _read_speed(text: str) -> float | None:
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
        raise ValueError(f"{text!r} is not a speed: original, max, or a number such as 10 or 0.5")
    return speed


@dataclass(frozen=True)
class Replaying:
    """What is published again, as what, and how fast."""

    channels: tuple[str, ...] = CHANNELS.field()
    sequences: tuple[int | None, int | None] | None = SEQUENCES.field()
    since: int | None = SINCE.field()
    until: int | None = UNTIL.field()
    kind: str = option(
        "Publish to NATS subjects, to streams that take them, or to channels of a streaming server.",
        "--as",
        default="core",
        choices=("core", "jetstream", "streaming"),
    )
    speed: float | None = option(
        "At the original pace, N times as fast, or as fast as possible.",
        default=1.0,
        read=_read_speed,
        written="original",
        metavar="original|N|max",
    )
    rate: float | None = option("Messages a second, at most.", kind=float, least=0, above=True, metavar="N")
    max_pause: int | None = AGE.field(help="Shorten longer pauses between messages to this.", metavar="TIME")
    rules: tuple[str, ...] = option(
        "Rewrite names: 'old.*=new.*'. * is one token ($1, $2 to reorder), > the rest; the first that matches counts.",
        "--subject",
        default=(),
        metavar="RULE",
    )
    prefix: str = option("Put this and a dot in front of every subject.", default="", metavar="PREFIX")
    origin_headers: bool = option("Say in headers where messages come from: channel, sequence, time.", default=False)
    cluster_id: str | None = CLUSTER_ID.field(help="Cluster id of the streaming server; test-cluster if not given.")
    client_id: str | None = option("The name to register under with the streaming server.", metavar="ID")
    discover_prefix: str | None = option("The streaming server's discover_prefix.", metavar="SUBJECT")
    resume: bool = option("Continue an interrupted replay.", default=False)
    state: Path | None = option(
        "Where to remember how far it is; by default a file in the current directory that is found by the command.",
        kind=Path,
        metavar="FILE",
    )
    generation: str = GENERATION.field()
    archived: bool = ARCHIVED.field()

    def destination(self) -> Destination:
        """Returns as what messages are published.

        Raises:
            UsageError: An option is of no use there.
        """
        from stantools.migration.replay.publisher import CLUSTER_ID, Destination, Kind
        from stantools.streaming.session import DISCOVER_PREFIX

        if self.kind != Kind.STREAMING:
            for name in ("cluster_id", "client_id", "discover_prefix"):
                if getattr(self, name) is not None:
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{flag} is of no use without --as streaming", "add that, or leave it out")
        elif self.origin_headers:
            raise UsageError(
                "messages of a streaming server have no headers, which --origin-headers would write", "leave it out"
            )
        return Destination(
            Kind(self.kind),
            self.origin_headers,
            self.cluster_id or CLUSTER_ID,
            self.client_id,
            self.discover_prefix or DISCOVER_PREFIX,
        )

    def identity(self, store: Path, servers: Sequence[str], cluster_id: str) -> dict[str, Any]:
        """Returns what makes it the same replay when it is resumed."""
        return {
            "store": str(store.resolve()),
            "to": list(servers),
            "as": self.kind,
            "channels": list(self.channels),
            "rules": list(self.rules),
            "prefix": self.prefix,
            "generation": self.generation,
            "archived": self.archived,
            "cluster_id": cluster_id if self.kind == "streaming" else None,
        }


@verb("replay", "table", "json")
@store_argument
@_to_option
@options_of(Replaying, "replaying")
@dry_run_option
@workers_option
@connection_options
@reading_options(unchecked=False)
def command(
    store: Path, replaying: Replaying, dry_run: bool, workers: int, connecting: ConnectOptions, reading: ReadOptions
) -> int:
    """Publish the messages of STORE again, in their order and at their pace.

    Several channels keep their relative timing. STORE is not changed; of a damaged one every intact message is
    taken (exit code 1 says that there were others). Reply subjects go into a header; for a streaming server they stay
    reply subjects.

    If a replay is interrupted, --resume leaves nothing out. Streams store nothing twice: messages have ids, and
    streams are asked what they have. Plain subjects and streaming servers get nothing twice after Ctrl-C; what was on
    its way when the process was killed or the connection broke is sent again.
    """
    from stantools.migration.replay.publisher import Kind
    from stantools.migration.replay.run import Outcome, Pace
    from stantools.migration.replay.selection import Chosen, plan_replay
    from stantools.migration.replay.state import StateFile, default_path
    from stantools.migration.replay.subjects import SubjectRules

    destination = replaying.destination()
    if not dry_run and not connecting.servers:
        raise UsageError("where to is missing", "add --to nats://HOST:4222, or --dry-run to see what would be sent")
    subjects = SubjectRules.parse(replaying.rules, replaying.prefix)
    pace = Pace(replaying.speed, replaying.rate, replaying.max_pause)
    first, last = replaying.sequences or (None, None)
    chosen = Chosen(first, last, replaying.since, replaying.until)
    identity = replaying.identity(store, connecting.servers, destination.cluster_id)
    path = replaying.state or default_path(identity)
    with StateFile(path, identity, resume=True) if replaying.resume else nullcontext() as earlier:
        # Nothing is written before it is known that the store can be read.
        source = _source(store, replaying, workers, reading)
        if earlier is not None:
            chosen = _chosen_before(earlier, chosen)
        plan = plan_replay(source, subjects, chosen, streaming=destination.kind is Kind.STREAMING)
        positions = earlier.state.channels if earlier is not None else {}
        plan.check_positions(source, positions)
        left = plan.after(positions)
        code = ExitCode.FINDINGS if source.lossy else ExitCode.CLEAN
        if dry_run:
            show_plan(left, pace, source)
            return code
        if not left.messages:
            console.note("there is no message to replay in what was chosen")
            if earlier is not None:
                earlier.remove()
            show_outcome(left, Outcome(finished=True), source, None)
            return code
        tell_pace(left, pace)
        with nullcontext(earlier) if earlier is not None else StateFile(path, identity, resume=False) as file:
            file.state.selection = chosen.fixed(source.channels).as_json()
            outcome = _replay(plan, left, connecting, destination, file, pace)
            show_outcome(left, outcome, source, None if outcome.finished else path)
    return code if outcome.finished else ExitCode.INTERRUPTED


def _source(store: Path, replaying: Replaying, workers: int, reading: ReadOptions) -> StoreSource:
    """Reads the store, and says what of it cannot be replayed."""
    from stantools.cli.opening import open_store
    from stantools.cli.progress import Progress
    from stantools.migration.source import SourceOptions
    from stantools.migration.workflow import read_source

    opened = open_store(store, reading)
    names = opened.chosen(replaying.channels)
    taking = SourceOptions(replaying.channels, replaying.generation, replaying.archived, workers=workers)
    with Progress("plan", lambda: opened.data_size(names)) as shown:
        source = read_source(opened, taking, progress=shown.advance)
    warn(source, key_given=opened.key is not None)
    return source


def _chosen_before(file: StateFile, chosen: Chosen) -> Chosen:
    """Returns the selection of the run that is resumed.

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
        with Progress("replay", left.payload) as shown:
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
