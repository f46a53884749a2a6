"""The most memory that whole commands take on a store of many gigabytes."""

from __future__ import annotations

import shutil

import stores
from measure import MB, Options, peak_memory, reread, stantools, table, verdict

from tests.durables import write_durables

_MEMORY, _SECONDS = 300, 2
_DURABLES_SECONDS = 10
_MIB = 1 << 20


def section(options: Options) -> str:
    """Measures every verb that goes through a store."""
    with options.directory("memory") as place:
        store = stores.make_large_store(place / "store", options.large_bytes)
        out = place / "out"
        files, indexes = stores.all_files(store), stores.index_files(store)
        volume, biggest = stores.total_size(files), max(path.stat().st_size for path in indexes)
        commands = {
            "info": ("info", store),
            "verify": ("verify", store),
            "forecast": ("forecast", store, "--max-msgs", 0, "--max-bytes", 0),
            "salvage": ("salvage", store, "--out", out),
            "compact": ("compact", store, "--out", out),
            "truncate-bad-eof": ("truncate-bad-eof", store, "--dry-run"),
        }
        rows = []
        for name, arguments in commands.items():
            reread(indexes if name == "info" else files)
            seconds, most = peak_memory(stantools(*arguments))
            shutil.rmtree(out, ignore_errors=True)
            target, met = f"≤ {_MEMORY} MB", most.peak * _MIB <= _MEMORY * MB
            if name == "info":
                target, met = f"{target}, ≤ {_SECONDS} s", met and seconds <= _SECONDS
            rows.append(
                (name, seconds, *(f"{x:.0f}" for x in (most.peak, most.private, most.mapped)), verdict(target, met))
            )
    headers = ("whole command", "s", "most MiB", "private MiB", "mapped files MiB", "target")
    title = f"{volume / 1e9:.1f} GB, half of it in one slice whose index has {biggest / MB:.0f} MB"
    return f"**{title}**\n\n{table(headers, rows)}"


def durables(options: Options) -> str:
    """Measures the verbs that look at subscriptions on a store that has hardly anything else."""
    with options.directory("durables") as place:
        store = write_durables(place / "store", options.durables)
        files, out = stores.all_files(store), place / "out"
        rows = []
        for name, *more in (("subs",), ("info",), ("forecast",), ("verify",), ("salvage", "--out", out)):
            reread(files)
            seconds, most = peak_memory(stantools(name, store, *more))
            shutil.rmtree(out, ignore_errors=True)
            met = most.peak <= _MEMORY and seconds <= _DURABLES_SECONDS
            rows.append((name, seconds, f"{most.peak:.0f}", verdict(f"≤ {_MEMORY} MiB, ≤ {_DURABLES_SECONDS} s", met)))
    table_of_verbs = table(("whole command", "s", "most MiB", "target"), rows)
    return f"**{options.durables} durables in one channel**\n\n{table_of_verbs}"
