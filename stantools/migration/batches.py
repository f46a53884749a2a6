"""Batches: what flows from a store to any target, many messages at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stantools.format.columns import MessageColumns
from stantools.store.mapping import Buffer


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one channel, in rising order. Valid until the next batch is asked for.

    Attributes:
        channel: The channel's name as it is stored; for a generation split off, the name that it goes by.
        subject: The subject that they have, or get, in the stream.
        buffer: What `data_start` and `reply_start` of the columns point into. Payloads in it are decrypted.
        columns: One row a message; `sequence` is the one in the channel. Every reply can be a header value as it is.
        sequence: The sequence of each row in the stream: `columns.sequence` itself unless the stream is renumbered.
    """

    channel: bytes
    subject: bytes
    buffer: Buffer
    columns: MessageColumns
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
