"""What one task writes: the rows of a split, in one file or in one for each directory that they belong to.

Used by threads here and by tasks on a cluster. Names of files begin with the number of the split, so that they sort as
the rows do, and tasks do not get into each other's way.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stantools.errors import StoreUnwritableError
from stantools.pipeline.export.files import File
from stantools.pipeline.export.hive import copied, directory_of, divide
from stantools.pipeline.export.model import Layout, Written, WrittenFile
from stantools.store.durable import writing

if TYPE_CHECKING:
    import pyarrow as pa

#: Files that a task has open at a time.
_OPEN: Final = 64
#: Rows that wait in all of them, in bytes, before the fullest has to encode what it has.
_WAITING: Final = 64 << 20
_NAME_MAX: Final = 255


class PartWriter:
    """Writes the rows of one split below a directory.

    Args:
        directory: The directory of the export.
        number: The number of the split.
        layout: What is in the files.

    Attributes:
        written: What was written; complete after `close`.

    Raises:
        StoreUnwritableError: Something cannot be written; from every method.
    """

    def __init__(self, directory: Path, number: int, layout: Layout) -> None:
        self._directory = directory
        self._number = number
        self._layout = layout
        self._open: OrderedDict[str, File] = OrderedDict()
        self._begun: dict[str, int] = {}
        self.written = Written()

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes rows that have the layout's `read_columns`."""
        layout = self._layout
        self.written.count(layout.table, batch)
        if not layout.by:
            self._file("").write(batch.select(layout.file_columns))
            return
        for key, rows in divide(batch, layout.by):
            part = rows.select(layout.file_columns)
            small = part.num_rows * 2 < batch.num_rows
            self._file(directory_of(layout.by, key)).write(copied(part) if small else part)
        while sum(file.pending for file in self._open.values()) > _WAITING:
            max(self._open.values(), key=lambda file: file.pending).flush()

    def _file(self, place: str) -> File:
        if place in self._open:
            self._open.move_to_end(place)
            return self._open[place]
        if len(self._open) >= _OPEN:
            self._finish(next(iter(self._open)))
        again = self._begun.get(place, 0)
        self._begun[place] = again + 1
        directory = self._directory / place
        if place and not again:
            _make(directory, place)
        name = f"part-{self._number:05d}{f'-{again}' if again else ''}{self._layout.suffix}"
        file = self._open[place] = File(directory / name, self._layout)
        return file

    def _finish(self, place: str) -> None:
        file = self._open.pop(place)
        size = file.close()
        path = os.fspath(file.path.relative_to(self._directory))
        self.written.files.append(WrittenFile(path, file.rows, size))

    def close(self) -> None:
        """Finishes all files."""
        while self._open:
            self._finish(next(iter(self._open)))

    def abandon(self) -> None:
        """Closes all files; they are not to be used."""
        for file in self._open.values():
            file.abandon()


def write_part(batches: Iterable[pa.RecordBatch], directory: Path, number: int, layout: Layout) -> Written:
    """Writes the rows of a split, whose batches have the layout's `read_columns`.

    Args:
        batches: The rows.
        directory: The directory of the export.
        number: The number of the split.
        layout: What is in the files.

    Raises:
        StoreUnwritableError: Something cannot be written.
    """
    writer = PartWriter(directory, number, layout)
    try:
        for batch in batches:
            writer.write(batch)
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return writer.written


def _make(directory: Path, place: str) -> None:
    longest = max(place.split("/"), key=lambda name: len(os.fsencode(name)))
    if len(os.fsencode(longest)) > _NAME_MAX:
        raise StoreUnwritableError(
            f"{directory}: the name of a directory would have {len(os.fsencode(longest))} bytes, more than {_NAME_MAX}",
            "leave this column out of --by, or this channel out of the export",
        )
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
