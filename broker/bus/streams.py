"""The bus of streams to the NATS server of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.nats.client import NatsSubscription
from broker.nats.internal import SystemClient
from broker.reserved import ReservedSubjects

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.nats.nats_server import NatsServer
    from stantools.nats.frames import Handler

#: gathered messages come after the acknowledgements of channels, which make room
_RANK: Final = 2


class StreamsBus:
    """A `broker.streams.ports.StreamsPort` on a client inside of the server, which need not listen yet."""

    def __init__(self, server: NatsServer, discover_prefix: bytes = b"") -> None:
        self._server = server
        self._reserved = ReservedSubjects(discover_prefix)
        self._client: SystemClient = server.system_client("JETSTREAM", self._reserved)
        self.publish: Final = self._client.publish_anything
        self.publish_rows: Final = self._client.publish_rows
        self.deliver: Final = self._client.send
        self.deliver_rows: Final = self._client.send_rows
        self.reaches: Final = server.subscriptions.reaches
        self.congested: Final = server.subscriptions.congested
        self.send_now: Final = server.flush

    @property
    def id(self) -> str:
        return self._server.id

    @property
    def max_payload(self) -> int:
        """Largest message of a client, in bytes."""
        return self._server.options.max_payload

    def answer(self, to: bytes, message: bytes, header_size: int) -> None:
        """Publishes a message that begins with `header_size` bytes of headers."""
        if to not in self._reserved:
            self._server.router.publish_one(self._client, to, b"", message, header_size)

    def listen(self, subject: bytes, handler: Handler, *, gathered: bool = False, but: bytes = b"") -> object:
        return self._client.subscribe(subject, handler, rank=_RANK if gathered else 0, but=but)

    def unlisten(self, subscription: object) -> None:
        assert isinstance(subscription, NatsSubscription)
        self._client.unsubscribe(subscription)

    def takes_rows(self, to: bytes) -> bool:
        """Returns whether `to` has subscribers, all without a limit of messages."""
        return to not in self._reserved and self._server.subscriptions.takes_rows(to)

    def interested(self, subject: bytes, group: bytes = b"") -> bool:
        """Returns whether a subject itself has a subscriber, or one in this queue group."""
        return subject not in self._reserved and self._server.subscriptions.interested(subject, group)

    def watch(self, changed: Callable[[bytes], None]) -> None:
        """Calls `changed` with each subject or pattern whose subscribers change."""
        self._server.subscriptions.watcher = changed
