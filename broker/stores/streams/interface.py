"""What the rules of streams need from a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from broker.stores.streams.contents import Contents, Filter
from stantools.streamfiles.meta import ConsumerState


class Stored(NamedTuple):
    """A message."""

    sequence: int  #: its sequence in the stream
    time: int  #: when it was stored, in nanoseconds since 1970
    subject: bytes
    header: bytes  #: header block with its empty line; empty for none
    payload: bytes


class StreamStore(ABC):
    """The messages of one stream, on top of the table of what is there.

    What was added or taken out can be read at once; it is kept when `flush` has returned. If `flush` fails, what
    `contents` says is not to be relied upon: the stream is opened again.
    """

    contents: Contents  #: what is there

    @staticmethod
    @abstractmethod
    def size_of(subject: bytes, header: bytes, payload: bytes) -> int:
        """Returns the bytes that a message counts for."""

    @abstractmethod
    def append(self, time: int, subject: bytes, header: bytes, payload: bytes) -> int:
        """Adds a message. Returns its sequence."""

    def skip(self, sequence: int) -> None:
        """Has the next message get a sequence that is not used yet; those below it stay without messages."""
        self.contents.skip(sequence - 1, self.contents.last_time)

    @abstractmethod
    def read(self, sequence: int) -> Stored | None:
        """Returns a message, if it is there.

        Raises:
            StorageError: It cannot be read.
        """

    @abstractmethod
    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        """Takes out a message so that it does not come back. Returns whether it was there.

        Args:
            sequence: Which one.
            erase: Overwrite it.
        """

    @abstractmethod
    def drop(self, sequence: int) -> None:
        """Takes out a message that is over a limit, and would be again if it came back at the next start."""

    @abstractmethod
    def drop_below(self, sequence: int) -> None:
        """Takes out the messages below a sequence that are over a limit."""

    @abstractmethod
    def purge_below(self, sequence: int) -> None:
        """Takes out the messages below a sequence so that they do not come back."""

    @abstractmethod
    def purge_matching(self, wanted: Filter, below: int) -> None:
        """Takes out the messages that match and are below a sequence, so that they do not come back."""

    @abstractmethod
    def purge_all(self, next_sequence: int) -> None:
        """Takes out everything; the next message gets this sequence."""

    @abstractmethod
    def settle(self) -> None:
        """Makes sure that nothing that is gone by limits comes back: they are about to become wider."""

    @abstractmethod
    def configure(self, config: Mapping[str, Any], created: int) -> None:
        """Keeps the configuration.

        Raises:
            StorageError: It cannot be written.
        """

    @abstractmethod
    def consumers(self) -> Iterator[tuple[dict[str, Any], int, ConsumerState | None]]:
        """Iterates over the consumers that are kept: configuration, when they were made, and state.

        Raises:
            StorageError: One cannot be read.
        """

    @abstractmethod
    def keep_consumer(self, name: str, config: Mapping[str, Any], created: int) -> None:
        """Keeps the configuration of a consumer.

        Raises:
            StorageError: It cannot be written.
        """

    @abstractmethod
    def keep_state(self, name: str, state: ConsumerState) -> None:
        """Keeps the state of a consumer.

        Raises:
            StorageError: It cannot be written.
        """

    @abstractmethod
    def forget_consumer(self, name: str) -> None:
        """Keeps nothing of a consumer any more.

        Raises:
            StorageError: It cannot be removed.
        """

    @abstractmethod
    def flush(self) -> None:
        """Makes all that was done outlive this process.

        Raises:
            StorageError: It cannot be written; nothing since the last flush is certain.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends without losing anything."""

    @abstractmethod
    def abandon(self) -> None:
        """Ends without writing anything: it could not be written."""

    @abstractmethod
    def delete(self) -> None:
        """Takes the whole stream away."""
