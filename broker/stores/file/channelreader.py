"""Reading the messages of a channel that is being written: from memory, else from files, which a thread may be at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from broker.log import STREAMING
from broker.record_buffer import MessageRecordBuffer
from broker.stores.blocklist import BlockList, empty
from broker.stores.file.reading import ReadAhead, SliceReader
from broker.stores.file.services import Services
from stantools.store.retention import Retention
from stantools.store.slicestate import SliceState
from stantools.store.slicewriter import SliceWriter

#: Bytes of the messages stored last that a channel keeps in memory.
_RECENT_BYTES: Final = 4 << 20
#: Bytes of messages that came alone which are put into memory before that is said.
_GRAIN: Final = 1024


class ChannelReader:
    """Reads the messages of a channel.

    Args:
        name: The channel.
        writer: What writes its slices.
        retention: Which slices there are.
        services: What all channels share.
        odd_paths: Data files whose names are not what their numbers say.
        write: Writes what is only gathered. Returns whether that worked.

    Attributes:
        recent: The messages stored last.
        told: Bytes in `recent` from which on `use_memory` is to be called.
        frozen: A thread or the kernel is at the files: what was stored before is read as it was.
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
        self.told = 0
        self.frozen = False
        self._shown: SliceState | None = None
        self._writer = writer
        self._retention = retention
        self._cache = services.cache
        self._write = write
        self._slices = SliceReader(writer.directory, name, services.crc, services.open_files, odd_paths)
        self._ahead = ReadAhead(name, self._slices, retention, services.options.read_buffer_size)

    def freeze(self) -> None:
        """Takes note of what there is before a thread begins to write."""
        current = self._writer.current
        self._shown, self.frozen = None if current is None else current.copy(), True

    def use_memory(self) -> None:
        """Says how much memory is taken, after the oldest messages were forgotten if that is too much."""
        recent = self.recent
        if recent.size > _RECENT_BYTES:
            recent.shrink(_RECENT_BYTES)
        self.told = recent.size + _GRAIN
        self._cache.use(self, recent.size + self._ahead.size)

    def drop_after(self, last: int) -> None:
        """Forgets what is not stored after all: the messages behind the last one, and all that was read."""
        self.recent.drop_after(last)
        self._ahead.clear()

    def forget(self) -> None:
        """Forgets messages in memory."""
        self.recent.clear()
        self._ahead.clear()
        self.told = 0

    def close(self) -> None:
        """Forgets everything, and closes its files."""
        self.forget()
        self._cache.leave(self)
        self._slices.release()

    def read(self, first: int, count: int, size: int) -> MessageRecordBuffer:
        """Returns messages in order, from one on that is there; see `MessageStore.read`."""
        recent = self.recent
        if recent.first and first >= recent.first:
            return recent.read(first, count, size)
        if (found := self._ahead.held(first, count, size)) is not None:
            return found
        if not self._write():
            # The next flush meets the same trouble and reports it.
            return empty()
        held = self._ahead.size
        found = self._ahead.read(self._states(), first, count, size)
        if self._ahead.size != held:
            self.use_memory()
        return found

    def sequence_at(self, timestamp: int, first: int) -> int | None:
        """Returns the first sequence whose timestamp is not lower, at least `first`; None if it is behind the last."""
        if not self._write():
            return first
        states = self._states()
        if not states:
            return first
        if states[-1].last_timestamp == timestamp:
            # The last message comes before others of the same time (streaming-protocol.md section 13, note 1).
            return states[-1].last_sequence
        for each in states:
            if each.last_timestamp >= timestamp:
                try:
                    return max(self._slices.row_of_time(each, timestamp), first)
                except OSError as error:
                    STREAMING.error("Unable to look for a time in %s: %s", self._writer.directory, error.strerror)
                    return first
        return None

    def _states(self) -> Sequence[SliceState]:
        """Returns all slices that have messages, also those begun since the last flush, unless a thread is at it."""
        slices = self._retention.slices
        if self.frozen:
            shown = self._shown
            return slices if shown is None else [*(each for each in slices if each.number != shown.number), shown]
        current = self._writer.current
        if current is None or (slices and slices[-1] is current):
            return slices
        known = slices[-1].number if slices else -1
        return [*slices, *(each for each in (*self._writer.finished, current) if each.number > known)]
