"""Repeated surveys of a store that a server is writing; each one reads only the bytes appended since the last.

The surveys are those of `inspection.survey`, so that a plan for a growing store is made like one for a store at
rest. In the slice that a server is writing they end where it is safe to read (`store.safe_end`): bytes after that
are a write in progress, or were left by a killed server and may yet be taken back. Slices that limits removed are
left out of the next survey; replaced ones are surveyed anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import StoreChangedError, StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection.survey import ChannelSurvey, SliceSurvey, extend_survey, survey_slice
from stantools.progress import Progress
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, ChannelFiles, SliceFiles, list_channel, open_datastore
from stantools.store.safe_end import (
    ChannelPosition,
    ChannelSnapshot,
    Sign,
    SlicePosition,
    WatchedSlice,
    growing_slice,
    settling,
    sign,
)
from stantools.work import ThreadWork, WorkFailure

#: Attempts at a channel whose files disappear during the survey.
_ATTEMPTS = 5
#: A slice up to this size is surveyed once more, with its index, if its server stopped within a record.
_MAX_RESCAN = 256 << 20


@dataclass
class _SurveyedChannel(ChannelSnapshot):
    """A channel as of the last look."""

    survey: ChannelSurvey
    #: The data files surveyed, by path: their inodes, and the last message if it is known. A name may be used again.
    files: dict[Path, tuple[int, SlicePosition | None]] = field(default_factory=dict)


class GrowingStore:
    """The surveys of a store's channels that match the patterns (NATS wildcards); none takes all.

    `workers` channels are surveyed at the same time.
    """

    def __init__(self, path: Path, crc: Crc, patterns: Sequence[str] = (), *, workers: int = 2) -> None:
        self.path = path
        self._crc = crc.checking
        self._patterns = patterns
        self._workers = workers
        self._surveyed_channels: dict[str, _SurveyedChannel] = {}
        self._listed: Sign = None
        self._names: list[str] = []

    @property
    def channels(self) -> dict[str, ChannelSurvey]:
        """The surveys of the last look, by the channel's name."""
        return {name: seen.survey for name, seen in self._surveyed_channels.items()}

    def look(self, *, stopped: bool = False, progress: Progress | None = None) -> list[str]:
        """Surveys the store again; returns the names of the channels whose messages changed, or that are gone.

        `stopped`: no server writes the store any more, so that all bytes count. `progress` is called with bytes read
        of slices that are surveyed for the first time. Raises `StoreChangedError` if a channel keeps changing during
        the survey.
        """
        now, listed = time.time(), sign(os.fspath(self.path))
        if listed != self._listed or stopped:
            self._names = open_datastore(self.path).matching(self._patterns)
            self._listed = listed
        gone = self._surveyed_channels.keys() - set(self._names)
        known = () if stopped else {name for name, seen in self._surveyed_channels.items() if seen.unchanged(now)}
        due = [name for name in self._names if name not in known]
        look = _StoreLook(self.path, self._crc, stopped, ThreadWork(self._workers).inside(progress))
        changed = sorted(gone)
        for name in gone:
            del self._surveyed_channels[name]
        for place, found in ThreadWork(self._workers).map(
            lambda name: look.at(name, self._surveyed_channels.get(name)), due
        ):
            if isinstance(found, WorkFailure):
                raise found.error()
            before = self._surveyed_channels.get(due[place])
            self._surveyed_channels[due[place]] = found
            if before is None or _ends(before.survey) != _ends(found.survey):
                changed.append(due[place])
        return changed

    def written(self) -> float:
        """Returns when a server last wrote to the store, as far as its files show, in seconds since 1970."""
        names = [*self._names]
        files = [os.fspath(self.path / CLIENTS_FILE)]
        for name in names:
            files.append(f"{self.path}/{name}/{SUBS_FILE}")
            files += self._surveyed_channels[name].paths[:1] if name in self._surveyed_channels else ()
        return max((each[2] / 1e9 for each in map(sign, files) if each), default=0.0)


@dataclass(frozen=True)
class _StoreLook:
    root: Path
    crc: Crc
    stopped: bool  #: as for `GrowingStore.look`
    progress: Progress | None  #: as for `GrowingStore.look`

    def at(self, name: str, before: _SurveyedChannel | None) -> _SurveyedChannel:
        """Surveys a channel, and once more if its files disappear meanwhile."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._channel(name, before)
            except (StoreUnreadableError, StoreChangedError):
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(0.01)
        raise AssertionError

    def _channel(self, name: str, before: _SurveyedChannel | None) -> _SurveyedChannel:
        directory = self.root / name
        listed = sign(os.fspath(directory))
        files = list_channel(directory)
        live = growing_slice(files.slices, files.raw_name, self.crc)
        # File states from before the survey: a change during it is then seen the next time.
        paths = tuple(map(str, self._growing_files(files, live)))
        signs = tuple(map(sign, paths))
        surveys = {each.files.data: each for each in before.survey.slices} if before else {}
        seen, waiting = _SurveyedChannel(ChannelSurvey(files, [])), False
        for each in files.slices:
            assert each.data is not None
            status = sign(str(each.data))
            if status is None:
                raise StoreUnreadableError(f"{each.data}: is gone since it was listed", "look again")
            inode, last = before.files.get(each.data, (0, None)) if before else (0, None)
            survey = surveys.get(each.data) if inode == status[0] else None
            was_growing = before is not None and str(each.data) in before.paths
            if survey is None or survey.size != status[1] or (self.stopped and was_growing):
                grows = not self.stopped and (live is None or each.number >= live)
                survey, last = self._slice(files, each, survey, last, grows=grows)
                waiting = waiting or (grows and survey.size < status[1])
            seen.files[each.data] = status[0], last
            seen.survey.slices.append(survey)
        seen.survey.lone_indexes = [survey_slice(each, files.raw_name, self.crc) for each in files.lone_indexes]
        seen.paths, seen.signs = (*paths, os.fspath(directory)), (*signs, listed)
        newest = max((each[2] / 1e9 for each in signs if each), default=0.0)
        seen.settles = settling(newest) if waiting else float("inf")
        return seen

    def _growing_files(self, files: ChannelFiles, live: int | None) -> Iterator[Path]:
        """Yields the data file and the index that grow; the directory's state shows new files."""
        for each in files.slices:
            if each.number >= (live or 0):
                assert each.data is not None
                yield each.data
                yield each.data.with_suffix(".idx")

    def _slice(
        self, files: ChannelFiles, each: SliceFiles, old: SliceSurvey | None, last: SlicePosition | None, *, grows: bool
    ) -> tuple[SliceSurvey, SlicePosition | None]:
        """Surveys a slice, or continues its survey; returns it with the last message if that is known."""
        with WatchedSlice(each, files.raw_name, self.crc) as watched:
            if old and (
                watched.size < old.size or (last and not watched.continues(ChannelPosition(each.number, *last)))
            ):
                old = last = None
            indexed, size = watched.indexed(), watched.size
            mark = watched.safe(max(old.size if old else 0, FILE_HEADER_SIZE)) if grows else indexed
        if grows:
            survey = old or SliceSurvey(each)
            return (extend_survey(survey, files.raw_name, self.crc, mark.end), mark) if mark else (survey, last)
        complete = mark is not None and mark.end == size
        if old is None or (not complete and size <= _MAX_RESCAN):
            survey = survey_slice(each, files.raw_name, self.crc, self.progress)
            if survey.error:
                raise StoreUnreadableError(survey.error)
            return survey, mark if complete else None
        grown = old if old.size == size else extend_survey(old, files.raw_name, self.crc, size)
        return grown, mark if complete else None


def _ends(survey: ChannelSurvey) -> list[tuple[Path | None, int]]:
    """Returns the end of the survey of each slice."""
    return [(each.files.data, each.size) for each in survey.slices]
