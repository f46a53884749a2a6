"""How work on Spark grows: with cores, with bytes and with channels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import sparkwork as work
import stores
from measure import MB, Options, race, reread, table, verdict
from sparkdrivers import Driver, Drivers, processor
from sparkreading import MASTER

from stantools.inspection.verify import verify
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import open_datastore

#: One core and two: threads of one process, and executors, which are processes.
_PAIRS = {
    "local[1] → local[2]": ("local[1]", "local[2]"),
    "1 → 2 executors of one core": ("local-cluster[1,1,1024]", "local-cluster[2,1,1024]"),
}
_TIMES = 1.7
_PARTS = 8
_SHARES = (1, 2, 4, 8)
#: From this many parts on one round is enough: what takes long varies less.
_MANY_PARTS = 4
_CHANNELS = (10, 100, 1000, 10_000)
_MANY_CHANNELS = 1000
_MESSAGES = 20
#: What a message of 1 KiB takes in a store.
_RECORD = 1110


def cores(options: Options, drivers: Drivers) -> str:
    """Measures one and two cores, on a store of both sizes of messages."""
    with options.directory("cores") as place:
        store = stores.make_store(place / "small", options.small, 128, channels=4)
        other = stores.make_store(place / "large", options.large, 1024, channels=4)
        messages = options.small // 4 * 4 + options.large // 4 * 4
        files = [path for each in (store, other) for path in stores.all_files(each)]
        volume = stores.total_size([*stores.data_files(store), *stores.data_files(other)])
        out = place / "out"
        jobs: dict[str, Callable[[Driver], Callable[[], None]]] = {
            "count(), columns=seq": lambda driver: driver.checked(messages, work.count, store, other, columns="seq"),
            "count(), every column": lambda driver: driver.checked(messages, work.count, store, other),
            "pipeline verify": lambda driver: driver.checked(messages, work.verify, store, other),
            "pipeline stats": lambda driver: driver.checked(messages, work.stats, store, other),
            "pipeline export": lambda driver: driver.checked(messages, work.export, out, store, other),
        }

        def clear() -> None:
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            reread(files)

        rows = []
        for name, job in jobs.items():
            ways = {master: job(drivers.on(master)) for pair in _PAIRS.values() for master in pair}
            for way in ways.values():
                clear()
                way()
            results = race(ways, options.rounds, before=clear, server=processor)
            clear()
            for pair, (one, two) in _PAIRS.items():
                times = results[one].seconds / results[two].seconds
                used = (f"{results[m].processor + results[m].server:.1f}" for m in (one, two))
                others = max(results[m].others for m in (one, two))
                rate = volume / results[two].seconds / MB
                rows.append(
                    (
                        name,
                        pair,
                        results[one].seconds,
                        results[two].seconds,
                        *used,
                        f"{rate:.0f}",
                        f"{times:.2f}",
                        f"{others:.1f}",
                        verdict(f"≥ {_TIMES} ×", times >= _TIMES),
                    )
                )
    headers = ("", "", "s on 1", "s on 2", "CPU s on 1", "CPU s on 2", "MB/s on 2", "times", "others", "target")
    return f"**{volume / MB:.0f} MB of data in 2 stores**\n\n{table(headers, rows)}"


def sizes(options: Options, drivers: Drivers) -> str:
    """Measures stores from an eighth of the largest size on."""
    driver = drivers.on(MASTER)
    with options.directory("sizes") as place:
        messages = options.large_bytes // _RECORD // _PARTS
        whole = stores.make_store(place / "whole", messages * _PARTS, 1024, channels=_PARTS)
        rows: list[tuple[object, ...]] = []
        for share in _SHARES:
            store = stores.first_channels(whole, place / f"part{share}", share)
            rows.append(_size(driver, store, messages * share, 1 if share >= _MANY_PARTS else options.rounds))
    headers = ("GB", "local verify", "count(), columns=seq", "count(), every column", "pipeline verify")
    headers += ("pipeline stats", "pipeline export", "most MiB of a worker", "others")
    title = f"MB/s of input, 1 KiB a message, up to {_PARTS} channels, {MASTER}"
    return f"**{title}**\n\n{table(headers, rows)}"


def _size(driver: Driver, store: Path, messages: int, rounds: int) -> tuple[object, ...]:
    out, files, healthy = store.with_name("out"), stores.all_files(store), open_datastore(store)
    volume = stores.total_size(stores.data_files(store))

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        reread(files)

    ways: dict[str, Callable[[], object]] = {
        "local": lambda: verify(healthy, workers=2),
        "columns": driver.checked(messages, work.count, store, columns="seq"),
        "count": driver.checked(messages, work.count, store),
        "verify": driver.checked(messages, work.verify, store),
        "stats": driver.checked(messages, work.stats, store),
        "export": driver.checked(messages, work.export, out, store),
    }
    results = race(ways, rounds, before=clear, server=processor, warm=ways.values() if rounds > 1 else ())
    clear()
    _, most, _ = driver.watched(ways["columns"])
    rates = (f"{volume / took.seconds / MB:.0f}" for took in results.values())
    return f"{volume / 1e9:.2f}", *rates, f"{most.peak:.0f}", f"{max(took.others for took in results.values()):.1f}"


def channels(options: Options, drivers: Drivers) -> str:
    """Measures stores of many small channels."""
    driver = drivers.on(MASTER)
    rows = []
    with options.directory("channels") as place:
        for number in (each for each in _CHANNELS if each <= options.channels):
            store = stores.make_store(place / f"channels{number}", number * _MESSAGES, 128, channels=number)
            files, messages, out = stores.all_files(store), number * _MESSAGES, place / "out"
            table_options = TableOptions((str(store),))

            def clear(out: Path = out, files: list[Path] = files) -> None:
                shutil.rmtree(out, ignore_errors=True)
                reread(files)

            ways: dict[str, Callable[[], object]] = {
                "local": lambda store=store: verify(open_datastore(store), workers=2),
                "plan": lambda how=table_options: plan(how),
                "columns": driver.checked(messages, work.count, store, columns="seq"),
                "count": driver.checked(messages, work.count, store),
                "verify": driver.checked(messages, work.verify, store),
                "stats": driver.checked(messages, work.stats, store),
                "export": driver.checked(messages, work.export, out, store),
            }
            rounds = 1 if number >= _MANY_CHANNELS else options.rounds
            warm = ways.values() if number == _CHANNELS[0] else ()
            results = race(ways, rounds, before=clear, server=processor, warm=[*warm, clear])
            clear()
            seconds = (took.seconds for took in results.values())
            rows.append((str(number), *seconds, f"{max(took.others for took in results.values()):.1f}"))
    headers = ("channels", "local verify", "planning alone", "count(), columns=seq", "count(), every column")
    headers += ("pipeline verify", "pipeline stats", "pipeline export", "others")
    return f"**Seconds; {_MESSAGES} messages and one durable a channel, {MASTER}**\n\n{table(headers, rows)}"
