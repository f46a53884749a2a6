"""Streams that follow a store while its server goes on: loaded, then appended to, finished when it has stopped.

Nothing here knows of sockets: what is read comes from a `Source`, what is written goes to a `Target`, and whoever
drives it says what time it is. There is no record of how far it is but the streams themselves: each says by
its last sequence what it lacks, and every message which one it expects before it. So a run that was killed anywhere is
gone on with by the next one.

    load        a stream that is not there is restored, one that an earlier run left is compared and completed
    carry       what the server has appended since is published, each message at its own sequence
    prove       what was published is read back and compared, while the server goes on
    finish      the server has stopped: the rest is carried, consumers get their positions, limits are set

Proving on the way leaves little to compare in the end, when nobody is served. Consumers are made in the end, because a
stream must not be used before: their positions move until the last moment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stantools.errors import RefusedError, StantoolsError, StoreChangedError, StoreUnreadableError
from stantools.inspection.findings import Finding
from stantools.migration.journal import Outcome, StreamResult, Watch
from stantools.migration.plan.model import UNLIMITED, Plan
from stantools.migration.prepared import PreparedStream, prepare
from stantools.migration.proof.stream import Proof
from stantools.migration.source import StoreSource
from stantools.migration.stream_source import stream_source
from stantools.notation import counted
from stantools.store.ranges import Ranges

#: Seconds between two proofs of the same stream.
PROVE_EVERY = 2.0
#: A server that was never seen to use the store, on another machine for instance, has stopped when it has not written
#: for so many seconds.
UNSEEN_SECONDS = 10.0
#: Seconds without a sign of the server after which it has stopped, and is not just between two files.
STOPPED_SECONDS = 0.3
#: Looks in a row at which a channel could not be read, until that is an error.
_MOST_TROUBLE = 25
#: The newest delays that are kept, one for each time that a stream got something.
_MOST_DELAYS = 1000


@dataclass(frozen=True)
class Holding:
    """What a stream holds."""

    last: int  #: its last sequence
    messages: int  #: how many messages there are


class Source(Protocol):
    """The store that is followed."""

    def look(self, *, stopped: bool) -> Collection[str]:
        """Reads what was appended; returns the channels that have changed. When it has stopped all there is counts."""

    def read(self, channels: Collection[str]) -> StoreSource:
        """Returns some channels as they were at the last look."""

    def finish(self) -> StoreSource:
        """Returns all channels of a store that nobody writes any more, with subscriptions."""

    def plan(self, source: StoreSource) -> Plan:
        """Plans streams for channels."""

    def used(self) -> bool:
        """Returns whether a server is seen to use the store."""

    def written(self) -> float:
        """Returns when something was last written to the store, in seconds since 1970."""


class Target(Protocol):
    """Where the streams are."""

    async def load(self, streams: Sequence[PreparedStream]) -> list[StreamResult]:
        """Makes streams hold what their sources do, and proves it, whatever earlier runs have left of them."""

    async def holding(self, stream: PreparedStream) -> Holding | None:
        """Returns what a stream holds; None if it is not there."""

    async def append(self, stream: PreparedStream, held: Holding) -> Holding:
        """Publishes messages behind what a stream is known to hold, and returns what it holds then."""

    async def prove(self, stream: PreparedStream, after: int) -> Proof:
        """Compares the messages of a stream above a sequence with its source."""

    def seen(self, streams: Collection[str]) -> None:
        """Remembers that a server on this machine was seen to use the store."""

    def ended(self, streams: Collection[str]) -> None:
        """Remembers that the store is not written any more, before what only counts then is carried."""

    async def finish(self, streams: Sequence[tuple[PreparedStream, int]]) -> list[StreamResult]:
        """Finishes streams that hold everything: takes away what limits have removed, makes consumers, sets limits.

        Args:
            streams: Each with the sequence up to which it is proven.
        """


@dataclass
class Ending:
    """Decides when a store is not written any more, by what is seen of it at every look."""

    cutover: bool = False  #: it ends when the server has stopped
    idle: float | None = None  #: it ends when nothing was written for so many seconds, too
    seen: bool = False  #: a server on this machine was seen to use the store, perhaps by an earlier run
    since: float = 0.0  #: from when on nobody was served, in seconds since 1970, once it has ended
    why: str = ""  #: how that was seen
    _running: float = 0.0

    def use(self, now: float) -> None:
        """Takes note that a server was seen to use the store, at a time in seconds since 1970."""
        self.seen, self._running = True, now

    def over(self, now: float, *, used: bool, written: float) -> bool:
        """Takes note of a look, and returns whether it is over.

        Args:
            now: When it began, in seconds since 1970.
            used: A server was seen to use the store.
            written: When something was last written to the store; counts with `idle`, and for a cutover unless used.
        """
        if used:
            self.use(now)
        # Where only an earlier run has seen it, it may have stopped before this one began.
        running = self._running or written
        if self.cutover and not used and self.seen and now - running >= STOPPED_SECONDS:
            self.since, self.why = running, "the server has stopped"
        elif self.cutover and not used and not self.seen and now - written >= UNSEEN_SECONDS:
            self.since, self.why = written, f"no server is seen, and nothing was written for {UNSEEN_SECONDS:g} s"
        elif self.idle is not None and now - written >= self.idle:
            self.since, self.why = written, f"nothing was written for {self.idle:g} s"
        return bool(self.why)


@dataclass
class Followed:
    """A channel and its stream."""

    stream: PreparedStream  #: the stream, with its source as it was at the last look
    held: Holding  #: what it is known to hold
    proven: int  #: the sequence up to which that was compared
    loaded: StreamResult  #: what became of it when it was loaded
    appended: int = 0  #: messages that were published since
    compared: int = 0
    removed: Ranges = field(default_factory=Ranges)  #: sequences that the server removed before they were read
    findings: list[Finding] = field(default_factory=list)  #: what differs
    error: StantoolsError | None = None  #: why it is not followed any more
    _proven_at: float = 0.0

    def due(self, now: float) -> bool:
        """Returns whether something is to be compared."""
        return not self.error and self.held.last > self.proven and now - self._proven_at >= PROVE_EVERY

    def proved(self, proof: Proof, up_to: int, now: float) -> None:
        """Takes over what a comparison came to."""
        self.findings += proof.findings
        self.compared += proof.messages
        self.proven, self._proven_at = up_to, now


class Following:
    """All streams of a store that is followed.

    Args:
        source: The store.
        target: Where the streams are.
        watch: Learns what happens.
        clock: Says when something is done, in seconds since 1970.
    """

    def __init__(self, source: Source, target: Target, watch: Watch, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._target = target
        self._watch = watch
        self._clock = clock
        #: Seconds from when a message was stored to when its stream had it, of the oldest message each time.
        self.delays: deque[float] = deque(maxlen=_MOST_DELAYS)
        self.streams: dict[str, Followed] = {}  #: the streams by channel
        self.failed: dict[str, StreamResult] = {}  #: what became of streams that could not be loaded, by channel
        self.plan: Plan | None = None  #: the plan that was carried out in the end
        self._waiting: set[str] = set()
        self._trouble = 0
        self._told: set[str] = set()

    async def begin(self, streams: Sequence[PreparedStream]) -> None:
        """Loads the streams that were planned."""
        try:
            await self._load(streams)
        except StantoolsError as problem:
            self._bear(problem)

    async def step(self, now: float) -> None:
        """Looks at the store once, and carries what is new.

        Args:
            now: The present, in seconds since 1970.

        Raises:
            StantoolsError: It cannot go on.
        """
        try:
            self._waiting |= set(await asyncio.to_thread(self._source.look, stopped=False))
            if self._waiting:
                await self._carry(await asyncio.to_thread(self._source.read, self._waiting))
            await self._prove(now)
        except StantoolsError as problem:
            self._bear(problem)
        else:
            self._trouble = 0

    def seen(self) -> None:
        """Remembers, beyond this run, that a server on this machine was seen to use the store."""
        self._target.seen([followed.stream.name for followed in self.streams.values()])

    async def finish(self) -> list[StreamResult]:
        """Carries the rest of a store that is not written any more, and finishes every stream.

        Returns:
            What became of the streams, in the order of their names.

        Raises:
            StantoolsError: Something failed. The same command continues from there.
        """
        self._target.ended([followed.stream.name for followed in self.streams.values()])
        await asyncio.to_thread(self._source.look, stopped=True)
        source = await asyncio.to_thread(self._source.finish)
        self.plan = plan = self._source.plan(source)
        await self._carry(source, plan)
        ready = [
            (stream, max(followed.proven, stream.source.first - 1))
            for stream, followed in self._matched(plan, source)
            if not followed.error
        ]
        results = {result.stream: result for result in await self._target.finish(ready)}
        for followed in self.streams.values():
            result = results.setdefault(followed.stream.name, StreamResult(followed.stream.name))
            result.findings = [*followed.findings, *result.findings]
            result.seconds, result.proven = followed.loaded.seconds, followed.compared + result.proven
            result.error = followed.error or result.error
            if result.outcome is Outcome.COMPLETE and followed.appended:
                result.outcome = Outcome.APPENDED
            if result.error:
                result.outcome = Outcome.FAILED
        for failed in self.failed.values():
            results.setdefault(failed.stream, failed)
        return [results[name] for name in sorted(results)]

    # Inside.

    def _bear(self, problem: StantoolsError) -> None:
        """Takes note of what may pass: the target is away, or files went while they were read."""
        self._trouble += 1
        reading = isinstance(problem, StoreChangedError | StoreUnreadableError)
        if not problem.retriable and not (reading and self._trouble < _MOST_TROUBLE):
            raise problem
        if problem.message not in self._told and (not reading or self._trouble > 1):
            self._told.add(problem.message)
            self._watch.note(f"{problem.message}; it is tried again")

    async def _carry(self, source: StoreSource, plan: Plan | None = None) -> None:
        """Publishes what channels have more than their streams, and loads those that are new."""
        there = {channel.name: channel for channel in source.channels}
        for name in self._waiting - there.keys():
            if name in self.streams:
                self._watch.note(f"channel {name} was removed by the server; its stream stays as it is")
            self._waiting.discard(name)
        new = [name for name in there if name not in self.streams and (plan or name not in self.failed)]
        if new:
            planned = plan or self._source.plan(source)
            await self._load([each for each in prepare(planned, source) if each.plan.parts[0].channel in new])
        for name, channel in there.items():
            followed = self.streams.get(name)
            if followed is not None and not followed.error:
                part = (channel, os.fsencode(followed.stream.plan.parts[0].subject))
                followed.stream = replace(followed.stream, source=stream_source([part]))
                await self._append(followed)
            self._waiting.discard(name)

    async def _load(self, streams: Sequence[PreparedStream]) -> None:
        """Loads streams, and follows them from then on."""
        taken = {followed.stream.name.casefold(): name for name, followed in self.streams.items()}
        wanted = []
        for stream in streams:
            name = stream.plan.parts[0].channel
            other = taken.setdefault(stream.name.casefold(), name)
            if stream.plan.renumbered:
                raise RefusedError(
                    f"stream {stream.name}: the messages of several channels are ordered by time, which is only known "
                    "when no more come",
                    "follow without --map and `stream` in the overrides; or migrate when the server has stopped",
                )
            if other != name:
                problem = RefusedError(
                    f"channel {name}: would become stream {stream.name}, as channel {other} did",
                    "name its stream in the overrides (--override)",
                )
                self._fail(name, StreamResult(stream.name, error=problem))
            else:
                wanted.append(stream)
        if not wanted:
            return
        bare = [_without_limits(stream) for stream in wanted]
        before = [await self._target.holding(stream) for stream in bare]
        again: list[StantoolsError] = []
        for stream, left, loaded in zip(bare, before, await self._target.load(bare), strict=True):
            name, failure = stream.plan.parts[0].channel, loaded.error
            if loaded.good:
                held = await self._target.holding(stream) or Holding(0, 0)
                self.streams[name] = Followed(stream, held, held.last, loaded, compared=loaded.proven)
                self.failed.pop(name, None)
                if left and left.last:
                    self._tell_removed(self.streams[name], left.last)
            elif failure and (isinstance(failure, StoreChangedError | StoreUnreadableError) or failure.retriable):
                # Its files went while it was loaded, or the server did: it is begun again at the next look.
                self._waiting.add(name)
                again.append(failure)
            else:
                self._fail(name, loaded)
        if again:
            raise again[0]

    def _fail(self, channel: str, result: StreamResult) -> None:
        """Takes note of a stream that cannot be loaded: it is reported once."""
        if channel not in self.failed:
            why = result.error.message if result.error else "; ".join(each.detail for each in result.findings)
            self._watch.note(f"stream {result.stream} is not followed: {why}")
        self.failed[channel] = result

    async def _append(self, followed: Followed) -> None:
        """Publishes what a channel has behind what its stream holds."""
        stream, held = followed.stream, followed.held
        ((channel, subject),) = stream.source.parts
        if channel.count and channel.last < held.last:
            self._give_up(
                followed,
                RefusedError(
                    f"stream {stream.name} holds messages up to sequence {held.last}, and channel {channel.name} has "
                    f"gone back to {channel.last}: its server lost what it had stored, or began its sequences again",
                    "delete the stream and run the same command again",
                ),
            )
        if channel.last <= held.last:
            return
        part = channel.narrowed(channel.sequences & Ranges.of([(held.last + 1, channel.last)]))
        self._tell_removed(followed, held.last)
        stored = part.first_timestamp / 1e9
        try:
            followed.held = await self._target.append(replace(stream, source=stream_source([(part, subject)])), held)
        except RefusedError as problem:
            self._give_up(followed, problem)
        else:
            followed.appended += part.count
            if part.count:
                self.delays.append(self._clock() - stored)

    def _tell_removed(self, followed: Followed, last: int) -> None:
        """Reports messages behind the last one that was read which are not in the channel any more."""
        ((channel, _),) = followed.stream.source.parts
        if channel.first > last + 1:
            lost = Ranges.of([(last + 1, channel.first - 1)]) - followed.removed
            followed.removed |= lost
            if lost:
                self._watch.note(
                    f"channel {channel.name}: {counted(lost.count(), 'message')}, sequences {lost.first} to "
                    f"{lost.last}, were removed by the server's limits before they were read"
                )

    def _give_up(self, followed: Followed, problem: StantoolsError) -> None:
        followed.error = problem
        self._watch.note(f"stream {followed.stream.name} is not followed any more: {problem.message}")

    async def _prove(self, now: float) -> None:
        """Compares what was published, so that little is left for the end."""
        for followed in self.streams.values():
            if followed.due(now):
                after = max(followed.proven, followed.stream.source.first - 1)
                up_to = followed.held.last
                proof = await self._target.prove(followed.stream, after)
                followed.proved(proof, up_to, now)
                for each in proof.findings:
                    self._watch.note(f"{each.code}: {each.detail}")

    def _matched(self, plan: Plan, source: StoreSource) -> list[tuple[PreparedStream, Followed]]:
        """Joins the streams of the last plan with those that were followed, which keep their names."""
        matched = []
        for stream in prepare(plan, source):
            followed = self.streams.get(stream.plan.parts[0].channel)
            if followed is not None:
                matched.append((replace(stream, plan=replace(stream.plan, name=followed.stream.name)), followed))
        return matched


def _without_limits(stream: PreparedStream) -> PreparedStream:
    """Returns a stream without limits and consumers, which it gets in the end."""
    lifted = {name: none for name, none in UNLIMITED.items() if name in stream.plan.settings}
    return replace(stream, plan=replace(stream.plan, settings={**stream.plan.settings, **lifted}, consumers=()))
