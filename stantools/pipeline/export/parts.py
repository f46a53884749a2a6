"""The files of one task: the rows of a split, in one file or in one per directory.

Directories are named as Hive and Spark do it, `channel=orders/date=2026-11-21`. Values are escaped as Spark does it
(`ExternalCatalogUtils.escapePathName`), so that readers of this layout, Spark among them, restore them.

Used by local threads and by tasks on a cluster. File names begin with the number of the split: they sort like the
rows, and tasks never write the same file.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from stantools.errors import StoreUnwritableError
from stantools.pipeline.export.export_layout import DATE, MOMENTS, ExportedPart, ExportLayout, WrittenFile
from stantools.pipeline.export.sinks import File
from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.value_rows import ValueRows
from stantools.store.durable import writing

#: files that a task keeps open
_OPEN: Final = 64
#: Bytes of pending rows in all files; at this limit the fullest file encodes its rows.
_WAITING: Final = 64 << 20
_NAME_MAX: Final = 255
#: Name for null and for an empty text.
NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"

_ESCAPED: Final = frozenset([*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\{[]^\x7f"])

#: One value per level; None is null.
Key = tuple[str | None, ...]


class PartWriter:
    """Writes the rows of one split below a directory. Every method may raise `StoreUnwritableError`."""

    def __init__(self, directory: Path, number: int, layout: ExportLayout) -> None:
        self._directory = directory
        self._number = number
        self._layout = layout
        self._open: OrderedDict[str, File] = OrderedDict()
        self._begun: dict[str, int] = {}
        self.written = ExportedPart()  #: complete after `close`

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes rows that have the layout's `read_columns`."""
        layout = self._layout
        self.written.count(layout.table, batch)
        if not layout.by:
            self._file("").write(batch.select(layout.file_columns))
            return
        for key, rows in divide(batch, layout.by):
            part = rows.select(layout.file_columns)
            small = not isinstance(part, ValueRows) and part.num_rows * 2 < batch.num_rows
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
        while self._open:
            self._finish(next(iter(self._open)))

    def abandon(self) -> None:
        """Closes all files, which must not be used then."""
        for file in self._open.values():
            file.abandon()


def write_part(batches: Iterable[pa.RecordBatch], directory: Path, number: int, layout: ExportLayout) -> ExportedPart:
    """Writes the rows of a split, whose batches have the layout's `read_columns`."""
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
            f"{directory}: a directory name would have {len(os.fsencode(longest))} bytes, more than {_NAME_MAX}",
            "leave this column out of --by, or this channel out of the export",
        )
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)


@lru_cache(maxsize=4096)
def directory_of(by: tuple[str, ...], key: Key) -> str:
    """Returns the directory of rows with these values, relative to the export; "" without levels."""
    return "/".join(f"{name}={escaped(value) if value else NOTHING}" for name, value in zip(by, key, strict=True))


def escaped(value: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)


def divide(batch: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """Divides a batch by the values of its levels; the rows of each part keep their order.

    Yields each combination of values once, in the order of their first rows.
    """
    if not batch.num_rows:
        return
    if isinstance(batch, ValueRows):
        yield from batch.divide(by)
        return
    codes = np.zeros(batch.num_rows, np.int64)
    values: list[list[str | None]] = []
    for name in by:
        level, texts = _encoded(batch, name)
        codes = codes * max(len(texts), 1) + level
        values.append(texts)
    changes = np.flatnonzero(np.diff(codes)) + 1
    begins = np.concatenate([[0], changes])
    if len(np.unique(codes[begins])) < len(begins):
        order = np.argsort(codes, kind="stable")
        batch, codes = batch.take(pa.array(order)), codes[order]
        begins = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1])
        # Restore the order of their first rows.
        parts = sorted(zip(order[begins], begins, [*begins[1:], len(codes)], strict=True))
        ranges = [(int(begin), int(end)) for _, begin, end in parts]
    else:
        ranges = [(int(begin), int(end)) for begin, end in zip(begins, [*begins[1:], len(codes)], strict=True)]
    for begin, end in ranges:
        yield _key(int(codes[begin]), values), batch.slice(begin, end - begin)


def _key(code: int, values: list[list[str | None]]) -> Key:
    key: list[str | None] = []
    for texts in reversed(values):
        code, at = divmod(code, max(len(texts), 1))
        key.append(texts[at])
    return tuple(reversed(key))


def _encoded(batch: pa.RecordBatch, level: str) -> tuple[Any, list[str | None]]:
    """Returns for each row the position of its text, and the texts."""
    if level == DATE:
        moments = batch.column(next(each for each in MOMENTS if each in batch.schema.names))
        column = moments.cast(pa.int64()).view(pa.timestamp(moments.type.unit)).cast(pa.date32())  # the day in UTC
    else:
        column = batch.column(level)
    encoded = column.dictionary_encode(null_encoding="encode")
    texts = [None if each is None else str(each) for each in encoded.dictionary.to_pylist()]
    return encoded.indices.to_numpy(zero_copy_only=False), texts


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies a few rows out of a large batch, which would otherwise stay in memory."""
    return batch.take(pa.array(np.arange(batch.num_rows)))
