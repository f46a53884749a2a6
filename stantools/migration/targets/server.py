"""A running server as a target: what is in the way there, and whether its streams are what was planned.

It is loaded once, or follows a store that is being written: `FollowingStreams` does with JetStream what
`following.Following` asks for.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.followed import Cutover, FollowedStore, follow
from stantools.migration.following import Ending, Following, Holding
from stantools.migration.journal import Outcome, Stage, Steps, StreamResult, StreamState, Watch
from stantools.migration.plan.model import ConsumerPlan, Note, Position, TargetKind, TargetRef, Way
from stantools.migration.prepared import PreparedStream, estimated_bytes
from stantools.migration.proof.stream import Proof
from stantools.migration.publish.appending import extend_stream
from stantools.migration.publish.consumers import UNFINISHED, Consumers
from stantools.migration.publish.loader import Publishing
from stantools.migration.publish.stream import SETTLING
from stantools.migration.server.preflight import Access, StreamDemand, preflight
from stantools.migration.targets.loading import ApplyOptions, Existing, apply_streams, config_differences, prove
from stantools.migration.tasks import Retry, in_parallel, run
from stantools.nats.connection import connect
from stantools.nats.jetstream import JetStream
from stantools.nats.options import DEFAULT_SERVER, ConnectOptions
from stantools.notation import counted

#: Streams that are finished at the same time.
_AT_ONCE = 8


class FollowingStreams:
    """The streams of one server.

    Args:
        js: The server.
        journal: What earlier runs have begun and finished.
        options: How to load.
        watch: Learns how far each stream is.
    """

    def __init__(self, js: JetStream, journal: Steps, options: ApplyOptions, watch: Watch) -> None:
        self._js = js
        self._journal = journal
        self._options = replace(options, existing=Existing.APPEND)
        self._watch = watch
        # Their own sequences and times are in headers; those that were restored have none.
        self._how = Publishing(origin=True)

    async def load(self, streams: Sequence[PreparedStream]) -> list[StreamResult]:
        """Restores streams that are not there; compares and completes those that an earlier run has left."""
        begun = {stream.name for stream in streams if self._journal.state(stream.name) is not None}
        left = [stream for stream in streams if not self._finished(stream.name)]
        for stream in left:
            if stream.name in begun:
                await self._align(stream)
            else:
                self._journal.note(stream.name, StreamState.STARTED, way=self._options.way)
        # Steps of this run only: what is there is compared again, however far an earlier run was.
        started = {"state": StreamState.STARTED.value, "way": self._options.way.value}
        steps = Steps({name: dict(started) for name in begun})
        results = {each.stream: each for each in await apply_streams(self._js, left, steps, self._options, self._watch)}
        return [results.get(stream.name) or StreamResult(stream.name, Outcome.COMPLETE) for stream in streams]

    def _finished(self, name: str) -> bool:
        """Returns whether a stream was finished, by an earlier run that did not come to the end of all."""
        return self._journal.state(name) is StreamState.PROVEN

    async def holding(self, stream: PreparedStream) -> Holding | None:
        """Returns what a stream holds; None if it is not there."""
        info = await self._js.stream_info(stream.name)
        if info is None:
            return None
        state = info["state"]
        return Holding(int(state["last_seq"]), int(state["messages"]))

    async def append(self, stream: PreparedStream, held: Holding) -> Holding:
        """Publishes messages behind what a stream is known to hold."""
        config, source = stream.plan.loading_config, stream.source
        if self._finished(stream.name):
            raise RefusedError(
                f"stream {stream.name} was finished and belongs to its users, and the store has got messages since: "
                f"{source.first} to {source.last}",
                "publish them by hand, or delete the stream, move the journal away and migrate again",
            )
        done = await extend_stream(
            self._js,
            stream.name,
            config,
            source,
            held.last,
            held.messages,
            how=self._how,
            progress=self._advance(stream),
        )
        return Holding(source.last, done.total)

    async def prove(self, stream: PreparedStream, after: int) -> Proof:
        """Compares the messages of a stream above a sequence with its source."""
        state = (await self._info(stream))["state"]
        return await stream.expected(published=True).prove_messages(self._js, state, after=after)

    def seen(self, streams: Collection[str]) -> None:
        """Remembers with one of the streams that a server on this machine was seen to use the store."""
        for name in streams:
            if state := self._journal.state(name):
                self._journal.note(name, state, seen=socket.gethostname())
                return

    def ended(self, streams: Collection[str]) -> None:
        """Remembers that the store is not written any more."""
        for name in streams:
            if not self._finished(name):
                self._journal.note(name, StreamState.STARTED, ended=True)

    async def finish(self, streams: Sequence[tuple[PreparedStream, int]]) -> list[StreamResult]:
        """Finishes streams that hold everything."""

        async def one(each: tuple[PreparedStream, int]) -> StreamResult:
            stream, proven = each
            result = StreamResult(stream.name, Outcome.COMPLETE)
            try:
                with self._watch.stage(stream.name, Stage.PROVE, 0):
                    await Retry(self._js.connection, self._how.patience).repeat(
                        lambda: self._finish(stream, proven, result)
                    )
            except StantoolsError as problem:
                result.failed(problem)
            return result

        return await in_parallel(one, streams, max(self._options.parallel, _AT_ONCE))

    # Inside.

    def _advance(self, stream: PreparedStream) -> Any:
        return lambda messages: self._watch.advance(stream.name, messages)

    async def _info(self, stream: PreparedStream) -> dict[str, Any]:
        info = await self._js.stream_info(stream.name)
        if info is None:
            raise RefusedError(f"stream {stream.name} has vanished", "find out who deleted it, and run again")
        return info

    async def _align(self, stream: PreparedStream) -> None:
        """Removes from a stream of ours what limits have removed from the store since.

        Where nothing of it is left in the store, the stream is loaded anew, which is exact in everything.
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
        """Makes one stream what the plan says; may be called again when it has failed."""
        name, source, plan = stream.name, stream.source, stream.plan
        if self._finished(name):
            return
        await self._align(stream)
        wanted = stream.positions()
        started = time.monotonic()
        for consumer, position in wanted:
            await self._make_way(name, consumer, position)
        makers = Consumers(self._js, name, source, wanted)
        if await makers.bring():
            await asyncio.sleep(SETTLING)
        await makers.finish()
        proof = await stream.expected(published=True).prove(self._js, messages=self._options.prove, after=proven)
        info = await self._info(stream)
        result.messages, result.bytes = int(info["state"]["messages"]), int(info["state"]["bytes"])
        result.compared(proof)
        result.prove_seconds = time.monotonic() - started
        if not proof.findings:
            if config_differences(plan, info["config"]):
                await self._js.update_stream({**info["config"], **plan.config})
            self._journal.note(name, StreamState.PROVEN, way=Way.PUBLISH)

    async def _make_way(self, stream: str, consumer: ConsumerPlan, position: Position) -> None:
        """Removes a consumer that stands where its durable stood earlier."""
        there = await self._js.consumer_info(stream, consumer.name)
        if there is None or there["config"].get("description") == UNFINISHED:
            return
        reached = int(there["delivered"]["stream_seq"]), -int(there["num_ack_pending"])
        if reached > (position.delivered, -len(position.pending)):
            raise RefusedError(
                f"consumer {consumer.name} of stream {stream} has delivered up to {reached[0]} with {-reached[1]} "
                f"pending messages, its durable up to {position.delivered} with {len(position.pending)}: it is used",
                "stop who uses it and delete it; consumers are made in the end",
            )
        if reached != (position.delivered, -len(position.pending)):
            await self._js.consumer_delete(stream, consumer.name)


_T = TypeVar("_T")

#: Seconds after which it is said what is being waited for.
_LATE = 2.0


class ServerDestination:
    """A running server.

    Args:
        options: How to connect.
        name: What a plan calls it, if not by its URLs.
        check: Called every moment while the server is talked to. What it raises ends the work as an interruption does:
            what is under way cleans up first.
        note: Called with what is being waited for, when that takes long.
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
        """Returns its URLs and version."""

        async def ask(js: JetStream) -> TargetRef:
            places = (self._name,) if self._name else self._options.servers or (js.connection.url,)
            return TargetRef(TargetKind.SERVER, tuple(places), js.connection.version)

        return self._run(ask)

    def stream_names(self) -> frozenset[str]:
        """Returns the streams that are there."""

        async def ask(js: JetStream) -> frozenset[str]:
            return frozenset(await js.stream_names())

        return self._run(ask)

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Note]:
        """Asks the server for limits of the account, streams that exist, and what its version cannot."""

        async def ask(js: JetStream) -> list[Note]:
            return await check_server(js, streams, options, begun)

        return self._run(ask)

    def apply(
        self, streams: Sequence[PreparedStream], journal: Steps, options: ApplyOptions, watch: Watch
    ) -> list[StreamResult]:
        """Restores or publishes every stream, and proves it."""
        return self._run(lambda js: apply_streams(js, streams, journal, options, watch), watched=True)

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: Watch, parallel: int
    ) -> list[StreamResult]:
        """Reads every stream back."""
        return self._run(lambda js: prove_streams(js, streams, published, watch, parallel), watched=True)

    def follow(
        self,
        source: FollowedStore,
        streams: Sequence[PreparedStream],
        journal: Steps,
        options: ApplyOptions,
        ending: Ending,
        watch: Watch,
    ) -> Cutover:
        """Loads streams, follows what a running server appends to the store, and finishes them when it ends.

        Args:
            source: The store.
            streams: What was planned of its first look.
            journal: What earlier runs have begun and finished.
            options: How to load.
            ending: Decides when it ends.
            watch: Learns what is going on.
        """

        async def main(js: JetStream) -> Cutover:
            following = Following(source, FollowingStreams(js, journal, options, watch), watch)
            # Loading takes its time: the server may have stopped when it is done.
            now, used = time.time(), await asyncio.to_thread(source.used)
            await following.begin(streams)
            if used:
                ending.use(now)
                following.seen()
            watch.note(f"{counted(len(following.streams), 'stream')} loaded; following what is appended to the store")
            return await follow(following, source, ending)

        return self._run(main, watched=True)

    def _run(self, work: Callable[[JetStream], Awaitable[_T]], *, watched: bool = False) -> _T:
        async def main() -> _T:
            servers = ", ".join(self._options.servers or (DEFAULT_SERVER,))
            text = f"waiting for an answer of {servers}; at most {self._options.timeout:g} s for each"
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
) -> list[Note]:
    """Returns what a server has against streams, as notes; arguments are those of `Destination.problems`."""
    demands = []
    for stream in streams:
        keeps = options.existing is not Existing.REFUSE or stream.name in begun
        # Of a stream that was published the numbers are no sign: its consumers are made last.
        keeps = keeps or (options.way is Way.ARCHIVE and await _is_complete(js, stream))
        demands.append(
            StreamDemand(
                stream.plan.config,
                estimated_bytes(stream.plan),
                estimated_bytes(stream.plan, least=True),
                stream.largest_message,
                [consumer.config for consumer in stream.plan.consumers],
                may_exist=keeps,
                updated=stream.plan.limited,
            )
        )
    access = Access.PUBLISH if options.way is Way.PUBLISH else Access.RESTORE
    found = await preflight(js, demands, access, verify=options.prove)
    return [Note(each.level, each.stream, each.detail, each.remedy) for each in found]


async def _is_complete(js: JetStream, stream: PreparedStream) -> bool:
    """Returns whether a stream is there that looks as if an earlier run had made it, whose journal is gone."""
    try:
        info = await js.stream_info(stream.name)
    except StantoolsError:
        return False  # what is wrong is found by the questions that follow
    if info is None or info["config"].get("description") != stream.plan.config.get("description"):
        return False
    state = info["state"]
    return bool(state["messages"] == stream.source.count and state["last_seq"] == stream.source.last)


async def prove_streams(
    js: JetStream, streams: Sequence[PreparedStream], published: Collection[str], watch: Watch, parallel: int
) -> list[StreamResult]:
    """Compares streams on a server with the store; results are in the order of the streams."""

    async def one(stream: PreparedStream) -> StreamResult:
        result = StreamResult(stream.name, Outcome.COMPARED)
        try:
            with watch.stage(stream.name, Stage.PROVE, stream.source.count) as progress:
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
