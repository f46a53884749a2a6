"""New directories that are either not there or whole and durable, whatever stops us in between.

A new directory is built in a hidden sibling of its final place:

    .<name>.stantools-partial/
        state.json    the marker: says that this is ours and how far the work is
        content/      what becomes the new directory

`content` leaves by one rename. A run that was killed is recognised by the marker: the next run removes what
is left or, when the new directory had already taken the old one's place, finishes the work. A lock on the
partial directory distinguishes a killed run from one that is still at work.
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

#: Attempts to begin where others begin as well, or where what is left of one cannot be removed.
_TRIES = 10
_NAME_MAX = 255


@contextmanager
def new_directory(target: Path, *, untouched: str = "", like: Path | None = None) -> Iterator[Path]:
    """Builds a new directory that appears under its name whole and durable, or not at all.

    The block fills the directory it is given. After the block everything in it is synced and it is renamed.
    Left by an exception, it is removed.

    Args:
        target: Where the directory is to be: nothing, or an empty directory.
        untouched: A sentence for error messages on what is as it was before.
        like: A directory whose mode, and owner where we may set it, the new one is to have.

    Yields:
        The directory to fill.

    Raises:
        StoreUnwritableError: There is something at the target, or it cannot be written.
        RefusedError: Another run is writing there.
    """
    target = absolute(target)
    _check_target(target)
    with building(target, untouched) as content:
        yield content
        with writing(target, untouched):
            if like is not None:
                _adopt(content, like.stat())
            sync_tree(content)
            check_vacant(target)
            content.rename(target)  # replaces an empty directory
            if like is not None:
                target.chmod(stat.S_IMODE(like.stat().st_mode))
            fsync_directory(target.parent)


@contextmanager
def replacement_directory(target: Path, backup: Path) -> Iterator[Path]:
    """Builds a directory that takes the place of an existing one, which stays under another name.

    At every moment there is a whole directory, the old or the new one, at the target (where the system can
    exchange two directories; elsewhere there is a short moment with none, and the next run finishes the
    work). Permissions are those of the old directory; its owner becomes the owner of everything new, where we
    may do that.

    Args:
        target: The existing directory.
        backup: What it is called afterwards: a sibling that does not exist.

    Yields:
        The directory to fill.

    Raises:
        StoreUnwritableError: The target cannot be renamed (it is a mount point), the backup exists, or no
            writing.
        RefusedError: Another run is at work there.
    """
    target, backup = absolute(target), absolute(backup)
    finish_replacement(target)
    untouched = f"{target} is as it was"
    check_exchangeable(target)
    if backup.parent != target.parent:
        raise StoreUnwritableError(f"{backup}: is not beside {target}; {untouched}", "name a sibling of it")
    if os.path.lexists(backup):
        raise StoreUnwritableError(f"{backup}: exists already; {untouched}", "choose another name for the backup")
    with building(target, untouched) as content:
        yield content
        with writing(target, untouched):
            _adopt(content, target.stat())
            sync_tree(content)
            _mark(content.parent, {"old": identity(target), "backup": backup.name})
            exchange(target, content)


def finish_replacement(target: Path) -> Path | None:
    """Finishes what a killed `replacement_directory` left, if it had come as far as the exchange.

    To be called before anything looks at the target: between the renames of a system that cannot exchange
    directories there is nothing under that name.

    Returns:
        The backup that the old directory now is, or None if there was nothing to finish.

    Raises:
        StoreUnwritableError: It cannot be finished.
        RefusedError: The other run is still at work.
    """
    target = absolute(target)
    partial = _partial_of(target)
    if "backup" not in _read_marker(partial):
        return None
    with _locked(partial, target):
        return conclude(partial, target)


def clear_leftovers(target: Path) -> None:
    """Removes what a run that was killed at its very end has left beside a new directory that is there.

    What cannot be removed, or belongs to a run that is at work, stays.
    """
    target = absolute(target)
    partial = _partial_of(target)
    if partial.is_dir():
        with suppress(StoreUnwritableError, RefusedError), _locked(partial, target):
            conclude(partial, target)


def check_vacant(target: Path) -> None:
    """Checks that a directory can be put somewhere without overwriting anything.

    Raises:
        StoreUnwritableError: There is something other than an empty directory, or no directory to hold it.
    """
    remedy = "name a directory that does not exist yet"
    try:
        status = target.lstat()
    except FileNotFoundError:
        if target.parent.is_dir():
            return
        raise StoreUnwritableError(
            f"{target}: there is no directory {target.parent}",
            "create the directory that is to hold it first",
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
    """Checks that a directory can be exchanged for another one.

    Raises:
        StoreUnwritableError: It is a mount point, or it or its parent cannot be written.
    """
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

    A symbolic link to a directory is followed: what is renamed is the directory, not the link.
    """
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def _check_target(target: Path) -> None:
    """Checks that the target is vacant; if not, clears away what an earlier run has left beside it."""
    try:
        check_vacant(target)
    except StoreUnwritableError:
        clear_leftovers(target)
        raise


@contextmanager
def building(target: Path, untouched: str = "") -> Iterator[Path]:
    """Makes a directory beside a place, to build in what the block renames; what is left in it is removed.

    Args:
        target: The place, without links.
        untouched: A sentence for error messages on what is as it was before.

    Raises:
        StoreUnwritableError: It cannot be written.
        RefusedError: Another run is writing there.
    """
    partial = _partial_of(target)
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

    To a run that begins at the same moment, a directory that is not locked yet looks like what a killed run has left.
    So it is ours only if it still has its name when it is locked.
    """
    for _ in range(_TRIES):
        made = _made(partial)
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


def _made(partial: Path) -> bool:
    """Makes a directory; returns False if there is something already."""
    try:
        partial.mkdir()
    except FileExistsError:
        return False
    return True


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _partial_of(target: Path) -> Path:
    name = f".{target.name}{SUFFIX}"
    if len(os.fsencode(name)) > _NAME_MAX:
        name = f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()}{SUFFIX}"
    return target.with_name(name)


def _mark(partial: Path, state: dict[str, Any]) -> None:
    replace_file(partial / MARKER, json.dumps({"made_by": "stantools", **state}).encode())


def _read_marker(partial: Path) -> dict[str, Any]:
    """Reads the marker; an empty dictionary if there is none that is ours."""
    try:
        state = json.loads((partial / MARKER).read_bytes())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) and state.get("made_by") == "stantools" else {}


@contextmanager
def _locked(partial: Path, target: Path) -> Iterator[None]:
    descriptor = _lock(partial, target)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(partial: Path, target: Path) -> int:
    """Locks a directory to build in, until the descriptor that is returned is closed."""
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Any other error: a file system without locks. Nothing can be learned there, so go on.
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(descriptor)
            raise RefusedError(
                f"{target}: another run is writing there (in {partial})", "wait until it has ended"
            ) from error
    return descriptor


def conclude(partial: Path, target: Path) -> Path | None:
    """Finishes an exchange that has begun, or discards what was built.

    Returns:
        The backup that the old directory has become, None if there was no exchange.
    """
    state = _read_marker(partial)
    with writing(partial), os.scandir(partial) as entries:
        strange = not state and any(not entry.name.startswith(f".{MARKER}") for entry in entries)
    if strange:
        raise StoreUnwritableError(
            f"{partial}: is in the way, and is not one of our unfinished directories",
            "remove it or rename it",
        )
    backup = None
    if "backup" in state:
        with writing(target, f"the old and the new directory are {target} and what is in {partial}"):
            backup = _finish(partial / CONTENT, target, target.with_name(str(state["backup"])), state.get("old"))
    _discard(partial)
    return backup


def _finish(content: Path, target: Path, backup: Path, old: object) -> Path | None:
    """Moves the old directory from `content` to its backup name, if the exchange has taken place."""
    aside = content.with_name(f"{content.name}.old")
    if aside.exists():
        # Renames instead of an exchange (see `exchange`), interrupted after the first or the second.
        if not target.exists():
            content.rename(target)
        aside.rename(content)
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
    fsync_directory(target.parent)
    return backup


def identity(path: Path) -> list[int]:
    """Returns what stays the same when a directory is renamed: its device and its inode."""
    status = path.stat()
    return [status.st_dev, status.st_ino]


def _adopt(content: Path, old: os.stat_result) -> None:
    """Copies the mode and, where we may, the owner of a directory to a tree, which can still be moved and removed."""
    content.chmod(stat.S_IMODE(old.st_mode) | stat.S_IRWXU)
    if os.geteuid() != 0 or (old.st_uid, old.st_gid) == (os.geteuid(), os.getegid()):
        return
    for base, _, names in os.walk(content):
        os.chown(base, old.st_uid, old.st_gid)
        for name in names:
            os.chown(Path(base, name), old.st_uid, old.st_gid, follow_symlinks=False)


def _discard(partial: Path) -> None:
    """Removes what is left of a build; the marker goes last, so that an interrupted removal is recognised."""
    with suppress(OSError):  # what cannot be removed now is recognised by its marker next time
        for base, directories, _ in os.walk(partial):
            for name in directories:  # what was taken over from a read-only store
                Path(base, name).chmod(stat.S_IRWXU, follow_symlinks=True)
        for entry in os.scandir(partial):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != MARKER:
                Path(entry.path).unlink()
        (partial / MARKER).unlink(missing_ok=True)
        partial.rmdir()
