"""The whole state of a server in streams, as a `Store`."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.log import STREAMING
from broker.stores.file import FileStore
from broker.stores.interface import (
    ChannelStore,
    Flush,
    InUseError,
    LeaseLostError,
    MessageStore,
    Recovered,
    StorageError,
)
from broker.stores.jetstream.copy import ChannelCopy, CopiedChannel
from broker.stores.jetstream.copy_repair import truncate_copy
from broker.stores.jetstream.jetstream_messages import HEADER, JetStreamMessages
from broker.stores.jetstream.jetstream_subscriptions import JetStreamSubscriptions
from broker.stores.jetstream.lease import RENEWALS, TTL, Lease
from broker.stores.jetstream.start_check import FoundStreams, StreamsOpening, set_aside
from broker.stores.jetstream.state import BrokerState
from stantools.errors import StantoolsError
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.format.quoting import quote
from stantools.nats.channel_streams import BEGUN, CHANNEL, CLIENT, MADE, SERVER
from stantools.nats.errors import NatsError
from stantools.store.durable import replace_file, sync_tree, writing
from stantools.store.limits import StoreLimits

if TYPE_CHECKING:
    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from stantools.nats.channel_streams import StreamNames
    from stantools.store.limits import ChannelLimits

#: seconds that `finish` waits for writes in progress, and between two checks
_PATIENCE: Final = 5.0
_LOOK: Final = 0.01
#: channels to open at a time
_AT_ONCE: Final = 16
#: seconds until an incompletely read state is read again
_AGAIN: Final = 0.25
#: file in a durable copy with the last lease that this server knows, its own or another's
_LEASE: Final = "lease.json"
#: factor on the interval of renewals: the time for the present leader to write another record
_MORE: Final = 1.5

#: a flush whose outcome is known, and a function to call when the server learns of it
_Settled = tuple[Flush, Callable[[], None] | None]


@dataclass(frozen=True, slots=True)
class StreamBacking:
    """The streams of a store, and this server's place among the servers that share them."""

    streams: JetStreamPort
    names: StreamNames  #: names for the cluster id
    failed: Callable[[str], None]  #: called with the reason if the store can no longer be used
    node: str = ""  #: name of this server among those with the same streams; empty for a single server
    seconds: float = TTL  #: seconds of a lease, if there are several servers
    durable: bool = False  #: acknowledge a message only when its copy is durable


class JetStreamStore:
    """A `Store` in streams. It needs an event loop; call `prepare` before `recover`, and `finish` before `close`.

    Args:
        backing: The streams.
        directory: The directory of the copy.
        copy: Returns the file store of that directory.
        limits: Limits of the store.

    Attributes:
        writer: The name of this run in message ids.
        crc: The checksum of the copy's records.
        led: The copy is durable, and no other server has led since it was written: messages that are only in the
            copy were lost by the streams.
        lease: The record of the lease that this server has taken; empty before, and for a single server.
    """

    kind = "JETSTREAM"

    def __init__(
        self, backing: StreamBacking, directory: Path, copy: Callable[[], FileStore], limits: StoreLimits | None = None
    ) -> None:
        self.limits = limits or StoreLimits()
        self.writer = secrets.token_hex(6).encode()
        self.streams = streams = backing.streams
        self.led = False
        self.lease = b""
        self._wake: Callable[[], None] | None = None
        self._durable = backing.durable
        self._failed = backing.failed
        self._node, self._seconds = backing.node, backing.seconds
        self._names = names = backing.names
        self._directory = directory
        self._make_copy = copy
        self._copy = copy()
        self.crc: Crc | None = self._copy.crc
        self._copies: dict[bytes, ChannelStore] = {}
        self._opened = False  # whether the copy is open
        self._known: Lease | None = None  # the last lease known to the copy
        self._announced_lease: Lease | None = None  # the last lease that a leader has announced
        self._followed: dict[bytes, ChannelCopy] = {}
        self._channels: dict[bytes, tuple[JetStreamMessages, JetStreamSubscriptions]] = {}
        self._removals: dict[bytes, asyncio.Task[None]] = {}
        self._completed: list[_Settled] = []
        # Flushes that wait for a durable copy, by channel: for the sync in progress, and for the next one.
        self._syncing: dict[bytes, list[_Settled]] = {}
        self._unsynced: dict[bytes, list[_Settled]] = {}
        self._sync_runs = False
        self._state = BrokerState(streams, names, self.writer, self.completed_flush, self._lost, backing.seconds)
        self._recovered: Recovered | None = None

    # Start

    async def check(self) -> None:
        """Raises StorageError if the streams are not as the broker makes them, or the copy cannot be opened."""
        self._open_copy()
        await StreamsOpening(self.streams, self._names).check()

    async def follow(self) -> None:
        """Makes the copy follow the streams while another server writes to them.

        Raises StorageError if the copy cannot be written, NatsError if some streams could not be read.
        """
        self._open_copy()
        names = self._names
        there = set()
        for stream in await self.streams.stream_names(names.channels + ">"):
            info = await self.streams.stream_info(stream)
            for subject in (info or {}).get("config", {}).get("subjects") or ():
                name = str(subject).removeprefix(names.channels).encode()
                if info is not None and names.stream(name) == stream:
                    there.add(name)
                    if name not in self._followed:
                        self._followed[name] = ChannelCopy(self._channel(name), self)
                    await self._followed[name].follow(info["state"])
        for name in set(self._followed) - there:
            # The channel was deleted; a channel with the same name is a new one.
            del self._followed[name]
            self._drop_copy(name)

    async def prepare(self, *, newcomer: Callable[[float], bool] | None = None) -> None:
        """Reads the streams, and makes the copy follow them. One of several servers takes the lease in doing so.

        Args:
            newcomer: Returns whether this server has not seen another one lead. Maybe all servers have lost power; then
                the last leader has the messages that the streams have lost, if copies are durable. Its argument is the
                time of the last request without an answer, 0 for none.

        Raises:
            StorageError: The streams cannot be served, JetStream cannot be reached, or another server was
                faster.
        """
        self._open_copy()
        opening = StreamsOpening(self.streams, self._names)
        before: Lease | None = None
        begin = asyncio.get_running_loop().time()
        while True:
            found = await opening.check()
            if before is None and self._is_contested(found.lease, begin):
                before = await self._wait_unrenewed(found)
                continue
            lease = self._next_lease(found.lease, before)
            before = found.lease
            known = self._known
            # This server led last, with a durable copy.
            self.led = known is not None and known.node in ("", self._node) and known.follows(found.lease)
            if newcomer is not None and self._durable and not self.led and newcomer(opening.unanswered_at):
                self._wait_for_last(found.lease)
            if self.led:
                for name in sorted(set(self._copies) - set(found.channels)):
                    if self._copies[name].messages.last:
                        STREAMING.error(
                            "Channel %s: JetStream has lost it; it is made again from the copy", quote(name)
                        )
                        found.channels.append(name)
            # The state must know all subscriptions before it writes: it would remove unknown records.
            subscribed = {
                name: JetStreamSubscriptions(
                    name, self._limits_of(name), self._state, found.subscriptions.get(name, ())
                )
                for name in found.channels
            }
            if await self._state.open(found.last, found.records, found.gone, lease):
                break
            await asyncio.sleep(_AGAIN)
        self.lease = lease.encode() if lease else b""
        if self.led:
            self._write_lease(lease or Lease())
        for name in found.channels:
            copy = self._followed.pop(name, None) or ChannelCopy(self._channel(name), self)
            self._channels[name] = JetStreamMessages(copy, self), subscribed[name]
        await _all_of(
            partial(
                opening.open,
                *(messages, self._channel(name), subscriptions.last),
                # A missing stream is made again: the copy has all its messages.
                made=None if self.led else found.made.get(name),
            )
            for name, (messages, subscriptions) in self._channels.items()
        )
        await self.make_durable()
        if not self.led:
            # Before this, another server may have messages that the streams have lost.
            self._write_lease(lease or Lease())
        self.led = self._durable
        for name in found.channels:
            if found.made.get(name) is not True:
                self._state.put(CHANNEL + name, MADE)
        for name in set(self._copies) - set(found.channels):
            self._followed.pop(name, None)
            if self._durable:
                set_aside(self._directory, os.fsdecode(name))
            self._drop_copy(name)
        if found.server is None and not self._channels:
            return
        channels = {
            name: (ChannelStore(messages, subscriptions), subscriptions.recovered())
            for name, (messages, subscriptions) in self._channels.items()
        }
        self._recovered = Recovered(found.server or pb.ServerInfo(), found.clients, channels)

    def note_lease(self, record: bytes) -> None:
        """Keeps the lease that a leader has announced. Raises StorageError if the copy cannot be written."""
        try:
            self._announced_lease = lease = Lease.decode(record)
        except ValueError:
            return
        if self._known is None or not self._known.follows(lease):
            self._write_lease(lease)

    def _wait_for_last(self, lease: Lease) -> None:
        """Raises StorageError if another server may have messages that the streams have lost."""
        known = self._known
        if known is not None and known.line != lease.line and known.follows(lease):
            # The streams have lost that lease as well.
            lease = known
        if lease.node not in ("", self._node):
            raise StorageError(
                f'node "{lease.node}" led last, and its copy may have messages that the streams have lost: '
                "this node waits for it"
            )

    def _write_lease(self, lease: Lease) -> None:
        """Writes the last lease beside a durable copy."""
        if not self._durable:
            return
        self._known = lease
        try:
            replace_file(self._directory / _LEASE, lease.encode())
        except StantoolsError as problem:
            raise StorageError(problem.message) from problem

    def _read_lease(self) -> Lease | None:
        try:
            return Lease.decode((self._directory / _LEASE).read_bytes()) if self._durable else None
        except (OSError, ValueError):
            return None

    def _is_contested(self, lease: Lease, begin: float) -> bool:
        """Returns whether another server may have taken the lease just now.

        Several servers may have waited for JetStream, or noticed at the same time that none leads: the lease is then
        not the one that this server last heard of.
        """
        waited = asyncio.get_running_loop().time() - begin
        new = bool(self._node) and lease != self._announced_lease
        return lease.node not in ("", self._node) and (new or waited > self._seconds / RENEWALS)

    async def _wait_unrenewed(self, found: FoundStreams) -> Lease:
        """Waits for longer than a renewal takes. Returns the lease if it was not renewed."""
        await asyncio.sleep(_MORE * self._seconds / RENEWALS)
        info = await self.streams.stream_info(self._names.state)
        if info is None or int(info["state"]["last_seq"]) > found.last:
            raise LeaseLostError(f'node "{found.lease.node}" was faster')
        return found.lease

    def _next_lease(self, found: Lease, before: Lease | None) -> Lease | None:
        """Returns the lease to take; None for a single server."""
        if self._node:
            if before is not None and found.epoch > before.epoch:
                raise LeaseLostError(f'node "{found.node}" was faster')
            return found.next_for(self._node)
        if found.node:
            raise StorageError(
                f'cluster ID {self._names.cluster_id} belongs to a group of servers (node "{found.node}"): start this '
                f"one with -clustered, or shut down the group in order first"
            )
        return None

    def _open_copy(self) -> None:
        """Opens the copy in files once. A damaged copy is cut or set aside."""
        if self._opened:
            return
        attempts: list[Callable[[], object]] = [partial(set_aside, self._directory)]
        known = self._read_lease()
        if self._durable:
            attempts.insert(0, self._cut_copy)
        while True:
            try:
                found = self._copy.recover(at_once=True)
            except InUseError:
                # The copy is sound; another process has it open.
                raise
            except StorageError as problem:
                if not attempts:
                    raise
                self._copy.close()
                STREAMING.warning("The copy in files cannot be read: %s", problem)
                attempts.pop(0)()
                self._copy = self._make_copy()
                continue
            break
        marker = self._names.state.encode()
        if found is not None:
            if found.server.node_id != marker:
                self._copy.close()
                raise StorageError(
                    f"{self._directory} holds a store of its own, not a copy of the streams of cluster ID "
                    f"{self._names.cluster_id}: configure another directory, or migrate that store into the streams"
                )
            self._copies = {name: stores for name, (stores, _) in found.channels.items()}
        else:
            self._copy.init(pb.ServerInfo(cluster_id=self._names.cluster_id.encode(), node_id=marker))
        if self._durable:
            try:
                with writing(self._directory, "what was written may not be durable"):
                    sync_tree(self._directory)
            except StantoolsError as problem:
                raise StorageError(problem.message) from problem
        self._opened = True
        self._known = self._read_lease()
        if known is not None and self._known is None and known.node not in ("", self._node):
            # The last known lease of another server holds although the copy is new.
            self._write_lease(known)

    def _cut_copy(self) -> None:
        try:
            truncate_copy(self._directory, self._copy.crc or Crc())
        except StantoolsError as problem:
            STREAMING.warning("The copy in files cannot be cut: %s", problem)

    @property
    def largest(self) -> int:
        """Bytes of an encoded message at most, such that the NATS server takes it with its headers."""
        return self.streams.max_payload - HEADER

    def recover(self) -> Recovered | None:
        """Returns the state that `prepare` has read."""
        return self._recovered

    async def update_changed_channels(self) -> list[bytes]:
        """Returns the channels to which other servers have written since they were opened; their copies now follow.

        The former leader may have had messages in flight when it lost the lease, to a channel that has no publishers
        now.
        """
        return [name for name, (messages, _) in tuple(self._channels.items()) if await messages.update_if_changed()]

    # Clients and channels

    def init(self, server: pb.ServerInfo) -> None:
        self._state.put(SERVER, server.SerializeToString())

    def add_client(self, client: pb.ClientInfo) -> Flush | None:
        return self._state.put(CLIENT + client.id, client.SerializeToString())

    def delete_client(self, client_id: bytes) -> None:
        self._state.put(CLIENT + client_id, b"")

    def create_channel(self, name: bytes) -> ChannelStore:
        """Adds a channel. Its stream is created in the background."""
        if name in self._channels:
            raise StorageError("already exists")
        if 0 < self.limits.max_channels <= len(self._channels):
            raise StorageError("too many channels")
        if problem := self._names.problem(name):
            raise StorageError(problem)
        if name in self._copies:
            self._drop_copy(name)
        messages = JetStreamMessages(ChannelCopy(self._channel(name), self), self)
        self._state.put(CHANNEL + name, BEGUN)
        subscriptions = JetStreamSubscriptions(name, messages.limits, self._state)
        self._channels[name] = messages, subscriptions
        messages.make(self._removals.get(name), partial(self._state.put, CHANNEL + name, MADE))
        return ChannelStore(messages, subscriptions)

    def delete_channel(self, name: bytes) -> None:
        """Removes a channel with all its data. Its stream is deleted in the background."""
        if name not in self._channels:
            raise StorageError("not found")
        messages, subscriptions = self._channels[name]
        self._release([*self._syncing.pop(name, ()), *self._unsynced.pop(name, ())])
        self._drop_copy(name)
        del self._channels[name]
        messages.close()
        subscriptions.remove()
        self._state.put(CHANNEL + name, BEGUN)
        self._removals[name] = asyncio.get_running_loop().create_task(self._remove(name, self._removals.get(name)))

    async def _remove(self, name: bytes, before: asyncio.Task[None] | None) -> None:
        """Deletes the stream of a channel, after that of an earlier channel of the same name."""
        if before is not None:
            await before
        stream = self._names.stream(name)
        while True:
            try:
                await self.streams.delete_stream(stream)
                break
            except NatsError as problem:
                STREAMING.debug("Stream %s was not deleted yet: %s", stream, problem)
                await asyncio.sleep(1)
        if self._removals.get(name) is asyncio.current_task():
            del self._removals[name]
            if name not in self._channels:
                self._state.put(CHANNEL + name, b"")

    def _limits_of(self, name: bytes) -> ChannelLimits:
        return self.limits.limits_for(os.fsdecode(name))

    def _channel(self, name: bytes) -> CopiedChannel:
        limits = self._limits_of(name)
        names = self._names
        return CopiedChannel(name, names.stream(name), names.subject(name), names.channel_config(name, limits), limits)

    # Copies of channels

    def leads(self) -> bool:
        return self._state.leads

    def copy_of(self, name: bytes) -> MessageStore:
        if name not in self._copies:
            self._copies[name] = self._copy.create_channel(name)
        return self._copies[name].messages

    def new_copy(self, name: bytes, *, keep: bool) -> MessageStore:
        if keep:
            set_aside(self._directory, os.fsdecode(name))
        self._drop_copy(name)
        return self.copy_of(name)

    def _drop_copy(self, name: bytes) -> None:
        self._copy.delete_channel(name)
        del self._copies[name]

    @property
    def wake(self) -> Callable[[], None] | None:
        return self._wake

    @wake.setter
    def wake(self, wake: Callable[[], None] | None) -> None:
        self._wake = self._copy.wake = wake

    async def make_durable(self, channels: Collection[bytes] | None = None) -> None:
        """Raises StorageError if the copies cannot be synced."""
        if not self._durable:
            return
        synced: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._copy.sync(channels, synced.set_result)
        while not synced.done():
            await asyncio.sleep(_LOOK)
            self._copy.completed()
        if (problem := synced.result()) is not None:
            raise StorageError(str(problem)) from problem

    def completed_flush(self, flush: Flush, settle: Callable[[], None] | None = None, channel: bytes = b"") -> None:
        """Completes a flush whose outcome is known; a flush of messages waits for a durable copy."""
        if not (self._durable and channel):
            self._release([(flush, settle)])
            return
        # Refused flushes wait as well: a channel's flushes complete in order.
        self._unsynced.setdefault(channel, []).append((flush, settle))
        self._sync()

    def completing(self, channel: bytes) -> Flush | None:
        waiting = self._unsynced.get(channel) or self._syncing.get(channel)
        return waiting[-1][0] if waiting else None

    def _sync(self) -> None:
        """Syncs the copies of all channels with waiting flushes at once."""
        if self._unsynced and not self._sync_runs:
            self._sync_runs = True
            self._syncing, self._unsynced = self._unsynced, {}
            self._copy.sync(self._syncing, self._synced)

    def _synced(self, problem: Exception | None) -> None:
        if problem is not None:
            # It is unknown which of the files are durable.
            self._failed(f"The copy in files cannot be made durable: {problem}")
            return
        self._sync_runs = False
        synced, self._syncing = self._syncing, {}
        for settled in synced.values():
            self._release(settled)
        self._sync()

    def _release(self, settled: list[_Settled]) -> None:
        first = not self._completed
        self._completed += settled
        if first and settled and self._wake is not None:
            self._wake()

    def completed(self) -> Sequence[Flush]:
        self._copy.completed()
        completed, self._completed = self._completed, []
        for _, settle in completed:
            if settle is not None:
                settle()
        return [flush for flush, _ in completed]

    def _lost(self, reason: str) -> None:
        if not self._node:
            reason = f"The store cannot continue: {reason}. Does another server use this cluster ID?"
        self._failed(reason)

    # Maintenance and end

    def maintain(self) -> int | None:
        """Syncs the copy if it is time. Returns as `FileStore.maintain` does."""
        return self._copy.maintain()

    async def finish(self) -> None:
        """Waits for writes in progress, for a few seconds at most."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        self._state.finish()
        while loop.time() < until and (
            self._syncing
            or self._unsynced
            or not self._state.idle
            or not all(messages.idle for messages, _ in self._channels.values())
        ):
            await asyncio.sleep(_LOOK)
        self._state.finish()
        self._state.release_lease()
        while loop.time() < until and not self._state.idle:
            await asyncio.sleep(_LOOK)

    def unwritten(self) -> list[str]:
        """Returns the channels with writes in progress."""
        return [f"channel {quote(name)}" for name, (each, _) in list(self._channels.items()) if not each.idle]

    def settle(self) -> None:
        """Does nothing: only a coroutine can wait, see `finish`."""

    def close(self) -> None:
        """Closes everything. Writes in progress may be stored or not."""
        for messages, _ in self._channels.values():
            messages.close()
        for task in self._removals.values():
            task.cancel()
        self._state.close()
        self._copy.close()


async def _all_of(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Runs coroutines, `_AT_ONCE` at a time. The first failure, in their order, cancels all others."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(thing: Callable[[], Awaitable[None]]) -> None:
        async with gate:
            await thing()

    tasks = [asyncio.create_task(one(thing)) for thing in work]
    try:
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
