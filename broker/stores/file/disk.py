"""Writing and syncing outside the broker's loop: jobs in threads, and syncs by the kernel.

A job, written in Python, runs in a thread. Syncs of written files need no thread on Linux: its asynchronous I/O
(io_submit, IOCB_CMD_FSYNC) syncs all files of a commit at once. A file system mostly needs one commit of its journal
for them, and no threads compete for the interpreter. When there are many files, the whole file system is synced.
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

#: threads that write and sync
_THREADS: Final = 8
#: threads for jobs that take turns, and jobs that they are given at a time
_TURN_THREADS: Final = 4
_MAX_TURNS: Final = 32
#: seconds for which the caller waits for awaited jobs; a job that takes longer is slow
_MAX_WAIT = 0.02
_MAX_PAUSE: Final = 0.01
#: seconds that one call of `conclude` spends on syncs begun by conclusions; the next call takes the rest
_MAX_TIME = 0.008
#: seconds for which a thread waits for all syncs; those done by then are concluded together
_BATCH_WAIT: Final = 0.001

#: Seconds after which a sync of the whole file system is given up, as other processes may have written much. No other
#: begins for `_BACKOFF_FACTOR` times its duration, `_MAX_BACKOFF` seconds at most.
_SYSTEM_SYNC_TIMEOUT: Final = 0.1
_BACKOFF_FACTOR: Final = 20
_MAX_BACKOFF: Final = 60.0

Job = Callable[[], None]
#: a job for a thread, its conclusion, and whether the caller awaits it; None ends the thread
_Work = tuple[Job, Conclusion, bool] | None


class Disk:
    """Runs slow file operations outside the broker's loop.

    A job runs in a thread, a sync in the kernel. The caller's thread runs the conclusion, in `conclude`, with the
    exception raised or None; until then the job owns the objects that both use. While the disk is fast, the caller
    waits: it has more to store next time. When a job takes long, or the last one did, the caller continues at once
    and is woken.
    """

    def __init__(self) -> None:
        #: Called by a thread when a conclusion is ready that the caller does not await.
        self.wake: Callable[[], None] | None = None
        #: seconds by which a job should be delayed, to have more to store; 0 unless the last one was slow
        self.pause = 0.0
        self._syncs = KernelSyncs()
        self._syncs_slow = False
        self._file_system: FileSystem | None = None
        self._system_sync: list[Wanted] | None = (
            None  # files synced with the whole file system, unless that was given up
        )
        self._system_sync_slow = False  # the loop no longer waits for it
        self._system_sync_done: threading.Event | None = None  # not None while a thread syncs it
        self._no_system_sync_before = 0.0
        self._gathered: list[Wanted] = []  # files to sync that the caller awaits
        self._gathered_unawaited: list[Wanted] = []  # files to sync that it does not await
        self._unawaited = KernelSyncs()
        self._watched = False  # a thread waits for `_unawaited`
        self._batch_syncs = KernelSyncs()
        self._batch_lock = threading.Lock()
        self._jobs: SimpleQueue[_Work] = SimpleQueue()
        self._done: SimpleQueue[tuple[Conclusion, bool, Exception | None, float]] = SimpleQueue()
        self._threads = self._running = self._wanted = 0
        self._waiting = False
        self._turns: deque[Callable[[], tuple[Job, Conclusion]]] = deque()
        self._turn_jobs: SimpleQueue[_Work] = SimpleQueue()
        self._turn_threads = 0
        self._taken = 0  # turns given to threads whose conclusions have not run

    def run(self, job: Job, conclusion: Conclusion, *, awaited: bool = False) -> None:
        """Runs a job in a thread; the conclusion gets its StantoolsError, OSError or ValueError, or None.

        The caller of an awaited job must call `conclude` before anything else, and waits for the job there.
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

    def queue_job(self, begin: Callable[[], tuple[Job, Conclusion]]) -> None:
        """Runs one of maybe thousands of jobs in a thread without delaying others; `begin` is called in its turn."""
        self._turns.append(begin)
        self._next_turns()

    def _next_turns(self) -> None:
        while self._turns and self._taken < _MAX_TURNS:
            self._taken += 1
            self._running += 1
            job, conclusion = self._turns.popleft()()
            if self._turn_threads < min(self._taken, _TURN_THREADS):
                self._turn_threads += 1
                self._begin_thread(self._turn_jobs)
            self._turn_jobs.put((job, partial(self._queued_job_done, conclusion), False))

    def _queued_job_done(self, conclusion: Conclusion, problem: Exception | None) -> None:
        self._taken -= 1
        self._next_turns()
        conclusion(problem)

    def may_sync_all(self, directory: Path) -> None:
        """Allows syncs of the whole file system that has all files to sync, where that is as reliable, and pays off."""
        self._file_system = FileSystem(directory)

    @property
    def quick(self) -> bool:
        """Whether the kernel can sync files and the disk is not slow."""
        return not self.pause and not self._syncs_slow and self._syncs.possible

    def sync(self, descriptors: Sequence[int], conclusion: Conclusion) -> bool:
        """Lets the kernel sync files at the next `conclude`, as an awaited job; they must stay open until then.

        Returns False, without effect, where the kernel cannot or the disk is slow.
        """
        if not descriptors or not self.quick:
            return False
        self._gathered.append((descriptors, conclusion))
        return True

    def sync_aside(self, descriptor: int, conclusion: Conclusion) -> bool:
        """Like `sync`, for a file that the caller does not await, also on a slow disk."""
        if not self._unawaited.possible:
            return False
        self._gathered_unawaited.append(((descriptor,), conclusion))
        if len(self._gathered_unawaited) == 1 and self.wake is not None:
            self.wake()
        return True

    def _begin_syncs(self, *, patient: bool) -> None:
        """Begins to sync the gathered files; the whole file system only for a patient caller."""
        if self._system_sync is not None:
            return
        awaited, aside = self._gathered, self._gathered_unawaited
        if not awaited and not aside:
            return
        self._gathered, self._gathered_unawaited = [], []
        files = sum(len(descriptors) for descriptors, _ in awaited)
        if patient and files >= self._syncs.MANY and self._may_sync_all():
            self._sync_file_system([*awaited, *aside])
            return
        self._start(self._syncs, awaited, awaited=True)
        self._start(self._unawaited, aside, awaited=False)
        if self._unawaited.under_way and not self._watched:
            self._watched = True
            self._watch(self._unawaited, self._watch_over)

    def _start(self, syncs: KernelSyncs, wanted: Sequence[Wanted], *, awaited: bool) -> None:
        """Lets the kernel sync files, and threads those beyond its capacity."""
        begun = syncs.start(wanted) if wanted and not (awaited and self._syncs_slow) else 0
        for descriptors, conclusion in wanted[begun:]:
            self.run(partial(_sync_each, descriptors), conclusion, awaited=awaited)

    def _may_sync_all(self) -> bool:
        whole = self._file_system
        if whole is None or not whole.possible or self._system_sync_done is not None:
            return False
        return not self._no_system_sync_before or time.monotonic() >= self._no_system_sync_before

    def _sync_file_system(self, wanted: list[Wanted]) -> None:
        assert self._file_system is not None
        sync, event, begin = self._file_system.sync, threading.Event(), time.monotonic()
        self._system_sync, self._system_sync_done, self._system_sync_slow = wanted, event, False

        def job() -> None:
            try:
                sync()
            finally:
                event.set()

        def over(problem: Exception | None) -> None:
            self._system_sync_done = None
            if problem is not None or self._system_sync is not wanted:
                now = time.monotonic()
                backoff = (now - begin) * _BACKOFF_FACTOR if problem is None else _MAX_BACKOFF
                self._no_system_sync_before = now + min(backoff, _MAX_BACKOFF)
            if self._system_sync is not wanted:
                return
            if problem is not None:
                # Single syncs show which files are affected.
                self._give_up_system_sync()
                return
            self._system_sync = None
            self.pause = 0.0  # many files may take longer though the disk is not slow
            for _, conclusion in wanted:
                conclusion(None)

        self.run(job, over, awaited=True)

    def _limit_system_sync(self) -> None:
        """Continues while the whole file system is synced; the sync is given up if it takes long."""
        wanted, event = self._system_sync, self._system_sync_done
        assert event is not None
        self._system_sync_slow = True

        def waited(_problem: Exception | None) -> None:
            if not event.is_set() and self._system_sync is wanted:
                self._give_up_system_sync()

        def wait() -> None:
            event.wait(_SYSTEM_SYNC_TIMEOUT)

        self.run(wait, waited)

    def _give_up_system_sync(self) -> None:
        """Syncs the files one by one instead of the whole file system."""
        wanted, self._system_sync = self._system_sync, None
        assert wanted is not None
        self._start(self._syncs, wanted, awaited=True)

    def sync_files(self, paths: Iterable[Path], conclusion: Conclusion) -> None:
        """Syncs files and directories in a thread; missing ones are skipped. If one fails, the others are synced."""
        self.run(partial(self._sync_files, paths), conclusion)

    def _sync_files(self, paths: Iterable[Path]) -> None:
        failed: list[tuple[Path, OSError]] = []

        def note(path: Path, problem: Exception | None) -> None:
            # A file system that cannot sync a directory is no error.
            if isinstance(problem, OSError) and not (problem.errno in NO_SYNCS and path.is_dir()):
                failed.append((path, problem))

        with self._batch_lock:
            for path in paths:
                try:
                    descriptor = os.open(path, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                except OSError as problem:
                    note(path, problem)
                    continue
                try:
                    while not self._batch_syncs.start([((descriptor,), partial(note, path))]):
                        if not self._batch_syncs.under_way:
                            os.fsync(descriptor)
                            break
                        _conclude(self._batch_syncs, 1)
                except OSError as problem:
                    note(path, problem)
                finally:
                    os.close(descriptor)
            while self._batch_syncs.under_way:
                _conclude(self._batch_syncs)
        if failed:
            raise unwritable(failed[-1][1], failed[-1][0], "the last writes may not be durable")

    def _watch_over(self) -> None:
        self._watched = False

    def conclude(self, patience: float | None = None) -> bool:
        """Runs the conclusions of finished jobs. Returns whether no job is left.

        Waits `patience` seconds for all jobs; with None, a moment for awaited ones.
        """
        syncs = self._syncs
        if not (self._running or syncs.started != syncs.completed or self._gathered or self._gathered_unawaited):
            return True
        everything, begin = patience is not None, time.monotonic()
        end = begin + (patience if patience is not None else 0 if self.pause else _MAX_WAIT)
        while True:
            self._begin_syncs(patient=time.monotonic() < end)
            if self._syncs.under_way and not self._syncs_slow:
                self._conclude_syncs(end)
                if self._syncs.under_way:
                    self._watch_slow_syncs()
            self._conclude_jobs(end, everything)
            if self._system_sync is not None:
                if not self._system_sync_slow:
                    self._limit_system_sync()
                return False
            # The conclusion of a job may have begun a sync.
            if not (self._gathered or self._gathered_unawaited or (self._syncs.under_way and not self._syncs_slow)):
                return not self._running
            if not everything and self.wake is not None and time.monotonic() - begin > _MAX_TIME:
                self.wake()
                return False

    def _conclude_jobs(self, end: float, everything: bool) -> None:
        """Runs the conclusions of jobs; waits until `end` for awaited jobs, or for all."""
        self._waiting = True
        while self._running:
            awaited = everything or (self._wanted and self._running - self._taken <= _THREADS)
            wait = end - time.monotonic() if self._waiting and awaited else 0
            try:
                conclusion, wanted, problem, seconds = self._done.get(wait > 0, wait if wait > 0 else None)
            except Empty:
                if not self._waiting:
                    break
                # Jobs that end from now on wake the loop; the next read of the queue finds the earlier ones. Jobs
                # that take longer than a moment are not awaited again.
                self._waiting = False
                self._wanted = 0
                continue
            self._running -= 1
            if wanted:
                self._wanted = max(self._wanted - 1, 0)
                self._set_pause(seconds)
            conclusion(problem)
        self._waiting = False

    def _conclude_syncs(self, end: float) -> None:
        """Waits for syncs until `end`, and runs their conclusions, which may begin others."""
        while self._syncs.under_way:
            left = end - time.monotonic()
            for conclusion, problem in self._syncs.wait(max(left, 0)):
                conclusion(problem)
            if left <= 0:
                return

    def _watch_slow_syncs(self) -> None:
        """Lets a thread wait for slow syncs; other threads run further jobs meanwhile."""
        self._syncs_slow = True
        begin = time.monotonic()

        def over() -> None:
            self._syncs_slow = False
            self._set_pause(time.monotonic() - begin)

        self._watch(self._syncs, over)

    def _watch(self, syncs: KernelSyncs, over: Callable[[], None]) -> None:
        """Lets a thread wait for syncs, and runs their conclusions when they are done."""
        found: list[tuple[Conclusion, OSError | None]] = []

        def wait() -> None:
            found.extend(syncs.wait(_BATCH_WAIT) or syncs.wait(60, least=1))

        def waited(_problem: Exception | None) -> None:
            if syncs.under_way:
                self._watch(syncs, over)
            else:
                over()
            for conclusion, problem in found:
                conclusion(problem)

        self.run(wait, waited)

    def _set_pause(self, seconds: float) -> None:
        self.pause = min(seconds / 8, _MAX_PAUSE) if seconds > _MAX_WAIT else 0.0

    def stop(self) -> None:
        """Ends the threads after all their jobs."""
        if self._file_system is not None and self._system_sync_done is None:
            self._file_system.close()
        for _ in range(self._threads):
            self._jobs.put(None)
        for _ in range(self._turn_threads):
            self._turn_jobs.put(None)
        self._threads = self._turn_threads = 0
        for syncs in (self._syncs, self._unawaited, self._batch_syncs):
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
    for conclusion, problem in syncs.wait(60, least):
        conclusion(problem)
