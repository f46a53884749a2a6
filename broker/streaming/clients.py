"""Who is connected: clients by id and by connection id (streaming-protocol.md section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from broker.streaming.slots import Slots
from broker.wire.kernels import Names
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.stores.interface import Store
    from broker.streaming.subscriptions import Subscription
    from broker.streaming.timers import Timer


class Client:
    """A client that has connected, whether or not it is still alive.

    Attributes:
        info: What is stored about it.
        number: What the kernels know it by.
        failures: Heartbeats in a row that were not answered.
        heartbeat: When the next heartbeat goes out; None while one is under way.
        subscriptions: What it has subscribed to, in that order.
        registered: It is still the client under its id.
    """

    __slots__ = ("failures", "heartbeat", "id", "info", "number", "registered", "subscriptions")

    def __init__(self, info: pb.ClientInfo) -> None:
        self.id: bytes = info.id
        self.info = info
        self.number = -1
        self.failures = 0
        self.heartbeat: Timer | None = None
        self.subscriptions: dict[Subscription, None] = {}
        self.registered = False

    @property
    def failed_heartbeat(self) -> bool:
        """The last heartbeat was not answered, so that queue groups prefer other members.

        Facts: streaming-protocol.md section 8.1.6.
        """
        return self.failures > 0


class Clients:
    """All clients.

    Attributes:
        names: Numbers of the client ids, for the kernels.
        connections: Numbers of the connection ids.
        on_registered: Called with each new client, after it has been registered.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clients: dict[bytes, Client] = {}
        self._by_connection: dict[bytes, Client] = {}
        self._slots: Slots[Client] = Slots()
        self.names = Names()
        self.connections = Names()
        self.on_registered: list[Callable[[Client], None]] = []

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def __getitem__(self, number: int) -> Client:
        """Returns the client that the kernels know by a number."""
        return self._slots[number]

    def get(self, client_id: bytes) -> Client | None:
        """Returns who is registered under an id."""
        return self._clients.get(client_id)

    def by_connection(self, connection_id: bytes) -> Client | None:
        """Returns who gave this connection id."""
        return self._by_connection.get(connection_id)

    def publisher(self, client_id: bytes, connection_id: bytes) -> Client | None:
        """Returns who publishes: if there is a connection id, it alone says so (streaming-protocol.md section 7.2)."""
        return self._by_connection.get(connection_id) if connection_id else self._clients.get(client_id)

    def register(self, info: pb.ClientInfo) -> Client:
        """Stores a client and makes it known. Its id is not in use.

        Raises:
            StorageError: It cannot be stored; it is not registered then.
        """
        self._store.add_client(info)
        client = self.recover(info)
        for notify in self.on_registered:
            notify(client)
        return client

    def recover(self, info: pb.ClientInfo) -> Client:
        """Makes a client known that is stored already."""
        client = Client(info)
        client.number = self._slots.put(client)
        client.registered = True
        self._clients[client.id] = client
        self.names.add(client.id, client.number)
        if info.conn_id:
            self._by_connection[info.conn_id] = client
            self.connections.add(info.conn_id, client.number)
        return client

    def unregister(self, client: Client) -> None:
        """Makes a client unknown and removes it from the store.

        Raises:
            StorageError: The store still has it; it is unknown all the same.
        """
        client.registered = False
        del self._clients[client.id]
        self.names.discard(client.id)
        connection_id = client.info.conn_id
        if connection_id and self._by_connection.get(connection_id) is client:
            del self._by_connection[connection_id]
            self.connections.discard(connection_id)
        self._slots.take(client.number)
        self._store.delete_client(client.id)
