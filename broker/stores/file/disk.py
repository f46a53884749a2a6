"""Writing and syncing without waiting for a disk: jobs in threads, and syncs that the kernel does meanwhile.

A job, written in Python, runs in a thread. A sync of files that are written already needs none where the system is
Linux: its asynchronous I/O (io_submit, IOCB_CMD_FSYNC) does it, several files at once, for which a file system mostly
needs one commit of its journal, and no threads take turns at Python.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from stantools.store.durable import unwritable

#: Threads that write and sync, and seconds for which they are waited for if they have no more to do than one job each.
#: A job that takes as long is slow.
_THREADS: Final = 8
#: Jobs that take turns: so many at a time, by more threads.
_TURNS: Final = 4
_MOMENT: Final = 0.02
_LONGEST_PAUSE: Final = 0.01
#: Seconds for which a thread waits for all syncs that are under way; those that are done then are concluded together.
_BRIEF: Final = 0.001

Job = Callable[[], None]
Conclusion = Callable[[Exception | None], None]


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
        self._unawaited = KernelSyncs()
        self._watched = False  # a thread waits for them
        self._many = KernelSyncs()
        self._many_at_once = threading.Lock()
        self._jobs: SimpleQueue[tuple[Job, Conclusion, bool] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Conclusion, bool, Exception | None, float]] = SimpleQueue()
        self._threads = self._running = self._wanted = 0
        self._waiting = False
        self._turns: deque[Callable[[], tuple[Job, Conclusion]]] = deque()
        self._taken = 0  # turns of which the conclusion was not drawn

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
        if self._threads < min(self._running, _THREADS + self._taken):
            self._threads += 1
            threading.Thread(target=self._work, name="disk", daemon=True).start()
        self._jobs.put((job, conclusion, awaited))

    def take_turns(self, begin: Callable[[], tuple[Job, Conclusion]]) -> None:
        """Runs a job in a thread, one of a kind of which there may be thousands: others do not wait behind them.

        Args:
            begin: Called when it is its turn, maybe at once; returns the job and its conclusion, as for `run`.
        """
        self._turns.append(begin)
        self._next_turns()

    def _next_turns(self) -> None:
        while self._turns and self._taken < _TURNS:
            self._taken += 1
            job, conclusion = self._turns.popleft()()
            self.run(job, partial(self._turn_over, conclusion))

    def _turn_over(self, conclusion: Conclusion, problem: Exception | None) -> None:
        self._taken -= 1
        self._next_turns()
        conclusion(problem)

    def sync(self, descriptors: Sequence[int], conclusion: Conclusion) -> bool:
        """Has the kernel sync files, as an awaited job. False, and nothing, if it cannot or the disk is slow."""
        return not self.pause and not self._left_alone and self._syncs.start(descriptors, conclusion)

    def sync_aside(self, descriptor: int, conclusion: Conclusion) -> bool:
        """Has the kernel sync a file for which nobody waits. Returns False, and does nothing, if it cannot."""
        if not self._unawaited.start((descriptor,), conclusion):
            return False
        if not self._watched:
            self._watched = True
            self._watch(self._unawaited, self._unwatched)
        return True

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
            if isinstance(problem, OSError) and not (problem.errno in _NO_SYNCS and path.is_dir()):
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
                    while not self._many.start((descriptor,), partial(note, path)):
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
        if not (self._running or self._syncs.under_way):
            return True
        everything = patience is not None
        end = time.monotonic() + (patience if patience is not None else 0 if self.pause else _MOMENT)
        while True:
            if self._syncs.under_way and not self._left_alone:
                self._conclude_syncs(end)
                if self._syncs.under_way:
                    self._leave_alone()
            self._conclude_jobs(end, everything)
            # The conclusion of a job may have begun a sync.
            if not self._syncs.under_way or self._left_alone:
                return not self._running

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
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0
        for syncs in (self._syncs, self._unawaited, self._many):
            syncs.close()

    def _work(self) -> None:
        while (found := self._jobs.get()) is not None:
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


class _Request(ctypes.Structure):
    """`struct iocb` of linux/aio_abi.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key_and_flags", ctypes.c_uint64),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("rest", ctypes.c_uint64 * 5),
    )


class _Event(ctypes.Structure):
    """`struct io_event` of linux/aio_abi.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("second", ctypes.c_int64),
    )


_FSYNC: Final = 2  # IOCB_CMD_FSYNC
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
_SIZE: Final = ctypes.sizeof(_Request)
#: Files that are synced at a time at most.
_REQUESTS: Final = 1024
#: What a file system says that cannot sync a directory.
_NO_SYNCS: Final = (errno.EINVAL, errno.ENOTSUP)
#: Numbers of io_setup, io_destroy, io_submit, io_getevents.
_CALLS: Final = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}


@dataclass(slots=True)
class _Sync:
    """A sync that is under way: files that are left, what is called then, and what went wrong."""

    left: int
    conclusion: Conclusion
    problem: OSError | None = None


class KernelSyncs:
    """Files that the kernel syncs while we do something else, by Linux's asynchronous I/O.

    One thread may start syncs of single files while another one waits.
    """

    def __init__(self) -> None:
        self._begun = self._ended = 0
        self._context: ctypes.c_ulong | None = None
        self._possible = sys.platform == "linux" and os.uname().machine in _CALLS

    @property
    def under_way(self) -> int:
        """How many files are being synced."""
        return self._begun - self._ended

    def start(self, descriptors: Sequence[int], conclusion: Conclusion) -> bool:
        """Begins to sync files, which may be closed then. False, and nothing, where that is not possible."""
        if not descriptors or not self._possible or (self._context is None and not self._open()):
            return False
        count, free = len(descriptors), self._free
        if count > len(free):
            return False
        sync = _Sync(count, conclusion)
        numbers = []
        for place, descriptor in enumerate(descriptors):
            number = free.pop()
            numbers.append(number)
            self._requests[number].descriptor = descriptor
            self._pointers[place] = self._first + number * _SIZE
            self._syncs[number] = sync
        # Before they can be done.
        self._begun += count
        begun = 0
        while begun < count:
            taken = self._call(
                self._submit, self._context, count - begun, ctypes.byref(self._pointers, begun * _POINTER)
            )
            if taken <= 0:
                code = ctypes.get_errno()
                self._begun -= count - begun
                free += numbers[begun:]
                if not begun:
                    self._possible = code == errno.EAGAIN
                    return False
                # Those before it are on their way.
                sync.left, sync.problem = sync.left - (count - begun), OSError(code, os.strerror(code))
                break
            begun += taken
        return True

    def wait(self, seconds: float, least: int = _REQUESTS) -> list[tuple[Conclusion, OSError | None]]:
        """Waits until some are done, not longer than so many seconds.

        Args:
            seconds: How long.
            least: How many files; not more than there are.

        Returns:
            What is done, and what went wrong.
        """
        whole = int(seconds)
        self._timeout[:] = [whole, int((seconds - whole) * 1e9)]
        # An interruption by a signal has found nothing.
        least = min(least, self.under_way)
        count = max(self._call(self._get, self._context, least, _REQUESTS, self._events, self._timeout), 0)
        done: list[tuple[Conclusion, OSError | None]] = []
        for event in self._events[:count]:
            sync = self._syncs[event.data]
            sync.left -= 1
            if event.result < 0:
                sync.problem = OSError(-event.result, os.strerror(-event.result))
            if not sync.left:
                done.append((sync.conclusion, sync.problem))
            self._free.append(event.data)
        self._ended += count
        return done

    def close(self) -> None:
        """Releases what belongs to the kernel, unless it would have to be waited for."""
        if self._context is not None and not self.under_way:
            self._call(self._destroy, self._context)
            self._context = None

    def _open(self) -> bool:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        setup, self._destroy, self._submit, self._get = _CALLS[os.uname().machine]
        context = ctypes.c_ulong(0)
        self._possible = self._call(setup, _REQUESTS, ctypes.byref(context)) == 0
        if not self._possible:
            return False
        self._context = context
        self._requests = (_Request * _REQUESTS)(*(_Request(number, 0, _FSYNC) for number in range(_REQUESTS)))
        self._first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * _REQUESTS)()
        self._free = [*range(_REQUESTS)]
        self._syncs: list[_Sync] = [_Sync(0, _nothing)] * _REQUESTS
        self._events = (_Event * _REQUESTS)()
        self._timeout = (ctypes.c_long * 2)()
        return True


def _nothing(_problem: Exception | None) -> None:
    """Nobody waits for it."""


def _conclude(syncs: KernelSyncs, least: int = _REQUESTS) -> None:
    """Waits for syncs, and draws their conclusions."""
    for conclusion, problem in syncs.wait(60, least):
        conclusion(problem)
