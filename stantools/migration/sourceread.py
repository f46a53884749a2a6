"""Reading again what a salvage plan takes: the good records of a run, as columns that point into the mapped file.

The plan has seen every byte, so nothing here goes on behind damage: whatever is not as it was planned means that the
store has changed since. CRCs are checked again, because what is read here is what is believed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE, Flag
from stantools.inspection.runs import Run
from stantools.recovery.salvage.model import Copy, Rewrite, Step
from stantools.store.mapping import WINDOW, Buffer, Window, mapped
from stantools.store.ranges import Ranges
from stantools.store.reading import BATCH_ROWS

#: Bytes of records in one batch, at most; a longer record comes alone.
BATCH_BYTES = WINDOW // 2
#: The highest sequence there can be.
MAX_SEQUENCE = 2**64 - 1

#: Messages, and what their positions point into.
Piece = tuple[Buffer, MessageColumns]


class StepReader:
    """Reads steps of a plan.

    Args:
        crc: The store's CRC.
        batch_bytes: Bytes of records in one batch.
        batch_rows: Messages in one batch.
        check_crc: Check the CRC of every record again.
    """

    def __init__(
        self, crc: Crc, *, batch_bytes: int = BATCH_BYTES, batch_rows: int = BATCH_ROWS, check_crc: bool = True
    ) -> None:
        self._crc = crc
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._check_crc = check_crc
        self._columns = MessageColumns(0)

    def read(self, step: Step, after: int = 0, until: int = MAX_SEQUENCE) -> Iterator[Piece]:
        """Gives the messages of a step with sequences above `after`, up to `until`, in rising order.

        Yields:
            A buffer and columns, which are valid until the next ones are asked for.

        Raises:
            StoreUnreadableError: The file cannot be read any more, or is not as it was planned.
        """
        if isinstance(step, Rewrite):
            if after < step.sequence <= until:
                yield rewritten(step)
            return
        wanted = step.sequences
        if not wanted or wanted.last <= after or wanted.first > until:
            return
        if after >= wanted.first or until < wanted.last:
            wanted = wanted & Ranges.of([(after + 1, until)])
        if wanted:
            yield from self._copied(step, wanted)

    def _copied(self, step: Copy, wanted: Ranges) -> Iterator[Piece]:
        run, count, found = step.run, wanted.count(), 0
        path, whole = _path(run), count == step.run.count
        if self._columns.capacity < min(run.count, self._batch_rows):
            self._columns = MessageColumns(min(run.count, self._batch_rows))
        with mapped(path, sequential=True) as data:
            if len(data) < run.end:
                raise _changed(path, len(data))
            last = 0
            for batch in self._records(data, run, run.start if whole else run.place(wanted.first)):
                sequence = batch.sequence
                if int(sequence[0]) <= last or bool((sequence[1:] <= sequence[:-1]).any()):
                    raise _changed(path, int(batch.offset[0]))
                last = int(sequence[-1])
                part = batch if whole else _among(batch, wanted)
                if part.capacity:
                    found += part.capacity
                    yield data, part
                if last >= wanted.last:
                    break
            if found != count or (whole and last != wanted.last):
                raise _changed(path, run.end)

    def _records(self, data: Buffer, run: Run, at: int) -> Iterator[MessageColumns]:
        """Gives the records of a run from one of them on."""
        path, window = _path(run), Window(data, 2 * self._batch_bytes)
        while at < run.end:
            window.reach(at)
            rows, end = self._scan(data, run, at, min(at + self._batch_bytes, run.end))
            if not rows and at + RECORD_HEADER_SIZE <= run.end:
                # A record that is longer than a batch.
                size = RECORD_HEADER.unpack_from(data, at)[0]
                rows, end = self._scan(data, run, at, min(at + RECORD_HEADER_SIZE + size, run.end))
            batch = self._columns.take(rows)
            if not rows or int(np.bitwise_or.reduce(batch.flags)) & Flag.FOREIGN_SUBJECT:
                raise _changed(path, at)
            yield batch
            at = end

    def _scan(self, data: Buffer, run: Run, at: int, limit: int) -> tuple[int, int]:
        rows, end, _ = kernels.scan_messages(data, at, limit, self._crc, self._check_crc, run.subject, self._columns)
        return rows, end


def _path(run: Run) -> Path:
    assert run.slice.data is not None
    return run.slice.data


def _changed(path: Path, offset: int) -> StoreUnreadableError:
    return StoreUnreadableError(
        f"{path}: is not as it was when it was scanned, at or before offset {offset}",
        "make sure that no server uses the store and that its disk is sound, and run again",
    )


def _among(batch: MessageColumns, wanted: Ranges) -> MessageColumns:
    """Returns the rows of a batch, in rising order, whose sequences are wanted."""
    low = int(np.searchsorted(batch.sequence, np.uint64(wanted.first)))
    high = int(np.searchsorted(batch.sequence, np.uint64(wanted.last), side="right"))
    part = batch.part(low, high)
    if high - low > 1:
        chosen = wanted.select(part.sequence)
        if not chosen.all():
            return part.pick(chosen)
    return part


def rewritten(step: Rewrite) -> Piece:
    """Returns a message whose record header was damaged."""
    message = step.repair.message
    columns = MessageColumns(1)
    columns.offset[0], columns.size[0] = step.repair.start - RECORD_HEADER_SIZE, step.repair.size
    columns.sequence[0], columns.timestamp[0] = message.sequence, message.timestamp
    columns.data_start[0], columns.data_size[0] = 0, len(message.data)
    columns.reply_start[0], columns.reply_size[0] = len(message.data) if message.reply else 0, len(message.reply)
    columns.flags[0] = Flag.HAS_REPLY if message.reply else 0
    return memoryview(message.data + message.reply), columns
