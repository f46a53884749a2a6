"""Interfaces of the stream rules to NATS and to the storage of streams."""

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
    def id(self) -> str: ...

    @property
    def max_payload(self) -> int:
        """Largest payload (bytes) of a client's message."""

    def listen(self, subject: bytes, handler: Handler, *, gathered: bool = False, but: bytes = b"") -> object:
        """Subscribes; messages are passed to the handler as rows of a table during the read that brought them.

        Buffer and table are valid only during the call. With `gathered`, messages of several clients may be passed
        together after the loop has read from all of them. Messages for the subscription to `but` are left out.
        """

    def unlisten(self, subscription: object) -> None: ...

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Publishes as the server itself, without checks of permission and size."""

    def answer(self, to: bytes, message: bytes, header_size: int) -> None:
        """Publishes a message that begins with `header_size` bytes of headers."""

    def send_now(self) -> None:
        """Sends the published messages at once, because more messages of this round are not worth the wait."""

    def deliver(
        self, to: bytes, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"", group: bytes = b""
    ) -> None:
        """Sends a message to the subscribers of `to`, or to one of a queue group, under another subject."""

    def publish_rows(self, buffer: Buffer, frames: Frames) -> None:
        """Publishes the rows of a table as the server itself."""

    def deliver_rows(self, to: bytes, buffer: Buffer, frames: Frames) -> None:
        """Sends the rows of a table to the subscribers of `to`; `takes_rows` must hold for it."""

    def takes_rows(self, to: bytes) -> bool:
        """Returns whether `to` has subscribers, and none of them has a limit of messages."""

    def interested(self, subject: bytes, group: bytes = b"") -> bool:
        """Returns whether a subscription exists, outside of queue groups or in this one."""

    def reaches(self, subject: bytes) -> bool:
        """Returns whether a message of this subject has any receiver."""

    def congested(self, subject: bytes) -> bool:
        """Returns whether the receivers of a subject have much unsent data."""

    def watch(self, changed: Callable[[bytes], None]) -> None:
        """Calls `changed` with each subject or pattern that gains or loses a subscription."""


class Outgoing(Protocol):
    """The archive of a stream, for a snapshot."""

    def pieces(self, size: int) -> Iterator[bytes]:
        """Iterates over the archive in pieces of `size` bytes; the last may be shorter. Raises `StorageError`."""

    def close(self) -> None: ...


class Incoming(Protocol):
    """The archive of a stream, for a restore."""

    @property
    def created(self) -> int:
        """Creation time of the stream (ns since 1970); known after `unpack`."""

    def add(self, data: bytes) -> None:
        """Appends a piece. Raises `StorageError`."""

    def unpack(self, limit: int) -> str:
        """Unpacks up to `limit` bytes of the archive; may run in a thread. Returns the error, empty for none."""

    def place(self) -> None:
        """Moves the files to their stream's place, ready to be opened; `close` removes them unless `keep` is called.

        Raises `StorageError` if the stream exists or cannot be written.
        """

    def keep(self) -> None:
        """Leaves the files to the opened stream."""

    def close(self) -> None:
        """Removes the files, unless a stream keeps them."""


class StreamStorage(Protocol):
    """The storage of streams. All methods but `share`, `sync` and `close` may raise `StorageError`."""

    @property
    def name(self) -> str:
        """Location of the storage, for messages."""

    def streams(self) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Iterates over the stored streams: configuration and creation time."""

    def create(self, name: str, storage: str, next_sequence: int) -> StreamStore: ...

    def open(self, name: str) -> StreamStore:
        """Opens a stream with its flushed messages."""

    def open_apart(self, name: str) -> StreamStore:
        """Opens a stream in a thread; it shares nothing with other streams until `share`."""

    def share(self, name: str, store: StreamStore) -> None:
        """Adds a stream from `open_apart` to the others."""

    def delete(self, name: str, store: StreamStore) -> None: ...

    def take(self, name: str, *, consumers: bool, time: int) -> Outgoing:
        """Returns the current state of a stream in files as an archive."""

    def expect(self, name: str) -> Incoming:
        """Returns an empty archive to fill for a restore."""

    def sync(self) -> None:
        """Makes all flushed data durable, after a delay."""

    def close(self) -> None: ...
