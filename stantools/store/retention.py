"""Removal of the oldest messages of a channel that is being written, as the server does it.

Facts: filestore.md sections 5.4 and 5.5. Removal is logical: a position in the oldest slice advances, and files are
deleted only when all their messages are removed. The newest message stays under limits of count and bytes, and the
last slice's files always stay, so that the last sequence is still known after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stantools.format.columns import MessageRecords
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.store.indexes import SliceIndex
from stantools.store.limits import ChannelLimits
from stantools.store.mapping import mapped
from stantools.store.slicestate import SliceState
from stantools.store.slicewriter import SliceWriter

#: index records per read
_ROWS = 4096


@dataclass(frozen=True)
class _IndexRows:
    number: int  #: number of the slice
    first: int  #: row of the first record
    #: cumulative bytes of the messages up to each row, in the server's accounting
    costs: NDArray[np.int64]
    records: MessageRecords


class Retention:
    """Keeps a channel within its limits.

    `slices` are those before the writer's current one; the writer's list of finished slices is emptied. `drop` is
    called with the number of each slice whose files must be deleted, in order. `first_sequence` is the first
    sequence that is left; one more than the last if none is; 0 before the first message.
    """

    def __init__(
        self,
        writer: SliceWriter,
        limits: ChannelLimits,
        slices: Iterable[SliceState] = (),
        *,
        drop: Callable[[int], None],
    ) -> None:
        self.limits = limits
        self._writer = writer
        self._drop = drop
        self.slices = deque(slices)  #: all slices, the oldest first
        # The removed part of the oldest slice, and the totals of all but the last slice.
        self._row = self._row_bytes = 0
        self._before = [sum(each.count for each in self.slices), sum(each.bytes for each in self.slices)]
        if self.slices:
            self._count_before(self.slices[-1], -1)
        self._rows: _IndexRows | None = None
        self.first_sequence = self.first_timestamp = 0
        self.catch_up()
        self._find_first()

    @property
    def count(self) -> int:
        return self._before[0] + self.slices[-1].count - self._row if self.slices else 0

    @property
    def bytes(self) -> int:
        return self._before[1] + self.slices[-1].bytes - self._row_bytes if self.slices else 0

    @property
    def removed(self) -> int:
        """Number of removed messages at the start of the oldest slice."""
        return self._row

    def enforce(self, now_ns: int) -> int:
        """Removes the messages beyond the limits, and returns their number; call it after writes and periodically.

        `now_ns` is the present, for the age limit. Flushes the writer (without sync) if it must read the index of
        the current slice. Raises StoreUnwritableError if files cannot be written, and StoreUnreadableError if an
        index cannot be read.
        """
        removed = 0
        self.catch_up()
        try:
            self._drop_files()
            while self.slices and self._row < self.slices[0].count:
                gone, size = self._next_removal(now_ns)
                if not gone:
                    break
                removed += gone
                self._row, self._row_bytes = self._row + gone, self._row_bytes + size
                self._drop_files()
        finally:
            self._find_first()
        return removed

    def _count_before(self, state: SliceState, sign: int) -> None:
        self._before[0] += sign * state.count
        self._before[1] += sign * state.bytes

    def catch_up(self) -> None:
        """Adds the slices that the writer has begun since the last call."""
        known = self.slices[-1].number if self.slices else None
        new = [*self._writer.finished, *([self._writer.current] if self._writer.current else [])]
        for each in new:
            if known is None or each.number > known:
                if self.slices:
                    self._count_before(self.slices[-1], 1)
                self.slices.append(each)
        self._writer.finished.clear()

    def _next_removal(self, now_ns: int) -> tuple[int, int]:
        """Returns the number of messages to remove next from the oldest slice, and their bytes."""
        limits, count, size = self.limits, self.count, self.bytes
        over = count > 1 and (0 < limits.max_msgs < count or 0 < limits.max_bytes < size)
        age = limits.max_age_ns
        if not over and not age:
            return 0, 0
        oldest = self.slices[0]
        if not over and self._row == 0 and now_ns - oldest.first_timestamp < age:
            return 0, 0
        rows = self._load()
        at = self._row - rows.first
        spent = int(rows.costs[at - 1]) if at else 0
        gone = limits.removes(count, size, rows.costs[at:], rows.records.timestamp[at:], now_ns, spent)
        return (gone, int(rows.costs[at + gone - 1]) - spent) if gone else (0, 0)

    def _load(self) -> _IndexRows:
        """Returns rows of the oldest slice's index, with the first remaining message among them."""
        oldest, rows = self.slices[0], self._rows
        if rows is None or rows.number != oldest.number or self._row >= rows.first + len(rows.costs):
            if oldest is self._writer.current:
                self._writer.flush(sync=False)
            with mapped(self._writer.directory / f"msgs.{oldest.number}.idx") as buffer:
                index = SliceIndex(buffer, oldest.count)
                records = index.rows(self._row, self._row + _ROWS).copied()
            costs = np.cumsum(records.size.astype(np.int64) + MESSAGE_OVERHEAD)
            self._rows = rows = _IndexRows(oldest.number, self._row, costs, records)
        return rows

    def _drop_files(self) -> None:
        while len(self.slices) > 1 and self._row >= self.slices[0].count:
            oldest = self.slices.popleft()
            self._drop(oldest.number)
            self._count_before(oldest, -1)
            self._row = self._row_bytes = 0

    def _find_first(self) -> None:
        """Finds the first remaining message."""
        if not self.slices or not self.slices[-1].count:
            return
        oldest = self.slices[0]
        if self._row == 0:
            self.first_sequence, self.first_timestamp = oldest.first_sequence, oldest.first_timestamp
        elif self._row >= oldest.count:
            self.first_sequence, self.first_timestamp = oldest.last_sequence + 1, 0
        else:
            rows = self._load()
            at = self._row - rows.first
            self.first_sequence, self.first_timestamp = int(rows.records.sequence[at]), int(rows.records.timestamp[at])
