"""A store on this machine that is followed into the streams of a server, from the first look to the cutover.

The rules are those of `following`; here are the files, the clock and the loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from stantools.errors import RefusedError, UsageError
from stantools.escaping import shell_word
from stantools.inspection.growing import GrowingStore
from stantools.migration.following import Ending, Following
from stantools.migration.journal import Journal, StreamResult, StreamState, journal_path, remembered_streams
from stantools.migration.plan.model import Plan
from stantools.migration.plan.options import PlanOptions
from stantools.migration.plan.planfile import write_plan
from stantools.migration.plan.planner import make_plan
from stantools.migration.source import SourceOptions, StoreSource, open_merged, open_source
from stantools.progress import Progress
from stantools.store.directory import Datastore, open_datastore
from stantools.store.locks import find_uses
from stantools.store.nodes import NodeFiles
from stantools.store.options import ReadOptions
from stantools.store.ranges import Ranges

#: Seconds from one look at the store to the next; a third of the time may go to looking, if it takes long, but what is
#: new is in its stream within a second.
_EVERY, _LONGEST = 0.2, 0.5


class FollowedStore:
    """A store that a server is writing, as the source of streams.

    Args:
        store: The store; of a cluster that of one node, a leader's or a follower's.
        taking: What is taken of it.
        options: How streams are planned.
        nodes: The nodes of a cluster, whose logs know the subscriptions.
        reading: How nodes are read.
    """

    def __init__(
        self,
        store: Datastore,
        taking: SourceOptions,
        options: PlanOptions,
        nodes: Sequence[NodeFiles] = (),
        reading: ReadOptions | None = None,
    ) -> None:
        self._store = store
        self._taking = taking
        self._options = options
        self._nodes = nodes
        self._reading = reading or ReadOptions()
        self._growing = GrowingStore(store.path, store.crc, taking.patterns, workers=taking.workers)

    def first(self, progress: Progress | None = None, *, ended: bool = False) -> StoreSource:
        """Reads all there is, and tries the key on it; see `workflow.read_source`.

        Args:
            progress: Called with the number of bytes as they are read.
            ended: An earlier run saw the end of the store, and has carried all of it or a part.
        """
        stopped = ended and not self.used()
        self._growing.look(stopped=stopped, progress=progress)
        source = self._source(self._growing.channels, self._taking, subscriptions=True)
        source = source if stopped else self._firm(source)
        if self._store.key is not None and not self._taking.keep_encrypted:
            for channel in source.channels:
                channel.check_key()
        return source

    def look(self, *, stopped: bool) -> Collection[str]:
        """Reads what was appended; see `following.Source`."""
        return self._growing.look(stopped=stopped)

    def read(self, channels: Collection[str]) -> StoreSource:
        """Returns some channels as they were at the last look, without subscriptions."""
        taking = replace(self._taking, patterns=tuple(channels))
        return self._firm(self._source(channels, taking, subscriptions=False))

    def finish(self) -> StoreSource:
        """Returns everything, with subscriptions; of a cluster what its nodes have together."""
        if self._nodes:
            return open_merged(self._nodes, self._reading, self._taking)
        return self._source(self._growing.channels, self._taking, subscriptions=True)

    def plan(self, source: StoreSource) -> Plan:
        """Plans streams for channels."""
        return make_plan(source, self._options, self._options.target.version)

    def used(self) -> bool:
        """Returns whether a server is seen to use the store, or a node's log."""
        places = [self._store.path, *(place for node in self._nodes for place in (node.raft, node.data) if place)]
        return any(find_uses(place, quiet=0) for place in dict.fromkeys(places))

    def written(self) -> float:
        """Returns when something was last written to the store, or a node's log, in seconds since 1970."""
        logs = [node.log for node in self._nodes if node.log and node.log.exists()]
        return max([self._growing.written(), *(log.stat().st_mtime for log in logs)])

    def _firm(self, source: StoreSource) -> StoreSource:
        """Leaves out what the server may replace, and older generations, which are told apart in the end.

        The last message that it has written says which sequence comes next. Those that lie above it were left by a
        server that was killed before it named them in an index: their sequences will be given again.
        """
        ends = {name: survey.end for name, survey in self._growing.channels.items()}
        channels = []
        for channel in source.channels:
            end = ends.get(channel.name)
            if not channel.origin:
                channels.append(channel if end is None else channel.up_to(end))
        return replace(source, channels=channels)

    def _source(self, channels: Collection[str], taking: SourceOptions, *, subscriptions: bool) -> StoreSource:
        surveys = self._growing.channels
        wanted = [surveys[name] for name in sorted(channels) if name in surveys]
        if not subscriptions:
            # There may be many, and they count in the end.
            wanted = [replace(each, files=replace(each.files, subs=None)) for each in wanted]
        store = open_datastore(self._store.path, self._store.crc, self._store.key)
        return open_source(store, taking, surveys=wanted)


@dataclass
class Cutover:
    """How it ended."""

    plan: Plan  #: what was carried out
    results: list[StreamResult]  #: what became of the streams
    since: float  #: from when on nobody was served, in seconds since 1970
    why: str  #: how that was seen
    ready: float  #: when all streams were ready
    appended: int = 0  #: messages that were published while the server went on
    #: Seconds from when a message was stored to when its stream had it, of the oldest one each time: the newest ones.
    delays: Sequence[float] = ()
    #: Sequences that limits removed before they were read, by channel.
    removed: dict[str, Ranges] = field(default_factory=dict)
    written: bool = False  #: somebody has written to the store since

    @property
    def seconds(self) -> float:
        """For how long nobody was served."""
        return max(self.ready - self.since, 0.0)

    @property
    def delay(self) -> float | None:
        """How long messages were on their way while the server went on, usually; None if none came."""
        return median(self.delays) if self.delays else None


def store_of_nodes(nodes: Sequence[NodeFiles]) -> Path:
    """Returns the file store of a cluster that is followed: that of the first node that has one.

    Raises:
        UsageError: None has.
    """
    for node in nodes:
        if node.data is not None:
            return node.data
    raise UsageError("none of the nodes has a file store, whose messages could be followed", "name its directory")


def open_journal(file: Path, plan: Plan) -> Journal:
    """Opens the journal of a store that is followed, beside the plan file, which is written in the end.

    What identifies it is the store and the target, as the plan is another one at every look.

    Raises:
        RefusedError: Another run has it open, it belongs to something else, or everything was finished before.
        StoreUnreadableError: It cannot be read, or is no journal.
        StoreUnwritableError: It cannot be written.
    """
    if file.exists() and not journal_path(file).exists():
        raise RefusedError(
            f"{file}: already exists, and is the plan of a stopped store", "name another with --plan, or remove it"
        )
    journal = Journal(file, f"follow {plan.source.path}", str(plan.target))
    states = [journal.state(stream.name) for stream in plan.streams]
    if states and all(state is StreamState.PROVEN for state in states):
        journal.__exit__(None, None, None)
        if not file.exists():
            write_plan(file, plan)  # the run that finished was killed before it could
        raise RefusedError(
            f"{journal.path}: all streams were finished before, and belong to their users",
            f"`stantools migrate verify {shell_word(str(file))}` compares them with the store",
        )
    return journal


def has_ended(file: Path) -> bool:
    """Returns whether the journal beside a plan file says that an earlier run saw the end of the store."""
    return any(
        entry.get("ended") or entry["state"] == StreamState.PROVEN for entry in remembered_streams(file).values()
    )


def was_seen(file: Path) -> bool:
    """Returns whether the journal beside a plan file says that a server on this machine was seen to use the store."""
    return any(entry.get("seen") == socket.gethostname() for entry in remembered_streams(file).values())


async def follow(following: Following, source: FollowedStore, ending: Ending) -> Cutover:
    """Follows a store until it has ended, and finishes the streams.

    Raises:
        StantoolsError: It cannot go on; the same command does.
    """
    while True:
        now = time.time()
        await following.step(now)
        if ending.cutover or ending.idle is not None or not ending.seen:
            used = await asyncio.to_thread(source.used)
            counts = ending.idle is not None or (ending.cutover and not used)
            written = await asyncio.to_thread(source.written) if counts else 0.0
            if used and not ending.seen:
                following.seen()
            if ending.over(now, used=used, written=written):
                break
        spent = time.time() - now
        await asyncio.sleep(min(max(_EVERY - spent, 2 * spent), _LONGEST))
    before, delays = source.written(), tuple(following.delays)
    results = await following.finish()
    ready = time.time()
    assert following.plan
    return Cutover(
        following.plan,
        results,
        ending.since,
        ending.why,
        ready,
        sum(each.appended for each in following.streams.values()),
        delays,
        {name: each.removed for name, each in following.streams.items() if each.removed},
        source.written() > before,
    )
