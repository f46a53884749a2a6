"""Clients and channels, by name, and by the small numbers that the kernels use.

Facts: streaming-protocol.md sections 7 and 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from broker import log
from broker.streaming.expiry import Expiry
from broker.streaming.names import case_key
from broker.streaming.request_errors import RequestRefusedError
from broker.streaming.state import GONE, MAKING, READY, Channel, StreamingSession
from stantools.format.proto import store_pb2 as pb
from stantools.format.quoting import quote
from stantools.nats.kernels import Names

if TYPE_CHECKING:
    from broker.stores.interface import ChannelStore, Flush
    from broker.streaming.context import Context
    from broker.streaming.partitions import PendingConnects

T = TypeVar("T")


class SubscriptionSlots(Generic[T]):
    """Things by number; numbers of removed ones are used again."""

    def __init__(self) -> None:
        self._things: list[T | None] = []
        self._free: list[int] = []

    def __getitem__(self, number: int) -> T:
        thing = self._things[number]
        assert thing is not None
        return thing

    def put(self, thing: T) -> int:
        if self._free:
            number = self._free.pop()
            self._things[number] = thing
            return number
        self._things.append(thing)
        return len(self._things) - 1

    def take(self, number: int) -> None:
        self._things[number] = None
        self._free.append(number)


class Clients:
    """Clients by id and by connection id."""

    def __init__(self, context: Context, waiting: PendingConnects | None = None) -> None:
        self._store = context.store
        self._waiting = waiting
        self._clients: dict[bytes, StreamingSession] = {}
        self._by_connection: dict[bytes, StreamingSession] = {}
        self.get: Final = self._clients.get  #: the client with an id
        self.by_connection: Final = self._by_connection.get  #: the client with a connection id
        self.numbered: SubscriptionSlots[StreamingSession] = SubscriptionSlots()  #: by the numbers that the kernels use
        self.names = Names()  #: numbers of the client ids
        self.connections = Names()  #: numbers of the connection ids

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[StreamingSession]:
        return iter(self._clients.values())

    def publisher(self, client_id: bytes, connection_id: bytes) -> StreamingSession | None:
        """Returns the publisher: a connection id identifies it alone (streaming-protocol.md section 7.2)."""
        return self._by_connection.get(connection_id) if connection_id else self._clients.get(client_id)

    def register(self, info: pb.ClientInfo) -> tuple[StreamingSession, Flush | None]:
        """Stores and registers a client whose id is not in use. A client that cannot be stored is not registered.

        Returns the client, and the flush in progress; None if the client is stored.
        """
        flush = self._store.add_client(info)
        client = self.recover(info)
        if self._waiting is not None:
            self._waiting.registered(client)
        return client, flush

    def recover(self, info: pb.ClientInfo) -> StreamingSession:
        """Registers a client that is already stored."""
        client = StreamingSession(info)
        client.number = self.numbered.put(client)
        client.registered = True
        self._clients[client.id] = client
        self.names.add(client.id, client.number)
        if info.conn_id:
            self._by_connection[info.conn_id] = client
            self.connections.add(info.conn_id, client.number)
        return client

    def unregister(self, client: StreamingSession) -> None:
        """Removes a client, and deletes it from the store. After a StorageError only the store still has it."""
        client.registered = False
        del self._clients[client.id]
        self.names.discard(client.id)
        connection_id = client.info.conn_id
        if connection_id and self._by_connection.get(connection_id) is client:
            del self._by_connection[connection_id]
            self.connections.discard(connection_id)
        self.numbered.take(client.number)
        self._store.delete_client(client.id)


class Channels:
    """Channels by name and by number."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._audience = context.audience
        self._channels: dict[bytes, Channel] = {}
        self.get: Final = self._channels.get  #: the channel with a name
        self._spellings: dict[str, list[bytes]] = {}
        self.numbered: SubscriptionSlots[Channel] = SubscriptionSlots()  #: by the numbers that the kernels use
        self.names = Names()  #: numbers of the names
        self.making = 0  #: number of channels that the store is about to make
        self.expiry = Expiry(context, self.delete)  #: expiry of messages and channels

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels.values())

    def create(self, name: bytes) -> Channel:
        """Adds a new channel with a valid name, which the store may have yet to make.

        Raises RequestRefusedError if a channel differs in case only, StorageError if the channel cannot be made, for
        example because there are too many.
        """
        if spellings := self._spellings.get(case_key(name)):
            message = (
                f"rejecting channel {quote(name)} because channel {quote(spellings[0])} alreay exists "
                "(different cases not allowed)"
            )
            log.STREAMING.error("Creating channel %s failed: %s", quote(name), message)
            raise RequestRefusedError(message.encode(errors="surrogateescape"))
        channel = self.recover(name, self._store.create_channel(name))
        if channel.state is READY:
            self._begin(channel)
        else:
            self.making += 1
        return channel

    def made(self, channel: Channel) -> None:
        channel.advance(READY)
        channel.making = None
        self.making -= 1
        self._begin(channel)

    def _begin(self, channel: Channel) -> None:
        log.STREAMING.info("Channel %s has been created", quote(channel.name))
        self.expiry.watch(channel)

    def recover(self, name: bytes, stores: ChannelStore) -> Channel:
        """Adds a channel of the store."""
        channel = Channel(name, stores.messages, stores.subscriptions, stores.making, stores.single_store)
        channel.number = self.numbered.put(channel)
        self._channels[name] = channel
        self._spellings.setdefault(case_key(name), []).append(name)
        self.names.add(name, channel.number)
        if self._audience is not None:
            self._audience.changed(channel)
        return channel

    def delete(self, channel: Channel) -> None:
        """Deletes a channel with all its data. After a StorageError it is unchanged."""
        self._store.delete_channel(channel.name)
        self.forget(channel)

    def forget(self, channel: Channel) -> None:
        """Removes a channel that the store no longer has."""
        name = channel.name
        self.making -= channel.state is MAKING
        channel.advance(GONE)
        del self._channels[name]
        spellings = self._spellings[case_key(name)]
        spellings.remove(name)
        if not spellings:
            del self._spellings[case_key(name)]
        self.names.discard(name)
        self.numbered.take(channel.number)
        if self._audience is not None:
            self._audience.removed(channel)
