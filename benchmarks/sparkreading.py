"""Queries and jobs on Spark against the local verify, with the memory that they take, and what the start costs."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sparkwork as work
import stores
from measure import MB, Options, python, race, reread, run, stantools, table, verdict
from sparkdrivers import Driver, Drivers, processor

from stantools.inspection.verify import verify
from stantools.store.directory import open_datastore

MASTER = "local[2]"
_VERIFY = "local verify, 2 workers"
_RATE, _SHARE, _MEMORY = 150, 0.5, 256
_MIB = 1 << 20


@dataclass(frozen=True)
class _Way:
    """One row of the tables.

    Attributes:
        work: What is run.
        target: What is wanted: a share of the speed of the local verify, or a rate.
        spark: It runs on Spark.
    """

    work: Callable[[], object]
    target: str = ""
    spark: bool = True


def starting(options: Options, drivers: Drivers) -> str:
    """Measures what it takes until the first answer."""
    seconds: dict[str, list[float]] = {}

    def noted(name: str, begin: float) -> None:
        seconds.setdefault(name, []).append(time.perf_counter() - begin)

    with options.directory("starting") as place:
        store = stores.make_store(place / "store", 2000, 128, channels=10)
        for _ in range(max(options.rounds - 1, 1)):  # each takes half a minute
            with Driver(MASTER) as driver:
                seconds.setdefault("session up", []).append(driver.started)
                for name, function, arguments in (
                    ("the first job with Python in it", work.nothing, ()),
                    ("the first count of a small store", work.count, (store,)),
                    ("the first job `verify` of a small store", work.verify, (store,)),
                    ("the second empty job", work.nothing, ()),
                    ("the second count", work.count, (store,)),
                    ("the second job `verify`", work.verify, (store,)),
                ):
                    begin = time.perf_counter()
                    driver.run(function, *arguments)
                    noted(name, begin)
            for name, command in (
                ("python -c 'import pyspark.sql'", python("-c", "import pyspark.sql")),
                ("`stantools verify`, whole command", stantools("verify", store)),
                (
                    "`stantools pipeline verify`, whole command",
                    stantools("pipeline", "verify", "--engine", "spark", store),
                ),
            ):
                begin = time.perf_counter()
                run(command)
                noted(name, begin)
    rows = [(name, statistics.median(each), f"{min(each):.2f}–{max(each):.2f}") for name, each in seconds.items()]
    return f"**{MASTER}, seconds**\n\n{table(('', 'median', 'range'), rows)}"


def section(options: Options, drivers: Drivers) -> str:
    """Measures both sizes of messages."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with options.directory("reading") as place:
            store = stores.make_store(place / "store", count, size, channels=4)
            parts.append(_compare(drivers.on(MASTER), store, count, size, options.rounds))
    return "\n\n".join(parts)


def _compare(driver: Driver, store: Path, count: int, size: int, rounds: int) -> str:
    out = store.with_name("out")
    files, data = [*stores.data_files(store), *stores.index_files(store)], stores.data_files(store)
    volume = stores.total_size(data)
    ways = _ways(driver, store, out, count // 4 * 4, size)

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        reread(files)

    for way in ways.values():
        clear()
        way.work()
    works = {name: way.work for name, way in ways.items()}
    results = race(works, rounds, before=clear, server=processor)
    rows, memory = [], []
    for name, way in ways.items():
        took = results[name]
        rate = volume / took.seconds / MB
        share = results[_VERIFY].seconds / took.seconds
        target = verdict(f"≥ {_SHARE} × verify", share >= _SHARE) if way.target == "share" else ""
        target = verdict(f"≥ {_RATE} MB/s", rate >= _RATE) if way.target == "rate" else target
        figures = took.processor + took.server, f"{rate:.0f}", f"{share:.2f}", f"{took.others:.1f}"
        rows.append((name, took.seconds, *figures, target))
        if way.spark:
            clear()
            memory.append(_memory(driver, name, way))
    clear()
    headers = ("", "s", "CPU s", "MB/s of input", "speed of verify", "others", "target")
    title = f"{count:,} messages of {size} bytes: {volume / MB:.0f} MB of data, {MASTER}"
    headers_of_memory = ("Python worker", "most MiB", "private MiB", "mapped files MiB", "Java MiB", "target")
    return f"**{title}**\n\n{table(headers, rows)}\n\n{table(headers_of_memory, memory)}"


def _ways(driver: Driver, store: Path, out: Path, messages: int, size: int) -> dict[str, _Way]:
    healthy, both = open_datastore(store), (messages, messages * size)
    return {
        _VERIFY: _Way(lambda: verify(healthy, workers=2), spark=False),
        "a job that does nothing": _Way(lambda: driver.run(work.nothing)),
        "count(), every column": _Way(driver.checked(messages, work.count, store), "share"),
        "count(), columns=seq": _Way(driver.checked(messages, work.count, store, columns="seq"), "share"),
        "count(), columns=seq, no CRC": _Way(
            driver.checked(messages, work.count, store, columns="seq", check_crc=False)
        ),
        "by channel and status, 3 columns": _Way(
            driver.checked(messages, work.group, store, columns="channel,size,status")
        ),
        "sum(length(data)), every column": _Way(driver.checked(both, work.payload_bytes, store)),
        "sum(length(data)), columns=data": _Way(driver.checked(both, work.payload_bytes, store, columns="data")),
        "pipeline verify": _Way(driver.checked(messages, work.verify, store), "share"),
        "pipeline stats": _Way(driver.checked(messages, work.stats, store)),
        "pipeline export": _Way(driver.checked(messages, work.export, out, store), "rate"),
        "pipeline export --writer spark": _Way(
            driver.checked(messages, work.export, out, store, by_spark=True), "rate"
        ),
    }


def _memory(driver: Driver, name: str, way: _Way) -> tuple[object, ...]:
    _, worker, java = driver.watched(way.work)
    figures = (f"{x:.0f}" for x in (worker.peak, worker.private, worker.mapped, java))
    return name, *figures, verdict(f"≤ {_MEMORY} MB", worker.peak * _MIB <= _MEMORY * MB)
