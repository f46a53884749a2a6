"""Reads the streams at a start, and refuses unsuitable ones (high-availability.md sections C.5, C.8)."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError

from broker.log import STREAMING
from broker.stores.interface import StorageError
from broker.stores.jetstream.lease import LEASE, Lease
from stantools.format.proto import store_pb2 as pb
from stantools.format.quoting import quote
from stantools.nats.channel_streams import CHANNEL, CLIENT, MADE, SERVER, SUBSCRIPTION, decode_members, differs, wrong
from stantools.nats.errors import ApiError, NatsError, NoResponderError
from stantools.nats.jetstream import DISABLED

if TYPE_CHECKING:
    from broker.stores.jetstream.copy import CopiedChannel
    from broker.stores.jetstream.jetstream_messages import JetStreamMessages
    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from stantools.nats.channel_streams import StreamNames
    from stantools.store.sublog import StoredSubscription

T = TypeVar("T")

#: Seconds that a start waits for JetStream, which may have no leader yet; seconds it waits while no server answers at
#: all; seconds between two attempts.
_PATIENCE: Final = 30.0
_NOBODY: Final = 5.0
_PAUSE: Final = 0.25
#: Seconds to wait for the first answer, which double with each attempt, and their limit. JetStream never answers a
#: request that it received without a leader, but may also be slow.
_ANSWERED: Final = 2.0
_LATEST: Final = 30.0
#: error code: the cluster has fewer servers than the stream has replicas
_FEW_SERVERS: Final = 10005
#: error code: the server is not in a cluster, and the stream has several replicas
_ALONE: Final = 10074


@dataclass(slots=True)
class FoundStreams:
    """The content of the streams at a start."""

    last: int = 0  #: last sequence of the state's stream
    records: dict[bytes, bytes] = field(default_factory=dict)  #: records by subject, without subscriptions
    server: pb.ServerInfo | None = None
    lease: Lease = field(default_factory=Lease)  #: the current or last lease
    clients: list[pb.ClientInfo] = field(default_factory=list)
    channels: list[bytes] = field(default_factory=list)  #: channels that have a stream, or a record that says so
    made: dict[bytes, bool] = field(default_factory=dict)  #: channels with a record: whether their stream was created
    #: subscriptions by channel: the subject of each record, and its content
    subscriptions: dict[bytes, list[tuple[bytes, list[StoredSubscription]]]] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)  #: sequences of records that are no longer needed


class StreamsOpening:
    def __init__(self, streams: JetStreamPort, names: StreamNames) -> None:
        self._streams = streams
        self._names = names
        self.unanswered_at = 0.0  #: time of the last request without an answer, 0 for none

    async def check(self) -> FoundStreams:
        """Reads the state, and the names of the channels that have streams.

        Raises StorageError if JetStream is missing, or the streams are not as the broker makes them.
        """
        names = self._names
        config = names.state_config()
        info = await self._answer(lambda: self._streams.create_stream(config), self._refused(names.state))
        await self._update_config(info, config)
        found = await self._retry(self._read_state)
        there = await self._answer(lambda: self._streams.stream_names(names.channels + ">"))
        for stream in there:
            about = await self._answer(lambda stream=stream: self._streams.stream_info(stream))  # type: ignore[misc]
            for subject in (about or {}).get("config", {}).get("subjects") or ():
                name = str(subject).removeprefix(names.channels).encode()
                if name not in found.channels and names.stream(name) == stream:
                    found.channels.append(name)
                elif names.stream(name) != stream:
                    raise StorageError(
                        f"stream {stream} takes {subject!r}, which is a subject of the channels of cluster ID "
                        f"{names.cluster_id}: remove that stream, or give it other subjects"
                    )
        return found

    def _refused(self, stream: str) -> Callable[[ApiError], str]:
        def text(problem: ApiError) -> str:
            if problem.err_code in DISABLED:
                return f"JetStream is not enabled there: {problem.description}"
            alone = problem.err_code == _ALONE and " (a single NATS server keeps one replica: -jetstream_replicas 1)"
            return f"stream {stream} cannot be made: {problem.description}{alone or ''}"

        return text

    async def _read_state(self) -> FoundStreams:
        """Reads all records, or raises NatsError."""
        names, found = self._names, FoundStreams()
        info = await self._answer(lambda: self._streams.stream_info(names.state))
        if info is None:
            raise NatsError(f"stream {names.state} is gone")
        state = info["state"]
        found.last = int(state["last_seq"])
        records: dict[bytes, tuple[int, bytes]] = {}
        if int(state["messages"]):
            async for received in self._streams.read(names.state, state, 0):
                for row, sequence in enumerate(received.columns.sequence.tolist()):
                    records[received.subject(row)] = sequence, received.data(row)
        if len(records) < int(state["messages"]):
            raise NatsError(f"stream {names.state} could not be read to its end")
        for full, (sequence, content) in sorted(records.items()):
            subject = full.removeprefix(names.records.encode())
            if not content:
                found.gone.append(sequence)
                continue
            try:
                self._take(found, subject, content, sequence)
            except ValueError as problem:
                raise StorageError(f"record {full!r} of stream {names.state} cannot be read: {problem}") from problem
        return found

    def _take(self, found: FoundStreams, subject: bytes, content: bytes, sequence: int) -> None:
        if not subject.startswith(SUBSCRIPTION):
            found.records[subject] = content
        try:
            if subject.startswith(LEASE):
                # A server that takes over writes a newer one.
                found.lease = max(found.lease, Lease.decode(content), key=lambda each: each.epoch)
                found.gone.append(sequence)
                del found.records[subject]
            elif subject == SERVER:
                found.server = pb.ServerInfo.FromString(content)
            elif subject.startswith(CLIENT):
                found.clients.append(pb.ClientInfo.FromString(content))
            elif subject.startswith(CHANNEL):
                name = subject[len(CHANNEL) :]
                found.channels.append(name)
                found.made[name] = content == MADE
            elif subject.startswith(SUBSCRIPTION):
                name = subject[len(SUBSCRIPTION) :].rpartition(b".")[0]
                members = decode_members(content)
                clients = {client.id for client in found.clients}
                if any(member.state.is_durable or member.state.client_id in clients for member in members):
                    found.subscriptions.setdefault(name, []).append((subject, members))
                else:
                    # Its client is gone, and no client can resume it.
                    found.gone.append(sequence)
        except DecodeError as problem:
            raise ValueError(str(problem)) from problem

    async def open(self, messages: JetStreamMessages, channel: CopiedChannel, least: int, *, made: bool | None) -> None:
        """Opens a channel, whose stream is created if it may be missing.

        `least` is a sequence that was delivered; `made` says whether the stream was created before, None if no
        record says so. Raises StorageError if the channel cannot be served.
        """
        stream = channel.stream
        info = await self._answer(lambda: self._streams.stream_info(stream))
        if info is None:
            if made:
                raise StorageError(
                    f"stream {stream} of channel {quote(channel.name)} is gone: restore it, or delete the channel's "
                    f"record ({self._names.records}{(CHANNEL + channel.name).decode()} in stream {self._names.state})"
                )
            info = await self._answer(lambda: self._streams.create_stream(channel.config), self._refused(stream))
        await self._update_config(info, channel.config)
        await self._retry(lambda: messages.open(least))

    async def _update_config(self, info: dict[str, Any], config: Any) -> None:
        """Checks the configuration of a stream, and updates the settings that may change."""
        there = info["config"]
        if problem := wrong(there, config):
            raise StorageError(
                f"stream {config['name']} is not as the broker makes it: {problem}; correct that (nats stream edit), "
                "or remove the stream if the broker did not create it"
            )
        if differs(there, config):
            STREAMING.info("Stream %s gets its limits and replicas as configured", config["name"])
            await self._answer(lambda: self._streams.update_stream({**there, **config}), self._refused(config["name"]))

    async def _answer(self, ask: Callable[[], Awaitable[T]], refused: Callable[[ApiError], str] | None = None) -> T:
        """Sends a request that may be repeated safely, until there is an answer. Waits as `_retry` does."""
        seconds = _ANSWERED

        async def attempt() -> T:
            nonlocal seconds
            try:
                async with asyncio.timeout(seconds):
                    return await ask()
            except TimeoutError:
                seconds = min(2 * seconds, _LATEST)
                raise NatsError("there is no answer; maybe JetStream has no leader") from None

        return await self._retry(attempt, refused)

    async def _retry(self, ask: Callable[[], Awaitable[T]], refused: Callable[[ApiError], str] | None = None) -> T:
        """Sends a request until there is an answer, or time is up: a cluster may have no leader yet."""
        loop = asyncio.get_running_loop()
        begin = answered_at = loop.time()
        warned = False
        while True:
            try:
                return await ask()
            except NatsError as problem:
                if isinstance(problem, ApiError) and not problem.retriable and problem.err_code in DISABLED:
                    raise StorageError(f"JetStream is not enabled there: {problem.description}") from problem
                known = isinstance(problem, ApiError) and not problem.retriable and problem.err_code != _FEW_SERVERS
                if isinstance(problem, ApiError) and known and refused is not None:
                    raise StorageError(refused(problem)) from problem
                now = self.unanswered_at = loop.time()
                answered_at = answered_at if isinstance(problem, NoResponderError) else now
                if now - answered_at > _NOBODY:
                    raise StorageError("JetStream is not enabled there: no server answers its requests") from problem
                if now - begin > _PATIENCE:
                    few = isinstance(problem, ApiError) and problem.err_code == _FEW_SERVERS
                    needed = "a cluster needs a majority of its servers"
                    if few:
                        needed = f"streams are created once all {self._names.replicas} servers that hold them run"
                    raise StorageError(
                        f"JetStream does not answer: {problem}; {needed}: start the missing servers"
                    ) from problem
                if not warned:
                    warned = True
                    STREAMING.warning("JetStream does not answer yet: %s", problem)
            await asyncio.sleep(_PAUSE)


def set_aside(directory: Path, channel: str = "") -> None:
    """Moves a copy, or copies its files of one channel, to a folder beside the copy's directory."""
    source = directory / channel if channel else directory
    place = directory.with_name(f"{directory.name}.aside")
    target = place / (f"{channel}.{time.time_ns()}" if channel else f"copy.{time.time_ns()}")
    try:
        place.mkdir(parents=True, exist_ok=True)
        if channel:
            shutil.copytree(source, target)
        else:
            source.rename(target)
    except OSError as problem:
        raise StorageError(f"{source} cannot be set aside: {problem}") from problem
    STREAMING.warning("What was there is kept in %s", target)
