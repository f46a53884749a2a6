"""The messages of a channel in a file store.

Appended messages are written at the next flush. If a write fails before that, the files are cut back to their state
after the previous flush: refused messages are not in them, acknowledged ones are.

Where flushes must be durable, or the channel or its next slice does not exist yet, a thread writes and syncs. The
thread owns the files while the flush is under way (`message_flush`): messages appended meanwhile are gathered for the
next flush, and stored messages are read in their state before. `_NEXT` has the states of the log and the legal
transitions. In every state a failed write may still have to be undone (`MarkState`), before the next one.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from broker.log import STREAMING
from broker.record_buffer import MessageRecordBuffer, Record
from broker.stores.blocklist import EMPTY
from broker.stores.file.channelreader import ChannelReader
from broker.stores.file.directories import READY, ChannelDirectory
from broker.stores.file.message_flush import BROKEN, OUTDATED, FlushMark, MessageFlush, append_run, write
from broker.stores.file.services import Services
from broker.stores.interface import Flush, FlushOutcome, StorageError, first_sequence
from broker.stores.limits import limits_reached
from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.store.directory import SUBS_FILE
from stantools.store.limits import ChannelLimits
from stantools.store.retention import Retention
from stantools.store.slicestate import SliceState
from stantools.store.slicewriter import SliceWriter, WriteOptions


class MessageLogState(enum.Enum):
    IDLE = enum.auto()  #: all messages are flushed
    BUFFERING = enum.auto()  #: messages wait in the buffer of the writer, for a flush by the loop
    GATHERING = enum.auto()  #: messages wait in memory, for a flush by a thread or the kernel
    QUEUED = enum.auto()  #: the flush of a new channel waits for its turn
    DELAYED = enum.auto()  #: a flush waits for more messages
    FLUSHING = enum.auto()  #: a thread or the kernel stores messages; new ones are gathered

    # States are looked up for each commit; the hash of an enumeration is computed in Python otherwise.
    __hash__ = object.__hash__


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
IDLE: Final = MessageLogState.IDLE
BUFFERING: Final = MessageLogState.BUFFERING
GATHERING: Final = MessageLogState.GATHERING
QUEUED: Final = MessageLogState.QUEUED
DELAYED: Final = MessageLogState.DELAYED
FLUSHING: Final = MessageLogState.FLUSHING
_NEXT: Final = {
    IDLE: (BUFFERING, GATHERING, QUEUED),
    BUFFERING: (IDLE, GATHERING),
    GATHERING: (QUEUED, DELAYED, FLUSHING),
    QUEUED: (FLUSHING,),
    DELAYED: (FLUSHING,),
    # BUFFERING if the loop has written the messages after all
    FLUSHING: (IDLE, GATHERING, BUFFERING),
}


@dataclass(frozen=True, slots=True)
class FoundSlices:
    """The slices of a channel at recovery."""

    slices: list[SliceState] = field(default_factory=list)  #: those with messages, by number
    current: SliceState | None = None  #: the last of them, if the writer can continue it; None begins a new one
    last_number: int = 0  #: the next slice gets a higher number than this
    last_sequence: int = 0  #: last sequence of the channel
    odd_paths: dict[int, Path] = field(default_factory=dict)  #: data files that are not named `msgs.N.dat`, by number


_NOTHING_FOUND = FoundSlices()


class FileMessages:
    """The messages of a channel in slices. Each counts with the size of its encoded form plus 40 bytes."""

    # With more than thirty attributes each instance would get a dictionary of its own; a store may have many channels.
    __slots__ = (
        "_counts",
        "_directory",
        "_flush",
        "_gathered",
        "_gathered_bytes",
        "_gathered_count",
        "_last_was_single",
        "_limits_logged",
        "_mark",
        "_name",
        "_name_syncs",
        "_next",
        "_recent",
        "_removal_failed",
        "_retention",
        "_services",
        "_state",
        "_sync",
        "_synced",
        "_under_way",
        "_writer",
        "_written",
        "bytes",
        "count",
        "files",
        "first",
        "last",
        "limits",
        "place",
        "reader",
    )

    def __init__(
        self,
        directory: ChannelDirectory,
        name: bytes,
        limits: ChannelLimits,
        services: Services,
        found: FoundSlices | None = None,
    ) -> None:
        found = found or _NOTHING_FOUND
        options = services.options
        self.limits = limits
        self.files = 0
        self.place = directory
        self._directory = directory.path
        self._name = name
        self._services = services
        self._sync = options.sync
        self._name_syncs = (
            0 if found.last_number else 2
        )  # syncs that still include the directory's name, where flushes are not durable
        self._state = IDLE
        self._writer = SliceWriter(
            self._directory,
            name,
            services.crc,
            WriteOptions(
                options.slices.for_channel(limits),
                sync=options.sync,
                buffer_size=options.buffer_size,
                first_alone=True,
                clock=services.wall,
            ),
            last_number=found.last_number,
            last_sequence=found.last_sequence,
            current=found.current,
        )
        old = [each for each in found.slices if each is not found.current]
        self._retention = Retention(self._writer, limits, old, drop=directory.slices.append)
        self.reader = ChannelReader(
            name, self._writer, self._retention, services, found.odd_paths, self._write_buffered
        )
        self._recent = self.reader.recent
        self._mark = FlushMark(self._writer)
        self._flush = MessageFlush(self._writer, directory, services, self._mark, self._stored)
        self._limits_logged = self._removal_failed = False
        self._last_was_single = False  # the last flush had a single message; after larger ones a block is expected
        self._gathered: list[MessageRecordBuffer] = []
        self._gathered_count = self._gathered_bytes = 0
        self._under_way: Flush | None = None
        self._next: Flush | None = None
        self._counts = 0, 0
        # Numbers of the first slice to sync now, and in the next call: an earlier sync may still be under way.
        self._synced = self._written = max(found.last_number, 1)
        self.last = self._writer.last_sequence
        self._update_totals()
        self._set_mark()

    def _update_totals(self) -> None:
        retention = self._retention
        self.first = retention.first_sequence
        self.count = retention.count + self._gathered_count
        self.bytes = retention.bytes + self._gathered_bytes

    def _advance(self, state: MessageLogState) -> None:
        assert state in _NEXT[self._state], f"{self._state} does not become {state}"
        self._state = state

    # Storing.

    def append(self, records: MessageRecordBuffer) -> None:
        count = len(records.sizes)
        if not count:
            return
        first = self.last + 1
        state = self._state
        if state is IDLE:
            state = GATHERING if self._sync or self.place.state is not READY else BUFFERING
        if state is not BUFFERING:
            first = first_sequence(records, self.last)
        else:
            if self._mark.state is BROKEN:
                self._mark.repair()
            elif self._mark.state is OUTDATED:
                self._set_mark()
            try:
                # The compiled kernel alone checks a block that follows the last message in the same slice.
                if not append_run(self._writer, records):
                    first = first_sequence(records, self.last)
                    if self._services.at_once:
                        write(self._writer, records)
                    else:
                        # A thread begins the next slice, as creating files may take long.
                        if self._state is BUFFERING:
                            self._writer.flush()
                        state = GATHERING
            except (StoreUnwritableError, ValueError) as error:
                self._mark.roll_back()
                raise self._reset_to_mark(error) from error
        if state is not self._state:
            self._advance(state)
        self.files = 2
        self._services.open_files.touch(self)
        size = self._recent.append(records) + count * MESSAGE_OVERHEAD
        if state is not BUFFERING:
            self._gathered.append(records)
            self._gathered_count += count
            self._gathered_bytes += size
        self.bytes += size
        if not self.count:
            self.first = first
        self.count += count
        self.last = first + count - 1
        self.reader.use_memory()

    def add(self, record: Record) -> bool:
        """Writes a single message, where flushes need not be durable."""
        if self._state is not IDLE or self._mark.state is BROKEN or not (self._last_was_single and self.count):
            return False
        data, sequence, timestamp = record
        try:
            if not self._writer.store_record(data, sequence, timestamp):
                return False
        except StoreUnwritableError as error:
            self._set_mark()
            self._mark.roll_back()
            self._reset_to_mark(error)
            return False
        services, recent, reader, limits = self._services, self._recent, self.reader, self.limits
        self.bytes += recent.add(record) + MESSAGE_OVERHEAD
        self.count += 1
        self.last = sequence
        self._mark.outdate()
        if self.files != 2 or not services.open_files.few:
            self.files = 2
            services.open_files.touch(self)
        if recent.size >= reader.reported_at:
            reader.use_memory()
        services.unsynced.add(self)
        if self._removal_failed or self.count > limits.max_msgs > 0 or self.bytes > limits.max_bytes > 0:
            self._keep_within_limits()
        return True

    def flush(self) -> Flush | None:
        state = self._state
        if state is IDLE and self.place.state is READY:
            self._mark.repair()
            if self._removal_failed:
                self._keep_within_limits()
            return None
        if state is not BUFFERING:
            if self._under_way is None:
                self._begin(Flush())
            elif state is DELAYED:
                self._begin(self._under_way)
            elif state is FLUSHING and self._gathered:
                self._next = self._next or Flush()
            if self._state is not BUFFERING:
                return self._next or self._under_way
        try:
            self._writer.flush()
        except StoreUnwritableError as error:
            self._mark.roll_back()
            raise self._reset_to_mark(error) from error
        self._advance(IDLE)
        self._last_was_single = self.last - self._mark.totals[1] == 1
        self._services.unsynced.add(self)
        self._keep_within_limits()
        return None

    def _begin(self, flush: Flush, *, at_once: bool = False) -> None:
        """Writes and syncs the gathered messages: the kernel syncs, or a thread does both.

        On a slow disk the flush waits a moment for as many messages as in the previous flushes: clients that got
        their acknowledgements together send their next messages soon. Otherwise one message would be synced alone,
        and all others after it. A new channel waits for its turn and stores the messages gathered until then.
        """
        disk = self._services.disk
        few = self._sync and disk.pause > 0 and self._gathered_count < max(self._counts)
        if self._state is not DELAYED:
            self._under_way, self._next = flush, None
            self.reader.freeze()
            if self.place.state is not READY:
                self._advance(QUEUED)
                disk.queue_job(self._begin_new_channel)
                return
            if few:
                self._advance(DELAYED)
                disk.run(partial(time.sleep, disk.pause), partial(self._delay_over, flush))
                return
        elif few and not at_once:
            return
        self._advance(FLUSHING)
        if self._flush.begin(self._take_gathered()):
            self._under_way = None
            self._advance(BUFFERING)
            self.reader.frozen = False

    def _take_gathered(self) -> Sequence[MessageRecordBuffer]:
        self._counts = self._counts[1], self._gathered_count
        blocks, self._gathered = self._gathered, []
        self._gathered_count = self._gathered_bytes = 0
        return blocks

    def _begin_new_channel(self) -> tuple[Callable[[], None], Callable[[Exception | None], None]]:
        """Returns the job and conclusion for a new channel whose turn has come."""
        self._advance(FLUSHING)
        return self._flush.job(self._take_gathered())

    def _delay_over(self, flush: Flush, _problem: Exception | None) -> None:
        if self._state is DELAYED and self._under_way is flush:
            self._begin(flush, at_once=True)

    def _stored(self, problem: Exception | None) -> None:
        flush = self._under_way
        assert flush is not None
        self._under_way = None
        self.reader.frozen = False
        self._services.completed.append(flush)
        if problem is not None:
            flush.outcome, flush.error = FlushOutcome.REFUSED, self._reset_to_mark(problem).message
            self.place.conclude()
            return
        self.place.conclude()
        self._advance(GATHERING if self._gathered else IDLE)
        if not self._sync:
            self._services.unsynced.add(self)
        self._keep_within_limits()
        following = self._next
        if following is None:
            return
        self._begin(following)
        if self._state is BUFFERING:
            try:
                self.flush()
            except StorageError as error:
                following.outcome, following.error = FlushOutcome.REFUSED, error.message
            self._services.completed.append(following)

    def _keep_within_limits(self) -> None:
        slices = self._retention.slices
        if not slices or slices[-1] is not self._writer.current:
            self._retention.catch_up()
        limits = self.limits
        count, size = self.count - self._gathered_count, self.bytes - self._gathered_bytes
        if (count > limits.max_msgs > 0) or (size > limits.max_bytes > 0):
            if not self._limits_logged:
                self._limits_logged = True
                STREAMING.warning(*limits_reached(self._name, count, size, limits))
            # `expire` enforces the age.
            self._enforce(0)
        self._set_mark()

    def _set_mark(self) -> None:
        """Remembers the state to which a failed flush returns."""
        count, size = self.count - self._gathered_count, self.bytes - self._gathered_bytes
        self._mark.set(self.first, count, size)

    def write_out(self) -> list[Path]:
        """Returns the files written since the last call, for a sync; all flushed messages are in them."""
        current = self._writer.current
        if current is None:
            return []
        first, self._synced, self._written = min(self._synced, current.number), self._written, current.number
        names = [f"msgs.{number}.{kind}" for number in range(first, current.number + 1) for kind in ("dat", "idx")]
        files = [*(self._directory / name for name in names), self._directory]
        if self._name_syncs:
            self._name_syncs -= 1
            files += [self._directory / SUBS_FILE, self._directory.parent]
        return files

    def expire(self, now: int) -> int | None:
        age = self.limits.max_age_ns
        if age <= 0:
            return None
        if self._state is IDLE and self._mark.state is not BROKEN:
            self._enforce(now)
            self._set_mark()
        if not self.count:
            return None
        return max(self._retention.first_timestamp + age, now + 1)

    def apply_limits(self, now: int) -> None:
        """Applies the limits to the messages found at recovery."""
        self._enforce(now, at_once=True)
        self._set_mark()

    def _enforce(self, now: int, *, at_once: bool = False) -> None:
        try:
            self._retention.enforce(now)
            self._removal_failed = False
        except (StantoolsError, OSError) as error:
            # The new messages are stored; the old ones stay for now.
            if not self._removal_failed:
                STREAMING.error("Unable to remove old messages of %r: %s", self._name.decode("utf-8", "replace"), error)
            self._removal_failed = True
        self._update_totals()
        self._recent.drop_before(self.first)
        self.place.remove_slices(at_once=at_once)

    def _reset_to_mark(self, error: Exception) -> StorageError:
        """Forgets the messages appended since the last flush, and returns the error for the caller."""
        self._gathered, self._next = [], None
        self._gathered_count = self._gathered_bytes = 0
        if self._state is not IDLE:
            self._advance(IDLE)
        self.files = 0
        self._services.open_files.leave(self)
        self.first, self.last, self.count, self.bytes = self._mark.totals
        self.reader.drop_after(self.last)
        return StorageError(error.message if isinstance(error, StantoolsError) else str(error))

    # Reading.

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        first = max(first, self.first)
        if first > self.last or not self.count or count <= 0:
            return EMPTY
        return self.reader.read(first, count, size)

    def end_reading(self) -> None:
        self.reader.close()

    def sequence_at(self, timestamp: int) -> int:
        if not self.count:
            return self.last + 1 if self.last else 0
        found = self.reader.sequence_at(timestamp, self.first)
        return self.last + 1 if found is None else found

    def _write_buffered(self) -> bool:
        """Writes buffered messages, so that files can be read. Returns whether that worked."""
        if self._state is BUFFERING:
            try:
                self._writer.flush(sync=False)
            except StoreUnwritableError:
                return False
        return True

    # Files.

    @property
    def busy(self) -> bool:
        """Whether threads use the files."""
        return self._under_way is not None or self.place.busy

    @property
    def unwritten(self) -> bool:
        """Whether messages are still to be written, or are being written."""
        return self._state is not IDLE or self.place.busy

    def release(self) -> bool:
        """Closes the files of the writer, unless messages are still to be written."""
        if self._state is not IDLE or self._mark.state is BROKEN:
            return False
        self._writer.abandon()
        self.files = 0
        self._services.open_files.leave(self)
        return True

    def close(self) -> None:
        """Flushes and closes. Raises StorageError if messages are not stored; a thread at work keeps the files."""
        if self._under_way is not None:
            raise StorageError(f"{self._directory}: the disk has not completed the last write")
        try:
            if self._state is BUFFERING:
                self.flush()
            else:
                self._mark.repair()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the files without writing."""
        self.place.abandon()
        self.reader.close()
        self._services.unsynced.discard(self)
        self._writer.abandon()
        self._services.open_files.leave(self)
