"""Runs: stretches of good records, which is what is remembered of a slice once it was read."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stantools.format import gogo
from stantools.format.columns import MessageColumns
from stantools.format.layout import MESSAGE_OVERHEAD, RECORD_HEADER_SIZE, Flag
from stantools.format.proto import store_pb2 as pb
from stantools.store.directory import SliceFiles
from stantools.store.mapping import Buffer
from stantools.store.ranges import Ranges


@dataclass
class Run:
    """A stretch of good records of one slice with one subject and strictly increasing sequences.

    Attributes:
        slice: The slice it lies in.
        subject: The subject that all its records carry.
        start: Offset of its first record.
        end: Offset behind its last record.
        sequences: Which sequences it holds.
        count: How many records.
        bytes: Their size as the server accounts it (payload + 40 each, filestore.md section 5.1).
        first_timestamp: Of its first record, in nanoseconds.
        last_timestamp: Of its last record.
        payload: Bytes of the messages' data, as they are stored.
        largest: Bytes of the largest message's data.
        marks: Sequence and offset of a record here and there, rising, so that a part can be read by itself.
    """

    slice: SliceFiles
    subject: bytes
    start: int
    end: int
    sequences: Ranges
    count: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
    payload: int = 0
    largest: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Lowest sequence."""
        return self.sequences.first

    @property
    def last(self) -> int:
        """Highest sequence."""
        return self.sequences.last

    def place(self, sequence: int) -> int:
        """Returns the offset of a record, not far before the one with this sequence."""
        before = bisect_right(self.marks, sequence, key=lambda mark: mark[0])
        return self.marks[before - 1][1] if before else self.start


class RunBuilder:
    """Turns batches of good records into runs."""

    def __init__(self, files: SliceFiles, channel: bytes, buffer: Buffer) -> None:
        self._files = files
        self._channel = channel
        self._buffer = buffer
        self._pieces: list[Ranges] = []
        self._last = 0
        self._run: Run | None = None
        self.runs: list[Run] = []

    def add(self, columns: MessageColumns) -> None:
        """Adds a batch that follows the one before without a gap."""
        sequence = columns.sequence
        cuts = np.flatnonzero(sequence[1:] <= sequence[:-1]) + 1
        if int(np.bitwise_or.reduce(columns.flags)) & Flag.FOREIGN_SUBJECT:
            self._add_mixed(columns, set(cuts.tolist()))
            return
        bounds = [0, *cuts.tolist(), len(sequence)]
        for low, high in pairwise(bounds):
            self._extend(columns, low, high, self._channel)

    def _add_mixed(self, columns: MessageColumns, cuts: set[int]) -> None:
        low, current = 0, self._subject(columns, 0)
        for row in range(1, len(columns.sequence)):
            subject = self._subject(columns, row)
            if subject != current or row in cuts:
                self._extend(columns, low, row, current)
                low, current = row, subject
        self._extend(columns, low, len(columns.sequence), current)

    def _subject(self, columns: MessageColumns, row: int) -> bytes:
        if not int(columns.flags[row]) & Flag.FOREIGN_SUBJECT:
            return self._channel
        start = int(columns.offset[row]) + RECORD_HEADER_SIZE
        payload = self._buffer[start : start + int(columns.size[row])]
        return bytes(gogo.decode(pb.MsgProto, payload).subject)

    def _extend(self, columns: MessageColumns, low: int, high: int, subject: bytes) -> None:
        sequence = columns.sequence[low:high]
        piece = _contiguous(sequence)
        sizes = columns.size[low:high]
        total = int(sizes.sum(dtype=np.uint64)) + MESSAGE_OVERHEAD * len(sizes)
        payload = int(columns.data_size[low:high].sum(dtype=np.uint64))
        largest = int(columns.data_size[low:high].max())
        end = int(columns.offset[high - 1]) + RECORD_HEADER_SIZE + int(sizes[-1])
        run = self._run
        if run and run.subject == subject and run.end == int(columns.offset[low]) and int(sequence[0]) > self._last:
            run.end = end
            run.count += high - low
            run.bytes += total
            run.payload += payload
            run.largest = max(run.largest, largest)
            run.marks.append((int(sequence[0]), int(columns.offset[low])))
            run.last_timestamp = int(columns.timestamp[high - 1])
            self._pieces.append(piece)
        else:
            self.close()
            self._pieces = [piece]
            self._run = Run(
                self._files,
                subject,
                int(columns.offset[low]),
                end,
                piece,
                high - low,
                total,
                int(columns.timestamp[low]),
                int(columns.timestamp[high - 1]),
                payload,
                largest,
            )
        self._last = int(sequence[-1])

    def close(self) -> None:
        """Ends the current run."""
        if self._run is not None:
            self._run.sequences = Ranges.union(self._pieces)
            self.runs.append(self._run)
            self._run = None


def _contiguous(sequence: npt.NDArray[np.uint64]) -> Ranges:
    whole = int(sequence[-1]) - int(sequence[0]) + 1 == len(sequence)
    return Ranges(sequence[:1].copy(), sequence[-1:].copy()) if whole else Ranges.from_sequences(sequence)
