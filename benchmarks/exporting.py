"""`stantools export` against verify and against pyarrow writing the same rows out of memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import stores
from measure import MB, Options, race, reread, run, stantools, table, verdict

from stantools.inspection.verify import verify
from stantools.pipeline.export.export_layout import Compression, ExportLayout, Format
from stantools.pipeline.export.request import Export, ExportOptions
from stantools.pipeline.export.run import export_to_directory
from stantools.pipeline.export.sinks import parquet_settings
from stantools.pipeline.tables.planning import ReadPlan
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import open_datastore
from stantools.store.durable import fsync_file
from stantools.work import ThreadWork

_VERIFY, _FROM_MEMORY = "verify, 2 workers", "pyarrow from memory, our settings, 2 threads"
_PARQUET, _RATE = "export to Parquet, 2 workers", 300


def section(options: Options) -> str:
    """Measures both sizes of messages."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with options.directory("exporting") as place:
            store = stores.make_store(place / "store", count, size, channels=4)
            parts.append(_compare(store, f"{count:,} messages of {size} bytes", options.rounds))
    return "\n\n".join(parts)


def _planned(store: Path, out: Path, layout: ExportLayout) -> Export:
    exporting = ExportOptions(
        str(out), format=layout.format.value, compression=layout.compression.value, directory=True
    )
    return exporting.planned((str(store),), TableOptions(()), 2)


def _compare(store: Path, title: str, rounds: int) -> str:
    out, files = store.with_name("out"), [*stores.data_files(store), *stores.index_files(store)]
    volume = stores.total_size(stores.data_files(store))
    parquet, ndjson = ExportLayout(), ExportLayout(format=Format.NDJSON, compression=Compression.NONE)
    healthy = open_datastore(store)
    export = _planned(store, out, parquet)
    plan, options = export.plan, export.options
    held = [pa.Table.from_batches(list(read_split(split, options))) for split in plan.splits]
    wanted = sum(part.num_rows for part in held)

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        reread(files)

    def exported(layout: ExportLayout, workers: int) -> None:
        result = export_to_directory(_planned(store, out, layout), work=ThreadWork(workers))
        if result.written.rows != wanted or not result.clean:
            raise AssertionError(f"{result.written.rows} rows instead of {wanted}")

    settings = parquet_settings(parquet.file_schema, parquet.compression)
    plain = {"compression": parquet.compression.value}
    ways: dict[str, Callable[[], object]] = {
        _VERIFY: lambda: verify(healthy, workers=2),
        "rows as Arrow batches, 1 worker": lambda: _rows(plan, options, 1),
        "rows as Arrow batches, 2 workers": lambda: _rows(plan, options, 2),
        "pyarrow from memory, its own settings, 2 threads": lambda: _from_memory(held, out, plain, 2),
        "pyarrow from memory, our settings, 1 thread": lambda: _from_memory(held, out, settings, 1),
        _FROM_MEMORY: lambda: _from_memory(held, out, settings, 2),
        "export to Parquet, 1 worker": lambda: exported(parquet, 1),
        _PARQUET: lambda: exported(parquet, 2),
        "export to Parquet, zstd, 2 workers": lambda: exported(ExportLayout(compression=Compression.ZSTD), 2),
        "export to ndjson, 1 worker": lambda: exported(ndjson, 1),
        "export to ndjson, 2 workers": lambda: exported(ndjson, 2),
        "stantools export, whole command": lambda: run(stantools("export", store, "--to", out)),
    }
    results = race(ways, rounds, before=clear, warm=[ways[_PARQUET]])
    clear()
    rows = []
    for name, took in results.items():
        rate = volume / took.seconds / MB
        ratios = (f"{took.seconds / results[unit].seconds:.2f}" for unit in (_VERIFY, _FROM_MEMORY))
        target = verdict(f"≥ {_RATE} MB/s", rate >= _RATE) if name == _PARQUET else ""
        rows.append((name, took.seconds, took.processor, f"{rate:.0f}", *ratios, f"{took.others:.1f}", target))
    headers = ("", "s", "CPU s", "MB/s of input", "× verify", "× pyarrow from memory", "others", "target")
    return f"**{title}: {volume / MB:.0f} MB of data**\n\n{table(headers, rows)}"


def _rows(plan: ReadPlan, options: TableOptions, workers: int) -> None:
    """Makes all rows and does nothing with them."""

    def work(number: int) -> None:
        for _ in read_split(plan.splits[number], options):
            pass

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(len(plan.splits))))


def _from_memory(held: list[pa.Table], out: Path, settings: dict[str, object], threads: int) -> None:
    """Writes rows that are in memory, each split to a file of its own, which is durable in the end."""
    out.mkdir()

    def work(number: int) -> None:
        path = out / f"{number}.parquet"
        pq.write_table(held[number], path, **settings)
        fsync_file(path)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(len(held))))
