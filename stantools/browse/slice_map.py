"""A data file as a bar: bytes that are good, damaged, zero, or unknown to the index."""

from __future__ import annotations

import enum
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stantools.format.layout import FILE_HEADER_SIZE, ScanStop
from stantools.inspection.runs import RecordRun
from stantools.inspection.survey import SliceSurvey
from stantools.store.resync import DamageKind

#: Maximum number of ranges of orphans that are drawn; more do not fit any screen.
_MAX_ORPHANS = 1000


class BytesState(enum.IntEnum):
    """State of bytes of a data file; a place of a bar shows the highest one of its bytes."""

    EMPTY = 0  #: there are no bytes
    UNKNOWN = 1  #: not scanned yet
    GOOD = 2
    INDEX_ONLY = 3  #: an index names messages, the data file is gone
    FOREIGN = 4  #: good messages of another channel
    ORPHAN = 5  #: good messages that the index does not name
    ZERO = 6  #: zero bytes where records should be
    BAD = 7  #: no good record
    UNREADABLE = 8  #: the file cannot be read


@dataclass(frozen=True, slots=True)
class ByteSegment:
    """Bytes of one state, from `start` to `end` (exclusive)."""

    start: int
    end: int
    state: BytesState


def segments(survey: SliceSurvey | None) -> list[ByteSegment]:
    """Returns the states in a scanned data file, in order; later segments lie on top of earlier ones.

    Without a scan there are none.
    """
    if survey is None:
        return [ByteSegment(0, 1, BytesState.UNKNOWN)]
    if survey.error:
        return [ByteSegment(0, 1, BytesState.UNREADABLE)]
    if survey.files.data is None:
        return [ByteSegment(0, 1, BytesState.INDEX_ONLY)]
    found = [
        ByteSegment(0, min(FILE_HEADER_SIZE, survey.size), BytesState.BAD if survey.header_error else BytesState.GOOD)
    ]
    channel = os.fsencode(survey.files.data.parent.name)
    for run in survey.runs:
        found.append(ByteSegment(run.start, run.end, BytesState.GOOD if run.subject == channel else BytesState.FOREIGN))
    found += _orphans(survey)
    for neighbours in survey.damages:
        damage = neighbours.damage
        state = BytesState.ZERO if damage.kind is DamageKind.ZEROS else BytesState.BAD
        found.append(ByteSegment(damage.offset, damage.end, state))
    return [each for each in found if each.end > each.start]


def _orphans(survey: SliceSurvey) -> Iterator[ByteSegment]:
    report = survey.index
    if not report.present or not report.orphan_count:
        return
    pairs = report.orphans.pairs()[:_MAX_ORPHANS]
    for run in survey.runs:
        for first, last in pairs:
            if last < run.first or first > run.last:
                continue
            start = run.start if first <= run.first else _place(run, first)
            end = run.end if last >= run.last else _place(run, last + 1)
            if start <= report.first_orphan < end:
                start = report.first_orphan
            yield ByteSegment(start, max(end, start + 1), BytesState.ORPHAN)


def _place(run: RecordRun, sequence: int) -> int:
    """Returns about where a message of a run lies: interpolated between two known places."""
    marks = [(run.first, run.start), *run.marks, (run.last + 1, run.end)]
    at = bisect_right(marks, sequence, key=lambda mark: mark[0])
    if at >= len(marks):
        return run.end
    (low, start), (high, end) = marks[at - 1], marks[at]
    return start + (end - start) * (sequence - low) // max(high - low, 1)


def cells(found: Sequence[ByteSegment], size: int, width: int) -> list[BytesState]:
    """Draws a file of `size` bytes (0: unknown) as a bar of `width` places, each for an equal part of its bytes.

    States worse than good are always visible, however few bytes they have.
    """
    bar = [BytesState.EMPTY] * width
    if width <= 0:
        return []
    if size <= 0:
        return [max((each.state for each in found if each.end > 0), default=BytesState.EMPTY)] * width
    if len(found) == 1 and found[0].state in (BytesState.UNKNOWN, BytesState.UNREADABLE, BytesState.INDEX_ONLY):
        return [found[0].state] * width
    for each in found:
        low = min(each.start * width // size, width - 1)
        high = min(-(-each.end * width // size), width)
        for place in range(low, max(high, low + 1)):
            bar[place] = max(bar[place], each.state)
    return bar


@dataclass(frozen=True)
class IndexState:
    """The result of comparing an index with its data file, in a few words."""

    level: str  #: `clean`, `warning` or `error`
    short: str  #: for a narrow column
    text: str  #: the full text


def index_state(survey: SliceSurvey) -> IndexState:
    report = survey.index
    if survey.index_error:
        return IndexState("error", "unreadable", survey.index_error)
    if not report.present:
        if survey.files.index is None and survey.size <= FILE_HEADER_SIZE and not survey.error:
            return IndexState("clean", "none", "there is no index, and no message for one")
        return IndexState("warning", "missing", "there is no index: the server makes a new one from the data file")
    if report.header_error:
        return IndexState("error", "version", f"the index: {report.header_error}")
    level, parts, short = "clean", [], ""
    if report.stop != ScanStop.END:
        what = {ScanStop.ZEROS: "zeros", ScanStop.BAD_CRC: "bad"}.get(report.stop, "torn")
        level, short = "warning", f"{what} #{report.count + 1}"
        parts.append(_STOPS[what].format(report.count + 1))
    for count, name, text, worse in (
        (report.orphan_count, "unnamed", "good messages that it does not name", "warning"),
        (report.dangling_count, "dangling", "records that point to no good message", "error"),
        (report.mismatch_count, "differ", "records that differ from their message", "error"),
        (report.displaced_count, "displaced", "records in the wrong order", "error"),
    ):
        if count:
            short = short or f"{count:,} {name}"
            parts.append(f"{text}: {count:,}")
            level = "error" if "error" in (level, worse) else "warning"
    if survey.files.data is None:
        return IndexState("warning", "no data", f"the index names {report.count:,} messages that are gone")
    if not parts:
        return IndexState("clean", "agrees", f"the index agrees with the data, {report.count:,} records")
    return IndexState(level, short, "the index: " + "; ".join(parts))


_STOPS = {
    "zeros": "zeros from its record {:,} on",
    "bad": "its record {:,} does not match its CRC",
    "torn": "torn in its record {:,}",
}
