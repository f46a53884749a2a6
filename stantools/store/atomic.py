"""New directories that are either absent or whole and durable, whenever the process or the system stops.

A new directory is built in a hidden sibling of its final place:

    .<name>.stantools-partial/
        state.json    the marker: identifies the directory as ours, with the progress of the work
        content/      the future new directory

`content` leaves by one rename. The hidden directory may also be beside another path, `near`, on the same file system:
a nats-server reads the siblings of its streams. The marker identifies the remains of a killed run: the next run removes
them or, if the new directory had already taken the old one's place, finishes the work. A lock on the partial directory
distinguishes a killed run from a running one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError, StoreUnwritableError
from stantools.store.durable import exchange, fsync_directory, replace_file, sync_tree, unwritable, writing

SUFFIX = ".stantools-partial"
MARKER = "state.json"
CONTENT = "content"

#: attempts to start, while other runs start or remains cannot be removed
_MAX_TRIES = 10
_NAME_MAX = 255


@contextmanager
def new_directory(
    target: Path, *, untouched: str = "", mode_source: Path | None = None, near: Path | None = None
) -> Iterator[Path]:
    """Builds a new directory that appears under its name whole and durable, or not at all.

    The block fills the directory it is given. After the block everything in it is synced and it is renamed. An
    exception removes it. `target` must be absent or an empty directory. `untouched` is a sentence for error messages
    on data that is unchanged. The new directory gets the mode of `mode_source`, and its owner where permitted.

    Raises StoreUnwritableError if the target is occupied or cannot be written, and RefusedError if another run is
    writing there.
    """
    target = absolute(target)
    _check_target(target, near)
    with building(target, untouched, near) as content:
        yield content
        with writing(target, untouched):
            if mode_source is not None:
                _adopt(content, mode_source.stat())
            sync_tree(content)
            check_vacant(target)
            content.rename(target)  # replaces an empty directory
            if mode_source is not None:
                target.chmod(stat.S_IMODE(mode_source.stat().st_mode))
            fsync_directory(target.parent)


@contextmanager
def replacement_directory(target: Path, backup: Path, *, near: Path | None = None) -> Iterator[Path]:
    """Builds a directory that takes the place of an existing one, which is renamed to `backup`, a free name beside it.

    With `near`, the backup is beside that path.

    At every moment the target is a whole directory, the old or the new one (where the system can exchange two
    directories; elsewhere there is a short moment with none, and the next run finishes the work). Permissions are
    those of the old directory; its owner becomes the owner of everything new, where permitted.

    Raises StoreUnwritableError if the target cannot be renamed (it is a mount point), the backup exists, or writing
    fails, and RefusedError if another run is writing there.
    """
    target, backup = absolute(target), absolute(backup)
    finish_replacement(target, near)
    untouched = f"{target} is as it was"
    check_exchangeable(target)
    if backup.parent != absolute(near or target).parent:
        raise StoreUnwritableError(f"{backup}: is not beside {near or target}; {untouched}", "name a sibling of it")
    if os.path.lexists(backup):
        raise StoreUnwritableError(f"{backup}: exists already; {untouched}", "choose another name for the backup")
    with building(target, untouched, near) as content:
        yield content
        with writing(target, untouched):
            _adopt(content, target.stat())
            sync_tree(content)
            _mark(content.parent, {"old": identity(target), "backup": backup.name})
            fsync_directory(backup.parent)  # the old content must not be in a directory whose name can be lost
            exchange(target, content)


def finish_replacement(target: Path, near: Path | None = None) -> Path | None:
    """Finishes the work of a killed `replacement_directory` if the exchange had begun.

    Call it before any access to the target: on systems that cannot exchange directories, the name is absent between
    two renames. Returns the backup that the old directory now is; None if there was nothing to finish. Raises
    StoreUnwritableError if it cannot be finished, and RefusedError if the other run is still running.
    """
    target = absolute(target)
    partial = _partial_of(near or target)
    if "backup" not in json_object(partial / MARKER, own=True):
        return None
    with _locked(partial, target):
        return conclude(partial, target)


def clear_leftovers(target: Path, near: Path | None = None) -> None:
    """Removes the remains of a killed run beside a finished new directory.

    Remains that cannot be removed, or that belong to a running process, stay.
    """
    target = absolute(target)
    partial = _partial_of(near or target)
    if partial.is_dir():
        with suppress(StoreUnwritableError, RefusedError), _locked(partial, target):
            conclude(partial, target)


def check_vacant(target: Path) -> None:
    """Checks that a new directory would overwrite nothing."""
    remedy = "name a directory that does not exist yet"
    try:
        status = target.lstat()
    except FileNotFoundError:
        if target.parent.is_dir():
            return
        raise StoreUnwritableError(
            f"{target}: there is no directory {target.parent}",
            "create the parent directory first",
        ) from None
    except OSError as error:
        raise unwritable(error, target) from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreUnwritableError(f"{target}: exists already and is not a directory", remedy)
    with writing(target), os.scandir(target) as entries:
        if next(entries, None) is not None:
            raise StoreUnwritableError(f"{target}: exists already and is not empty", remedy)
    if target.is_mount():
        raise StoreUnwritableError(
            f"{target}: is a mount point, which cannot be renamed", "name a new directory inside it"
        )


def check_exchangeable(target: Path) -> None:
    """Checks that a directory can be exchanged for another one."""
    reason = ""
    if target.is_mount():
        reason = "is a mount point, which cannot be exchanged for another directory"
    elif not os.access(target.parent, os.W_OK | os.X_OK):
        reason = f"cannot be replaced: no permission to rename in {target.parent}"
    elif not os.access(target, os.W_OK):
        reason = "cannot be replaced: no permission to write in it"
    if reason:
        raise StoreUnwritableError(
            f"{target}: {reason}; nothing was changed",
            "write the result to a new directory instead, and point the server to it",
        )


def absolute(path: Path) -> Path:
    """Returns the path without links, so that its siblings are on the same file system.

    A symbolic link to a directory is followed: the directory is renamed, not the link.
    """
    # unlike Path.resolve(), realpath() raises nothing for links that lead to themselves
    return Path(os.path.realpath(path)) if path.is_dir() else Path(os.path.realpath(path.parent), path.name)


def _check_target(target: Path, near: Path | None) -> None:
    """Checks that the target is vacant; if not, removes the remains of an earlier run beside it."""
    try:
        check_vacant(target)
    except StoreUnwritableError:
        clear_leftovers(target, near)
        raise


@contextmanager
def building(target: Path, untouched: str = "", near: Path | None = None) -> Iterator[Path]:
    """Makes a directory beside a target, or beside `near` (both without links), to build in.

    The block moves the result out, the rest is removed. Errors as of `new_directory`, also for `untouched`.
    """
    partial = _partial_of(near or target)
    with writing(target, untouched):
        lock = _begin(partial, target)
    try:
        try:
            with writing("", untouched):
                (partial / CONTENT).mkdir()
                yield partial / CONTENT
        finally:
            conclude(partial, target)
    finally:
        os.close(lock)


def _begin(partial: Path, target: Path) -> int:
    """Makes the directory to build in, with its marker; returns the descriptor that holds its lock.

    A concurrent run cannot tell a directory that is not locked yet from the remains of a killed run. So the
    directory is ours only if it still has its name when it is locked.
    """
    for _ in range(_MAX_TRIES):
        try:
            partial.mkdir()
            made = True
        except FileExistsError:
            made = False
        try:
            lock = _lock(partial, target)
        except FileNotFoundError:
            if not partial.parent.is_dir():
                raise
            continue
        try:
            if _has_name(lock, partial):
                if not made:
                    conclude(partial, target)
                    continue
                try:
                    _mark(partial, {})
                except BaseException:
                    _discard(partial)
                    raise
                ours, lock = lock, -1
                return ours
        finally:
            if lock >= 0:
                os.close(lock)
    raise StoreUnwritableError(f"{partial}: is in the way", "wait until other runs have ended, or remove it")


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _partial_of(target: Path) -> Path:
    target = absolute(target)
    name = f".{target.name}{SUFFIX}"
    if len(os.fsencode(name)) > _NAME_MAX:
        name = f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()}{SUFFIX}"
    return target.with_name(name)


def _mark(partial: Path, state: dict[str, Any]) -> None:
    replace_file(partial / MARKER, json.dumps({"made_by": "stantools", **state}).encode())


def json_object(path: Path, *, own: bool = False) -> dict[str, Any]:
    """Returns the json object in a file; {} if there is none, or with `own` none that this program has marked."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and (not own or found.get("made_by") == "stantools") else {}


@contextmanager
def _locked(partial: Path, target: Path) -> Iterator[None]:
    descriptor = _lock(partial, target)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(partial: Path, target: Path) -> int:
    """Locks a directory to build in, until the returned descriptor is closed."""
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Any other error: a file system without locks, which cannot tell; continue.
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(descriptor)
            raise RefusedError(
                f"{target}: another run is writing there (in {partial})", "wait until it has ended"
            ) from error
    return descriptor


def conclude(partial: Path, target: Path) -> Path | None:
    """Finishes an exchange that has begun, or discards an unfinished directory.

    Returns the backup that the old directory has become; None if there was no exchange.
    """
    state = json_object(partial / MARKER, own=True)
    with writing(partial), os.scandir(partial) as entries:
        strange = not state and any(not entry.name.startswith(f".{MARKER}") for entry in entries)
    if strange:
        raise StoreUnwritableError(
            f"{partial}: is in the way, and is not an unfinished directory of stantools",
            "remove it or rename it",
        )
    backup = None
    if "backup" in state:
        with writing(target, f"the old and the new directory are {target} and the one in {partial}"):
            backup = _finish(partial / CONTENT, target, partial.with_name(str(state["backup"])), state.get("old"))
    _discard(partial)
    return backup


def _finish(content: Path, target: Path, backup: Path, old: object) -> Path | None:
    """Moves the old directory from `content` to its backup name, if the exchange has taken place."""
    moved = content.with_name(f"{content.name}.old")
    if moved.exists():
        # renames instead of an exchange (see `exchange`), interrupted after the first or the second
        if not target.exists():
            content.rename(target)
        moved.rename(content)
    if not content.exists():
        return backup if backup.exists() else None
    if identity(content) != old:
        if identity(target) == old:
            return None
        raise StoreUnwritableError(
            f"{target}: cannot tell whether it is older or newer than {content}; both were left as they are",
            "compare the two, keep one as the store and remove the directory that holds the other",
        )
    while os.path.lexists(backup):
        backup = backup.with_name(f"{backup.name}~")
    content.rename(backup)
    fsync_directory(backup.parent)
    return backup


def identity(path: Path) -> list[int]:
    """Returns device and inode, which stay the same when a directory is renamed."""
    status = path.stat()
    return [status.st_dev, status.st_ino]


def _adopt(content: Path, old: os.stat_result) -> None:
    """Gives a tree the mode and, where permitted, the owner of a directory; the tree can still be moved and removed."""
    content.chmod(stat.S_IMODE(old.st_mode) | stat.S_IRWXU)
    if os.geteuid() != 0 or (old.st_uid, old.st_gid) == (os.geteuid(), os.getegid()):
        return
    for base, _, names in os.walk(content):
        os.chown(base, old.st_uid, old.st_gid)
        for name in names:
            os.chown(Path(base, name), old.st_uid, old.st_gid, follow_symlinks=False)


def _discard(partial: Path) -> None:
    """Removes the remains of a build; the marker goes last, so that an interrupted removal is recognised."""
    with suppress(OSError):  # remains that cannot be removed now are recognised by the marker next time
        for base, directories, _ in os.walk(partial):
            for name in directories:  # copies from a read-only store
                Path(base, name).chmod(stat.S_IRWXU, follow_symlinks=True)
        for entry in os.scandir(partial):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != MARKER:
                Path(entry.path).unlink()
        (partial / MARKER).unlink(missing_ok=True)
        partial.rmdir()
