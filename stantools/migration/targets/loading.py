"""Carrying out a plan on a running server: every stream loaded, proven, and only then given its limits.

For each stream, with what the journal remembers (see `journal`):

    nothing there          load it                                       STARTED, then LOADED
    there, as it must be   recognised, not loaded again                  LOADED
    there, half published  publishing goes on behind its last sequence   LOADED
    there, and different   refused; or deleted first; or what is missing is appended, if the user says so
    loaded                 every message and consumer is compared; then the plan's limits are set    PROVEN

A stream is loaded without its limits of age, number and size: they would remove messages before these can be
compared. Streams are worked on a few at a time; one that fails does not stop the others, unless the server is full or
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stantools.errors import RefusedError, StantoolsError
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.journal import (
    UNWATCHED,
    Outcome,
    Stage,
    StageProgress,
    Steps,
    StreamResult,
    StreamState,
    Watch,
)
from stantools.migration.plan.model import StreamPlan, Way
from stantools.migration.prepared import PreparedStream
from stantools.migration.proof.stream import ExpectedStream, Proof
from stantools.migration.publish.loader import Publishing
from stantools.migration.publish.stream import publish_stream
from stantools.migration.server.restore import RestoreError, restore, state_differences
from stantools.migration.server.transfer import Flow
from stantools.migration.stream_source import Prefix
from stantools.migration.tasks import in_parallel
from stantools.nats.errors import ApiError, ConnectionLostError, is_full
from stantools.nats.jetstream import JetStream
from stantools.streamfiles.writer import ArchiveState

#: Seconds before something is tried again because the connection broke.
_PAUSE = 1.0
#: Seconds in which a server must be back.
_RECONNECT = 20.0
_RESTORE_FAILED = 10062


class Existing(enum.StrEnum):
    """What to do with a stream that is there and is not what the plan makes."""

    REFUSE = "refuse"
    REPLACE = "replace"  #: delete it and load it anew
    APPEND = "append"  #: publish what it lacks at its end, if all it has is equal


@dataclass(frozen=True)
class ApplyOptions:
    """How to carry out a plan."""

    way: Way = Way.ARCHIVE  #: archive or publish
    existing: Existing = Existing.REFUSE  #: what to do with streams that are there and different
    #: Streams that are worked on at the same time. More than one restore at a time has been seen to crash nats-server
    #: 2.15.1, and is hardly faster.
    parallel: int = 1
    prove: bool = True  #: compare every message; otherwise only the numbers that the server reports
    compression: str = "stored"  #: of the archive on its way: `stored` or `snappy`
    attempts: int = 3  #: how often a stream is tried when the connection breaks
    chunk_timeout: float = 30.0  #: seconds in which a piece of an archive must be taken
    final_timeout: float = 3600.0  #: seconds in which the server must have unpacked it


DEFAULTS = ApplyOptions()


async def apply_streams(
    js: JetStream,
    streams: Sequence[PreparedStream],
    journal: Steps,
    options: ApplyOptions,
    watch: Watch = UNWATCHED,
) -> list[StreamResult]:
    """Makes every stream on the server what the plan says. Results are in the order of the streams.

    Args:
        js: The server.
        streams: From `prepare`.
        journal: Of this plan and target.
        options: How.
        watch: Learns what is going on.
    """
    gone = False
    full: list[str] = []

    async def one(stream: PreparedStream) -> StreamResult:
        nonlocal gone
        job = _Job(js, stream, journal, options, watch)
        if full or (gone and not js.connection.connected):
            # The next one would fare no better; and a server that is gone was waited for already.
            job.result.outcome = Outcome.NOT_BEGUN
            return job.result
        try:
            await job.run()
        except StantoolsError as problem:
            job.result.failed(problem)
            gone = gone or isinstance(problem, ConnectionLostError)
            if is_full(problem):
                # Others that are under way find that, too; the first one says so.
                job.result.error = None if full else problem
                full.append(stream.name)
            await job.see_what_is_there()
        return job.result

    return await in_parallel(one, streams, options.parallel)


class _Job:
    """One stream on its way."""

    def __init__(
        self, js: JetStream, stream: PreparedStream, journal: Steps, options: ApplyOptions, watch: Watch
    ) -> None:
        self._js = js
        self._stream = stream
        self._plan = stream.plan
        self._journal = journal
        self._options = options
        self._watch = watch
        self.result = StreamResult(stream.name)

    async def run(self) -> None:
        """Loads, proves, sets limits: as much of it as is not done yet."""
        name = self._plan.name
        info = await self._js.stream_info(name)
        state = self._journal.state(name)
        if info is not None and state is StreamState.PROVEN and self._options.existing is not Existing.REPLACE:
            self._keep(info)
            self.result.findings = await still_as_planned(self._js, self._stream)
            return
        if info is not None and self._journal.facts(name).get("limiting"):
            # Everything was compared; a killed run may have set the limits already, and they may have removed some.
            await self._limit(info)
            self._keep(await self._info())
            return
        expected = await asyncio.to_thread(self._stream.measure)
        await self._load(info, expected)
        found = await self._info()
        self.result.messages, self.result.bytes = found["state"]["messages"], found["state"]["bytes"]
        if self._options.prove:
            self.result.compared(await self._compare())
        if not self.result.findings:
            await self._limit(found)

    async def see_what_is_there(self) -> None:
        """Notes what the stream holds after a failure, as far as the server reports it."""
        if not self._js.connection.connected:
            return
        with contextlib.suppress(StantoolsError):
            if (info := await self._js.stream_info(self._plan.name)) is not None:
                self.result.messages, self.result.bytes = info["state"]["messages"], info["state"]["bytes"]

    def _keep(self, info: Mapping[str, Any]) -> None:
        self.result.outcome = Outcome.COMPLETE
        self.result.messages, self.result.bytes = info["state"]["messages"], info["state"]["bytes"]

    async def _info(self) -> dict[str, Any]:
        info = await self._js.stream_info(self._plan.name)
        if info is None:
            raise StantoolsError(f"stream {self._plan.name} has vanished", "find out who deleted it, and run again")
        return info

    async def _load(self, info: Mapping[str, Any] | None, expected: ArchiveState) -> None:
        outcome = Outcome.MIGRATED
        if info is not None:
            outcome = await self._judge(info, expected)
            if outcome is Outcome.COMPLETE:
                self.result.outcome = outcome
                self._journal.note(self._plan.name, StreamState.LOADED, messages=expected.messages)
                return
        begun = self._journal.state(self._plan.name) is not None
        publish = self._options.way is Way.PUBLISH or outcome in (Outcome.APPENDED, Outcome.CONTINUED)
        self._journal.note(self._plan.name, StreamState.STARTED, way=Way.PUBLISH if publish else Way.ARCHIVE)
        started = time.monotonic()
        if publish:
            await self._publish(resume=outcome in (Outcome.CONTINUED, Outcome.APPENDED))
        else:
            await self._restore(expected, begun=begun)
        self.result.seconds = time.monotonic() - started
        self.result.outcome = outcome
        self._journal.note(self._plan.name, StreamState.LOADED, messages=expected.messages)

    async def _judge(self, info: Mapping[str, Any], expected: ArchiveState) -> Outcome:
        """Decides what to do with a stream that is there. Deletes it if it is to be replaced."""
        name = self._plan.name
        begun = self._journal.state(name) is not None
        ours = begun or info["config"].get("description") == self._plan.config.get("description")
        differences = state_differences(self._comparable(expected), info["state"])
        loaded = self._journal.state(name) in (StreamState.LOADED, StreamState.PROVEN)
        if begun and not loaded and self._journal.facts(name).get("way") == Way.PUBLISH:
            return Outcome.CONTINUED
        if self._options.existing is Existing.REPLACE:
            if ours and not differences and not (await self._compare()).findings:
                return Outcome.COMPLETE
            await self._js.delete_stream(name)
            self._journal.forget(name)
            return Outcome.REPLACED
        if ours and not differences:
            # Numbers say nothing about consumers, which publishing makes last; going on looks after them.
            return Outcome.CONTINUED if self._options.way is Way.PUBLISH and not loaded else Outcome.COMPLETE
        if begun and not info["state"]["last_seq"]:
            # In a cluster a restore that was cut off can leave its name behind, with nothing in it.
            await self._js.delete_stream(name)
            return Outcome.MIGRATED
        if self._options.existing is Existing.APPEND:
            await self._check_beginning(info)
            return Outcome.APPENDED
        what = f"its {differences[0]}" if differences else "and it is not clear that a migration made it"
        raise RefusedError(
            f"stream {name} already exists, {what}",
            "--replace deletes it first; --append-missing publishes what it lacks at its end; or choose another name",
        )

    async def _check_beginning(self, info: Mapping[str, Any]) -> None:
        """Refuses to append to anything but the beginning of what the stream is to hold."""
        prefix = Prefix(self._stream.source, int(info["state"]["last_seq"]))
        expected = ExpectedStream(self._plan.name, prefix, self._plan.origin_headers, True)
        proof = await expected.prove(self._js)
        if proof.findings or prefix.last > self._stream.source.last:
            behind = f"it goes up to {prefix.last}, the store to {self._stream.source.last}"
            what = proof.findings[0].detail if proof.findings else behind
            raise RefusedError(
                f"stream {self._plan.name} is not the beginning of its channel, nothing was appended: {what}",
                "--replace deletes it first; or choose another name",
            )

    def _comparable(self, expected: ArchiveState) -> dict[str, Any]:
        """Returns what can be compared: published messages have other times, and more headers."""
        state = expected.as_json()
        if self._options.way is Way.ARCHIVE:
            return state
        return {name: state[name] for name in ("messages", "first_seq", "last_seq")}

    async def _restore(self, expected: ArchiveState, *, begun: bool) -> None:
        plan, state = self._plan, expected.as_json() | {"consumer_count": len(self._plan.consumers)}
        for attempt in range(1, self._options.attempts + 1):
            archive = self._stream.archive(plan.loading_config, self._options.compression)
            with self._watch.stage(plan.name, Stage.LOAD, expected.messages) as progress:
                try:
                    await restore(
                        self._js,
                        plan.name,
                        plan.loading_config,
                        state,
                        self._stream.pieces(archive, progress),
                        flow=Flow(chunk_timeout=self._options.chunk_timeout, final_timeout=self._options.final_timeout),
                        begun=begun or attempt > 1,
                    )
                    return
                except RestoreError as problem:
                    if not self._may_try_again(problem) or attempt == self._options.attempts:
                        raise
                    progress.take_back()
                    self._watch.note(f"{problem.message}; trying again ({attempt + 1} of {self._options.attempts})")
                    await asyncio.sleep(_PAUSE)
                    if not await self._connected_again():
                        raise

    async def _connected_again(self) -> bool:
        try:
            await self._js.connection.wait_connected(_RECONNECT)
        except ConnectionLostError:
            return False
        return True

    def _may_try_again(self, problem: RestoreError) -> bool:
        if problem.left != "nothing":
            return False
        cause = problem.__cause__
        # In a young cluster the first pieces can be lost before all servers know where they go.
        mutilated = isinstance(cause, ApiError) and cause.err_code == _RESTORE_FAILED
        return problem.retriable or (mutilated and self._js.connection.cluster is not None)

    async def _publish(self, *, resume: bool) -> None:
        plan = self._plan
        with self._watch.stage(plan.name, Stage.LOAD, self._stream.source.count) as progress:
            await publish_stream(
                self._js,
                plan.name,
                plan.loading_config,
                self._stream.source,
                self._stream.positions(),
                # What is appended to a restored stream gets headers, for its times are lost otherwise.
                how=Publishing(origin=plan.origin_headers or self._options.way is Way.ARCHIVE),
                progress=progress,
                resume=resume,
            )

    async def _compare(self) -> Proof:
        published = self._journal.facts(self._plan.name).get("way") == Way.PUBLISH
        with self._watch.stage(self._plan.name, Stage.PROVE, self._stream.source.count) as progress:
            return await prove(self._js, self._stream, published=published, progress=progress)

    async def _limit(self, info: Mapping[str, Any]) -> None:
        """Sets the stream to what the plan wants, now that everything was compared."""
        name = self._plan.name
        if config_differences(self._plan, info["config"]):
            self._journal.note(name, StreamState.LOADED, limiting=True)
            await self._js.update_stream({**info["config"], **self._plan.config})
        self._journal.note(name, StreamState.PROVEN if self._options.prove else StreamState.LOADED)


#: Seconds that the replicas of a stream get to show what its leader has, and between two looks at them.
_CATCH_UP = 30.0
_LOOK_AGAIN = 1.0


async def prove(
    js: JetStream,
    stream: PreparedStream,
    *,
    published: bool,
    configured: bool = False,
    progress: StageProgress | None = None,
) -> Proof:
    """Compares a stream on a server with the store: every message, every consumer.

    Args:
        js: The server.
        stream: What it must be.
        published: Messages were published, all or some: those have their times in headers.
        configured: The stream should have its final configuration, limits included.
        progress: Called with how many messages were compared.
    """
    progress = progress or StageProgress(UNWATCHED, stream.name)
    deadline = time.monotonic() + _CATCH_UP
    while True:
        proof = await stream.expected(published=published).prove(js, progress=progress)
        proof.findings += await _config_findings(js, stream.plan) if configured else []
        if proof.clean or not await _is_replicated(js, stream.name) or time.monotonic() > deadline:
            return proof
        # Another server may have answered than the one that has it all: replicas follow a moment later.
        progress.take_back()
        await asyncio.sleep(_LOOK_AGAIN)


async def still_as_planned(js: JetStream, stream: PreparedStream) -> list[Finding]:
    """Looks whether a stream that was proven before has changed, by what the server reports of it and its consumers."""
    proof = await stream.expected(published=True).prove(js, messages=False)
    # Limits go on removing messages, also from what consumers still have to deliver.
    moving = ("stream-state", "consumer-position") if stream.plan.limited else ()
    findings = [each for each in proof.findings if each.code not in moving]
    return findings + await _config_findings(js, stream.plan)


async def _is_replicated(js: JetStream, stream: str) -> bool:
    info = await js.stream_info(stream)
    return info is not None and int(info["config"].get("num_replicas", 1)) > 1


def config_differences(plan: StreamPlan, found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the settings of a plan that a stream has not: name -> (planned, found).

    What the server's version does not know is left out, and so is what a server adds to metadata.
    """
    differences = {}
    for name, planned in plan.config.items():
        there = found.get(name)
        if isinstance(planned, dict) and isinstance(there, dict):
            there = {key: there.get(key) for key in planned}
        if name in found and there != planned:
            differences[name] = planned, there
    return differences


async def _config_findings(js: JetStream, plan: StreamPlan) -> list[Finding]:
    info = await js.stream_info(plan.name)
    differences = config_differences(plan, info["config"]) if info else {}
    if not differences:
        return []
    words = "; ".join(f"{name} is {there!r} instead of {planned!r}" for name, (planned, there) in differences.items())
    return [finding("stream-config", f"stream {plan.name}: {words}")]
