"""What the store needs of JetStream. Tests give it a model of streams that fails in every way that real ones do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stantools.nats.frames import Handler
    from stantools.nats.inbox import Received


class JetStreamPort(Protocol):
    """JetStream, by a connection that comes back whenever it is lost.

    Whatever is awaited raises a `NatsError` of stantools; it is `retriable` if trying again makes sense.
    """

    @property
    def max_payload(self) -> int:
        """Bytes that a message may have, headers included."""

    def listen(self, handler: Handler, lost: Callable[[], None]) -> bytes:
        """Subscribes to all that begins with a new prefix, whenever there is a connection. Returns the prefix.

        Args:
            handler: Gets what comes.
            lost: Called whenever the connection is lost.
        """

    def unlisten(self, prefix: bytes) -> None:
        """Unsubscribes."""

    def send(self, frames: bytes) -> bool:
        """Sends whole frames; returns False if there is no connection."""

    async def stream_info(self, name: str) -> dict[str, Any] | None:
        """Returns configuration and state of a stream, None if there is none."""

    async def stream_names(self, subject: str) -> list[str]:
        """Returns the names of the streams with subjects that overlap the given one."""

    async def create_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Creates a stream; does nothing if it is there with the same configuration. Returns its info."""

    async def update_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Changes a stream's configuration. Returns its info."""

    async def delete_stream(self, name: str) -> bool:
        """Deletes a stream; returns whether there was one."""

    async def purge_stream(self, name: str, *, below: int) -> int:
        """Removes messages before a sequence. Returns how many."""

    async def delete_message(self, stream: str, sequence: int) -> None:
        """Deletes a message."""

    def read(self, name: str, state: Mapping[str, Any], after: int) -> AsyncIterator[Received]:
        """Yields what a stream holds behind a sequence, in order and nothing left out, up to `state`'s last one."""
