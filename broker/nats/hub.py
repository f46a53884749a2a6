"""What clients need of the server that they are connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from broker.nats.auth import Authenticator, SlowChecks
    from broker.nats.client import Client
    from broker.nats.options import NatsOptions
    from broker.nats.router import Router
    from broker.nats.turns import Turns
    from stantools.nats.frames import Frames

C = TypeVar("C", contravariant=True)


class Hub(Protocol[C]):
    """A server, as its clients see it. `C` is what it has on sockets."""

    options: NatsOptions
    router: Router
    authenticator: Authenticator
    #: Hashed passwords that are being checked.
    slow_checks: SlowChecks
    #: Who has the event loop.
    turns: Turns
    #: Protocol messages are logged.
    tracing: bool
    #: Connections that were dropped because they did not keep up.
    slow_consumers: int
    #: What all connections read into, and the table that all parse into.
    read_buffer: bytearray
    read_view: memoryview
    frames: Frames

    def accept(self, connection: C) -> None:
        """Greets a new connection."""

    def dirty(self, connection: C) -> None:
        """A connection has something to be written."""

    def ended(self, connection: C) -> None:
        """A connection is no more."""

    def forget(self, client: Client) -> None:
        """A part of this process has disconnected."""

    def drain(self) -> None:
        """Hands over what parts of this process have sent each other."""
