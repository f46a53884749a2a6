"""Messages of a subscription as columns, in batches: where a Python object per message would be too slow.

The bytes of a connection are copied, many messages at a time, into blocks of about a mebibyte. A batch is a view of
a block; it stays valid while it is in use. The size of a batch depends on the rate of the caller's requests: a busy
caller gets bigger ones.
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
    """Messages of one subscription, in order of arrival."""

    buffer: Buffer
    columns: FrameColumns  #: one row per message

    def __len__(self) -> int:
        return len(self.columns)

    def subject(self, row: int) -> bytes:
        return self._part(self.columns.subject_start[row], self.columns.subject_size[row])

    def reply(self, row: int) -> bytes:
        return self._part(self.columns.reply_start[row], self.columns.reply_size[row])

    def header(self, row: int) -> bytes:
        return self._part(self.columns.header_start[row], self.columns.header_size[row])

    def data(self, row: int) -> bytes:
        return self._part(self.columns.data_start[row], self.columns.data_size[row])

    def select(self, rows: slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Received:
        return Received(self.buffer, self.columns.select(rows))

    def _part(self, start: np.int64, size: np.uint32) -> bytes:
        return bytes(self.buffer[int(start) : int(start) + int(size)])


class Inbox:
    """Collects the messages of a subscription to `subject` whose handler is `take`."""

    def __init__(self, subject: bytes) -> None:
        self.subject = subject
        self._batches: deque[Received | None] = deque()
        self._waiting: asyncio.Future[None] | None = None
        # The block being filled: its bytes, its rows, and the rows that are in batches already.
        self._buffer = memoryview(b"")
        self._columns = FrameColumns(0)
        self._filled = self._rows = self._delivered = 0

    def take(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        """Takes consecutive messages of a buffer; see `stantools.nats.frames.Handler`."""
        while begin < end:
            count = min(end - begin, len(self._columns) - self._rows)
            start = int(frames[begin, SUBJECT])
            last = begin + count - 1
            size = int(frames[last, PAYLOAD]) + int(frames[last, PAYLOAD_SIZE]) - start if count else 0
            if not count or self._filled + size > len(self._buffer):
                self._finish_batch()
                self._buffer = memoryview(np.empty(max(_BLOCK_BYTES, size), np.uint8).data)
                self._columns = FrameColumns(_BLOCK_ROWS)
                self._filled = self._rows = self._delivered = 0
                continue
            at = self._filled
            self._buffer[at : at + size] = memoryview(buffer)[start : start + size]
            kernels.read_deliveries(self._buffer, frames, begin, begin + count, self._columns, self._rows, at - start)
            self._filled += size
            self._rows += count
            begin += count
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def _finish_batch(self) -> None:
        """Makes the messages collected so far a batch of their own."""
        if self._delivered < self._rows:
            self._batches.append(Received(self._buffer, self._columns.select(slice(self._delivered, self._rows))))
            self._delivered = self._rows

    def interrupt(self) -> None:
        """Records that the connection broke: messages in transit are lost."""
        self._finish_batch()
        if not self._batches or self._batches[-1] is not None:
            self._batches.append(None)
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    async def receive(self, timeout: float | None) -> Received:
        """Returns the messages since the last call, and waits for one if there are none."""
        self._finish_batch()
        if not self._batches:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                # Not `wait_for`: in Python 3.11 it loses a cancellation that coincides with the result.
                async with asyncio.timeout(timeout):
                    await self._waiting
            finally:
                self._waiting = None
            self._finish_batch()
        batch = self._batches.popleft()
        if batch is None:
            raise ConnectionLostError("the connection to the server was lost", "run again")
        return batch
