"""Flushes of a channel's messages: written by the loop or a thread, synced by the kernel or a thread, else undone.

New files get their names only after they are synced, so that after a power loss no name leads to an empty file. A mark
is the state after a flush, to which a failed one returns the files. If that fails as well, the mark is BROKEN, and
nothing is written before it succeeds.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from broker.log import STREAMING
from broker.record_buffer import MessageRecordBuffer
from broker.stores.file.directories import MADE, READY, ChannelDirectory
from broker.stores.file.services import Services
from broker.stores.interface import StorageError
from stantools.errors import StoreUnwritableError
from stantools.store.durable import NO_SYNCS, open_directory, unwritable
from stantools.store.slicewriter import SliceWriter


class MarkState(enum.Enum):
    VALID = enum.auto()
    OUTDATED = enum.auto()  #: single messages were added since it was set
    BROKEN = enum.auto()  #: a failed write is still to be undone


# Constants for hot paths: looking up members of an enumeration is slow (Python 3.11).
VALID: Final = MarkState.VALID
OUTDATED: Final = MarkState.OUTDATED
BROKEN: Final = MarkState.BROKEN
_NEXT: Final = {VALID: (OUTDATED, BROKEN), OUTDATED: (VALID,), BROKEN: (VALID,)}


class FlushMark:
    """The state after the last flush.

    Attributes:
        totals: First and last sequence, number and bytes of the messages.
    """

    __slots__ = ("_mark", "_writer", "state", "totals")

    def __init__(self, writer: SliceWriter) -> None:
        self._writer = writer
        self.state: MarkState = VALID
        self._mark = writer.mark()
        self.totals = 0, 0, 0, 0

    def _advance(self, state: MarkState) -> None:
        if state is not self.state:
            assert state in _NEXT[self.state], f"{self.state} does not become {state}"
            self.state = state

    def set(self, first: int, count: int, size: int) -> None:
        assert self.state is not BROKEN, "the files are not in the state after a flush"
        self._mark = self._writer.mark()
        self.totals = first, self._writer.last_sequence, count, size
        self._advance(VALID)

    def outdate(self) -> None:
        self._advance(OUTDATED)

    def roll_back(self) -> None:
        """Returns the files to the state after the last flush."""
        try:
            self._writer.go_back(self._mark)
        except StoreUnwritableError as second:
            if self.state is not BROKEN:
                STREAMING.error("Unable to undo a failed write: %s", second)
            self._advance(BROKEN)
        else:
            self._advance(VALID)

    def repair(self) -> None:
        """Retries a failed `roll_back`. Raises StorageError while that fails."""
        if self.state is BROKEN:
            try:
                self._writer.go_back(self._mark)
            except StoreUnwritableError as error:
                raise StorageError(error.message) from error
            self._advance(VALID)


class MessageFlush:
    """Writes blocks where the loop must not wait for a disk; `done` gets the exception raised, or None."""

    def __init__(
        self,
        writer: SliceWriter,
        place: ChannelDirectory,
        services: Services,
        mark: FlushMark,
        done: Callable[[Exception | None], None],
    ) -> None:
        self._writer = writer
        self._place = place
        self._disk = services.disk
        self._sync = services.options.sync
        self._mark = mark
        self._done = done
        self._names: list[int] = []  # descriptors of directories that are being synced

    def begin(self, blocks: Sequence[MessageRecordBuffer]) -> bool:
        """Writes the blocks that fit into the current slice, and lets the kernel sync them; a thread writes the rest.

        Returns whether all are written already; then they need not be durable, and `done` is not called.
        """
        disk, writer, taken = self._disk, self._writer, 0
        if not (self._mark.state is BROKEN or (self._sync and disk.pause)):
            try:
                if not self._sync:
                    writer.reopen()
                for each in blocks:
                    if not append_run(writer, each):
                        break
                    taken += 1
                else:
                    if not self._sync:
                        return True
                    writer.flush(sync=False)
                    self._written(None)
                    return False
            except StoreUnwritableError as error:
                self._mark.roll_back()
                disk.run(partial(_fail, error), self._done, awaited=True)
                return False
        job, conclusion = self.job(blocks[taken:])
        if writer.current is None:
            # Thousands of channels may begin their first slices at the same time.
            disk.queue_job(lambda: (job, conclusion))
        else:
            disk.run(job, conclusion, awaited=self._sync)
        return False

    def job(
        self, blocks: Sequence[MessageRecordBuffer]
    ) -> tuple[Callable[[], None], Callable[[Exception | None], None]]:
        """Returns a job for a thread and its conclusion; a quick kernel syncs the files after the job."""
        later = self._sync and self._disk.quick
        job = partial(self._store, blocks, sync=self._sync and not later)
        return job, self._written if later else self._done

    def _store(self, blocks: Iterable[MessageRecordBuffer], *, sync: bool) -> None:
        """Makes the channel if necessary, then writes all blocks or none. Called in a thread."""
        self._place.make()
        self._mark.repair()
        try:
            for records in blocks:
                write(self._writer, records)
            self._writer.flush(sync=sync)
            if sync and self._place.state is MADE:
                self._place.name_files(sync=True)
        except Exception:
            self._mark.roll_back()
            raise

    def _written(self, problem: Exception | None) -> None:
        if problem is not None:
            self._done(problem)
            return
        writer, unnamed = self._writer, self._place.unnamed
        if not (writer.unnamed or unnamed):
            self._sync_names(writer.descriptors)
        elif not self._disk.sync([*writer.descriptors, *unnamed], self._contents_synced):
            self._sync_in_thread()

    def _contents_synced(self, problem: Exception | None) -> None:
        """Names new files in a thread: now that they are synced, no name leads to an empty file."""
        if isinstance(problem, OSError):
            self._sync_failed(problem)
        else:
            self._disk.queue_job(lambda: (self._name_files, self._files_named))

    def _name_files(self) -> None:
        try:
            self._place.name_files()
            self._writer.name_files()
        except StoreUnwritableError:
            self._mark.roll_back()
            raise

    def _files_named(self, problem: Exception | None) -> None:
        if problem is not None:
            self._done(problem)
        else:
            self._sync_names(())

    def _sync_names(self, files: Sequence[int]) -> None:
        names, complete = self._names, True
        try:
            new = self._place.state is not READY
            if new or self._writer.names_to_sync:
                names.append(open_directory(self._place.path))
            if new:
                names.append(open_directory(self._place.path.parent))
        except OSError:
            complete = False  # a thread tries again
        if not complete or not self._disk.sync([*files, *names], self._kernel_synced):
            self._close_names()
            self._sync_in_thread()

    def _sync_in_thread(self) -> None:
        self._disk.run(partial(self._store, (), sync=True), self._done, awaited=True)

    def _kernel_synced(self, problem: Exception | None) -> None:
        named = bool(self._names)
        self._close_names()
        if isinstance(problem, OSError):
            if named and problem.errno in NO_SYNCS:
                # Some file systems cannot sync a directory, which is no error.
                self._sync_in_thread()
            else:
                self._sync_failed(problem)
            return
        self._writer.synced()
        self._place.names_synced()
        self._done(None)

    def _sync_failed(self, problem: OSError) -> None:
        self._mark.roll_back()
        self._done(unwritable(problem, self._place.path, "the last writes may not be durable"))

    def _close_names(self) -> None:
        while self._names:
            os.close(self._names.pop())


def append_run(writer: SliceWriter, records: MessageRecordBuffer) -> bool:
    """Writes a block that follows the last message in the same slice. Returns False, without effect, for others."""
    return writer.append_run(records.data, records.starts, records.sizes, records.sequences, records.timestamps)


def write(writer: SliceWriter, records: MessageRecordBuffer) -> None:
    writer.append_encoded(records.data, records.starts, records.sizes, records.sequences, records.timestamps)


def _fail(error: Exception) -> None:
    raise error
