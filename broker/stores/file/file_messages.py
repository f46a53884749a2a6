"""The messages of a channel in a file store.

What is appended is written at the next flush. If anything goes wrong until then, the files are cut back to where they
were after the flush before, so that what was refused is not there, and what was promised is.

Where a flush has to be durable, or the channel or its next slice has yet to be made, a thread writes and syncs. The
files belong to it as long as the flush is under way: what is appended meanwhile is gathered for the next one, and what
was stored before is read as it was. New files get their names when they are synced: whenever power is lost, no name
leads to a file with nothing in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from broker.log import STREAMING
from broker.record_buffer import MessageRecordBuffer, Record
from broker.stores.blocklist import empty
from broker.stores.file.channelreader import ChannelReader
from broker.stores.file.directories import ChannelDirectory
from broker.stores.file.services import Services
from broker.stores.interface import Flush, FlushOutcome, StorageError, first_sequence
from broker.stores.limits import limits_reached
from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.store.directory import SUBS_FILE
from stantools.store.durable import NO_SYNCS, open_directory, unwritable
from stantools.store.limits import ChannelLimits
from stantools.store.retention import Retention
from stantools.store.slicestate import SliceState
from stantools.store.slicewriter import SliceWriter, WriteOptions


@dataclass(frozen=True, slots=True)
class FoundSlices:
    """The slices that a channel has when it is opened."""

    slices: list[SliceState] = field(default_factory=list)  #: those with messages, by number
    current: SliceState | None = None  #: the last of them if it can be continued; None begins a new one
    last_number: int = 0  #: the next slice gets a higher number than this
    last_sequence: int = 0  #: last sequence of the channel
    odd_paths: dict[int, Path] = field(default_factory=dict)  #: data files whose names are not what their numbers say


_NOTHING_FOUND = FoundSlices()


class FileMessages:
    """See `MessageStore`.

    A message counts with the size of its encoded form plus 40.

    Args:
        directory: The channel's directory.
        name: The channel.
        limits: What it may hold.
        services: What all channels share.
        found: What is there.
    """

    # Of more than thirty attributes each instance would have a dictionary of its own, and there may be many.
    __slots__ = (
        "_alone",
        "_aside",
        "_broken",
        "_counts",
        "_directory",
        "_dirty",
        "_enforcing_failed",
        "_gathered",
        "_gathered_bytes",
        "_gathered_count",
        "_mark",
        "_mark_due",
        "_marked",
        "_name",
        "_names",
        "_new",
        "_next",
        "_pausing",
        "_recent",
        "_retention",
        "_services",
        "_sync",
        "_synced",
        "_told",
        "_under_way",
        "_unnamed",
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
        self.place = directory  #: where its files are
        self._directory = directory.path
        self._name = name
        self._services = services
        self._sync = options.sync
        self._new = directory.making is not None  # it has yet to be made, or its name to be made durable
        self._unnamed = 0 if found.last_number else 2  # as often its name is synced, too, where flushes are not durable
        self._aside = self._sync or self._new  # threads and the kernel store what is gathered
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
        #: Reads them.
        self.reader = ChannelReader(name, self._writer, self._retention, services, found.odd_paths, self._readable)
        self._recent = self.reader.recent
        self._dirty = self._broken = self._told = self._enforcing_failed = False
        self._mark_due = False  # messages were added by themselves since the mark was set
        self._alone = False  # what was flushed last came by itself; otherwise more may come, to be written together
        self._names: list[int] = []  # open directories that are synced
        self._gathered: list[MessageRecordBuffer] = []
        self._gathered_count = self._gathered_bytes = 0
        self._under_way: Flush | None = None
        self._next: Flush | None = None
        self._pausing = False
        self._counts = 0, 0
        # From which slices on files are synced now, and the next time: what was asked for before may be under way.
        self._synced = self._written = max(found.last_number, 1)
        self.last = self._writer.last_sequence
        self._learn()
        self._set_mark()

    def _learn(self) -> None:
        retention = self._retention
        self.first = retention.first_sequence
        self.count = retention.count + self._gathered_count
        self.bytes = retention.bytes + self._gathered_bytes

    # Storing.

    def append(self, records: MessageRecordBuffer) -> None:
        """Adds messages; see `MessageStore.append`."""
        count = len(records.sizes)
        if not count:
            return
        first = self.last + 1
        if self._aside:
            first = first_sequence(records, self.last)
        else:
            if self._broken:
                self._repair()
            if self._mark_due:
                self._set_mark()
            try:
                # What follows the last message, in the same slice, is looked at by the kernel alone.
                if not self._append_run(records):
                    first = first_sequence(records, self.last)
                    if self._services.at_once:
                        self._write(records)
                    else:
                        self._step_aside()
            except (StoreUnwritableError, ValueError) as error:
                self._go_back()
                raise self._taken_back(error) from error
        self._dirty = True
        self.files = 2
        self._services.open_files.touch(self)
        size = self._recent.append(records) + count * MESSAGE_OVERHEAD
        if self._aside:
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
        """Writes a message; see `LoneMessages.add`. Only where flushes need not be durable."""
        if self._aside or self._dirty or self._broken or not (self._alone and self.count):
            return False
        data, sequence, timestamp = record
        try:
            if not self._writer.store_record(data, sequence, timestamp):
                return False
        except StoreUnwritableError as error:
            self._set_mark()
            self._go_back()
            self._taken_back(error)
            return False
        services, recent, reader, limits = self._services, self._recent, self.reader, self.limits
        self.bytes += recent.add(record) + MESSAGE_OVERHEAD
        self.count += 1
        self.last = sequence
        self._mark_due = True
        if self.files != 2 or not services.open_files.few:
            self.files = 2
            services.open_files.touch(self)
        if recent.size >= reader.told:
            reader.use_memory()
        services.unsynced.add(self)
        if self._enforcing_failed or self.count > limits.max_msgs > 0 or self.bytes > limits.max_bytes > 0:
            self._keep_within_limits()
        return True

    def flush(self) -> Flush | None:
        """Makes durable what was appended, and enforces the limits; see `MessageStore.flush`."""
        if not self._dirty and not self._new:
            if self._broken:
                self._repair()
            if self._enforcing_failed:
                self._keep_within_limits()
            return None
        if self._aside:
            if self._under_way is None:
                self._begin(Flush())
            elif self._pausing:
                self._begin(self._under_way)
            elif self._gathered:
                self._next = self._next or Flush()
        if self._aside:
            return self._next or self._under_way
        try:
            self._writer.flush()
        except StoreUnwritableError as error:
            self._go_back()
            raise self._taken_back(error) from error
        self._dirty = False
        self._alone = self.last - self._marked[1] == 1
        self._services.unsynced.add(self)
        self._keep_within_limits()
        return None

    def _begin(self, flush: Flush, *, at_once: bool = False) -> None:
        """Has what is gathered written and synced: synced by the kernel, or both by a thread.

        Where the disk is slow it waits a little for as many messages as there were before: those who got their
        acknowledgements together have the next ones soon. Else one would be synced alone, and all others after it.
        A channel that has yet to be made waits for its turn, and takes along what has come until then.
        """
        disk = self._services.disk
        paused, self._under_way, self._next = self._pausing, flush, None
        few = self._sync and disk.pause > 0 and self._gathered_count < max(self._counts)
        self._pausing = not at_once and (self._new or few)
        if not paused:
            self.reader.freeze()
        if self._pausing:
            if not paused and self._new:
                disk.take_turns(self._make)
            elif not paused:
                disk.run(partial(time.sleep, disk.pause), partial(self._paused, flush))
            return
        self._store_soon(self._take_gathered())

    def _take_gathered(self) -> Sequence[MessageRecordBuffer]:
        """Returns what is gathered; from now on it is gathered for the next flush."""
        self._counts = self._counts[1], self._gathered_count
        blocks, self._gathered = self._gathered, []
        self._gathered_count = self._gathered_bytes = 0
        return blocks

    def _make(self) -> tuple[Callable[[], None], Callable[[Exception | None], None]]:
        """Returns what a thread is to do for a channel that has yet to be made, now that it is its turn."""
        self._pausing = False
        return self._storing(self._take_gathered())

    def _paused(self, flush: Flush, _problem: Exception | None) -> None:
        """Goes on with a flush that has waited for more."""
        if self._pausing and self._under_way is flush:
            self._begin(flush, at_once=True)

    def _store_soon(self, blocks: Sequence[MessageRecordBuffer]) -> None:
        """Writes what belongs in the current slice, and has the kernel sync it; a thread does what is left of that.

        Where flushes need not be durable and nothing is left, nothing is under way then, and who flushes goes on.
        """
        disk, writer, taken = self._services.disk, self._writer, 0
        if not (self._broken or (self._sync and disk.pause)):
            try:
                if not self._sync:
                    writer.reopen()
                for each in blocks:
                    if not self._append_run(each):
                        break
                    taken += 1
                else:
                    if not self._sync:
                        self._under_way, self._aside = None, False
                        self.reader.frozen = False
                        return
                    writer.flush(sync=False)
                    self._sync_written(None)
                    return
            except StoreUnwritableError as error:
                self._go_back()
                disk.run(partial(_fail, error), self._stored, awaited=True)
                return
        job, conclusion = self._storing(blocks[taken:])
        if writer.current is None:
            # Thousands of channels may begin their first slices at the same time.
            disk.take_turns(lambda: (job, conclusion))
        else:
            disk.run(job, conclusion, awaited=self._sync)

    def _storing(
        self, blocks: Sequence[MessageRecordBuffer]
    ) -> tuple[Callable[[], None], Callable[[Exception | None], None]]:
        """Returns what a thread is to do, and the conclusion: where the kernel is quick it syncs what is written."""
        later = self._sync and self._services.disk.quick
        job = partial(self._store, blocks, sync=self._sync and not later)
        return job, self._sync_written if later else self._stored

    def _sync_written(self, problem: Exception | None) -> None:
        """Has the kernel sync what is written, or a thread."""
        if problem is not None:
            self._stored(problem)
            return
        writer, unnamed = self._writer, self.place.unnamed
        if not (writer.unnamed or unnamed):
            self._sync_names(writer.descriptors)
        elif not self._services.disk.sync([*writer.descriptors, *unnamed], self._contents_synced):
            self._sync_in_thread()

    def _contents_synced(self, problem: Exception | None) -> None:
        """Has a thread give new files their names, now that these cannot lead to files with nothing in them."""
        if isinstance(problem, OSError):
            self._not_synced(problem)
        else:
            self._services.disk.take_turns(lambda: (self._name_files, self._named))

    def _name_files(self) -> None:
        try:
            self.place.name_files()
            self._writer.name_files()
        except StoreUnwritableError:
            self._go_back()
            raise

    def _named(self, problem: Exception | None) -> None:
        if problem is not None:
            self._stored(problem)
        else:
            self._sync_names(())

    def _sync_names(self, files: Sequence[int]) -> None:
        """Has the kernel sync files and names that are not durable, or a thread."""
        names, complete = self._names, True
        try:
            if self._new or self._writer.names_to_sync:
                names.append(open_directory(self._directory))
            if self._new:
                names.append(open_directory(self._directory.parent))
        except OSError:
            complete = False  # a thread tries again
        if not complete or not self._services.disk.sync([*files, *names], self._kernel_done):
            self._close_names()
            self._sync_in_thread()

    def _sync_in_thread(self) -> None:
        self._services.disk.run(partial(self._store, (), sync=True), self._stored, awaited=True)

    def _kernel_done(self, problem: Exception | None) -> None:
        """Goes on when the kernel is done."""
        named = bool(self._names)
        self._close_names()
        if isinstance(problem, OSError):
            if named and problem.errno in NO_SYNCS:
                # Maybe of a directory, which is no error.
                self._sync_in_thread()
            else:
                self._not_synced(problem)
            return
        self._writer.synced()
        self._new = False
        self._stored(None)

    def _not_synced(self, problem: OSError) -> None:
        self._go_back()
        self._stored(unwritable(problem, self._directory, "what was written may not be durable"))

    def _close_names(self) -> None:
        while self._names:
            os.close(self._names.pop())

    def _store(self, blocks: Iterable[MessageRecordBuffer], *, sync: bool) -> None:
        """Writes, and syncs or not, after the channel was made; all or nothing is there afterwards. Called by a thread.

        Raises:
            StorageError: The channel cannot be made.
            StoreUnwritableError: It cannot be done.
            ValueError: The blocks are not as they should be.
        """
        self.place.make()
        if self._broken:
            self._writer.go_back(self._mark)
            self._broken = False
        try:
            for records in blocks:
                self._write(records)
            self._writer.flush(sync=sync)
            if self._new and sync:
                self.place.name_files(sync=True)
            self._new = self._new and self._sync and not sync  # or the name is yet to be synced
        except Exception:
            self._go_back()
            raise

    def _stored(self, problem: Exception | None) -> None:
        """Goes on when the thread is done."""
        flush = self._under_way
        assert flush is not None
        self._under_way = None
        self.reader.frozen = False
        self._services.completed.append(flush)
        if problem is not None:
            flush.outcome, flush.error = FlushOutcome.REFUSED, self._taken_back(problem).message
            self.place.conclude()
            return
        self.place.conclude()
        self._dirty = bool(self._gathered)
        if not self._sync:
            # What was appended meanwhile comes first.
            self._aside = self._dirty
            self._services.unsynced.add(self)
        self._keep_within_limits()
        following = self._next
        if following is None:
            return
        self._begin(following)
        if not self._aside:
            try:
                self.flush()
            except StorageError as error:
                following.outcome, following.error = FlushOutcome.REFUSED, error.message
            self._services.completed.append(following)

    def _append_run(self, records: MessageRecordBuffer) -> bool:
        return self._writer.append_run(
            records.data, records.starts, records.sizes, records.sequences, records.timestamps
        )

    def _step_aside(self) -> None:
        """Has a thread begin the next slice: making files may take long. What comes until it is there is gathered.

        Raises:
            StoreUnwritableError: What was appended before cannot be written.
        """
        if self._dirty:
            self._writer.flush()
        self._aside = True

    def _write(self, records: MessageRecordBuffer) -> None:
        self._writer.append_encoded(records.data, records.starts, records.sizes, records.sequences, records.timestamps)

    def _keep_within_limits(self) -> None:
        slices = self._retention.slices
        if not slices or slices[-1] is not self._writer.current:
            self._retention.catch_up()
        limits = self.limits
        count, size = self.count - self._gathered_count, self.bytes - self._gathered_bytes
        if (count > limits.max_msgs > 0) or (size > limits.max_bytes > 0):
            if not self._told:
                self._told = True
                STREAMING.warning(*limits_reached(self._name, count, size, limits))
            # The age is left to `expire`.
            self._enforce(0)
        self._set_mark()

    def _set_mark(self) -> None:
        """Takes note of the state to which a failure returns."""
        self._mark_due = False
        self._mark = self._writer.mark()
        count, size = self.count - self._gathered_count, self.bytes - self._gathered_bytes
        self._marked = (self.first, self._writer.last_sequence, count, size)

    def write_out(self) -> list[Path]:
        """Returns the files that were written since the last call; all that was flushed is in them."""
        current = self._writer.current
        if current is None:
            return []
        first, self._synced, self._written = min(self._synced, current.number), self._written, current.number
        names = [f"msgs.{number}.{kind}" for number in range(first, current.number + 1) for kind in ("dat", "idx")]
        files = [*(self._directory / name for name in names), self._directory]
        if self._unnamed:
            self._unnamed -= 1
            files += [self._directory / SUBS_FILE, self._directory.parent]
        return files

    def expire(self, now: int) -> int | None:
        """Removes messages that are too old; see `MessageStore.expire`."""
        age = self.limits.max_age_ns
        if age <= 0:
            return None
        if not self._dirty and not self._broken:
            self._enforce(now)
            self._set_mark()
        if not self.count:
            return None
        return max(self._retention.first_timestamp + age, now + 1)

    def apply_limits(self, now: int) -> None:
        """Removes what limits do not allow of what was found when the store was opened."""
        self._enforce(now, at_once=True)
        self._set_mark()

    def _enforce(self, now: int, *, at_once: bool = False) -> None:
        try:
            self._retention.enforce(now)
            self._enforcing_failed = False
        except (StantoolsError, OSError) as error:
            # What was stored is stored; old messages stay for now.
            if not self._enforcing_failed:
                STREAMING.error("Unable to remove old messages of %r: %s", self._name.decode("utf-8", "replace"), error)
            self._enforcing_failed = True
        self._learn()
        self._recent.drop_before(self.first)
        self.place.remove_slices(at_once=at_once)

    def _go_back(self) -> None:
        """Returns the files to the state after the last flush."""
        try:
            self._writer.go_back(self._mark)
            self._broken = False
        except StoreUnwritableError as second:
            if not self._broken:
                STREAMING.error("Unable to take back what could not be stored: %s", second)
            self._broken = True

    def _taken_back(self, error: Exception) -> StorageError:
        """Takes note that the files are as after the last flush, and forgets what was appended since."""
        self._gathered, self._next = [], None
        self._gathered_count = self._gathered_bytes = 0
        self._dirty = False
        self.files = 0
        self._services.open_files.leave(self)
        self.first, self.last, self.count, self.bytes = self._marked
        self.reader.drop_after(self.last)
        return StorageError(error.message if isinstance(error, StantoolsError) else str(error))

    def _repair(self) -> None:
        """Tries again to return to the state after the last flush.

        Raises:
            StorageError: It does not work yet.
        """
        try:
            self._writer.go_back(self._mark)
        except StoreUnwritableError as error:
            raise StorageError(error.message) from error
        self._broken = False

    # Reading.

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        """Returns messages in order; see `MessageStore.read`."""
        first = max(first, self.first)
        if first > self.last or not self.count or count <= 0:
            return empty()
        return self.reader.read(first, count, size)

    def end_reading(self) -> None:
        """Closes the files that are read, and forgets messages in memory."""
        self.reader.close()

    def sequence_at(self, timestamp: int) -> int:
        """Returns the first sequence whose timestamp is not lower; see `MessageStore.sequence_at`."""
        if not self.count:
            return self.last + 1 if self.last else 0
        found = self.reader.sequence_at(timestamp, self.first)
        return self.last + 1 if found is None else found

    def _readable(self) -> bool:
        """Writes what is only gathered, for those who read files. Returns whether that worked."""
        if self._dirty and not self._aside:
            try:
                self._writer.flush(sync=False)
            except StoreUnwritableError:
                return False
        return True

    # Files.

    @property
    def busy(self) -> bool:
        """Whether threads are at the files."""
        return self._under_way is not None or self.place.busy

    @property
    def unwritten(self) -> bool:
        """Whether something is still to be written, or is being written."""
        return self.busy or self._dirty or bool(self._gathered)

    def release(self) -> bool:
        """Closes the files that are written, unless there is something to write."""
        if self._dirty or self._broken:
            return False
        self._writer.abandon()
        self.files = 0
        self._services.open_files.leave(self)
        return True

    def close(self) -> None:
        """Flushes, unless that takes a thread and was to be done before, and closes.

        Raises:
            StorageError: Something is not stored, or a thread is still at it, which has the files then.
        """
        if self._under_way is not None:
            raise StorageError(f"{self._directory}: the disk has not taken what was written last")
        try:
            if not self._aside:
                self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the files without writing."""
        self.place.abandon()
        self.reader.close()
        self._services.unsynced.discard(self)
        self._writer.abandon()
        self._services.open_files.leave(self)


def _fail(error: Exception) -> None:
    raise error
