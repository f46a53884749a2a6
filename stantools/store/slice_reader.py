"""Reading a message slice, whatever state its files are in.

`SliceFile.records` is the basis of verify, salvage and the tables: it yields batches of good records and, between
them, the damaged ranges, in file order and without a gap. However big the file is, only a window of it is in memory.

`SliceFile.open` opens a slice as the server does at its start (filestore.md sections 5.3 and 7.6): its index is
trusted if all its records are whole and the last one agrees with the data file. `slice_rows` reads the index then, or
else the data.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.format.columns import FewMessages, MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.encryption import may_be_encrypted
from stantools.format.envelope import check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, ScanStop
from stantools.format.message_batch import MessageBatch
from stantools.lazy_numpy import np
from stantools.notation import counted
from stantools.store.directory import SliceFiles
from stantools.store.indexes import IndexRecord, SliceIndex, scan_index
from stantools.store.mapping import WINDOW, Buffer, MappedWindow, mapped
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange, Resync

#: rows of one batch: its columns stay in the processor's cache
BATCH_ROWS = 16384
#: The first batch only determines the sizes, if there are more bytes than a batch should have.
_FIRST_ROWS = 64
#: messages examined to determine whether a slice is encrypted
SAMPLES = 8


class SliceFile:
    """The data file of a slice, or its beginning, open for reading, with its index if that can be trusted.

    `channel` is the name as stored in subjects.
    """

    def __init__(self, data: Buffer, channel: bytes, crc: Crc) -> None:
        self.data = data
        self.channel = channel
        self.crc = crc
        self.index: SliceIndex | None = None  #: its mapped index with at least one record, if it can be trusted
        #: Problem of the index; "" if none. A trusted index may have one as well: the server does not see bytes beyond
        #: its end.
        self.problem = ""
        self.sizes = 0  #: total payload size of the messages of a trusted index
        #: Problem of the data file's version; "" if none. With one, the index is not read.
        self.header_error = ""

    @classmethod
    @contextmanager
    def open(cls, files: SliceFiles, channel: bytes, crc: Crc, *, by_index: bool = True) -> Iterator[SliceFile]:
        """Opens a slice that has a data file, and checks whether its index can be trusted.

        With `by_index` False, the index is not read. Raises StoreUnreadableError if the data file cannot be read.
        """
        assert files.data is not None
        with ExitStack() as stack:
            opened = cls(stack.enter_context(mapped(files.data)), channel, crc)
            opened.header_error = check_file_version(opened.data) or ""
            if by_index and not opened.header_error:
                opened.open_index(files, stack)
            yield opened

    def open_index(self, files: SliceFiles, stack: ExitStack) -> None:
        """Maps the index of the slice and checks whether it can be trusted."""
        empty = len(self.data) == FILE_HEADER_SIZE
        if files.index is None:
            self.problem = "" if empty else "the index is missing"
            return
        try:
            buffer = stack.enter_context(mapped(files.index))
        except StoreUnreadableError as error:
            self.problem = error.message
            return
        if text := check_file_version(buffer):
            self.problem = f"the index: {text}"
            return
        count, stop, sizes, _ = scan_index(buffer, self.crc)
        if stop == ScanStop.ZEROS:
            rest = len(buffer) - FILE_HEADER_SIZE - count * INDEX_RECORD_SIZE
            zeros = counted(rest, "byte", "that begins/that begin")
            self.problem = f"the index ends in {zeros} with zeros; the server cuts it there"
        elif stop != ScanStop.END:
            self.problem = f"the index is damaged at record {count + 1}"
            return
        if not count:
            self.problem = self.problem or ("" if empty else "the index is empty")
            return
        index = SliceIndex(buffer, count)
        last = index[-1]
        if not self.agrees(last):
            self.problem = "the last record of the index does not agree with the data file"
            return
        self.index, self.sizes = index, sizes
        if rest := len(self.data) - last.end:
            unnamed = f"{counted(rest, 'byte')} of the data file {'lies' if rest == 1 else 'lie'}"
            self.problem = self.problem or f"{unnamed} after the last message of the index"

    def records(
        self,
        start: int = FILE_HEADER_SIZE,
        until: int | None = None,
        *,
        index: SliceIndex | Callable[[], SliceIndex | None] | None = None,
        rows: int = BATCH_ROWS,
        max_bytes: int = WINDOW,
    ) -> Iterator[MessageBatch | DamagedRange]:
        """Reads the data file from a record on to the last byte.

        Yields batches that are valid until the next step, and damaged ranges. They cover the file: a batch begins
        where the event before it ended. Good records of the slice's `index` help to continue after damage; a function
        is called at the first damage. The scan stops at the first record or damage at `until` or later.

        A batch has up to `rows` messages. `max_bytes` bounds its bytes, except for a single larger message; the
        target is half of it, because long messages may follow short ones.
        """
        buffer, limit = self.data, len(self.data)
        until = limit if until is None else min(until, limit)
        resync: Resync | None = None
        # A batch is not used any more when the next one is read.
        aim = max(max_bytes // 2, 1)
        window = MappedWindow(buffer, aim, retained=0)
        at = start
        with _lent_columns(rows) as columns:
            wanted = _FIRST_ROWS if until - start > aim else columns.capacity
            while at < until:
                window.reach(at)
                begin = at
                part = columns if wanted >= columns.capacity else columns.take(wanted)
                end = min(at + max_bytes, until)
                count, at, stop = kernels.scan_messages(buffer, at, end, self.crc, self.channel, part)
                if end < limit and stop not in (ScanStop.END, ScanStop.FULL):
                    # Either the record extends beyond `end`, or it is bad, which its own scan will show.
                    stop = ScanStop.END
                    if not count:
                        part = columns.take(1)
                        count, at, stop = kernels.scan_messages(buffer, at, limit, self.crc, self.channel, part)
                if count:
                    wanted = max(1, min(columns.capacity, aim * count // (at - begin)))
                    yield MessageBatch(columns.take(count), buffer, self.channel)
                if stop in (ScanStop.END, ScanStop.FULL):
                    continue
                resync = resync or Resync(buffer, self.channel, self.crc, index() if callable(index) else index)
                damage = resync.after(at, ScanStop(stop))
                yield damage
                at = damage.end

    def message_at(self, offset: int) -> FewMessages | None:
        """Reads the message at an offset; None if there is no good one.

        Returns columns with the message in the first row, valid until the thread's next call.
        """
        columns, stops = _small_columns(), bytearray(1)
        kernels.read_messages_at(
            self.data, len(self.data), array("q", [offset]), self.crc, self.channel, columns, stops
        )
        return columns if stops[0] == ScanStop.END else None

    def agrees(self, record: IndexRecord) -> bool:
        """Returns whether a good message of the same sequence and size lies where an index record says."""
        found = SliceFile(self.data, self.channel, self.crc.checking).message_at(record.offset)
        return found is not None and (found.sequence[0], found.size[0]) == (record.sequence, record.size)

    def look_encrypted(self, offsets: Iterable[int]) -> bool:
        """Returns whether some of the messages at offsets, up to `SAMPLES`, may be encrypted."""
        wanted = array("q", offsets)
        columns, stops = _small_columns().take(len(wanted)), bytearray(len(wanted))
        kernels.read_messages_at(self.data, len(self.data), wanted, self.crc.checking, self.channel, columns, stops)
        places = zip(columns.sequence, columns.data_start, columns.data_size, strict=True)
        return may_be_encrypted((sequence, self.data[start : start + size]) for sequence, start, size in places if size)


def among(batch: MessageBatch, wanted: Ranges) -> MessageBatch:
    """Returns the wanted rows of a batch with rising sequences; views if they are contiguous."""
    low = int(np.searchsorted(batch.sequence, np.uint64(wanted.first)))
    high = int(np.searchsorted(batch.sequence, np.uint64(wanted.last), side="right"))
    part = batch.part(low, high)
    chosen = wanted.select(part.sequence)
    return part if chosen.all() else part.pick(chosen)


def slice_rows(files: SliceFiles, channel: bytes, crc: Crc) -> Iterator[MessageRecords]:
    """Iterates over the messages of a slice, by its index if that can be trusted, else by its data.

    Yields views that are valid until the next step. Raises StoreUnreadableError if the data file cannot be read.
    """
    if files.data is None:
        return
    with SliceFile.open(files, channel, crc) as opened:
        if opened.index is not None:
            yield from opened.index.parts()
        elif not opened.header_error:
            yield from (part for part in opened.records() if not isinstance(part, DamagedRange))


def index_ends(files: SliceFiles, channel: bytes, crc: Crc) -> tuple[int, int] | None:
    """Returns the first and last sequence in an index whose first and last record are right, else None."""
    if files.index is None or files.data is None:
        return None
    with ExitStack() as stack:
        try:
            buffer, data = stack.enter_context(mapped(files.index)), stack.enter_context(mapped(files.data))
        except StoreUnreadableError:
            return None
        count, rest = divmod(len(buffer) - FILE_HEADER_SIZE, INDEX_RECORD_SIZE)
        if count < 1 or rest or check_file_version(buffer):
            return None
        index = SliceIndex(buffer, count)
        first, last = index[0], index[-1]
        if not (first.proven(crc) and last.proven(crc)):
            return None
        if not SliceFile(data, channel, crc).agrees(last):
            return None
        return first.sequence, last.sequence


def _small_columns() -> FewMessages:
    """Returns columns for a few messages; each thread reuses its own, for stores with many channels."""
    if not hasattr(_own, "columns"):
        _own.columns = FewMessages(SAMPLES)
    columns: FewMessages = _own.columns
    return columns


_own = threading.local()


@contextmanager
def _lent_columns(rows: int) -> Iterator[MessageColumns]:
    """Lends columns that are not in use: making them costs more than reading a small slice."""
    if rows != BATCH_ROWS:
        yield MessageColumns(rows)
        return
    try:
        columns = _spare.pop()
    except IndexError:
        columns = MessageColumns(BATCH_ROWS)
    try:
        yield columns
    finally:
        if len(_spare) < _MAX_SPARE:
            _spare.append(columns)


_MAX_SPARE = 8
_spare: list[MessageColumns] = []
