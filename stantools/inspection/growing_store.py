"""Repeated surveys of a store that a server is writing; each one reads only the bytes appended since the last.

The surveys are those of `inspection.survey`, so that a plan for a growing store is made like one for a store at
rest. In the slice that a server is writing they end where it is safe to read (`store.growing_channel`): bytes after
that are a write in progress, or were left by a killed server and may yet be taken back. Slices that limits removed are
left out of the next survey; replaced ones are surveyed anew.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection.survey import ChannelSurvey, SliceSurvey, extend_survey, survey_slice
from stantools.progress import Progress
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, SliceFiles, open_datastore
from stantools.store.growing_channel import ANYWHERE, ChannelFollower, Sign, repeated, sign
from stantools.store.growing_slice import ChannelPosition, GrowingSlice
from stantools.work import ThreadWork, WorkFailure

#: A slice up to this size is surveyed once more, with its index, if its server stopped within a record.
_MAX_RESCAN = 256 << 20


class GrowingStore:
    """The surveys of a store's channels that match the patterns (NATS wildcards); none takes all.

    `workers` channels are surveyed at the same time.
    """

    def __init__(self, path: Path, crc: Crc, patterns: Sequence[str] = (), *, workers: int = 2) -> None:
        self.path = path
        self._crc = crc.checking
        self._patterns = patterns
        self._workers = workers
        self._channels: dict[str, _SurveyedChannel] = {}
        self._listed: Sign = None

    @property
    def channels(self) -> dict[str, ChannelSurvey]:
        """The surveys of the last look, by the channel's name."""
        return {name: each.survey for name, each in self._channels.items() if each.survey}

    def look(self, *, stopped: bool = False, progress: Progress | None = None) -> list[str]:
        """Surveys the store again; returns the names of the channels whose messages changed, or that are gone.

        `stopped`: no server writes the store any more, so that all bytes count. `progress` is called with bytes read
        of slices that are surveyed for the first time. Raises `StoreChangedError` if a channel keeps changing during
        the survey.
        """
        changed: list[str] = []
        listed = sign(self.path)
        if listed != self._listed or stopped:
            names = open_datastore(self.path).matching(self._patterns)
            changed = sorted(self._channels.keys() - set(names))
            root = os.fspath(self.path)
            self._channels = {
                name: self._channels.get(name) or _SurveyedChannel(ChannelFollower(root, name, self._crc), self._crc)
                for name in names
            }
            self._listed = listed
        due = [name for name, each in self._channels.items() if stopped or not each.follower.unchanged(each.position)]
        work = ThreadWork(self._workers)
        inside = work.inside(progress)
        for place, found in work.map(lambda name: self._channels[name].look(inside, stopped=stopped), due):
            if isinstance(found, WorkFailure):
                raise found.error()
            if found:
                changed.append(due[place])
        return changed

    def written(self) -> float:
        """Returns when a server last wrote to the store, as far as its files show, in seconds since 1970."""
        files = [os.fspath(self.path / CLIENTS_FILE)]
        for name, each in self._channels.items():
            files += (f"{self.path}/{name}/{SUBS_FILE}", *each.follower.paths[:1])
        return max((each[2] / 1e9 for each in map(sign, files) if each), default=0.0)


@dataclass
class _SurveyedChannel:
    """A channel as of the last look."""

    follower: ChannelFollower
    crc: Crc
    position: ChannelPosition = ANYWHERE  #: where the survey ends
    survey: ChannelSurvey | None = None
    inodes: dict[Path | None, int] = field(default_factory=dict)  #: of the data files; a name may be used again

    def look(self, progress: Progress | None, *, stopped: bool) -> bool:
        """Surveys the channel again; returns whether its messages changed."""
        before = _ends(self.survey)
        repeated(lambda: self._look(progress, stopped=stopped))
        return before is None or before != _ends(self.survey)

    def _look(self, progress: Progress | None, *, stopped: bool) -> None:
        news = self.follower.look(self.position, stopped=stopped)
        known = {each.files.data: each for each in self.survey.slices} if self.survey else {}
        if news.replaced:
            known, news = {}, self.follower.look(ANYWHERE, stopped=stopped)
        files, inodes = news.channel.files, {}
        survey = ChannelSurvey(files, [])
        for each in files.slices:
            status = sign(each.data) if each.data else None
            if status is None:
                raise StoreUnreadableError(f"{each.data}: is gone since it was listed", "look again")
            inodes[each.data] = status[0]
            old = known.get(each.data)
            if old and (status[0] != self.inodes[each.data] or status[1] < old.size):
                old = None
            whole = stopped or each.number < max(news.end.slice, news.channel.top or 0)
            if not whole and each is news.channel.slices[each.number]:
                old = old or SliceSurvey(each)
                if each.number == news.end.slice and news.end.offset > max(old.size, FILE_HEADER_SIZE):
                    old = extend_survey(old, files.raw_name, self.crc, news.end.offset)
            elif old is None or old.size != status[1] or (stopped and each.number >= self.position.slice):
                old = self._whole(each, old, files.raw_name, progress)
            survey.slices.append(old)
        survey.lone_indexes = [survey_slice(each, files.raw_name, self.crc) for each in files.lone_indexes]
        self.survey, self.position, self.inodes = survey, news.end, inodes

    def _whole(
        self, files: SliceFiles, old: SliceSurvey | None, channel: bytes, progress: Progress | None
    ) -> SliceSurvey:
        """Surveys a slice that is not written any more, or continues its survey."""
        with GrowingSlice(files, channel, self.crc) as slice_:
            mark, size = slice_.indexed(), slice_.size
        complete = mark is not None and mark.end == size
        if old is None or (not complete and size <= _MAX_RESCAN):
            survey = survey_slice(files, channel, self.crc, progress)
            if survey.error:
                raise StoreUnreadableError(survey.error)
            return survey
        return old if old.size == size else extend_survey(old, channel, self.crc, size)


def _ends(survey: ChannelSurvey | None) -> list[tuple[Path | None, int]] | None:
    """Returns the end of the survey of each slice."""
    return [(each.files.data, each.size) for each in survey.slices] if survey else None
