"""Which rows go into which directory: `channel=orders/date=2026-11-21`, as Hive and Spark name them.

Values are escaped as Spark does it (`ExternalCatalogUtils.escapePathName`), so that Spark, and whoever else knows this
layout, gets them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from stantools.pipeline.export.model import DATE
from stantools.pipeline.tables.arrow import pa

#: Stands for null and for an empty text.
NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"

_ESCAPED: Final = frozenset([*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\{[]^\x7f"])

#: One value a level; None is null.
Key = tuple[str | None, ...]


@lru_cache(maxsize=4096)
def directory_of(by: tuple[str, ...], key: Key) -> str:
    """Returns the directory of the rows with some values, relative to the export; "" without levels."""
    return "/".join(f"{name}={escaped(value) if value else NOTHING}" for name, value in zip(by, key, strict=True))


def escaped(value: str) -> str:
    """Escapes a value for the name of a directory."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)


def divide(batch: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """Divides a batch by the values of its levels; the rows of each part stay in their order.

    Args:
        batch: With the columns that the levels are made from.
        by: The levels.

    Yields:
        Values and their rows: each combination once, in the order in which they begin.
    """
    if not batch.num_rows:
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
        # Back into the order in which they begin.
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
    """Returns for each row which of some texts it has."""
    column = _dates(batch.column("timestamp")) if level == DATE else batch.column(level)
    encoded = column.dictionary_encode(null_encoding="encode")
    texts = [None if each is None else str(each) for each in encoded.dictionary.to_pylist()]
    return encoded.indices.to_numpy(zero_copy_only=False), texts


def _dates(moments: pa.Array) -> pa.Array:
    """Returns the day of each moment, in UTC."""
    return moments.cast(pa.int64()).view(pa.timestamp(moments.type.unit)).cast(pa.date32())


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies a few rows out of a large batch, so that they do not keep all of it in memory."""
    return batch.take(pa.array(np.arange(batch.num_rows)))
