"""Messages on their way into a stream, or out of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from stantools.format.message_batch import MessageBatch, texts
from stantools.streamfiles.headers import safe_value


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


#: limit of different reply lengths that are checked at once; a batch with more is checked message by message
_MAX_LENGTHS = 64


def safe_replies(batch: MessageBatch) -> list[bytes] | None:
    """Returns the replies of messages as valid header values (`headers.safe_value`); None if all are valid."""
    if not batch.reply_size.any() or _replies_are_safe(batch):
        return None
    return [safe_value(reply) for reply in batch.replies()]


def _replies_are_safe(batch: MessageBatch) -> bool:
    rows = np.flatnonzero(batch.reply_size)
    starts, sizes = batch.reply_start[rows], batch.reply_size[rows]
    lengths = np.unique(sizes).tolist()
    if len(lengths) > _MAX_LENGTHS:
        return all(safe_value(reply) == reply for reply in texts(batch.buffer, starts, sizes))
    for length in lengths:
        # All places where that many bytes can begin, without copying; the replies are then rows of a table.
        places = np.ndarray((len(batch.buffer) - length + 1,), f"V{length}", batch.buffer, strides=(1,))
        table = places[starts[sizes == length]].view(np.uint8).reshape(-1, length)
        if (
            int(table.min()) < 0x20
            or (table == 0x7F).any()
            or (table[:, 0] == 0x20).any()
            or (table[:, -1] == 0x20).any()
        ):
            return False
    return True
