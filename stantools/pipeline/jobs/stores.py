"""Common parts of jobs over many stores: all are surveyed together, and one failure stops no other store."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from stantools.errors import ExitCode
from stantools.format.crc import Crc
from stantools.inspection.survey import ChannelSurvey
from stantools.inspection.survey_jobs import ChannelRef, survey_each, survey_itself
from stantools.pipeline.tables.discovery import FoundStore
from stantools.pipeline.tables.listing import listed
from stantools.pipeline.tables.model import FailedRead
from stantools.pipeline.tables.remote import is_remote
from stantools.progress import Progress
from stantools.recovery.salvage.plan import channels_to_survey
from stantools.store.directory import Datastore
from stantools.work import Work, WorkFailure

_REMEDY = "name the directory given to the server as -dir; `stantools stats` counts the messages of anything"
#: The worst first.
_WORST = (ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.USAGE, ExitCode.FINDINGS, ExitCode.LOSS)


def worst(codes: Collection[int]) -> ExitCode:
    """Returns the worst exit code of a job's stores."""
    return next((code for code in _WORST if code in codes), ExitCode.CLEAN)


class StoreResult(Protocol):
    @property
    def clean(self) -> bool:
        """True if the store has no problem."""

    def as_json(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=StoreResult)


@dataclass
class JobResult(Generic[S]):
    stores: list[S] = field(default_factory=list)  #: in the order given
    failed: list[FailedRead] = field(default_factory=list)  #: everything that could not be read

    @property
    def clean(self) -> bool:
        """True if everything could be read and no store has a problem."""
        return not self.failed and all(store.clean for store in self.stores)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.CLEAN if self.clean else ExitCode.FINDINGS

    def as_json(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "stores": [store.as_json() for store in self.stores],
            "failed": [each.as_json() for each in self.failed],
        }


@dataclass
class StoreDocument:
    """A store with what the verb says of it alone in json."""

    root: str
    document: dict[str, Any]

    @property
    def clean(self) -> bool:
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        return {"store": self.root, **self.document, "clean": self.clean}


def map_stores(
    work: Work,
    function: Callable[[FoundStore], S],
    found: Sequence[FoundStore],
    failed: Sequence[FailedRead],
    *,
    progress: Callable[[int], object] | None = None,
) -> JobResult[S]:
    """Runs a function for each whole store of this machine; `progress` is called with the number of finished stores."""
    result = JobResult[S](failed=list(failed))
    stores = []
    for each in found:
        if each.loose is None and not is_remote(each.ref.root):
            stores.append(each)
            continue
        what = "is at a URL" if is_remote(each.ref.root) else "holds slices, but is not a store"
        result.failed.append(FailedRead(each.shown, f"{each.shown}: {what}", _REMEDY))
    results: dict[int, S] = {}
    for number, done in work.map(function, stores):
        if progress:
            progress(1)
        if not isinstance(done, WorkFailure):
            results[number] = done
        elif done.exit_code == ExitCode.USAGE:
            raise done.error()  # the options are wrong, not the store
        else:
            result.failed.append(FailedRead.of(stores[number].shown, done))
    result.stores = [results[number] for number in sorted(results)]
    return result


def channels_of(
    store: Datastore, polynomial: int, patterns: Sequence[str], *, archived: bool = False
) -> list[ChannelRef]:
    """Returns the channels of a store to survey, with the bytes of their slices."""
    paths = [f"{store.path}/{channel}" for channel in channels_to_survey(store, patterns)]
    sizes = zip(paths, listed(_size, paths), strict=True)
    return [ChannelRef(path, Crc(polynomial), archived=archived, size=size) for path, size in sizes]


def _size(directory: str) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.startswith("msgs."))
    except OSError:
        return 0  # the survey reports the reason


@dataclass
class StoreSurvey:
    #: The surveyed channels, in order.
    channels: list[ChannelSurvey] = field(default_factory=list)
    failed: list[FailedRead] = field(default_factory=list)  #: channels that could not be surveyed
    failure: WorkFailure | None = None  #: reason of the last failure


def survey_stores(
    work: Work, stores: Sequence[Sequence[ChannelRef]], *, progress: Progress | None = None
) -> list[StoreSurvey]:
    """Surveys the channels of all stores together, so that big and small ones share the work."""
    items = [channel for channels in stores for channel in channels]
    done = {each.place: each.result for each in survey_each(work, items, survey_itself, progress=progress)}
    surveys, place = [], 0
    for channels in stores:
        survey = StoreSurvey()
        for channel in channels:
            result = done[place]
            if isinstance(result, WorkFailure):
                survey.failed.append(FailedRead.of(channel.path, result))
                survey.failure = result
            else:
                survey.channels.append(result)
            place += 1
        surveys.append(survey)
    return surveys
