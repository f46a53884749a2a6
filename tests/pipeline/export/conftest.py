"""Rows to export."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.schema import schema_of

Batches = Callable[..., list[pa.RecordBatch]]

BEGIN = 1_700_000_000_000_000_000


@pytest.fixture
def messages() -> Batches:
    """Makes batches of messages: `rows` rows of `size` bytes each, `step` nanoseconds apart."""

    def make(
        batches: int = 3, rows: int = 100, size: int = 10, *, channel: str = "orders", step: int = 10**9, first: int = 1
    ) -> list[pa.RecordBatch]:
        made = []
        for number in range(batches):
            seqs = range(first + number * rows, first + (number + 1) * rows)
            times = [BEGIN + seq * step for seq in seqs]
            columns = [
                ["/data/store"] * rows,
                [channel] * rows,
                seqs,
                [t // 1000 for t in times],
                times,
                [channel] * rows,
                [""] * rows,
                [(b"%d " % seq * size)[:size] for seq in seqs],
                [size] * rows,
                [f"{channel}/msgs.1.dat"] * rows,
                [4 + (seq - 1) * (size + 40) for seq in seqs],
                ["ok"] * rows,
            ]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema_of(TableName.MESSAGES), strict=True)]
            made.append(pa.record_batch(arrays, schema=schema_of(TableName.MESSAGES)))
        return made

    return make
