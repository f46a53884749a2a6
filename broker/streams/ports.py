"""What the rules of streams need from outside: NATS, and a place where streams are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from broker.stores.streams.interface import StreamStore
from stantools.nats.frames import Frames, Handler

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer


class StreamsPort(Protocol):
    """NATS, as the rules of streams see it."""

    @property
    def id(self) -> str:
        """The id of the server."""

    @property
    def max_payload(self) -> int:
        """Bytes that a message of a client may have."""

    def listen(self, subject: bytes, handler: Handler, *, gathered: bool = False, but: bytes = b"") -> object:
        """Subscribes; what is published is handed over in the read that brought it.

        Args:
            subject: Subject, possibly with wildcards.
            handler: Takes rows of a table; buffer and table are good for the time of the call only.
            gathered: What many have published may be handed over together, when the loop has read from all.
            but: Not what another handler gets, which listens to this; empty for all.
        """

    def unlisten(self, subscription: object) -> None:
        """Unsubscribes."""

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Publishes as the server itself: no permission is needed, and no size is too large."""

    def answer(self, to: bytes, message: bytes, header_size: int) -> None:
        """As `publish`: a message that begins with so many bytes of headers."""

    def send_now(self) -> None:
        """Has what was published leave at once: nothing else of this round is worth waiting for."""

    def deliver(
        self, to: bytes, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"", group: bytes = b""
    ) -> None:
        """Hands a message to those who have subscribed to `to`, or to one of a queue group; it has another subject."""

    def publish_rows(self, buffer: Buffer, frames: Frames) -> None:
        """Publishes the rows of a table as the server itself."""

    def deliver_rows(self, to: bytes, buffer: Buffer, frames: Frames) -> None:
        """Hands the rows of a table to those who have subscribed to `to`, for whom `takes_rows` holds."""

    def takes_rows(self, to: bytes) -> bool:
        """Returns whether there are subscribers to `to`, and all of them take as many messages as there are."""

    def interested(self, subject: bytes, group: bytes = b"") -> bool:
        """Returns whether somebody has subscribed to a subject by itself, or in this queue group."""

    def reaches(self, subject: bytes) -> bool:
        """Returns whether there is anybody who gets messages of a subject."""

    def congested(self, subject: bytes) -> bool:
        """Returns whether much waits for those who get messages of a subject."""

    def watch(self, changed: Callable[[bytes], None]) -> None:
        """Calls `changed` with each subject or pattern that somebody subscribes to, or does no more."""


class Outgoing(Protocol):
    """The archive of a stream, to be sent."""

    def pieces(self, size: int) -> Iterator[bytes]:
        """Iterates over it, in pieces of a size but for the last.

        Raises:
            StorageError: It cannot be read.
        """

    def close(self) -> None:
        """Forgets it."""


class Incoming(Protocol):
    """The archive of a stream, as it comes."""

    @property
    def created(self) -> int:
        """When the stream was made, in nanoseconds since 1970; known when it is unpacked."""

    def add(self, data: bytes) -> None:
        """Takes a piece.

        Raises:
            StorageError: It cannot be written.
        """

    def unpack(self, limit: int) -> str:
        """Unpacks what has come, at most so many bytes; may be called in a thread.

        Returns:
            What is wrong, nothing if all is well.
        """

    def place(self) -> None:
        """Makes a stream of it, to be opened; it goes with `close` unless `keep` is called.

        Raises:
            StorageError: There is one of that name, or it cannot be written.
        """

    def keep(self) -> None:
        """Leaves the files to the stream, which was opened."""

    def close(self) -> None:
        """Removes what has not become a stream."""


class StreamStorage(Protocol):
    """Where streams are kept."""

    @property
    def name(self) -> str:
        """Where that is, for people."""

    def streams(self) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Iterates over the streams that are there: configuration, and when they were made.

        Raises:
            StorageError: One of them cannot be read.
        """

    def create(self, name: str, storage: str, next_sequence: int) -> StreamStore:
        """Makes a stream.

        Raises:
            StorageError: It cannot be made.
        """

    def open(self, name: str) -> StreamStore:
        """Opens a stream with what was flushed.

        Raises:
            StorageError: It cannot be opened.
        """

    def open_apart(self, name: str) -> StreamStore:
        """As `open`, in a thread: it shares nothing with other streams until `share`.

        Raises:
            StorageError: It cannot be opened.
        """

    def share(self, name: str, store: StreamStore) -> None:
        """Makes a stream that was opened apart one of the others."""

    def delete(self, name: str, store: StreamStore) -> None:
        """Takes a stream away.

        Raises:
            StorageError: It cannot be removed.
        """

    def take(self, name: str, *, consumers: bool, time: int) -> Outgoing:
        """Takes a stream in files as it is now, to be sent.

        Raises:
            StorageError: It cannot be read.
        """

    def expect(self, name: str) -> Incoming:
        """Begins to take the archive of a stream.

        Raises:
            StorageError: It cannot be written.
        """

    def sync(self) -> None:
        """Makes everything that was flushed durable, some time later."""

    def close(self) -> None:
        """Closes everything."""
