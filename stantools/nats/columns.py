"""Columns of delivered messages: one row per message, with offsets into the bytes from the socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FrameColumns:
    """Delivered messages, one row each (jetstream-api.md sections 2 and 9).

    The numbers of an acknowledgement subject are 0 if the reply subject is not one.
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

    sid: NDArray[np.int64]  #: number of the subscription; -1 if it is not a number of at most nine digits
    subject_start: NDArray[np.int64]
    subject_size: NDArray[np.uint32]  #: bytes
    reply_start: NDArray[np.int64]  #: 0 without a reply subject
    reply_size: NDArray[np.uint32]  #: bytes
    header_start: NDArray[np.int64]  #: 0 without headers
    header_size: NDArray[np.uint32]  #: bytes
    data_start: NDArray[np.int64]
    data_size: NDArray[np.uint32]  #: bytes
    status: NDArray[np.uint16]  #: the three digits after `NATS/1.0` in the header block, 0 if there are none
    sequence: NDArray[np.uint64]  #: stream sequence
    consumer_sequence: NDArray[np.uint64]  #: number of the delivery of the consumer
    timestamp: NDArray[np.int64]  #: time of storage, nanoseconds since 1970
    pending: NDArray[np.uint64]  #: number of messages to be delivered after this one

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
