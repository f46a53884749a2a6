"""A copy of a store's directory that appears whole and durable under a new name, or not at all.

Blocks are shared with the original where the file system can (reflinks: btrfs, XFS, bcachefs), so that a copy of any
size takes moments and no space; elsewhere they are copied.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stantools.errors import StoreUnwritableError
from stantools.progress import Progress
from stantools.recovery.place import check_outside, check_room
from stantools.store.atomic import new_directory
from stantools.store.durable import writing

_FICLONE: Final = 0x40049409
_EXTRA_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class DirectoryCopy:
    path: Path
    bytes: int
    shared: bool  #: every file shares its blocks with the original


def copy_directory(source: Path, target: Path, progress: Progress = lambda _size: None) -> DirectoryCopy:
    """Copies a directory with modes, times and, where permitted, owners.

    Raises:
        StoreUnwritableError: The target exists, or cannot be written.
        RefusedError: There is no space, or the target is inside of the source.
    """
    if os.path.lexists(target):
        raise StoreUnwritableError(f"{target}: exists already, nothing was copied", "name a place that does not exist")
    check_outside(source, target)
    files = [Path(base, name) for base, _, names in os.walk(source) for name in names]
    sizes = {each: each.lstat().st_size for each in files}
    total, shared = sum(sizes.values()), True
    with new_directory(target, mode_source=source) as content, writing(target):
        for base, folders, _ in os.walk(source):
            for name in folders:
                place = content / os.path.relpath(Path(base, name), source)
                if Path(base, name).is_symlink():
                    place.symlink_to(Path(base, name).readlink())
                else:
                    place.mkdir()
        for file, size in sizes.items():
            place = content / os.path.relpath(file, source)
            if shared and not file.is_symlink():
                shared = _share(file, place)
                if not shared:
                    check_room(target, total + _EXTRA_BYTES)
            if file.is_symlink() or not shared:
                shutil.copyfile(file, place, follow_symlinks=False)
            _adopt(file, place)
            progress(size)
        for base, folders, _ in os.walk(source, topdown=False):
            for name in folders:
                _adopt(Path(base, name), content / os.path.relpath(Path(base, name), source))
    return DirectoryCopy(target, total, shared)


def _share(source: Path, target: Path) -> bool:
    """Makes a file that shares the blocks of another one; False if the file system cannot."""
    with source.open("rb") as one, target.open("xb") as two:
        try:
            fcntl.ioctl(two.fileno(), _FICLONE, one.fileno())
        except OSError:
            return False
        return True


def _adopt(source: Path, target: Path) -> None:
    with suppress(PermissionError):
        status = source.lstat()
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    shutil.copystat(source, target, follow_symlinks=False)
