"""The messages of one channel, put aside until all of them are known to be in order; then they are a source to publish.

They lie in a temporary file without a name, so that nothing stays behind however the process ends. What is in memory is
one entry for some thousand messages.

    block: payloads, one behind the other | replies | pad to 8 | sequence, timestamp, ends of payloads, ends of replies
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnwritableError
from stantools.format.columns import MessageColumns
from stantools.streamfiles.batch import Batch

#: Rows, and payload bytes, of one block. A longer payload is a block of its own.
_ROWS = 4096
_BYTES = 4 << 20

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Texts:
    """Byte strings: the bytes from one end to the next."""

    content: _U8  #: all of them, and perhaps more
    ends: _I64  #: where each begins and ends; one more than there are

    def __len__(self) -> int:
        return len(self.ends) - 1

    def part(self, low: int, high: int) -> Texts:
        """Returns some of them, as views."""
        return Texts(self.content, self.ends[low : high + 1])

    def joined(self) -> _U8:
        """Returns their bytes, one behind the other."""
        return self.content[self.ends[0] : self.ends[-1]]

    def relative(self) -> _I64:
        """Returns their ends in these bytes."""
        relative: _I64 = self.ends - self.ends[0]
        return relative

    def row(self, row: int) -> bytes:
        """Returns one."""
        return self.content[self.ends[row] : self.ends[row + 1]].tobytes()


@dataclass(frozen=True)
class _Block:
    offset: int
    rows: int
    data_size: int
    reply_size: int
    first: int
    last: int

    @property
    def columns_at(self) -> int:
        return -(-(self.data_size + self.reply_size) // 8) * 8


class Spool:
    """Messages of one channel in rising order, as `Messages`. A context manager.

    Args:
        channel: The channel's name.
        subject: The subject that the messages get.
        folder: Where the temporary file is made; None for the system's place.

    Raises:
        StoreUnwritableError: The file cannot be made.
    """

    def __init__(self, channel: bytes, subject: bytes, folder: str | None = None) -> None:
        self.channel = channel
        self.subject = subject
        self.count = 0
        self._folder = folder
        self._blocks: list[_Block] = []
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="stantools-", buffering=0)  # noqa: SIM115
        except OSError as problem:
            raise self._unwritable(problem) from problem

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets the file go."""
        self._file.close()

    @property
    def first(self) -> int:
        """The first sequence, 0 if there is none."""
        return self._blocks[0].first if self._blocks else 0

    @property
    def last(self) -> int:
        """The last sequence, 0 if there is none."""
        return self._blocks[-1].last if self._blocks else 0

    def add(self, sequences: npt.NDArray[np.uint64], timestamps: _I64, data: Texts, replies: Texts) -> None:
        """Appends messages, whose sequences rise and are above those before.

        Args:
            sequences: One each.
            timestamps: Nanoseconds since 1970.
            data: Payloads.
            replies: Reply subjects, fit for headers, empty where there is none.

        Raises:
            StoreUnwritableError: There is no room for them.
        """
        low, rows = 0, len(sequences)
        while low < rows:
            most = int(np.searchsorted(data.ends[low + 1 :], data.ends[low] + _BYTES, "right"))
            high = low + min(max(most, 1), _ROWS, rows - low)
            self._write(sequences[low:high], timestamps[low:high], data.part(low, high), replies.part(low, high))
            low = high

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Batch]:
        """Yields the messages, see `Messages.read`; may be called any number of times."""
        until = self.last if until is None else until
        for block in self._blocks:
            if block.last > after and block.first <= until:
                batch = self._batch(block)
                low, high = np.searchsorted(batch.sequence, np.array([after, until], np.uint64), "right").tolist()
                if low < high:
                    yield batch.part(low, high)

    def _write(self, sequences: npt.NDArray[np.uint64], timestamps: _I64, data: Texts, replies: Texts) -> None:
        payload, answers = data.joined(), replies.joined()
        rows = len(sequences)
        block = _Block(self._end, rows, len(payload), len(answers), int(sequences[0]), int(sequences[-1]))
        pad = np.zeros(block.columns_at - len(payload) - len(answers), np.uint8)
        for part in (payload, answers, pad, sequences, timestamps, data.relative(), replies.relative()):
            self._append(np.ascontiguousarray(part).view(np.uint8))
        self._blocks.append(block)
        self.count += rows

    def _append(self, content: _U8) -> None:
        at, view = 0, content.data
        try:
            while at < len(view):
                at += os.write(self._file.fileno(), view[at:])
        except OSError as problem:
            raise self._unwritable(problem) from problem
        self._end += len(view)

    def _batch(self, block: _Block) -> Batch:
        rows, base = block.rows, block.columns_at
        size = base + (2 * rows + 2 * (rows + 1)) * 8
        content = os.pread(self._file.fileno(), size, block.offset)
        numbers = np.frombuffer(content, np.int64, offset=base)
        columns = MessageColumns(0)
        columns.capacity = rows
        columns.offset = np.zeros(rows, np.int64)
        columns.size = np.zeros(rows, np.uint32)
        columns.flags = np.zeros(rows, np.uint8)
        columns.sequence = numbers[:rows].view(np.uint64)
        columns.timestamp = numbers[rows : 2 * rows]
        ends, answers = numbers[2 * rows : 3 * rows + 1], numbers[3 * rows + 1 : 4 * rows + 2]
        columns.data_start, columns.data_size = ends[:-1], np.diff(ends).astype(np.uint32)
        columns.reply_start = answers[:-1] + block.data_size
        columns.reply_size = np.diff(answers).astype(np.uint32)
        return Batch(self.channel, self.subject, memoryview(content), columns, columns.sequence)

    def _unwritable(self, problem: OSError) -> StoreUnwritableError:
        place = Path(self._folder or tempfile.gettempdir())
        remedy = "name another directory with the option spoolDir"
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"the largest channel must fit there for a while; make room, or {remedy}"
        return StoreUnwritableError(f"{place}: messages cannot be put aside there: {problem.strerror}", remedy)
