"""Messages on their way into a stream, many at a time: columns that point into one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stantools.format.columns import MessageColumns
from stantools.store.mapping import Buffer


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one channel, in rising order. Valid until the next batch is asked for."""

    channel: bytes  #: the channel's name as it is stored; for a generation split off, the name that it goes by
    subject: bytes  #: the subject that they have, or get, in the stream
    buffer: Buffer  #: What `data_start` and `reply_start` of the columns point into. Payloads in it are decrypted.
    #: One row a message; `sequence` is the one in the channel. Every reply can be a header value as it is.
    columns: MessageColumns
    #: The sequence of each row in the stream: `columns.sequence` itself unless the stream is renumbered.
    sequence: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.sequence)

    def data(self, row: int) -> bytes:
        """Returns the payload of a row."""
        start = int(self.columns.data_start[row])
        return bytes(self.buffer[start : start + int(self.columns.data_size[row])])

    def reply(self, row: int) -> bytes:
        """Returns the reply subject of a row, empty if it has none."""
        start = int(self.columns.reply_start[row])
        return bytes(self.buffer[start : start + int(self.columns.reply_size[row])])

    def part(self, low: int, high: int) -> Batch:
        """Returns the rows from `low` up to but without `high`."""
        columns = self.columns.part(low, high)
        return Batch(self.channel, self.subject, self.buffer, columns, self.sequence[low:high])

    def messages(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Iterates over the rows: sequence in the channel, time in nanoseconds since 1970, reply subject, payload."""
        columns = self.columns
        replies = (
            texts(self.buffer, columns.reply_start, columns.reply_size) if columns.reply_size.any() else repeat(b"")
        )
        payloads = texts(self.buffer, columns.data_start, columns.data_size)
        return zip(columns.sequence.tolist(), columns.timestamp.tolist(), replies, payloads, strict=False)


class Messages(Protocol):
    """Messages with rising sequences, as they are or should be in a stream: what there is to write, or to compare."""

    @property
    def count(self) -> int:
        """How many messages there are."""

    @property
    def first(self) -> int:
        """The sequence of the first message, 0 if there is none."""

    @property
    def last(self) -> int:
        """The last sequence that ever was, also where there is no message with it."""

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Batch]:
        """Yields the messages with sequences above `after`, up to `until`, in rising order."""


def texts(buffer: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> Iterator[bytes]:
    """Iterates over parts of a buffer, given by where they begin and how many bytes they have."""
    ends = (starts + sizes).tolist()
    return (bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends, strict=True))
