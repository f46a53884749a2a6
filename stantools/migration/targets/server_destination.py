"""A running server as a target.

It is loaded once, or follows a store that is being written: `FollowingStreams` implements the streams of
`store_follower.StoreFollower` on JetStream.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.followed_store import Cutover, FollowedStore, FollowEnd, follow
from stantools.migration.journal import JournalObserver, StepLog, StreamOutcome, StreamResult, StreamStage, StreamState
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import (
    ConsumerPlan,
    ConsumerProgress,
    Remark,
    RemarkLevel,
    TargetKind,
    TargetRef,
)
from stantools.migration.prepared_stream import PreparedStream, estimated_bytes
from stantools.migration.proof.stream_proof import Proof, known_differences
from stantools.migration.publish.consumers import UNFINISHED, StreamConsumers
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.stream_append import extend_stream
from stantools.migration.publish.stream_publish import SETTLING
from stantools.migration.server.preflight import Problem, StreamAccess, StreamDemand, preflight
from stantools.migration.store_follower import EndDetector, StoreFollower, StreamContent
from stantools.migration.targets.stream_load import (
    ApplyOptions,
    ExistingPolicy,
    apply_streams,
    prove,
)
from stantools.migration.tasks import Retry, in_parallel, run
from stantools.nats.connect_options import DEFAULT_SERVER, ConnectOptions
from stantools.nats.connection import connect
from stantools.nats.errors import NatsError
from stantools.nats.jetstream import JetStream
from stantools.notation import counted

#: streams finished at a time
_AT_ONCE = 8


class FollowingStreams:
    """The streams of one server that follow a store."""

    def __init__(self, js: JetStream, journal: StepLog, options: ApplyOptions, watch: JournalObserver) -> None:
        self._js = js
        self._journal = journal
        self._options = replace(options, existing=ExistingPolicy.APPEND)
        self._watch = watch
        # Appended messages have sequence and time in headers; restored ones need none.
        self._publishing = PublishOptions(origin=True)

    async def load(self, streams: Sequence[PreparedStream]) -> list[StreamResult]:
        """Restores missing streams; compares and completes those of an earlier run."""
        begun = {stream.name for stream in streams if self._journal.state(stream.name) is not None}
        left = [stream for stream in streams if not self._finished(stream.name)]
        for stream in left:
            if stream.name in begun:
                await self._apply_removals(stream)
            else:
                self._journal.note(stream.name, StreamState.STARTED, way=self._options.way)
        # Steps of this run only: existing streams are compared again, whatever an earlier run did.
        started = {"state": StreamState.STARTED.value, "way": self._options.way.value}
        steps = StepLog({name: dict(started) for name in begun})
        results = {each.stream: each for each in await apply_streams(self._js, left, steps, self._options, self._watch)}
        return [results.get(stream.name) or StreamResult(stream.name, StreamOutcome.COMPLETE) for stream in streams]

    def _finished(self, name: str) -> bool:
        """Returns whether an earlier, incomplete run finished this stream."""
        return self._journal.state(name) is StreamState.PROVEN

    async def holding(self, stream: PreparedStream) -> StreamContent | None:
        """Returns the content of a stream, None if it does not exist."""
        info = await self._js.stream_info(stream.name)
        if info is None:
            return None
        state = info["state"]
        return StreamContent(int(state["last_seq"]), int(state["messages"]))

    async def append(self, stream: PreparedStream, held: StreamContent) -> StreamContent:
        """Publishes messages after the known content of a stream."""
        config, source = stream.plan.loading_config, stream.source
        if self._finished(stream.name):
            raise RefusedError(
                f"stream {stream.name} is finished and belongs to its users, but the store has newer messages: "
                f"{source.first} to {source.last}",
                "publish them by hand, or delete the stream, move the journal aside and migrate again",
            )
        done = await extend_stream(
            self._js,
            stream.name,
            config,
            source,
            held.last,
            held.messages,
            options=self._publishing,
            progress=partial(self._watch.advance, stream.name),
        )
        return StreamContent(source.last, done.total)

    async def prove(self, stream: PreparedStream, after: int) -> Proof:
        """Compares the messages after a sequence with their source."""
        state = (await self._info(stream))["state"]
        return await stream.expected(published=True).prove_messages(self._js, state, after=after)

    def seen(self, streams: Collection[str]) -> None:
        """Records, with one of the streams, that a server on this machine was using the store."""
        for name in streams:
            if state := self._journal.state(name):
                self._journal.note(name, state, seen=socket.gethostname())
                return

    def ended(self, streams: Collection[str]) -> None:
        """Records that no server writes the store any more."""
        for name in streams:
            if not self._finished(name):
                self._journal.note(name, StreamState.STARTED, ended=True)

    async def finish(self, streams: Sequence[tuple[PreparedStream, int]]) -> list[StreamResult]:
        async def one(each: tuple[PreparedStream, int]) -> StreamResult:
            stream, proven = each
            result = StreamResult(stream.name, StreamOutcome.COMPLETE)
            try:
                with self._watch.stage(stream.name, StreamStage.PROVE, 0):
                    await Retry(self._js.connection, self._publishing.patience).repeat(
                        lambda: self._finish(stream, proven, result)
                    )
            except StantoolsError as problem:
                result.failed(problem)
            return result

        return await in_parallel(one, streams, max(self._options.parallel, _AT_ONCE))

    async def _info(self, stream: PreparedStream) -> dict[str, Any]:
        info = await self._js.stream_info(stream.name)
        if info is None:
            raise RefusedError(f"stream {stream.name} has disappeared", "find out who deleted it, and run again")
        return info

    async def _apply_removals(self, stream: PreparedStream) -> None:
        """Removes messages from a stream that limits have removed from the store since.

        If none of its messages is left in the store, the stream is loaded again.
        """
        info = await self._js.stream_info(stream.name)
        if info is None or not int(info["state"]["messages"]):
            return
        first = stream.source.first or stream.source.last + 1
        if int(info["state"]["last_seq"]) < first - 1:
            await self._js.delete_stream(stream.name)
        elif int(info["state"]["first_seq"]) < first:
            await self._js.purge_stream(stream.name, below=first)

    async def _finish(self, stream: PreparedStream, proven: int, result: StreamResult) -> None:
        """Completes one stream by its plan. A failed call may be repeated."""
        name, source, plan = stream.name, stream.source, stream.plan
        if self._finished(name):
            return
        await self._apply_removals(stream)
        wanted = stream.positions()
        started = time.monotonic()
        for consumer, position in wanted:
            await self._remove_stale_consumer(name, consumer, position)
        makers = StreamConsumers(self._js, name, source, wanted)
        if await makers.bring():
            await asyncio.sleep(SETTLING)
        await makers.finish()
        proof = await stream.expected(published=True).prove(self._js, messages=self._options.prove, after=proven)
        info = await self._info(stream)
        result.messages, result.bytes = int(info["state"]["messages"]), int(info["state"]["bytes"])
        result.compared(proof)
        result.prove_seconds = time.monotonic() - started
        if not proof.findings:
            if known_differences(plan.config, info["config"]):
                await self._js.update_stream({**info["config"], **plan.config})
            self._journal.note(name, StreamState.PROVEN, way=LoadMethod.PUBLISH)

    async def _remove_stale_consumer(self, stream: str, consumer: ConsumerPlan, position: ConsumerProgress) -> None:
        """Removes a consumer at an earlier position of its durable."""
        there = await self._js.consumer_info(stream, consumer.name)
        if there is None or there["config"].get("description") == UNFINISHED:
            return
        reached = int(there["delivered"]["stream_seq"]), -int(there["num_ack_pending"])
        if reached > (position.delivered, -len(position.pending)):
            raise RefusedError(
                f"consumer {consumer.name} of stream {stream} has delivered up to {reached[0]} with {-reached[1]} "
                f"pending messages, its durable up to {position.delivered} with {len(position.pending)}: it is in use",
                "stop its users and delete it; consumers are made at the end",
            )
        if reached != (position.delivered, -len(position.pending)):
            await self._js.consumer_delete(stream, consumer.name)


_T = TypeVar("_T")

#: seconds of waiting before a message about it
_LATE = 2.0


class ServerDestination:
    """A running server.

    `name` is its name in plans, if not its URLs. `check` is called regularly during the work; an exception from it
    ends the work with the clean-up of an interruption. `note` gets messages about long waits.
    """

    def __init__(
        self,
        options: ConnectOptions,
        *,
        name: str = "",
        check: Callable[[], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        self._name = name
        self._check = check
        self._note = note

    def reference(self) -> TargetRef:
        async def ask(js: JetStream) -> TargetRef:
            places = (self._name,) if self._name else self._options.servers or (js.connection.url,)
            return TargetRef(TargetKind.SERVER, tuple(places), js.connection.version)

        return self._run(ask)

    def stream_names(self) -> frozenset[str]:
        async def ask(js: JetStream) -> frozenset[str]:
            return frozenset(await js.stream_names())

        return self._run(ask)

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Remark]:
        """Checks limits of the account, existing streams, and settings that its version lacks."""

        async def ask(js: JetStream) -> list[Remark]:
            return await check_server(js, streams, options, begun)

        return self._run(ask)

    def contents(self, names: Collection[str]) -> Mapping[str, str]:
        async def ask(js: JetStream) -> dict[str, str]:
            try:
                present = sorted(set(names) & set(await js.stream_names()))
                infos = await in_parallel(js.stream_info, present, _AT_ONCE)
            except NatsError:
                return {}  # the list of problems has it
            states = {name: info["state"] for name, info in zip(present, infos, strict=True) if info}
            contents = {
                name: StreamContent(int(state["last_seq"]), int(state["messages"])) for name, state in states.items()
            }
            return {name: str(content) for name, content in contents.items()}

        return self._run(ask)

    def apply(
        self, streams: Sequence[PreparedStream], journal: StepLog, options: ApplyOptions, watch: JournalObserver
    ) -> list[StreamResult]:
        return self._run(lambda js: apply_streams(js, streams, journal, options, watch), watched=True)

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: JournalObserver, parallel: int
    ) -> list[StreamResult]:
        return self._run(lambda js: prove_streams(js, streams, published, watch, parallel), watched=True)

    def follow(
        self,
        source: FollowedStore,
        streams: Sequence[PreparedStream],
        journal: StepLog,
        options: ApplyOptions,
        ending: EndDetector,
        watch: JournalObserver,
    ) -> Cutover | FollowEnd:
        """Loads streams, follows the store while a server appends to it, and finishes them at the end.

        `streams` are planned from the first reading of `source`; `ending` decides about the end.
        """

        async def main(js: JetStream) -> Cutover | FollowEnd:
            target = FollowingStreams(js, journal, options, watch)
            follower = StoreFollower(source, target, watch, ending=ending.cutover)
            # Loading takes time; the server may have stopped meanwhile.
            now, used = time.time(), await asyncio.to_thread(source.used)
            await follower.begin(streams)
            if used:
                ending.use(now)
                follower.seen()
            watch.note(f"{counted(len(follower.streams), 'stream')} loaded; following new messages of the store")
            return await follow(follower, source, ending, watch)

        return self._run(main, watched=True)

    def _run(self, work: Callable[[JetStream], Awaitable[_T]], *, watched: bool = False) -> _T:
        async def main() -> _T:
            servers = ", ".join(self._options.servers or (DEFAULT_SERVER,))
            text = f"waiting for an answer from {servers}; at most {self._options.timeout:g} s for each"
            late = asyncio.get_running_loop().call_later(_LATE, self._note or str, text)
            try:
                async with connect(self._options) as connection:
                    if watched:
                        late.cancel()
                    return await work(JetStream(connection))
            finally:
                late.cancel()

        return run(main(), self._check)


async def check_server(
    js: JetStream, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str]
) -> list[Remark]:
    """Returns the problems of streams on a server; arguments are those of `Destination.problems`."""
    demands = []
    for stream in streams:
        keeps = options.keeps_existing or stream.name in begun
        # The counts of a published stream prove nothing: its consumers are made last.
        keeps = keeps or (options.way is LoadMethod.ARCHIVE and await _is_complete(js, stream))
        demands.append(
            StreamDemand(
                stream.plan.config,
                estimated_bytes(stream.plan),
                estimated_bytes(stream.plan, minimum=True),
                stream.largest_message,
                [consumer.config for consumer in stream.plan.consumers],
                may_exist=keeps,
                updated=stream.plan.limited,
            )
        )
    access = StreamAccess.PUBLISH if options.way is LoadMethod.PUBLISH else StreamAccess.RESTORE
    return as_remarks(await preflight(js, demands, access, verify=options.prove), options)


def as_remarks(problems: Iterable[Problem], options: ApplyOptions) -> list[Remark]:
    """Returns problems of a server as remarks; existing streams are warnings until their treatment is chosen."""
    undecided = options.existing is ExistingPolicy.UNDECIDED
    return [
        Remark(
            RemarkLevel.WARNING if undecided and each.code == "stream-exists" else each.level,
            each.stream,
            each.detail,
            each.remedy,
        )
        for each in problems
    ]


async def _is_complete(js: JetStream, stream: PreparedStream) -> bool:
    """Returns whether a stream looks as if made by an earlier run whose journal is lost."""
    try:
        info = await js.stream_info(stream.name)
    except StantoolsError:
        return False  # the following checks report the problem
    if info is None:
        return False
    return stream.resembles(info["config"], int(info["state"]["messages"]), int(info["state"]["last_seq"]))


async def prove_streams(
    js: JetStream, streams: Sequence[PreparedStream], published: Collection[str], watch: JournalObserver, parallel: int
) -> list[StreamResult]:
    """Compares streams on a server with the store; results are in the order of `streams`."""

    async def one(stream: PreparedStream) -> StreamResult:
        result = StreamResult(stream.name, StreamOutcome.COMPARED)
        try:
            with watch.stage(stream.name, StreamStage.PROVE, stream.source.count) as progress:
                info = await js.stream_info(stream.name)
                result.bytes = info["state"]["bytes"] if info else 0
                was_published = stream.name in published
                proof = await prove(js, stream, published=was_published, configured=True, progress=progress)
                result.compared(proof)
                result.messages = result.proven
        except StantoolsError as problem:
            result.failed(problem)
        return result

    return await in_parallel(one, streams, parallel)
