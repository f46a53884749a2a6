"""Surveys of many channels, by threads here or on Spark, with a result for each.

A small channel is one item of work; a big one is surveyed slice by slice and combined when all its slices are done.
The result is computed as work as well, because it may read records once more (`inspection.runs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.inspection.survey import ChannelSurvey, SliceSurvey, survey_slice
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles, Datastore, SliceFiles, list_channel
from stantools.work import ThreadWork, Work, WorkFailure, WorkItem

R = TypeVar("R")

#: A channel with more bytes than this is surveyed slice by slice: in this process, and in tasks.
_LOCAL_CHANNEL_BYTES = 1 << 20
CHANNEL_BYTES = 128 << 20
#: Cost of opening a channel, in bytes of scanning.
_OPENING = 64 << 10


@dataclass(frozen=True)
class ChannelRef:
    """A channel to be surveyed, in whatever process."""

    path: str  #: directory
    crc: Crc
    archived: bool = False  #: takes `.bak` slices as well, archived ones first
    files: ChannelFiles | None = None  #: the files to survey, if they are listed already
    size: int = -1  #: bytes of its slices; -1 if unknown
    loose: bool = False  #: its slices do not belong to a store

    def listed(self) -> tuple[ChannelFiles, str | None]:
        """Lists its files; the text is the reason if that is not possible."""
        if self.files:
            return self.files, None
        directory = Path(self.path)
        try:
            files = list_channel(directory)
        except StoreUnreadableError as error:
            return ChannelFiles(directory.name, directory), error.message
        if self.archived:
            files.slices = [*files.archived, *files.slices]
        return files, None


@dataclass(frozen=True)
class SurveyResult(Generic[R]):
    """The result for one channel, or for another task."""

    place: int  #: position among the items given
    result: R | WorkFailure  #: the result, or why it failed
    seconds: float  #: total time of the work, in whatever process


def survey_channels(
    store: Datastore,
    names: Iterable[str],
    *,
    workers: int = 2,
    archived: bool = False,
    progress: Progress | None = None,
) -> Iterator[ChannelSurvey]:
    """Surveys channels of a store in this process, in order; `archived` slices come first.

    A channel that cannot be listed comes as a survey with `error` set.
    """
    channels = (ChannelRef(str(store.path / name), store.crc, archived) for name in names)
    with closing(survey_each(ThreadWork(workers), channels, survey_itself, progress=progress)) as surveyed:
        for done in surveyed:
            if isinstance(done.result, WorkFailure):
                raise done.result.error()
            yield done.result


def survey_itself(_channel: ChannelRef, survey: ChannelSurvey) -> ChannelSurvey:
    """Returns the survey unchanged, for `survey_each`."""
    return survey


def survey_each(
    work: Work,
    items: Iterable[ChannelRef | WorkItem[Any]],
    on_survey: Callable[[ChannelRef, ChannelSurvey], R],
    *,
    progress: Callable[[int], object] | None = None,
) -> Generator[SurveyResult[R], None, None]:
    """Surveys channels and computes a result from each survey.

    However many channels there are, in this process only a few are listed ahead and a few slices are open. Small
    channels are surveyed together; other tasks among the items run as they are. `on_survey` computes a result; it must
    be picklable unless the work is done here. Each item yields one result, in order if the work is done in order.
    """
    gathered: dict[int, _ChannelSlices] = {}
    begun: dict[int, tuple[int, ChannelRef | _SliceItem | WorkItem[Any]]] = {}

    def pieces() -> Iterator[ChannelRef | _SliceItem | WorkItem[Any]]:
        number = 0
        for place, item in enumerate(items):
            cut = _split_channel(item, _LOCAL_CHANNEL_BYTES if work.here else CHANNEL_BYTES)
            if isinstance(cut, _ChannelSlices):
                gathered[place] = cut
            for piece in cut.slices() if isinstance(cut, _ChannelSlices) else [cut]:
                begun[number] = place, piece
                yield piece
                number += 1

    inside = work.inside(progress)
    do = partial(_run_item, on_survey, inside)
    for number, result in work.map(do, pieces(), cost=lambda item: _OPENING + max(item.size, 0)):
        place, piece = begun.pop(number)
        if progress and not inside:
            progress(piece.size)
        if not isinstance(piece, _SliceItem):
            yield _surveyed(place, result)
        elif gathered[place].take(piece.place, result) and work.here:
            yield from _join(work, {place: gathered.pop(place)}, on_survey)
    yield from _join(work, gathered, on_survey)


@dataclass(frozen=True)
class _SliceItem:
    place: int
    files: SliceFiles
    raw_name: bytes
    crc: Crc

    @property
    def size(self) -> int:
        return self.files.data_size + self.files.index_size


class _ChannelSlices:
    """A channel that is surveyed slice by slice."""

    def __init__(self, channel: ChannelRef, files: ChannelFiles) -> None:
        self.channel = channel
        self.files = files
        self.surveys: list[SliceSurvey | None] = [None] * len(files.all_slices)
        self.left = len(self.surveys)
        self.failure: WorkFailure | None = None
        self.seconds = 0.0

    def slices(self) -> Iterator[_SliceItem]:
        for place, each in enumerate(self.files.all_slices):
            yield _SliceItem(place, each, self.files.raw_name, self.channel.crc)

    def take(self, place: int, result: tuple[SliceSurvey, float] | WorkFailure) -> bool:
        """Takes the survey of a slice; returns whether it was the last one."""
        if isinstance(result, WorkFailure):
            self.failure = self.failure or result
        else:
            self.surveys[place] = result[0]
            self.seconds += result[1]
        self.left -= 1
        return not self.left


def _split_channel(item: ChannelRef | WorkItem[Any], limit: int) -> ChannelRef | WorkItem[Any] | _ChannelSlices:
    """Cuts a channel into its slices if that is worth it."""
    if isinstance(item, WorkItem) or 0 <= item.size <= limit:
        return item
    files, error = item.listed()
    if error:
        return item  # its survey reports this
    slices = files.all_slices
    size = sum(each.data_size + each.index_size for each in slices)
    return _ChannelSlices(item, files) if len(slices) > 1 and size > limit else replace(item, files=files, size=size)


def _join(
    work: Work, gathered: dict[int, _ChannelSlices], on_survey: Callable[[ChannelRef, ChannelSurvey], R]
) -> Iterator[SurveyResult[R]]:
    """Combines channels in parts, and computes their results."""
    whole: list[tuple[int, ChannelRef, ChannelSurvey]] = []
    for place, parts in gathered.items():
        if parts.failure:
            yield SurveyResult(place, parts.failure, parts.seconds)
        else:
            surveys = [survey for survey in parts.surveys if survey]
            whole.append((place, parts.channel, ChannelSurvey.of(parts.files, surveys)))
    for number, result in work.map(partial(_timed_result, on_survey), whole):
        place = whole[number][0]
        yield _surveyed(place, result, gathered[place].seconds)


def _surveyed(place: int, result: tuple[Any, float] | WorkFailure, before: float = 0.0) -> SurveyResult[Any]:
    if isinstance(result, WorkFailure):
        return SurveyResult(place, result, before)
    return SurveyResult(place, result[0], before + result[1])


def _run_item(
    on_survey: Callable[[ChannelRef, ChannelSurvey], Any],
    progress: Progress | None,
    item: ChannelRef | _SliceItem | WorkItem[Any],
) -> tuple[Any, float]:
    """Surveys a slice, or surveys a channel and computes its result, or runs a task."""
    begin = time.perf_counter()
    result: Any
    if isinstance(item, _SliceItem):
        result = survey_slice(item.files, item.raw_name, item.crc, progress)
    elif isinstance(item, ChannelRef):
        files, error = item.listed()
        surveys = [survey_slice(each, files.raw_name, item.crc, progress) for each in files.all_slices]
        result = on_survey(item, ChannelSurvey.of(files, surveys, error))
    else:
        result = item.work()
    return result, time.perf_counter() - begin


def _timed_result(
    on_survey: Callable[[ChannelRef, ChannelSurvey], R], item: tuple[int, ChannelRef, ChannelSurvey]
) -> tuple[R, float]:
    begin = time.perf_counter()
    return on_survey(item[1], item[2]), time.perf_counter() - begin
