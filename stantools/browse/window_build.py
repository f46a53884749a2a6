"""Determining the rows of a channel: at once and roughly, from its indexes, or exactly, from a scan.

An index is trusted if it is whole, agrees with the last record, and names record after record without a hole (then
the data is not read). Any other slice is scanned as by `verify`, or its survey by verify is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from stantools.browse.row_model import (
    NO_POSITIONS,
    MessageStretch,
    Piece,
    Positions,
    ProvenMessage,
    RowNote,
    RowNoteKind,
    SliceParts,
)
from stantools.browse.stretch_reader import StretchReader
from stantools.browse.window_reader import SliceStretchReader
from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, ScanStop
from stantools.inspection.indexcheck import IndexReport
from stantools.inspection.runs import RecordRun, RunBuilder
from stantools.inspection.survey import ChannelSurvey, NeighbourSequences, SliceSurvey, stop_text, survey_slice
from stantools.notation import describe_ranges
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles, SliceFiles
from stantools.store.growing_channel import Sign, sign
from stantools.store.indexes import IndexRecord, SliceIndex
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange, DamageKind
from stantools.store.slice_reader import SliceFile

#: Slices at the start and at the end of a channel that are read when it is opened.
_FIRST_SLICES, _LAST_SLICES = 128, 32
#: A channel up to this number of bytes and slices is read completely when it is opened.
SMALL_BYTES, SMALL_SLICES = 1 << 19, 32
_MAX_RANGES = 3


def in_order(files: ChannelFiles) -> list[SliceFiles]:
    """Returns the slices of a channel by number; an index without data takes the place of its slice."""
    lone = (each for each in files.lone_indexes if not each.archived)
    return sorted([*files.slices, *lone], key=lambda each: each.number)


def is_small(files: ChannelFiles) -> bool:
    """Returns whether a channel can be read completely while the user waits."""
    slices = in_order(files)
    return len(slices) <= SMALL_SLICES and sum(each.data_size for each in slices) <= SMALL_BYTES


def estimate(files: ChannelFiles) -> list[SliceParts]:
    """Returns the rows by the ends of the channel's indexes at once; nothing is checked."""
    channel = files.raw_name
    slices = in_order(files)
    parts: list[SliceParts] = []
    hidden = range(_FIRST_SLICES, len(slices) - _LAST_SLICES)
    for place, each in enumerate(slices):
        if place in hidden:
            if place == hidden.start:
                text = f"{len(hidden):,} more slices are being read"
                parts.append(SliceParts(each.name, (), (RowNote(RowNoteKind.PENDING, text, each.name),), exact=False))
            continue
        parts.append(SliceParts(each.name, (), _peek(each, channel), exact=False))
    return parts


def _peek(files: SliceFiles, channel: bytes) -> tuple[Piece, ...]:
    count = (files.index_size - FILE_HEADER_SIZE) // INDEX_RECORD_SIZE
    pending = RowNote(RowNoteKind.PENDING, f"{files.name} is being read", files.name)
    if files.data is None or files.data_size <= FILE_HEADER_SIZE:
        return () if files.data is not None else (pending,)
    if files.index is None or count <= 0:
        return (pending,)
    try:
        with files.index.open("rb", buffering=0) as entries:
            index = SliceIndex(lambda at, size: os.pread(entries.fileno(), size, at), count)
            low, high = index[0], index[-1]
    except OSError:
        return (pending,)
    if low.offset != FILE_HEADER_SIZE or not low.offset < high.end <= files.data_size or high.sequence < low.sequence:
        return (pending,)
    return (replace(_indexed(files, count, low, high, 0, NO_POSITIONS), subject=channel),)


def _indexed(
    files: SliceFiles, count: int, low: IndexRecord, high: IndexRecord, at: int, breaks: Positions
) -> MessageStretch:
    return MessageStretch(
        files,
        b"",
        count,
        low.offset,
        high.end,
        low.sequence,
        high.sequence,
        high.timestamp,
        index_from=at,
        breaks=breaks,
    )


class Builder:
    """Determines the rows of a channel's slices.

    `channel` is the name as stored in subjects. `live`: a server is writing; an unfinished record at the end is no
    damage, and its index record may come later.
    """

    def __init__(self, channel: bytes, crc: Crc, *, live: bool = False) -> None:
        self._channel = channel
        self._crc = crc
        self._live = live

    def build(
        self,
        files: ChannelFiles,
        known: dict[str, SliceParts],
        survey: ChannelSurvey | None = None,
        progress: Progress | None = None,
    ) -> list[SliceParts]:
        """Reads every slice that is not known yet.

        `known` are the results of an earlier call, by name of the slice, used for unchanged files. A `survey` is
        used for slices that it covers completely. `progress` is called with bytes.
        """
        slices = in_order(files)
        surveys = {each.files.name: each for each in (*survey.slices, *survey.lone_indexes)} if survey else {}
        parts = []
        for each in slices:
            mark: tuple[Sign, ...] = tuple(sign(path) if path else None for path in (each.data, each.index))
            have = known.get(each.name)
            found = surveys.get(each.name)
            if found is not None and [each[1] if each else 0 for each in mark] == [found.size, found.index.size]:
                pieces = self._of_survey(found)
            elif have is not None and have.exact and have.mark == mark:
                pieces = have.pieces
            else:
                pieces = self._read(each, progress)
            if self._live and each is slices[-1]:
                pieces = tuple(without_end(pieces))
                mark = ()  # an unfinished slice is read again
            parts.append(SliceParts(each.name, mark, pieces))
        return parts

    def _read(self, files: SliceFiles, progress: Progress | None) -> tuple[Piece, ...]:
        if files.data is not None:
            try:
                with SliceFile.open(files, self._channel, self._crc) as opened:
                    pieces = self._of_index(files, opened, progress)
                    if pieces is not None:
                        return pieces
            except StoreUnreadableError as error:
                return (RowNote(RowNoteKind.FILE, f"{files.name} cannot be read: {error.message}", files.name),)
        return self._of_survey(survey_slice(files, self._channel, self._crc, progress))

    def _of_index(self, files: SliceFiles, opened: SliceFile, progress: Progress | None) -> tuple[Piece, ...] | None:
        """Returns the pieces by the index and those after it, or None if the index is not enough."""
        if opened.index is None or (opened.problem and not self._live):
            return None
        stretches = _stretches(files, opened.index, progress)
        if stretches is None:
            return None
        unindexed = self._after_index(files, opened, stretches[-1].end)
        return (*(replace(each, subject=self._channel) for each in stretches), *unindexed)

    def _after_index(self, files: SliceFiles, opened: SliceFile, start: int) -> Iterator[Piece]:
        """Iterates over messages that the index does not name yet."""
        builder = RunBuilder(files)
        damages: list[NeighbourSequences] = []
        for part in opened.records(start):
            if isinstance(part, DamagedRange):
                builder.close()
                damages.append(NeighbourSequences(part, 0, 0))
            else:
                builder.add(part)
        builder.close()
        yield from _merged(files, builder.runs, damages, None)

    def _of_survey(self, survey: SliceSurvey) -> tuple[Piece, ...]:
        files = survey.files
        notes: list[Piece] = []
        if survey.error:
            notes.append(RowNote(RowNoteKind.FILE, f"{files.name} cannot be read: {survey.error}", files.name))
        if survey.header_error:
            notes.append(
                RowNote(RowNoteKind.FILE, f"{files.name}: {survey.header_error}", files.name, 0, FILE_HEADER_SIZE)
            )
        report = survey.index
        usable = report.agrees() and report.count == sum(run.count for run in survey.runs)
        pieces = list(_merged(files, survey.runs, survey.damages, 0 if usable else None))
        if problem := _index_problem(survey):
            notes.append(RowNote(RowNoteKind.INDEX, problem, (files.index or files.data or Path(files.name)).name))
        reader = SliceStretchReader(self._channel, self._crc.unchecked, key=None)
        try:
            pieces = list(_note_orphans(pieces, survey, reader))
        except (StoreUnreadableError, IndexError):
            pass  # the file has changed meanwhile; its rows will show it
        finally:
            reader.close()
        return (*notes, *pieces, *_named(survey, pieces))


def _stretches(files: SliceFiles, index: SliceIndex, progress: Progress | None) -> list[MessageStretch] | None:
    """Reads an index; None if it does not name record after record without a hole."""
    stretches: list[MessageStretch] = []
    breaks: list[Positions] = []
    begin, last_sequence, expected, at = 0, index[0].sequence, FILE_HEADER_SIZE, 0
    for part in index.parts():
        sequence = part.sequence
        if int(part.offset[0]) != expected or not part.consecutive:
            return None
        before = np.concatenate((np.array([last_sequence], np.uint64), sequence[:-1]))
        back = np.flatnonzero(sequence <= before)
        jumps = np.flatnonzero((sequence > before) & (sequence - before != np.uint64(1)))
        cuts = [int(place) for place in back if at + place != 0]
        low = 0
        for cut in [*cuts, len(part)]:
            mine = jumps[(jumps >= low) & (jumps < cut)] + (at - begin)
            breaks.append(mine.astype(np.int64))
            if cut < len(part):
                stretches.append(_stretch(files, index, begin, at + cut, breaks))
                begin, breaks, low = at + cut, [], cut
        last_sequence, expected, at = int(sequence[-1]), part.end, at + len(part)
        if progress:
            progress(len(part) * INDEX_RECORD_SIZE)
    stretches.append(_stretch(files, index, begin, at, breaks))
    return stretches


def _stretch(files: SliceFiles, index: SliceIndex, begin: int, stop: int, breaks: list[Positions]) -> MessageStretch:
    missing = np.concatenate(breaks) if breaks else NO_POSITIONS
    return _indexed(files, stop - begin, index[begin], index[stop - 1], begin, missing[missing > 0])


def _merged(
    files: SliceFiles, runs: list[RecordRun], damages: list[NeighbourSequences], index_from: int | None
) -> Iterator[Piece]:
    """Iterates over runs and damages in the order of the file."""
    found: list[tuple[int, RecordRun | NeighbourSequences]] = [(run.start, run) for run in runs]
    found += [(each.damage.offset, each) for each in damages]
    at = index_from
    for _, each in sorted(found, key=lambda one: one[0]):
        if isinstance(each, RecordRun):
            yield _of_run(each, at)
            at = None if at is None else at + each.count
        else:
            yield from _of_damage(files, each)


def _of_run(run: RecordRun, index_from: int | None) -> MessageStretch:
    spans = np.array(run.sequences.pairs(), np.uint64).reshape(-1, 2)
    counts = (spans[:, 1] - spans[:, 0] + np.uint64(1)).astype(np.int64)
    ahead = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    marks = [(run.first, run.start), *run.marks]
    sequences = np.array([mark[0] for mark in marks], np.uint64)
    # The position of a sequence is the number of sequences below it.
    span = np.searchsorted(spans[:, 0], sequences, side="right") - 1
    positions = ahead[span] + (sequences - spans[span, 0]).astype(np.int64)
    return MessageStretch(
        run.slice,
        run.subject,
        run.count,
        run.start,
        run.end,
        run.first,
        run.last,
        run.last_timestamp,
        index_from,
        positions,
        np.array([mark[1] for mark in marks], np.int64),
        ahead[1:-1].copy(),
    )


def _of_damage(files: SliceFiles, neighbours: NeighbourSequences) -> Iterator[Piece]:
    damage = neighbours.damage
    text = stop_text(damage.stop)
    if damage.kind is DamageKind.ZEROS:
        text = "zero bytes where records should be"
    elif damage.kind in (DamageKind.LENGTH, DamageKind.CRC_FIELD) and damage.repair:
        text = f"its {'length' if damage.kind is DamageKind.LENGTH else 'CRC'} field is wrong, the message is proven"
    first = last = damage.sequence or 0
    if neighbours.before and neighbours.after > neighbours.before + 1:
        first, last = neighbours.before + 1, neighbours.after - 1
    if damage.repair:
        first = last = 0  # the message itself follows
    yield RowNote(RowNoteKind.DAMAGE, text, files.name, damage.offset, damage.length, first, last)
    if damage.repair:
        repair = damage.repair
        message = repair.message
        yield ProvenMessage(files, damage.offset, repair.start, repair.size, message.sequence, message.timestamp)


def _index_problem(survey: SliceSurvey) -> str:
    """Describes the problem of the index as a whole."""
    report: IndexReport = survey.index
    if survey.files.data is None:
        name = survey.files.name.replace(".idx", ".dat")
        return f"{name} is missing; its index is there and names {report.count:,} messages"
    name = survey.files.index.name if survey.files.index else f"msgs.{survey.files.number}.idx"
    if survey.index_error:
        return f"{name} cannot be read: {survey.index_error}"
    if not (survey.runs or survey.damages):
        return ""
    if not report.present:
        return f"{name} is missing: the server scans the data file"
    if report.header_error:
        return f"{name}: {report.header_error}"
    if not report.count:
        return f"{name} names no message"
    if report.stop is not ScanStop.END:
        return f"{name} is damaged after {report.count:,} records"
    if report.mismatch_count:
        what = "record of it does" if report.mismatch_count == 1 else "records of it do"
        return f"{name}: {report.mismatch_count:,} {what} not agree with the data"
    if report.displaced_count:
        return f"{name}: {report.displaced_count:,} of its records are in the wrong order"
    return ""


def _note_orphans(pieces: list[Piece], survey: SliceSurvey, reader: StretchReader) -> Iterator[Piece]:
    """Adds notes where the messages begin that a usable index does not name."""
    report = survey.index
    at = report.first_orphan if report.usable and report.orphan_count else -1
    for piece in pieces:
        if at < 0 or not isinstance(piece, MessageStretch) or piece.end <= at:
            yield piece
            continue
        position = reader.position_of(piece, at, "offset", side="right")
        which = describe_ranges(report.orphans, _MAX_RANGES)
        many = "message" if report.orphan_count == 1 else "messages"
        text = f"the index does not name {report.orphan_count:,} {many} ({which}): the server may not see them"
        note = RowNote(RowNoteKind.UNINDEXED, text, survey.files.name, at)
        at = -1
        if not position:
            yield from (note, piece)
            continue
        two = _cut(piece, position, reader)
        yield from (two[0], note, two[1])


def _cut(stretch: MessageStretch, position: int, reader: StretchReader) -> tuple[MessageStretch, MessageStretch]:
    """Cuts a run in two before one of its messages."""
    around = reader.located(stretch, position - 1, position + 1)
    offset, marks = int(around.offset[1]), stretch.marks
    one = replace(
        stretch,
        count=position,
        end=offset,
        last=int(around.sequence[0]),
        last_timestamp=int(around.timestamp[0]),
        marks=marks[marks < position],
        offsets=stretch.offsets[marks < position],
        breaks=stretch.breaks[stretch.breaks < position],
    )
    later = marks > position
    two = replace(
        stretch,
        count=stretch.count - position,
        start=offset,
        first=int(around.sequence[1]),
        index_from=None if stretch.index_from is None else stretch.index_from + position,
        marks=np.concatenate((np.zeros(1, np.int64), marks[later] - position)),
        offsets=np.concatenate((np.array([offset], np.int64), stretch.offsets[later])),
        breaks=stretch.breaks[stretch.breaks > position] - position,
    )
    return one, two


def _named(survey: SliceSurvey, pieces: list[Piece]) -> Iterator[Piece]:
    """Iterates over messages that only the index names, apart from those in damaged ranges."""
    reported = Ranges.of((each.first, each.last) for each in pieces if isinstance(each, RowNote) and each.last)
    present = Ranges.union([run.sequences for run in survey.runs])
    proven = Ranges.of((each.sequence, each.sequence) for each in pieces if isinstance(each, ProvenMessage))
    left = survey.index.dangling - reported - present - proven
    where = f"no good record of {'them' if left.count() > 1 else 'it'} is in {survey.files.name}"
    if survey.files.data is None:
        where = "the data file is missing"
    for number, (first, last) in enumerate(left):
        if number >= _MAX_RANGES:
            yield RowNote(RowNoteKind.NAMED, f"and more, {where}", survey.files.name, None, None, first, left.last)
            return
        yield RowNote(RowNoteKind.NAMED, where, survey.files.name, None, None, first, last)


def without_end(pieces: tuple[Piece, ...]) -> list[Piece]:
    """Leaves out pieces that may be a write in progress: damage at the end, and notes on an index that comes later."""
    kept = [
        each
        for each in pieces
        if not (
            isinstance(each, RowNote) and each.kind in (RowNoteKind.UNINDEXED, RowNoteKind.INDEX, RowNoteKind.NAMED)
        )
    ]
    while kept and isinstance(kept[-1], RowNote) and kept[-1].kind is RowNoteKind.DAMAGE:
        kept.pop()
    return kept
