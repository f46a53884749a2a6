"""The most memory that a migration takes for one large channel, in our process and in the server's."""

from __future__ import annotations

import shutil
from pathlib import Path

import stores
from measure import MB, Memory, peak_memory, stantools, table, verdict
from streams import Bench, Options

_MEMORY = 400
_MIB = 1 << 20
#: What the store, the server's stream and some room besides take, in sizes of the store.
_SHARE = 2.3
_PAYLOAD = 1024
#: What a message of 1 KiB takes in a store.
_RECORD = 1110


def section(options: Options) -> str:
    """Measures every size."""
    rows = [row for size in options.big_bytes for row in _measure(options, size)]
    headers = (
        "whole command",
        "GB",
        "s",
        "MB/s",
        "most MiB",
        "private MiB",
        "mapped files MiB",
        "server MiB",
        "target",
    )
    return f"**One channel of {_PAYLOAD} bytes a message**\n\n{table(headers, rows)}"


def _measure(options: Options, size: int) -> list[tuple[object, ...]]:
    free = shutil.disk_usage(options.place).free
    if free < size * _SHARE:
        raise SystemExit(f"{options.place}: has {free / 1e9:.0f} GB, {size * _SHARE / 1e9:.0f} GB are needed")
    rows: list[tuple[object, ...]] = []
    with options.directory() as place:
        store = stores.make_store(place / "store", size // _RECORD, _PAYLOAD)
        volume = stores.total_size(stores.data_files(store))
        with Bench(place) as bench:
            for name, words in (
                ("migrate --proof counts", ("--proof", "counts")),
                ("migrate", ()),
            ):
                bench.clear()
                rows.append((name, *_run(bench, place / f"{len(rows)}.yaml", store, volume, words)))
    return rows


def _run(bench: Bench, plan: Path, store: Path, volume: int, words: tuple[str, ...]) -> tuple[object, ...]:
    always = ("--server", bench.server.url, "--plan", plan, "--yes", "--progress", "none")
    seconds, most = peak_memory(stantools("migrate", store, *always, *words))
    figures = (f"{x:.0f}" for x in _figures(most, bench.server.memory()))
    target = verdict(f"≤ {_MEMORY} MB", most.peak * _MIB <= _MEMORY * MB)
    return f"{volume / 1e9:.1f}", seconds, f"{volume / seconds / MB:.0f}", *figures, target


def _figures(most: Memory, server: float) -> tuple[float, ...]:
    return most.peak, most.private, most.mapped, server
