"""Where an export goes: a new directory, or a single file, that is there as a whole or not at all.

Both are built beside their place, synced and renamed, as `stantools.store.atomic` does it. What exists is replaced only
when that is asked for, and of directories only complete exports: those with our manifest.
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
from stantools.store import atomic
from stantools.store.directory import SLICE_NAME
from stantools.store.durable import fsync_directory, fsync_file, unwritable, write_all, writing

if TYPE_CHECKING:
    from stantools.pipeline.tables.planning import Plan

#: Says what is in an exported directory. Begins with an underscore: readers of Parquet pass such files over.
MANIFEST: Final = "_stantools-export.json"
#: The mark of Hadoop's programs for a directory that is complete.
SUCCESS: Final = "_SUCCESS"

_REPLACED: Final = ".stantools-replaced"


@contextmanager
def new_export(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Builds a directory that takes the target's name when the block ends well.

    Args:
        target: Nothing, an empty directory, or with `overwrite` an earlier export.
        overwrite: Replace an earlier export.

    Yields:
        The directory to fill; the block has to put a manifest into it.

    Raises:
        StoreUnwritableError: There is something at the target, or it cannot be written.
        RefusedError: What is to be replaced is no export, or another run is writing there.
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
    """Builds a file that takes the target's name when the block ends well.

    Args:
        target: The file.
        overwrite: Replace a file that is there.

    Yields:
        Where to write it: nothing is there yet, and what else is put beside it goes away.

    Raises:
        StoreUnwritableError: There is something at the target, or it cannot be written.
        RefusedError: Another run is writing there.
    """
    check_file(target, overwrite=overwrite)
    target = target.parent.resolve() / target.name
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
    """Opens a file to write to without a buffer in between.

    Yields:
        Writes a buffer.

    Raises:
        StoreUnwritableError: It cannot be written.
    """
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
    """Checks that a file can be put somewhere.

    Raises:
        StoreUnwritableError: There is something else, or a file that is not to be replaced, or no directory for it.
    """
    try:
        status = target.lstat()
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise StoreUnwritableError(
                f"{target}: there is no directory {target.parent}", "create the directory that is to hold it first"
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
    """Checks that a directory can be put somewhere.

    Raises:
        StoreUnwritableError: There is something, or no directory to hold it.
        RefusedError: What is to be replaced is no export.
    """
    target = atomic.absolute(target)
    if overwrite and check_replaceable(target):
        return
    with _explained(target, overwrite):
        atomic.check_vacant(target)


def check_replaceable(target: Path) -> bool:
    """Returns whether there is an export to be replaced.

    Returns:
        False if there is nothing, or an empty directory.

    Raises:
        RefusedError: There is something that is not a complete export of ours.
    """
    if not os.path.lexists(target):
        return False
    if target.is_dir():
        with writing(target), os.scandir(target) as entries:
            if next(entries, None) is None:
                return False
    if not read_manifest(target):
        raise RefusedError(
            f"{target}: is not an export of stantools (it has no {MANIFEST}), so it is not overwritten",
            "name a directory that does not exist yet, or remove this one yourself",
        )
    return True


def check_outside(target: Path, plan: Plan) -> None:
    """Checks that an export does not go into a store, where a server would take it for a channel.

    Raises:
        RefusedError: It would.
    """
    place = atomic.absolute(target)
    above = {os.fspath(each) for each in (place, *place.parents)}
    for store in plan.stores:
        if "://" in store.root or os.path.realpath(store.root) not in above:
            continue
        if any(SLICE_NAME.fullmatch(each.name) for each in Path(store.root).iterdir()):
            continue  # slices without a store: no server looks here
        raise RefusedError(
            f"{target}: lies in the store {store.root}: a server would take it for a channel",
            "name a place outside of the store",
        )


def read_manifest(directory: Path) -> dict[str, Any]:
    """Reads the manifest of an export; an empty dictionary if there is none that is ours."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) and manifest.get("made_by") == "stantools" else {}


def finish(directory: Path, manifest: dict[str, Any]) -> None:
    """Puts the manifest, and the mark of what is complete, into a directory.

    Raises:
        StoreUnwritableError: They cannot be written.
    """
    with writing(directory):
        text = json.dumps({"schema": 1, "made_by": "stantools", **manifest}, indent=1)
        (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
        (directory / SUCCESS).touch()


@contextmanager
def _explained(target: Path, overwrite: bool) -> Iterator[None]:
    """Adds how to insist where an earlier export is in the way."""
    try:
        yield
    except StoreUnwritableError as error:
        if not overwrite and read_manifest(target):
            error.remedy = f"{error.remedy}, or add --overwrite: it is an earlier export"
        raise


def _remove(old: Path) -> None:
    """Removes an export that was replaced; anything else that has its name stays and is in the way."""
    if read_manifest(old):
        shutil.rmtree(old)
