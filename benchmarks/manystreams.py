"""Many small channels, each with one durable: what a stream costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import stores
from measure import run, stantools, table
from streams import Bench, Options, prepared

_MESSAGES = 100


def section(options: Options) -> str:
    """Measures several numbers of streams at a time."""
    with options.directory() as place, Bench(place) as bench:
        count = options.streams
        store = stores.make_store(place / "store", count * _MESSAGES, 128, channels=count)
        return _compare(bench, place, store, count, options.rounds)


def _compare(bench: Bench, place: Path, store: Path, count: int, rounds: int) -> str:
    streams = prepared(store)
    plans = iter(range(1 << 30))

    def command() -> None:
        words = ("--plan", place / f"plan{next(plans)}.yaml", "--yes", "--progress", "none")
        run(stantools("migrate", store, "--server", bench.server.url, *words))

    ways: dict[str, Callable[[], object]] = {
        "restored one by one": lambda: [bench.restore(stream) for stream in streams],
        "apply without proof, 2 at a time": lambda: bench.apply(streams, prove=False),
        "apply without proof, 8 at a time": lambda: bench.apply(streams, prove=False, parallel=8),
        "apply with proof, 2 at a time": lambda: bench.apply(streams, prove=True),
        "apply with proof, 8 at a time": lambda: bench.apply(streams, prove=True, parallel=8),
        "stantools migrate, whole command": command,
    }
    results = bench.race(ways, rounds, store)
    rows = [
        (name, took.seconds, took.processor, took.server, f"{count / took.seconds:.0f}", f"{took.others:.1f}")
        for name, took in ((name, results[name]) for name in ways)
    ]
    headers = ("", "s", "CPU s", "server CPU s", "streams/s", "others")
    title = f"{count} channels of {_MESSAGES} messages and one durable, nats-server {bench.server.version}"
    return f"**{title}**\n\n{table(headers, rows)}"
