"""The subscriptions of a channel in a file store: its subs.dat (filestore.md sections 4, 6.1 and 8).

Records are gathered, and written at a flush or when there are many; where flushes need not be durable, records of
deliveries and acknowledgements are written a little later (`later`). The live subscriptions are also kept in memory:
a compaction writes them anew, and so does the flush after a failed write.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from broker.log import STREAMING
from broker.stores.file.compaction import RETRY, Compaction
from broker.stores.file.deferred_log_writes import BOUND
from broker.stores.file.directories import READY, ChannelDirectory, truncate_log
from broker.stores.file.services import Services
from broker.stores.interface import Flush, FlushOutcome, RecoveredSubscription, StorageError
from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.format.kernels import encode_flow
from stantools.format.layout import FILE_HEADER_SIZE, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.store.directory import SUBS_FILE
from stantools.store.durable import unwritable
from stantools.store.limits import ChannelLimits
from stantools.store.logwriter import Live, SubsLog
from stantools.store.sublog import SubsState

_MSG, _ACK = int(SubRecord.MSG), int(SubRecord.ACK)


class SubscriptionLogState(enum.Enum):
    """States of the records of a channel's subscriptions: where they are, and so what the next flush does.

    Whether threads sync the file or write a new one at the moment is another matter (`busy`).
    """

    CLEAN = enum.auto()  #: all are written, or threads write them
    GATHERED = enum.auto()  #: some are gathered: deliveries and acknowledgements, which may be written later
    URGENT = enum.auto()  #: some are gathered that the next flush must write
    LOST = enum.auto()  #: some are missing in the file: the next flush writes a new one from memory
    REWRITING = enum.auto()  #: a compaction replaces the file, in which some are missing; it takes new ones as well


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
CLEAN: Final = SubscriptionLogState.CLEAN
GATHERED: Final = SubscriptionLogState.GATHERED
URGENT: Final = SubscriptionLogState.URGENT
LOST: Final = SubscriptionLogState.LOST
REWRITING: Final = SubscriptionLogState.REWRITING
_NEXT: Final = {
    CLEAN: (GATHERED, URGENT, LOST),
    GATHERED: (CLEAN, URGENT, LOST),
    URGENT: (CLEAN, LOST),
    LOST: (CLEAN, REWRITING),  # CLEAN if the store is closed
    REWRITING: (CLEAN, LOST),
}


@dataclass(slots=True)
class _KeptRecord:
    state: pb.SubState
    pending: set[int]


class FileSubscriptions:
    files = 1

    def __init__(
        self,
        directory: ChannelDirectory,
        limits: ChannelLimits,
        services: Services,
        found: SubsState | None = None,
    ) -> None:
        self._place = directory
        self._directory = directory.path
        self._limits = limits
        self._services = services
        found = found or SubsState()
        self._kept = {number: _KeptRecord(each.state, each.pending) for number, each in found.subscriptions.items()}
        self._last_id = found.max_id
        self._counted = found.records, found.dead
        self._end = FILE_HEADER_SIZE + found.record_bytes
        self._log: SubsLog | None = None
        self._state = CLEAN
        self._delayed = False  # `services.later` writes gathered records
        self._under_way: Flush | None = None
        self._next: Flush | None = None
        self._compaction: Compaction | None = None
        self._no_compaction_before = float("-inf")
        self._compacted = float("-inf")

    def _advance(self, state: SubscriptionLogState) -> None:
        assert state in _NEXT[self._state], f"{self._state} does not become {state}"
        self._state = state

    def recovered(self) -> list[RecoveredSubscription]:
        """Returns copies of all subscriptions, by id."""
        result = []
        for _, kept in sorted(self._kept.items()):
            state = pb.SubState()
            state.CopyFrom(kept.state)
            result.append(RecoveredSubscription(state, sorted(kept.pending)))
        return result

    def create(self, state: pb.SubState) -> None:
        state.id = 0
        if 0 < self._limits.max_subs <= len(self._kept):
            raise StorageError("too many subscriptions per channel")
        log = self._open_log()
        copy = pb.SubState()
        copy.CopyFrom(state)
        copy.id = self._last_id + 1
        if self._state is not LOST:
            try:
                log.new(copy)
            except StoreUnwritableError as error:
                raise self._mark_lost(error) from error
        self._last_id = state.id = copy.id
        self._kept[copy.id] = _KeptRecord(copy, set())
        self._mark_changed(URGENT)

    def update(self, state: pb.SubState) -> None:
        kept = self._kept.get(state.id)
        copy = pb.SubState()
        copy.CopyFrom(state)
        if kept is None:
            self._kept[state.id] = _KeptRecord(copy, set())
            self._last_id = max(self._last_id, state.id)
        else:
            kept.state = copy
        log = self._open_log()
        self._mark_changed(URGENT)
        if self._state is not LOST:
            try:
                log.update(copy)
            except StoreUnwritableError as error:
                raise self._mark_lost(error) from error

    def delete(self, subscription: int) -> None:
        kept = self._kept.pop(subscription, None)
        log = self._open_log()
        self._mark_changed(URGENT)
        if self._state is not LOST:
            try:
                # The deletion of an unknown id is recorded again (filestore.md section 4.2), but not counted.
                log.delete(subscription, len(kept.pending) if kept else -1)
            except StoreUnwritableError as error:
                raise self._mark_lost(error) from error
        if kept:
            self._compact_if_due()

    def sent(self, subscription: int, sequences: Sequence[int]) -> None:
        kept = self._kept.get(subscription)
        if kept is None or not len(sequences):
            return
        kept.pending.update(sequences)
        # Mostly the sequences are a rising range.
        highest = max(sequences[0], sequences[-1]) if type(sequences) is range else max(sequences)
        if highest > kept.state.last_sent:
            kept.state.last_sent = int(highest)
        self._record(_MSG, subscription, sequences)

    def acked(self, subscription: int, sequences: Sequence[int]) -> None:
        kept = self._kept.get(subscription)
        if kept is None or not len(sequences):
            return
        kept.pending.difference_update(sequences)
        self._record(_ACK, subscription, sequences)
        log = self._log
        if log is not None and log.size >= log.least:
            self._compact_if_due()

    def _record(self, kind: int, subscription: int, sequences: Sequence[int]) -> None:
        log = self._log or self._open_log()
        if self._state is not GATHERED and self._state is not URGENT:
            self._mark_changed(GATHERED)
            if self._state is LOST:
                return
        services = self._services
        records = encode_flow(kind, subscription, sequences, services.crc)
        services.later.size += len(records)
        if kind == _ACK:
            log.dead += len(sequences)
        else:
            log.records += len(sequences)
        try:
            log.add_encoded(records)
        except StoreUnwritableError as error:
            raise self._mark_lost(error) from error

    def flush(self) -> Flush | None:
        state = self._state
        if state is LOST or state is REWRITING:
            self._rewrite()
            self._next = self._next or Flush()
            return self._next
        if state is CLEAN:
            return self._next or self._under_way
        if state is GATHERED and self._delayed and self._services.later.size <= BOUND:
            return None
        self._write()
        if not self._services.options.sync:
            return None
        self._services.unsynced_logs.discard(self)
        if self._under_way is None:
            return self._begin_sync(Flush())
        self._next = self._next or Flush()
        return self._next

    def _begin_sync(self, flush: Flush) -> Flush:
        log, disk = self._open_log(), self._services.disk
        if not disk.sync_aside(log.descriptor, self._kernel_synced):
            try:
                disk.run(log.syncing(), self._synced)
            except StoreUnwritableError as error:
                raise self._mark_lost(error) from error
        self._under_way, self._next = flush, None
        return flush

    def _kernel_synced(self, problem: Exception | None) -> None:
        if isinstance(problem, OSError):
            problem = unwritable(problem, self._directory / SUBS_FILE, "the last writes may not be durable")
        self._synced(problem)

    def _synced(self, problem: Exception | None) -> None:
        assert self._under_way is not None
        done, self._under_way = self._under_way, None
        if problem is not None:
            done.outcome, done.error = FlushOutcome.REFUSED, self._mark_lost(problem).message
        self._services.completed.append(done)
        if self._compaction is not None and self._compaction.caught_up and self._take_new_file():
            return
        if self._state is REWRITING:
            return
        following, self._next = self._next, None
        if following is not None:
            try:
                if problem is not None:
                    raise StorageError(done.error)
                self._begin_sync(following)
            except StorageError as error:
                self._refuse(following, error.message)

    def write_noted(self) -> None:
        """Writes gathered records for which no flush waits; a failure is logged."""
        self._delayed = False
        if self._state is CLEAN or self._state is LOST:
            return
        try:
            self._write()
        except StorageError as error:
            STREAMING.error("Unable to flush subscriptions of channel %s: %s", self._directory.name, error)

    def write_out(self) -> list[Path]:
        """Writes gathered records, and returns the files to sync. Raises StorageError."""
        if self._state is LOST or self._state is REWRITING:
            self._rewrite()
            return []
        if self._state is not CLEAN:
            self._write()
            self._services.unsynced_logs.discard(self)
        return [self._directory / SUBS_FILE]

    def _write(self) -> None:
        log = self._log or self._open_log()
        try:
            log.write_out()
        except StoreUnwritableError as error:
            raise self._mark_lost(error) from error
        if self._state is not REWRITING:
            self._advance(CLEAN)

    def _rewrite(self) -> None:
        """Lets threads write a new file from memory, unless they do already. Raises StorageError."""
        if self._state is REWRITING:
            return
        try:
            self._begin_compaction(self._open_log())
        except StoreUnwritableError as error:
            raise self._mark_lost(error) from error
        self._advance(REWRITING)

    def _mark_changed(self, state: SubscriptionLogState) -> None:
        """Marks the store as changed since the last flush: GATHERED, or URGENT for the next flush to write it."""
        services = self._services
        if state in _NEXT[self._state]:
            self._state = state
        services.unsynced_logs.add(self)
        if not self._delayed:
            self._delayed = services.later.takes(self)

    def _live(self) -> Iterable[Live]:
        # Pending sequences are copied: they change while a thread encodes them.
        return [(kept.state, tuple(kept.pending)) for _, kept in sorted(self._kept.items())]

    def _mark_lost(self, error: Exception) -> StorageError:
        """Marks records as lost: the next flush writes a new file from memory."""
        if self._state is not LOST:
            self._advance(LOST)
        self._drop_compaction()
        return StorageError(error.message if isinstance(error, StantoolsError) else str(error))

    def _compact_if_due(self) -> None:
        log = self._log
        if log is None or self._state is LOST or self._compaction is not None or not log.due():
            return
        if time.monotonic() < self._no_compaction_before:
            return
        try:
            if self._try_write(log):
                self._begin_compaction(log)
        except StoreUnwritableError as error:
            self._compaction_failed(error)

    def _begin_compaction(self, log: SubsLog) -> None:
        new = log.begin_compaction(self._live(), incomplete=self._state is LOST)
        self._compaction = Compaction(log, new, self._services.disk, self._take_new_file, self._compaction_failed)
        self._compaction.begin()

    def _try_write(self, log: SubsLog) -> bool:
        """Writes gathered records. Returns whether that worked; otherwise the next flush writes a new file."""
        try:
            log.write_out()
        except StoreUnwritableError as error:
            self._mark_lost(error)
            return False
        return True

    def _take_new_file(self) -> bool:
        """Replaces the old file after a compaction. Returns whether a flush of the new file has begun.

        It does nothing while a flush of the old file is under way, whose durable records must stay durable. Later
        flushes are durable when the new file and its name are.
        """
        log, services = self._log, self._services
        if self._under_way is not None or log is None or not self._try_write(log):
            return False
        compaction = self._compaction
        if services.options.sync and compaction is not None and compaction.replacement.waiting:
            # A flush of the old file may have made its records durable; the name must not lead to a file without them.
            self._under_way, self._next = self._next or Flush(), None
            services.disk.run(compaction.replacement.catching_up(), partial(self._caught_up, compaction))
            return True
        try:
            job = self._replace(log)
        except StoreUnwritableError as error:
            self._compaction_failed(error)
            return False
        if not services.options.sync and self._next is None:
            services.disk.run(job, self._renamed)
            return False
        self._under_way, self._next = self._next or Flush(), None
        services.disk.run(job, self._synced)
        return True

    def _caught_up(self, compaction: Compaction, problem: Exception | None) -> None:
        """Takes the new file, which has all durable records of the old one by now."""
        flush, self._under_way = self._under_way, None
        log, incomplete = self._log, self._state is REWRITING
        assert flush is not None and log is not None
        not_written = f"{self._directory / SUBS_FILE}: some records were not written"
        if self._compaction is not compaction:
            # It was dropped when records were lost; another one may have begun.
            self._refuse(flush, not_written)
            return
        try:
            if problem is not None:
                self._drop_compaction()
                self._compaction_failed(problem)
            elif self._try_write(log):
                job = self._replace(log)
                self._under_way = flush
                self._services.disk.run(job, self._synced)
                return
            if incomplete:
                # A sync of the old file makes nothing durable that is missing there.
                raise problem or StorageError(not_written)
            self._begin_sync(flush)
        except StantoolsError as error:
            self._refuse(flush, self._mark_lost(error).message)

    def _replace(self, log: SubsLog) -> Callable[[], None]:
        """Puts the new file in the place of the old one; returns the job that makes it durable.

        After a StoreUnwritableError the new file is removed.
        """
        self._compaction = None
        job = log.replace(now=time.monotonic())
        if self._state is REWRITING:
            self._advance(CLEAN)
        return job

    def _refuse(self, flush: Flush, error: str) -> None:
        flush.outcome, flush.error = FlushOutcome.REFUSED, error
        self._services.completed.append(flush)

    def _renamed(self, problem: Exception | None) -> None:
        if problem is not None:
            self._compaction_failed(problem)

    def _compaction_failed(self, problem: Exception) -> None:
        self._compaction = None
        if self._state is REWRITING:
            error = self._mark_lost(problem)
            waiting, self._next = self._next, None
            if waiting is None:
                STREAMING.error("Unable to sync: %s", error)
            else:
                self._refuse(waiting, error.message)
            return
        # The log is unchanged. The original logs nothing here.
        self._no_compaction_before = time.monotonic() + RETRY
        STREAMING.error("Unable to compact %s: %s", self._directory / SUBS_FILE, problem)

    def _drop_compaction(self) -> None:
        compaction, self._compaction = self._compaction, None
        if compaction is not None:
            compaction.drop()

    def _open_log(self) -> SubsLog:
        services = self._services
        if self._log is None:
            if self._place.state is not READY:
                self._make()
            options = services.options
            records, dead = self._counted
            try:
                truncate_log(self._directory / SUBS_FILE, self._end)
                self._log = SubsLog(
                    self._directory,
                    options.directory,
                    services.crc,
                    options.compaction,
                    buffer_size=options.buffer_size,
                    records=records,
                    dead=dead,
                )
                self._log.compacted = self._compacted
            except StoreUnwritableError as error:
                raise self._mark_lost(error) from error
        services.open_files.touch(self)
        return self._log

    def _make(self) -> None:
        """Makes the channel at once, for a caller that did not wait until it is durable. Raises StorageError."""
        try:
            self._place.make()
            self._place.name_files(sync=self._services.options.sync)
        finally:
            self._place.conclude()
            if (wake := self._services.disk.wake) is not None:
                wake()

    @property
    def busy(self) -> bool:
        """Whether threads use the file."""
        return self._under_way is not None or self._compaction is not None

    def release(self) -> bool:
        """Closes the file, unless records are to be flushed or synced, or the file is being rewritten."""
        if self._delayed and not self.busy:
            self.write_noted()
        if self._state is not CLEAN or self.busy:
            return False
        self._close()
        return True

    def close(self) -> None:
        try:
            if self._state is REWRITING:
                raise StorageError(f"{self._directory}: the disk has not completed the last write")
            if self._state is LOST:
                self._open_log().compact(self._live())
                self._advance(CLEAN)
            if self._state is not CLEAN:
                self._write()
        except StoreUnwritableError as error:
            raise self._mark_lost(error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the file without writing; a waiting flush completes."""
        if self._next is not None:
            self._services.completed.append(self._next)
            self._next = None
        self._services.unsynced_logs.discard(self)
        self._services.later.forget(self)
        self._delayed = False
        self._close()

    def _close(self) -> None:
        self._drop_compaction()
        log = self._log
        if log is not None:
            log.abandon()
            self._counted, self._compacted, self._log = (log.records, log.dead), log.compacted, None
            self._end = FILE_HEADER_SIZE + log.size
        self._services.open_files.leave(self)
