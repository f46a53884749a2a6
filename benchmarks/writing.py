"""salvage, compact and the plan of truncate-bad-eof against `cp -r` and `sync`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import stores
from measure import MB, Options, race, reread, run, table, verdict

from stantools.recovery.compact import apply_compaction, plan_compaction
from stantools.recovery.salvage import apply_salvage, plan_salvage
from stantools.recovery.truncate import plan_truncation
from stantools.store.directory import open_datastore

COPY, SALVAGE = "cp -r and sync", "salvage, plan and apply"
_RATE = 400


def section(options: Options) -> str:
    """Measures both sizes of messages."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with options.directory("writing") as place:
            store = stores.make_store(place / "store", count, size, channels=4)
            parts.append(_compare(store, f"{count:,} messages of {size} bytes", max(options.rounds * 3 // 5, 1)))
    return "\n\n".join(parts)


def copy(store: Path, out: Path) -> None:
    """Copies a store as it is."""
    run(["cp", "-r", store, out])
    run(["sync"])


def salvage(store: Path, out: Path) -> None:
    """Plans and applies a salvage."""
    apply_salvage(plan_salvage(open_datastore(store)), out)


def _compact(store: Path, out: Path) -> None:
    apply_compaction(plan_compaction(open_datastore(store)), out)


def _compare(store: Path, title: str, rounds: int) -> str:
    out = store.with_name("out")
    torn = stores.with_torn_end(store, store.with_name("torn"))
    files = stores.all_files(store)
    volume = stores.total_size(files)

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        reread([*files, *stores.data_files(torn)])

    ways: dict[str, Callable[[], object]] = {
        COPY: lambda: copy(store, out),
        "salvage, plan": lambda: plan_salvage(open_datastore(store)),
        SALVAGE: lambda: salvage(store, out),
        "compact, plan and apply": lambda: _compact(store, out),
        "truncate-bad-eof, plan for a torn end": lambda: plan_truncation(open_datastore(torn), stores.SERVER),
    }
    results = race(ways, rounds, before=clear)
    clear()
    rows = []
    for name, took in results.items():
        rate = volume / took.seconds / MB
        target = verdict(f"≥ {_RATE} MB/s", rate >= _RATE) if name == SALVAGE else ""
        figures = f"{rate:.0f}", f"{took.seconds / results[COPY].seconds:.2f}", f"{took.others:.1f}"
        rows.append((name, took.seconds, took.processor, *figures, target))
    headers = ("", "s", "CPU s", "MB/s", "× cp and sync", "others", "target")
    return f"**{title}: {volume / MB:.0f} MB with indexes**\n\n{table(headers, rows)}"
