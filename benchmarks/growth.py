"""Cost by the number of slices and of channels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import stores
from measure import MB, Options, race, reread, table
from writing import COPY, copy, salvage

from stantools.inspection.forecast import forecast
from stantools.inspection.overview import overview
from stantools.inspection.verify import verify
from stantools.store.directory import open_datastore

_SLICES = (1, 4, 16, 64)
_CHANNELS = (10, 100, 1000, 10_000)
_SLICE_BYTES = 16 * MB
#: What a message of 128 bytes counts for when a slice fills up.
_COUNTED = 202
_MESSAGES = 20
#: From this many channels on one round is enough: noise is small against minutes of making files.
_ONCE = 1000


def section(options: Options) -> str:
    """Measures both kinds of growth."""
    with options.directory("growth") as place:
        largest = stores.make_store(
            place / "all", max(_SLICES) * _SLICE_BYTES // _COUNTED, 128, slice_bytes=_SLICE_BYTES
        )
        sizes = {count: stores.first_slices(largest, place / f"slices{count}", count) for count in _SLICES}
        slices = _grow(sizes, "slices", dict.fromkeys(sizes, options.rounds))
    with options.directory("growth") as place:
        counts = [count for count in _CHANNELS if count <= options.channels]
        sizes = {n: stores.make_store(place / f"channels{n}", n * _MESSAGES, 128, channels=n) for n in counts}
        channels = _grow(sizes, "channels", {n: options.rounds if n < _ONCE else 1 for n in counts})
    return (
        f"**Milliseconds a slice; one channel, slices of {_SLICE_BYTES / MB:.0f} MB**\n\n{slices}\n\n"
        f"**Milliseconds a channel; each of {_MESSAGES} messages and one durable**\n\n{channels}"
    )


def _grow(sizes: dict[int, Path], what: str, rounds: dict[int, int]) -> str:
    rows = []
    for count, store in sizes.items():
        out = store.with_name("out")
        files = stores.all_files(store)

        def clear(out: Path = out, files: list[Path] = files) -> None:
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            reread(files)

        results = race(_ways(store, out), rounds[count], before=clear)
        clear()
        figures = (f"{took.seconds / count * 1000:.2f}" for took in results.values())
        rows.append((str(count), *figures, f"{max(took.others for took in results.values()):.1f}"))
    return table((what, *_ways(Path(), Path()), "others"), rows)


def _ways(store: Path, out: Path) -> dict[str, Callable[[], object]]:
    return {
        "verify": lambda: verify(open_datastore(store)),
        "forecast": lambda: forecast(open_datastore(store), stores.SERVER),
        "info": lambda: overview(open_datastore(store)),
        "salvage": lambda: salvage(store, out),
        COPY: lambda: copy(store, out),
    }
