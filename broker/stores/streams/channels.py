"""The messages of a channel as those of a stream, read from the channel without a copy.

A channel's sequences are consecutive and all messages have one subject, so there is no table: two sequences describe
the content. They are those of the last `flush`, which adopts the changes of the channel since the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from google.protobuf.message import DecodeError

from broker.record_buffer import MessageRecordBuffer
from broker.stores.interface import ChannelLog, StorageError
from broker.stores.streams.contents import Contents, RowSegment
from broker.stores.streams.interface import Stored
from broker.stores.streams.memory import VolatileStream
from broker.stores.streams.metafiles import KeptConsumers
from broker.stores.streams.subject_filter import SubjectFilter, SubjectRows
from stantools.format.proto import store_pb2 as pb
from stantools.nats.subjects import matches, matches_any
from stantools.streamfiles.headers import header_block, safe_value

#: messages, and their bytes, to read at a time for sequential reads
_AHEAD: Final = 256
_AHEAD_BYTES: Final = 256 << 10


class ChannelContents(Contents):
    """The sequences of a channel, without a table.

    `time_of` returns the time of a message in nanoseconds since 1970.
    """

    def __init__(self, subject: bytes, time_of: Callable[[int], int]) -> None:
        super().__init__()
        self._time_of = time_of
        self._entry = SubjectRows(subject, 0)
        self._numbered.append(self._entry)
        #: a row that represents every message
        self._row = RowSegment(0)
        self._row.subjects.append(0)
        self._row.sizes.append(1)

    def take(self, first: int, last: int, size: int) -> None:
        """Sets the sequences and the bytes of the messages."""
        first = max(first, 1)
        if last != self.last:
            self.last_time = self._time_of(last)
        if first != self.first or not self.first_time:
            self.first_time = self._time_of(first) if first <= last else 0
        self.first, self.last, self.bytes = first, last, size
        self.messages = max(last - self.first + 1, 0)
        self._entry.count, self._entry.first, self._entry.last = self.messages, self.first, last
        self.subjects = {self._entry.name: self._entry} if self.messages else {}

    def locate(self, sequence: int) -> tuple[RowSegment, int] | None:
        """Returns the row that represents every message; None if there is no such message."""
        return (self._row, 0) if self.first <= sequence <= self.last else None

    def find_last(self, pattern: bytes) -> Generator[None, None, int]:
        yield from ()
        return self.last if self.messages and matches(pattern, self._entry.name) else 0

    def last_match(self, wanted: SubjectFilter | None) -> int:
        return self.last if self.messages and (wanted is None or wanted.has(0)) else 0

    def last_before(self, sequence: int, entry: SubjectRows) -> int:
        last = min(self.last, sequence - 1)
        return last if last >= self.first else 0

    def select(self, patterns: Sequence[bytes]) -> Iterator[SubjectRows | None]:
        """Iterates over the only subject, if it matches and has messages."""
        if self.messages and matches_any(patterns, self._entry.name):
            yield self._entry

    def make_filter(self, patterns: Sequence[bytes]) -> Generator[None, None, SubjectFilter | None]:
        """Returns a filter of patterns; None if every subject matches. The subject counts even without messages."""
        found = yield from super().make_filter(patterns)
        if found is not None and matches_any(patterns, self._entry.name):
            found.learn(self._entry)
        return found

    def matching(self, wanted: SubjectRows | SubjectFilter | None, start: int, most: int) -> list[int]:
        if isinstance(wanted, SubjectFilter) and not wanted.has(0):
            return []
        start = max(start, self.first)
        return list(range(start, min(start + most, self.last + 1)))

    def count(self, wanted: SubjectFilter | None, start: int) -> int:
        if wanted is not None and not wanted.has(0):
            return 0
        return max(self.last - max(start, self.first) + 1, 0)

    def first_since(self, time: int) -> int:
        return bisect_left(range(self.last + 1), time, lo=self.first, key=self._time_of)


class ChannelStream(VolatileStream):
    """A read-only stream with the messages of a channel."""

    def __init__(self, log: ChannelLog, subject: bytes) -> None:
        self._log, self._subject = log, subject
        self.contents: ChannelContents = ChannelContents(subject, self._time_of)
        self._block: MessageRecordBuffer | None = None
        self._first = self._next = 0
        self.flush()

    def flush(self) -> None:
        """Adopts the sequences of the channel."""
        messages = self._log.messages
        self.contents.take(messages.first, self._log.visible, messages.bytes)

    def _time_of(self, sequence: int) -> int:
        block = self._log.messages.read(sequence, 1)
        return int(block.timestamps[0]) if len(block) else 0

    def read(self, sequence: int) -> Stored | None:
        if self.contents.locate(sequence) is None:
            return None
        block = self._block
        if block is None or not self._first <= sequence < self._first + len(block):
            # A sequential reader gets messages ahead.
            ahead = _AHEAD if sequence == self._next else 1
            block = self._log.messages.read(sequence, ahead, _AHEAD_BYTES)
            if not len(block) or int(block.sequences[0]) != sequence:
                if sequence < self._log.messages.first:
                    return None
                raise StorageError(f"message {sequence} of channel {self._display_name()} cannot be read")
            self._block, self._first = block, sequence
        self._next = sequence + 1
        row = sequence - self._first
        try:
            message = pb.MsgProto.FromString(block.payload(row))
        except DecodeError as error:
            raise StorageError(f"message {sequence} of channel {self._display_name()} is damaged") from error
        reply = safe_value(message.reply)
        header = header_block(b"", 0, 0, reply, origin=False) if reply else b""
        return Stored(sequence, int(block.timestamps[row]), self._subject, header, message.data)

    def _display_name(self) -> str:
        return self._log.name.decode(errors="replace")

    # Unsupported operations

    @staticmethod
    def size_of(subject: bytes, header: bytes, payload: bytes) -> int:
        """Returns the bytes of a message."""
        return len(header) + len(payload)

    def _read_only(self, *_: Any, **__: Any) -> NoReturn:
        raise StorageError(f"only its own clients write to channel {self._display_name()}")

    append = remove = purge_below = purge_matching = purge_all = _read_only

    def close(self) -> None:
        """Does nothing: the streaming server owns the channel."""

    delete = abandon = close


class KeptChannelStream(KeptConsumers, ChannelStream):
    """The stream of a channel in files; consumers are stored in `directory`, which need not exist."""

    def __init__(self, log: ChannelLog, subject: bytes, directory: Path) -> None:
        self._directory, self._name = directory, directory.name
        super().__init__(log, subject)
