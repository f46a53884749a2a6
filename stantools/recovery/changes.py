"""Application of a forecast's planned changes, one by one: each leaves a file in its old or in its new state."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from stantools.errors import StoreUnwritableError
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.inspection.forecast.changes import Change, CutChange, DeleteChange, RebuildIndex, WriteChange
from stantools.inspection.forecast.slices import data_batches
from stantools.store.durable import create_whole, fsync_directory, fsync_file, replace_file, replacing, write_all
from stantools.store.mapping import mapped


def carry_out(root: Path, change: Change, crc: Crc) -> None:
    """Makes a planned change; it is durable afterwards.

    Raises `OSError` if the file cannot be changed, `StoreUnwritableError` also if the data file differs from the
    plan.
    """
    path, action = root / change.path, change.action
    if isinstance(action, CutChange):
        assert change.after is not None
        os.truncate(path, change.after)
        fsync_file(path)
    elif isinstance(action, DeleteChange):
        path.unlink(missing_ok=True)
        fsync_directory(path.parent)
    elif isinstance(action, RebuildIndex):
        _remove_temporaries(path.parent, f".{path.name}.")
        with replacing(path) as descriptor:
            _write_index(descriptor, root / action.data_file, action, crc)
    else:
        assert isinstance(action, WriteChange)
        # Neither a kill nor a full disk may leave a file without its version header.
        if create_whole(path, action.data):
            fsync_file(path)
            fsync_directory(path.parent)
        else:
            replace_file(path, action.data)


def _remove_temporaries(directory: Path, prefix: str) -> None:
    """Removes temporary files that an interrupted run left for the same file."""
    leftover = re.compile(re.escape(prefix) + r"[0-9]{9}")
    for entry in os.scandir(directory):
        if leftover.fullmatch(entry.name):
            with suppress(FileNotFoundError):
                Path(entry.path).unlink()


def _write_index(descriptor: int, data_file: Path, action: RebuildIndex, crc: Crc) -> None:
    write_all(descriptor, FILE_HEADER_BYTES)
    channel = os.fsencode(data_file.parent.name)
    count = 0
    with mapped(data_file) as data:
        for batch in data_batches(data, action.data_end, crc, channel):
            write_all(descriptor, kernels.encode_index(batch.sequence, batch.offset, batch.timestamp, batch.size, crc))
            count += batch.capacity
    if count != action.count:
        raise StoreUnwritableError(
            f"{data_file}: has {count} good records now, had {action.count} when the repair was planned",
            "make sure that no program writes to the store, and plan again",
        )
