"""What the rules of streams need from a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.stores.interface import StorageError
from broker.stores.streams.contents import Contents, SubjectFilter
from stantools.nats.frames import Frames, frame_table, rows
from stantools.streamfiles.headers import located
from stantools.streamfiles.meta import ConsumerState, CopiedState

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer

#: Bytes of messages that are put into a table, about.
MOST_BYTES: Final = 1 << 20


class Stored(NamedTuple):
    """A message."""

    sequence: int  #: its sequence in the stream
    time: int  #: when it was stored, in nanoseconds since 1970
    subject: bytes
    header: bytes  #: header block with its empty line; empty for none
    payload: bytes


class MessageTableColumns(NamedTuple):
    """Messages as rows of a table, without replies and routes."""

    buffer: bytearray  #: where they are
    end: int  #: where in it room begins that is left for others
    frames: Frames  #: the table
    times: NDArray[np.int64]  #: when they were stored, in nanoseconds since 1970


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

    def append_rows(
        self, time: int, buffer: Buffer, frames: Frames, begin: int, end: int, most: int = 0
    ) -> list[tuple[int, int]]:
        """Adds messages that have come at the same time.

        Args:
            time: Nanoseconds since 1970.
            buffer: Where they are.
            frames: Their table.
            begin: The first row.
            end: The row behind the last.
            most: How many messages a subject may have: older ones are dropped; 0 for any number.

        Returns:
            What is dropped: sequence, and number of the subject.
        """
        contents = self.contents
        gone: list[tuple[int, int]] = []
        for subject, _, header, payload in rows(buffer, frames, begin, end):
            self.append(time, subject, header, payload)
            entry = contents.subjects[subject]
            while 0 < most < entry.count:
                gone.append((contents.first_of(entry), entry.number))
                self.remove(gone[-1][0])
        return gone

    def skip(self, sequence: int) -> None:
        """Has the next message get a sequence that is not used yet; those below it stay without messages."""
        self.contents.skip(sequence - 1, self.contents.last_time)

    @abstractmethod
    def read(self, sequence: int) -> Stored | None:
        """Returns a message, if it is there.

        Raises:
            StorageError: It cannot be read.
        """

    def direct(self, sequence: int, stream: bytes) -> tuple[bytes, int] | None:
        """Returns what answers a direct get, if the message is there: header block and payload, and the block's size.

        Args:
            sequence: Which one.
            stream: Name of the stream, for the headers that say where the message is.

        Raises:
            StorageError: It cannot be read.
        """
        found = self.read(sequence)
        if found is None:
            return None
        block = located(found.header, stream, found.subject, sequence, found.time)
        return block + found.payload, len(block)

    def table(self, sequences: Sequence[int], room: int) -> MessageTableColumns | None:
        """Returns messages, from the first one on as many as can be had at once.

        Args:
            sequences: Of messages, rising.
            room: Bytes to be left behind them, for each.

        Returns:
            The messages; None if the first one is best read by itself: it may be large, damaged, or not there.
        """
        found: list[Stored] = []
        size = 0
        for sequence in sequences:
            try:
                message = self.read(sequence)
            except StorageError:
                break
            if message is None or size > MOST_BYTES:
                break
            found.append(message)
            size += len(message.header) + len(message.payload)
        if not found:
            return None
        buffer = bytearray()
        frames = frame_table(len(found))
        for row, (_, _, subject, header, payload) in enumerate(found):
            at = len(buffer)
            buffer += b"%b%b%b" % (subject, header, payload)
            body = at + len(subject)
            frames[row] = (at, len(subject), 0, 0, len(header), body, len(buffer) - body, -1)
        end = len(buffer)
        buffer += bytes(room * len(found))
        return MessageTableColumns(buffer, end, frames, np.array([each.time for each in found], np.int64))

    @abstractmethod
    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        """Takes out a message so that it does not come back. Returns whether it was there.

        Args:
            sequence: Which one.
            erase: Overwrite it.
        """

    @abstractmethod
    def purge_below(self, sequence: int) -> None:
        """Takes out the messages below a sequence so that they do not come back."""

    @abstractmethod
    def purge_matching(self, wanted: SubjectFilter, below: int) -> None:
        """Takes out the messages that match and are below a sequence, so that they do not come back."""

    @abstractmethod
    def purge_all(self, next_sequence: int) -> None:
        """Takes out everything; the next message gets this sequence."""

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

    def kept_state(self, name: str, config: Mapping[str, Any]) -> ConsumerState | None:
        """Returns the state of a consumer that is kept; None if there is none.

        Raises:
            StorageError: It cannot be read.
        """
        return None

    @abstractmethod
    def keep_consumer(
        self, name: str, config: Mapping[str, Any], created: int, begins: ConsumerState | None = None
    ) -> None:
        """Keeps the configuration of a consumer.

        Args:
            name: Its name.
            config: Its configuration.
            created: When it was made.
            begins: Its state, where nothing is kept of it yet.

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

    def copied(self) -> CopiedState | None:
        """Returns how far the stream was with what it copies; None if nothing is known.

        Raises:
            StorageError: It cannot be read.
        """
        return None

    def keep_copied(self, state: CopiedState) -> None:
        """Keeps how far the stream is with what it copies, after what was stored: it is never ahead of the messages.

        What is in memory copies everything again.

        Raises:
            StorageError: It cannot be written.
        """
        return

    @abstractmethod
    def flush(self) -> None:
        """Writes all that was done, so that it outlives this process.

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
