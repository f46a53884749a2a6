"""Writing message slices as the server writes them: `msgs.N.dat` with its index `msgs.N.idx`.

Facts: filestore.md sections 2, 5 and 6.1. One writer serves one channel. It takes whole batches: messages to encode
(`SliceWriter.append`) or records to copy (`SliceWriter.append_records`, for salvage and compaction), opens a new
slice where the server would, and keeps this order on disk:

    data, index, fsync of the data, fsync of the index, fsync of the directory if a name is new

so that an index never points to missing data. Between two flushes the index may lag the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from stantools.errors import StoreUnwritableError
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.layout import MESSAGE_OVERHEAD, RECORD_HEADER, RECORD_HEADER_SIZE
from stantools.format.message_batch import MessageBatch
from stantools.store.durable import fsync_directory, unwritable, writing
from stantools.store.limits import SliceLimits
from stantools.store.slice_output import SliceOutput, remove_slice
from stantools.store.slicestate import Progress, SliceState, last_slice

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from stantools.format.envelope import Buffer

#: bytes that are buffered before a write; the server's default
DEFAULT_BUFFER_SIZE = 2 * 1024 * 1024

#: maximum number of index records in memory (32 bytes each)
_INDEX_ROWS = 65536
#: bytes from which records of a mapped source are written without being copied first
_MIN_DIRECT = 64 * 1024
#: fillers per batch
_FILLER_BATCH = 65536
#: bytes of a message in the server's accounting on top of its record
_INDEX_COST = MESSAGE_OVERHEAD - RECORD_HEADER_SIZE


@dataclass(frozen=True)
class WriteOptions:
    #: limits that end a slice (see `SliceLimits.for_channel`)
    limits: SliceLimits = SliceLimits()
    #: Make every flush and every finished slice durable. Off where the whole tree is synced later (`new_directory`).
    sync: bool = True
    buffer_size: int = DEFAULT_BUFFER_SIZE  #: bytes that are buffered before they are written
    #: Write the server's empty fillers for missing sequences (filestore.md section 5.3). The caller must bound the
    #: gaps: a missing message costs some 30 bytes of data and 32 of index.
    fill_gaps: bool = False
    #: Write the first message of each slice and its index record at once and by themselves, for a server that may be
    #: killed at any moment. With `sync` the files of a slice get their names when these are durable.
    first_alone: bool = False
    #: Nanoseconds since 1970, for the age limit of slices; None uses each message's own timestamp.
    clock: Callable[[], int] | None = None


class WriterMark(NamedTuple):
    """A state of a writer; see `SliceWriter.mark`."""

    last_number: int  #: number of the highest slice
    last_sequence: int  #: last sequence of the channel
    finished: int  #: number of completed slices
    current: SliceState | None  #: the current slice
    progress: Progress | None  #: its progress


class SliceWriter:
    """Appends messages to the slices of one channel, whose directory exists.

    `last_number` is the number of the highest slice, `last_sequence` the last sequence of the channel, 0 if it never
    had a message. `current` is the slice to continue (see `resume`). All methods that write raise
    StoreUnwritableError; the files then end with the last flushed message, `last_sequence`.
    """

    def __init__(
        self,
        directory: Path,
        channel: bytes,
        crc: Crc,
        options: WriteOptions = WriteOptions(),
        *,
        last_number: int = 0,
        last_sequence: int = 0,
        current: SliceState | None = None,
    ) -> None:
        self.directory = directory
        self.channel = channel
        self.limits = options.limits
        self.finished: list[SliceState] = []  #: the slices that this writer has completed, in order
        self.current = current
        #: last sequence of the channel
        self.last_sequence = max(last_sequence, current.last_sequence if current else 0)
        self._crc = crc
        self._first_last = self.last_sequence
        self._last_number = max(last_number, current.number if current else 0)
        self.fill_gaps = options.fill_gaps
        self._sync = options.sync
        self._buffer_size = options.buffer_size
        self._clock = options.clock
        self._first_alone = options.first_alone
        self._names_later = options.sync and options.first_alone
        self._file: SliceOutput | None = None
        self._flushed: Progress | None = None  # progress of the current slice before the buffered records
        self._parts: list[bytes | memoryview] = []
        self._pending = 0
        self._index: list[bytes] = []
        self._index_rows = 0
        self.names_to_sync = False  #: names in the directory are not durable

    @classmethod
    def resume(cls, directory: Path, channel: bytes, crc: Crc, options: WriteOptions = WriteOptions()) -> Self:
        """Continues the slices that a channel has.

        Raises StoreUnwritableError if the last slice does not end with the last record of its index, and
        StoreUnreadableError if the files cannot be read.
        """
        return cls(directory, channel, crc, options, current=last_slice(directory, channel, crc))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def append(
        self,
        sequences: ArrayLike,
        timestamps: ArrayLike,
        replies: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> NDArray[np.uint32]:
        """Appends messages. They are on disk after the next `flush`.

        Sequences must be strictly increasing and above `last_sequence` (else ValueError); timestamps are nanoseconds
        since 1970; `replies` is None when no message has a reply subject. Returns the payload size of each record; a
        message counts this much plus 40 in the server's accounting.
        """
        sequence = np.array(sequences, np.uint64, ndmin=1)
        timestamp = np.array(timestamps, np.int64, ndmin=1)
        records, sizes = kernels.encode_messages(self.channel, sequence, timestamp, replies, payloads, self._crc)
        self._store(memoryview(records), None, sizes, sequence, timestamp)
        return sizes

    def append_records(self, batch: MessageBatch) -> None:
        """Appends whole records of a data file, byte for byte. The batch is not used after the call."""
        source = memoryview(batch.records)
        self._store(source, batch.offset, batch.size.copy(), batch.sequence.copy(), batch.timestamp.copy())

    def append_encoded(
        self,
        data: Buffer,
        starts: NDArray[np.int64],
        sizes: NDArray[np.uint32],
        sequences: NDArray[np.uint64],
        timestamps: NDArray[np.int64],
    ) -> None:
        """Appends encoded messages, byte for byte.

        `data` must not change before the next `flush`. Each start is that of a payload, with its record header in
        the eight bytes before. Raises ValueError if the sequences do not increase, or a payload has no header.
        """
        count = len(sizes)
        if not count or self.append_run(data, starts, sizes, sequences, timestamps):
            return
        view = memoryview(data)
        begin = int(starts[0]) - RECORD_HEADER_SIZE
        end = int(starts[-1]) + int(sizes[-1])
        for start, size in ((begin, int(sizes[0])), (end - int(sizes[-1]) - RECORD_HEADER_SIZE, int(sizes[-1]))):
            if start < 0 or RECORD_HEADER.unpack_from(view, start)[0] != size:
                raise ValueError("there is no record header before a payload")
        total = int(sizes.sum()) + count * RECORD_HEADER_SIZE if count > 1 else end - begin
        if end - begin == total:
            self._store(view[begin:end], None, sizes, sequences, timestamps)
        else:
            self._store(view, starts - RECORD_HEADER_SIZE, sizes, sequences, timestamps)

    def append_run(
        self,
        data: Buffer,
        starts: NDArray[np.int64],
        sizes: NDArray[np.uint32],
        sequences: NDArray[np.uint64],
        timestamps: NDArray[np.int64],
    ) -> bool:
        """Does the same as `append_encoded` if the records are contiguous and all go into the current slice."""
        have, limits, count = self.current, self.limits, len(sizes)
        if have is None or self._file is None or not have.count or (limits.max_age_ns and self._is_old(have)):
            return False
        run = kernels.index_run(
            data, starts, sizes, sequences, timestamps, have.data_size, self.last_sequence, self._crc
        )
        if run is None:
            return False
        index, begin, end = run
        size = end - begin
        cost = size + count * _INDEX_COST
        if 0 < limits.max_bytes <= have.bytes + cost or 0 < limits.max_msgs < have.count + count:
            return False
        if not self._index_rows:
            self._flushed = have.progress()
        self._index.append(index)
        self._index_rows += count
        self._parts.append(data if type(data) is bytes and len(data) == size else memoryview(data)[begin:end])
        self._pending += size
        self.last_sequence = have.last_sequence = self.last_sequence + count
        have.last_timestamp = timestamps.item(-1)
        have.count += count
        have.bytes += cost
        have.data_size += size
        if self._pending >= self._buffer_size:
            self._write_data()
        if self._index_rows >= _INDEX_ROWS:
            self._write_data()
            self._write_index()
        return True

    def store_record(self, record: bytes, sequence: int, timestamp: int) -> bool:
        """Does the same as `append_encoded` and `flush` (no sync) for one record that goes into the current slice.

        Returns False without an effect if it does not go there, or other records are waiting to be written.
        """
        have, file, limits, size = self.current, self._file, self.limits, len(record)
        if have is None or file is None or not have.count or self._index_rows:
            return False
        cost = size + _INDEX_COST
        if (
            sequence != self.last_sequence + 1
            or 0 < limits.max_bytes <= have.bytes + cost
            or 0 < limits.max_msgs <= have.count
            or (limits.max_age_ns and self._is_old(have))
        ):
            return False
        entry = kernels.index_record(sequence, have.data_size, timestamp, size - RECORD_HEADER_SIZE, self._crc)
        try:
            file.write_pair(record, entry)
        except OSError as error:
            self._flushed = have.progress()
            raise self._roll_back(error) from error
        self.last_sequence = have.last_sequence = sequence
        have.last_timestamp = timestamp
        have.count += 1
        have.bytes += cost
        have.data_size += size
        return True

    def _is_old(self, have: SliceState) -> bool:
        """Whether a slice may be too old for more messages; without a clock that depends on theirs."""
        return self._clock is None or self._clock() - have.first_timestamp >= self.limits.max_age_ns

    def reopen(self) -> None:
        """Opens the current slice again if it was closed; a new one is not begun."""
        if self._file is None and self.current is not None and self.current.count:
            self._open_again(self.current)

    def _open_again(self, have: SliceState) -> None:
        with writing(untouched="nothing was changed"):
            self._file = SliceOutput.reopen(
                self.directory, have.number, have.data_size, have.count, names_later=self._names_later
            )

    def mark(self) -> WriterMark:
        """Returns the state after a flush, for `go_back`."""
        current = self.current
        progress = None if current is None else current.progress()
        return WriterMark(self._last_number, self.last_sequence, len(self.finished), current, progress)

    def go_back(self, mark: WriterMark) -> None:
        """Undoes everything since a mark, also in the files, whatever errors came in between.

        All slices of the mark must still exist. Raises StoreUnwritableError if the files could not be cut back; then
        only another try is permitted.
        """
        self.abandon()
        with writing(self.directory, "it could not be restored to its earlier state"):
            for number in range(self._last_number, mark.last_number, -1):
                remove_slice(self.directory, number)
                self._last_number = number - 1
            current = self.current = mark.current
            if current is not None:
                assert mark.progress is not None
                current.return_to(mark.progress)
                # Not by `reopen`: the sizes differ.
                file = SliceOutput.open(self.directory, current.number)
                try:
                    file.cut(current.data_size, current.count)
                finally:
                    file.close()
        del self.finished[mark.finished :]
        self.last_sequence = mark.last_sequence

    def flush(self, *, sync: bool | None = None) -> None:
        """Writes the buffered records, data before index.

        `sync` makes them durable; the default is that of `WriteOptions`.
        """
        if self._file is None:
            return
        if self._pending:
            self._write_data()
        if self._index_rows:
            self._write_index()
        if self._sync if sync is None else sync:
            with writing(untouched="the last writes may not be durable"):
                self._file.sync()
                self._file.name()
                if self.names_to_sync:
                    fsync_directory(self.directory)
            self.synced()

    @property
    def unnamed(self) -> bool:
        """Whether new files have no names yet: they get them by `name_files`, when `descriptors` are synced."""
        return self._file is not None and self._file.unnamed

    def name_files(self) -> None:
        if self._file is not None:
            with writing(self.directory):
                self._file.name()

    @property
    def descriptors(self) -> Sequence[int]:
        """The open files that a sync makes durable, with the directory if `names_to_sync`.

        In any order or concurrently: the system may write the data to the disk in any order anyway.
        """
        return () if self._file is None else self._file.descriptors

    def synced(self) -> None:
        """Clears the state of `descriptors` and `names_to_sync` after the caller has synced them."""
        self.names_to_sync = False

    def release(self) -> None:
        """Flushes and closes the files, to have fewer files open; the next message opens them again."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        self.release()
        if self.current is not None:
            self.finished.append(self.current)
            self.current = None

    def abandon(self) -> None:
        self._clear_buffer()
        if self._file is not None:
            self._file.close()
            self._file = None

    # Encoding.

    def _store(
        self,
        source: memoryview,
        starts: NDArray[np.int64] | None,
        sizes: NDArray[np.uint32],
        sequence: NDArray[np.uint64],
        timestamp: NDArray[np.int64],
    ) -> None:
        """Stores records, at `starts`, or contiguous from the start of the source.

        Contiguous records may be used after the call.
        """
        if not len(sequence):
            return
        if int(sequence[0]) <= self.last_sequence or (
            len(sequence) > 1 and bool((sequence[1:] <= sequence[:-1]).any())
        ):
            raise ValueError(f"sequences must increase, the last one stored is {self.last_sequence}")
        ends = (sizes + np.int64(RECORD_HEADER_SIZE)).cumsum()
        at = 0
        run_ends = (np.flatnonzero(sequence[1:] - sequence[:-1] != 1) + 1).tolist() if self.fill_gaps else []
        for end in (*run_ends, len(sequence)):
            if self.fill_gaps and 0 < self.last_sequence < int(sequence[at]) - 1:
                self._fill(int(sequence[at]), int(timestamp[at]))
            while at < end:
                have = self._slice_for(int(timestamp[at]))
                begins = self._first_alone and not have.count
                spent = int(ends[at - 1]) if at else 0
                stop = at + (1 if begins else self._count_fitting(have, ends[at:end], spent, timestamp[at:end]))
                self._put(have, _SlicePart(source, starts, sizes, sequence, timestamp, ends, at, stop))
                if begins:
                    # The torn end of a killed write after an index's messages does no harm; see `slice_output`.
                    self._write_data()
                    self._write_index()
                at = stop

    def _slice_for(self, timestamp: int) -> SliceState:
        """Returns the slice for the next message: a new one if there is none or a limit is reached.

        Facts: filestore.md section 5.1.
        """
        have = self.current
        limits = self.limits
        if have is not None and have.count:
            now = self._clock() if self._clock else timestamp
            full = (
                0 < limits.max_bytes <= have.bytes
                or 0 < limits.max_msgs <= have.count
                or 0 < limits.max_age_ns <= now - have.first_timestamp
            )
            if not full:
                return have
            self.close()
            have = None
        return self._open_next() if have is None else have

    def _count_fitting(
        self, have: SliceState, ends: NDArray[np.int64], used_bytes: int, timestamp: NDArray[np.int64]
    ) -> int:
        """Returns how many of the next messages belong into the current slice, at least one.

        `ends` are cumulative record lengths on top of `spent`.
        """
        limits = self.limits
        room = len(ends)
        if limits.max_msgs:
            room = min(room, limits.max_msgs - have.count)
        if limits.max_bytes:
            left = limits.max_bytes - have.bytes
            if int(ends[room - 1]) - used_bytes + room * _INDEX_COST >= left:
                # the message that reaches the limit still belongs here
                costs = ends[:room] + np.arange(1, room + 1) * _INDEX_COST
                room = int(costs.searchsorted(left + used_bytes)) + 1
        if limits.max_age_ns and self._clock is None:
            first = have.first_timestamp if have.count else int(timestamp[0])
            old = np.flatnonzero(timestamp[:room] - first >= limits.max_age_ns)
            room = min(room, int(old[0])) if len(old) else room
        return max(room, 1)

    def _fill(self, sequence: int, timestamp: int) -> None:
        """Fills the gap before a sequence, in the current slice whatever its limits (filestore.md section 5.3)."""
        have = self.current or self._open_next()
        for first in range(self.last_sequence + 1, sequence, _FILLER_BATCH):
            missing = np.arange(first, min(first + _FILLER_BATCH, sequence), dtype=np.uint64)
            times = np.full(len(missing), timestamp, np.int64)
            records, sizes = kernels.encode_messages(
                self.channel, missing, times, None, [b""] * len(missing), self._crc
            )
            ends = (sizes + np.int64(RECORD_HEADER_SIZE)).cumsum()
            self._put(have, _SlicePart(memoryview(records), None, sizes, missing, times, ends, 0, len(missing)))

    def _put(self, have: SliceState, part: _SlicePart) -> None:
        if self._file is None:
            self._open_again(have)
            self.names_to_sync |= not have.count
        total, offsets = part.place(have.data_size)
        sequence, timestamp = part.sequence, part.timestamp
        if not self._index_rows:
            self._flushed = have.progress()
        self._index.append(kernels.encode_index(sequence, offsets, timestamp, part.sizes, self._crc))
        count = len(sequence)
        self._index_rows += count
        if not have.count:
            have.first_sequence, have.first_timestamp = int(sequence[0]), int(timestamp[0])
        self.last_sequence = have.last_sequence = int(sequence[-1])
        have.last_timestamp = int(timestamp[-1])
        have.count += count
        have.bytes += total + count * _INDEX_COST
        have.data_size += total
        self._pending += total
        full = self._pending >= self._buffer_size
        if part.lasting or full or total >= _MIN_DIRECT:
            self._parts += part.pieces()
            if full or not part.lasting:
                self._write_data()
        else:
            self._parts.append(b"".join(part.pieces()))
        if self._index_rows >= _INDEX_ROWS:
            self._write_data()
            self._write_index()

    # Files.

    def _open_next(self) -> SliceState:
        number = self._last_number + 1
        with writing(untouched="the slices before it are unchanged"):
            self._file = SliceOutput.create(self.directory, number, names_later=self._names_later)
        self._last_number = number
        self.names_to_sync = True
        self.current = SliceState(number)
        return self.current

    def _write_data(self) -> None:
        if not self._pending:
            return
        assert self._file is not None
        parts, self._parts, self._pending = self._parts, [], 0
        try:
            self._file.write_data(parts)
        except OSError as error:
            raise self._roll_back(error) from error

    def _write_index(self) -> None:
        if not self._index_rows:
            return
        assert self._file is not None
        records = self._index[0] if len(self._index) == 1 else b"".join(self._index)
        self._index, self._index_rows = [], 0
        try:
            self._file.write_index(records)
        except OSError as error:
            raise self._roll_back(error) from error

    def _roll_back(self, error: OSError) -> StoreUnwritableError:
        """Cuts the files and the state back to the last message that is complete in both."""
        assert self._file is not None
        assert self.current is not None
        assert self._flushed is not None
        self._clear_buffer()
        state = self.current
        state.return_to(self._flushed)
        before = self.finished[-1].last_sequence if self.finished else self._first_last
        self.last_sequence = state.last_sequence or before
        path = self._file.data_path
        try:
            self._file.cut(state.data_size, state.count)
        except OSError as second:
            return unwritable(error, path, f"its end could not be cut back to the last whole message: {second}")
        return unwritable(
            error, path, f"it ends with the last whole message before the error, sequence {state.last_sequence}"
        )

    def _clear_buffer(self) -> None:
        self._parts, self._pending = [], 0
        self._index, self._index_rows = [], 0


class _SlicePart:
    """Some records of a batch, all for the same slice."""

    def __init__(
        self,
        source: memoryview,
        starts: NDArray[np.int64] | None,
        sizes: NDArray[np.uint32],
        sequence: NDArray[np.uint64],
        timestamp: NDArray[np.int64],
        ends: NDArray[np.int64],
        first: int,
        stop: int,
    ) -> None:
        self._source = source
        self._starts = None if starts is None else starts[first:stop]
        self._ends = ends[first:stop]
        self._base = int(ends[first - 1]) if first else 0
        self.lasting = starts is None  #: the source may be used later
        self.sequence = sequence[first:stop]
        self.timestamp = timestamp[first:stop]
        self.sizes = sizes[first:stop]

    def place(self, at: int) -> tuple[int, NDArray[np.int64]]:
        """Returns the bytes of all records, and the start of each if they are written at an offset."""
        lengths = self.sizes + np.int64(RECORD_HEADER_SIZE)
        return int(self._ends[-1]) - self._base, self._ends - lengths + (at - self._base)

    def pieces(self) -> list[memoryview]:
        """Returns the records in as few pieces as possible."""
        starts, total = self._starts, int(self._ends[-1]) - self._base
        if starts is None:
            return [self._source[self._base : self._base + total]]
        stops = starts + self.sizes + np.int64(RECORD_HEADER_SIZE)
        cuts = np.flatnonzero(starts[1:] != stops[:-1])
        if not len(cuts):
            return [self._source[int(starts[0]) : int(stops[-1])]]
        begins = [int(starts[0]), *starts[cuts + 1].tolist()]
        return [
            self._source[begin:end] for begin, end in zip(begins, [*stops[cuts].tolist(), int(stops[-1])], strict=True)
        ]
