"""What one slice holds, told from its index alone where the index can be trusted.

Facts: filestore.md sections 5.3 and 7.6. As the server does at its start, the index is believed if all its
records are whole and the last one agrees with the data file; else the data file is scanned. Unlike the server, a scan
here goes on behind damage and changes no file.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format import index, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.encryption import looks_encrypted
from stantools.format.envelope import check_file_version
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    INDEX_RECORD_SIZE,
    MESSAGE_OVERHEAD,
    RECORD_HEADER_SIZE,
    Stop,
)
from stantools.notation import counted
from stantools.store.directory import SliceFiles
from stantools.store.indexes import IndexView, index_parts, scan_index
from stantools.store.mapping import Buffer, mapped
from stantools.store.resync import Damage
from stantools.store.scan import scan_slice

#: Messages of a slice that are looked at to tell whether it is encrypted.
_SAMPLES = 8


class Source(enum.StrEnum):
    """Where the facts about a slice come from."""

    INDEX = "index"
    SCAN = "scan"
    NOTHING = "nothing"  #: there is no message, or the data file cannot be read


@dataclass
class SliceSummary:
    """What one slice holds.

    Attributes:
        files: Its files.
        count: Messages.
        bytes: Their size in the server's accounting (payload of the record + 40 each, filestore.md section 5.1).
        first_seq: Sequence of the first message in the file, 0 if there is none.
        last_seq: Sequence of the last message in the file.
        first_timestamp: Of the first message, in nanoseconds.
        last_timestamp: Of the last message.
        source: Where this comes from.
        problems: What is not as a healthy server leaves it, in words.
        encrypted: The last messages look encrypted.
    """

    files: SliceFiles
    count: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    source: Source = Source.NOTHING
    problems: tuple[str, ...] = ()
    encrypted: bool = False


@dataclass
class Totals:
    """What the server counts of a channel when it has recovered its slices.

    Attributes:
        first: The lowest of the slices' first sequences, 0 if there is no message.
        last: The highest of their last sequences.
        count: Messages.
        bytes: Their size in the server's accounting.
    """

    first: int = 0
    last: int = 0
    count: int = 0
    bytes: int = 0

    def add(self, first: int, last: int, count: int, size: int) -> None:
        """Counts a slice; one without messages changes nothing."""
        if not count:
            return
        self.first = min(self.first, first) if self.count else first
        self.last = max(self.last, last)
        self.count += count
        self.bytes += size


def totals_of(slices: Iterable[SliceSummary]) -> Totals:
    """Returns what the server counts of a channel with these slices."""
    result = Totals()
    for each in slices:
        result.add(each.first_seq, each.last_seq, each.count, each.bytes)
    return result


def channel_ends(slices: Iterable[SliceFiles], channel: bytes, crc: Crc, *, check_crc: bool = True) -> tuple[int, int]:
    """Returns the first and the last sequence of a channel as `Totals` has them, 0 and 0 without a message.

    Of an index that looks right only the ends are read.
    """
    result = Totals()
    for files in slices:
        if (ends := _ends(files, channel, crc)) is not None:
            result.add(*ends, 1, 0)
        else:
            each = summarise(files, channel, crc, check_crc=check_crc)
            result.add(each.first_seq, each.last_seq, each.count, 0)
    return result.first, result.last


def _ends(files: SliceFiles, channel: bytes, crc: Crc) -> tuple[int, int] | None:
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
        view = index.view(buffer, count)
        for row in (0, count - 1):
            begin = FILE_HEADER_SIZE + row * INDEX_RECORD_SIZE
            if crc(buffer[begin : begin + INDEX_RECORD_SIZE - 4]) != view[row]["crc"]:
                return None
        if not _last_agrees(data, view[-1], channel, crc):
            return None
        return int(view[0]["sequence"]), int(view[-1]["sequence"])


@dataclass
class Rows:
    """The messages of a slice as columns, in the order of the file: sequence, offset, timestamp and payload size."""

    sequence: npt.NDArray[np.uint64]
    offset: npt.NDArray[np.int64]
    timestamp: npt.NDArray[np.int64]
    size: npt.NDArray[np.uint32]


def summarise(files: SliceFiles, channel: bytes, crc: Crc, *, check_crc: bool = True) -> SliceSummary:
    """Looks at one slice; never raises for what is in its files.

    Args:
        files: The slice.
        channel: The channel's name as stored in subjects.
        crc: The store's CRC.
        check_crc: False passes over CRCs of index records.
    """
    if files.data is None:
        return SliceSummary(files, problems=("the index has no data file",))
    try:
        with mapped(files.data) as data:
            if text := check_file_version(data):
                return _from_scan(files, data, channel, crc, check_crc, text)
            with trusted_index(files, data, channel, crc, check_crc=check_crc) as (view, problem):
                if view is not None and len(view):
                    return _from_index(files, data, view, problem, channel, crc)
            return _from_scan(files, data, channel, crc, check_crc, problem)
    except StoreUnreadableError as error:
        return SliceSummary(files, problems=(error.message,))


@contextmanager
def trusted_index(
    files: SliceFiles, data: Buffer, channel: bytes, crc: Crc, *, check_crc: bool = True
) -> Iterator[tuple[IndexView | None, str]]:
    """Opens a slice's index and checks whether it can be believed.

    Yields:
        Its records, or None if it cannot be believed; and what is wrong, "" if nothing. Records with a problem mean
        that the server believes them, too, and does not see what lies behind.
    """
    if files.index is None:
        yield None, "" if len(data) == FILE_HEADER_SIZE else "the index is missing"
        return
    with ExitStack() as stack:
        try:
            buffer = stack.enter_context(mapped(files.index))
        except StoreUnreadableError as error:
            yield None, error.message
            return
        yield _check_index(buffer, data, channel, crc, check_crc)


def _check_index(
    buffer: Buffer, data: Buffer, channel: bytes, crc: Crc, check_crc: bool
) -> tuple[IndexView | None, str]:
    if text := check_file_version(buffer):
        return None, f"the index: {text}"
    count, stop = scan_index(buffer, crc, check_crc=check_crc)
    problem = ""
    if stop == Stop.ZEROS:
        behind = len(buffer) - FILE_HEADER_SIZE - count * INDEX_RECORD_SIZE
        zeros = counted(behind, "byte", "that begins/that begin")
        problem = f"the index ends in {zeros} with zeros; the server cuts it there"
    elif stop != Stop.END:
        return None, f"the index is damaged at record {count + 1}"
    if not count:
        return None, problem or ("" if len(data) == FILE_HEADER_SIZE else "the index is empty")
    view = index.view(buffer, count)
    last = view[-1]
    if not _last_agrees(data, last, channel, crc):
        return None, "the last record of the index does not agree with the data file"
    behind = len(data) - int(last["offset"]) - RECORD_HEADER_SIZE - int(last["size"])
    if behind:
        unnamed = f"{counted(behind, 'byte')} of the data file {'lies' if behind == 1 else 'lie'}"
        problem = problem or f"{unnamed} behind the last message of the index"
    return view, problem


def _last_agrees(data: Buffer, last: np.void, channel: bytes, crc: Crc) -> bool:
    """Tells whether the message that the last record of an index names is there."""
    columns, stops = _few_columns(), np.zeros(1, np.uint8)
    kernels.read_messages_at(data, len(data), np.array([last["offset"]]), crc, True, channel, columns, stops)
    return bool(stops[0] == Stop.END and columns.sequence[0] == last["sequence"] and columns.size[0] == last["size"])


def _from_index(
    files: SliceFiles, data: Buffer, view: IndexView, problem: str, channel: bytes, crc: Crc
) -> SliceSummary:
    first, last, count = view[0], view[-1], len(view)
    return SliceSummary(
        files,
        count,
        sum(int(part["size"].sum(dtype=np.int64)) for part in index_parts(view)) + MESSAGE_OVERHEAD * count,
        int(first["sequence"]),
        int(last["sequence"]),
        int(first["timestamp"]),
        int(last["timestamp"]),
        Source.INDEX,
        (problem,) if problem else (),
        _look_encrypted(data, view["offset"][-_SAMPLES:], channel, crc),
    )


def _few_columns() -> MessageColumns:
    """Returns columns for a few messages; each thread uses its own again and again, for stores with many channels."""
    if not hasattr(_own, "columns"):
        _own.columns = MessageColumns(_SAMPLES)
    columns: MessageColumns = _own.columns
    return columns


_own = threading.local()


def _look_encrypted(data: Buffer, offsets: npt.NDArray[np.int64], channel: bytes, crc: Crc) -> bool:
    """Tells whether most of some messages look encrypted; a single one can do so by chance."""
    columns, stops = _few_columns().take(len(offsets)), np.zeros(len(offsets), np.uint8)
    kernels.read_messages_at(data, len(data), np.ascontiguousarray(offsets), crc, True, channel, columns, stops)
    places = zip(columns.data_start.tolist(), columns.data_size.tolist(), strict=True)
    looks = [looks_encrypted(data[start : start + size]) for start, size in places if size]
    return sum(looks) * 2 > len(looks)


def _from_scan(
    files: SliceFiles, data: Buffer, channel: bytes, crc: Crc, check_crc: bool, problem: str
) -> SliceSummary:
    summary = SliceSummary(files)
    problems = [problem] if problem else []
    damaged = bytes_damaged = 0
    offsets = np.empty(0, np.int64)
    for part in scan_slice(data, channel, crc, check_crc=check_crc):
        if isinstance(part, Damage):
            damaged += 1
            bytes_damaged += part.length
            continue
        if not summary.count:
            summary.first_seq, summary.first_timestamp = int(part.sequence[0]), int(part.timestamp[0])
        summary.count += part.capacity
        summary.bytes += int(part.size.sum(dtype=np.int64)) + MESSAGE_OVERHEAD * part.capacity
        summary.last_seq, summary.last_timestamp = int(part.sequence[-1]), int(part.timestamp[-1])
        offsets = part.offset[-_SAMPLES:].copy()
    if damaged:
        places = counted(damaged, "place", "is/are")
        problems.append(f"{places} damaged in the data file, {counted(bytes_damaged, 'byte')}")
    summary.source = Source.SCAN if summary.count else Source.NOTHING
    if summary.count:
        summary.encrypted = _look_encrypted(data, offsets, channel, crc)
    summary.problems = tuple(problems)
    return summary


def rows_of(files: SliceFiles, channel: bytes, crc: Crc, *, check_crc: bool = True) -> Rows:
    """Returns the messages of a slice as columns, from the index where it can be believed.

    Raises:
        StoreUnreadableError: The data file cannot be read.
    """
    parts = [_NO_ROWS]
    if files.data is not None:
        with mapped(files.data) as data:
            with trusted_index(files, data, channel, crc, check_crc=check_crc) as (view, _):
                if view is not None:
                    return Rows(*(view[name].copy() for name in ("sequence", "offset", "timestamp", "size")))
            if not check_file_version(data):
                for part in scan_slice(data, channel, crc, check_crc=check_crc):
                    if not isinstance(part, Damage):
                        copies = part.sequence.copy(), part.offset.copy(), part.timestamp.copy(), part.size.copy()
                        parts.append(Rows(*copies))
    return Rows(
        np.concatenate([p.sequence for p in parts]),
        np.concatenate([p.offset for p in parts]),
        np.concatenate([p.timestamp for p in parts]),
        np.concatenate([p.size for p in parts]),
    )


_NO_ROWS = Rows(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))
