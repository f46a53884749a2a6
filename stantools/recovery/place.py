"""Is there a place for a new store? Checked before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from stantools.errors import RefusedError, StoreUnwritableError
from stantools.store.atomic import absolute


def check_outside(source: Path, target: Path) -> None:
    """Checks that a new store does not lie inside the old one, where a server would take it for a channel.

    Raises:
        RefusedError: It does.
    """
    old, new = absolute(source), absolute(target)
    if new == old or old in new.parents:
        raise RefusedError(f"{target}: lies inside the store {source}", "choose a place outside of it")


def free_bytes(target: Path) -> int:
    """Returns how many bytes are free where something is to be written; it need not exist.

    Raises:
        StoreUnwritableError: There is no directory to write to.
    """
    return shutil.disk_usage(_existing(target)).free


def _existing(target: Path) -> Path:
    existing = next((path for path in absolute(target).parents if path.is_dir()), None)
    if existing is None:
        raise StoreUnwritableError(f"{target}: there is no directory to put it in")
    return existing


def check_room(target: Path, need: int) -> None:
    """Checks that a file system has room.

    Args:
        target: Where something is to be written; need not exist.
        need: Bytes.

    Raises:
        StoreUnwritableError: There is no directory to write to.
        RefusedError: There is not enough room.
    """
    free = free_bytes(target)
    if free < need:
        raise RefusedError(
            f"{_existing(target)}: {free} bytes are free, about {need} are needed",
            "choose a place with more room",
        )
