"""The table of PUB and HPUB frames from a parser: one row per frame, with positions in the parsed buffer."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from stantools.format.envelope import Buffer

M = TypeVar("M")

#: columns of the table
SUBJECT: Final = 0
SUBJECT_SIZE: Final = 1
REPLY: Final = 2
REPLY_SIZE: Final = 3
#: bytes of headers before the payload, 0 for PUB
HEADER_SIZE: Final = 4
#: start of headers (if any) and payload
PAYLOAD: Final = 5
#: bytes of headers and payload
PAYLOAD_SIZE: Final = 6
#: number of the subject in the route table, -1 for none
ROUTE: Final = 7
WIDTH: Final = 8

Frames: TypeAlias = npt.NDArray[np.int32]

#: Takes rows `begin` to `end` of a table. Buffer and table are valid during the call only.
Handler = Callable[[Buffer, Frames, int, int], None]


class FrameHandler(Protocol):
    def take_each(self, buffer: Buffer, frames: Frames, handlers: Sequence[Any], rows: Sequence[int]) -> None:
        """Takes rows of a table, one for each handler. Buffer and table are valid during the call only."""


#: a run of rows with the same route: route, first row, row after the last
Span = tuple[int, int, int]

#: the same with the bytes of the payloads
Share = tuple[int, int, int, int]


class Payloads:
    """Payloads in a buffer, transported together instead of as an object per message."""

    __slots__ = ("data", "sizes", "starts")

    def __init__(self, data: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> None:
        self.data = data  #: the buffer, which does not change while the block is in use
        self.starts = starts  #: where each payload begins
        self.sizes = sizes  #: bytes of each

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        data, places = self.data, zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        return iter([bytes(data[start : start + size]) for start, size in places])

    def size(self, begin: int, end: int) -> int:
        """Returns the total bytes of a range of payloads, at least one."""
        return int(self.sizes.item(begin) if end - begin == 1 else self.sizes[begin:end].sum())

    def payload(self, row: int) -> bytes:
        start = int(self.starts[row])
        return bytes(memoryview(self.data)[start : start + int(self.sizes[row])])


class ParseStop(enum.IntEnum):
    """Reasons of the end of parsing."""

    END = 0  #: all bytes are parsed
    FULL = 1  #: the table is full
    PARTIAL = 2  #: the frame is not complete yet
    OTHER = 3  #: another operation begins here
    MALFORMED = 4  #: these bytes are not a frame
    LINE_TOO_LONG = 5  #: the control line is longer than allowed
    PAYLOAD_TOO_LARGE = 6  #: headers and payload are larger than allowed


def rows(buffer: Buffer, frames: Frames, begin: int, end: int) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    view = memoryview(buffer)
    for start, size, reply, reply_size, header, at, length, _ in frames[begin:end].tolist():
        yield (
            bytes(view[start : start + size]),
            bytes(view[reply : reply + reply_size]),
            bytes(view[at : at + header]),
            bytes(view[at + header : at + length]),
        )


def for_each(messages: Iterable[M], take: Callable[[M], None]) -> None:
    """Calls `take` with each message, then raises what failed, several exceptions as a group: none stops the others."""
    problems: list[Exception] = []
    for message in messages:
        try:
            take(message)
        except Exception as problem:
            problems.append(problem)
    if len(problems) > 1:
        raise ExceptionGroup(f"{len(problems)} messages", problems)
    if problems:
        raise problems[0]


def frame_table(rows: int) -> Frames:
    """Returns an empty table, C-contiguous."""
    return np.zeros((rows, WIDTH), np.int32)
