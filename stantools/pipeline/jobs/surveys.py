"""Surveys of channels on Spark: what `inspection.survey` does with threads, over many stores and machines.

A channel of some slices is one item of work. A channel with more data is surveyed slice by slice, and put together
when all its slices are there; what is then asked of it runs in a task again, because it may have to read records once
more (`inspection.runs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.inspection.survey import ChannelSurvey, Reading, SliceSurvey, survey_slice
from stantools.store.directory import ChannelFiles, SliceFiles, list_channel
from stantools.work import Failure, Work

R = TypeVar("R")

#: A channel with more bytes than this is surveyed slice by slice.
CHANNEL_BYTES = 128 << 20
#: What opening a channel costs, as if it had so many more bytes.
_OPENING = 64 << 10


@dataclass(frozen=True)
class ChannelRef:
    """A channel to be surveyed.

    Attributes:
        path: Its directory.
        crc: The store's CRC.
        archived: Take `.bak` slices too, archived ones first.
        files: What is surveyed where that is not the whole directory.
        size: Bytes of its files.
    """

    path: str
    crc: Crc
    archived: bool = False
    files: ChannelFiles | None = None
    size: int = 0

    @property
    def name(self) -> str:
        """The channel's name."""
        return self.files.name if self.files else Path(self.path).name

    def listed(self) -> tuple[ChannelFiles, str | None]:
        """Lists its files; a text says why that is not possible."""
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


class Other(Protocol):
    """Something else that is done in the same tasks as the channels; it is pickled."""

    @property
    def size(self) -> int:
        """Bytes that it reads, about."""

    def run(self) -> Any:
        """Does it, and returns what is picklable."""


@dataclass(frozen=True)
class Surveyed(Generic[R]):
    """What was made of one channel, or of something else.

    Attributes:
        place: Its place among what was given.
        result: What was made of it, or why it failed.
        seconds: What that took, altogether, wherever it was done.
    """

    place: int
    result: R | Failure
    seconds: float


@dataclass(frozen=True)
class _SliceItem:
    channel: int
    place: int
    files: SliceFiles
    raw_name: bytes
    crc: Crc

    @property
    def size(self) -> int:
        return self.files.data_size + self.files.index_size


@dataclass
class _Parts:
    """A channel that is surveyed slice by slice."""

    files: ChannelFiles
    surveys: list[SliceSurvey | None]
    failure: Failure | None = None
    seconds: float = 0.0

    def survey(self) -> ChannelSurvey:
        return ChannelSurvey.of(self.files, [survey for survey in self.surveys if survey])


def survey_channels_on(
    work: Work,
    items: Sequence[ChannelRef | Other],
    then: Callable[[ChannelRef, ChannelSurvey], R],
    *,
    progress: Callable[[int], object] | None = None,
) -> Iterator[Surveyed[R]]:
    """Surveys channels and makes something of each survey, all of it in tasks.

    Args:
        work: Runs the tasks.
        items: The channels, and what else shall be done; small ones are packed together.
        then: What is made of a survey. It is pickled, and runs where the survey is made, or where it is put together.
        progress: Told the number of bytes as they are done.

    Yields:
        What was made of each item, once, as they are done.
    """
    parts: dict[int, _Parts] = {}
    pieces: list[ChannelRef | Other | _SliceItem] = []
    places: list[int] = []
    for place, item in enumerate(items):
        made = _in_parts(place, item) if isinstance(item, ChannelRef) else None
        if made:
            parts[place] = made[0]
        cut: Sequence[ChannelRef | Other | _SliceItem] = made[1] if made else [item]
        pieces += cut
        places += [place] * len(cut)

    for number, result in work.map(partial(_work, then), pieces, cost=_cost):
        done = pieces[number]
        if progress:
            progress(done.size)
        if not isinstance(done, _SliceItem):
            yield _surveyed(places[number], result)
            continue
        gathered = parts[done.channel]
        if isinstance(result, Failure):
            gathered.failure = result
        else:
            gathered.surveys[done.place] = result[0]
            gathered.seconds += result[1]
    yield from _finish(work, items, parts, then)


def _finish(
    work: Work,
    items: Sequence[ChannelRef | Other],
    parts: dict[int, _Parts],
    then: Callable[[ChannelRef, ChannelSurvey], R],
) -> Iterator[Surveyed[R]]:
    """Makes of the channels in parts what shall be made of them."""
    whole: list[tuple[int, ChannelRef, ChannelSurvey]] = []
    for place, gathered in parts.items():
        ref = items[place]
        assert isinstance(ref, ChannelRef)
        if gathered.failure:
            yield Surveyed(place, gathered.failure, gathered.seconds)
        else:
            whole.append((place, ref, gathered.survey()))
    for number, result in work.map(partial(_then, then), whole):
        place = whole[number][0]
        yield _surveyed(place, result, parts[place].seconds)


def _surveyed(place: int, result: tuple[Any, float] | Failure, before: float = 0.0) -> Surveyed[Any]:
    if isinstance(result, Failure):
        return Surveyed(place, result, before)
    return Surveyed(place, result[0], before + result[1])


def _in_parts(place: int, ref: ChannelRef) -> tuple[_Parts, list[_SliceItem]] | None:
    """Cuts a channel into its slices, where that is worth it."""
    if ref.size <= CHANNEL_BYTES:
        return None
    files, error = ref.listed()
    slices = files.all_slices
    if error or len(slices) < 2:
        return None
    items = [_SliceItem(place, number, each, files.raw_name, ref.crc) for number, each in enumerate(slices)]
    return _Parts(files, [None] * len(slices)), items


def _cost(item: ChannelRef | Other | _SliceItem) -> int:
    return _OPENING + item.size


def _work(then: Callable[[ChannelRef, ChannelSurvey], Any], item: ChannelRef | Other | _SliceItem) -> tuple[Any, float]:
    """In a task: surveys a slice, or a channel and makes something of it, or does what else there is to do."""
    begin = time.perf_counter()
    result: Any
    if isinstance(item, _SliceItem):
        result = survey_slice(item.files, item.raw_name, _reading(item.crc))
    elif isinstance(item, ChannelRef):
        files, error = item.listed()
        reading = _reading(item.crc)
        surveys = [survey_slice(each, files.raw_name, reading) for each in files.all_slices]
        result = then(item, ChannelSurvey.of(files, surveys, error))
    else:
        result = item.run()
    return result, time.perf_counter() - begin


def _then(
    then: Callable[[ChannelRef, ChannelSurvey], R], item: tuple[int, ChannelRef, ChannelSurvey]
) -> tuple[R, float]:
    begin = time.perf_counter()
    return then(item[1], item[2]), time.perf_counter() - begin


@lru_cache(maxsize=4)
def _reading(crc: Crc) -> Reading:
    """Keeps the columns of one process for all that it reads."""
    return Reading(crc)
