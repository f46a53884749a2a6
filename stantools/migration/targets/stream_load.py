"""Applies a plan to a running server: every stream is loaded, proven, and only then gets its limits.

For each stream, with the state in the journal (see `journal`):

    missing                load it                                        STARTED, then LOADED
    present and right      recognised, not loaded again                   LOADED
    partly published       publishing continues after its last sequence   LOADED
    present and different  refused; by option, replaced or appended to
    loaded                 every message and consumer is compared; then the plan's limits are set    PROVEN

A stream is loaded without its limits of age, number and size, which would remove messages before these are compared.
Several streams may be loaded in parallel; a failure of one does not stop the others, unless the server is full or
lost.
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
    JournalObserver,
    StageProgress,
    StepLog,
    StreamOutcome,
    StreamResult,
    StreamStage,
    StreamState,
)
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import StreamPlan
from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.proof.stream_proof import ExpectedStream, Proof, known_differences
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.stream_publish import publish_stream
from stantools.migration.server.restore import RestoreError, restore, state_differences
from stantools.migration.server.transfer import TransferFlow
from stantools.migration.tasks import in_parallel
from stantools.nats.errors import ApiError, ConnectionLostError, is_full
from stantools.nats.jetstream import JetStream
from stantools.streamfiles.writer import ArchiveState

#: seconds before a retry after a broken connection
_PAUSE = 1.0
#: seconds in which a server must be back
_RECONNECT = 20.0
_RESTORE_FAILED = 10062


class ExistingPolicy(enum.StrEnum):
    """Treatment of an existing stream that differs from the plan."""

    REFUSE = "refuse"
    UNDECIDED = "undecided"  #: for a plan only: options of `apply` decide
    REPLACE = "replace"  #: delete it and load it again
    APPEND = "append"  #: publish the messages missing at its end, if all others are equal


@dataclass(frozen=True)
class ApplyOptions:
    way: LoadMethod = LoadMethod.ARCHIVE
    existing: ExistingPolicy = ExistingPolicy.REFUSE  #: treatment of existing, different streams
    #: streams at a time; more than one restore has crashed nats-server 2.15.1, and is hardly faster
    parallel: int = 1
    prove: bool = True  #: compare every message, not only the counts of the server
    compression: str = "stored"  #: compression of the archive in transit: `stored` or `snappy`
    attempts: int = 3  #: attempts per stream when the connection breaks
    chunk_timeout: float = 30.0  #: seconds for the answer to a piece of an archive
    final_timeout: float = 3600.0  #: seconds for the server to unpack an archive

    @property
    def keeps_existing(self) -> bool:
        """Whether existing streams are no obstacle: they are replaced or continued."""
        return self.existing in (ExistingPolicy.REPLACE, ExistingPolicy.APPEND)


DEFAULTS = ApplyOptions()


async def apply_streams(
    js: JetStream,
    streams: Sequence[PreparedStream],
    journal: StepLog,
    options: ApplyOptions,
    watch: JournalObserver = UNWATCHED,
) -> list[StreamResult]:
    """Applies a plan to every stream; results are in the order of `streams`."""
    gone = False
    full: list[str] = []

    async def one(stream: PreparedStream) -> StreamResult:
        nonlocal gone
        job = _StreamLoad(js, stream, journal, options, watch)
        if full or (gone and not js.connection.connected):
            # The next stream would fail as well; the wait for a lost server has already passed.
            job.result.outcome = StreamOutcome.NOT_BEGUN
            return job.result
        try:
            await job.run()
        except StantoolsError as problem:
            job.result.failed(problem)
            gone = gone or isinstance(problem, ConnectionLostError)
            if is_full(problem):
                # Other active streams meet the same error; the first one reports it.
                job.result.error = None if full else problem
                full.append(stream.name)
            await job.record_content()
        return job.result

    return await in_parallel(one, streams, options.parallel)


class _StreamLoad:
    """One stream in progress."""

    def __init__(
        self, js: JetStream, stream: PreparedStream, journal: StepLog, options: ApplyOptions, watch: JournalObserver
    ) -> None:
        self._js = js
        self._stream = stream
        self._plan = stream.plan
        self._journal = journal
        self._options = options
        self._watch = watch
        self.result = StreamResult(stream.name)

    async def run(self) -> None:
        """Loads, proves and sets limits, as far as not yet done."""
        name = self._plan.name
        info = await self._js.stream_info(name)
        state = self._journal.state(name)
        if info is not None and state is StreamState.PROVEN and self._options.existing is not ExistingPolicy.REPLACE:
            self._keep(info)
            self.result.findings = await still_as_planned(self._js, self._stream)
            return
        if info is not None and self._journal.facts(name).get("limiting"):
            # All is compared; a killed run may have set the limits, which may have removed messages.
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

    async def record_content(self) -> None:
        """Records the content of the stream after a failure, as reported by the server."""
        if not self._js.connection.connected:
            return
        with contextlib.suppress(StantoolsError):
            if (info := await self._js.stream_info(self._plan.name)) is not None:
                self.result.messages, self.result.bytes = info["state"]["messages"], info["state"]["bytes"]

    def _keep(self, info: Mapping[str, Any]) -> None:
        self.result.outcome = StreamOutcome.COMPLETE
        self.result.messages, self.result.bytes = info["state"]["messages"], info["state"]["bytes"]

    async def _info(self) -> dict[str, Any]:
        info = await self._js.stream_info(self._plan.name)
        if info is None:
            raise StantoolsError(f"stream {self._plan.name} has disappeared", "find out who deleted it, and run again")
        return info

    async def _load(self, info: Mapping[str, Any] | None, expected: ArchiveState) -> None:
        outcome = StreamOutcome.MIGRATED
        if info is not None:
            outcome = await self._decide(info, expected)
            if outcome is StreamOutcome.COMPLETE:
                self.result.outcome = outcome
                self._journal.note(self._plan.name, StreamState.LOADED, messages=expected.messages)
                return
        begun = self._journal.state(self._plan.name) is not None
        publish = self._options.way is LoadMethod.PUBLISH or outcome in (
            StreamOutcome.APPENDED,
            StreamOutcome.CONTINUED,
        )
        self._journal.note(
            self._plan.name, StreamState.STARTED, way=LoadMethod.PUBLISH if publish else LoadMethod.ARCHIVE
        )
        started = time.monotonic()
        if publish:
            await self._publish(resume=outcome in (StreamOutcome.CONTINUED, StreamOutcome.APPENDED))
        else:
            await self._restore(expected, begun=begun)
        self.result.seconds = time.monotonic() - started
        self.result.outcome = outcome
        self._journal.note(self._plan.name, StreamState.LOADED, messages=expected.messages)

    async def _decide(self, info: Mapping[str, Any], expected: ArchiveState) -> StreamOutcome:
        """Decides about an existing stream; deletes it if it is to be replaced."""
        name = self._plan.name
        begun = self._journal.state(name) is not None
        ours = begun or info["config"].get("description") == self._plan.config.get("description")
        state = expected.as_json()
        if self._options.way is not LoadMethod.ARCHIVE:  # published messages have other times, and more headers
            state = {name: state[name] for name in ("messages", "first_seq", "last_seq")}
        differences = state_differences(state, info["state"])
        loaded = self._journal.state(name) in (StreamState.LOADED, StreamState.PROVEN)
        if begun and not loaded and self._journal.facts(name).get("way") == LoadMethod.PUBLISH:
            return StreamOutcome.CONTINUED
        if self._options.existing is ExistingPolicy.REPLACE:
            if ours and not differences and not (await self._compare()).findings:
                return StreamOutcome.COMPLETE
            await self._js.delete_stream(name)
            self._journal.forget(name)
            return StreamOutcome.REPLACED
        if ours and not differences:
            # Counts say nothing about consumers, which publishing makes last; continuing completes them.
            return (
                StreamOutcome.CONTINUED
                if self._options.way is LoadMethod.PUBLISH and not loaded
                else StreamOutcome.COMPLETE
            )
        if begun and not info["state"]["last_seq"]:
            # In a cluster an interrupted restore can leave an empty stream of that name.
            await self._js.delete_stream(name)
            return StreamOutcome.MIGRATED
        if self._options.existing is ExistingPolicy.APPEND:
            await self._check_beginning(info)
            return StreamOutcome.APPENDED
        what = f"its {differences[0]}" if differences else "and it is not clear that a migration made it"
        raise RefusedError(
            f"stream {name} already exists, {what}",
            "use --replace to delete it first, --append-missing to add missing messages, or choose another name",
        )

    async def _check_beginning(self, info: Mapping[str, Any]) -> None:
        """Raises RefusedError unless the stream is a beginning of its source."""
        source, last = self._stream.source, int(info["state"]["last_seq"])
        expected = ExpectedStream(self._plan.name, source, self._plan.origin_headers, True)
        proof = await expected.prove_messages(self._js, dict(info["state"]), until=last)
        if proof.findings or last > source.last:
            behind = f"it goes up to {last}, the store to {source.last}"
            what = proof.findings[0].detail if proof.findings else behind
            raise RefusedError(
                f"stream {self._plan.name} is not the beginning of its channel; nothing was appended: {what}",
                "use --replace to delete it first, or choose another name",
            )

    async def _restore(self, expected: ArchiveState, *, begun: bool) -> None:
        plan, state = self._plan, expected.as_json() | {"consumer_count": len(self._plan.consumers)}
        for attempt in range(1, self._options.attempts + 1):
            archive = self._stream.archive(plan.loading_config, self._options.compression)
            with self._watch.stage(plan.name, StreamStage.LOAD, expected.messages) as progress:
                try:
                    await restore(
                        self._js,
                        plan.name,
                        plan.loading_config,
                        state,
                        self._stream.pieces(archive, progress),
                        flow=TransferFlow(
                            chunk_timeout=self._options.chunk_timeout, final_timeout=self._options.final_timeout
                        ),
                        begun=begun or attempt > 1,
                        consumer_differences=self._consumer_differences,
                    )
                    return
                except RestoreError as problem:
                    if not self._may_try_again(problem) or attempt == self._options.attempts:
                        raise
                    progress.take_back()
                    self._watch.note(f"{problem.message}; retrying (attempt {attempt + 1} of {self._options.attempts})")
                    await asyncio.sleep(_PAUSE)
                    if not await self._connected_again():
                        raise

    async def _consumer_differences(self) -> str:
        proof = await prove(self._js, self._stream, published=False, messages=False)
        return "; ".join(found.detail for found in proof.findings if found.code == "consumer-position")

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
        # In a young cluster the first pieces can be lost before all servers know their destination.
        mutilated = isinstance(cause, ApiError) and cause.err_code == _RESTORE_FAILED
        return problem.retriable or (mutilated and self._js.connection.cluster is not None)

    async def _publish(self, *, resume: bool) -> None:
        plan = self._plan
        with self._watch.stage(plan.name, StreamStage.LOAD, self._stream.source.count) as progress:
            await publish_stream(
                self._js,
                plan.name,
                plan.loading_config,
                self._stream.source,
                self._stream.positions(),
                # messages appended to a restored stream need headers for their original times
                options=PublishOptions(origin=plan.origin_headers or self._options.way is LoadMethod.ARCHIVE),
                progress=progress,
                resume=resume,
            )

    async def _compare(self) -> Proof:
        published = self._journal.facts(self._plan.name).get("way") == LoadMethod.PUBLISH
        with self._watch.stage(self._plan.name, StreamStage.PROVE, self._stream.source.count) as progress:
            return await prove(self._js, self._stream, published=published, progress=progress)

    async def _limit(self, info: Mapping[str, Any]) -> None:
        name = self._plan.name
        if known_differences(self._plan.config, info["config"]):
            self._journal.note(name, StreamState.LOADED, limiting=True)
            await self._js.update_stream({**info["config"], **self._plan.config})
        self._journal.note(name, StreamState.PROVEN if self._options.prove else StreamState.LOADED)


#: seconds for replicas to catch up with their leader, and between two checks
_CATCH_UP = 30.0
_LOOK_AGAIN = 1.0


async def prove(
    js: JetStream,
    stream: PreparedStream,
    *,
    published: bool,
    messages: bool = True,
    configured: bool = False,
    progress: StageProgress | None = None,
) -> Proof:
    """Compares a stream on a server with the store: every message (unless excluded), every consumer.

    `published`: some messages were published and have their times in headers. `configured`: the final configuration
    is expected, limits included. `progress` gets numbers of messages.
    """
    progress = progress or StageProgress(UNWATCHED, stream.name)
    deadline = time.monotonic() + _CATCH_UP
    while True:
        proof = await stream.expected(published=published).prove(js, messages=messages, progress=progress)
        proof.findings += await _config_findings(js, stream.plan) if configured else []
        if proof.clean or not await _is_replicated(js, stream.name) or time.monotonic() > deadline:
            return proof
        # The answer may come from a replica, which follows the leader with a delay.
        progress.take_back()
        await asyncio.sleep(_LOOK_AGAIN)


async def still_as_planned(js: JetStream, stream: PreparedStream) -> list[Finding]:
    """Compares the state of a proven stream and its consumers, as reported by the server."""
    proof = await stream.expected(published=True).prove(js, messages=False)
    # Limits keep removing messages, including undelivered ones.
    moving = ("stream-state", "consumer-position") if stream.plan.limited else ()
    findings = [each for each in proof.findings if each.code not in moving]
    return findings + await _config_findings(js, stream.plan)


async def _is_replicated(js: JetStream, stream: str) -> bool:
    info = await js.stream_info(stream)
    return info is not None and int(info["config"].get("num_replicas", 1)) > 1


async def _config_findings(js: JetStream, plan: StreamPlan) -> list[Finding]:
    info = await js.stream_info(plan.name)
    wrong = known_differences(plan.config, info["config"]) if info else ""
    return [finding("stream-config", f"stream {plan.name}: {wrong}")] if wrong else []
