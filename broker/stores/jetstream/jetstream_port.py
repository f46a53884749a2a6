"""The JetStream interface of the store. Tests implement it with a model that fails in all ways of real streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stantools.nats.frames import Handler
    from stantools.nats.inbox import Received


class JetStreamPort(Protocol):
    """JetStream, through a connection that is restored whenever it is lost.

    Coroutines raise a `NatsError` of stantools, which is `retriable` if another attempt makes sense.
    """

    @property
    def max_payload(self) -> int:
        """Bytes of a message at most, headers included."""

    def listen(self, handler: Handler, lost: Callable[[], None]) -> bytes:
        """Subscribes to all subjects with a new prefix, on every connection. Returns the prefix.

        `handler` gets the messages; `lost` is called whenever the connection is lost.
        """

    def unlisten(self, prefix: bytes) -> None: ...

    def send(self, frames: bytes) -> bool: ...

    async def stream_info(self, name: str) -> dict[str, Any] | None:
        """Returns configuration and state of a stream, None if it does not exist."""

    async def stream_names(self, subject: str) -> list[str]:
        """Returns the names of the streams whose subjects overlap the given one."""

    async def create_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Creates a stream unless it exists with the same configuration. Returns its info."""

    async def update_stream(self, config: Mapping[str, Any]) -> dict[str, Any]: ...

    async def delete_stream(self, name: str) -> bool:
        """Deletes a stream. Returns whether it existed."""

    async def purge_stream(self, name: str, *, below: int) -> int:
        """Removes the messages before a sequence. Returns their number."""

    async def delete_message(self, stream: str, sequence: int) -> None: ...

    def read(self, name: str, state: Mapping[str, Any], after: int) -> AsyncIterator[Received]:
        """Yields all messages after a sequence, in order, up to the last sequence of `state`."""
