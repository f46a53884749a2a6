"""Columns of what a server delivers: one row a message, offsets into the bytes as they came from the socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FrameColumns:
    """Delivered messages, one row each (jetstream-api.md sections 2 and 9).

    The numbers that an acknowledgement subject carries are 0 where the reply subject is none.

    Args:
        capacity: Number of rows.
    """

    __slots__ = (
        "consumer_sequence",
        "data_size",
        "data_start",
        "header_size",
        "header_start",
        "pending",
        "reply_size",
        "reply_start",
        "sequence",
        "sid",
        "status",
        "subject_size",
        "subject_start",
        "timestamp",
    )

    sid: NDArray[np.int64]  #: which subscription it is for; -1 if that is not a number of at most nine digits
    subject_start: NDArray[np.int64]  #: where the subject begins
    subject_size: NDArray[np.uint32]  #: its size in bytes
    reply_start: NDArray[np.int64]  #: where the reply subject begins; 0 when there is none
    reply_size: NDArray[np.uint32]  #: its size in bytes
    header_start: NDArray[np.int64]  #: where the header block begins; 0 when there is none
    header_size: NDArray[np.uint32]  #: its size in bytes
    data_start: NDArray[np.int64]  #: where the payload begins
    data_size: NDArray[np.uint32]  #: its size in bytes
    status: NDArray[np.uint16]  #: the three digits behind `NATS/1.0` in the header block, 0 when there are none
    sequence: NDArray[np.uint64]  #: stream sequence
    consumer_sequence: NDArray[np.uint64]  #: the how many-th delivery of the consumer it is
    timestamp: NDArray[np.int64]  #: nanoseconds since 1970 at which the message was stored
    pending: NDArray[np.uint64]  #: messages that are still to be delivered after this one

    def __init__(self, capacity: int) -> None:
        for name, kind in _TYPES.items():
            setattr(self, name, np.zeros(capacity, kind))

    def __len__(self) -> int:
        return len(self.sid)

    def select(self, rows: slice | NDArray[Any]) -> Self:
        """Returns some rows: views for a slice, copies for numbers of rows or a mask."""
        part = object.__new__(type(self))
        for name in _TYPES:
            setattr(part, name, getattr(self, name)[rows])
        return part


_TYPES: dict[str, type[np.generic]] = {
    "sid": np.int64,
    "subject_start": np.int64,
    "subject_size": np.uint32,
    "reply_start": np.int64,
    "reply_size": np.uint32,
    "header_start": np.int64,
    "header_size": np.uint32,
    "data_start": np.int64,
    "data_size": np.uint32,
    "status": np.uint16,
    "sequence": np.uint64,
    "consumer_sequence": np.uint64,
    "timestamp": np.int64,
    "pending": np.uint64,
}
