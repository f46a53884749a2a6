"""Messages on their way into a stream, in batches: columns that point into one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from stantools.format.columns import MessageColumns
from stantools.lazy_numpy import np
from stantools.store.mapping import Buffer
from stantools.streamfiles import kernels
from stantools.streamfiles.layout import OpenBlock, RecordColumns, WriteStop, record_sizes

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one channel, in rising order. Valid until the next batch is requested."""

    channel: bytes  #: the channel's name in the store; for a separate generation, its own name
    subject: bytes  #: their subject in the stream
    buffer: Buffer  #: The buffer of `data_start` and `reply_start` in the columns, with decrypted payloads.
    #: One row per message; `sequence` is the one in the channel. Every reply is valid as a header value.
    columns: MessageColumns
    #: The sequence of each row in the stream: `columns.sequence` itself unless the stream is renumbered.
    sequence: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def timestamp(self) -> npt.NDArray[np.int64]:
        return self.columns.timestamp

    def sizes(self, origin: bool) -> npt.NDArray[np.int64]:
        """Returns the size of each message's record."""
        return record_sizes(self.columns, len(self.channel), len(self.subject), origin)[0]

    def write(self, row: int, block: OpenBlock, origin: bool) -> tuple[int, int, WriteStop]:
        """Writes messages from a row on as records of a block."""
        return kernels.encode_records(self, row, block, origin)

    def place(self, row: int) -> str:
        """Describes a message."""
        channel = self.channel.decode("utf-8", "backslashreplace")
        return f"channel {channel}: message {int(self.columns.sequence[row])}"

    def data(self, row: int) -> bytes:
        start = int(self.columns.data_start[row])
        return bytes(self.buffer[start : start + int(self.columns.data_size[row])])

    def reply(self, row: int) -> bytes:
        start = int(self.columns.reply_start[row])
        return bytes(self.buffer[start : start + int(self.columns.reply_size[row])])

    def part(self, low: int, high: int) -> MessageBatch:
        """Returns the rows from `low` to `high`, the latter excluded."""
        columns = self.columns.part(low, high)
        return MessageBatch(self.channel, self.subject, self.buffer, columns, self.sequence[low:high])

    def messages(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Iterates over the rows: sequence in the channel, time in nanoseconds since 1970, reply subject, payload."""
        columns = self.columns
        replies = (
            texts(self.buffer, columns.reply_start, columns.reply_size) if columns.reply_size.any() else repeat(b"")
        )
        payloads = texts(self.buffer, columns.data_start, columns.data_size)
        return zip(columns.sequence.tolist(), columns.timestamp.tolist(), replies, payloads, strict=False)


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Messages as records of a block, in rising order. Valid until the next batch is requested."""

    buffer: Buffer | bytes
    columns: RecordColumns

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def sequence(self) -> npt.NDArray[np.uint64]:
        return self.columns.sequence

    @property
    def timestamp(self) -> npt.NDArray[np.int64]:
        return self.columns.timestamp

    def sizes(self, _origin: bool) -> npt.NDArray[np.int64]:
        """Returns the size of each record."""
        return self.columns.length.astype(np.int64)

    def write(self, row: int, block: OpenBlock, _origin: bool) -> tuple[int, int, WriteStop]:
        """Writes records from a row on to a block, with its own hashes."""
        return kernels.copy_records(self, row, block)

    def place(self, row: int) -> str:
        """Describes a message."""
        return f"message {int(self.sequence[row])}"


class Messages(Protocol):
    """Messages with rising sequences, to be written to a stream or compared with one."""

    @property
    def count(self) -> int: ...

    @property
    def first(self) -> int:
        """The sequence of the first message, 0 if there is none."""

    @property
    def last(self) -> int:
        """The last sequence ever used, even without a message."""

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        """Yields the messages with sequences above `after`, up to `until`, in rising order."""


def texts(buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> Iterator[bytes]:
    ends = (starts + sizes).tolist()
    return (bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends, strict=True))
