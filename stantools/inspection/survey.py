"""What is really in a channel's slices: the full scan that verify, salvage and truncation go by.

A survey reads every byte once and keeps only what is small: runs of increasing sequences, damaged ranges, and how the
index compares. Nothing in it is a verdict; `inspection.verify` makes findings of it, `recovery.salvage` a plan.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stantools.errors import StoreUnreadableError
from stantools.format import envelope, gogo, index
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    MESSAGE_OVERHEAD,
    RECORD_HEADER_SIZE,
    Flag,
    Stop,
)
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.indexcheck import IndexCheck, IndexReport
from stantools.store.directory import ChannelFiles, Datastore, SliceFiles
from stantools.store.indexes import scan_index
from stantools.store.mapping import Buffer, mapped
from stantools.store.ranges import Ranges
from stantools.store.resync import Damage
from stantools.store.scan import BATCH_ROWS, scan_slice

Progress = Callable[[int], None]

#: Slices listed ahead for each worker.
_AHEAD = 4
#: Slices below this many bytes are scanned where they are needed.
_SMALL = 1 << 20


@dataclass
class Run:
    """A stretch of good records of one slice with one subject and strictly increasing sequences.

    Attributes:
        slice: The slice it lies in.
        subject: The subject that all its records carry.
        start: Offset of its first record.
        end: Offset behind its last record.
        sequences: Which sequences it holds.
        count: How many records.
        bytes: Their size as the server accounts it (payload + 40 each, section 5.1).
        first_timestamp: Of its first record, in nanoseconds.
        last_timestamp: Of its last record.
    """

    slice: SliceFiles
    subject: bytes
    start: int
    end: int
    sequences: Ranges
    count: int
    bytes: int
    first_timestamp: int
    last_timestamp: int

    @property
    def first(self) -> int:
        """Lowest sequence."""
        return self.sequences.first

    @property
    def last(self) -> int:
        """Highest sequence."""
        return self.sequences.last


@dataclass(frozen=True)
class Neighbours:
    """A damaged range and the sequences of the good records around it in the same slice (0: none)."""

    damage: Damage
    before: int
    after: int


@dataclass
class SliceSurvey:
    """What one slice holds.

    Attributes:
        files: Its files.
        error: Why the data file could not be read at all, if so.
        header_error: What is wrong with the data file's version, in the server's words.
        runs: The good records.
        damages: The damaged ranges with their neighbours.
        index: How the index compares.
        index_error: Why the index could not be read, if so.
        size: Bytes of the data file that were scanned.
    """

    files: SliceFiles
    error: str | None = None
    header_error: str | None = None
    runs: list[Run] = field(default_factory=list)
    damages: list[Neighbours] = field(default_factory=list)
    index: IndexReport = field(default_factory=IndexReport)
    index_error: str | None = None
    size: int = 0


@dataclass
class ChannelSurvey:
    """What one channel directory holds."""

    files: ChannelFiles
    slices: list[SliceSurvey]
    lone_indexes: list[SliceSurvey] = field(default_factory=list)
    error: str | None = None

    def runs(self) -> Iterator[Run]:
        """Gives all runs, by slice number and then by offset."""
        for survey in self.slices:
            yield from survey.runs

    def own_runs(self) -> Iterator[Run]:
        """Gives the runs whose subject is the channel."""
        return (run for run in self.runs() if run.subject == self.files.raw_name)

    @cached_property
    def intact(self) -> Ranges:
        """The sequences of the channel that are there and right."""
        return Ranges.union(run.sequences for run in self.own_runs())

    @cached_property
    def repairable(self) -> Ranges:
        """The sequences whose payload is proven although the record header is damaged."""
        repairs = (n.damage.repair for s in self.slices for n in s.damages)
        pairs = [(int(r.message.sequence),) * 2 for r in repairs if r and r.message.sequence]
        return Ranges.of(pairs)

    @cached_property
    def damaged(self) -> Ranges:
        """The sequences whose record is there in part: known by the bytes, the index or their neighbours."""
        suspects: list[tuple[int, int]] = []
        indexed: list[Ranges] = []
        for position, survey in enumerate(self.slices):
            following = next((r.first for s in self.slices[position + 1 :] for r in s.runs[:1]), 0)
            preceding = next((r.last for s in reversed(self.slices[:position]) for r in s.runs[-1:]), 0)
            for neighbours in survey.damages:
                suspects += _suspects(neighbours, preceding, following)
            if survey.damages:
                indexed.append(survey.index.dangling)
        return Ranges.union([Ranges.of(suspects), *indexed]) - self.intact

    @cached_property
    def missing(self) -> Ranges:
        """The sequences of which no byte is there: holes, and what only an index still names."""
        known = self.intact | self.damaged
        named = Ranges.union(survey.index.dangling for survey in (*self.slices, *self.lone_indexes)) - known
        return (known | named).holes() | named


def _suspects(neighbours: Neighbours, preceding: int, following: int) -> Iterator[tuple[int, int]]:
    before = neighbours.before or preceding
    after = neighbours.after or following
    guess = neighbours.damage.sequence
    if before and after and before < after:
        yield before + 1, after - 1
    elif guess and (not before or before < guess) and (not after or guess < after):
        yield guess, guess


class _RunBuilder:
    """Turns batches of good records into runs."""

    def __init__(self, files: SliceFiles, channel: bytes, buffer: Buffer) -> None:
        self._files = files
        self._channel = channel
        self._buffer = buffer
        self._pieces: list[Ranges] = []
        self._last = 0
        self._run: Run | None = None
        self.runs: list[Run] = []

    def add(self, columns: MessageColumns) -> None:
        """Adds a batch that follows the one before without a gap."""
        sequence = columns.sequence
        cuts = np.flatnonzero(sequence[1:] <= sequence[:-1]) + 1
        if (columns.flags & Flag.FOREIGN_SUBJECT).any():
            self._add_mixed(columns, set(cuts.tolist()))
            return
        bounds = [0, *cuts.tolist(), len(sequence)]
        for low, high in pairwise(bounds):
            self._extend(columns, low, high, self._channel)

    def _add_mixed(self, columns: MessageColumns, cuts: set[int]) -> None:
        low, current = 0, self._subject(columns, 0, self._channel)
        for row in range(1, len(columns.sequence)):
            subject = self._subject(columns, row, current)
            if subject != current or row in cuts:
                self._extend(columns, low, row, current)
                low, current = row, subject
        self._extend(columns, low, len(columns.sequence), current)

    def _subject(self, columns: MessageColumns, row: int, likely: bytes) -> bytes:
        if not int(columns.flags[row]) & Flag.FOREIGN_SUBJECT:
            return self._channel
        start = int(columns.offset[row]) + RECORD_HEADER_SIZE
        payload = self._buffer[start : start + int(columns.size[row])]
        return bytes(gogo.decode(pb.MsgProto, payload).subject)

    def _extend(self, columns: MessageColumns, low: int, high: int, subject: bytes) -> None:
        sequence = columns.sequence[low:high]
        piece = _contiguous(sequence)
        sizes = columns.size[low:high]
        total = int(sizes.sum(dtype=np.uint64)) + MESSAGE_OVERHEAD * len(sizes)
        end = int(columns.offset[high - 1]) + RECORD_HEADER_SIZE + int(sizes[-1])
        run = self._run
        if run and run.subject == subject and run.end == int(columns.offset[low]) and int(sequence[0]) > self._last:
            run.end = end
            run.count += high - low
            run.bytes += total
            run.last_timestamp = int(columns.timestamp[high - 1])
            self._pieces.append(piece)
        else:
            self.close()
            self._pieces = [piece]
            self._run = Run(
                self._files,
                subject,
                int(columns.offset[low]),
                end,
                piece,
                high - low,
                total,
                int(columns.timestamp[low]),
                int(columns.timestamp[high - 1]),
            )
        self._last = int(sequence[-1])

    def close(self) -> None:
        """Ends the current run."""
        if self._run is not None:
            self._run.sequences = Ranges.union(self._pieces)
            self.runs.append(self._run)
            self._run = None


def _contiguous(sequence: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Ranges:
    first, last = int(sequence[0]), int(sequence[-1])
    return Ranges.of([(first, last)]) if last - first + 1 == len(sequence) else Ranges.from_sequences(sequence)


def survey_slice(
    files: SliceFiles,
    channel: bytes,
    crc: Crc,
    *,
    check_crc: bool = True,
    columns: MessageColumns | None = None,
    progress: Progress | None = None,
) -> SliceSurvey:
    """Scans one slice and its index. Never raises for what is in the files.

    Args:
        files: The slice.
        channel: Channel name as stored in subjects.
        crc: The store's CRC.
        check_crc: False accepts records whose CRC is wrong.
        columns: Reused between calls of one thread.
        progress: Told the number of bytes as they are done.
    """
    survey = SliceSurvey(files)
    if files.data is None:
        _survey_lone_index(survey, crc, check_crc)
        return survey
    try:
        with mapped(files.data, sequential=True) as data:
            survey.size = len(data)
            survey.header_error = envelope.check_file_version(data)
            _survey_with_index(survey, data, channel, crc, check_crc, columns, progress)
    except StoreUnreadableError as error:
        survey.error = error.message
    return survey


def _survey_lone_index(survey: SliceSurvey, crc: Crc, check_crc: bool) -> None:
    assert survey.files.index is not None
    try:
        with mapped(survey.files.index) as entries:
            view = _open_index(survey.index, entries, crc, check_crc)
            if view is not None:
                survey.index = IndexCheck(survey.index, view, entries).finish()
    except StoreUnreadableError as error:
        survey.index_error = error.message


def _open_index(report: IndexReport, entries: Buffer, crc: Crc, check_crc: bool) -> npt.NDArray[np.void] | None:
    report.present, report.size = True, len(entries)
    report.header_error = envelope.check_file_version(entries)
    if len(entries) > FILE_HEADER_SIZE:
        report.count, report.stop = scan_index(entries, crc, check_crc=check_crc)
    return index.view(entries, report.count) if report.count else None


def _survey_with_index(
    survey: SliceSurvey,
    data: Buffer,
    channel: bytes,
    crc: Crc,
    check_crc: bool,
    columns: MessageColumns | None,
    progress: Progress | None,
) -> None:
    path = survey.files.index
    if path is None:
        _scan(survey, data, None, channel, crc, check_crc, columns, progress)
        return
    try:
        with mapped(path) as entries:
            view = _open_index(survey.index, entries, crc, check_crc)
            check = IndexCheck(survey.index, view, entries) if view is not None else None
            _scan(survey, data, check, channel, crc, check_crc, columns, progress)
    except StoreUnreadableError as error:
        survey.index_error = error.message
        _scan(survey, data, None, channel, crc, check_crc, columns, progress)


def _scan(
    survey: SliceSurvey,
    data: Buffer,
    check: IndexCheck | None,
    channel: bytes,
    crc: Crc,
    check_crc: bool,
    columns: MessageColumns | None,
    progress: Progress | None,
) -> None:
    records = check.records if check else None
    builder = _RunBuilder(survey.files, channel, data)
    pending: list[Damage] = []
    before, done = 0, FILE_HEADER_SIZE
    columns = columns or MessageColumns(BATCH_ROWS)
    for event in scan_slice(data, channel, crc, index=records, check_crc=check_crc, columns=columns):
        if isinstance(event, Damage):
            builder.close()
            pending.append(event)
            end = event.end
        else:
            builder.add(event)
            if check:
                check.add(event)
            after = int(event.sequence[0])
            survey.damages += [Neighbours(damage, before, after) for damage in pending]
            pending.clear()
            before = int(event.sequence[-1])
            end = int(event.offset[-1]) + RECORD_HEADER_SIZE + int(event.size[-1])
        if progress:
            progress(end - done)
            done = end
    survey.damages += [Neighbours(damage, before, 0) for damage in pending]
    builder.close()
    survey.runs = builder.runs
    if check:
        survey.index = check.finish()


def stop_text(stop: Stop) -> str:
    """Says in words why a reader would stop."""
    return _STOPS[stop]


_STOPS = {
    Stop.END: "end of file",
    Stop.FULL: "more records follow",
    Stop.SHORT_HEADER: "fewer than 8 bytes are left",
    Stop.ZEROS: "8 zero bytes where a record should begin",
    Stop.DANGLING: "a record header with nothing behind it",
    Stop.SHORT_PAYLOAD: "the record announces more bytes than are left",
    Stop.BAD_CRC: "the payload does not match its CRC",
    Stop.BAD_DECODE: "the payload is not a message",
}


def survey_channels(
    store: Datastore,
    names: Sequence[str],
    crc: Crc,
    *,
    check_crc: bool = True,
    workers: int = 2,
    archived: bool = False,
    progress: Progress | None = None,
) -> Iterator[ChannelSurvey]:
    """Scans channels in order, slices in parallel, archived ones first where they are wanted.

    Only a few slices are open at any time and only a few channels are listed ahead, however many there are. A channel
    that cannot be listed comes as a survey with `error` set.
    """
    local = threading.local()

    def work(files: SliceFiles, channel: bytes) -> SliceSurvey:
        if not hasattr(local, "columns"):
            local.columns = MessageColumns(BATCH_ROWS)
        return survey_slice(files, channel, crc, check_crc=check_crc, columns=local.columns, progress=progress)

    waiting: deque[tuple[ChannelFiles, str | None, list[Callable[[], SliceSurvey]]]] = deque()
    upcoming = iter(names)
    ahead = 0
    with ThreadPoolExecutor(workers) as pool:
        while True:
            while ahead < _AHEAD * workers and (name := next(upcoming, None)) is not None:
                files, error = _list(store, name)
                if archived:
                    files.slices = [*files.archived, *files.slices]
                futures = [_start(pool, work, s, files.raw_name) for s in (*files.slices, *files.lone_indexes)]
                waiting.append((files, error, futures))
                ahead += len(futures) + 1
            if not waiting:
                return
            files, error, futures = waiting.popleft()
            ahead -= len(futures) + 1
            surveys = [future() for future in futures]
            count = len(files.slices)
            yield ChannelSurvey(files, surveys[:count], surveys[count:], error)


def _start(
    pool: ThreadPoolExecutor, work: Callable[[SliceFiles, bytes], SliceSurvey], files: SliceFiles, channel: bytes
) -> Callable[[], SliceSurvey]:
    """Starts a scan, or puts it off until its result is wanted where handing it to a thread costs more than it."""
    if files.data_size + files.index_size < _SMALL:
        return partial(work, files, channel)
    return pool.submit(work, files, channel).result


def _list(store: Datastore, name: str) -> tuple[ChannelFiles, str | None]:
    try:
        return store.channel(name), None
    except StoreUnreadableError as error:
        return ChannelFiles(name, store.path / name), error.message
