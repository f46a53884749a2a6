"""The way of streams into the NATS server of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.nats.client import NatsSubscription
from broker.nats.internal import SystemClient

if TYPE_CHECKING:
    from broker.nats.server import NatsServer
    from stantools.nats.frames import Handler


class StreamsBus:
    """A `broker.streams.ports.Bus` on a client that is part of the server.

    Args:
        server: The server; it need not listen yet.
    """

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._client: SystemClient = server.system_client("JETSTREAM")

    @property
    def max_payload(self) -> int:
        """Bytes that a message of a client may have."""
        return self._server.options.max_payload

    def listen(self, subject: bytes, handler: Handler) -> object:
        """Subscribes."""
        return self._client.subscribe(subject, handler)

    def unlisten(self, subscription: object) -> None:
        """Unsubscribes."""
        assert isinstance(subscription, NatsSubscription)
        self._client.unsubscribe(subscription)

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Publishes as the server itself."""
        self._client.send(subject, subject, payload, reply, header)

    def deliver(self, to: bytes, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Hands a message to those who have subscribed to `to`; it has another subject."""
        self._client.send(to, subject, payload, reply, header)
