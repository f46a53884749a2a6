"""Reading the messages of a channel that is being written: from memory, else from files that a thread may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from broker.log import STREAMING
from broker.record_buffer import MessageRecordBuffer
from broker.stores.blocklist import EMPTY, BlockList
from broker.stores.file.reading import ReadAhead, SliceReader
from broker.stores.file.services import Services
from stantools.store.retention import Retention
from stantools.store.slicestate import SliceState
from stantools.store.slicewriter import SliceWriter

#: bytes of the latest messages that a channel keeps in memory
_RECENT_BYTES: Final = 4 << 20
#: bytes of new single messages after which the memory in use is reported again
_REPORT_BYTES: Final = 1024


class ChannelReader:
    """Reads the messages of a channel; `write` writes buffered ones and returns whether that worked.

    Attributes:
        reported_at: Bytes in `recent` from which on `use_memory` must be called.
        frozen: A thread or the kernel uses the files: stored messages are read in their state before.
    """

    def __init__(
        self,
        name: bytes,
        writer: SliceWriter,
        retention: Retention,
        services: Services,
        odd_paths: dict[int, Path],
        write: Callable[[], bool],
    ) -> None:
        self.recent = BlockList()
        self.reported_at = 0
        self.frozen = False
        self._frozen_state: SliceState | None = None
        self._writer = writer
        self._retention = retention
        self._cache = services.cache
        self._write = write
        self._slices = SliceReader(writer.directory, name, services.crc, services.open_files, odd_paths)
        self._ahead = ReadAhead(name, self._slices, retention, services.options.read_buffer_size)

    def freeze(self) -> None:
        """Keeps the state of the slices for readers, before a thread begins to write."""
        current = self._writer.current
        self._frozen_state, self.frozen = None if current is None else current.copy(), True

    def use_memory(self) -> None:
        """Reports the memory in use, after dropping the oldest messages beyond the channel's limit."""
        recent = self.recent
        if recent.size > _RECENT_BYTES:
            recent.shrink(_RECENT_BYTES)
        self.reported_at = recent.size + _REPORT_BYTES
        self._cache.use(self, recent.size + self._ahead.size)

    def drop_after(self, last: int) -> None:
        """Forgets messages after `last`, which are not stored after all, and the blocks read ahead."""
        self.recent.drop_after(last)
        self._ahead.clear()

    def forget(self) -> None:
        self.recent.clear()
        self._ahead.clear()
        self.reported_at = 0

    def close(self) -> None:
        self.forget()
        self._cache.leave(self)
        self._slices.release()

    def read(self, first: int, count: int, size: int) -> MessageRecordBuffer:
        """Returns messages in order, as `MessageStore.read` does; `first` must be a stored sequence."""
        recent = self.recent
        if recent.first and first >= recent.first:
            return recent.read(first, count, size)
        if (found := self._ahead.held(first, count, size)) is not None:
            return found
        if not self._write():
            # The next flush fails as well, and reports the error.
            return EMPTY
        held = self._ahead.size
        found = self._ahead.read(self._states(), first, count, size)
        if self._ahead.size != held:
            self.use_memory()
        return found

    def sequence_at(self, timestamp: int, first: int) -> int | None:
        """Returns the first sequence whose timestamp is not lower, at least `first`; None if there is none."""
        if not self._write():
            return first
        states = self._states()
        if not states:
            return first
        if states[-1].last_timestamp == timestamp:
            # The last message precedes others of the same time (streaming-protocol.md section 13, note 1).
            return states[-1].last_sequence
        for each in states:
            if each.last_timestamp >= timestamp:
                try:
                    return max(self._slices.row_of_time(each, timestamp), first)
                except OSError as error:
                    STREAMING.error("Unable to search for a time in %s: %s", self._writer.directory, error.strerror)
                    return first
        return None

    def _states(self) -> Sequence[SliceState]:
        """Returns all slices with messages, including unflushed ones; while frozen, their state before."""
        slices = self._retention.slices
        if self.frozen:
            shown = self._frozen_state
            return slices if shown is None else [*(each for each in slices if each.number != shown.number), shown]
        current = self._writer.current
        if current is None or (slices and slices[-1] is current):
            return slices
        known = slices[-1].number if slices else -1
        return [*slices, *(each for each in (*self._writer.finished, current) if each.number > known)]
