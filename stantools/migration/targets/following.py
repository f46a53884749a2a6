"""Streams on a server that follow a store: what `following.Following` asks for, done with JetStream."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.following import Holding
from stantools.migration.journal import Outcome, Stage, Steps, StreamResult, StreamState, Watch
from stantools.migration.plan.model import ConsumerPlan, Position, Way
from stantools.migration.prepared import PreparedStream
from stantools.migration.proof.stream import Proof
from stantools.migration.publish.appending import extend_stream
from stantools.migration.publish.consumers import UNFINISHED, Consumers
from stantools.migration.publish.loader import Publishing
from stantools.migration.publish.retry import Patience
from stantools.migration.publish.stream import SETTLING
from stantools.migration.targets.loading import ApplyOptions, Existing, apply_streams, config_differences
from stantools.migration.tasks import in_parallel
from stantools.nats.jetstream import JetStream

#: Streams that are finished at the same time.
_AT_ONCE = 8


class FollowingStreams:
    """The streams of one server.

    Args:
        js: The server.
        journal: What earlier runs have begun and finished.
        options: How to load.
        watch: Told how far each stream is.
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
                    await Patience(self._js.connection, self._how.patience).repeat(
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
        """Removes a consumer that stands where its durable stood earlier.

        Raises:
            RefusedError: It is further than that: somebody uses it.
        """
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
