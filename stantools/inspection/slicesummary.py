"""Contents of slices, from their indexes alone if these can be trusted; messages that limits leave in a channel.

Facts: filestore.md sections 5.3 and 7.6. If an index cannot be trusted, the data file is scanned. Unlike the
server's, a scan here continues after damage and changes no file.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from stantools.errors import StoreUnreadableError
from stantools.format.columns import MessageRecords
from stantools.format.crc import Crc
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.lazy_numpy import np
from stantools.notation import counted
from stantools.store.directory import SliceFiles
from stantools.store.indexes import SliceIndex
from stantools.store.limits import ChannelLimits
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import (
    SAMPLES,
    SliceFile,
    index_ends,
    slice_rows,
)


class SummarySource(enum.StrEnum):
    """Source of the facts about a slice."""

    INDEX = "index"
    SCAN = "scan"
    NOTHING = "nothing"  #: there is no message, or the data file cannot be read


@dataclass
class SliceSummary:
    files: SliceFiles
    count: int = 0
    bytes: int = 0  #: size in the server's accounting (payload of the record + 40 each, filestore.md section 5.1)
    first_seq: int = 0  #: sequence of the first message in the file, 0 if there is none
    last_seq: int = 0  #: sequence of the last message in the file
    first_timestamp: int = 0  #: of the first message, in nanoseconds
    last_timestamp: int = 0  #: of the last message
    source: SummarySource = SummarySource.NOTHING
    problems: tuple[str, ...] = ()  #: differences from what a healthy server leaves, in words
    encrypted: bool = False  #: messages of it may be encrypted


@dataclass
class ServerTotals:
    """The server's counts for a channel after it has recovered its slices."""

    first: int = 0  #: lowest of the slices' first sequences, 0 if there is no message
    last: int = 0  #: highest of their last sequences
    count: int = 0
    bytes: int = 0  #: size in the server's accounting

    def add(self, first: int, last: int, count: int, size: int) -> None:
        """Counts a slice; one without messages changes nothing."""
        if not count:
            return
        self.first = min(self.first, first) if self.count else first
        self.last = max(self.last, last)
        self.count += count
        self.bytes += size


@dataclass(frozen=True)
class LogicalView:
    """The server's view of a channel under given limits, while older messages are still on disk."""

    first_seq: int  #: first sequence; last_seq + 1 if age removed everything, 0 if the channel never had a message
    last_seq: int
    count: int
    bytes: int  #: size in the server's accounting
    removed: int  #: messages on disk that the limits hide


def logical_view(
    slices: Iterable[SliceSummary],
    limits: ChannelLimits,
    channel: bytes,
    crc: Crc,
    *,
    now_ns: int,
) -> LogicalView:
    """Applies limits to a channel as the server does at its start.

    `slices` come by number, `channel` as stored in subjects. Ages are relative to `now_ns`.
    """
    filled = [each for each in slices if each.count]
    totals = totals_of(filled)
    before = totals.count
    held = [LimitedSlice(each.count, each.bytes, partial(slice_rows, each.files, channel, crc)) for each in filled]
    remove_by_limits(held, totals, limits, now_ns)
    return LogicalView(totals.first, totals.last, totals.count, totals.bytes, before - totals.count)


@dataclass(frozen=True)
class LimitedSlice:
    """A slice to which limits are applied."""

    count: int  #: at least one
    bytes: int  #: size in the server's accounting
    rows: Callable[[], Iterable[MessageRecords]]  #: iterates over the messages


def remove_by_limits(
    slices: Sequence[LimitedSlice], totals: ServerTotals, limits: ChannelLimits, now_ns: int
) -> tuple[int, int] | None:
    """Removes messages beyond the limits from a channel's totals, as a start does.

    Facts: filestore.md sections 5.4 and 7.6, weakness W20. All messages on disk are
    counted again at every start, and removed in memory only; a file goes when all its messages are removed.

    Returns how many slices (in order of number) lose all their messages, and how many messages the next one loses;
    None if no limit applies. `now_ns` is the time of the start.
    """
    over = (0 < limits.max_msgs < totals.count) or (0 < limits.max_bytes < totals.bytes)
    if not slices or not (over or limits.max_age_ns > 0):
        return None
    for place, each in enumerate(slices):
        count, size = totals.count - each.count, totals.bytes - each.bytes
        if count and ((0 < limits.max_msgs <= count) or (0 < limits.max_bytes <= size)):
            totals.count, totals.bytes = count, size  # even its last message goes
            continue
        removed = 0
        for rows in each.rows():
            costs = np.cumsum(rows.size.astype(np.int64) + MESSAGE_OVERHEAD)
            gone = limits.removes(totals.count, totals.bytes, costs, rows.timestamp, now_ns)
            if gone:
                totals.count, totals.bytes = totals.count - gone, totals.bytes - int(costs[gone - 1])
                removed += gone
            if gone < len(costs):
                totals.first = int(rows.sequence[gone])
                return place, removed
    totals.first = totals.last + 1
    return len(slices), 0


def totals_of(slices: Iterable[SliceSummary]) -> ServerTotals:
    """Returns the server's counts for a channel with these slices."""
    result = ServerTotals()
    for each in slices:
        result.add(each.first_seq, each.last_seq, each.count, each.bytes)
    return result


def held_sequences(files: SliceFiles, channel: bytes, crc: Crc) -> Ranges:
    """Returns the sequences of the messages in a slice, from its index if that can be trusted."""
    found = summarise(files, channel, crc)
    if not found.count:
        return Ranges()
    if found.last_seq - found.first_seq + 1 == found.count:
        return Ranges.of([(found.first_seq, found.last_seq)])
    return Ranges.from_sequences(MessageRecords.joined(slice_rows(files, channel, crc)).sequence)


def channel_ends(slices: Iterable[SliceFiles], channel: bytes, crc: Crc) -> tuple[int, int]:
    """Returns the first and the last sequence of a channel as in `ServerTotals`, 0 and 0 without a message.

    Of an index that looks right only the ends are read.
    """
    result = ServerTotals()
    for files in slices:
        if (ends := index_ends(files, channel, crc)) is not None:
            result.add(*ends, 1, 0)
        else:
            each = summarise(files, channel, crc)
            result.add(each.first_seq, each.last_seq, each.count, 0)
    return result.first, result.last


def summarise(files: SliceFiles, channel: bytes, crc: Crc) -> SliceSummary:
    """Reads one slice; never raises for the content of its files. `channel` is the name as stored in subjects."""
    if files.data is None:
        return SliceSummary(files, problems=("the index has no data file",))
    try:
        with SliceFile.open(files, channel, crc) as opened:
            return _from_scan(files, opened) if opened.index is None else _from_index(files, opened, opened.index)
    except StoreUnreadableError as error:
        return SliceSummary(files, problems=(error.message,))


def _from_index(files: SliceFiles, opened: SliceFile, index: SliceIndex) -> SliceSummary:
    first, last, count = index[0], index[-1], len(index)
    # Encryption may have been turned on or off in between.
    half = SAMPLES // 2
    sampled = (*range(min(half, count)), *range(max(count - half, half), count))
    return SliceSummary(
        files,
        count,
        opened.sizes + MESSAGE_OVERHEAD * count,
        first.sequence,
        last.sequence,
        first.timestamp,
        last.timestamp,
        SummarySource.INDEX,
        (opened.problem,) if opened.problem else (),
        opened.look_encrypted(index[row].offset for row in sampled),
    )


def _from_scan(files: SliceFiles, opened: SliceFile) -> SliceSummary:
    summary = SliceSummary(files)
    problem = opened.header_error or opened.problem
    problems = [problem] if problem else []
    damaged = bytes_damaged = 0
    first_offsets: list[int] = []
    offsets: list[int] = []
    for part in opened.records():
        if isinstance(part, DamagedRange):
            damaged += 1
            bytes_damaged += part.length
            continue
        if not summary.count:
            summary.first_seq, summary.first_timestamp = int(part.sequence[0]), int(part.timestamp[0])
        summary.count += part.capacity
        summary.bytes += int(part.size.sum(dtype=np.int64)) + MESSAGE_OVERHEAD * part.capacity
        summary.last_seq, summary.last_timestamp = int(part.sequence[-1]), int(part.timestamp[-1])
        first_offsets = first_offsets or part.offset[: SAMPLES // 2].tolist()
        offsets = part.offset[-SAMPLES // 2 :].tolist()
    if damaged:
        places = counted(damaged, "place", "is/are")
        problems.append(f"{places} damaged in the data file, {counted(bytes_damaged, 'byte')}")
    summary.source = SummarySource.SCAN if summary.count else SummarySource.NOTHING
    if summary.count:
        summary.encrypted = opened.look_encrypted(dict.fromkeys([*first_offsets, *offsets]))
    summary.problems = tuple(problems)
    return summary
