"""A channel of a file store for the browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stantools.browse.browsed_channel import BrowsedChannel, FileState, ListedFile, OpenedRecords
from stantools.browse.record_map import RecordMap, map_of_survey, map_records
from stantools.browse.record_reader import RecordReader
from stantools.browse.slice_map import index_state, segments
from stantools.browse.timeline import Timeline, read_timeline
from stantools.browse.window import RowWindow, open_window, refine
from stantools.inspection.file_findings import missing_slices
from stantools.inspection.records import FileKind, kind_of
from stantools.inspection.survey import ChannelSurvey, SliceSurvey, stop_text, survey_slice
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles, Datastore, size_of
from stantools.store.growing_channel import Sign, sign
from stantools.store.mapping import mapped
from stantools.store.ranges import Ranges

_FILES = {
    FileKind.SERVER: "identity",
    FileKind.CLIENTS: "clients",
    FileKind.SUBS: "subscriptions",
    FileKind.INDEX: "index",
    FileKind.MESSAGES: "messages",
}


class StoreChannel(BrowsedChannel):
    """A channel of a store. A `survey` is used where it fits."""

    def __init__(self, store: Datastore, name: str, survey: ChannelSurvey | None = None) -> None:
        self._store = store
        self._files = store.channel(name)
        self._survey = survey

    def signature(self) -> tuple[Sign, ...]:
        files = self._files
        last = files.slices[-1] if files.slices else None
        paths = (files.path, last.data, last.index) if last is not None else (files.path,)
        return tuple(sign(path) if path else None for path in paths)

    def bytes_to_read(self) -> int:
        return sum(each.index_size or each.data_size for each in self._files.slices)

    def open(self) -> RowWindow:
        return open_window(self._files, self._store.crc, key=self._store.key, survey=self._survey)

    def refine(self, window: RowWindow | None, *, live: bool, progress: Progress) -> RowWindow:
        store = self._store
        return refine(window, self._files, store.crc, key=store.key, survey=self._survey, live=live, progress=progress)

    def timeline(self, progress: Progress) -> Timeline:
        return read_timeline(self._files, self._store.crc, survey=self._survey, progress=progress)

    def path_of(self, name: str) -> Path:
        return self._files.path / name

    def files(self) -> Sequence[ListedFile]:
        return list(_listed(self._store, self._files, self._survey))

    def states(self) -> dict[Path, FileState]:
        survey = self._survey
        if survey is None:
            return {}
        found = (*survey.slices, *survey.lone_indexes)
        return {each.files.data or each.files.index or self._store.path: slice_state(each) for each in found}

    def scan(self, file: ListedFile, progress: Progress) -> FileState:
        files = next(each for each in self._files.archived if file.path in (each.data, each.index))
        return slice_state(survey_slice(files, self._files.raw_name, self._store.crc, progress))


def _listed(store: Datastore, files: ChannelFiles, survey: ChannelSurvey | None) -> Iterator[ListedFile]:
    slices = sorted((*files.archived, *files.slices, *files.lone_indexes), key=lambda each: each.number)
    gaps = {gap.high + 1: gap for gap in missing_slices(survey)} if survey is not None else {}
    for each in slices:
        if each.data and not each.archived and (gap := gaps.get(each.number)):
            text = f"! slice {gap.numbers} is missing, with sequences {gap.first} to {gap.last}"
            yield ListedFile(None, text, level="warning")
        path = each.data or each.index
        if path is not None:
            size = each.data_size if each.data else each.index_size
            yield ListedFile(path, size=size, number=each.number, index=each.index, archived=each.archived)
    others = [each.index for each in slices if each.index and each.data]
    others += [files.subs] if files.subs else []
    others += [path for path in (*files.misnamed, *files.foreign) if kind_of(path.name)]
    yield from root_files(store, others)


def root_files(store: Datastore, others: Sequence[Path] = ()) -> Iterator[ListedFile]:
    """Yields the files of a store that are not in a channel, after other files."""
    found = [*others, *(path for path in (store.clients, store.server, *store.leftovers) if path)]
    if found:
        yield ListedFile(None, "— other files —")
    for path in found:
        kind = kind_of(path.name)
        yield ListedFile(path, _FILES.get(kind, "") if kind else "", size=size_of(path))


def slice_state(survey: SliceSurvey) -> FileState:
    runs = survey.runs

    def place(sequence: int) -> int | None:
        run = next((run for run in runs if sequence in run.sequences), None)
        return run.place(sequence) if run else None

    return FileState(
        Ranges.union(run.sequences for run in runs),
        index_state(survey),
        segments(survey),
        survey.files.data_size,
        sum(run.count for run in runs),
        runs[0].first if runs else None,
        (runs[0].first_timestamp, runs[-1].last_timestamp) if runs else None,
        survey.error or "",
        survey.header_error or "",
        survey.files.data is None,
        list(_damages(survey)),
        place,
    )


def _damages(survey: SliceSurvey) -> Iterator[str]:
    for neighbours in survey.damages:
        damage = neighbours.damage
        seq = f", sequence {damage.sequence}" if damage.sequence is not None else ""
        size = f"{damage.length:,} byte{'s' * (damage.length != 1)}"
        text = f"at {damage.offset}: {damage.kind.value}, {size}{seq}"
        yield f"{text}: {stop_text(damage.stop)}"


def store_records(store: Datastore, path: Path, survey: ChannelSurvey | None) -> OpenedRecords:
    """Opens a file of a store, by the survey of its slice if that fits. Raises `StoreUnreadableError`."""
    kind = kind_of(path.name)
    assert kind is not None
    channel = path.parent.name.encode("utf-8", "surrogateescape") if kind is FileKind.MESSAGES else b""
    reader = RecordReader(path, kind, store.crc, channel)
    scanned = next((each for each in survey.slices if each.files.data == path), None) if survey else None

    def work(progress: Progress) -> RecordMap:
        if scanned is not None and not scanned.error and scanned.size == reader.size:
            return map_of_survey(scanned)
        with mapped(path, sequential=True) as buffer:
            return map_records(buffer, kind, store.crc, channel=channel, progress=progress)

    return OpenedRecords(reader, work)
