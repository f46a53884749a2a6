"""A running server as a target: what is in the way there, and whether its streams are what was planned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from stantools.errors import StantoolsError
from stantools.migration.followed import Cutover, FollowedStore, follow
from stantools.migration.following import Ending, Following
from stantools.migration.journal import Outcome, Stage, Steps, StreamResult, Watch
from stantools.migration.plan.model import Note, TargetKind, TargetRef, Way
from stantools.migration.prepared import PreparedStream, estimated_bytes
from stantools.migration.server.preflight import Access, StreamDemand, preflight
from stantools.migration.targets.following import FollowingStreams
from stantools.migration.targets.loading import ApplyOptions, Existing, apply_streams, prove
from stantools.migration.tasks import in_parallel, run
from stantools.nats.connection import connect
from stantools.nats.jetstream import JetStream
from stantools.nats.options import DEFAULT_SERVER, ConnectOptions
from stantools.notation import counted

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
        note: Told what is being waited for, when that takes long.
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
            watch: Told what is going on.
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
