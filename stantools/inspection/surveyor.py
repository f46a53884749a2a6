"""Surveys of many channels: slices in parallel, a few at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.inspection.survey import ChannelSurvey, Reading, SliceSurvey, survey_slice
from stantools.progress import Progress
from stantools.store.directory import ChannelFiles, Datastore, SliceFiles

#: Slices listed ahead for each worker.
_AHEAD = 4
#: Slices below this many bytes are scanned where they are needed.
_SMALL = 1 << 20


def survey_channels(
    store: Datastore,
    names: Sequence[str],
    crc: Crc,
    *,
    check_crc: bool = True,
    workers: int = 2,
    archived: bool = False,
    progress: Progress | None = None,
) -> Iterator[ChannelSurvey]:
    """Scans channels in order, slices in parallel, archived ones first where they are wanted.

    Only a few slices are open at any time and only a few channels are listed ahead, however many there are. A channel
    that cannot be listed comes as a survey with `error` set.
    """
    local = threading.local()

    def work(files: SliceFiles, channel: bytes) -> SliceSurvey:
        if not hasattr(local, "reading"):
            local.reading = Reading(crc, check_crc, progress)
        return survey_slice(files, channel, local.reading)

    waiting: deque[tuple[ChannelFiles, str | None, list[Callable[[], SliceSurvey]]]] = deque()
    upcoming = iter(names)
    ahead = 0
    with ThreadPoolExecutor(workers) as pool, _cancelling(pool):
        while True:
            while ahead < _AHEAD * workers and (name := next(upcoming, None)) is not None:
                files, error = _list(store, name)
                if archived:
                    files.slices = [*files.archived, *files.slices]
                futures = [_start(pool, work, s, files.raw_name) for s in files.all_slices]
                waiting.append((files, error, futures))
                ahead += len(futures) + 1
            if not waiting:
                return
            files, error, futures = waiting.popleft()
            ahead -= len(futures) + 1
            surveys = [future() for future in futures]
            yield ChannelSurvey.of(files, surveys, error)


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Drops what has not begun when the work is given up, so that Ctrl-C does not wait for it."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _start(
    pool: ThreadPoolExecutor, work: Callable[[SliceFiles, bytes], SliceSurvey], files: SliceFiles, channel: bytes
) -> Callable[[], SliceSurvey]:
    """Starts a scan, or puts it off until its result is wanted where handing it to a thread costs more than it."""
    if files.data_size + files.index_size < _SMALL:
        return partial(work, files, channel)
    return pool.submit(work, files, channel).result


def _list(store: Datastore, name: str) -> tuple[ChannelFiles, str | None]:
    try:
        return store.channel(name), None
    except StoreUnreadableError as error:
        return ChannelFiles(name, store.path / name), error.message
