"""Exports messages as text, with or without pyarrow: `everyexport.py with|without OUT STORE…`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

KEY = b"testkey"


def main(way: str, out: Path, stores: tuple[str, ...]) -> None:
    from stantools.pipeline.export import run
    from stantools.pipeline.export.export_layout import TEXTS, Compression, ExportLayout, Format
    from stantools.pipeline.export.request import Export, ExportOptions
    from stantools.pipeline.tables.model import TableName
    from stantools.pipeline.tables.planning import plan
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.secret import Secret

    def export_of(layout: ExportLayout, target: Path) -> Export:
        reading = replace(options, table=layout.table, columns=layout.read_columns)
        return Export(ExportOptions(str(target)), layout, reading, planned)

    out.mkdir()
    for key in (None, KEY):
        options = TableOptions(stores, archived=True, partition_bytes=4 << 20, key=Secret(key))
        planned = plan(options)
        for format in TEXTS:
            for compression in (Compression.NONE, Compression.GZIP):
                layout = ExportLayout(TableName.MESSAGES, format, compression)
                run.export_to_file(export_of(layout, out / f"messages{'-opened' if key else ''}{layout.suffix}"))
        if not key:
            layout = ExportLayout(TableName.MESSAGES, Format.CSV, Compression.NONE, by=("channel", "date"))
            run.export_to_directory(export_of(layout, out / "by"))
    loaded = {name for name, module in sys.modules.items() if module and name.partition(".")[0] == "pyarrow"}
    assert bool(loaded) == (way == "with"), loaded


if __name__ == "__main__":
    way, out, *stores = sys.argv[1:]
    if way == "without":
        sys.modules["pyarrow"] = None  # type: ignore[assignment]
    main(way, Path(out), tuple(stores))
