"""The table into which a parser puts PUB and HPUB frames: one row a frame, positions in the buffer it was fed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from stantools.format.envelope import Buffer

#: Columns of the table.
SUBJECT: Final = 0
SUBJECT_SIZE: Final = 1
REPLY: Final = 2
REPLY_SIZE: Final = 3
#: Bytes of headers in front of the payload, 0 for PUB.
HEADER_SIZE: Final = 4
#: Where headers (if any) and payload begin.
PAYLOAD: Final = 5
#: Bytes of headers and payload.
PAYLOAD_SIZE: Final = 6
#: What the route table knows under the subject, -1 for nothing.
ROUTE: Final = 7
WIDTH: Final = 8

Frames = npt.NDArray[np.int32]

#: Takes rows `begin` to `end` of a table. Buffer and table are good for the time of the call only.
Handler = Callable[[Buffer, Frames, int, int], None]


class Taker(Protocol):
    """Takes what came to several handlers at once."""

    def take_each(self, buffer: Buffer, frames: Frames, handlers: Sequence[Any], rows: Sequence[int]) -> None:
        """Takes rows of a table, one for each handler. Buffer and table are good for the time of the call only."""


#: A run of rows with the same route: route, first row, row behind the last.
Span = tuple[int, int, int]

#: The same with the bytes of their payloads.
Share = tuple[int, int, int, int]


@dataclass(slots=True)
class Payloads:
    """Payloads that lie somewhere in a buffer: what travels together instead of an object per message."""

    data: Buffer  #: The buffer. It does not change for as long as the block lives.
    starts: npt.NDArray[np.int64]  #: where each payload begins
    sizes: npt.NDArray[np.uint32]  #: bytes of each

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        """Iterates over copies of the payloads."""
        data, places = self.data, zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        return iter([bytes(data[start : start + size]) for start, size in places])

    def size(self, begin: int, end: int) -> int:
        """Returns the bytes of some payloads, at least one."""
        return int(self.sizes.item(begin) if end - begin == 1 else self.sizes[begin:end].sum())

    def payload(self, row: int) -> bytes:
        """Returns a copy of one payload."""
        start = int(self.starts[row])
        return bytes(memoryview(self.data)[start : start + int(self.sizes[row])])


class Stop(enum.IntEnum):
    """Why parsing ended."""

    END = 0  #: all bytes are used up
    FULL = 1  #: the table is full
    PARTIAL = 2  #: the frame is not complete yet
    OTHER = 3  #: another operation begins here
    MALFORMED = 4  #: these bytes cannot be a frame
    LINE_TOO_LONG = 5  #: the control line is longer than allowed
    PAYLOAD_TOO_LARGE = 6  #: headers and payload are larger than allowed


def rows(buffer: Buffer, frames: Frames, begin: int, end: int) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    """Iterates over rows of a table: subject, reply, header block, payload."""
    view = memoryview(buffer)
    for start, size, reply, reply_size, header, at, length, _ in frames[begin:end].tolist():
        yield (
            bytes(view[start : start + size]),
            bytes(view[reply : reply + reply_size]),
            bytes(view[at : at + header]),
            bytes(view[at + header : at + length]),
        )


def frame_table(rows: int) -> Frames:
    """Returns an empty table, C-contiguous."""
    return np.zeros((rows, WIDTH), np.int32)
