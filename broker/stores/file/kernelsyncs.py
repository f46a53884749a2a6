"""Syncs that the kernel runs in the background: of files, and of a whole file system."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

Conclusion = Callable[[Exception | None], None]
#: files that are synced together, and their conclusion
Wanted = tuple[Sequence[int], Conclusion]


class _IoControlBlock(ctypes.Structure):
    """`struct iocb` of linux/aio_abi.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key_and_flags", ctypes.c_uint64),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("rest", ctypes.c_uint64 * 5),
    )


class _IoEvent(ctypes.Structure):
    """`struct io_event` of linux/aio_abi.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("second", ctypes.c_int64),
    )


_FSYNC: Final = 2  # IOCB_CMD_FSYNC
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
_SIZE: Final = ctypes.sizeof(_IoControlBlock)
#: files that are synced at a time, at most
REQUESTS: Final = 2048
#: system call numbers of io_setup, io_destroy, io_submit, io_getevents
_CALLS: Final = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}


@dataclass(slots=True)
class _Sync:
    """A sync under way; `left` counts its files."""

    left: int
    conclusion: Conclusion
    problem: OSError | None = None


class KernelSyncs:
    """Files that Linux's asynchronous I/O syncs; one thread may start syncs while another one waits."""

    #: files from which on a sync of the whole file system is cheaper (`FileSystem`)
    MANY: ClassVar[float] = 32

    def __init__(self) -> None:
        #: files whose sync has begun, and those whose sync is complete
        self.started = self.completed = 0
        self._context: ctypes.c_ulong | None = None
        self._possible = sys.platform == "linux" and os.uname().machine in _CALLS

    @property
    def under_way(self) -> int:
        """Files that are being synced."""
        return self.started - self.completed

    @property
    def possible(self) -> bool:
        """Whether this system supports it, as far as is known."""
        return self._possible and (self._context is not None or self._open())

    def start(self, wanted: Sequence[Wanted]) -> int:
        """Begins to sync files with as few system calls as possible; the caller may close them afterwards.

        Several files may share one conclusion only if no other thread waits. Returns how many entries of `wanted`
        are begun; the caller must sync the others, which are all of them where the kernel cannot.
        """
        if not self.possible:
            return 0
        free, syncs, pointers = self._free, self._syncs, self._pointers
        numbers: list[int] = []
        taken = 0
        for descriptors, conclusion in wanted:
            if len(descriptors) > len(free):
                break
            taken += 1
            sync = _Sync(len(descriptors), conclusion)
            for descriptor in descriptors:
                number = free.pop()
                self._requests[number].descriptor = descriptor
                pointers[len(numbers)] = self._first + number * _SIZE
                syncs[number] = sync
                numbers.append(number)
        count, begun = len(numbers), 0
        # Counted before they can complete.
        self.started += count
        while begun < count:
            found = self._call(self._submit, self._context, count - begun, ctypes.byref(pointers, begun * _POINTER))
            if found <= 0:
                code = ctypes.get_errno()
                self.started -= count - begun
                free += numbers[begun:]
                if not begun:
                    self._possible = code == errno.EAGAIN
                return self._count_begun(wanted[:taken], begun, numbers, OSError(code, os.strerror(code)))
            begun += found
        return taken

    def _count_begun(self, wanted: Sequence[Wanted], begun: int, numbers: Sequence[int], problem: OSError) -> int:
        """Returns how many entries are begun if the kernel took only some files; a partly begun one gets the error."""
        for taken, (descriptors, _) in enumerate(wanted):
            if begun < len(descriptors):
                if begun:
                    # Its first files are under way.
                    sync = self._syncs[numbers[sum(len(each) for each, _ in wanted[:taken])]]
                    sync.left, sync.problem = begun, problem
                return taken + bool(begun)
            begun -= len(descriptors)
        return len(wanted)

    def wait(self, seconds: float, least: int = REQUESTS) -> list[tuple[Conclusion, OSError | None]]:
        """Returns the conclusions of complete syncs, with their errors; waits `seconds` at most for `least` files."""
        whole = int(seconds)
        self._timeout[:] = [whole, int((seconds - whole) * 1e9)]
        # After an interruption by a signal no event is reported.
        least = min(least, self.under_way)
        count = max(self._call(self._get, self._context, least, REQUESTS, self._events, self._timeout), 0)
        done: list[tuple[Conclusion, OSError | None]] = []
        for event in self._events[:count]:
            sync = self._syncs[event.data]
            sync.left -= 1
            if event.result < 0:
                sync.problem = OSError(-event.result, os.strerror(-event.result))
            if not sync.left:
                done.append((sync.conclusion, sync.problem))
            self._free.append(event.data)
        self.completed += count
        return done

    def close(self) -> None:
        """Releases the kernel's context, unless syncs are under way."""
        if self._context is not None and not self.under_way:
            self._call(self._destroy, self._context)
            self._context = None

    def _open(self) -> bool:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        setup, self._destroy, self._submit, self._get = _CALLS[os.uname().machine]
        context = ctypes.c_ulong(0)
        self._possible = self._call(setup, REQUESTS, ctypes.byref(context)) == 0
        if not self._possible:
            return False
        self._context = context
        self._requests = (_IoControlBlock * REQUESTS)(
            *(_IoControlBlock(number, 0, _FSYNC) for number in range(REQUESTS))
        )
        self._first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * REQUESTS)()
        self._free = [*range(REQUESTS)]
        self._syncs: list[_Sync] = [_Sync(0, lambda _: None)] * REQUESTS
        self._events = (_IoEvent * REQUESTS)()
        self._timeout = (ctypes.c_long * 2)()
        return True


#: `f_type` of ext4, and the first Linux version whose syncfs() reports errors of earlier writes.
_EXT4: Final = 0xEF53
_REPORTING_VERSION: Final = (5, 8)


class FileSystem:
    """A file system that can be synced as a whole, which is much cheaper than thousands of single files.

    A sync writes everything on it, including files of other processes. It is opened before the first write that it
    is to sync: it reports errors since its opening.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None
        if sys.platform != "linux":
            return
        release = os.uname().release.split(".")[:2]
        major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in release)
        if (major, minor) < _REPORTING_VERSION:
            return
        self._libc = ctypes.CDLL(None, use_errno=True)
        found = (ctypes.c_long * 64)()  # `struct statfs` begins with the type, and is smaller
        if self._libc.statfs(os.fsencode(directory), ctypes.byref(found)) == 0 and found[0] == _EXT4:
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def possible(self) -> bool:
        """Whether it can be synced."""
        return self._descriptor is not None

    def sync(self) -> None:
        """Makes everything durable. An OSError may concern files of other processes. Called in a thread."""
        if self._descriptor is None or self._libc.syncfs(self._descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
