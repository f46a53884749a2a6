"""Checks of the destination of a new store, before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from stantools.errors import RefusedError, StoreUnwritableError
from stantools.store.atomic import absolute


def check_outside(source: Path, target: Path) -> None:
    """Raises `RefusedError` if a new store would be inside the old one, where a server would take it for a channel."""
    old, new = absolute(source), absolute(target)
    if new == old or old in new.parents:
        raise RefusedError(f"{target}: lies inside the store {source}", "choose a place outside of it")


def free_bytes(target: Path) -> int:
    """Returns how many bytes are free at a path, which need not exist.

    Raises `StoreUnwritableError` if there is no directory to write to.
    """
    return shutil.disk_usage(_existing(target)).free


def _existing(target: Path) -> Path:
    existing = next((path for path in absolute(target).parents if path.is_dir()), None)
    if existing is None:
        raise StoreUnwritableError(f"{target}: there is no directory to put it in")
    return existing


def check_room(target: Path, need: int) -> None:
    """Raises `RefusedError` if the file system of a path has fewer than `need` bytes free.

    The path need not exist. Raises `StoreUnwritableError` if there is no directory to write to.
    """
    free = free_bytes(target)
    if free < need:
        raise RefusedError(
            f"{_existing(target)}: {free} bytes are free, about {need} are needed",
            "choose a place with more space",
        )
