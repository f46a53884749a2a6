"""Reading message slices, whatever state their files are in.

`scan_slice` is the basis of verify, salvage and the tables: it yields batches of good records as columns and,
between them, the damaged ranges, in file order and without a gap. However big the file is, only a window of it is in
memory.

`open_slice` opens a slice as the server does at its start (filestore.md sections 5.3 and 7.6): its index is trusted
if all its records are whole and the last one agrees with the data file. `slice_rows` reads the index then, or else
the data.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.format.columns import FewMessages, MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.encryption import may_be_encrypted
from stantools.format.envelope import check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, ScanStop
from stantools.lazy_numpy import np
from stantools.notation import counted
from stantools.store.directory import SliceFiles
from stantools.store.indexes import IndexRecord, SliceIndex, scan_index
from stantools.store.mapping import WINDOW, Buffer, MappedWindow, mapped
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange, Resync

if TYPE_CHECKING:
    pass

#: rows of one batch: its columns stay in the processor's cache
BATCH_ROWS = 16384
#: The first batch only determines the sizes, if there are more bytes than a batch should have.
_FIRST_ROWS = 64
#: messages examined to determine whether a slice is encrypted
SAMPLES = 8


def scan_slice(
    buffer: Buffer,
    channel: bytes,
    crc: Crc,
    *,
    index: SliceIndex | Callable[[], SliceIndex | None] | None = None,
    columns: MessageColumns | None = None,
    start: int = FILE_HEADER_SIZE,
    until: int | None = None,
    max_bytes: int = WINDOW,
) -> Iterator[MessageColumns | DamagedRange]:
    """Scans a mapped data file, or its beginning, from the first record to the last byte.

    Yields views of `columns` that are valid until the next step, and damaged ranges. They cover the file: a batch
    begins where the event before it ended. Good records of the slice's `index` help to continue after damage; a
    function is called at the first damage. The scan stops at the first record or damage at `until` or later.
    `max_bytes` bounds the bytes of a batch, except for a single larger message; the target is half of it, because
    long messages may follow short ones.
    """
    columns = MessageColumns(BATCH_ROWS) if columns is None else columns
    limit = len(buffer)
    until = limit if until is None else min(until, limit)
    resync: Resync | None = None
    # A batch is not used any more when the next one is read.
    aim = max(max_bytes // 2, 1)
    window = MappedWindow(buffer, aim, retained=0)
    at, wanted = start, _FIRST_ROWS if until - start > aim else columns.capacity
    while at < until:
        window.reach(at)
        begin = at
        part = columns if wanted >= columns.capacity else columns.take(wanted)
        end = min(at + max_bytes, until)
        rows, at, stop = kernels.scan_messages(buffer, at, end, crc, channel, part)
        if end < limit and stop not in (ScanStop.END, ScanStop.FULL):
            # Either the record extends beyond `end`, or it is bad, which its own scan will show.
            stop = ScanStop.END
            if not rows:
                rows, at, stop = kernels.scan_messages(buffer, at, limit, crc, channel, columns.take(1))
        if rows:
            wanted = max(1, min(columns.capacity, aim * rows // (at - begin)))
            yield columns.take(rows)
        if stop in (ScanStop.END, ScanStop.FULL):
            continue
        resync = resync or Resync(buffer, channel, crc, index() if callable(index) else index)
        damage = resync.after(at, ScanStop(stop))
        yield damage
        at = damage.end


def among(batch: MessageColumns, wanted: Ranges) -> MessageColumns:
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
    with open_slice(files, channel, crc) as opened:
        if opened.index is not None:
            yield from opened.index.parts()
        elif not opened.header_error:
            for part in scan_slice(opened.data, channel, crc):
                if not isinstance(part, DamagedRange):
                    yield part


@dataclass(frozen=True, slots=True)
class OpenSlice:
    data: Buffer
    index: SliceIndex | None = None  #: its mapped index with at least one record, if it can be trusted
    #: Problem of the index; "" if none. A trusted index may have one as well: the server does not see bytes beyond its
    #: end.
    problem: str = ""
    sizes: int = 0  #: total payload size of the messages of a trusted index
    #: problem of the data file's version; "" if none. With one, the index is not read.
    header_error: str = ""


@contextmanager
def open_slice(files: SliceFiles, channel: bytes, crc: Crc, *, by_index: bool = True) -> Iterator[OpenSlice]:
    """Opens a slice that has a data file, and checks whether its index can be trusted.

    With `by_index` False, the index is not read. Raises StoreUnreadableError if the data file cannot be read.
    """
    assert files.data is not None
    with mapped(files.data) as data:
        if text := check_file_version(data):
            yield OpenSlice(data, header_error=text)
        elif not by_index:
            yield OpenSlice(data)
        else:
            with ExitStack() as stack:
                yield open_index(files, data, channel, crc, stack)


def open_index(files: SliceFiles, data: Buffer, channel: bytes, crc: Crc, stack: ExitStack) -> OpenSlice:
    if files.index is None:
        return OpenSlice(data, problem="" if len(data) == FILE_HEADER_SIZE else "the index is missing")
    try:
        buffer = stack.enter_context(mapped(files.index))
    except StoreUnreadableError as error:
        return OpenSlice(data, problem=error.message)
    if text := check_file_version(buffer):
        return OpenSlice(data, problem=f"the index: {text}")
    count, stop, sizes, _ = scan_index(buffer, crc)
    problem = ""
    if stop == ScanStop.ZEROS:
        behind = len(buffer) - FILE_HEADER_SIZE - count * INDEX_RECORD_SIZE
        zeros = counted(behind, "byte", "that begins/that begin")
        problem = f"the index ends in {zeros} with zeros; the server cuts it there"
    elif stop != ScanStop.END:
        return OpenSlice(data, problem=f"the index is damaged at record {count + 1}")
    if not count:
        return OpenSlice(data, problem=problem or ("" if len(data) == FILE_HEADER_SIZE else "the index is empty"))
    index = SliceIndex(buffer, count)
    last = index[-1]
    if not last_agrees(data, last, channel, crc):
        return OpenSlice(data, problem="the last record of the index does not agree with the data file")
    behind = len(data) - last.end
    if behind:
        unnamed = f"{counted(behind, 'byte')} of the data file {'lies' if behind == 1 else 'lie'}"
        problem = problem or f"{unnamed} after the last message of the index"
    return OpenSlice(data, index, problem, sizes)


def last_agrees(data: Buffer, last: IndexRecord, channel: bytes, crc: Crc) -> bool:
    found = message_at(data, last.offset, channel, crc.checking)
    return found is not None and (found.sequence[0], found.size[0]) == (last.sequence, last.size)


def message_at(data: Buffer, offset: int, channel: bytes, crc: Crc) -> FewMessages | None:
    """Reads the message at an offset of a data file; None if there is no good one.

    Returns columns with the message in the first row, valid until the thread's next call.
    """
    columns, stops = _small_columns(), bytearray(1)
    kernels.read_messages_at(data, len(data), array("q", [offset]), crc, channel, columns, stops)
    return columns if stops[0] == ScanStop.END else None


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
        if not last_agrees(data, last, channel, crc):
            return None
        return first.sequence, last.sequence


def samples_look_encrypted(data: Buffer, offsets: Iterable[int], channel: bytes, crc: Crc) -> bool:
    """Returns whether some messages of a channel, up to `SAMPLES`, may be encrypted."""
    wanted = array("q", offsets)
    columns, stops = _small_columns().take(len(wanted)), bytearray(len(wanted))
    kernels.read_messages_at(data, len(data), wanted, crc.checking, channel, columns, stops)
    places = zip(columns.sequence, columns.data_start, columns.data_size, strict=True)
    return may_be_encrypted((sequence, data[start : start + size]) for sequence, start, size in places if size)


def _small_columns() -> FewMessages:
    """Returns columns for a few messages; each thread reuses its own, for stores with many channels."""
    if not hasattr(_own, "columns"):
        _own.columns = FewMessages(SAMPLES)
    columns: FewMessages = _own.columns
    return columns


_own = threading.local()
