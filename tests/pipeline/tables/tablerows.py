"""Tables as lists of rows, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.schema import schema_of
from stantools.pipeline.tables.table_options import table_options


def table(path: Path | str, name: str = "messages", **given: Any) -> list[dict[str, Any]]:
    """Reads a table as Spark would; times stay numbers. `storage__x` stands for `storage.x`."""
    values = {key.replace("__", "."): str(value) for key, value in given.items()}
    options = table_options({"path": str(path), "table": name, **values})
    rows: list[dict[str, Any]] = []
    names = list(options.columns) or schema_of(options.table).names
    for split in plan(options).splits:
        for batch in read_split(split, options):
            assert batch.schema.names == names
            assert 0 < batch.num_rows <= options.batch_rows
            columns = [
                column.cast("int64") if str(column.type).startswith("timestamp") else column for column in batch.columns
            ]
            rows += [dict(zip(names, row, strict=True)) for row in zip(*(c.to_pylist() for c in columns), strict=True)]
    return rows
