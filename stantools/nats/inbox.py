"""Messages of a subscription as columns, in batches: for where a Python object for each would be too slow.

What a connection has read is copied, many messages at a time, into blocks of about a mebibyte. A batch is a view of a
block; it stays valid for as long as it is held. How many messages a batch has follows from how often batches are asked
for: who is busy gets bigger ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stantools.nats import kernels
from stantools.nats.columns import FrameColumns
from stantools.nats.errors import ConnectionLostError
from stantools.nats.frames import PAYLOAD, PAYLOAD_SIZE, SUBJECT

if TYPE_CHECKING:
    import numpy.typing as npt

    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of one subscription, in the order in which they came."""

    buffer: Buffer  #: what the columns point into
    columns: FrameColumns  #: one row a message

    def __len__(self) -> int:
        return len(self.columns)

    def subject(self, row: int) -> bytes:
        """Returns the subject of a row."""
        return self._part(self.columns.subject_start[row], self.columns.subject_size[row])

    def reply(self, row: int) -> bytes:
        """Returns the reply subject of a row, empty if it has none."""
        return self._part(self.columns.reply_start[row], self.columns.reply_size[row])

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


class Inbox:
    """Collects what comes for a subscription whose handler `take` is.

    Args:
        subject: What it is subscribed to.
    """

    def __init__(self, subject: bytes) -> None:
        self.subject = subject
        self._batches: deque[Received | None] = deque()
        self._waiting: asyncio.Future[None] | None = None
        # The block that is being filled: bytes, rows, and those of the rows that are in batches already.
        self._buffer = memoryview(b"")
        self._columns = FrameColumns(0)
        self._filled = self._rows = self._given = 0

    def take(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        """Takes messages that follow each other in a buffer; see `stantools.nats.frames.Handler`."""
        while begin < end:
            count = min(end - begin, len(self._columns) - self._rows)
            start = int(frames[begin, SUBJECT])
            last = begin + count - 1
            size = int(frames[last, PAYLOAD]) + int(frames[last, PAYLOAD_SIZE]) - start if count else 0
            if not count or self._filled + size > len(self._buffer):
                self._begin_block(size)
                continue
            at = self._filled
            self._buffer[at : at + size] = memoryview(buffer)[start : start + size]
            kernels.read_deliveries(self._buffer, frames, begin, begin + count, self._columns, self._rows, at - start)
            self._filled += size
            self._rows += count
            begin += count
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def _begin_block(self, size: int) -> None:
        self._cut()
        self._buffer = memoryview(np.empty(max(_BLOCK_BYTES, size), np.uint8).data)
        self._columns = FrameColumns(_BLOCK_ROWS)
        self._filled = self._rows = self._given = 0

    def _cut(self) -> None:
        """Has what was collected so far be a batch of its own."""
        if self._given < self._rows:
            self._batches.append(Received(self._buffer, self._columns.select(slice(self._given, self._rows))))
            self._given = self._rows

    def interrupt(self) -> None:
        """Notes that the connection broke: what was under way is gone."""
        self._cut()
        if not self._batches or self._batches[-1] is not None:
            self._batches.append(None)
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    async def receive(self, timeout: float | None) -> Received:
        """Returns what has come since the last call, and waits for something if nothing has.

        Args:
            timeout: Longest wait in seconds, None without end.

        Raises:
            TimeoutError: Nothing came.
            ConnectionLostError: The connection was lost since the last call; the inbox works again on the next one.
        """
        self._cut()
        if not self._batches:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with what is waited for.
                async with asyncio.timeout(timeout):
                    await self._waiting
            finally:
                self._waiting = None
            self._cut()
        batch = self._batches.popleft()
        if batch is None:
            raise ConnectionLostError("the connection to the server was lost", "run again")
        return batch
