"""Damaged files of a stream are not deleted, but kept in its folder `damaged`."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path
from typing import Final

from stantools.store.durable import fsync_directory

DAMAGED: Final = "damaged"


def move_aside(path: Path, directory: Path) -> Path:
    """Moves a file or directory of a stream to its damaged files. Returns the new path. Raises OSError on failure."""
    aside = _place(path, directory)
    path.rename(aside)
    fsync_directory(aside.parent)
    fsync_directory(path.parent)
    return aside


def copy_aside(path: Path, directory: Path) -> Path:
    """Links or copies a file of a stream to its damaged files. Returns the new path. Raises OSError on failure."""
    aside = _place(path, directory)
    try:
        os.link(path, aside)
    except OSError:
        shutil.copy2(path, aside)
    fsync_directory(aside.parent)
    return aside


def _place(path: Path, directory: Path) -> Path:
    folder = directory / DAMAGED
    folder.mkdir(mode=0o700, exist_ok=True)
    name = str(path.relative_to(directory)).replace("/", "-")
    return next(place for number in count(1) if not (place := folder / f"{name}.{number}").exists())
