"""The store of a stream, as its rules use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.stores.interface import StorageError
from broker.stores.streams.contents import Contents
from broker.stores.streams.subject_filter import SubjectFilter, SubjectRows
from stantools.nats.frames import Frames, frame_table, rows
from stantools.streamfiles.headers import located
from stantools.streamfiles.meta import ConsumerState, CopiedState

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer

#: approximate bytes of the messages of one table
MOST_BYTES: Final = 1 << 20


class Stored(NamedTuple):
    sequence: int  #: sequence in the stream
    time: int  #: time of storage in nanoseconds since 1970
    subject: bytes
    header: bytes  #: header block with its empty line; empty without headers
    payload: bytes


class MessageTableColumns(NamedTuple):
    """Messages as rows of a table, without replies and routes."""

    buffer: bytearray  #: bytes of the messages
    end: int  #: offset in `buffer` of the space reserved for the caller
    frames: Frames
    times: NDArray[np.int64]  #: times of storage in nanoseconds since 1970


class StreamStore(ABC):
    """The messages of one stream, with the table `contents`.

    Reads see every change at once; changes are stored when `flush` returns. If `flush` fails, `contents` is no
    longer reliable: the stream must be opened again. Methods that read or write files raise StorageError.
    """

    contents: Contents

    @staticmethod
    @abstractmethod
    def size_of(subject: bytes, header: bytes, payload: bytes) -> int:
        """Returns the bytes of a message, as the limits of the stream count them."""

    @abstractmethod
    def append(self, time: int, subject: bytes, header: bytes, payload: bytes) -> int: ...

    def append_rows(
        self, time: int, buffer: Buffer, frames: Frames, begin: int, end: int, most: int = 0
    ) -> list[SubjectRows]:
        """Adds messages that arrived together: rows `begin` to `end` of a table.

        `time` is in nanoseconds since 1970. Returns their subjects that now have more than `most` messages; 0 is no
        limit.
        """
        subjects: dict[bytes, None] = {}
        for subject, _, header, payload in rows(buffer, frames, begin, end):
            self.append(time, subject, header, payload)
            subjects[subject] = None
        entries = (self.contents.subjects[each] for each in subjects) if most > 0 else ()
        return [each for each in entries if each.count > most]

    def drop_firsts(self, subjects: list[SubjectRows], most: int) -> list[tuple[int, int]]:
        """Removes the first messages of subjects that have more than `most`, which is at least 1.

        Returns sequence and subject number of the removed messages.
        """
        gone: list[tuple[int, int]] = []
        for entry in subjects:
            while entry.count > most:
                gone.append((self.contents.first_of(entry), entry.number))
                self.remove(gone[-1][0])
        return gone

    def skip(self, sequence: int) -> None:
        """Sets the next sequence. The unused ones before it stay without messages."""
        self.contents.skip(sequence - 1, self.contents.last_time)

    @abstractmethod
    def read(self, sequence: int) -> Stored | None:
        """Returns a message, None if it does not exist."""

    def direct(self, sequence: int, stream: bytes) -> tuple[bytes, int] | None:
        """Returns the answer to a direct get (header block, payload) and the block's size; None without the message.

        `stream` is the stream's name, for the headers.
        """
        found = self.read(sequence)
        if found is None:
            return None
        block = located(found.header, stream, found.subject, sequence, found.time)
        return block + found.payload, len(block)

    def table(self, sequences: Sequence[int], room: int) -> MessageTableColumns | None:
        """Returns the first of the given messages, up to the number that one read can get.

        `sequences` ascend; `room` bytes per message are reserved at the end of the buffer. Returns None if the first
        message must be read singly: it may be large, damaged or missing.
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
        """Removes a message for good, and overwrites it with `erase`. Returns whether it existed."""

    @abstractmethod
    def purge_below(self, sequence: int) -> None:
        """Removes the messages below a sequence for good."""

    @abstractmethod
    def purge_matching(self, wanted: SubjectFilter, below: int) -> None:
        """Removes the matching messages below a sequence for good."""

    @abstractmethod
    def purge_all(self, next_sequence: int) -> None:
        """Removes all messages for good, and sets the next sequence."""

    @abstractmethod
    def configure(self, config: Mapping[str, Any], created: int) -> None:
        """Stores the configuration of the stream."""

    @abstractmethod
    def consumers(self) -> Iterator[tuple[dict[str, Any], int, ConsumerState | None]]:
        """Iterates over the stored consumers: configuration, time of creation, and state."""

    def kept_state(self, name: str, config: Mapping[str, Any]) -> ConsumerState | None:
        """Returns the stored state of a consumer, None if there is none."""
        return None

    @abstractmethod
    def keep_consumer(
        self, name: str, config: Mapping[str, Any], created: int, begins: ConsumerState | None = None
    ) -> None:
        """Stores the configuration of a consumer; `begins` is the state of a new one."""

    @abstractmethod
    def keep_state(self, name: str, state: ConsumerState) -> None:
        """Stores the state of a consumer."""

    @abstractmethod
    def forget_consumer(self, name: str) -> None:
        """Removes a consumer from the store."""

    def copied(self) -> CopiedState | None:
        """Returns the stored positions of the stream in its sources, None if there are none."""
        return None

    def keep_copied(self, state: CopiedState) -> None:
        """Stores the positions of the stream in its sources, which are never ahead of the stored messages.

        A stream in memory copies everything again.
        """
        return

    @abstractmethod
    def flush(self) -> None:
        """Writes all changes, so that they outlive this process. If it fails, none since the last flush is certain."""

    @abstractmethod
    def close(self) -> None:
        """Closes the stream without loss."""

    @abstractmethod
    def abandon(self) -> None:
        """Closes the stream without writing, after a failed write."""

    @abstractmethod
    def delete(self) -> None:
        """Removes the whole stream."""
