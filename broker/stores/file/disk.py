"""Writing and syncing without waiting for a disk: jobs in threads, and syncs that the kernel does meanwhile.

A job, written in Python, runs in a thread. A sync of files that are written already needs none where the system is
Linux: its asynchronous I/O (io_submit, IOCB_CMD_FSYNC) does it, all files of a commit at once, for which a file system
mostly needs one commit of its journal, and no threads take turns at Python. Where these are many, the file system is
synced as a whole.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from broker.stores.file.kernelsyncs import REQUESTS, Conclusion, FileSystem, KernelSyncs, Wanted
from stantools.store.durable import NO_SYNCS, unwritable

#: Threads that write and sync, and seconds for which they are waited for if they have no more to do than one job each.
#: A job that takes as long is slow.
_THREADS: Final = 8
#: Threads for jobs that take turns, and how many of these they are given: who is done goes on with the next one.
_TURNS: Final = 4
_AHEAD: Final = 32
_MOMENT: Final = 0.02
_LONGEST_PAUSE: Final = 0.01
#: Seconds after which syncs that conclusions have begun are left to the next look, and others have their turn.
_SHARE: Final = 0.008
#: Seconds for which a thread waits for all syncs that are under way; those that are done then are concluded together.
_BRIEF: Final = 0.001

#: Seconds after which a sync of the whole file system is given up, as others may write much to it; and for how many
#: times as long as one took there are no others then, in seconds at most.
_LONG: Final = 0.1
_CAUTION: Final = 20
_MOST_CAUTION: Final = 60.0

Job = Callable[[], None]
#: What a thread does: a job, its conclusion, and whether that is awaited; None ends it.
_Work = tuple[Job, Conclusion, bool] | None


class Disk:
    """Does what may take long, so that nobody has to wait for a disk.

    A job runs in a thread, a sync in the kernel; its conclusion is drawn by the caller's thread, in `conclude`, and is
    told what was raised. What both use is the job's in between. Where the disk is fast, the caller waits: it has more
    to store next time. Where a job takes long, or the last one did, it goes on at once, and is woken.
    """

    def __init__(self) -> None:
        #: Called by a thread when there is something to conclude that nobody waits for.
        self.wake: Callable[[], None] | None = None
        #: Seconds for which it pays to wait with a job, so that it has more to do; 0 if the last was not slow.
        self.pause = 0.0
        self._syncs = KernelSyncs()
        self._left_alone = False
        self._file_system: FileSystem | None = None
        self._whole: list[Wanted] | None = None  # what is synced with the whole file system, unless it was given up
        self._whole_left = False  # nobody waits for it any more
        self._whole_over: threading.Event | None = None  # while a thread is still at it
        self._none_before = 0.0
        self._gathered: list[Wanted] = []  # awaited files that are to be synced
        self._gathered_aside: list[Wanted] = []  # and others
        self._unawaited = KernelSyncs()
        self._watched = False  # a thread waits for them
        self._many = KernelSyncs()
        self._many_at_once = threading.Lock()
        self._jobs: SimpleQueue[_Work] = SimpleQueue()
        self._done: SimpleQueue[tuple[Conclusion, bool, Exception | None, float]] = SimpleQueue()
        self._threads = self._running = self._wanted = 0
        self._waiting = False
        self._turns: deque[Callable[[], tuple[Job, Conclusion]]] = deque()
        self._turn_jobs: SimpleQueue[_Work] = SimpleQueue()
        self._turn_threads = 0
        self._taken = 0  # turns that were given to threads, and of which the conclusion was not drawn

    def run(self, job: Job, conclusion: Conclusion, *, awaited: bool = False) -> None:
        """Has a thread do a job.

        Args:
            job: May raise StantoolsError, OSError or ValueError.
            conclusion: Gets what it raised, or None.
            awaited: The caller is going to call `conclude` before it does anything else, and waits for this job there.
        """
        self._running += 1
        if awaited:
            self._wanted += 1
            self._waiting = True
        if self._threads < min(self._running - self._taken, _THREADS):
            self._threads += 1
            self._begin_thread(self._jobs)
        self._jobs.put((job, conclusion, awaited))

    def _begin_thread(self, jobs: SimpleQueue[_Work]) -> None:
        threading.Thread(target=self._work, args=(jobs,), name="disk", daemon=True).start()

    def take_turns(self, begin: Callable[[], tuple[Job, Conclusion]]) -> None:
        """Runs a job in a thread, one of a kind of which there may be thousands: others do not wait behind them.

        Args:
            begin: Called when it is its turn, maybe at once; returns the job and its conclusion, as for `run`.
        """
        self._turns.append(begin)
        self._next_turns()

    def _next_turns(self) -> None:
        while self._turns and self._taken < _AHEAD:
            self._taken += 1
            self._running += 1
            job, conclusion = self._turns.popleft()()
            if self._turn_threads < min(self._taken, _TURNS):
                self._turn_threads += 1
                self._begin_thread(self._turn_jobs)
            self._turn_jobs.put((job, partial(self._turn_over, conclusion), False))

    def _turn_over(self, conclusion: Conclusion, problem: Exception | None) -> None:
        self._taken -= 1
        self._next_turns()
        conclusion(problem)

    def may_sync_all(self, directory: Path) -> None:
        """Lets it sync a whole file system, if there is one for which that is known to be as good, and where it pays.

        Args:
            directory: On which is everything that is to be synced.
        """
        self._file_system = FileSystem(directory)

    @property
    def quick(self) -> bool:
        """Whether the kernel can sync files and the disk is not slow."""
        return not self.pause and not self._left_alone and self._syncs.possible

    def sync(self, descriptors: Sequence[int], conclusion: Conclusion) -> bool:
        """Has the kernel sync files, as an awaited job, with all others when `conclude` is called next.

        They must not be closed before. Returns False, and does nothing, where it cannot or the disk is slow.
        """
        if not descriptors or not self.quick:
            return False
        self._gathered.append((descriptors, conclusion))
        return True

    def sync_aside(self, descriptor: int, conclusion: Conclusion) -> bool:
        """Does what `sync` does with a file for which nobody waits, also if the disk is slow."""
        if not self._unawaited.possible:
            return False
        self._gathered_aside.append(((descriptor,), conclusion))
        if len(self._gathered_aside) == 1 and self.wake is not None:
            self.wake()
        return True

    def _begin_syncs(self, *, patient: bool) -> None:
        """Begins to sync what is gathered; with the whole file system only for somebody patient."""
        if self._whole is not None:
            return
        awaited, aside = self._gathered, self._gathered_aside
        if not awaited and not aside:
            return
        self._gathered, self._gathered_aside = [], []
        files = sum(len(descriptors) for descriptors, _ in awaited)
        if patient and files >= self._syncs.MANY and self._may_sync_all():
            self._sync_all([*awaited, *aside])
            return
        self._start(self._syncs, awaited, awaited=True)
        self._start(self._unawaited, aside, awaited=False)
        if self._unawaited.under_way and not self._watched:
            self._watched = True
            self._watch(self._unawaited, self._unwatched)

    def _start(self, syncs: KernelSyncs, wanted: Sequence[Wanted], *, awaited: bool) -> None:
        """Has the kernel sync files, and threads those for which it has no room."""
        begun = syncs.start(wanted) if wanted and not (awaited and self._left_alone) else 0
        for descriptors, conclusion in wanted[begun:]:
            self.run(partial(_sync_each, descriptors), conclusion, awaited=awaited)

    def _may_sync_all(self) -> bool:
        whole = self._file_system
        if whole is None or not whole.possible or self._whole_over is not None:
            return False
        return not self._none_before or time.monotonic() >= self._none_before

    def _sync_all(self, wanted: list[Wanted]) -> None:
        """Has a thread sync the whole file system, which is awaited."""
        assert self._file_system is not None
        sync, event, begin = self._file_system.sync, threading.Event(), time.monotonic()
        self._whole, self._whole_over, self._whole_left = wanted, event, False

        def job() -> None:
            try:
                sync()
            finally:
                event.set()

        def over(problem: Exception | None) -> None:
            self._whole_over = None
            if problem is not None or self._whole is not wanted:
                now = time.monotonic()
                caution = (now - begin) * _CAUTION if problem is None else _MOST_CAUTION
                self._none_before = now + min(caution, _MOST_CAUTION)
            if self._whole is not wanted:
                return
            if problem is not None:
                # Syncing each shows whose files are concerned.
                self._give_up_whole()
                return
            self._whole = None
            self.pause = 0.0  # with so many files it may take longer though the disk is not slow
            for _, conclusion in wanted:
                conclusion(None)

        self.run(job, over, awaited=True)

    def _leave_whole(self) -> None:
        """Goes on while the whole file system is synced, which is given up if that takes long."""
        wanted, event = self._whole, self._whole_over
        assert event is not None
        self._whole_left = True

        def waited(_problem: Exception | None) -> None:
            if not event.is_set() and self._whole is wanted:
                self._give_up_whole()

        def wait() -> None:
            event.wait(_LONG)

        self.run(wait, waited)

    def _give_up_whole(self) -> None:
        """Has the files synced one by one that were to be synced with the whole file system."""
        wanted, self._whole = self._whole, None
        assert wanted is not None
        self._start(self._syncs, wanted, awaited=True)

    def sync_files(self, paths: Iterable[Path], conclusion: Conclusion) -> None:
        """Has files made durable, and names in directories; those that are gone do not matter.

        Args:
            paths: Of files and directories.
            conclusion: Gets a StoreUnwritableError if one of them could not be synced; the others were.
        """
        self.run(partial(self._sync_files, paths), conclusion)

    def _sync_files(self, paths: Iterable[Path]) -> None:
        failed: list[tuple[Path, OSError]] = []

        def note(path: Path, problem: Exception | None) -> None:
            # A file system that cannot sync a directory is no error.
            if isinstance(problem, OSError) and not (problem.errno in NO_SYNCS and path.is_dir()):
                failed.append((path, problem))

        with self._many_at_once:
            for path in paths:
                try:
                    descriptor = os.open(path, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                except OSError as problem:
                    note(path, problem)
                    continue
                try:
                    while not self._many.start([((descriptor,), partial(note, path))]):
                        if not self._many.under_way:
                            os.fsync(descriptor)
                            break
                        _conclude(self._many, 1)
                except OSError as problem:
                    note(path, problem)
                finally:
                    os.close(descriptor)
            while self._many.under_way:
                _conclude(self._many)
        if failed:
            raise unwritable(failed[-1][1], failed[-1][0], "what was written may not be durable")

    def _unwatched(self) -> None:
        self._watched = False

    def conclude(self, patience: float | None = None) -> bool:
        """Draws the conclusions of jobs that are done.

        Args:
            patience: Seconds to wait for all others; None waits a moment for those that are awaited.

        Returns:
            Whether no job is left.
        """
        if not (self._running or self._syncs.under_way or self._gathered or self._gathered_aside):
            return True
        everything, begin = patience is not None, time.monotonic()
        end = begin + (patience if patience is not None else 0 if self.pause else _MOMENT)
        while True:
            self._begin_syncs(patient=time.monotonic() < end)
            if self._syncs.under_way and not self._left_alone:
                self._conclude_syncs(end)
                if self._syncs.under_way:
                    self._leave_alone()
            self._conclude_jobs(end, everything)
            if self._whole is not None:
                if not self._whole_left:
                    self._leave_whole()
                return False
            # The conclusion of a job may have begun a sync.
            if not (self._gathered or self._gathered_aside or (self._syncs.under_way and not self._left_alone)):
                return not self._running
            if not everything and self.wake is not None and time.monotonic() - begin > _SHARE:
                self.wake()
                return False

    def _conclude_jobs(self, end: float, everything: bool) -> None:
        """Draws the conclusions of jobs, waits until a time for those that are awaited, or all."""
        self._waiting = True
        while self._running:
            awaited = everything or (self._wanted and self._running - self._taken <= _THREADS)
            wait = end - time.monotonic() if self._waiting and awaited else 0
            try:
                conclusion, wanted, problem, seconds = self._done.get(wait > 0, wait if wait > 0 else None)
            except Empty:
                if not self._waiting:
                    break
                # Who is done from now on wakes us; who was done before is seen by another look. Who takes longer than a
                # moment is not waited for again.
                self._waiting = False
                self._wanted = 0
                continue
            self._running -= 1
            if wanted:
                self._wanted = max(self._wanted - 1, 0)
                self._note(seconds)
            conclusion(problem)
        self._waiting = False

    def _conclude_syncs(self, end: float) -> None:
        """Waits for syncs until a time, and draws their conclusions, which may begin others."""
        while self._syncs.under_way:
            left = end - time.monotonic()
            for conclusion, problem in self._syncs.wait(max(left, 0)):
                conclusion(problem)
            if left <= 0:
                return

    def _leave_alone(self) -> None:
        """Lets a thread wait for syncs that take longer; meanwhile threads do what else there is to do."""
        self._left_alone = True
        begin = time.monotonic()

        def over() -> None:
            self._left_alone = False
            self._note(time.monotonic() - begin)

        self._watch(self._syncs, over)

    def _watch(self, syncs: KernelSyncs, over: Callable[[], None]) -> None:
        """Lets a thread wait for syncs, and draws their conclusions as they are done.

        Args:
            syncs: Some are under way.
            over: Called when none is.
        """
        found: list[tuple[Conclusion, OSError | None]] = []

        def wait() -> None:
            found.extend(syncs.wait(_BRIEF) or syncs.wait(60, least=1))

        def waited(_problem: Exception | None) -> None:
            if syncs.under_way:
                self._watch(syncs, over)
            else:
                over()
            for conclusion, problem in found:
                conclusion(problem)

        self.run(wait, waited)

    def _note(self, seconds: float) -> None:
        """Takes note of how long a job took that was waited for."""
        self.pause = min(seconds / 8, _LONGEST_PAUSE) if seconds > _MOMENT else 0.0

    def stop(self) -> None:
        """Ends the threads as soon as their jobs are done."""
        if self._file_system is not None and self._whole_over is None:
            self._file_system.close()
        for _ in range(self._threads):
            self._jobs.put(None)
        for _ in range(self._turn_threads):
            self._turn_jobs.put(None)
        self._threads = self._turn_threads = 0
        for syncs in (self._syncs, self._unawaited, self._many):
            syncs.close()

    def _work(self, jobs: SimpleQueue[_Work]) -> None:
        while (found := jobs.get()) is not None:
            job, conclusion, awaited = found
            problem: Exception | None = None
            begin = time.monotonic()
            try:
                job()
            except Exception as raised:
                problem = raised
            self._done.put((conclusion, awaited, problem, time.monotonic() - begin))
            if not self._waiting and self.wake is not None:
                self.wake()


def _sync_each(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.fsync(each)


def _conclude(syncs: KernelSyncs, least: int = REQUESTS) -> None:
    """Waits for syncs, and draws their conclusions."""
    for conclusion, problem in syncs.wait(60, least):
        conclusion(problem)
