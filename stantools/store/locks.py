"""Detection of a running server that uses a store, and locking it out during changes.

Facts: filestore.md sections 1.4 and weakness W19. Only a server in fault-tolerant mode takes a lock, so a free lock
proves nothing. Three signs are examined, without changing or creating a file:

1. locks on `.rootdir.lck` and, taken by our broker, on the directory itself, queried without taking them;
2. processes that hold a file of the store open for writing (Linux, where permitted), and nats-servers whose command
   line or configuration names the directory: they close the files of idle streams after a minute;
3. current writes: if the newest file is younger than a few seconds, the store is watched for that long.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stantools.errors import RefusedError, StoreUnwritableError
from stantools.store.directory import CLIENTS_FILE, FT_LOCK_FILE, RAFT_LOG_FILE, SERVER_FILE, SUBS_FILE
from stantools.store.durable import unwritable
from stantools.store.running_servers import running_servers

#: seconds without a change after which a store counts as unused
QUIET_SECONDS = 2.0

_WATCHED_FILES = (SERVER_FILE, CLIENTS_FILE, SUBS_FILE, RAFT_LOG_FILE)
_ACCESS_MODE = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
#: folder that a nats-server makes in its store directory
_STREAMS = "jetstream"
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EINTR, errno.ENOLCK)


@dataclass(frozen=True)
class StoreUse:
    kind: Literal["lock", "handle", "write"]  #: a held lock, an open file, or a changing file
    detail: str  #: the observation, for people
    pid: int | None = None  #: the process, if known

    @property
    def warning(self) -> str:
        """What it means to a reader of the store."""
        return f"{self.detail}: data being written may look damaged"


def check_not_in_use(store: Path, *, force: bool = False, quiet: float | None = None) -> list[StoreUse]:
    """Refuses to continue if a server seems to be using the store.

    With `force` it only returns the signs. `quiet` is the time in seconds without a change, `QUIET_SECONDS` by
    default.
    """
    uses = find_uses(store, quiet=quiet)
    if uses and not force:
        raise RefusedError(
            f"{store}: is in use: " + "; ".join(use.detail for use in uses),
            "stop the server (all servers of a fault-tolerant group) first, or insist with --force",
        )
    return uses


def find_uses(
    store: Path, *, quiet: float | None = None, sleep: Callable[[float], None] = time.sleep
) -> list[StoreUse]:
    """Looks for signs that a process is using a store, changing nothing.

    `quiet` is the time in seconds without a change, `QUIET_SECONDS` by default; 0 skips this check. It runs only if
    there is no other sign, because it may take that long. `sleep` is for tests.
    """
    quiet = QUIET_SECONDS if quiet is None else quiet
    uses = []
    pid = ft_lock_holder(store)
    if pid is not None:
        who = f"process {pid}" if pid > 0 else "a process on another machine or of ours"
        uses.append(StoreUse("lock", f"{who} holds the lock {FT_LOCK_FILE}", pid if pid > 0 else None))
    if (pid := log_lock_holder(store)) is not None:
        uses.append(StoreUse("lock", f"process {pid} holds the lock of {RAFT_LOG_FILE}", pid))
    if (pid := _holder(store)) not in (None, os.getpid()):
        uses.append(StoreUse("lock", f"process {pid} holds the lock of {store}", pid))
    uses += open_handles(store, _identities(store))
    if not uses:
        uses += configured_servers(store)
    if not uses and quiet > 0 and (name := changing_file(store, quiet, sleep, _is_watched)):
        uses.append(StoreUse("write", f"{name} is being written right now"))
    return uses


def _is_watched(name: str) -> bool:
    return name in _WATCHED_FILES or name.startswith("msgs.")


def ft_lock_holder(store: Path) -> int | None:
    """Returns the process that holds the lock of fault-tolerant mode, without taking the lock.

    0 or negative if the system cannot tell which; None if the lock is free, there is no lock file, or the system has
    no such query.
    """
    try:
        descriptor = os.open(store / FT_LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # struct flock; l_whence 0 and l_len 0: the whole file
        if sys.platform.startswith("linux"):
            layout, order = "hhqqi4x", ("type", "whence", "start", "length", "pid")
        elif sys.platform == "darwin":
            layout, order = "qqihh", ("start", "length", "pid", "type", "whence")
        else:
            return None
        question = struct.pack(layout, *(fcntl.F_WRLCK if name == "type" else 0 for name in order))
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
        values = dict(zip(order, struct.unpack(layout, answer), strict=True))
        return None if values["type"] == fcntl.F_UNLCK else values["pid"]
    except OSError:
        return None  # a file system without locks
    finally:
        os.close(descriptor)


def log_lock_holder(raft: Path) -> int | None:
    """Returns the process that holds the lock of a clustered node's Raft log, without taking the lock (Linux).

    None if the lock is free, there is no log, or the system does not tell. `raft` is the directory of the log.
    """
    return _holder(raft / RAFT_LOG_FILE)


def _holder(path: Path) -> int | None:
    try:
        status = path.stat()
        listed = Path("/proc/locks").read_text()
    except OSError:
        return None
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in listed.splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted and words[4].isdecimal():
            return int(words[4])
    return None


@contextmanager
def hold_ft_lock(store: Path) -> Iterator[bool]:
    """Holds the lock of fault-tolerant mode, so that no standby server becomes active meanwhile."""
    path = store / FT_LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    except OSError as error:
        raise _unlockable(path, error) from error
    try:
        _take(descriptor, path)
        yield True
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            # Belongs to the descriptor: closing another descriptor of the same file does not release it.
            request = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
        else:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            raise RefusedError(
                f"{path}: the lock is held by a running server",
                "stop all servers of the fault-tolerant group first",
            ) from error
        raise _unlockable(path, error) from error


def _unlockable(path: Path, error: OSError) -> StoreUnwritableError:
    return unwritable(error, path, "nothing was changed")


def open_handles(store: Path, known: Set[tuple[int, int]] = frozenset()) -> Iterator[StoreUse]:
    """Finds processes that have files of a directory open for writing, as far as the system shows them (Linux).

    `known` holds device and inode of its files, to recognise them under another name (container, bind mount). Yields
    one sign per process.
    """
    processes = Path("/proc")
    if not sys.platform.startswith("linux") or not processes.is_dir():
        return
    root = os.path.realpath(store)
    own = os.getpid()
    for entry in os.scandir(processes):
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        for path in _writer_of(entry.path, root, known):
            yield StoreUse("handle", f"process {entry.name} has {path} open for writing", int(entry.name))
            break


def configured_servers(place: Path) -> Iterator[StoreUse]:
    """Finds nats-servers that were started with a store directory at, in or around a place (Linux)."""
    root = Path(os.path.realpath(place))
    for server in running_servers():
        for store in server.stores():
            if root in (store, store / _STREAMS) or store / _STREAMS in root.parents:
                detail = f"process {server.pid}, a nats-server, has store_dir {store}"
                yield StoreUse("handle", detail, server.pid)
                break


def _identities(store: Path) -> set[tuple[int, int]]:
    found = set()
    for name in (SERVER_FILE, CLIENTS_FILE):
        try:
            status = (store / name).stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found


def _writer_of(process: str, root: str, known: Set[tuple[int, int]]) -> Iterator[str]:
    try:
        handles = list(os.scandir(f"{process}/fd"))
    except OSError:
        return  # the process is gone, or belongs to another user
    for handle in handles:
        try:
            path = os.readlink(handle.path)  # noqa: PTH115 (the target need not be a path)
            if not path.startswith(f"{root}/"):
                if not (known and path.startswith("/")):
                    continue
                status = os.stat(handle.path)  # noqa: PTH116
                if (status.st_dev, status.st_ino) not in known:
                    continue
            information = Path(f"{process}/fdinfo/{handle.name}").read_text()
        except (OSError, UnicodeDecodeError):
            continue
        if any(
            line.startswith("flags:") and int(line[6:], 8) & _ACCESS_MODE != os.O_RDONLY
            for line in information.splitlines()
        ):
            yield path


def changing_file(root: Path, quiet: float, sleep: Callable[[float], None], watched: Callable[[str], bool]) -> str:
    """Watches the files of a directory if one was written within `quiet` seconds; returns one that changes, else "".

    `watched` gets the name of a file.
    """
    before = _snapshot(root, watched)
    newest = max((changed for changed, _ in before.values()), default=0)
    if time.time() - newest / 1e9 >= quiet:
        return ""
    sleep(quiet)
    after = _snapshot(root, watched)
    return min((name for name in before.keys() | after.keys() if before.get(name) != after.get(name)), default="")


def _snapshot(root: Path, watched: Callable[[str], bool]) -> dict[str, tuple[int, int]]:
    """Returns time of change in nanoseconds and size of files, by relative path."""
    found = {}
    for base, _, names in os.walk(root):
        for name in filter(watched, names):
            path = os.path.join(base, name)  # noqa: PTH118 (many of them)
            try:
                status = os.lstat(path)
            except OSError:
                continue  # removed meanwhile
            found[os.path.relpath(path, root)] = (status.st_mtime_ns, status.st_size)
    return found
