"""Slices that a survey found as a healthy server leaves them: a forecast after it need not read them again.

Their index is good and names exactly the records of the data file, each a message of the channel, in rising order. So
the server uses the index, and finds every message, with or without read-ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, MESSAGE_OVERHEAD, ScanStop
from stantools.inspection.survey import ChannelSurvey, SliceSurvey
from stantools.store.indexes import IndexScan
from stantools.store.ranges import Ranges


@dataclass(frozen=True)
class SoundSlice:
    data: Path
    data_size: int
    index: Path
    index_size: int
    scan: IndexScan  #: of the index
    sequences: Ranges


def sound_slices(survey: ChannelSurvey) -> Iterator[SoundSlice]:
    """Yields the sound slices of a channel."""
    for each in survey.slices:
        data, index = each.files.data, each.files.index
        if data is not None and index is not None and _sound(each, survey.files.raw_name):
            rows = each.index.count
            sizes = sum(run.bytes for run in each.runs) - MESSAGE_OVERHEAD * rows
            yield SoundSlice(
                data,
                each.size,
                index,
                each.index.size,
                IndexScan(rows, ScanStop.END, sizes, True),
                Ranges.union(run.sequences for run in each.runs),
            )


def _sound(survey: SliceSurvey, channel: bytes) -> bool:
    runs, index = survey.runs, survey.index
    if survey.error or survey.header_error or survey.index_error or survey.damages or not index.agrees():
        return False
    rows = sum(run.count for run in runs)
    return (
        rows == index.count > 0
        and index.size == FILE_HEADER_SIZE + INDEX_RECORD_SIZE * rows
        and runs[0].start == FILE_HEADER_SIZE
        and runs[-1].end == survey.size
        and all(run.subject == channel for run in runs)
        and all(one.end == two.start and one.last < two.first for one, two in pairwise(runs))
    )
