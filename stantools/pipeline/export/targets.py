"""The target of an export: a new directory or a single file, which appears complete or not at all.

Both are built beside their place, synced and renamed, as in `stantools.store.atomic`. An existing target is replaced
only on request; a directory only if it is a complete export, with our manifest.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import RefusedError, StoreUnwritableError
from stantools.escaping import known
from stantools.store import atomic
from stantools.store.directory import SLICE_NAME
from stantools.store.durable import fsync_directory, fsync_file, unwritable, write_all, writing

if TYPE_CHECKING:
    from stantools.pipeline.tables.planning import ReadPlan

#: Describes an exported directory. Readers of Parquet skip names that begin with an underscore.
MANIFEST: Final = "_stantools-export.json"
#: Hadoop's mark of a complete directory.
SUCCESS: Final = "_SUCCESS"

_REPLACED: Final = ".stantools-replaced"


@contextmanager
def new_export(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Builds a directory that takes the target's name when the block succeeds; the block must put a manifest into it.

    Raises `StoreUnwritableError` for an existing target; `RefusedError` if the target to replace is not an export,
    or if another run is writing there.
    """
    target = atomic.absolute(target)
    old = target.with_name(f".{target.name}{_REPLACED}")
    if overwrite:
        with writing(old):
            atomic.finish_replacement(target)
            _remove(old)
    if not overwrite or not check_replaceable(target):
        with _explained(target, overwrite), atomic.new_directory(target) as content:
            yield content
        return
    with atomic.replacement_directory(target, old) as content:
        yield content
    with writing(old):
        _remove(old)


@contextmanager
def new_file(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Builds a file that takes the target's name when the block succeeds.

    Yields a path that does not exist yet; other files beside it are removed at the end. Raises as `new_export`.
    """
    check_file(target, overwrite=overwrite)
    target = atomic.absolute(target)
    with atomic.building(target) as place:
        content = place / target.name
        yield content
        with writing(target):
            fsync_file(content)
            check_file(target, overwrite=overwrite)
            content.replace(target)
            fsync_directory(target.parent)


@contextmanager
def writer(path: Path) -> Iterator[Callable[[Any], None]]:
    """Opens a file for unbuffered writing; yields a function that writes all of a buffer."""
    with writing(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(data: Any) -> None:
        with writing(path):
            write_all(descriptor, data)

    try:
        yield write
    finally:
        os.close(descriptor)


def check_file(target: Path, *, overwrite: bool) -> None:
    """Raises `StoreUnwritableError` if a file cannot be put there: it exists, or its directory is missing."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise StoreUnwritableError(
                f"{target}: the directory {target.parent} does not exist", "create the directory first"
            ) from None
        return
    except OSError as error:
        raise unwritable(error, target) from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreUnwritableError(
            f"{target}: exists already and is not a file", "name a file that does not exist yet, or - for stdout"
        )
    if not overwrite:
        raise StoreUnwritableError(
            f"{target}: exists already", "name a file that does not exist yet, or add --overwrite"
        )


def check_directory(target: Path, *, overwrite: bool) -> None:
    """Checks that a directory can be put there; raises `RefusedError` if it would replace anything but an export."""
    target = atomic.absolute(target)
    if overwrite and check_replaceable(target):
        return
    with _explained(target, overwrite):
        atomic.check_vacant(target)


def check_replaceable(target: Path) -> bool:
    """Returns whether there is an export to replace; False for nothing or an empty directory.

    Raises `RefusedError` for anything else.
    """
    if not os.path.lexists(target):
        return False
    if target.is_dir():
        with writing(target), os.scandir(target) as entries:
            if next(entries, None) is None:
                return False
    if not atomic.json_object(target / MANIFEST, own=True):
        raise RefusedError(
            f"{target}: is not an export of stantools (it has no {MANIFEST}), so it is not overwritten",
            "name a directory that does not exist yet, or remove this one",
        )
    return True


def check_outside(target: Path, plan: ReadPlan) -> None:
    """Raises `RefusedError` for a target inside a store, where a server would take it for a channel."""
    place = atomic.absolute(target)
    above = {os.fspath(each) for each in (place, *place.parents)}
    for store in plan.stores:
        if "://" in store.root or os.path.realpath(store.root) not in above:
            continue
        if any(SLICE_NAME.fullmatch(each.name) for each in Path(store.root).iterdir()):
            continue  # slices without a store: no server reads this directory
        raise RefusedError(
            f"{target}: is inside the store {store.root}: a server would take it for a channel",
            "name a target outside of the store",
        )


def finish(directory: Path, manifest: dict[str, Any]) -> None:
    """Puts the manifest and the mark of completeness into a directory."""
    with writing(directory):
        text = known(json.dumps({"schema": 1, "made_by": "stantools", **manifest}, indent=1))
        (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
        (directory / SUCCESS).touch()


@contextmanager
def _explained(target: Path, overwrite: bool) -> Iterator[None]:
    """Adds the hint at --overwrite to an error about an existing export."""
    try:
        yield
    except StoreUnwritableError as error:
        if not overwrite and atomic.json_object(target / MANIFEST, own=True):
            error.remedy = f"{error.remedy}, or add --overwrite: it is an earlier export"
        raise


def _remove(old: Path) -> None:
    """Removes a replaced export; anything else of its name stays and is in the way."""
    if atomic.json_object(old / MANIFEST, own=True):
        shutil.rmtree(old)
