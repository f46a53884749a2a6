"""The places of a file's records: fast access to each of them, in a file of any size.

Of consecutive good records only the first is kept; everything else is kept one by one. The map of a scanned slice
follows from its survey; otherwise the file is read once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stantools.browse.histogram import Counter
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.envelope import check_file_version
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    FILE_VERSION,
    INDEX_RECORD_SIZE,
    ScanStop,
    SubRecord,
)
from stantools.inspection.records import LOGS, FileKind, read_records
from stantools.inspection.survey import SliceSurvey, stop_text
from stantools.progress import Progress
from stantools.store.logrepair import SUBS_LOG, LogLayout
from stantools.store.logscan import LogDamage, judge_row, scan_log
from stantools.store.mapping import WINDOW, Buffer, MappedWindow
from stantools.store.resync import DamagedRange, DamageKind
from stantools.store.slice_reader import SliceFile

#: Maximum number of records per entry in a file that is read here.
_STRETCH = 4096


@dataclass(frozen=True, slots=True)
class RecordStretch:
    """Consecutive good records."""

    row: int  #: number of the first one in the file, from 0
    rows: int  #: number of records
    start: int  #: offset of the first one
    end: int  #: offset after the last one


@dataclass(frozen=True, slots=True)
class SingleRecord:
    """The version of the file, the record of a file that has only one, or a range that is not a good record."""

    row: int  #: number in the file
    start: int  #: first byte
    end: int  #: first byte after it
    type: str  #: type of the record, or kind of damage
    ok: bool  #: it is good
    detail: str = ""  #: the damage
    sequence: int | None = None  #: sequence that was stored here, if known

    rows = 1


@dataclass
class RecordMap:
    """The places of a file's records."""

    kind: FileKind
    size: int = 0  #: bytes of the file
    #: Entries in order; together they cover the file.
    entries: list[RecordStretch | SingleRecord] = field(default_factory=list)
    rows: int = 0  #: records and damaged ranges
    flaws: list[SingleRecord] = field(default_factory=list)  #: single ranges that are not good records

    def add_stretch(self, rows: int, start: int, end: int) -> None:
        self.entries.append(RecordStretch(self.rows, rows, start, end))
        self.rows += rows

    def add_single(
        self, start: int, end: int, type: str, ok: bool, detail: str = "", sequence: int | None = None
    ) -> None:
        if end <= start:
            return
        single = SingleRecord(self.rows, start, end, type, ok, detail, sequence)
        self.entries.append(single)
        self.rows += 1
        if not ok:
            self.flaws.append(single)

    def at_row(self, row: int) -> RecordStretch | SingleRecord:
        """Returns the entry of a row.

        Raises `IndexError` if there is no such row.
        """
        if not 0 <= row < self.rows:
            raise IndexError(row)
        return self.entries[bisect_right(self.entries, row, key=lambda entry: entry.row) - 1]

    def at_offset(self, offset: int) -> RecordStretch | SingleRecord | None:
        """Returns the entry of a byte, or the last one before it; None in an empty file."""
        place = bisect_right(self.entries, offset, key=lambda entry: entry.start) - 1
        return self.entries[max(place, 0)] if self.entries else None

    def next_flaw(self, row: int) -> SingleRecord | None:
        """Returns the next range after a row that is not a good record."""
        place = bisect_right(self.flaws, row, key=lambda flaw: flaw.row)
        return self.flaws[place] if place < len(self.flaws) else None

    def flaw_before(self, row: int) -> SingleRecord | None:
        """Returns the last range before a row that is not a good record."""
        place = bisect_left(self.flaws, row, key=lambda flaw: flaw.row)
        return self.flaws[place - 1] if place else None

    def next_good(self, flaw: SingleRecord) -> int | None:
        """Returns the offset of the first good record after a flaw; None if there is none."""
        begin = bisect_right(self.entries, flaw.row, key=lambda entry: entry.row)
        for entry in self.entries[begin:]:
            if isinstance(entry, RecordStretch) or entry.ok:
                return entry.start
        return None


def map_records(
    buffer: Buffer,
    kind: FileKind,
    crc: Crc,
    *,
    channel: bytes = b"",
    progress: Progress | None = None,
) -> RecordMap:
    """Reads a file and maps its records; never raises for its content.

    `channel` is the name as stored in subjects. `progress` is called with bytes.
    """
    result = RecordMap(kind, len(buffer))
    if kind is FileKind.SERVER:
        for record in read_records(buffer, kind, crc):
            end = record.offset + record.length
            result.add_single(record.offset, end, record.type, record.ok, record.detail)
        return result
    if kind is FileKind.MESSAGES:
        _add_version(result, check_file_version(buffer), len(buffer))
        _map_messages(result, buffer, channel, crc, progress)
    elif kind is FileKind.INDEX:
        _add_version(result, check_file_version(buffer), len(buffer))
        _map_index(result, buffer, crc, progress)
    else:
        if not check_file_version(buffer):
            _add_version(result, None, len(buffer))
        _map_log(result, buffer, LOGS[kind], crc, progress)
    return result


def _add_version(result: RecordMap, error: str | None, size: int) -> None:
    detail = f"{error}; version {FILE_VERSION} was expected" if error else ""
    result.add_single(0, min(size, FILE_HEADER_SIZE), "version", not error, detail)


def map_of_survey(survey: SliceSurvey) -> RecordMap:
    """Returns the map of a scanned data file."""
    result = RecordMap(FileKind.MESSAGES, survey.size)
    _add_version(result, survey.header_error, survey.size)
    ranges = [(run.start, run) for run in survey.runs] + [(n.damage.offset, n.damage) for n in survey.damages]
    for _, each in sorted(ranges, key=lambda pair: pair[0]):
        if isinstance(each, DamagedRange):
            _add_damage(result, each)
            continue
        marks = [(each.first, each.start), *each.marks]
        counts = [each.count]
        if each.marks:
            # Sequences rise within a run, so that counting them counts records.
            bounds = np.array([sequence for sequence, _ in each.marks], np.uint64)
            first = np.full(len(bounds), each.first, np.uint64)
            before = [0, *Counter(each.sequences).count(first, bounds - np.uint64(1)).tolist(), each.count]
            counts = [two - one for one, two in pairwise(before)]
        ends = [offset for _, offset in marks[1:]] + [each.end]
        for (_, start), end, rows in zip(marks, ends, counts, strict=True):
            result.add_stretch(rows, start, end)
    return result


def _add_damage(result: RecordMap, damage: DamagedRange) -> None:
    detail = stop_text(damage.stop)
    if damage.kind is DamageKind.LENGTH and damage.repair:
        detail = f"the size is wrong: the CRC matches {damage.repair.size:,} bytes"
    elif damage.kind is DamageKind.CRC_FIELD:
        detail = "the CRC is wrong in one byte, the payload is whole"
    result.add_single(damage.offset, damage.end, damage.kind.value, False, detail, damage.sequence)


def _map_messages(result: RecordMap, buffer: Buffer, channel: bytes, crc: Crc, progress: Progress | None) -> None:
    if len(buffer) < FILE_HEADER_SIZE:
        return
    for part in SliceFile(buffer, channel, crc).records():
        before = result.entries[-1].end
        if isinstance(part, DamagedRange):
            _add_damage(result, part)
        else:
            _add_split(result, part.offset, part.end)
        if progress:
            progress(result.entries[-1].end - before)


def _add_split(result: RecordMap, offsets: np.ndarray[tuple[int], np.dtype[np.int64]], end: int) -> None:
    """Adds good records in entries small enough to be read again at once."""
    for low in range(0, len(offsets), _STRETCH):
        high = low + _STRETCH
        stop = int(offsets[high]) if high < len(offsets) else end
        result.add_stretch(min(high, len(offsets)) - low, int(offsets[low]), stop)


def _map_log(result: RecordMap, buffer: Buffer, layout: LogLayout, crc: Crc, progress: Progress | None) -> None:
    for part in scan_log(buffer, layout, crc):
        before = result.entries[-1].end if result.entries else 0
        if isinstance(part, LogDamage):
            _add_log_damage(result, part)
        else:
            offsets, kinds, ids, sequences = map(np.asarray, (part.offset, part.type, part.id, part.seq))
            # Acknowledgements are decoded by the scan; the others, which are few, are decoded one by one.
            seen = (kinds == SubRecord.ACK) | (kinds == SubRecord.MSG) if layout is SUBS_LOG else kinds < 0
            seen = seen & (ids > 0) & (sequences > 0)
            low = 0
            for row in np.flatnonzero(~seen).tolist():
                judged = judge_row(layout, buffer, int(offsets[row]))
                if isinstance(judged, LogDamage):
                    _add_split(result, offsets[low:row], judged.offset)
                    _add_log_damage(result, judged)
                    low = row + 1
            _add_split(result, offsets[low:], part.end)
        if progress:
            progress(result.entries[-1].end - before)


def _add_log_damage(result: RecordMap, damage: LogDamage) -> None:
    sequence = getattr(damage.message, "seqno", None)
    result.add_single(damage.offset, damage.end, damage.kind.value, False, damage.detail, sequence)


def _map_index(result: RecordMap, buffer: Buffer, crc: Crc, progress: Progress | None) -> None:
    window = MappedWindow(buffer)
    at, limit = FILE_HEADER_SIZE, len(buffer)
    bad = -1  # offset of the first of the records that do not match their CRCs
    while at < limit:
        window.reach(at)
        end = min(at + WINDOW // 4 // INDEX_RECORD_SIZE * INDEX_RECORD_SIZE, limit)
        rows, stop, *_ = kernels.scan_index(buffer, at, end, crc)
        if bad >= 0 and (rows or stop is not ScanStop.BAD_CRC):
            _add_bad(result, bad, at)
            bad = -1
        begin = at
        for low in range(0, rows, _STRETCH):
            count = min(_STRETCH, rows - low)
            start = at + low * INDEX_RECORD_SIZE
            result.add_stretch(count, start, start + count * INDEX_RECORD_SIZE)
        at += rows * INDEX_RECORD_SIZE
        if stop == ScanStop.ZEROS:
            start, at = at, _zeros_end(buffer, at)
            result.add_single(start, at, "zeros", False, "zero bytes where an index record should be")
        elif stop == ScanStop.SHORT_HEADER:
            detail = f"{limit - at} of the {INDEX_RECORD_SIZE} bytes of an index record"
            result.add_single(at, limit, "torn", False, detail)
            at = limit
        elif stop == ScanStop.BAD_CRC:
            bad = at if bad < 0 else bad
            at += INDEX_RECORD_SIZE
        if progress:
            progress(at - begin)
    if bad >= 0:
        _add_bad(result, bad, at)


def _add_bad(result: RecordMap, start: int, end: int) -> None:
    count = (end - start) // INDEX_RECORD_SIZE
    text = "the record does not match its CRC" if count == 1 else f"{count:,} records do not match their CRCs"
    result.add_single(start, end, "payload" if count == 1 else "garbage", False, text)


def _zeros_end(buffer: Buffer, at: int) -> int:
    """Returns the end of whole records of zeros."""
    step = INDEX_RECORD_SIZE * 4096
    while at < len(buffer):
        chunk = np.frombuffer(buffer[at : at + step], np.uint8)
        used = chunk.nonzero()[0]
        if len(used):
            return at + int(used[0]) // INDEX_RECORD_SIZE * INDEX_RECORD_SIZE
        if len(chunk) % INDEX_RECORD_SIZE:
            return at + len(chunk) // INDEX_RECORD_SIZE * INDEX_RECORD_SIZE
        at += len(chunk)
    return len(buffer)
