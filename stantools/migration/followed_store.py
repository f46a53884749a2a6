"""A store on this machine, followed into the streams of a server, from the first reading to the cutover.

The rules are in `store_follower`; this module has files, clock and loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from stantools.end_signal import EndSignal
from stantools.errors import RefusedError, UsageError
from stantools.escaping import shell_word
from stantools.inspection.growing_store import GrowingStore
from stantools.migration.journal import (
    FOLLOWS,
    FollowState,
    Journal,
    JournalObserver,
    StreamResult,
    StreamState,
    check_journal,
    journal_path,
    remembered_streams,
)
from stantools.migration.plan.migration_plan import MigrationPlan
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planfile import write_plan
from stantools.migration.plan.planner import make_plan
from stantools.migration.source import SourceOptions, StoreSource, open_merged, open_source
from stantools.migration.store_follower import EndDetector, StoreFollower
from stantools.notation import counted
from stantools.progress import Progress
from stantools.store.directory import Datastore, open_datastore
from stantools.store.locks import find_uses
from stantools.store.nodes import NodeFiles
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions

#: Seconds between two readings of the store. Slow readings may take a third of the time, as long as new messages reach
#: their stream within a second.
_EVERY, _LONGEST = 0.2, 0.5


class FollowedStore:
    """A store that a server is writing, as the source of streams.

    For a cluster, `store` is that of one node, leader or follower, and `nodes` are the nodes whose logs hold the
    subscriptions.
    """

    def __init__(
        self,
        store: Datastore,
        source_options: SourceOptions,
        options: PlanOptions,
        nodes: Sequence[NodeFiles] = (),
        read_options: ReadOptions | None = None,
    ) -> None:
        self._store = store
        self._source_options = source_options
        self._options = options
        self._nodes = nodes
        self._read_options = read_options or ReadOptions()
        self._growing_store = GrowingStore(
            store.path, store.crc, source_options.patterns, workers=source_options.workers
        )

    def first(self, progress: Progress | None = None, *, ended: bool = False) -> StoreSource:
        """Reads the whole store and tests the key; see `workflow.read_source`.

        `ended`: an earlier run saw the end of the store, and migrated all or a part of it.
        """
        stopped = ended and not self.used()
        self._growing_store.look(stopped=stopped, progress=progress)
        source = self._source(self._growing_store.channels, self._source_options, subscriptions=True)
        source = source if stopped else self._stable(source)
        if self._store.key is not None and not self._source_options.keep_encrypted:
            for channel in source.channels:
                channel.check_key()
        return source

    def look(self, *, stopped: bool) -> Collection[str]:
        return self._growing_store.look(stopped=stopped)

    def read(self, channels: Collection[str]) -> StoreSource:
        """Returns channels as of the last `look`, without subscriptions."""
        source_options = replace(self._source_options, patterns=tuple(channels))
        return self._stable(self._source(channels, source_options, subscriptions=False))

    def finish(self) -> StoreSource:
        """Returns the whole store with subscriptions; for a cluster, its nodes merged."""
        if self._nodes:
            return open_merged(self._nodes, self._read_options, self._source_options)
        return self._source(self._growing_store.channels, self._source_options, subscriptions=True)

    def plan(self, source: StoreSource) -> MigrationPlan:
        return make_plan(source, self._options, self._options.target.version)

    def used(self) -> bool:
        """Returns whether a running server has the store, or a node's log, open."""
        places = [self._store.path, *(place for node in self._nodes for place in (node.raft, node.data) if place)]
        return any(find_uses(place, quiet=0) for place in dict.fromkeys(places))

    def written(self) -> float:
        """Returns the time of the last write to the store, or a node's log, in seconds since 1970."""
        logs = [node.log for node in self._nodes if node.log and node.log.exists()]
        return max([self._growing_store.written(), *(log.stat().st_mtime for log in logs)])

    def _stable(self, source: StoreSource) -> StoreSource:
        """Removes messages that the server may replace, and older generations, which are only separated at the end.

        The sequence after the last written message comes next. Higher ones were left by a server that was killed
        before it added them to an index; their sequences will be assigned again.
        """
        ends = {name: survey.end for name, survey in self._growing_store.channels.items()}
        channels = []
        for channel in source.channels:
            end = ends.get(channel.name)
            if not channel.origin:
                channels.append(channel if end is None else channel.up_to(end))
        return replace(source, channels=channels)

    def _source(self, channels: Collection[str], source_options: SourceOptions, *, subscriptions: bool) -> StoreSource:
        surveys = self._growing_store.channels
        wanted = [surveys[name] for name in sorted(channels) if name in surveys]
        if not subscriptions:
            # there may be many, and only the final ones count
            wanted = [replace(each, files=replace(each.files, subs=None)) for each in wanted]
        store = open_datastore(self._store.path, self._store.crc, self._store.key)
        return open_source(store, source_options, surveys=wanted)


@dataclass
class Cutover:
    plan: MigrationPlan
    results: list[StreamResult]
    since: float  #: begin of the interruption for clients, in seconds since 1970
    why: str  #: how the end was detected
    ready: float  #: time when all streams were ready
    appended: int = 0  #: messages published while the server was running
    #: seconds from storing a message to its arrival in the stream, for the oldest message of each append; the latest
    #: ones
    delays: Sequence[float] = ()
    #: sequences removed by limits before they were read, by channel
    removed: dict[str, Ranges] = field(default_factory=dict)
    written: bool = False  #: a server has written to the store since

    @property
    def seconds(self) -> float:
        """Duration of the interruption for clients."""
        return max(self.ready - self.since, 0.0)

    @property
    def delay(self) -> float | None:
        """Median delay of messages while the server was running; None without messages."""
        return median(self.delays) if self.delays else None


@dataclass
class FollowEnd:
    """Following was ended by Ctrl-C; the same command continues it."""

    state: FollowState
    results: list[StreamResult]


def store_of_nodes(nodes: Sequence[NodeFiles]) -> Path:
    """Returns the store of a cluster that is followed: that of the first node with a file store."""
    for node in nodes:
        if node.data is not None:
            return node.data
    raise UsageError("none of the nodes has a file store, whose messages could be followed", "name its directory")


def check_followable(file: Path, plan: MigrationPlan) -> None:
    """Raises the error that `open_journal` would raise; changes nothing."""
    if file.exists() and not journal_path(file).exists():
        raise RefusedError(
            f"{file}: already exists, and is the plan of a stopped store", "name another with --plan, or remove it"
        )
    check_journal(file, FOLLOWS + plan.source.path, str(plan.target))


def open_journal(file: Path, plan: MigrationPlan) -> Journal:
    """Opens the journal of a followed store, beside the plan file, which is written at the end.

    It is identified by store and target, as the plan changes with every reading. Raises RefusedError if another run
    has it open, it belongs to another migration, or all is finished.
    """
    check_followable(file, plan)
    journal = Journal(file, FOLLOWS + plan.source.path, str(plan.target))
    states = [journal.state(stream.name) for stream in plan.streams]
    if states and all(state is StreamState.PROVEN for state in states):
        journal.__exit__(None, None, None)
        if not file.exists():
            write_plan(file, plan)  # the run that finished was killed before it could write the plan
        raise RefusedError(
            f"{journal.path}: all streams are finished, and belong to their users",
            f"`stantools migrate verify {shell_word(str(file))}` compares them with the store",
        )
    return journal


def has_ended(file: Path) -> bool:
    """Returns whether, by the journal, an earlier run saw the end of the store."""
    return any(
        entry.get("ended") or entry["state"] == StreamState.PROVEN for entry in remembered_streams(file).values()
    )


def was_seen(file: Path) -> bool:
    """Returns whether, by the journal, a server on this machine was using the store."""
    return any(entry.get("seen") == socket.gethostname() for entry in remembered_streams(file).values())


async def follow(
    follower: StoreFollower, source: FollowedStore, ending: EndDetector, watch: JournalObserver
) -> Cutover | FollowEnd:
    """Follows a store until its end, and finishes the streams. After an error the same command continues.

    Ctrl-C ends it between two readings.
    """
    with EndSignal() as signal:
        while not await _step(follower, source, ending):
            if signal.asked:
                return FollowEnd(follower.state, follower.results())
    before, delays = source.written(), tuple(follower.delays)
    watch.note(f"{ending.why}: finishing {counted(len(follower.streams), 'stream')}")
    results = await follower.finish()
    ready = time.time()
    assert follower.plan
    return Cutover(
        follower.plan,
        results,
        ending.since,
        ending.why,
        ready,
        sum(each.appended for each in follower.streams.values()),
        delays,
        {name: each.removed for name, each in follower.streams.items() if each.removed},
        source.written() > before,
    )


async def _step(follower: StoreFollower, source: FollowedStore, ending: EndDetector) -> bool:
    """Reads the store once, and returns whether it has ended."""
    now = time.time()
    await follower.step(now)
    if ending.cutover or ending.idle is not None or not ending.seen:
        used = await asyncio.to_thread(source.used)
        counts = ending.idle is not None or (ending.cutover and not used)
        written = await asyncio.to_thread(source.written) if counts else 0.0
        if used and not ending.seen:
            follower.seen()
        if ending.over(now, used=used, written=written):
            return True
    spent = time.time() - now
    await asyncio.sleep(min(max(_EVERY - spent, 2 * spent), _LONGEST))
    return False
