"""What is gained by asking for a part: seconds, and bytes that are read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sparkwork as work
import stores
from measure import MB, Options, race, reread, table
from sparkdrivers import Driver, Drivers, processor
from sparkreading import MASTER

from stantools.notation import format_time
from stantools.pipeline.spark.read import _texts
from stantools.pipeline.tables.model import ReadCounter
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.table_options import table_options

_CHANNEL = "orders.eu.00002"
#: Of the times that `stores` gives the messages, the distance.
_STEP = 10_007


@dataclass(frozen=True)
class _Way:
    """A query.

    Attributes:
        options: Of the source.
        where: Its condition, evaluated by Spark.
    """

    options: dict[str, Any] = field(default_factory=dict)
    where: str = ""


def section(options: Options, drivers: Drivers) -> str:
    """Measures one store, several queries."""
    with options.directory("pruning") as place:
        store = stores.make_store(place / "store", options.large, 1024, channels=4)
        return _compare(drivers.on(MASTER), store, options.large // 4, options.rounds)


def _compare(driver: Driver, store: Path, each: int, rounds: int) -> str:
    few = {"seq": f"{each // 2}:{each // 2 + each // 100}"}
    condition = f"seq between {each // 2} and {each // 2 + each // 100}"
    late = {"since": format_time(stores.TIME + each * 9 // 10 * _STEP)}
    ways = {
        "everything": _Way(),
        "one channel of four, option": _Way({"channels": _CHANNEL}),
        "a tenth of the time, option": _Way(late),
        "1 % of the sequences, option": _Way(few),
        "1 % of one channel, options": _Way({**few, "channels": _CHANNEL}),
        "1 % of the sequences, WHERE": _Way(where=condition),
    }
    files = stores.all_files(store)
    runs: dict[str, Callable[[], object]] = {
        name: lambda way=way: driver.run(work.payload_bytes, store, where=way.where, **way.options)
        for name, way in ways.items()
    }
    results = race(runs, rounds, before=lambda: reread(files), warm=runs.values(), server=processor)
    rows = []
    for name, way in ways.items():
        found = driver.run(work.payload_bytes, store, where=way.where, **way.options)
        counted, data, index = _looked_at(store, way.options)
        if not way.where and counted != found[0]:
            raise AssertionError(f"{name}: {found[0]} messages instead of {counted}")
        took = results[name]
        share = f"{took.seconds / results['everything'].seconds:.2f}"
        read = _from_disk(files, runs[name])
        figures = (f"{size / MB:.1f}" for size in (data, index))
        rows.append(
            (
                name,
                took.seconds,
                took.processor + took.server,
                share,
                f"{found[0]:,}",
                *figures,
                "" if read is None else f"{read / MB:.1f}",
                f"{took.others:.1f}",
            )
        )
    headers = ("", "s", "CPU s", "× everything", "messages", "MB of data", "MB of indexes", "MB from disk", "others")
    volume = stores.total_size(stores.data_files(store))
    title = f"sum(length(data)) over 4 channels, {volume / MB:.0f} MB of data, {MASTER}"
    return f"**{title}**\n\n{table(headers, rows)}"


def _looked_at(store: Path, given: dict[str, Any]) -> tuple[int, int, int]:
    """Counts messages, and the bytes that reading them looks at, without Spark, planning included."""
    options = table_options(_texts((store,), given))
    counter = ReadCounter()
    messages = sum(
        batch.num_rows for split in plan(options, counter).splits for batch in read_split(split, options, counter)
    )
    return messages, counter.data_bytes, counter.index_bytes


def _from_disk(files: Sequence[Path], query: Callable[[], object]) -> int | None:
    """Runs a query with no file in the page cache; returns the bytes of the files that are in it afterwards."""
    os.sync()
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = _resident(files)
    query()
    after = _resident(files)
    return None if before is None or after is None else after - before


def _resident(files: Sequence[Path]) -> int | None:
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return sum(map(int, done.stdout.split()))
