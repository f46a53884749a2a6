"""Rows of the messages table as Python values: for csv and ndjson without pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ValueRows:
    """Rows with the part of a RecordBatch's interface that exports use. None is null, moments are in microseconds."""

    columns: dict[str, list[Any]]

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def nbytes(self) -> int:
        """Approximate size of the text of these rows."""
        payloads = sum(map(len, filter(None, self.columns.get("data", ()))))
        return payloads + 16 * self.num_rows * len(self.columns)

    def select(self, names: Sequence[str]) -> ValueRows:
        return ValueRows({name: self.columns[name] for name in names})

    def divide(self, by: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], ValueRows]]:
        """As `parts.divide`; a level that is no column is the day of `timestamp`."""
        levels = [self.columns[name] if name in self.columns else self._days() for name in by]
        parts: dict[tuple[str | None, ...], list[int]] = {}
        for row, key in enumerate(zip(*levels, strict=True)):
            parts.setdefault(key, []).append(row)
        for key, rows in parts.items():
            yield key, ValueRows({name: [values[row] for row in rows] for name, values in self.columns.items()})

    def _days(self) -> list[str | None]:
        moments = self.columns["timestamp"]
        return [None if each is None else str((_EPOCH + timedelta(microseconds=each)).date()) for each in moments]
