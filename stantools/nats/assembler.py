"""From pieces of bytes, as a socket gives them, to batches of messages.

Pieces are collected in blocks of about a mebibyte, and frames are parsed where they lie. A batch is a view of a block;
it stays valid for as long as it is held. How many messages a batch has follows from how often batches are asked for:
who is busy gets bigger ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stantools.errors import StantoolsError
from stantools.nats import kernels
from stantools.nats.columns import FrameColumns
from stantools.nats.frames import PAYLOAD, PAYLOAD_SIZE, Stop, frame_table
from stantools.nats.operations import MAX_LINE
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
        self._sids: frozenset[int] = frozenset()
        self._frames = frame_table(_BLOCK_ROWS)
        self._full: list[Received] = []
        self._buffer: Buffer = memoryview(np.empty(_BLOCK_BYTES, np.uint8).data)
        self._parsed = self._filled = self._wanted = 0  # bytes
        self._columns = FrameColumns(_BLOCK_ROWS)
        self._rows = self._given = 0

    def want(self, sids: Iterable[int]) -> None:
        """Says which subscriptions' messages to collect, from the next frame on."""
        self._sids = frozenset(sids)

    @property
    def empty(self) -> bool:
        """Every byte that was put in was part of a whole frame."""
        return self._parsed == self._filled

    def put(self, data: bytes | memoryview) -> None:
        """Takes bytes from the socket; `advance` parses them."""
        if self._filled + len(data) > len(self._buffer):
            # It goes on in a new block, with what is left of an incomplete frame.
            rest = self._buffer[self._parsed : self._filled]
            self._cut()
            size = max(_BLOCK_BYTES, len(rest) + len(data), self._wanted + len(data))
            self._buffer = memoryview(np.empty(size, np.uint8).data)
            self._buffer[: len(rest)] = rest
            self._parsed, self._filled = 0, len(rest)
        self._buffer[self._filled : self._filled + len(data)] = data
        self._filled += len(data)

    def advance(self) -> bytes | None:
        """Parses on and returns frames that are not for the wanted subscriptions, None when bytes run out.

        Raises:
            FrameError: The next bytes are no frame.
        """
        others: list[bytes] = []
        while True:
            at = self._parsed
            _, self._parsed, stop, spans, self._wanted = kernels.parse_messages(
                self._buffer, at, self._filled, self._frames, MAX_LINE, -1
            )
            for sid, begin, end in spans:
                behind = int(self._frames[end - 1, PAYLOAD]) + int(self._frames[end - 1, PAYLOAD_SIZE]) + 2
                if sid in self._sids:
                    self._collect(begin, end)
                else:
                    others.append(bytes(self._buffer[at:behind]))
                at = behind
            if stop is Stop.OTHER:
                line = bytes(self._buffer[at : min(at + MAX_LINE, self._filled)])
                size = line.find(b"\n") + 1
                if size:
                    others.append(line[:size])
                    self._parsed += size
                    continue
                if len(line) < MAX_LINE:
                    break
            elif stop is Stop.FULL:
                continue
            elif stop in (Stop.END, Stop.PARTIAL):
                break
            if others:
                break  # what is wrong is said when they are dealt with
            found = bytes(self._buffer[at : min(at + 40, self._filled)])
            raise FrameError(f"the server sent {found!r}…, expected a message or a command of the NATS protocol")
        return b"".join(others) or None

    def _collect(self, begin: int, end: int) -> None:
        while begin < end:
            if self._rows == _BLOCK_ROWS:
                self._cut()
                self._columns = FrameColumns(_BLOCK_ROWS)
                self._rows = self._given = 0
            count = min(end - begin, _BLOCK_ROWS - self._rows)
            kernels.read_deliveries(self._buffer, self._frames, begin, begin + count, self._columns, self._rows)
            self._rows += count
            begin += count

    def take(self) -> list[tuple[int, Received]]:
        """Returns what was collected since the last time, by subscription."""
        self._cut()
        parts, self._full = self._full, []
        given: list[tuple[int, Received]] = []
        for part in parts:
            sids = part.columns.sid
            first = int(sids[0])
            if (sids == first).all():
                given.append((first, part))
            else:
                given += [(int(sid), part.select(sids == sid)) for sid in np.unique(sids)]
        return given

    def _cut(self) -> None:
        """Has what was collected so far be batches of their own."""
        if self._given < self._rows:
            self._full.append(Received(self._buffer, self._columns.select(slice(self._given, self._rows))))
            self._given = self._rows

    def clear(self) -> None:
        """Forgets an incomplete frame: its connection is gone."""
        self._filled = self._parsed
        self._wanted = 0
