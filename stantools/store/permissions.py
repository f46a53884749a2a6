"""The files of a store that this process is not permitted to read.

They are determined before anything is read: an unreadable file is neither damaged nor missing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from stantools.errors import NotPermittedError
from stantools.notation import some_of

_REFUSAL_ERRORS = (errno.EACCES, errno.EPERM)
#: permissions of a directory that are needed to find its files
_LIST_PERMISSION = os.R_OK | os.X_OK
#: maximum number of files named in a message
_MAX_NAMED = 5


def check_permitted(root: Path, files: Iterable[Path | None], directories: Iterable[Path]) -> None:
    """Raises NotPermittedError, with the files and the users who may read them, if a file may not be read.

    `root` holds all files and directories; every file of the directories counts.
    """
    if refused := list(_not_permitted(root, files, directories)):
        raise refusal(root, refused, optional=refused != [root])


def _not_permitted(root: Path, files: Iterable[Path | None], directories: Iterable[Path]) -> Iterator[Path]:
    if is_refused(root, _LIST_PERMISSION):
        yield root
        return
    yield from (path for path in files if path and is_refused(path))
    for directory in directories:
        if is_refused(directory, _LIST_PERMISSION):
            yield directory
            continue
        with suppress(OSError), os.scandir(directory) as entries:
            yield from sorted(Path(each.path) for each in entries if _may_be_file(each) and is_refused(each.path))


def directories_below(place: Path) -> Iterator[Path]:
    """Yields a directory and all directories in it, as far as they can be listed."""
    yield place
    for folder, names, _ in os.walk(place):
        yield from (Path(folder, each) for each in names)


def is_closed(directory: Path) -> bool:
    """Returns whether this user may not find the files of a directory."""
    return is_refused(directory, _LIST_PERMISSION)


def refusal(place: Path, refused: list[Path], *, optional: bool = False) -> NotPermittedError:
    """Returns the error that names unreadable files, their owners, and how to read them."""
    owners = sorted({owner_of(path) for path in refused})
    shown = [str(each) if each == place else str(each.relative_to(place)) for each in refused]
    what = shown[0] if len(shown) == 1 else f"{len(shown)} files ({some_of(shown, _MAX_NAMED)})"
    who = f"user {_user_name(os.geteuid())}"
    what = "it" if refused == [place] else what
    text = f"{place}: {who} may not read {what}; owner: {', '.join(owners)}"
    by_owner = len(owners) == 1 and owners[0] != _user_name(os.geteuid()) and all(map(_owner_may_read, refused))
    sudo = f"sudo -u {owners[0]}" if by_owner else "sudo"
    return NotPermittedError(text, f"read it as a user who may: `{sudo} stantools COMMAND`", optional=optional)


def owner_of(path: Path) -> str:
    """Returns the owner of a file, or of the nearest directory above it with a known owner."""
    for each in (path, *path.absolute().parents):
        with suppress(OSError):
            return _user_name(each.lstat().st_uid)
    return "unknown"


def _owner_may_read(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return True  # a directory above it is closed to this user, so its own state is unknown
    needed = stat.S_IRUSR | stat.S_IXUSR if stat.S_ISDIR(mode) else stat.S_IRUSR
    return mode & needed == needed


def _user_name(number: int) -> str:
    import pwd  # loaded here: not needed if everything is readable

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"  # the notation of sudo


def _may_be_file(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.is_dir()
    except OSError as error:
        return error.errno in _REFUSAL_ERRORS


def is_refused(path: Path | str, wanted: int = os.R_OK) -> bool:
    """Returns whether a regular file or a directory exists and may not be read."""
    if os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids):
        return False
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            # The answer of `access` may be wrong, on network file systems for instance.
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        if stat.S_ISDIR(mode):
            os.stat(os.path.join(path, "."))  # noqa: PTH116, PTH118
    except OSError as error:
        return error.errno in _REFUSAL_ERRORS
    return False
