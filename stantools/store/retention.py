"""Removing the oldest messages of a channel that is being written, as the server does.

Facts: filestore specification, sections 5.4 and 5.5. Removal is logical: a position in the oldest slice moves on, and
files go only when all their messages are removed. The newest message stays under limits of count and bytes, and the
last slice's files stay in any case, so that the last sequence is still known after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stantools.format import index
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.store.limits import ChannelLimits
from stantools.store.mapping import mapped
from stantools.store.slicefile import remove_slice
from stantools.store.slicestate import SliceState
from stantools.store.slicewriter import SliceWriter

#: Index records that are looked at together.
_ROWS = 4096


@dataclass
class Removal:
    """What one call removed.

    Attributes:
        count: Messages.
        bytes: Bytes in the server's accounting.
        slices: Numbers of the slices whose files are gone.
        archived: Data file and index of the slices that were renamed for an archive script.
    """

    count: int = 0
    bytes: int = 0
    slices: list[int] = field(default_factory=list)
    archived: list[tuple[Path, Path]] = field(default_factory=list)


class Retention:
    """Keeps a channel within its limits.

    Args:
        writer: The channel's writer.
        limits: What the channel may hold.
        slices: Slices that were there before, by number, without the one that the writer goes on with.
        archive: Rename the files of removed slices to `.bak`.

    Attributes:
        limits: As given; may be changed.
        first_sequence: First sequence that is left; one more than the last if none is; 0 before the first message.
    """

    def __init__(
        self,
        writer: SliceWriter,
        limits: ChannelLimits,
        slices: Iterable[SliceState] = (),
        *,
        archive: bool = False,
    ) -> None:
        self.limits = limits
        self._writer = writer
        self._archive = archive
        self._slices = deque(slices)
        self._seen = len(writer.finished)
        # How much of the oldest slice is removed.
        self._row = self._row_bytes = 0
        self.first_sequence = 0
        self._catch_up()
        self._settle()

    @property
    def count(self) -> int:
        """Messages that are left."""
        return sum(each.count for each in self._slices) - self._row

    @property
    def bytes(self) -> int:
        """Bytes that are left, in the server's accounting."""
        return sum(each.bytes for each in self._slices) - self._row_bytes

    def enforce(self, now_ns: int) -> Removal:
        """Removes what the limits do not allow; to be called after messages were stored, and from time to time.

        Flushes the writer (without sync) where it must look into the index of the current slice.

        Args:
            now_ns: The present, for the age.

        Raises:
            StoreUnwritableError: Files cannot be written or removed.
            StoreUnreadableError: An index cannot be read.
        """
        removal = Removal()
        self._catch_up()
        self._drop_files(removal)
        count, size = self.count, self.bytes
        while self._slices and self._row < self._slices[0].count:
            gone = self._next(count, size, now_ns)
            if not gone:
                break
            count, size = count - gone[0], size - gone[1]
            removal.count, removal.bytes = removal.count + gone[0], removal.bytes + gone[1]
            self._row, self._row_bytes = self._row + gone[0], self._row_bytes + gone[1]
            self._drop_files(removal)
        self._settle()
        return removal

    def _catch_up(self) -> None:
        """Learns of the slices that the writer has begun since the last time."""
        known = self._slices[-1].number if self._slices else 0
        new = [*self._writer.finished[self._seen :], *([self._writer.current] if self._writer.current else [])]
        self._slices.extend(each for each in new if each.number > known)
        self._seen = len(self._writer.finished)

    def _next(self, count: int, size: int, now_ns: int) -> tuple[int, int] | None:
        """Tells how many of the next messages of the oldest slice go, and their bytes; None if the next one stays."""
        limits = self.limits
        over = count > 1 and (0 < limits.max_msgs < count or 0 < limits.max_bytes < size)
        if not over and not limits.max_age_ns:
            return None
        oldest = self._slices[0]
        if not over and self._row == 0 and now_ns - oldest.first_timestamp < limits.max_age_ns:
            return None
        if oldest is self._writer.current:
            self._writer.flush(sync=False)
        with mapped(self._writer.directory / f"msgs.{oldest.number}.idx") as buffer:
            rows = index.view(buffer, oldest.count)[self._row : self._row + _ROWS]
            costs = np.cumsum(rows["size"].astype(np.int64) + MESSAGE_OVERHEAD)
            goes = np.zeros(len(rows), bool)
            before = costs - np.diff(costs, prepend=0)
            left = count - np.arange(len(rows))
            if limits.max_msgs:
                goes |= left > limits.max_msgs
            if limits.max_bytes:
                goes |= size - before > limits.max_bytes
            goes &= left > 1
            if limits.max_age_ns:
                # By age goes whatever is old enough behind what went by the other limits.
                goes |= now_ns - rows["timestamp"] >= limits.max_age_ns
            stays = np.flatnonzero(~goes)
            gone = int(stays[0]) if len(stays) else len(rows)
        return (gone, int(costs[gone - 1])) if gone else None

    def _drop_files(self, removal: Removal) -> None:
        while len(self._slices) > 1 and self._row >= self._slices[0].count:
            oldest = self._slices.popleft()
            self._row = self._row_bytes = 0
            archived = remove_slice(self._writer.directory, oldest.number, archive=self._archive)
            removal.slices.append(oldest.number)
            if archived is not None:
                removal.archived.append(archived)

    def _settle(self) -> None:
        """Finds the first sequence that is left."""
        if not self._slices or not self._slices[-1].count:
            return
        oldest = self._slices[0]
        if self._row == 0:
            self.first_sequence = oldest.first_sequence
        elif self._row >= oldest.count:
            self.first_sequence = oldest.last_sequence + 1
        else:
            if oldest is self._writer.current:
                self._writer.flush(sync=False)
            with mapped(self._writer.directory / f"msgs.{oldest.number}.idx") as buffer:
                self.first_sequence = int(index.view(buffer, oldest.count)[self._row]["sequence"])
