"""Streams that follow a store while its server runs, and are finished when it has stopped.

This module is free of sockets and clocks: it reads from a `FollowedSource` and writes to a `FollowedTarget`, and its
caller passes the time. The streams themselves are the only record of progress: the last sequence of each determines its
missing messages, and every message is published with the expected last sequence. So the next run continues after a kill
at any point.

    load        a missing stream is restored; one of an earlier run is compared and completed
    carry       new messages of the server are published, each at its own sequence
    prove       published messages are read back and compared, while the server runs
    finish      the server has stopped: the rest is carried, consumers get their positions, limits are set

Proving early leaves little to compare at the end, when clients are waiting. Consumers are made at the end: their
positions move until then, and a stream must not be used before.
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
from stantools.migration.journal import FollowState, JournalObserver, StreamOutcome, StreamResult
from stantools.migration.plan.migration_plan import UNLIMITED, MigrationPlan
from stantools.migration.prepared_stream import PreparedStream, prepare
from stantools.migration.proof.stream_proof import Proof
from stantools.migration.source import ChannelSource, StoreSource
from stantools.migration.stream_source import stream_source
from stantools.notation import counted
from stantools.store.ranges import Ranges

#: seconds between two proofs of the same stream
PROVE_EVERY = 2.0
#: seconds without a write after which a server counts as stopped, if it was never seen to use the store (on another
#: machine, for instance)
UNSEEN_SECONDS = 10.0
#: seconds without a sign of the server after which it counts as stopped, not just between two files
STOPPED_SECONDS = 0.3
#: consecutive failures to read a channel that become an error
_MAX_FAILURES = 25
#: number of latest delays that are kept
_MAX_DELAYS = 1000


@dataclass(frozen=True)
class StreamContent:
    """The content of a stream."""

    last: int
    messages: int

    def __str__(self) -> str:
        return f"{self.messages:,}" if self.messages == self.last else f"{self.messages:,} up to {self.last:,}"


class FollowedSource(Protocol):
    """The store that is followed."""

    def look(self, *, stopped: bool) -> Collection[str]:
        """Reads new data and returns the changed channels. After the server has stopped, all messages count."""

    def read(self, channels: Collection[str]) -> StoreSource:
        """Returns channels as of the last `look`."""

    def finish(self) -> StoreSource:
        """Returns all channels of a stopped server's store, with subscriptions."""

    def plan(self, source: StoreSource) -> MigrationPlan: ...


class FollowedTarget(Protocol):
    async def load(self, streams: Sequence[PreparedStream]) -> list[StreamResult]:
        """Loads or completes streams, whatever earlier runs have left, and proves them."""

    async def holding(self, stream: PreparedStream) -> StreamContent | None:
        """Returns the content of a stream, None if it does not exist."""

    async def append(self, stream: PreparedStream, held: StreamContent) -> StreamContent:
        """Publishes messages after the known content of a stream, and returns the new content."""

    async def prove(self, stream: PreparedStream, after: int) -> Proof:
        """Compares the messages after a sequence with their source."""

    def seen(self, streams: Collection[str]) -> None:
        """Records that a server on this machine was using the store."""

    def ended(self, streams: Collection[str]) -> None:
        """Records that the store is no longer written, before its final messages are carried."""

    async def finish(self, streams: Sequence[tuple[PreparedStream, int]]) -> list[StreamResult]:
        """Finishes complete streams, each with its last proven sequence.

        It removes the messages that limits have removed from the store, makes consumers, and sets limits.
        """


@dataclass
class EndDetector:
    """Decides from every observation when a store is no longer written."""

    cutover: bool = False  #: end when the server has stopped
    idle: float | None = None  #: end after this many seconds without a write as well
    seen: bool = False  #: a server on this machine was using the store, in this or an earlier run
    since: float = 0.0  #: begin of the interruption for clients, in seconds since 1970, after the end
    why: str = ""  #: how the end was detected
    _running: float = 0.0

    def use(self, now: float) -> None:
        """Records that a server was using the store, at a time in seconds since 1970."""
        self.seen, self._running = True, now

    def over(self, now: float, *, used: bool, written: float) -> bool:
        """Evaluates an observation at time `now` (seconds since 1970) and returns whether the store has ended.

        `written`, the time of the last write, counts with `idle`, and for a cutover if no server was seen.
        """
        if used:
            self.use(now)
        # If only an earlier run saw the server, it may have stopped before this run began.
        running = self._running or written
        if self.cutover and not used and self.seen and now - running >= STOPPED_SECONDS:
            self.since, self.why = running, "the server has stopped"
        elif self.cutover and not used and not self.seen and now - written >= UNSEEN_SECONDS:
            self.since, self.why = written, f"no server was found, and nothing was written for {UNSEEN_SECONDS:g} s"
        elif self.idle is not None and now - written >= self.idle:
            self.since, self.why = written, f"nothing was written for {self.idle:g} s"
        return bool(self.why)


@dataclass
class FollowedChannel:
    stream: PreparedStream  #: the stream, with its source as of the last reading
    held: StreamContent  #: known content of the stream
    proven: int  #: last compared sequence
    loaded: StreamResult  #: result of loading
    appended: int = 0  #: messages published since
    compared: int = 0
    removed: Ranges = field(default_factory=Ranges)  #: sequences that the server removed before they were read
    findings: list[Finding] = field(default_factory=list)
    error: StantoolsError | None = None  #: why it is no longer followed
    _proven_at: float = 0.0

    def due(self, now: float) -> bool:
        """Returns whether messages have to be compared."""
        return not self.error and self.held.last > self.proven and now - self._proven_at >= PROVE_EVERY

    def proved(self, proof: Proof, up_to: int, now: float) -> None:
        self.findings += proof.findings
        self.compared += proof.messages
        self.proven, self._proven_at = up_to, now


class StoreFollower:
    """All streams of a store that is followed.

    `clock` returns seconds since 1970.
    """

    def __init__(
        self,
        source: FollowedSource,
        target: FollowedTarget,
        watch: JournalObserver,
        clock: Callable[[], float] = time.time,
        *,
        ending: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._watch = watch
        self._clock = clock
        #: seconds from storing a message to its arrival in the stream, for the oldest message of each append
        self.delays: deque[float] = deque(maxlen=_MAX_DELAYS)
        self.streams: dict[str, FollowedChannel] = {}
        self.failed: dict[str, StreamResult] = {}  #: results of streams that could not be loaded, by channel
        self.plan: MigrationPlan | None = None  #: the plan of the final state
        self.state = FollowState(0, 0, None, 0, ending)
        self._waiting: set[str] = set()
        self._failures = 0
        self._reported: set[str] = set()
        self._ending = ending
        self._last: int | None = None  # time of the last message, nanoseconds since 1970

    async def begin(self, streams: Sequence[PreparedStream]) -> None:
        try:
            await self._load(streams)
        except StantoolsError as problem:
            self._count_failure(problem)

    async def step(self, now: float) -> None:
        """Reads the store once and carries new messages; `now` in seconds since 1970."""
        try:
            self._waiting |= set(await asyncio.to_thread(self._source.look, stopped=False))
            if self._waiting:
                await self._append_new(await asyncio.to_thread(self._source.read, self._waiting))
            self._report_state(0)
            await self._prove(now)
        except StantoolsError as problem:
            self._count_failure(problem)
        else:
            self._failures = 0

    def seen(self) -> None:
        """Records beyond this run that a server on this machine was using the store."""
        self._target.seen([followed.stream.name for followed in self.streams.values()])

    def results(self) -> list[StreamResult]:
        """Returns the results so far; a stream that is followed is not complete yet."""
        results = [*self.failed.values()]
        for each in self.streams.values():
            content = each.held.messages
            result = StreamResult(each.stream.name, StreamOutcome.FOLLOWED, content, proven=each.compared)
            result.findings, result.error = each.findings, each.error
            results.append(result)
        return sorted(results, key=lambda each: each.stream)

    async def finish(self) -> list[StreamResult]:
        """Carries the rest of a stopped server's store, and finishes every stream; results by name.

        After an error the same command continues.
        """
        self._target.ended([followed.stream.name for followed in self.streams.values()])
        await asyncio.to_thread(self._source.look, stopped=True)
        source = await asyncio.to_thread(self._source.finish)
        self.plan = plan = self._source.plan(source)
        await self._append_new(source, plan)
        ready = [
            (stream, max(followed.proven, stream.source.first - 1))
            for stream, followed in self._match_streams(plan, source)
            if not followed.error
        ]
        results = {result.stream: result for result in await self._target.finish(ready)}
        for followed in self.streams.values():
            result = results.setdefault(followed.stream.name, StreamResult(followed.stream.name))
            result.findings = [*followed.findings, *result.findings]
            result.seconds, result.proven = followed.loaded.seconds, followed.compared + result.proven
            result.error = followed.error or result.error
            if result.outcome is StreamOutcome.COMPLETE:
                complete = followed.loaded.outcome is StreamOutcome.COMPLETE
                result.outcome = StreamOutcome.APPENDED if complete and followed.appended else followed.loaded.outcome
            if result.error:
                result.outcome = StreamOutcome.FAILED
        for failed in self.failed.values():
            results.setdefault(failed.stream, failed)
        return [results[name] for name in sorted(results)]

    def _count_failure(self, problem: StantoolsError) -> None:
        """Records a problem that may be temporary: a lost target, or files removed during reading; raises others."""
        self._failures += 1
        reading = isinstance(problem, StoreChangedError | StoreUnreadableError)
        if not problem.retriable and not (reading and self._failures < _MAX_FAILURES):
            raise problem
        if problem.message not in self._reported and (not reading or self._failures > 1):
            self._reported.add(problem.message)
            self._watch.note(f"{problem.message}; retrying")

    async def _append_new(self, source: StoreSource, plan: MigrationPlan | None = None) -> None:
        """Publishes new messages of channels, and loads new streams."""
        there = {channel.name: channel for channel in source.channels}
        for name in self._waiting - there.keys():
            if name in self.streams:
                self._watch.note(f"channel {name} was removed by the server; its stream stays as it is")
            self._waiting.discard(name)
        new = [name for name in there if name not in self.streams and (plan or name not in self.failed)]
        if new:
            planned = plan or self._source.plan(source)
            await self._load([each for each in prepare(planned, source) if each.plan.parts[0].channel in new])
        held = {name: each.held.last for name, each in self.streams.items()}
        behind = {name: max(channel.last - held.get(name, 0), 0) for name, channel in there.items()}
        for name, channel in there.items():
            followed = self.streams.get(name)
            if followed is not None and not followed.error:
                self._report_state(sum(behind.values()))
                part = (channel, os.fsencode(followed.stream.plan.parts[0].subject))
                followed.stream = replace(followed.stream, source=stream_source([part]))
                await self._append(followed)
            self._waiting.discard(name)
            behind.pop(name)

    def _report_state(self, behind: int) -> None:
        streams = self.streams.values()
        carried = sum(each.appended for each in streams)
        last = None if self._last is None else self._last / 1e9
        self.state = FollowState(len(streams), behind, last, carried, self._ending)
        self._watch.followed(self.state)

    def _note_time(self, channel: ChannelSource) -> None:
        if channel.count:
            self._last = max(self._last or 0, channel.last_timestamp)

    async def _load(self, streams: Sequence[PreparedStream]) -> None:
        taken = {followed.stream.name.casefold(): name for name, followed in self.streams.items()}
        wanted = []
        for stream in streams:
            name = stream.plan.parts[0].channel
            other = taken.setdefault(stream.name.casefold(), name)
            if stream.plan.renumbered:
                raise RefusedError(
                    f"stream {stream.name}: the messages of several channels are ordered by time, and the order is "
                    "only known once the server has stopped",
                    "follow without --map and `stream` in the overrides; or migrate after the server has stopped",
                )
            if other != name:
                problem = RefusedError(
                    f"channel {name} would become stream {stream.name}, which is that of channel {other}",
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
                held = await self._target.holding(stream) or StreamContent(0, 0)
                self.streams[name] = FollowedChannel(stream, held, held.last, loaded, compared=loaded.proven)
                self.failed.pop(name, None)
                for channel, _ in stream.source.parts:
                    self._note_time(channel)
                if left and left.last:
                    self._report_removed(self.streams[name], left.last)
            elif failure and (isinstance(failure, StoreChangedError | StoreUnreadableError) or failure.retriable):
                # files or the server disappeared during loading; the next reading retries
                self._waiting.add(name)
                again.append(failure)
            else:
                self._fail(name, loaded)
        if again:
            raise again[0]

    def _fail(self, channel: str, result: StreamResult) -> None:
        """Reports, once, a stream that cannot be loaded."""
        if channel not in self.failed:
            why = result.error.message if result.error else "; ".join(each.detail for each in result.findings)
            self._watch.note(f"stream {result.stream} is not followed: {why}")
        self.failed[channel] = result

    async def _append(self, followed: FollowedChannel) -> None:
        """Publishes the messages of a channel after the content of its stream."""
        stream, held = followed.stream, followed.held
        ((channel, subject),) = stream.source.parts
        if channel.count and channel.last < held.last:
            self._give_up(
                followed,
                RefusedError(
                    f"stream {stream.name} holds messages up to sequence {held.last}, but channel {channel.name} "
                    f"only up to {channel.last}: its server lost stored messages, or restarted its sequences",
                    "delete the stream and run the same command again",
                ),
            )
        if channel.last <= held.last:
            return
        part = channel.narrowed(channel.sequences & Ranges.of([(held.last + 1, channel.last)]))
        self._report_removed(followed, held.last)
        stored = part.first_timestamp / 1e9
        try:
            followed.held = await self._target.append(replace(stream, source=stream_source([(part, subject)])), held)
        except RefusedError as problem:
            self._give_up(followed, problem)
        else:
            followed.appended += part.count
            self._note_time(part)
            if part.count:
                self.delays.append(self._clock() - stored)

    def _report_removed(self, followed: FollowedChannel, last: int) -> None:
        """Reports messages after the last one read that are no longer in the channel."""
        ((channel, _),) = followed.stream.source.parts
        if channel.first > last + 1:
            lost = Ranges.of([(last + 1, channel.first - 1)]) - followed.removed
            followed.removed |= lost
            if lost:
                self._watch.note(
                    f"channel {channel.name}: {counted(lost.count(), 'message')}, sequences {lost.first} to "
                    f"{lost.last}, were removed by the server's limits before they were read"
                )

    def _give_up(self, followed: FollowedChannel, problem: StantoolsError) -> None:
        followed.error = problem
        self._watch.note(f"stream {followed.stream.name} is no longer followed: {problem.message}")

    async def _prove(self, now: float) -> None:
        """Compares published messages early, so that little is left for the end."""
        for followed in self.streams.values():
            if followed.due(now):
                after = max(followed.proven, followed.stream.source.first - 1)
                up_to = followed.held.last
                proof = await self._target.prove(followed.stream, after)
                followed.proved(proof, up_to, now)
                for each in proof.findings:
                    self._watch.note(f"{each.code}: {each.detail}")

    def _match_streams(self, plan: MigrationPlan, source: StoreSource) -> list[tuple[PreparedStream, FollowedChannel]]:
        """Joins the streams of the last plan with those followed so far, which keep their names."""
        matched = []
        for stream in prepare(plan, source):
            followed = self.streams.get(stream.plan.parts[0].channel)
            if followed is not None:
                matched.append((replace(stream, plan=replace(stream.plan, name=followed.stream.name)), followed))
        return matched


def _without_limits(stream: PreparedStream) -> PreparedStream:
    """Returns a stream without limits and consumers, which it gets at the end."""
    lifted = {name: none for name, none in UNLIMITED.items() if name in stream.plan.settings}
    return replace(stream, plan=replace(stream.plan, settings={**stream.plan.settings, **lifted}, consumers=()))
