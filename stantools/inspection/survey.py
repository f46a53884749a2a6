"""The true content of a channel's slices: the full scan that verify, salvage and truncation use.

A survey reads every byte once and keeps little: runs of increasing sequences, damaged ranges, and the comparison
with the index. It judges nothing; `inspection.verify` derives findings from it, `recovery.salvage` a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property

from stantools.errors import StoreUnreadableError
from stantools.format import envelope, kernels
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, MESSAGE_OVERHEAD, ScanStop
from stantools.format.message_batch import MessageBatch
from stantools.inspection.indexcheck import IndexCheck, IndexReport
from stantools.inspection.runs import RecordRun, RunBuilder
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles, SliceFiles
from stantools.store.indexes import SliceIndex, scan_index
from stantools.store.mapping import WINDOW, Buffer, MappedWindow, mapped
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import BATCH_ROWS, SliceFile

#: Bytes of a slice that are touched at once.
_STEP = WINDOW // 2
#: Bytes in which the first good message of a possible slice must begin, if the file does not begin with one.
_PROOF = 1 << 20


@dataclass(frozen=True)
class NeighbourSequences:
    """A damaged range and the sequences of the good records around it in the same slice (0: none)."""

    damage: DamagedRange
    before: int
    after: int

    @property
    def sequence(self) -> int | None:
        """The sequence of the one message that was here, if the neighbours, the bytes or the index tell it."""
        if self.before and self.after - self.before == 2:
            return self.before + 1
        guess = self.damage.sequence
        return guess if guess and self.before < guess and (not self.after or guess < self.after) else None


@dataclass
class SliceSurvey:
    files: SliceFiles
    error: str | None = None  #: reason why the data file could not be read at all
    header_error: str | None = None  #: error in the data file's version, in the server's words
    runs: list[RecordRun] = field(default_factory=list)  #: good records
    damages: list[NeighbourSequences] = field(default_factory=list)  #: damaged ranges with their neighbours
    index: IndexReport = field(default_factory=IndexReport)
    index_error: str | None = None  #: reason why the index could not be read
    size: int = 0  #: bytes of the data file that were scanned


@dataclass
class ChannelSurvey:
    """The content of one channel directory."""

    files: ChannelFiles
    slices: list[SliceSurvey]  #: by number
    lone_indexes: list[SliceSurvey] = field(default_factory=list)  #: indexes without data file
    error: str | None = None  #: reason why it could not be listed
    #: Files that prove to be slices although the server ignores them. `runs` leaves them out.
    strays: list[SliceSurvey] = field(default_factory=list)

    @classmethod
    def of(cls, files: ChannelFiles, surveys: list[SliceSurvey], error: str | None = None) -> ChannelSurvey:
        """Sorts the surveys of `ChannelFiles.all_slices`; of possible slices it keeps the proven ones."""
        count = len(files.slices)
        rest = surveys[count:]
        lone = [each for each in rest if each.files.data is None]
        return cls(files, surveys[:count], lone, error, [each for each in rest if each.files.data and each.runs])

    def runs(self) -> Iterator[RecordRun]:
        """Iterates over all runs, by slice number and then by offset."""
        for survey in self.slices:
            yield from survey.runs

    def own_runs(self) -> Iterator[RecordRun]:
        """Iterates over the runs whose subject is the channel."""
        return iter(self._own(self.runs()))

    @property
    def end(self) -> int | None:
        """The sequence of the message written last, by the order of the files; None if there is none."""
        return next((runs[-1].last for each in reversed(self.slices) if (runs := self._own(each.runs))), None)

    def _own(self, runs: Iterable[RecordRun]) -> list[RecordRun]:
        return [run for run in runs if run.subject == self.files.raw_name]

    @cached_property
    def intact(self) -> Ranges:
        """The sequences of the channel with a good record."""
        return self.in_slices | self.in_strays

    @cached_property
    def in_slices(self) -> Ranges:
        """The intact sequences in slices that the server reads."""
        return Ranges.union(run.sequences for run in self.own_runs())

    @cached_property
    def in_strays(self) -> Ranges:
        """The intact sequences in files under other names."""
        runs = (run for stray in self.strays for run in stray.runs)
        return Ranges.union(run.sequences for run in runs if run.subject == self.files.raw_name)

    @cached_property
    def repairable_sizes(self) -> dict[int, int]:
        """Sizes of the records, by sequence, whose payload is proven although the record header is damaged."""
        repairs = (n.damage.repair for s in self.slices for n in s.damages)
        return {int(each.message.sequence): each.size for each in repairs if each and each.message.sequence}

    @cached_property
    def repairable(self) -> Ranges:
        return Ranges.of((each, each) for each in self.repairable_sizes)

    @cached_property
    def damaged(self) -> Ranges:
        """The sequences with a partial record: known by the bytes, the index or their neighbours."""
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
        """The sequences without a byte: holes, and sequences that only an index still names."""
        known = self.intact | self.damaged
        named = self.named - known
        return (known | named).holes() | named

    @cached_property
    def named(self) -> Ranges:
        """The sequences that only indexes name, apart from archived ones."""
        lone = [each for each in self.lone_indexes if not each.files.archived]
        return Ranges.union(survey.index.dangling for survey in (*self.slices, *lone))


def _suspects(neighbours: NeighbourSequences, preceding: int, following: int) -> Iterator[tuple[int, int]]:
    before = neighbours.before or preceding
    after = neighbours.after or following
    guess = neighbours.damage.sequence
    if before and after and before < after:
        yield before + 1, after - 1
    elif guess and (not before or before < guess) and (not after or guess < after):
        yield guess, guess


def survey_slice(files: SliceFiles, channel: bytes, crc: Crc, progress: Progress | None = None) -> SliceSurvey:
    """Scans one slice and its index; never raises for the content of the files.

    `channel` is the name as stored in subjects. `progress` is called with bytes.
    """
    survey = SliceSurvey(files)
    if files.data is None:
        _survey_lone_index(survey, crc)
        return survey
    with ExitStack() as stack:
        entries = None
        # The index first: what a running server has named in it is in the data file by then.
        if files.index is not None:
            try:
                entries = stack.enter_context(mapped(files.index))
            except StoreUnreadableError as error:
                survey.index_error = error.message
        try:
            data = stack.enter_context(mapped(files.data, sequential=True))
        except StoreUnreadableError as error:
            survey.error = error.message
            return survey
        if files.stray and not _proves(data, channel, crc):
            return survey
        survey.size = len(data)
        survey.header_error = envelope.check_file_version(data)
        _survey_data(survey, SliceFile(data, channel, crc), entries, progress)
    return survey


def extend_survey(survey: SliceSurvey, channel: bytes, crc: Crc, end: int) -> SliceSurvey:
    """Continues the survey of a slice that has grown, up to `end`; the index is not read.

    `survey` stays as it is. `end` is the end of a record, or of the data file. Raises `StoreUnreadableError` if the
    data file cannot be read (any more).
    """
    assert survey.files.data is not None
    grown = replace(survey, damages=list(survey.damages), size=end)
    with mapped(survey.files.data) as data:
        grown.header_error = envelope.check_file_version(data)
        builder = RunBuilder(survey.files, survey.runs)
        _scan(grown, builder, SliceFile(data[:end], channel, crc), max(survey.size, FILE_HEADER_SIZE), None, None)
        builder.close()
        grown.runs = builder.runs
    return grown


def _proves(data: Buffer, channel: bytes, crc: Crc) -> bool:
    """Returns whether a file is a slice: it begins like one, and a good message follows soon."""
    if len(data) <= FILE_HEADER_SIZE or envelope.check_file_version(data):
        return False
    crc = crc.checking
    if SliceFile(data, channel, crc).message_at(FILE_HEADER_SIZE):
        return True
    return any(isinstance(part, MessageBatch) for part in SliceFile(data[:_PROOF], channel, crc).records())


def _survey_lone_index(survey: SliceSurvey, crc: Crc) -> None:
    assert survey.files.index is not None
    try:
        with mapped(survey.files.index) as entries:
            if check := _open_index(survey.index, entries, crc):
                survey.index = check.finish()
    except StoreUnreadableError as error:
        survey.index_error = error.message


def _open_index(report: IndexReport, entries: Buffer, crc: Crc) -> IndexCheck | None:
    report.present, report.size = True, len(entries)
    report.header_error = envelope.check_file_version(entries)
    if len(entries) > FILE_HEADER_SIZE:
        report.count, report.stop, *_ = scan_index(entries, crc)
    return IndexCheck(report, SliceIndex(entries, report.count), entries) if report.count else None


def _survey_data(survey: SliceSurvey, file: SliceFile, entries: Buffer | None, progress: Progress | None) -> None:
    """Scans a data file together with its index: in long steps while all records are good, then record by record."""
    builder = RunBuilder(survey.files)
    sound = entries is None or envelope.check_file_version(entries) is None
    at, rows = _scan_sound(builder, file, entries, progress) if sound else (FILE_HEADER_SIZE, 0)
    size = len(entries) if entries is not None else 0
    if at >= len(file.data) and sound and size in (0, FILE_HEADER_SIZE + rows * INDEX_RECORD_SIZE):
        survey.index = IndexReport(present=entries is not None, size=size, count=rows if size else 0)
    else:
        check = _open_index(survey.index, entries, file.crc) if entries is not None else None
        if check:
            check.agrees(rows)
        _scan(survey, builder, file, at, check, progress)
    builder.close()
    survey.runs = builder.runs


def _scan_sound(
    builder: RunBuilder, file: SliceFile, entries: Buffer | None, progress: Progress | None
) -> tuple[int, int]:
    """Scans a slice up to the first irregular record; returns the offset of that record and its number."""
    data = file.data
    window, named = MappedWindow(data, _STEP, retained=0), MappedWindow(entries) if entries is not None else None
    at, done, after = FILE_HEADER_SIZE, 0, 0
    while at < len(data):
        window.reach(at)
        if named:
            named.reach(FILE_HEADER_SIZE + done * INDEX_RECORD_SIZE)
        begin, until = at, min(at + _STEP, len(data))
        count, at, sequences, sizes, payload, largest, oldest, newest = kernels.scan_run(
            data, begin, until, file.crc, file.channel, entries, done, after, BATCH_ROWS
        )
        if not count:
            break
        size = sizes + MESSAGE_OVERHEAD * count
        found = Ranges.of(sequences)
        builder.extend(
            RecordRun(builder.files, file.channel, begin, at, found, count, size, oldest, newest, payload, largest)
        )
        done, after = done + count, sequences[-1][1]
        if progress:
            progress(at - begin)
    return at, done


def _scan(
    survey: SliceSurvey,
    builder: RunBuilder,
    file: SliceFile,
    start: int,
    check: IndexCheck | None,
    progress: Progress | None,
) -> None:
    index = check.index if check else None
    pending: list[DamagedRange] = []
    before, done = builder.last, start
    for event in file.records(start, index=index):
        if isinstance(event, DamagedRange):
            builder.close()
            pending.append(event)
        else:
            builder.add(event)
            if check:
                check.add(event)
            after = int(event.sequence[0])
            survey.damages += [NeighbourSequences(damage, before, after) for damage in pending]
            pending.clear()
            before = int(event.sequence[-1])
        if progress:
            progress(event.end - done)
            done = event.end
    survey.damages += [NeighbourSequences(damage, before, 0) for damage in pending]
    if check:
        survey.index = check.finish()


def stop_text(stop: ScanStop) -> str:
    """Returns the reason why a reader would stop, in words."""
    return _STOPS[stop]


_STOPS = {
    ScanStop.END: "end of file",
    ScanStop.FULL: "more records follow",
    ScanStop.SHORT_HEADER: "fewer than 8 bytes are left",
    ScanStop.ZEROS: "8 zero bytes where a record should begin",
    ScanStop.DANGLING: "a record header with nothing after it",
    ScanStop.SHORT_PAYLOAD: "the record announces more bytes than are left",
    ScanStop.BAD_CRC: "the payload does not match its CRC",
    ScanStop.BAD_DECODE: "the payload is not a message",
}
