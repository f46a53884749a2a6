"""The protocol of a connection for event loops, which want a base class that a compiled class cannot have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.nats.connection import ClientConnection

_EVENTS: Final = (
    "connection_made",
    "connection_lost",
    "eof_received",
    "get_buffer",
    "buffer_updated",
    "pause_writing",
    "resume_writing",
)


class ConnectionProtocol(asyncio.BufferedProtocol):
    """Has the methods of the connection as attributes, without a call in between."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection: Final = connection
        for name in _EVENTS:
            setattr(self, name, getattr(connection, name))
