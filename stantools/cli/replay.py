"""`stantools replay`: publishes messages of a store again."""

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
from stantools.cli.click_options import (
    dry_run_option,
    options_of,
    reading_options,
    store_argument,
    verb,
    workers_option,
)
from stantools.cli.connection_options import connection_options
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show
from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.migration.replay.replay_options import PublishKind, ReplayOptions
from stantools.notation import and_more, some_of

if TYPE_CHECKING:
    from stantools.migration.replay.run import ReplayOutcome, ReplaySpeed
    from stantools.migration.replay.selection import ReplayPlan, ReplaySelection
    from stantools.migration.replay.state import ReplayStateFile
    from stantools.migration.source import StoreSource
    from stantools.nats.connect_options import ConnectOptions
    from stantools.store.read_options import ReadOptions

#: Places that are not intact, and are named.
_MANY = 20
#: Seconds of a replay whose plan is noted before it begins.
_LONG = 60

_F = TypeVar("_F", bound=Callable[..., Any])


def _to_option(function: _F) -> _F:
    """Adds --to, a synonym of --server; the selected context of the nats command then does not apply."""

    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        if to := values.pop("to"):
            values["servers"] = to
        return function(*args, **values)

    return click.option(
        "--to", multiple=True, metavar="URL", help="The target server; like --server, and takes precedence over it."
    )(cast(_F, wrapper))


@verb("replay", "table", "json")
@store_argument
@_to_option
@options_of(ReplayOptions, "options")
@dry_run_option
@workers_option
@connection_options
@reading_options(unchecked=False)
def command(
    store: Path,
    options: ReplayOptions,
    dry_run: bool,
    workers: int,
    connect_options: ConnectOptions,
    read_options: ReadOptions,
) -> int:
    """Publish the messages of STORE again, in their original order and pace.

    Several channels keep their relative timing. STORE is not changed; every intact message of a damaged one is
    published (exit code 1 reports the damage). Reply subjects become a header; for a streaming server they stay reply
    subjects.

    After an interruption, --resume continues without loss. Streams store nothing twice: messages have ids, and the last
    stored ones are looked up. Plain subjects and streaming servers get nothing twice after Ctrl-C; messages in flight
    when the process was killed or the connection broke are sent again.
    """
    from stantools.migration.replay.replay_report import plan_sentence, replay_plan_report, replay_report
    from stantools.migration.replay.run import ReplayOutcome, ReplaySpeed
    from stantools.migration.replay.selection import ReplaySelection, plan_replay
    from stantools.migration.replay.state import ReplayStateFile, default_path
    from stantools.migration.replay.subjects import SubjectRules

    options.check()
    if not dry_run and not connect_options.servers:
        raise UsageError("the target is missing", "add --to nats://HOST:4222, or --dry-run to see the plan")
    subjects = SubjectRules.parse(options.rules, options.prefix)
    pace = ReplaySpeed(options.speed, options.rate, options.max_pause)
    first, last = options.sequences or (None, None)
    chosen = ReplaySelection(first, last, options.since, options.until)
    identity = options.identity(store, connect_options.servers)
    path = options.state or default_path(identity)
    with ReplayStateFile(path, identity, resume=True) if options.resume else nullcontext() as earlier:
        # Nothing is written until the store is known to be readable.
        source = _source(store, options, workers, read_options)
        if earlier is not None:
            chosen = _resumed_selection(earlier, chosen)
        plan = plan_replay(source, subjects, chosen, streaming=options.kind is PublishKind.STREAMING)
        positions = earlier.state.channels if earlier is not None else {}
        plan.check_positions(source, positions)
        left = plan.after(positions)
        if dry_run:
            return show(replay_plan_report(left, pace, source))
        if not left.messages:
            console.note("the selection has no message to replay")
            if earlier is not None:
                earlier.remove()
            return show(replay_report(left, ReplayOutcome(finished=True), source, None))
        if pace.seconds(left) >= _LONG:
            console.note(f"{plan_sentence(left, pace)}; --speed sets the pace, Ctrl-C stops, --resume continues")
        with nullcontext(earlier) if earlier is not None else ReplayStateFile(path, identity, resume=False) as file:
            file.state.selection = chosen.fixed(source.channels).as_json()
            outcome = _replay(plan, left, connect_options, options, file, pace)
            code = show(replay_report(left, outcome, source, None if outcome.finished else path))
    if not outcome.finished:
        console.note(f"interrupted; {_how_to_continue(path)}")
    return code


def _source(store: Path, options: ReplayOptions, workers: int, read_options: ReadOptions) -> StoreSource:
    """Reads the store, and reports the messages that cannot be replayed."""
    from stantools.cli.opening import open_source
    from stantools.cli.opening import read_source as read_nodes
    from stantools.migration.source import SourceOptions
    from stantools.migration.workflow import read_source
    from stantools.sources.source import Capability

    opened = open_source(store, read_options, Capability.MESSAGES, channels=options.channels)
    source_options = SourceOptions(options.channels, options.generation, options.archived, workers=workers)
    if opened.nodes:
        source = read_nodes([opened], read_options, source_options, running=False)
    else:
        datastore = opened.store()
        names = datastore.chosen(options.channels)
        with ByteProgress("plan", lambda: datastore.data_size(names)) as shown:
            source = read_source(datastore, source_options, progress=shown.advance)
    _warn(source, key_given=read_options.encryption_key is not None)
    return source


def _warn(source: StoreSource, *, key_given: bool) -> None:
    """Reports on stderr the messages that cannot be replayed, and suspicious ones."""
    from stantools.inspection.report import place_text

    losses = [dropped for dropped in source.plan.dropped if dropped.loss]
    for dropped in losses[:_MANY]:
        place = place_text(dropped.file, dropped.offset, 0, dropped.reason, dropped.sequences)
        console.warning(f"not intact: {place}")
    if len(losses) > _MANY:
        console.warning(f"{and_more(len(losses) - _MANY, 'place', 'that is/that are')} not intact")
    sealed = [console.escape(channel.name) for channel in source.channels if channel.encrypted]
    if sealed and not key_given:
        console.note(
            f"payloads of {some_of(sealed, 3)} may be encrypted and are sent as stored; to decrypt them, give "
            "--encryption-key-env or --encryption-key-file"
        )


def _how_to_continue(state: Path) -> str:
    return f"the same command with --resume continues from {console.escape(str(state))}"


def _resumed_selection(file: ReplayStateFile, chosen: ReplaySelection) -> ReplaySelection:
    from stantools.migration.replay.selection import ReplaySelection

    try:
        before = ReplaySelection.from_json(file.state.selection)
    except ValueError as problem:
        raise StoreUnreadableError(f"{file.path}: {problem}", "name the right file with --state") from problem
    if not file.state.selection:
        return chosen
    if (chosen.first, chosen.last) not in ((None, None), (before.first, before.last)):
        raise UsageError(
            f"{file.path}: the resumed replay has other sequences than --seq",
            "repeat the command as it was",
        )
    return before


def _replay(
    plan: ReplayPlan,
    left: ReplayPlan,
    connect_options: ConnectOptions,
    options: ReplayOptions,
    file: ReplayStateFile,
    pace: ReplaySpeed,
) -> ReplayOutcome:
    """Runs the replay; Ctrl-C stops it, a second one at once."""
    from stantools.migration.replay.run import replay
    from stantools.migration.tasks import run

    new = not file.state.channels

    async def work() -> ReplayOutcome:
        stop = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            else:
                stop.set()
                console.note("stopping after the messages in flight; press Ctrl-C again to stop at once")

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not in a thread, and not on every system: then Python's own handling applies.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, on_signal)
        with ByteProgress("replay", left.payload) as shown:
            return await replay(
                plan, connect_options, options, file, pace, stop=stop, say=console.note, progress=shown.advance
            )

    try:
        outcome = run(work())
    except asyncio.CancelledError:
        console.note(_how_to_continue(file.path))
        raise KeyboardInterrupt from None
    except StantoolsError:
        if new and not file.state.channels and not file.state.streams:
            file.remove()
        else:
            console.note(_how_to_continue(file.path))
        raise
    if outcome.finished:
        file.remove()
    return outcome
