"""All of a server's state in streams; see `broker.stores.interface.StateStore`."""

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
from broker.stores.jetstream.copy_repair import cut_back
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

#: Seconds that the end waits for what is under way, and between two looks at that.
_PATIENCE: Final = 5.0
_LOOK: Final = 0.01
#: Channels that are opened at a time.
_AT_ONCE: Final = 16
#: Seconds until the state is read again that was not read to its end.
_AGAIN: Final = 0.25
#: In the copy, where it has to be durable: the last lease that this server knows of, be it its own or another's.
_LEASE: Final = "lease.json"
#: How much longer than the time between two of its records whoever has the lease is given to write another one.
_MORE: Final = 1.5

#: A flush whose outcome is known, and what is called when the server learns of it.
_Settled = tuple[Flush, Callable[[], None] | None]


@dataclass(frozen=True, slots=True)
class StreamBacking:
    """Where streams are, and what they are called."""

    streams: JetStreamPort  #: JetStream
    names: StreamNames  #: of the cluster id
    failed: Callable[[str], None]  #: called with the reason when the store cannot be used any more
    node: str = ""  #: what this server is called among those with the same streams; empty for a single one
    seconds: float = TTL  #: how long a lease is good for, where there are several
    durable: bool = False  #: a message is acknowledged when the copy of it is durable, too


class JetStreamStore:
    """See `Store`. It lives in an event loop; `prepare` comes before `recover`, `finish` before `close`.

    Args:
        backing: Where the streams are.
        directory: Where the channels are copied to.
        copy: Returns the file store of that directory.
        limits: What the store may hold.

    Attributes:
        kind: `JETSTREAM`.
        streams: JetStream.
        writer: What this run calls itself in the ids of messages.
        crc: That of the copy.
        led: The copy is durable, and nobody else has led since it was written: what the streams do not have, they
            have lost.
        lease: The record of the lease that this server has taken; empty before, and for a single one.
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
        self._opened = False  # the copy
        self._known: Lease | None = None  # the last lease, as far as the copy knows
        self._heard: Lease | None = None  # the lease of whoever has said last that he leads
        self._followed: dict[bytes, ChannelCopy] = {}
        self._channels: dict[bytes, tuple[JetStreamMessages, JetStreamSubscriptions]] = {}
        self._removals: dict[bytes, asyncio.Task[None]] = {}
        self._completed: list[_Settled] = []
        # What waits for the copy to be durable, by channel: for the sync that is under way, and for the next one.
        self._syncing: dict[bytes, list[_Settled]] = {}
        self._unsynced: dict[bytes, list[_Settled]] = {}
        self._sync_runs = False
        self._state = BrokerState(streams, names, self.writer, self.completed_flush, self._lost, backing.seconds)
        self._recovered: Recovered | None = None

    # The start

    async def check(self) -> None:
        """Makes sure that the streams are as they should be, and that the copy can be had.

        Raises:
            StorageError: They are not, or JetStream cannot be reached.
        """
        self._open_copy()
        await StreamsOpening(self.streams, self._names).look()

    async def follow(self) -> None:
        """Makes the copy follow the streams, to which another server writes.

        Raises:
            StorageError: The copy cannot be written.
            NatsError: Not all of them could be read.
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
            # It was deleted; one that comes back is another one.
            del self._followed[name]
            self._drop_copy(name)

    async def prepare(self, *, newcomer: bool = False) -> None:
        """Reads what the streams have, and makes the copy follow them.

        Where there are several servers it takes the lease with that.

        Args:
            newcomer: This server has not seen another one lead. Maybe all have lost power; then whoever led last has
                what the streams have lost, if copies are durable.

        Raises:
            StorageError: It cannot be gone on with, JetStream cannot be reached, or another server was faster.
        """
        self._open_copy()
        opening = StreamsOpening(self.streams, self._names)
        before: Lease | None = None
        begin = asyncio.get_running_loop().time()
        while True:
            found = await opening.look()
            if before is None and self._contested(found.lease, begin):
                before = await self._still(found)
                continue
            lease = self._next_lease(found.lease, before)
            before = found.lease
            self.led = self._led_since(found.lease)
            if newcomer and self._durable and not self.led:
                self._wait_for_last(found.lease)
            if self.led:
                self._take_lost_channels(found)
            # The state has to know all of it before it writes: what it does not know, it would remove.
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
            self._note(lease or Lease())
        for name in found.channels:
            copy = self._followed.pop(name, None) or ChannelCopy(self._channel(name), self)
            self._channels[name] = JetStreamMessages(copy, self), subscribed[name]
        await _all_of(
            partial(
                opening.open,
                *(messages, self._channel(name), subscriptions.last),
                # A stream that is gone has nothing that the copy does not have.
                made=None if self.led else found.made.get(name),
            )
            for name, (messages, subscriptions) in self._channels.items()
        )
        await self.make_durable()
        if not self.led:
            # Until now another one may have what the streams have lost.
            self._note(lease or Lease())
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

    def heard(self, record: bytes) -> None:
        """Takes note of the lease of whoever leads, as that one says.

        Raises:
            StorageError: The copy cannot be written.
        """
        try:
            self._heard = lease = Lease.decode(record)
        except ValueError:
            return
        if self._known is None or not self._known.follows(lease):
            self._note(lease)

    def _wait_for_last(self, lease: Lease) -> None:
        """Raises StorageError if another server may have what the streams have lost."""
        known = self._known
        if known is not None and known.line != lease.line and known.follows(lease):
            # The streams have lost that one, too.
            lease = known
        if lease.node not in ("", self._node):
            raise StorageError(
                f'node "{lease.node}" led last, and its copy may have messages that the streams have lost: '
                "this node waits for it"
            )

    def _led_since(self, lease: Lease) -> bool:
        """Returns whether nobody has led since this server did, with a copy that is durable."""
        known = self._known
        return known is not None and known.node in ("", self._node) and known.follows(lease)

    def _note(self, lease: Lease) -> None:
        """Makes the last lease durable, where the copy is."""
        if not self._durable:
            return
        self._known = lease
        try:
            replace_file(self._directory / _LEASE, lease.encode())
        except StantoolsError as problem:
            raise StorageError(problem.message) from problem

    def _last_noted(self) -> Lease | None:
        try:
            return Lease.decode((self._directory / _LEASE).read_bytes()) if self._durable else None
        except (OSError, ValueError):
            return None

    def _take_lost_channels(self, found: FoundStreams) -> None:
        """Adds the channels of which only the copy is left."""
        for name in sorted(set(self._copies) - set(found.channels)):
            if self._copies[name].messages.last:
                STREAMING.error("Channel %s: JetStream has lost it; it is made again from the copy", quote(name))
                found.channels.append(name)

    def _contested(self, lease: Lease, begin: float) -> bool:
        """Returns whether another may have taken the lease just now.

        Several may have waited for JetStream, or have noticed together that nobody leads: the lease is not the one of
        whoever led when this server heard of it last.
        """
        waited = asyncio.get_running_loop().time() - begin
        new = bool(self._node) and lease != self._heard
        return lease.node not in ("", self._node) and (new or waited > self._seconds / RENEWALS)

    async def _still(self, found: FoundStreams) -> Lease:
        """Waits for longer than it takes to write a lease again. Returns the lease, if whoever has it did not.

        Raises:
            FasterError: Somebody leads.
        """
        await asyncio.sleep(_MORE * self._seconds / RENEWALS)
        info = await self.streams.stream_info(self._names.state)
        if info is None or int(info["state"]["last_seq"]) > found.last:
            raise LeaseLostError(f'node "{found.lease.node}" was faster')
        return found.lease

    def _next_lease(self, found: Lease, before: Lease | None) -> Lease | None:
        """Returns the lease that is to be taken; None for a single server.

        Args:
            found: Who has it.
            before: Who had it at the first look, if there was one.

        Raises:
            StorageError: It is not to be taken.
        """
        if self._node:
            if before is not None and found.epoch > before.epoch:
                raise LeaseLostError(f'node "{found.node}" was faster')
            return found.taken_by(self._node)
        if found.node:
            raise StorageError(
                f'cluster ID {self._names.cluster_id} belongs to a group of servers (node "{found.node}"): start this '
                f"one with -clustered, or end the group in order first"
            )
        return None

    def _open_copy(self) -> None:
        """Opens the copy in files, unless that was done; one that is damaged is set aside."""
        if self._opened:
            return
        attempts = [self._set_copy_aside]
        known = self._last_noted()
        if self._durable:
            attempts.insert(0, self._cut_copy)
        while True:
            try:
                found = self._copy.recover(at_once=True)
            except InUseError:
                # Nothing is wrong with it; it is another's.
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
                    f"{self._directory} holds a store of its own, and no copy of the streams of cluster ID "
                    f"{self._names.cluster_id}: name another directory, or migrate the store into the streams first"
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
        self._known = self._last_noted()
        if known is not None and self._known is None and known.node not in ("", self._node):
            # What it knew of another one holds without the copy, too.
            self._note(known)

    def _set_copy_aside(self) -> None:
        set_aside(self._directory)

    def _cut_copy(self) -> None:
        try:
            cut_back(self._directory, self._copy.crc or Crc())
        except StantoolsError as problem:
            STREAMING.warning("The copy in files cannot be cut: %s", problem)

    @property
    def largest(self) -> int:
        """Bytes of an encoded message that the NATS server takes, with its headers."""
        return self.streams.max_payload - HEADER

    def recover(self) -> Recovered | None:
        """Returns what `prepare` has found."""
        return self._recovered

    async def look_again(self) -> list[bytes]:
        """Looks whether others have got something into channels since these were opened.

        Whoever had the lease before may have sent messages when it was taken from him, and to a channel to which nobody
        publishes now.

        Returns:
            The channels where it was so. The store has it.
        """
        return [name for name, (messages, _) in tuple(self._channels.items()) if await messages.look_again()]

    # What there is

    def init(self, server: pb.ServerInfo) -> None:
        """Stores who the server is."""
        self._state.put(SERVER, server.SerializeToString())

    def add_client(self, client: pb.ClientInfo) -> Flush | None:
        """Stores a client."""
        return self._state.put(CLIENT + client.id, client.SerializeToString())

    def delete_client(self, client_id: bytes) -> None:
        """Removes a client."""
        self._state.put(CLIENT + client_id, b"")

    def create_channel(self, name: bytes) -> ChannelStore:
        """Adds a channel; its stream is made meanwhile."""
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
        messages.make(self._removals.get(name), partial(self._made, name))
        return ChannelStore(messages, subscriptions)

    def _made(self, name: bytes) -> None:
        """Takes note that the stream of a channel is there."""
        self._state.put(CHANNEL + name, MADE)

    def delete_channel(self, name: bytes) -> None:
        """Removes a channel and all it has; its stream is removed meanwhile."""
        if name not in self._channels:
            raise StorageError("not found")
        messages, subscriptions = self._channels[name]
        self._release([*self._syncing.pop(name, ()), *self._unsynced.pop(name, ())])
        self._drop_copy(name)
        del self._channels[name]
        messages.close()
        subscriptions.remove()
        self._state.put(CHANNEL + name, BEGUN)
        self._removals[name] = asyncio.get_running_loop().create_task(self._remove(name))

    async def _remove(self, name: bytes) -> None:
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

    # For the channels

    def leads(self) -> bool:
        """Returns whether messages may be sent: no other server does."""
        return self._state.leads

    def copy_of(self, name: bytes) -> MessageStore:
        """Returns the copy of a channel, an empty one if there is none yet."""
        if name not in self._copies:
            self._copies[name] = self._copy.create_channel(name)
        return self._copies[name].messages

    def new_copy(self, name: bytes, *, keep: bool) -> MessageStore:
        """Returns an empty copy of a channel instead of the one that there is, which is kept aside or removed."""
        if keep:
            set_aside(self._directory, os.fsdecode(name))
        self._drop_copy(name)
        return self.copy_of(name)

    def _drop_copy(self, name: bytes) -> None:
        self._copy.delete_channel(name)
        del self._copies[name]

    @property
    def wake(self) -> Callable[[], None] | None:
        """Called when something is complete; see `Store`."""
        return self._wake

    @wake.setter
    def wake(self, wake: Callable[[], None] | None) -> None:
        self._wake = self._copy.wake = wake

    async def make_durable(self, channels: Collection[bytes] | None = None) -> None:
        """See `Copies.make_durable`.

        Raises:
            StorageError: They cannot be synced.
        """
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
        """Takes note of a flush whose outcome is known; one of messages waits until the copy is durable."""
        if not (self._durable and channel):
            self._release([(flush, settle)])
            return
        # What is refused waits as well: the flushes of a channel complete in their order.
        self._unsynced.setdefault(channel, []).append((flush, settle))
        self._sync()

    def completing(self, channel: bytes) -> Flush | None:
        """Returns the last flush of a channel that only waits for the copy to be durable."""
        waiting = self._unsynced.get(channel) or self._syncing.get(channel)
        return waiting[-1][0] if waiting else None

    def _sync(self) -> None:
        """Has the copy made durable, of all channels at once for which somebody waits."""
        if self._unsynced and not self._sync_runs:
            self._sync_runs = True
            self._syncing, self._unsynced = self._unsynced, {}
            self._copy.sync(self._syncing, self._synced)

    def _synced(self, problem: Exception | None) -> None:
        if problem is not None:
            # Nobody knows what of it is durable.
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
        """Returns flushes that were under way."""
        self._copy.completed()
        completed, self._completed = self._completed, []
        for _, settle in completed:
            if settle is not None:
                settle()
        return [flush for flush, _ in completed]

    def _lost(self, reason: str) -> None:
        if not self._node:
            reason = f"The store cannot be gone on with: {reason}: is there another server with this cluster ID?"
        self._failed(reason)

    # From time to time, and at the end

    def maintain(self) -> int | None:
        """Has the copy synced when it is time; see `FileStore.maintain`."""
        return self._copy.maintain()

    async def finish(self) -> None:
        """Waits for what is under way, some seconds at most."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        self._state.finish()
        while loop.time() < until and not self._idle:
            await asyncio.sleep(_LOOK)
        self._state.finish()
        self._state.give_back()
        while loop.time() < until and not self._state.idle:
            await asyncio.sleep(_LOOK)

    @property
    def _idle(self) -> bool:
        if self._syncing or self._unsynced:
            return False
        return self._state.idle and all(messages.idle for messages, _ in self._channels.values())

    def unwritten(self) -> list[str]:
        """Returns the channels that are being written; see `Store.unwritten`."""
        return [f"channel {quote(name)}" for name, (each, _) in list(self._channels.items()) if not each.idle]

    def settle(self) -> None:
        """Does nothing: only the event loop can wait; see `finish`."""

    def close(self) -> None:
        """Closes everything; what is under way may be stored or not."""
        for messages, _ in self._channels.values():
            messages.close()
        for task in self._removals.values():
            task.cancel()
        self._state.close()
        self._copy.close()


async def _all_of(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Does some things at a time; the first one that fails, in their order, ends all."""
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
