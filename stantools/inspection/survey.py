"""What is really in a channel's slices: the full scan that verify, salvage and truncation go by.

A survey reads every byte once and keeps only what is small: runs of increasing sequences, damaged ranges, and how the
index compares. Nothing in it is a verdict; `inspection.verify` makes findings of it, `recovery.salvage` a plan.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial

from stantools.errors import StoreUnreadableError
from stantools.format import envelope, index, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, RECORD_HEADER_SIZE, Stop
from stantools.inspection.indexcheck import IndexCheck, IndexReport
from stantools.inspection.runs import Run, RunBuilder
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles, Datastore, SliceFiles
from stantools.store.indexes import scan_index
from stantools.store.mapping import Buffer, mapped
from stantools.store.ranges import Ranges
from stantools.store.reading import BATCH_ROWS, scan_slice
from stantools.store.resync import Damage

#: Bytes in which the first good message of a file must lie that may be a slice, if it does not begin with one.
_PROOF = 1 << 20


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
    """What one channel directory holds.

    Attributes:
        files: Its files.
        slices: Its slices, by number.
        lone_indexes: Indexes without data file.
        error: Why it could not be listed, if so.
        strays: Files that prove to be slices although the server does not take them for any. `runs` leaves them out.
    """

    files: ChannelFiles
    slices: list[SliceSurvey]
    lone_indexes: list[SliceSurvey] = field(default_factory=list)
    error: str | None = None
    strays: list[SliceSurvey] = field(default_factory=list)

    @classmethod
    def of(cls, files: ChannelFiles, surveys: list[SliceSurvey], error: str | None = None) -> ChannelSurvey:
        """Sorts the surveys of `ChannelFiles.all_slices`; of files that may be slices it keeps those that are."""
        count = len(files.slices)
        rest = surveys[count:]
        lone = [each for each in rest if each.files.data is None]
        return cls(files, surveys[:count], lone, error, [each for each in rest if each.files.data and each.runs])

    def runs(self) -> Iterator[Run]:
        """Iterates over all runs, by slice number and then by offset."""
        for survey in self.slices:
            yield from survey.runs

    def own_runs(self) -> Iterator[Run]:
        """Iterates over the runs whose subject is the channel."""
        return (run for run in self.runs() if run.subject == self.files.raw_name)

    @cached_property
    def intact(self) -> Ranges:
        """The sequences of the channel that are there and right."""
        return self.in_slices | self.in_strays

    @cached_property
    def in_slices(self) -> Ranges:
        """Those of them that lie where the server looks."""
        return Ranges.union(run.sequences for run in self.own_runs())

    @cached_property
    def in_strays(self) -> Ranges:
        """Those of them that lie in files under other names."""
        runs = (run for stray in self.strays for run in stray.runs)
        return Ranges.union(run.sequences for run in runs if run.subject == self.files.raw_name)

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
            if not survey.damages:
                continue
            following = next((r.first for s in self.slices[position + 1 :] for r in s.runs[:1]), 0)
            preceding = next((r.last for s in reversed(self.slices[:position]) for r in s.runs[-1:]), 0)
            for neighbours in survey.damages:
                suspects += _suspects(neighbours, preceding, following)
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


@dataclass(frozen=True)
class Reading:
    """How slices are read.

    Attributes:
        crc: The store's CRC.
        progress: Told the number of bytes as they are done.
        columns: Reused between the slices of one thread.
    """

    crc: Crc
    progress: Progress | None = None
    columns: MessageColumns = field(default_factory=lambda: MessageColumns(BATCH_ROWS))


def survey_slice(files: SliceFiles, channel: bytes, reading: Reading) -> SliceSurvey:
    """Scans one slice and its index. Never raises for what is in the files.

    Args:
        files: The slice.
        channel: Channel name as stored in subjects.
        reading: How to read it.
    """
    survey = SliceSurvey(files)
    if files.data is None:
        _survey_lone_index(survey, reading)
        return survey
    try:
        with mapped(files.data, sequential=True) as data:
            if files.stray and not _proves(data, channel, reading.crc):
                return survey
            survey.size = len(data)
            survey.header_error = envelope.check_file_version(data)
            _survey_with_index(survey, data, channel, reading)
    except StoreUnreadableError as error:
        survey.error = error.message
    return survey


def _proves(data: Buffer, channel: bytes, crc: Crc) -> bool:
    """Returns whether a file is a slice: it begins as one, and soon comes a good message."""
    if len(data) <= FILE_HEADER_SIZE or envelope.check_file_version(data):
        return False
    crc = crc.checking
    if kernels.scan_messages(data, FILE_HEADER_SIZE, len(data), crc, channel, MessageColumns(1))[0]:
        return True
    return any(isinstance(part, MessageColumns) for part in scan_slice(data[:_PROOF], channel, crc))


def _survey_lone_index(survey: SliceSurvey, reading: Reading) -> None:
    assert survey.files.index is not None
    try:
        with mapped(survey.files.index) as entries:
            if check := _open_index(survey.index, entries, reading):
                survey.index = check.finish()
    except StoreUnreadableError as error:
        survey.index_error = error.message


def _open_index(report: IndexReport, entries: Buffer, reading: Reading) -> IndexCheck | None:
    report.present, report.size = True, len(entries)
    report.header_error = envelope.check_file_version(entries)
    if len(entries) > FILE_HEADER_SIZE:
        report.count, report.stop = scan_index(entries, reading.crc)
    return IndexCheck(report, index.view(entries, report.count), entries) if report.count else None


def _survey_with_index(survey: SliceSurvey, data: Buffer, channel: bytes, reading: Reading) -> None:
    path = survey.files.index
    if path is None:
        _scan(survey, data, None, channel, reading)
        return
    try:
        with mapped(path) as entries:
            _scan(survey, data, _open_index(survey.index, entries, reading), channel, reading)
    except StoreUnreadableError as error:
        survey.index_error = error.message
        _scan(survey, data, None, channel, reading)


def _scan(survey: SliceSurvey, data: Buffer, check: IndexCheck | None, channel: bytes, reading: Reading) -> None:
    records = check.records if check else None
    builder = RunBuilder(survey.files, channel, data)
    pending: list[Damage] = []
    before, done = 0, FILE_HEADER_SIZE
    for event in scan_slice(data, channel, reading.crc, index=records, columns=reading.columns):
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
        if reading.progress:
            reading.progress(end - done)
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


#: Slices listed ahead for each worker.
_AHEAD = 4
#: Slices below this many bytes are scanned where they are needed.
_SMALL = 1 << 20


def survey_channels(
    store: Datastore,
    names: Sequence[str],
    crc: Crc,
    *,
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
        if not hasattr(local, "reading"):
            local.reading = Reading(crc, progress)
        return survey_slice(files, channel, local.reading)

    waiting: deque[tuple[ChannelFiles, str | None, list[Callable[[], SliceSurvey]]]] = deque()
    upcoming = iter(names)
    ahead = 0
    with ThreadPoolExecutor(workers) as pool, _cancelling(pool):
        while True:
            while ahead < _AHEAD * workers and (name := next(upcoming, None)) is not None:
                files, error = _list(store, name)
                if archived:
                    files.slices = [*files.archived, *files.slices]
                futures = [_start(pool, work, s, files.raw_name) for s in files.all_slices]
                waiting.append((files, error, futures))
                ahead += len(futures) + 1
            if not waiting:
                return
            files, error, futures = waiting.popleft()
            ahead -= len(futures) + 1
            surveys = [future() for future in futures]
            yield ChannelSurvey.of(files, surveys, error)


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Drops what has not begun when the work is given up, so that Ctrl-C does not wait for it."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


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
