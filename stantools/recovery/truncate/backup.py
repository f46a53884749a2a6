"""The backup of the bytes that a repair removes, made before anything is changed.

A backup is a directory with `manifest.json` and the saved bytes under `files/`, in the order of the store:

    {"schema": 1, "store": path, "files": [
        {"path": "foo/msgs.1.dat", "action": "cut", "size_before": 520, "size_after": 514,
         "saved": "files/foo/msgs.1.dat", "offset": 514, "length": 6, "sha256": "..."},
        {"path": "foo/msgs.1.idx", "action": "replace", "size_before": 324, ..., "offset": 0, "length": 324},
        {"path": ".truncate.lck", "action": "create", "size_before": null, "size_after": 0}]}

To undo a cut, write the saved bytes back at their offset; to undo other changes, put the saved file back or remove the
created one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stantools import __version__
from stantools.errors import StoreUnwritableError
from stantools.inspection.forecast.changes import Change, CutChange, DeleteChange
from stantools.progress import Progress
from stantools.store.atomic import absolute, new_directory
from stantools.store.durable import writing
from stantools.store.mapping import Buffer, mapped

MANIFEST = "manifest.json"

_BLOCK = 1 << 20
_MAX_BACKUPS = 10_000


def default_backup(store: Path, suffix: str = "truncated") -> Path:
    """Returns the default directory for backups: next to the store."""
    place = store.absolute()
    return place.with_name(f"{place.name}.{suffix}")


def saved_bytes(steps: Iterable[Change]) -> int:
    """Returns how many bytes go to the backup."""
    return sum(
        change.before - (change.after or 0 if isinstance(change.action, CutChange) else 0)
        for change in steps
        if change.before is not None
    )


def save(
    root: Path,
    steps: Sequence[Change],
    directory: Path,
    progress: Progress | None = None,
    *,
    name: str = "truncate-bad-eof",
) -> Path:
    """Saves the bytes that steps will remove, in a new directory below `directory`, which is made if missing.

    The new directory is named by the first free number, so that a run after an interruption does not touch the
    backup of the first. Returns its path; it appears complete and synced, or not at all. `progress` is called with
    bytes. After `StoreUnwritableError` the store is unchanged.
    """
    untouched = f"{root} is unchanged"
    with writing(directory, untouched):
        directory.mkdir(parents=True, exist_ok=True)
    target = next((each for n in range(1, _MAX_BACKUPS) if not (each := directory / str(n)).exists()), None)
    if target is None:
        raise StoreUnwritableError(f"{directory}: is full of backups", "choose another directory")
    try:
        with new_directory(target, untouched=untouched) as content, writing(target, untouched):
            entries = [_save(root, change, content, progress) for change in steps]
            manifest = {
                "schema": 1,
                "made_by": f"stantools {__version__} {name}",
                "store": str(absolute(root)),
                "files": entries,
            }
            (content / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    except BaseException:
        with suppress(OSError):  # it may hold other backups
            directory.rmdir()
        raise
    return target


def _save(root: Path, change: Change, content: Path, progress: Progress | None) -> dict[str, Any]:
    action = "create" if change.before is None else "replace"
    offset = 0
    if isinstance(change.action, CutChange):
        action, offset = "cut", change.after or 0
    elif isinstance(change.action, DeleteChange):
        action = "delete"
    entry: dict[str, Any] = {
        "path": change.path,
        "action": action,
        "size_before": change.before,
        "size_after": change.after,
    }
    if change.before is None:
        return entry
    saved = content / "files" / change.path
    saved.parent.mkdir(parents=True, exist_ok=True)
    with mapped(root / change.path) as buffer:
        digest = _copy(buffer[offset:], saved, progress)
        length = len(buffer) - offset
    return entry | {"saved": f"files/{change.path}", "offset": offset, "length": length, "sha256": digest}


def _copy(data: Buffer, target: Path, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            digest.update(block)
            file.write(block)
            if progress:
                progress(len(block))
    return digest.hexdigest()
