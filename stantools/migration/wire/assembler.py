"""From pieces of bytes, as a socket gives them, to batches of messages.

Pieces are collected in blocks of about a mebibyte, and frames are parsed where they lie. A batch is a view of a block;
it stays valid for as long as it is held. How many messages a batch has follows from how often batches are asked for:
who is busy gets bigger ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stantools.errors import StantoolsError
from stantools.migration.wire import kernels
from stantools.migration.wire.columns import FrameColumns, FrameStop
from stantools.store.mapping import Buffer

_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 8192


class FrameError(StantoolsError):
    """The server sent something that is not the protocol."""


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of one subscription, in the order in which they came.

    Attributes:
        buffer: What the columns point into.
        columns: One row a message.
    """

    buffer: Buffer
    columns: FrameColumns

    def __len__(self) -> int:
        return len(self.columns)

    def subject(self, row: int) -> bytes:
        """Returns the subject of a row."""
        return self._part(self.columns.subject_start[row], self.columns.subject_size[row])

    def header(self, row: int) -> bytes:
        """Returns the header block of a row, empty if it has none."""
        return self._part(self.columns.header_start[row], self.columns.header_size[row])

    def data(self, row: int) -> bytes:
        """Returns the payload of a row."""
        return self._part(self.columns.data_start[row], self.columns.data_size[row])

    def select(self, rows: slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Received:
        """Returns some of the rows."""
        return Received(self.buffer, self.columns.select(rows))

    def _part(self, start: np.int64, size: np.uint32) -> bytes:
        return bytes(self.buffer[int(start) : int(start) + int(size)])


class Assembler:
    """Collects bytes and parses them. Knows nothing of sockets."""

    def __init__(self) -> None:
        self._sids = np.empty(0, np.int64)
        self._new_block(_BLOCK_BYTES)

    def _new_block(self, size: int) -> None:
        self._buffer: Buffer = memoryview(np.empty(size, np.uint8).data)
        self._columns = FrameColumns(_BLOCK_ROWS)
        self._parsed = self._filled = 0  # bytes
        self._rows = self._given = 0
        self._wanted = 0
        self._full: list[Received] = []

    def want(self, sids: Iterator[int] | list[int]) -> None:
        """Says which subscriptions' messages to collect, from the next frame on."""
        self._sids = np.array(sorted(sids), np.int64)

    @property
    def empty(self) -> bool:
        """Every byte that was put in was part of a whole frame."""
        return self._parsed == self._filled

    def put(self, data: bytes | memoryview) -> None:
        """Takes bytes from the socket; `advance` parses them."""
        if self._filled + len(data) > len(self._buffer):
            self._move_on(len(data))
        self._buffer[self._filled : self._filled + len(data)] = data
        self._filled += len(data)

    def _move_on(self, more: int) -> None:
        """Goes on in a new block, with what is left of an incomplete frame."""
        rest, wanted = self._buffer[self._parsed : self._filled], self._wanted
        full = [*self._full, *self._cut()]
        self._new_block(max(_BLOCK_BYTES, len(rest) + more, wanted + more))
        self._buffer[: len(rest)] = rest
        self._filled, self._full = len(rest), full

    def advance(self) -> bytes | None:
        """Parses on and returns a frame that is not for the wanted subscriptions, None when bytes run out.

        Raises:
            FrameError: The next bytes are no frame.
        """
        while True:
            self._rows, self._parsed, stop, length = kernels.parse_frames(
                self._buffer, self._parsed, self._filled, self._sids, self._columns, self._rows
            )
            if stop == FrameStop.FULL:
                self._move_on(0)
                continue
            if stop == FrameStop.OTHER:
                begin, self._parsed = self._parsed, self._parsed + length
                return bytes(self._buffer[begin : self._parsed])
            if stop == FrameStop.MALFORMED:
                found = bytes(self._buffer[self._parsed : min(self._parsed + 40, self._filled)])
                raise FrameError(f"the server sent {found!r}…, expected a message or a command of the NATS protocol")
            self._wanted = length
            return None

    def take(self) -> list[tuple[int, Received]]:
        """Returns what was collected since the last time, by subscription."""
        parts = [*self._full, *self._cut()]
        self._full = []
        given: list[tuple[int, Received]] = []
        for part in parts:
            sids = part.columns.sid
            first = int(sids[0])
            if (sids == first).all():
                given.append((first, part))
            else:
                given += [(int(sid), part.select(sids == sid)) for sid in np.unique(sids)]
        return given

    def _cut(self) -> list[Received]:
        if self._given == self._rows:
            return []
        part = Received(self._buffer, self._columns.select(slice(self._given, self._rows)))
        self._given = self._rows
        return [part]

    def clear(self) -> None:
        """Forgets an incomplete frame: its connection is gone."""
        self._filled = self._parsed
        self._wanted = 0
